"""Collect events, logs, manifests and the state of nodes to diagnose a failed run.

It is collected when a notebook fails, before clean-up, and written to one file beside the report. Secrets are
not read; credentials of the kubeconfig, and values of variables whose names suggest secrets, are removed
everywhere. A failed request becomes a line in the bundle.
"""

import contextlib
import re
import tarfile
import tempfile
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path

import yaml

from kitlib.clusters import Cluster
from kitlib.errors import KitError, Rejected
from kitlib.k8s import manifests, names
from kitlib.k8s.client import Kube
from kitlib.k8s.manifests import Object

KINDS = (
    "Event", "Pod", "Job", "Deployment", "Service", "EndpointSlice", "ConfigMap", "PersistentVolumeClaim",
    "ResourceQuota", "LimitRange",
)  # fmt: skip
KINDS_OF_THE_CLUSTER = ("Node", "PersistentVolume", "StorageClass")
LINES_OF_A_LOG, BYTES_OF_A_FILE = 5000, 2**20
SOUNDS_SECRET = re.compile(r"token|password|passwd|secret|credential|api_?key|access_?key", re.IGNORECASE)
LEFT_OUT = "(left out)"


class Bundle:
    """Files about failures, in one folder each, for one archive."""

    def __init__(self) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="trainyard-bundle-")
        self._secrets: list[str] = []

    def hide(self, kubeconfig: Path) -> None:
        """Redact a kubeconfig's credentials in everything written from now on."""
        self._secrets = sorted({*self._secrets, *credentials(kubeconfig)}, key=len, reverse=True)

    def collect(self, cluster: Cluster, *, part: str) -> None:
        """Write the cluster's state to the folder ``part``."""
        root = Path(self._folder.name, part)
        for name in ("nodes", "runs", "pods", "events"):
            self._write(root / f"{name}.txt", partial(_table, cluster, name))
        for kind in KINDS_OF_THE_CLUSTER:
            self._write(root / "cluster" / f"{kind}.yaml", partial(_yaml, cluster.kube, kind))
        for namespace in _namespaces(cluster.kube):
            kube, folder = cluster.kube.in_namespace(namespace), root / namespace
            for kind in KINDS:
                self._write(folder / f"{kind}.yaml", partial(_yaml, kube, kind))
            with contextlib.suppress(KitError):
                for pod in kube.get_all("Pod"):
                    self._collect_logs(kube, pod, folder / "logs")
        if cluster.provider == "local":
            for path in sorted(cluster.kubeconfig.parent.rglob("*.log")):
                self._write(root / "components" / path.name, partial(_end_of, path))

    def _collect_logs(self, kube: Kube, pod: Object, folder: Path) -> None:
        status = pod.get("status", {})
        for container in [*status.get("initContainerStatuses", []), *status.get("containerStatuses", [])]:
            name = f"{pod['metadata']['name']}_{container['name']}"
            if set(container["state"]) & {"running", "terminated"}:
                self._write(folder / f"{name}.log", partial(_log, kube, pod, container["name"]))
            if container.get("restartCount"):
                previous = folder / f"{name}.previous.log"
                self._write(previous, partial(_log, kube, pod, container["name"], previous="true"))

    def _write(self, path: Path, read: Callable[[], str]) -> None:
        """Write the result of ``read``, or its error."""
        try:
            text = read()
        except (KitError, OSError) as error:
            path, text = path.with_suffix(f"{path.suffix}.missing"), f"{error}\n"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(self.clean(text), encoding="utf-8")

    def clean(self, text: str) -> str:
        """Return a text without the credentials of kubeconfigs."""
        for secret in self._secrets:
            text = text.replace(secret, LEFT_OUT)
        return text

    def save(self, path: Path) -> Path | None:
        """Write the archive, readable only by this user; return None if nothing was collected."""
        try:
            if not any(Path(self._folder.name).iterdir()):
                return None
            path.unlink(missing_ok=True)
            path.touch(mode=0o600)
            with tarfile.open(path, "w:gz") as archive:
                archive.add(self._folder.name, arcname=path.name.split(".")[0])
            return path
        finally:
            self._folder.cleanup()


def credentials(kubeconfig: Path) -> list[str]:
    """Return the secrets of a kubeconfig: tokens, passwords, keys; the longest first."""
    with contextlib.suppress(OSError, yaml.YAMLError, AttributeError, TypeError):
        users = [user.get("user") or {} for user in yaml.safe_load(kubeconfig.read_text())["users"]]
        keys = ("token", "password", "client-key-data")
        return sorted((str(user[key]) for user in users for key in keys if user.get(key)), key=len)[::-1]
    return []


def without_secrets(item: Object) -> Object:
    """Return an object without the values of variables whose names suggest secrets.

    Example:
        >>> without_secrets({"env": [{"name": "HF_TOKEN", "value": "hf_123"}]})
        {'env': [{'name': 'HF_TOKEN', 'value': '(left out)'}]}
    """
    if "value" in item and SOUNDS_SECRET.search(str(item.get("name"))):
        return item | {"value": LEFT_OUT}
    return {
        key: LEFT_OUT if isinstance(value, str) and _is_secret(key) else _without_secrets(value)
        for key, value in item.items()
        if key not in ("managedFields", "kubectl.kubernetes.io/last-applied-configuration")
    }


def _without_secrets(value: object) -> object:
    if isinstance(value, list):
        return [_without_secrets(part) for part in value]
    return without_secrets(value) if isinstance(value, dict) else value


def _is_secret(key: str) -> bool:
    return key != "secretName" and bool(SOUNDS_SECRET.search(key))


def _table(cluster: Cluster, name: str) -> str:
    return repr(getattr(cluster, name)())


def _yaml(kube: Kube, kind: str) -> str:
    return manifests.write([without_secrets(item) for item in kube.get_all(kind)])


def _namespaces(kube: Kube) -> Iterable[str]:
    """Return the run's namespace, and those that the kit created, such as an operator's."""
    try:
        metadata = [namespace["metadata"] for namespace in kube.get_all("Namespace")]
    except Rejected:
        return [kube.namespace]
    return dict.fromkeys(
        [
            kube.namespace,
            *(namespace["name"] for namespace in metadata if names.KIT in (namespace.get("labels") or {})),
        ]
    )


def _log(kube: Kube, pod: Object, container: str, **params: object) -> str:
    name = pod["metadata"]["name"]
    params |= {"container": container, "tailLines": LINES_OF_A_LOG, "timestamps": "true"}
    lines = kube.stream(f"{kube.path('Pod', name)}/log", about=f'the log of pod "{name}"', params=params)
    return "".join(f"{line}\n" for line in lines)


def _end_of(path: Path) -> str:
    with path.open("rb") as file:
        file.seek(max(0, path.stat().st_size - BYTES_OF_A_FILE))
        return file.read().decode("utf-8", "replace")
