"""The course on nodes that declare GPUs: by default each worker has one, and trains on the CPU then."""

import contextlib
import json
import sys
import threading
from collections import defaultdict
from pathlib import Path

import pytest

import kitlib as kit
from kitlib.errors import KitError
from kitlib.k8s import names
from kitlib.k8s.watch import WatchSpec, watch_objects

ROOT = Path(__file__).parents[2]
CLUSTER, LIMIT = "gpus", 3000
NOTEBOOKS = sorted(path.stem for path in (ROOT / "notebooks").glob("[0-9][0-9]_*.ipynb"))
# Runs of the notebooks, in each of which all pods that train have a GPU.
RUNS = {
    "05": ["digits-single", "digits"],
    "06": ["cifar10-single", "cifar10"],
    "07": ["own", "own-function"],
    "08": ["elastic-fixed", "elastic"],
    "09": ["digits-operator", "digits-odd", "digits-trainjob"],
    "10": ["mnist", "mnist-one", "mnist-sync", "mnist-lab"],
    "11": ["mnist-low"],
    "12": ["test-cifar10"],
}
WITHOUT = ("store", "ps", "master")

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(LIMIT + 300)]


@pytest.fixture
def gpus_of_runs(state_home):
    """Create a cluster of four nodes with a GPU each; note the GPUs of all pods, by run and role."""
    cluster, gpu_counts = kit.create_cluster("local", name=CLUSTER, nodes=4, gpus=1), defaultdict(set)

    def follow():
        with contextlib.suppress(KitError):  # the cluster is deleted
            for state in watch_objects(cluster.kube, WatchSpec("Pod")):
                for pod in state["Pod"].values():
                    labels = pod["metadata"].get("labels") or {}
                    (container, *_) = pod["spec"]["containers"]
                    gpus = (container["resources"].get("limits") or {}).get("nvidia.com/gpu", "0")
                    run = labels.get(names.RUN)
                    gpu_counts[run, labels.get(names.ROLE) in WITHOUT].add(gpus)

    follower = threading.Thread(target=follow, name="gpus-of-runs", daemon=True)
    follower.start()
    yield gpu_counts
    cluster.delete()


@pytest.mark.slow
@pytest.mark.parametrize(
    "notebooks",
    [
        pytest.param(["05_indexed_job"], id="some"),
        pytest.param(NOTEBOOKS, id="all", marks=[pytest.mark.slow, pytest.mark.long]),
    ],
)
def test_every_worker_of_the_course_has_a_gpu_where_nodes_have_them(
    notebooks, gpus_of_runs, finish, tmp_path
):
    command = [sys.executable, str(ROOT / "tools" / "run_notebooks.py"), "--output", str(tmp_path)]
    words = ["--lanes", "1", "--cluster", CLUSTER, "--option", "gpus=1"]
    done = finish([*command, *words, *notebooks], timeout=LIMIT)
    assert done.returncode == 0, done.stdout
    result = json.loads((tmp_path / "result.json").read_text())
    assert [notebook["verdict"] for notebook in result["notebooks"]] == ["passed"] * len(notebooks)
    for run in (run for notebook in notebooks for run in RUNS.get(notebook[:2], [])):
        assert gpus_of_runs[run, False] == {"1"}, run
    assert {gpus for (_, without), all_ in gpus_of_runs.items() if without for gpus in all_} <= {"0"}
