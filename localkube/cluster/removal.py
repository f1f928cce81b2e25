"""Stop and delete local clusters: the verbs of ``python -m localkube`` that end one.

Imports little, so that a deletion takes as long as the processes take to end.
"""

import os
import shutil
from pathlib import Path
from typing import Any

from localkube import host
from localkube.cluster.discovery import check_name, end_processes, status
from localkube.controlplane.lock import Report, lock_path, locked, no_progress
from localkube.errors import LocalClusterError
from localkube.paths import ClusterPaths, writing
from localkube.runtime.trees import remove_tree
from localkube.runtime.user_namespace import enter_user_namespace


def stop(name: str, *, report: Report = no_progress) -> dict[str, Any]:
    """End all processes of a cluster; its objects, volumes and port are kept. Safe to repeat."""
    check_name(name)
    paths = ClusterPaths(name)
    now = status(name)
    if now["state"] == "absent":
        fix = "`python -m localkube list` lists the clusters"
        raise LocalClusterError("there is no such cluster", about=name, fix=fix)
    with locked(paths, report):
        end_processes(paths)
        (paths.root / "stopped").touch(mode=0o600)
    return status(name)


def delete(name: str, *, report: Report = no_progress) -> dict[str, Any]:
    """Remove a cluster: its attendees' kubeconfigs, all processes, its directory. Safe to repeat."""
    check_name(name)
    paths = ClusterPaths(name)
    if paths.attendees.exists():
        shutil.rmtree(paths.attendees)
    if not paths.root.parent.is_dir():
        return {"name": name, "state": "absent", "existed": False}
    with locked(paths, report):
        existed = paths.root.exists()
        end_processes(paths)
        with writing(paths.root):
            remove(paths.root)
        lock_path(paths).unlink(missing_ok=True)
    return {"name": name, "state": "absent", "existed": existed}


def remove(root: Path) -> None:
    """Remove a cluster's directory, in which subordinate users of pods may have files."""
    try:
        remove_tree(root)
    except PermissionError:
        subordinate = host.pod_users(root).subordinate
        if not subordinate:
            raise
        child = os.fork()
        if child == 0:
            try:
                enter_user_namespace(subordinate)
                remove_tree(root)
            finally:
                os._exit(0)
        os.waitpid(child, 0)
        if root.exists():
            raise
