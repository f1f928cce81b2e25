"""What this machine can do for a cluster of its own, as a table; nothing is changed by asking."""

from kitlib.clusters.local import machine
from kitlib.display.tables import Table
from kitlib.k8s.quantities import format_bytes

LITTLE_DISK, LITTLE_MEMORY = 2 * 2**30, 3 * 2**30


def doctor() -> Table:
    """Return the cores, memory, disk, GPUs and rights of this machine, each with a word on what follows.

    Example:
        >>> doctor()
    """
    found = machine()
    cores, memory, disk = found["cores"], found["memory"], found["disk_free"]
    rows = [
        ("system", found["system"], ""),
        ("python", found["python"], ""),
        ("cores", cores, "pods take turns: speed-ups will not show" if cores < 2 else ""),
        ("memory", format_bytes(memory), "too little for four nodes" if memory < LITTLE_MEMORY else ""),
        (
            "disk",
            f"{format_bytes(disk)} free in {found['disk_path']}",
            "too little" if disk < LITTLE_DISK else "",
        ),
        (
            "gpus",
            ", ".join(each["name"] for each in found["gpus"]) or "none",
            "" if found["gpus"] else "training runs on the CPU",
        ),
        _namespaces(found["namespaces"]),
        _mode(found["mode"]),
    ]
    return Table(("what", "found", "note"), rows)


def _namespaces(found: dict) -> tuple[str, str, str]:
    if found["allowed"]:
        return (
            "namespaces",
            "allowed",
            "pods are separated" + (", without root" if found["user_namespace"] else ""),
        )
    return "namespaces", f"refused: {found['reason']}", found["fix"]


def _mode(mode: str) -> tuple[str, str, str]:
    if mode == "namespaces":
        return ("mode", "namespaces", "each pod has a network, processes and a file tree of its own")
    return (
        "mode",
        "plain: pods are processes of this machine",
        "pods see its files and its processes with your rights; nodes cannot be cut off from the network; "
        "the row above says how an administrator allows more",
    )
