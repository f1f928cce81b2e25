"""Wait until a new cluster is ready, for as long as its components make progress.

The components' processes are observed from outside; readiness is what the API reports. The rule of the
deadline is in ``controlplane/progress_deadline.py``.
"""

import contextlib
import http.client
import json
import os
import subprocess
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor, wait
from pathlib import Path
from typing import Any

from localkube.api_path import api_path
from localkube.controlplane.client_credentials import client_tls
from localkube.controlplane.node_reports import has_reported
from localkube.controlplane.progress_deadline import (
    Activity,
    CrashCount,
    ProgressDeadline,
    Stall,
    machine_load,
)
from localkube.errors import LocalClusterError
from localkube.host import disk_problem
from localkube.kubelet.resources.proc_usage import ProcessTable
from localkube.paths import ClusterPaths, read_json

POLL_SECONDS = 0.02
CHECK_SECONDS, ANSWER_SECONDS = 0.5, 5.0
MAX_SHOWN = 200
REPORT_SECONDS = 5.0
# What a cluster cannot do without; the scheduler and the others are not waited for.
NOT_READY_TAINTS = ("node.kubernetes.io/not-ready", "node.kubernetes.io/unreachable")
NEEDED = ("supervisor", "etcd", "kube-apiserver", "kube-controller-manager", "kubelet")
NEVER_IDLE = ("etcd", "kube-apiserver", "kubelet")
BUSY_SHARE = 0.1


