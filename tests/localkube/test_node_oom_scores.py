"""Whom the kernel ends first: upstream's own table, and what an unprivileged user can do."""

import json
from pathlib import Path

import pytest

from localkube.kubelet.resources.oom_score import oom_score, qos_class
from localkube.runtime import processes

# The pods of TestGetContainerOOMScoreAdjust of Kubernetes 1.37.2, and what its own function computes.
UPSTREAM = json.loads(Path(__file__).with_name("oom_scores.json").read_text())


@pytest.mark.parametrize("name", UPSTREAM)
def test_containers_have_the_scores_of_upstreams_kubelet(name):
    row = UPSTREAM[name]
    spec = row["pod"]["spec"]
    containers = [*spec.get("initContainers", []), *spec["containers"]]
    scores = {entry["name"]: oom_score(row["pod"], entry, memory=row["memory"]) for entry in containers}
    assert scores == row["scores"]


def test_the_api_servers_word_on_quality_of_service_counts():
    pod = {"spec": {"containers": [{"name": "main"}]}, "status": {"qosClass": "Guaranteed"}}
    assert qos_class(pod) == "Guaranteed"
    assert oom_score(pod, pod["spec"]["containers"][0], memory=1 << 30) == -997


@pytest.mark.parametrize(
    ("own_score", "score", "written"),
    [("-999", -997, "-997"), ("-999", 3, "3"), ("0", -997, "100"), ("0", 999, "999"), ("950", 3, "1000")],
)
def test_a_pod_stays_above_the_processes_of_a_cluster_that_could_not_be_lowered(
    tmp_path, monkeypatch, own_score, score, written
):
    file = tmp_path / "oom_score_adj"
    file.write_text(own_score)
    monkeypatch.setattr(processes, "OOM_SCORE", str(file))
    processes.set_oom_score(score)
    assert file.read_text() == written
