"""The default cluster of commands: TRAINYARD_CLUSTER, the current cluster, or the only one.

``trainyard cluster use NAME`` makes a cluster the current one, as ``kubectl config use-context`` does.
"""

import os
from pathlib import Path

from kitlib import clusters, config
from kitlib.config import DEFAULT_CLUSTER
from kitlib.errors import BadInput

VARIABLE = "TRAINYARD_CLUSTER"


def default_cluster() -> str:
    """Return the cluster of a command without ``-c``; if there are none, the default name of a new one.

    Raises:
        BadInput: There are several clusters, and no current one; the error lists them.
    """
    if name := os.environ.get(VARIABLE):
        return name
    states = {str(row["cluster"]): str(row["state"]) for row in clusters.list_clusters()}
    if (name := read_current()) in states:
        return name
    if len(states) > 1:
        names = ", ".join(f"{name} ({state})" for name, state in states.items())
        first = next(iter(states))
        raise BadInput(
            "there are several clusters, and the command does not name one",
            about=names,
            fix=f"add -c {first}; or for all commands: trainyard cluster use {first}",
        )
    return next(iter(states), DEFAULT_CLUSTER)


def read_current() -> str:
    """Read the name of the current cluster; empty if there is none."""
    try:
        return _file().read_text(encoding="utf-8").strip()
    except OSError:
        return ""


def write_current(name: str) -> None:
    """Make a cluster the current one; an empty name unsets it."""
    path = _file()
    if not name:
        path.unlink(missing_ok=True)
        return
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    path.touch(0o600)
    path.write_text(f"{name}\n", encoding="utf-8")


def _file() -> Path:
    return config.state_folder() / "current-cluster"
