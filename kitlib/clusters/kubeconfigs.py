"""The user's own kubeconfig: entries of a cluster merged into it, and removed with the cluster.

Nothing is written there unless the user requests it. An extension marks the kit's entries.
"""

import contextlib
import logging
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

from kitlib import config
from kitlib.clusters.base import Cluster
from kitlib.errors import BadInput
from kitlib.k8s import manifests
from kitlib.k8s.kubeconfig import PARTS, search_path, write_whole

EXTENSION = "trainyard"
LOCK_SECONDS = 5.0
log: logging.Logger = logging.getLogger(__name__)


def user_file() -> Path:
    """Locate the file that kubectl writes: the first existing file of KUBECONFIG, or else the last."""
    paths = [Path(path).expanduser().absolute() for path in search_path().split(os.pathsep) if path]
    return next((path for path in paths if path.exists()), paths[-1])


def merge(cluster: Cluster) -> Path:
    """Add a cluster to the user's kubeconfig, as the context of its name, and return the file.

    An existing current context does not change.

    Raises:
        BadInput: The file has such an entry that is not the kit's, or cannot be read or written.
    """
    exported = yaml.safe_load(cluster.kubectl("config view --raw --flatten --minify"))
    mark = [{"name": EXTENSION, "extension": {"cluster": cluster.name}}]
    names = {part: cluster.name for part in PARTS.values() if part != "context"}
    path = user_file()
    with _edited(path) as content:
        for part, kind in PARTS.items():
            (entry,) = exported[part]
            value = entry[kind] | (names if kind == "context" else {}) | {"extensions": mark}
            other_items = [item for item in content.get(part) or [] if item.get("name") != cluster.name]
            for item in content.get(part) or []:
                if item.get("name") == cluster.name and _owner(item, kind) != cluster.name:
                    what = f"it has a {kind} of this name, which is not the kit's"
                    fix = f"rename that one, or export KUBECONFIG={cluster.kubeconfig}"
                    raise BadInput(what, about=f'{path}: "{cluster.name}"', fix=fix)
            content[part] = [*other_items, {"name": cluster.name, kind: value}]
        content["current-context"] = content.get("current-context") or cluster.name
    record = _record(cluster.name)
    record.parent.mkdir(parents=True, exist_ok=True)
    record.write_text(str(path), encoding="utf-8")
    return path


def is_merged(name: str) -> bool:
    """Whether a cluster was added to the user's kubeconfig."""
    return _record(name).exists()


def remove(name: str) -> None:
    """Remove a cluster's entries from the kubeconfig that it was merged into; idempotent."""
    record = _record(name)
    if not record.exists():
        return
    path = Path(record.read_text(encoding="utf-8"))
    try:
        if path.exists():
            with _edited(path) as content:
                _remove_from(content, name)
    except BadInput as error:  # the cluster is deleted all the same
        log.warning("%s keeps the entries of cluster %s: %s", path, name, error.what)
    record.unlink(missing_ok=True)


def _remove_from(content: dict[str, Any], name: str) -> None:
    for part, kind in PARTS.items():
        items = content.get(part) or []
        content[part] = [item for item in items if _owner(item, kind) != name]
    if content.get("current-context") == name and not any(
        item["name"] == name for item in content["contexts"]
    ):
        content["current-context"] = ""


def _record(name: str) -> Path:
    return config.state_folder() / "merged" / name


def _owner(item: dict[str, Any], kind: str) -> str | None:
    """Name the kit's cluster that an entry belongs to."""
    for extension in (item.get(kind) or {}).get("extensions") or []:
        if extension.get("name") == EXTENSION:
            return (extension.get("extension") or {}).get("cluster")
    return None


@contextlib.contextmanager
def _edited(path: Path) -> Iterator[dict[str, Any]]:
    """Yield a kubeconfig's content, then replace the file atomically with the changed one, mode 0600."""
    path = path.resolve()  # a link stays a link
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        with _locked(path):
            text = path.read_text(encoding="utf-8") if path.exists() else ""
            content = yaml.safe_load(text) or {"apiVersion": "v1", "kind": "Config", "preferences": {}}
            if not isinstance(content, dict):
                raise BadInput("this is not a kubeconfig", about=str(path), fix="move it away, or correct it")
            yield content
            write_whole(path, manifests.write([content]))
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        what = f"the kubeconfig cannot be changed: {getattr(error, 'strerror', None) or error}"
        raise BadInput(what, about=str(path), fix="correct it, or name another in KUBECONFIG") from error


@contextlib.contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Hold the lock by which ``kubectl config`` keeps others out: a file beside the kubeconfig."""
    lock, deadline = path.with_name(f"{path.name}.lock"), time.monotonic() + LOCK_SECONDS
    while True:
        try:
            os.close(os.open(lock, os.O_CREAT | os.O_EXCL, 0o600))
            break
        except FileExistsError as error:
            if time.monotonic() > deadline:
                fix = f"wait for the kubectl that holds it; if there is none: rm {lock}"
                raise BadInput("another program is changing it", about=str(path), fix=fix) from error
            time.sleep(0.05)
    try:
        yield
    finally:
        lock.unlink(missing_ok=True)
