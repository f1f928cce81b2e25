"""Which processes of a cluster run, by pid and start time, by lock, by port; and how to end them."""

import fcntl
import json
import os
import signal
import socket
import time
from typing import Any

from localkube.errors import LocalClusterError
from localkube.machine import start_time
from localkube.paths import ClusterPaths

STOP_SECONDS = 10
POLL_SECONDS = 0.02


def read_record(paths: ClusterPaths) -> dict[str, Any]:
    try:
        return json.loads(paths.record.read_text())
    except (OSError, ValueError):
        return {}


def end_processes(paths: ClusterPaths) -> None:
    """End the supervisor and the site, and wait until they are gone."""
    processes = read_record(paths).get("processes", {})
    if "supervisor" in processes and _runs(processes["supervisor"]):
        os.kill(processes["supervisor"]["pid"], signal.SIGTERM)
    for patience in (STOP_SECONDS, STOP_SECONDS):
        deadline = time.monotonic() + patience
        while time.monotonic() < deadline:
            if not any(map(_runs, processes.values())):
                return
            time.sleep(POLL_SECONDS)
        for process in filter(_runs, processes.values()):
            os.kill(process["pid"], signal.SIGKILL)
    raise LocalClusterError(
        "its processes do not end",
        about=f"{paths.name}: {processes}",
        fix="look at them with ps, and try again",
    )


def _runs(process: dict[str, int]) -> bool:
    return start_time(process["pid"]) == process["start_time"]


def alive(paths: ClusterPaths) -> bool:
    """Tell whether a supervisor holds the cluster's lock."""
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


def api_problem(port: int) -> str:
    try:
        with socket.create_connection(("127.0.0.1", port), timeout=2):
            return ""
    except OSError as error:
        return f"nothing answers on 127.0.0.1:{port}: {error}"
