"""StorageClasses: on how many nodes at once their volumes can be mounted, by provisioner or by name.

Who has rights in one namespace alone may not read classes: then the name decides, which clouds and
distributions give. An unknown class is assumed to support what is requested.
"""

import tomllib
from collections.abc import Sequence
from functools import cache
from pathlib import Path

from kitlib.errors import BadInput
from kitlib.k8s.client import Kube, allowed
from kitlib.k8s.manifests import Object

CLASS = "StorageClass"
DEFAULT_CLASS = "storageclass.kubernetes.io/is-default-class"
MANY, ONE = "ReadWriteMany", "ReadWriteOnce"
MODES = (MANY, ONE, "ReadWriteOncePod", "ReadOnlyMany")


@cache
def _drivers() -> dict[str, list[str]]:
    return tomllib.loads((Path(__file__).parent / "drivers.toml").read_text("utf-8"))


def read_classes(kube: Kube) -> list[Object] | None:
    """List the classes; None where this user may not."""
    return allowed(lambda: list(kube.get_all(CLASS)))


def default_of(classes: Sequence[Object]) -> Object | None:
    """Find the default class; of several, the newest is the one that the API server takes."""
    marked = [
        item for item in classes if (item["metadata"].get("annotations") or {}).get(DEFAULT_CLASS) == "true"
    ]
    return max(marked, key=lambda item: item["metadata"].get("creationTimestamp") or "", default=None)


def nodes_of(name: str | None, classes: Sequence[Object] | None) -> str:
    """Find on how many nodes at once a volume of a class can be mounted: ``one``, ``many``, or empty."""
    storage_class = next((item for item in classes or () if item["metadata"]["name"] == name), None)
    if storage_class is None:
        return "one" if classes is None and name in _drivers()["one_node_names"] else ""
    provisioner = storage_class["provisioner"]
    if provisioner.startswith("cluster.local/") or "nfs" in provisioner:  # of a chart, named by its release
        return "many"
    many = provisioner in _drivers()["many_nodes"]
    return "one" if provisioner in _drivers()["one_node"] else "many" if many else ""


def check_access_mode(mode: str | None) -> str | None:
    """Raise BadInput for an invalid access mode."""
    if mode is not None and mode not in MODES:
        more = ", ".join(MODES[2:])
        fix = f'`access_mode="{MANY}"` for pods on all nodes, "{ONE}" for pods on one; also {more}'
        raise BadInput("there is no such access mode", about=f"access_mode={mode!r}", fix=fix)
    return mode


def choose_access_mode(
    mode: str | None, name: str | None, classes: Sequence[Object] | None, *, nodes: int | None, about: str
) -> str:
    """Choose the access mode of a claim among those of its class.

    Args:
        mode: The user's; by default one for many nodes, or for one if the cluster has no second.
        nodes: Of the cluster; None if this user may not see them.

    Raises:
        BadInput: The class is known for one node, and many are asked for.
    """
    if nodes_of(name, classes) != "one" or mode not in (None, MANY, "ReadOnlyMany"):
        return mode or MANY
    if mode is None and nodes == 1:
        return ONE
    raise BadInput(
        f'volumes of StorageClass "{name}" can be mounted on one node at a time',
        about=about,
        fix=f"{shared_class(classes)} lets pods on all nodes write; "
        f'or `access_mode="{ONE}"`, if all are on one node',
    )


def shared_class(classes: Sequence[Object] | None) -> str:
    """Name the class whose volumes many nodes can mount."""
    names = [item["metadata"]["name"] for item in classes or ()]
    fits = [name for name in names if nodes_of(name, classes) == "many"]
    none = "a class for NFS, EFS, Filestore, CephFS or Azure Files"
    return f'`storage_class="{fits[0]}"`' if fits else none
