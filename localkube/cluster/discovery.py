"""Find clusters, report their status, send requests to their kubelet, and end their processes.

Imports little, because every command needs it. Creating and deleting are in ``lifecycle.py``.
"""

import fcntl
import json
import os
import re
import signal
import socket
import time
from pathlib import Path
from typing import Any

from localkube.errors import LocalClusterError
from localkube.host import start_time
from localkube.kubelet.resources.cgroups import remove_recorded
from localkube.paths import ClusterPaths, read_json, state_dir

# To end by themselves, and once they were killed: a machine that is busy takes its time.
STOP_SECONDS, KILL_SECONDS = 10, 60
POLL_SECONDS = 0.02
# A kubelet takes a while to start on a busy machine, and its own waits are shorter than this.
CONNECT_SECONDS, ANSWER_SECONDS = 60, 900
NAME = re.compile(r"[a-z0-9]([-a-z0-9]{0,38}[a-z0-9])?")


def read_record(paths: ClusterPaths) -> dict[str, Any]:
    return read_json(paths.record)


def _processes(paths: ClusterPaths) -> dict[str, dict[str, int]]:
    """Read the supervisor's list of processes; some may have ended."""
    return read_json(paths.root / "processes.json")


def end_processes(paths: ClusterPaths) -> None:
    """End all processes of a cluster, wait for them, and remove its control groups."""
    processes = _processes(paths)
    if not processes and alive(paths):
        raise LocalClusterError(
            "its supervisor runs, but its process is not known",
            about=paths.name,
            fix=f"look for 'localkube.supervisor {paths.root}' with ps, end it, and try again",
        )
    if "supervisor" in processes and _is_running(processes["supervisor"]):
        os.kill(processes["supervisor"]["pid"], signal.SIGTERM)
    for patience in (STOP_SECONDS, KILL_SECONDS):
        deadline = time.monotonic() + patience
        while time.monotonic() < deadline:
            if not any(map(_is_running, processes.values())):
                remove_recorded(paths.root)
                return
            time.sleep(POLL_SECONDS)
        for process in filter(_is_running, processes.values()):
            os.kill(process["pid"], signal.SIGKILL)
    raise LocalClusterError(
        "its processes do not end",
        about=f"{paths.name}: {processes}",
        fix="look at them with ps, and try again",
    )


def _stop_reason(paths: ClusterPaths, record: dict[str, Any]) -> str:
    if (paths.root / "stopped").exists():
        return "it was stopped, and keeps its objects and volumes"
    if record.get("boot") not in (None, boot_id()):
        return "this machine was restarted since; its objects and volumes are kept"
    return "its supervisor has ended, and its processes with it; its objects and volumes are kept"


def boot_id() -> str:
    """Identify this boot of the machine; empty where the system does not say."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return ""


def _is_running(process: dict[str, int]) -> bool:
    return start_time(process["pid"]) == process["start_time"]


def alive(paths: ClusterPaths) -> bool:
    """Check whether a supervisor holds the cluster's lock."""
    try:
        descriptor = os.open(paths.root / "supervisor.lock", os.O_RDWR | os.O_CLOEXEC)
    except FileNotFoundError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(descriptor)
    return False


def _api_problem(port: int) -> str:
    try:
        with socket.create_connection(("127.0.0.1", port), timeout=2):
            return ""
    except OSError as error:
        return f"nothing answers on 127.0.0.1:{port}: {error}"


def status(name: str) -> dict[str, Any]:
    """Report a cluster's status; ``state`` is absent, stopped, broken or running."""
    check_name(name)
    paths = ClusterPaths(name)
    try:
        record = json.loads(paths.record.read_text())
        answer = record | {
            "server": f"https://127.0.0.1:{record['api_port']}",
            "kubeconfig": str(paths.kubeconfig),
            "processes": _processes(paths),
            "state": "running",
            "reason": "",
        }
    except FileNotFoundError:
        return {"name": name, "state": "absent", "reason": f"there is no cluster {name!r} on this machine"}
    except (OSError, ValueError, TypeError, KeyError) as error:
        return {"name": name, "state": "broken", "reason": f"its record cannot be read: {error!r}"}
    if not alive(paths):
        return answer | {"state": "stopped", "reason": _stop_reason(paths, record)}
    if paths.asleep.exists():  # a connection would wake it
        return answer | {"reason": "asleep: idle; any connection wakes it"}
    if problem := _api_problem(record["api_port"]):
        return answer | {"state": "broken", "reason": problem}
    return answer


def names() -> list[str]:
    """List the clusters that have a directory here."""
    root = state_dir() / "clusters"
    return sorted(path.name for path in root.iterdir() if path.is_dir()) if root.is_dir() else []


def check_name(name: str) -> None:
    if not NAME.fullmatch(name):
        raise LocalClusterError(
            "a cluster's name has up to 40 lower-case letters, digits and hyphens",
            about=repr(name),
            fix="choose a name such as lab-1",
        )


def request(name: str, message: dict[str, Any]) -> Any:
    """Send a request to the control socket of a cluster's kubelet and return its result."""
    check_name(name)
    paths = ClusterPaths(name)
    now = status(name)
    if now["state"] != "running":
        raise LocalClusterError(
            f"the cluster is {now['state']}: {now['reason']}",
            about=name,
            fix=f"`python -m localkube start {name}`",
        )
    # A client of the API beside it: while there is one, the cluster does not sleep.
    with socket.create_connection(("127.0.0.1", now["api_port"])), _connect(paths) as sock:
        sock.sendall(json.dumps(message).encode() + b"\n")
        line = sock.makefile().readline()
    if not line:
        raise LocalClusterError("the kubelet ended before it answered", about=name, fix="try again")
    answer = json.loads(line)
    if "error" in answer:
        raise LocalClusterError(**answer["error"])
    return answer["result"]


def _connect(paths: ClusterPaths) -> socket.socket:
    """Connect to the kubelet, which may be restarting just now."""
    from localkube.runtime.client import short_name

    deadline = time.monotonic() + CONNECT_SECONDS
    while True:
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        sock.settimeout(ANSWER_SECONDS)
        try:
            with short_name(paths.control) as name:
                sock.connect(name)
            return sock
        except OSError as error:
            sock.close()
            if time.monotonic() > deadline:
                raise LocalClusterError(
                    f"the kubelet does not answer: {error.strerror}",
                    about=paths.name,
                    fix=f"read {paths.logs / 'kubelet.log'}",
                ) from error
        time.sleep(POLL_SECONDS)
