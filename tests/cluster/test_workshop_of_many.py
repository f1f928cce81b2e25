"""Thirty attendees have a room on one local cluster, and ten of them run notebook 05 at once, in small.

Its figures are in docs/instructors-guide.md; with TRAINYARD_FIGURES=FILE they are written there as JSON.
"""

import json
import os
import subprocess
import sys
import threading
import time
from datetime import datetime
from pathlib import Path

import psutil
import pytest

import kitlib as kit
from kitlib.k8s.quantities import parse_quantity
from kitlib.k8s.watch import WatchSpec, watch_objects

ROOT = Path(__file__).parents[2]
ROOMS, AT_ONCE = 30, 10
MAX_MEMORY = 16 * 2**30
SMALL = {"provider": "existing", "nodes": 2, "epochs": 2, "threshold": 0.5}
# More is declared than the machine has: the attendees compute in turns, and none of their pods has to wait.
SHAPE = {"nodes": 4, "cpus": 8, "memory": "16Gi"}
QUOTA = {"cpu": "1", "memory": "2Gi", "pods": 10}

pytestmark = [pytest.mark.cluster, pytest.mark.slow, pytest.mark.long, pytest.mark.timeout(1800)]


@pytest.fixture
def cluster(state_home):
    """A cluster with room for all of them, on whatever machine this is."""
    with kit.create_cluster("local", name="many", **SHAPE) as cluster:
        yield cluster


class Watcher(threading.Thread):
    """Sees how long each pod of an attendee waits, what quotas count, and what all processes hold."""

    def __init__(self, cluster):
        super().__init__(name="watcher", daemon=True)
        self.kube = cluster.kube.in_namespace("")
        processes = kit.connect(cluster.name).status["processes"].values()
        self.roots = [os.getpid(), *(process["pid"] for process in processes)]
        self.ended = threading.Event()
        self.waits, self.over = {}, []
        self.most, self.kernels, self.ranks, self.base = 0, [], [], 0
        self.troubles = []

    def run(self):
        sampled = 0.0
        for objects in watch_objects(self.kube, WatchSpec("Pod"), WatchSpec("ResourceQuota")):
            for key, pod in objects["Pod"].items():
                if key.startswith("attendee-") and (began := started(pod)):
                    created = datetime.fromisoformat(pod["metadata"]["creationTimestamp"])
                    self.waits[pod["metadata"]["uid"]] = (key, (began - created).total_seconds())
            self.over += [key for key, item in objects["ResourceQuota"].items() if is_over(item)]
            if time.monotonic() - sampled > 5:
                self.weigh()
                sampled = time.monotonic()
            if self.ended.is_set():
                return

    def weigh(self):
        """Count the memory of the cluster's processes and the notebooks', a shared page by its share."""
        total, kernels, ranks = 0, [], []
        for process in below(self.roots):
            try:
                words, size = " ".join(process.cmdline()), process.memory_full_info().pss
            except psutil.Error:
                continue
            total += size
            if "ipykernel" in words or "papermill" in words:
                kernels.append(size)
            elif "trainer.py" in words or "torchrun" in words:
                ranks.append(size)
        self.most = max(self.most, total)
        self.base = self.base or total
        self.kernels, self.ranks = max(self.kernels, kernels, key=sum), max(self.ranks, ranks, key=sum)


def below(roots):
    """Return processes, and all that they have started."""
    processes = [psutil.Process(root) for root in roots]
    processes_below = [process for root in processes for process in (root, *root.children(recursive=True))]
    return list({process.pid: process for process in processes_below}.values())


def started(pod):
    """Return when the first container of a pod started, or None."""
    states = [row.get("state") or {} for row in (pod.get("status") or {}).get("containerStatuses") or []]
    times = [(state.get("running") or state.get("terminated") or {}).get("startedAt") for state in states]
    return min((datetime.fromisoformat(time_) for time_ in times if time_), default=None)


def is_over(quota):
    """Return whether more is used than a quota allows."""
    status = quota.get("status") or {}
    used = status.get("used") or {}
    return any(
        parse_quantity(used.get(what, "0")) > parse_quantity(most)
        for what, most in (status.get("hard") or {}).items()
    )


def attend(attendee, folder):
    """Start notebook 05 as an attendee, with nothing but the kubeconfig."""
    (folder / attendee.name).mkdir()
    environment = {"KUBECONFIG": str(attendee.kubeconfig), "XDG_STATE_HOME": str(folder / attendee.name)}
    words = [word for name, value in SMALL.items() for word in ("-p", name, str(value))]
    output = folder / f"{attendee.name}.ipynb"
    command = [sys.executable, "-m", "papermill", "05_indexed_job.ipynb", str(output), *words]
    log = (folder / f"{attendee.name}.log").open("w")
    return subprocess.Popen(
        command, cwd=ROOT / "notebooks", env=os.environ | environment, stdout=log, stderr=subprocess.STDOUT
    )


def test_ten_of_thirty_run_notebook_05_at_once_and_nobody_starves(cluster, tmp_path):
    began = time.monotonic()
    workshop = kit.workshop.create(ROOMS, cluster=cluster, **QUOTA)
    creation_seconds = time.monotonic() - began
    assert len(kit.workshop.list_attendees(cluster=cluster)) == ROOMS
    assert "enough for all quotas" in {fact["note"] for fact in workshop.facts}
    watcher = Watcher(cluster)
    watcher.weigh()
    watcher.start()
    began = time.monotonic()
    running = {attendee.name: attend(attendee, tmp_path) for attendee in workshop.attendees[:AT_ONCE]}
    ended = {}
    while running.keys() - ended.keys():
        for name in running.keys() - ended.keys():
            if running[name].poll() is not None:
                ended[name] = time.monotonic() - began
        watcher.ended.wait(0.5)
    watcher.ended.set()
    watcher.join()

    failed = {
        name: (tmp_path / f"{name}.log").read_text()[-3000:] for name in running if running[name].returncode
    }
    assert not failed, "\n".join(failed.values())
    finished = {row["attendee"]: row["finished"] for row in kit.workshop.status(cluster=cluster)}
    assert [name for name, notebooks in finished.items() if notebooks == "05"] == sorted(running)
    assert not watcher.over, "a quota did not hold"
    assert {key.partition("/")[0] for key, _ in watcher.waits.values()} == {f"attendee-{n}" for n in running}
    assert watcher.most < MAX_MEMORY, f"{watcher.most / 2**30:.1f} GiB"
    write_down(creation_seconds, ended, watcher)


def write_down(creation_seconds, ended, watcher):
    """Leave the figures where the environment says."""
    waits = sorted(seconds for _, seconds in watcher.waits.values())
    figures = {
        "rooms": ROOMS,
        "seconds to make them": round(creation_seconds, 1),
        "at once": AT_ONCE,
        "seconds of a notebook, first and last to end": [
            round(second) for second in (min(ended.values()), max(ended.values()))
        ],
        "pods": len(waits),
        "seconds a pod waited: median, most": [waits[len(waits) // 2], waits[-1]],
        "GiB before": round(watcher.base / 2**30, 2),
        "GiB at most": round(watcher.most / 2**30, 2),
        "MiB of notebooks at most": round(sum(watcher.kernels) / 2**20),
        "MiB of ranks at most": [len(watcher.ranks), round(sum(watcher.ranks) / 2**20)],
        "load": os.getloadavg(),
    }
    print(json.dumps(figures, indent=1))
    if where := os.environ.get("TRAINYARD_FIGURES"):
        Path(where).write_text(json.dumps(figures, indent=1))
