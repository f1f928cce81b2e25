"""Mirror pods: the API's copies of pods that do not come from it.

What runs is decided elsewhere: by a file (``static_pods.py``), or by the supervisor (``component_pods.py``).
Here each has an object in the API, which is recreated when somebody deletes it, and deleted when it is no
longer desired.

Source: https://kubernetes.io/docs/tasks/configure-pod-container/static-pod/
"""

import asyncio
import hashlib
import json
import logging
from collections.abc import Mapping
from typing import Any

from localkube.api_client import Api, Informer, object_key
from localkube.api_path import Object, api_path
from localkube.errors import ApiError

log = logging.getLogger(__name__)

MIRROR = "kubernetes.io/config.mirror"
HASH, SOURCE, SEEN = (f"kubernetes.io/config.{name}" for name in ("hash", "source", "seen"))
RETRY_SECONDS = 1.0

Key = tuple[str, str]


def is_mirror(pod: Object) -> bool:
    return MIRROR in (pod["metadata"].get("annotations") or {})


def is_mirror_of(mirror: Object, pod: Object) -> bool:
    """Check whether an object is this pod's mirror: anyone who may create pods may set the annotation."""
    mirrored = (mirror["metadata"].get("annotations") or {}).get(MIRROR)
    digest = (pod["metadata"].get("annotations") or {}).get(HASH)
    return object_key(mirror) == object_key(pod) and mirrored == digest is not None


def is_static(pod: Object) -> bool:
    """Check whether a pod comes from a file: its uid is then its hash."""
    return (pod["metadata"].get("annotations") or {}).get(HASH) == pod["metadata"]["uid"]


def with_status(pod: Object, mirror: Object) -> dict[str, Any]:
    """Combine a static pod with what the API has of its mirror: status and versions."""
    versions = {key: mirror["metadata"].get(key) for key in ("resourceVersion", "generation")}
    return {**pod, "metadata": pod["metadata"] | versions, "status": mirror.get("status") or {}}


def config_hash(pod: Object, *, node: str, source: str) -> str:
    """Compute the hash of 32 characters that identifies a static pod, which is also its uid on the node."""
    text = json.dumps([pod, node, source], sort_keys=True)
    return hashlib.md5(text.encode(), usedforsecurity=False).hexdigest()


def mirror_of(pod: Object, *, node: Object) -> dict[str, Any]:
    """Build the object to create for a pod that has the annotation ``HASH``; it goes with its node."""
    metadata = {key: value for key, value in pod["metadata"].items() if key not in ("uid", "resourceVersion")}
    metadata["annotations"] = metadata["annotations"] | {MIRROR: metadata["annotations"][HASH]}
    owner = {"apiVersion": "v1", "kind": "Node", "controller": True}
    metadata["ownerReferences"] = [owner | {"name": node["metadata"]["name"], "uid": node["metadata"]["uid"]}]
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": pod["spec"]}


class MirrorPods:
    """Keeps the desired mirror pods in the API.

    Args:
        clients: The clients of the nodes whose mirror pods these are, by the nodes' names.
    """

    def __init__(self, clients: Mapping[str, Api], *, nodes: Informer, pods: Informer) -> None:
        self._clients, self._nodes, self._pods = clients, nodes, pods
        self._desired: dict[Key, Object] = {}
        self._changed = asyncio.Event()
        pods.subscribe(self._pod_changed)

    def ensure(self, pod: Object) -> None:
        """Keep a mirror of this pod, replacing an earlier one of its name."""
        self._desired[object_key(pod)] = pod
        self._changed.set()

    def forget(self, pod: Object) -> None:
        """Delete its mirror."""
        self._desired.pop(object_key(pod), None)
        self._changed.set()

    def get(self, pod: Object) -> Object | None:
        """Get the mirror of a pod; None if there is none, or it is being deleted."""
        mirror = self._pods.store.get(object_key(pod))
        return mirror if mirror and self._is_current(mirror, pod) else None

    async def run(self) -> None:
        """Create and delete mirror pods."""
        await self._pods.synced.wait()
        await self._nodes.synced.wait()
        self._changed.set()
        while True:
            await self._changed.wait()
            self._changed.clear()
            if not await self._reconcile():
                await asyncio.sleep(RETRY_SECONDS)
                self._changed.set()

    async def _reconcile(self) -> bool:
        """Create and delete mirrors as desired; False if that must be retried."""
        mirrors = {key: pod for key, pod in self._pods.store.items() if self._is_ours(pod)}
        done = True
        for key, mirror in mirrors.items():
            desired = self._desired.get(key)
            if desired is None or not self._is_current(mirror, desired):
                done &= await self._delete(mirror)
        for key, desired_pod in self._desired.items():
            if key not in self._pods.store:
                done &= await self._create(desired_pod)
        return done

    async def _create(self, pod: Object) -> bool:
        node = self._nodes.store.get(("", pod["spec"]["nodeName"]))
        if node is None:
            return False
        namespace, name = object_key(pod)
        try:
            api = self._clients[pod["spec"]["nodeName"]]
            await api.post(api_path("v1/pods", namespace=namespace), mirror_of(pod, node=node))
        except ApiError as error:
            log.info("mirror of %s/%s: %s", namespace, name, error)
            return error.status in (409, 422)
        return True

    async def _delete(self, pod: Object) -> bool:
        namespace, name = object_key(pod)
        body = {"gracePeriodSeconds": 0, "preconditions": {"uid": pod["metadata"]["uid"]}}
        try:
            api = self._clients[pod["spec"]["nodeName"]]
            await api.delete(api_path("v1/pods", namespace=namespace, name=name), body)
        except ApiError as error:
            return error.status in (404, 409)
        return True

    def _pod_changed(self, _change: str, pod: Object, _before: Object | None) -> None:
        if self._is_ours(pod) or object_key(pod) in self._desired:
            self._changed.set()

    def _is_ours(self, pod: Object) -> bool:
        return is_mirror(pod) and pod["spec"].get("nodeName") in self._clients

    @staticmethod
    def _is_current(mirror: Object, pod: Object) -> bool:
        return is_mirror_of(mirror, pod) and not mirror["metadata"].get("deletionTimestamp")
