"""Events that the kit writes into the cluster: what somebody did on purpose, to which object, and when.

Kubernetes keeps Events for an hour. They stand beside its own, and name ``trainyard`` as who reports them.
"""

import logging
import secrets
from collections.abc import Mapping
from datetime import datetime
from types import MappingProxyType

from kitlib.errors import KitError
from kitlib.k8s.client import Kube
from kitlib.k8s.manifests import Object

COMPONENT = "trainyard"
NONE: Mapping[str, str] = MappingProxyType({})
log = logging.getLogger("trainyard")


def make_event(
    about: Object,
    kind: str,
    reason: str,
    message: str,
    *,
    at: datetime,
    labels: Mapping[str, str] = NONE,
    notes: Mapping[str, str] = NONE,
) -> Object:
    """Return an Event.

    Args:
        about: The object to which something was done.
        kind: Its kind, which the members of a list do not say.
        reason: One word: ``Killed``, ``Scaled`` …
        message: The rest.
        at: When it was done; in UTC, to the microsecond in ``eventTime``.
        labels: By which it is found.
        notes: Annotations, for programs.
    """
    meta = about["metadata"]
    namespace = meta.get("namespace", "")
    second = at.strftime("%Y-%m-%dT%H:%M:%SZ")
    return {
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": {
            "name": f"{meta['name']}.{secrets.token_hex(6)}",
            "namespace": namespace or "default",  # where those about nodes are
            "labels": dict(labels),
            "annotations": dict(notes),
        },
        "involvedObject": {"kind": kind, "name": meta["name"], "namespace": namespace, "uid": meta["uid"]},
        "type": "Normal",
        "reason": reason,
        "message": message,
        "action": reason,
        "count": 1,
        "firstTimestamp": second,
        "lastTimestamp": second,
        "eventTime": at.strftime("%Y-%m-%dT%H:%M:%S.%fZ"),
        "source": {"component": COMPONENT},
        "reportingComponent": COMPONENT,
        "reportingInstance": COMPONENT,
    }


def write_event(kube: Kube, event: Object) -> None:
    """Write an Event if this user may; what it tells of has been done, so that it fails is no error."""
    try:
        kube.create(event)
    except KitError as error:
        about = f"{event['involvedObject']['kind']} {event['involvedObject']['name']}"
        log.warning("%s of %s is not written down: %s", event["reason"], about, error.what)
