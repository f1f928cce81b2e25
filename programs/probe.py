"""Print the state of processes and the reports of ranks: ``python probe.py [ANCESTOR]``.

It runs in a pod by exec, or on this machine for the descendants of a process, and imports only the standard
library. Ranks report through ``ranks/sitecustomize.py``; a rank without it has no ``report``.
"""

# ruff: noqa: PTH123, PTH208 - it starts faster without pathlib
import json
import os
import shutil
import socket
import subprocess
import sys
import time

SAMPLE_SECONDS, TIMEOUT = 0.5, 3.0  # between two samples; of a report
PREFIX = "/trainyard-rank-"  # of the socket directories


def read(path: str) -> str:
    try:
        with open(path, "rb") as file:
            return file.read().decode("utf-8", "replace")
    except OSError:
        return ""


def sample() -> dict[int, tuple[str, int, int]]:
    """Read the state, the parent and the ticks of each process."""
    processes = {}
    for pid in filter(str.isdigit, os.listdir("/proc")):
        stat = read(f"/proc/{pid}/stat").rpartition(")")[2].split()
        if stat:
            processes[int(pid)] = stat[0], int(stat[1]), int(stat[11]) + int(stat[12])
    return processes


def is_below(pid: int, ancestor: int, processes: dict[int, tuple[str, int, int]]) -> bool:
    while pid in processes and pid != ancestor:
        pid = processes[pid][1]
    return pid == ancestor


def read_report(path: str) -> object:
    """Read the report of a rank; None if it does not respond, such as a paused one."""
    try:
        with socket.socket(socket.AF_UNIX) as connection:
            connection.settimeout(TIMEOUT)
            connection.connect(path)
            parts = []
            while part := connection.recv(65536):
                parts.append(part)
            return json.loads(b"".join(parts))
    except (OSError, ValueError):
        return None


def rows(ancestor: int) -> list[dict[str, object]]:
    """Describe the descendants of a process, or all, without this process and its children."""
    before, began = sample(), time.monotonic()
    time.sleep(SAMPLE_SECONDS)
    after, seconds = sample(), time.monotonic() - began
    sockets = [line.split()[-1] for line in read("/proc/net/unix").splitlines() if PREFIX in line]
    paths = {int(path.rpartition("/")[2]): path for path in sockets if path.rpartition("/")[2].isdigit()}
    spy, tick, found = shutil.which("py-spy"), os.sysconf("SC_CLK_TCK"), []
    for pid, (state, parent, ticks) in after.items():
        if os.getpid() in (pid, parent) or not (ancestor == 0 or is_below(pid, ancestor, after)):
            continue
        command = " ".join(read(f"/proc/{pid}/cmdline").split("\0")[:-1])[:300]
        env = dict(item.split("=", 1) for item in read(f"/proc/{pid}/environ").split("\0") if "=" in item)
        reported = read_report(paths[pid]) if pid in paths and state not in "TtZ" else None
        stack = ""
        if spy and reported is None and "python" in command:
            dump = [spy, "dump", "--nonblocking", "--pid", str(pid)]
            stack = subprocess.run(dump, capture_output=True, text=True, check=False).stdout[:20000]
        found.append(
            {
                "pid": pid,
                "parent": parent,
                "state": state,
                "command": command,
                "rank": env.get("RANK", ""),
                "world_size": env.get("WORLD_SIZE", ""),
                "local": "LOCAL_RANK" in env,
                "waits": read(f"/proc/{pid}/wchan"),
                "cpu": round((ticks - before[pid][2]) / tick / seconds, 2) if pid in before else 0.0,
                "stack": stack,
                "report": reported,
                "answers": pid in paths,
            }
        )
    return found


if __name__ == "__main__":
    print(json.dumps(rows(int(sys.argv[1]) if sys.argv[1:] else 0)))
