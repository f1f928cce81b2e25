"""Static pods: manifests in a folder of the cluster, which the kubelet runs by itself.

``static-pods/NODE/*.yaml`` (or ``.yml``, ``.json``) below the cluster's directory, one pod in each. A file
that changes is another pod, one that goes ends its pod, and one that cannot be read is named in the log and
left as it was. Names, annotations and uids are a kubelet's.

Source: https://kubernetes.io/docs/tasks/configure-pod-container/static-pod/
"""

import asyncio
import json
import logging
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from localkube.api_path import Object
from localkube.kubelet.pods.mirror_pods import HASH, SEEN, SOURCE, MirrorPods, config_hash
from localkube.kubelet.status.pod_status import timestamp

log = logging.getLogger(__name__)

ENDINGS = (".yaml", ".yml", ".json")
CHECK_SECONDS = 1.0
# What a kubelet, or the API server, fills in where a manifest says nothing.
POD_DEFAULTS = {
    "restartPolicy": "Always",
    "terminationGracePeriodSeconds": 30,
    "dnsPolicy": "ClusterFirst",
    "enableServiceLinks": True,
    "securityContext": {},
}
CONTAINER_DEFAULTS = {
    "terminationMessagePath": "/dev/termination-log",
    "terminationMessagePolicy": "File",
    "imagePullPolicy": "IfNotPresent",
    "resources": {},
}
PROBE_DEFAULTS = {"timeoutSeconds": 1, "periodSeconds": 10, "successThreshold": 1, "failureThreshold": 3}


class StaticPods:
    """Follows the manifests of all nodes.

    Args:
        folder: The folder of the manifests, with a folder for each node.
        begin: Starts a pod,
        end: and ends one, by its object.
    """

    def __init__(
        self,
        folder: Path,
        *,
        nodes: Iterable[str],
        mirrors: MirrorPods,
        begin: Callable[[dict[str, Any]], None],
        end: Callable[[Object], None],
    ) -> None:
        self._folder, self._nodes, self._mirrors = folder, tuple(nodes), mirrors
        self._begin, self._end = begin, end
        self._versions: dict[Path, tuple[int, int]] = {}
        self._pods: dict[Path, dict[str, Any]] = {}

    def load(self, add: Callable[[Object], None]) -> None:
        """Read the manifests that are there, whose pods may run already."""
        for pod in self._scan():
            add(pod)

    async def run(self) -> None:
        """Check the manifests for changes each second."""
        while True:
            await asyncio.sleep(CHECK_SECONDS)
            for pod in self._scan():
                self._begin(pod)

    def _scan(self) -> list[dict[str, Any]]:
        """End the pods of manifests that are gone or others; returns those that are new."""
        manifests = {path: node for node in self._nodes for path in _manifests(self._folder / node)}
        for path in [path for path in self._pods if path not in manifests]:
            self._versions.pop(path)
            self._remove(path)
        fresh = []
        for path, node in manifests.items():
            pod, before = self._read_if_changed(path, node), self._pods.get(path)
            if pod and (before is None or before["metadata"]["uid"] != pod["metadata"]["uid"]):
                self._remove(path)
                self._pods[path] = pod
                self._mirrors.ensure(pod)
                fresh.append(pod)
        return fresh

    def _read_if_changed(self, path: Path, node: str) -> dict[str, Any] | None:
        """Read a manifest that has changed since it was last seen; None if it has not, or cannot be read."""
        try:
            status = path.stat()
            version = status.st_mtime_ns, status.st_size
            if self._versions.get(path) == version:
                return None
            self._versions[path] = version
            return static_pod(_read(path), node=node, source=str(path))
        except (OSError, ValueError, LookupError, TypeError, AttributeError) as error:
            log.warning("static pod %s: %s", path, error or type(error).__name__)
            return None

    def _remove(self, path: Path) -> None:
        if pod := self._pods.pop(path, None):
            self._mirrors.forget(pod)
            self._end(pod)


def static_pod(manifest: Object, *, node: str, source: str) -> dict[str, Any]:
    if manifest.get("kind") != "Pod" or not manifest["spec"].get("containers"):
        raise ValueError("it has no pod")
    named = [
        manifest["metadata"],
        *manifest["spec"]["containers"],
        *(manifest["spec"].get("initContainers") or ()),
    ]
    if not all(isinstance(item.get("name"), str) for item in named):
        raise ValueError("a pod and its containers have names")
    if not all(isinstance(container.get("image"), str) for container in named[1:]):
        raise ValueError("a container has an image")
    if any(
        set(volume) & {"secret", "configMap", "projected"} for volume in manifest["spec"].get("volumes") or ()
    ):
        raise ValueError(
            "a static pod can have no Secrets, ConfigMaps and tokens: it does not come from the API"
        )
    metadata = manifest["metadata"]
    uid = config_hash(manifest, node=node, source=source)
    annotations = {HASH: uid, SOURCE: "file", SEEN: timestamp(time.time())}
    tolerations = [
        *(manifest["spec"].get("tolerations") or ()),
        {"operator": "Exists", "effect": "NoExecute"},
    ]
    spec = POD_DEFAULTS | manifest["spec"] | {"nodeName": node, "tolerations": tolerations}
    for kind in ("initContainers", "containers"):
        if manifest["spec"].get(kind):
            spec[kind] = [_with_defaults(container) for container in manifest["spec"][kind]]
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            **metadata,
            "name": f"{metadata['name']}-{node}",
            "namespace": metadata.get("namespace") or "default",
            "annotations": (metadata.get("annotations") or {}) | annotations,
            "uid": uid,
        },
        "spec": spec,
    }


def _with_defaults(container: Object) -> dict[str, Any]:
    complete = CONTAINER_DEFAULTS | dict(container)
    for kind in ("startupProbe", "readinessProbe", "livenessProbe"):
        if complete.get(kind):
            complete[kind] = PROBE_DEFAULTS | complete[kind]
    if complete.get("ports"):
        complete["ports"] = [{"protocol": "TCP"} | port for port in complete["ports"]]
    return complete


def _manifests(folder: Path) -> list[Path]:
    try:
        return sorted(path for path in folder.iterdir() if path.suffix in ENDINGS and path.name[0] != ".")
    except OSError:  # most nodes have none
        return []


def _read(path: Path) -> Object:
    text = path.read_text(encoding="utf-8")
    if path.suffix == ".json":
        return json.loads(text)
    import yaml  # few clusters have static pods

    try:
        return yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise ValueError(str(error)) from error
