"""Check in a child process whether this machine can mount an image's layers as pods need them.

A user namespace may mount overlayfs since Linux 5.11, and layers may be shifted into a pod's ids since 5.19;
some file systems take no layers at all. Standard library only.
"""

import os
import tempfile
from pathlib import Path

from localkube.runtime import syscalls
from localkube.runtime.container_spec import LinuxIdMapping
from localkube.runtime.mounts import open_own
from localkube.runtime.user_namespace import enter_user_namespace, new_user_namespace


def can_mount_layers(directory: Path, *, user_namespace: bool, shifted: LinuxIdMapping | None = None) -> bool:
    """Mount a layer below a writable one, and write.

    Args:
        directory: A directory on the file system of the layers.
        user_namespace: Mount as the root of a user namespace.
        shifted: The ids into which the layer is shifted.
    """
    with tempfile.TemporaryDirectory(prefix=".layers-", dir=directory) as place:
        for name in ("layer", "shifted", "upper", "work", "root"):
            os.mkdir(f"{place}/{name}")
        child = os.fork()
        if child == 0:
            status = 1
            try:
                _mount(place, user_namespace, shifted)
                status = 0
            finally:
                os._exit(status)
        return os.waitpid(child, 0)[1] == 0


def _mount(place: str, user_namespace: bool, shifted: LinuxIdMapping | None) -> None:
    if user_namespace:
        enter_user_namespace()
    syscalls.unshare(syscalls.CLONE_NEWNS)
    syscalls.mount(None, "/", None, syscalls.MS_REC | syscalls.MS_PRIVATE)
    layer = "layer"
    if shifted:
        source, layer = open_own(f"{place}/{layer}"), "shifted"
        tree = syscalls.clone_tree(source)
        syscalls.map_ids(tree, new_user_namespace(shifted))
        syscalls.move_mount(tree, open_own(f"{place}/{layer}"))
    os.chdir(place)
    options = f"lowerdir={layer},upperdir=upper,workdir=work,userxattr"
    syscalls.mount("overlay", f"{place}/root", "overlay", syscalls.MS_NODEV, options)
    os.mkdir(f"{place}/root/written")
