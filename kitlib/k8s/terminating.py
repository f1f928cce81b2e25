"""Objects and finalizers that block the deletion of a namespace.

Kubernetes' conditions name kinds and counts alone, and say nothing while pods end, which go first.
"""

import re
from collections.abc import Iterator

from kitlib.errors import KitError
from kitlib.k8s import pods
from kitlib.k8s.api_path import api_path, group_path
from kitlib.k8s.client import Kube, allowed
from kitlib.k8s.manifests import Object

_LEFT = re.compile(r"\b([a-z0-9]{1,63})\.([a-z0-9.-]{0,253}) has \d{1,9} resource instances")
MAX_NAMED, MAX_TEXT = 5, 4096


def remaining_conditions(namespace: Object) -> str:
    """Get Kubernetes' messages about a namespace's remaining objects; empty if it has none."""
    true = pods.conditions(namespace)
    return "; ".join(condition["message"] for kind, condition in true.items() if "Remaining" in kind)


def holders(kube: Kube, namespace: Object) -> str:
    """Name the remaining objects, with their finalizers; empty if none can be found.

    Example:
        >>> holders(kube, kube.get("Namespace", "attendee-ada"))  # doctest: +SKIP
        'configmaps/notes (finalizers example.com/hold)'
    """
    text = remaining_conditions(namespace)[:MAX_TEXT]
    kinds = dict.fromkeys(_LEFT.findall(text) or [("pods", "")])
    named = [line for plural, group in kinds for line in _objects(kube, namespace, plural, group)]
    more = f", and {len(named) - MAX_NAMED} more" if len(named) > MAX_NAMED else ""
    return ", ".join(named[:MAX_NAMED]) + more


def held_namespaces(kube: Kube) -> list[str]:
    """Name the namespaces whose deletion is blocked; none if this user may not list them."""
    namespaces = allowed(lambda: kube.in_namespace("").get_all("Namespace")) or []
    return [
        f"namespace {item['metadata']['name']} waits until these are gone: {left}"
        for item in namespaces
        if pods.deleted(item) and (left := holders(kube, item) or remaining_conditions(item))
    ]


def _objects(kube: Kube, namespace: Object, plural: str, group: str) -> Iterator[str]:
    try:
        version = "v1" if not group else kube.raw(group_path(group))["preferredVersion"]["groupVersion"]
        items = kube.raw(api_path(version, plural, namespace=namespace["metadata"]["name"]))["items"]
    except KitError:  # the kind's definition may be deleted; the conditions still name it
        return
    for item in items:
        metadata = item["metadata"]
        finalizers = ", ".join(metadata.get("finalizers") or [])
        grace = metadata.get("deletionGracePeriodSeconds")
        waits = f"finalizers {finalizers}" if finalizers else f"{grace} s to end" if grace else ""
        yield f"{plural}/{metadata['name']}" + (f" ({waits})" if waits else "")