class Startup:
    """The start of a cluster."""

    def __init__(
        self,
        paths: ClusterPaths,
        *,
        port: int,
        nodes: int,
        supervisor: subprocess.Popen[bytes],
        seconds: float,
        report: Callable[[str], None],
    ) -> None:
        self._paths, self._nodes = paths, nodes
        # Not by `Api`: its imports take a third of a second, which the API server itself needs.
        tls = client_tls(paths.pki)
        self._api = http.client.HTTPSConnection("127.0.0.1", port, timeout=ANSWER_SECONDS, context=tls)
        self._supervisor, self._report = supervisor, report
        self._deadline, self._activity = ProgressDeadline(seconds, never_idle=NEVER_IDLE), Activity()
        self._started_at, self._ended = time.time(), threading.Event()
        self._reported_at, self._cpu_seconds = time.monotonic(), dict[str, float]()
        # What is waited for, in words, and of which part; and how far the start has come at its best: an API
        # server that ends again and again would answer anew each time.
        self._state, self._part, self._progress = "the API server does not answer", "kube-apiserver", 0

    def wait(self) -> None:
        """Wait until every node is Ready, pods are accepted, and the API server is ready."""
        with ThreadPoolExecutor(1, "readiness") as pool:  # a request may take seconds
            ready = pool.submit(self._wait_until_ready)
            try:
                while ready not in wait([ready], timeout=CHECK_SECONDS).done:
                    self._check_progress()
            finally:
                self._ended.set()
            ready.result()

    def _wait_until_ready(self) -> None:
        while not self._ended.is_set() and not self._is_ready():
            self._ended.wait(POLL_SECONDS)

    def _is_ready(self) -> bool:
        if (nodes := self._get(api_path("v1/nodes"))) is None:
            return False
        ready = sum(_is_ready_since(node, since=int(self._started_at)) for node in json.loads(nodes)["items"])
        self._set_state(f"{ready} of {self._nodes} nodes are Ready", of="kubelet", progress=1 + ready)
        if ready != self._nodes:
            return False
        # Pods are refused until the controller manager has made this one.
        missing = "the default service account does not exist yet"
        self._set_state(missing, of="kube-controller-manager", progress=2 + ready)
        if self._get(api_path("v1/serviceaccounts", namespace="default", name="default")) is None:
            return False
        self._set_state(
            "the API server does not report itself ready", of="kube-apiserver", progress=3 + ready
        )
        return self._get("/readyz") is not None

    def _get(self, path: str) -> bytes | None:
        """Get an object as an administrator; None without an answer, whose cause is kept for the error."""
        try:
            self._api.request("GET", path)
            answer = self._api.getresponse()
            body = answer.read()
        except (OSError, http.client.HTTPException):
            self._api.close()  # the next request opens it again
            self._set_state("the API server does not answer", of="kube-apiserver")
            return None
        if answer.status not in (200, 404):
            refused = f"the API server refuses: {body[:MAX_SHOWN].decode(errors='replace')}"
            self._set_state(refused, of="kube-apiserver")
        return body if answer.status == 200 else None

    def _set_state(self, state: str, *, of: str, progress: int = 0) -> None:
        self._state, self._part, self._progress = state, of, max(progress, self._progress)

    def _check_progress(self) -> None:
        """Report what is slow, and fail when there is no progress."""
        if (code := self._supervisor.poll()) is not None:
            raise self._error(Stall(f"the supervisor has ended with status {code}", "supervisor"))
        interval, cpu_seconds = self._activity.sample(self._pids())
        stall = self._deadline.check(self._progress, interval, cpu_seconds, self._crashes())
        if stall:
            raise self._error(stall)
        for part, seconds in cpu_seconds.items():
            self._cpu_seconds[part] = self._cpu_seconds.get(part, 0.0) + seconds
        if (since := time.monotonic() - self._reported_at) >= REPORT_SECONDS:
            work = [part for part, seconds in self._cpu_seconds.items() if seconds > BUSY_SHARE * since]
            self._report(
                f"{self._state}; {time.time() - self._started_at:.0f} s, {machine_load()}, "
                f"at work: {', '.join(work) or 'nothing'}"
            )
            self._reported_at, self._cpu_seconds = time.monotonic(), {}

    def _pids(self) -> dict[str, list[int]]:
        """Find the processes of each component: those that write to its log."""
        logs, pids = self._paths.logs.resolve(), dict[str, list[int]]()
        for pid in ProcessTable().tree(self._supervisor.pid):
            with contextlib.suppress(OSError):  # it has ended
                output = Path(os.readlink(f"/proc/{pid}/fd/1"))
                if output.parent == logs and output.stem in NEEDED:
                    pids.setdefault(output.stem, []).append(pid)
        return pids

    def _crashes(self) -> dict[str, CrashCount]:
        crashes = read_json(self._paths.crashes)
        return {name: CrashCount(**crashes[name]) for name in NEEDED if name in crashes}

    def _error(self, stall: Stall) -> LocalClusterError:
        part = stall.part or self._part
        what = f"the cluster did not start: {self._state}; {stall.reason} ({machine_load()})"
        fix = f"look at the lines of {part} above, and at `python -m localkube doctor`; then create it again"
        if problem := disk_problem():
            what, fix = f"{problem}; {what}", f"free space in {self._paths.root.parent}, and try again"
        return LocalClusterError(f"{what}\n{log_tail(self._paths, part)}", about=self._paths.name, fix=fix)


def _is_ready_since(node: dict[str, Any], *, since: float) -> bool:
    """Check that a node has reported itself Ready since then, without the node controller's taints.

    Until those are gone, pods are spread over the other nodes alone.
    """
    is_tainted = any(taint["key"] in NOT_READY_TAINTS for taint in node["spec"].get("taints", []))
    return not is_tainted and has_reported(node, since=since)


def log_tail(paths: ClusterPaths, part: str) -> str:
    """Read the last lines of each log, those of ``part`` at the end."""
    lines = []
    for path in sorted(paths.logs.glob("*.log"), key=lambda path: (path.stem == part, path.stem)):
        text = path.read_text(errors="replace").splitlines()[-(12 if path.stem == part else 3) :]
        lines += [f"  {path.stem}: {line[:300]}" for line in text]
    return "\n".join(lines)
