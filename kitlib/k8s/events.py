"""Kubernetes Events: the kit's own, for a user's actions on purpose, and tables of all Events.

Kubernetes keeps Events for an hour. The kit's have ``trainyard`` as their reporting component.
"""

import logging
import secrets
from collections.abc import Iterable, Mapping
from datetime import datetime
from types import MappingProxyType

from kitlib.display.tables import Table, age
from kitlib.errors import KitError
from kitlib.k8s.client import Kube, allowed
from kitlib.k8s.manifests import Object

COMPONENT = "trainyard"
NODES_NAMESPACE = "default"  # of Events about nodes, which have no namespace
NONE: Mapping[str, str] = MappingProxyType({})
log: logging.Logger = logging.getLogger("trainyard")


def make_event(
    about: Object,
    kind: str,
    reason: str,
    message: str,
    *,
    at: datetime,
    labels: Mapping[str, str] = NONE,
    annotations: Mapping[str, str] = NONE,
) -> Object:
    """Make an Event about an object; the members of a list do not have their kind."""
    meta = about["metadata"]
    namespace = meta.get("namespace", "")
    second = at.strftime("%Y-%m-%dT%H:%M:%SZ")
    return {
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": {
            "name": f"{meta['name']}.{secrets.token_hex(6)}",
            "namespace": namespace or NODES_NAMESPACE,
            "labels": dict(labels),
            "annotations": dict(annotations),
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
    """Create an Event if this user may; a failure is logged, since the action itself has succeeded."""
    try:
        kube.create(event)
    except KitError as error:
        about = f"{event['involvedObject']['kind']} {event['involvedObject']['name']}"
        log.warning("the Event %s of %s is not created: %s", event["reason"], about, error.what)


def list_events(kube: Kube, *, labels: str = "", fields: str = "") -> list[Object]:
    """List Events of a namespace; none where this user may not, as they only explain."""
    return allowed(lambda: kube.get_all("Event", labels=labels, fields=fields)) or []


def namespace_events(kube: Kube) -> list[Object]:
    """List the Events of a namespace, and those about nodes as far as this user may list them."""
    events = list_events(kube)
    if kube.namespace == NODES_NAMESPACE:
        return events
    nodes = kube.in_namespace(NODES_NAMESPACE)
    return events + list_events(nodes, fields="involvedObject.kind=Node")


def event_time(event: Object) -> str:
    """Find when an Event last happened: RFC 3339."""
    series = event.get("series") or {}
    return (
        series.get("lastObservedTime")
        or event.get("lastTimestamp")
        or event.get("eventTime")
        or event["metadata"].get("creationTimestamp", "")
    )


def events_table(events: Iterable[Object]) -> Table:
    """Make a table of Events, oldest first."""
    rows = [
        (
            age(event_time(event)),
            event.get("type"),
            event.get("reason"),
            f"{event['involvedObject'].get('kind', '')}/{event['involvedObject'].get('name', '')}",
            event.get("message", ""),
        )
        for event in sorted(events, key=lambda event: (event_time(event), event.get("eventTime") or ""))
    ]
    return Table(("age", "type", "reason", "object", "message"), rows, empty="no events")
