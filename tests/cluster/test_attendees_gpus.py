"""A workshop on nodes with GPUs, which keep other pods off: each attendee has what the quota says."""

import secrets

import pytest

import kitlib as kit
from kitlib.errors import Rejected
from trainyard_kit.workshop import capacity
from trainyard_kit.workshop.attendees import Quota

pytestmark = [pytest.mark.cluster, pytest.mark.slow, pytest.mark.long]
TAINT = "nvidia.com/gpu=present:NoSchedule"  # as EKS and GKE have it on nodes with GPUs


@pytest.fixture
def cluster(state_home):
    """Two nodes that declare a GPU each, and take no pod that has none."""
    name = f"gpus-{secrets.token_hex(2)}"
    try:
        made = kit.create_cluster("local", name=name, nodes=2, gpus=1)
        made.kubectl(f"taint nodes --all {TAINT}")
        yield made
    finally:
        kit.clusters.LocalCluster(name).delete()


def test_each_has_a_gpu_and_nobody_has_two(cluster, plain):
    made = kit.workshop.create(["ada", "bob"], cluster=cluster, cpu="1", memory="1Gi", gpus=1)
    found = next(each for each in made.facts if each["what"] == "capacity")
    assert "2 GPUs free for 2 GPUs of quotas" in found["is"]
    assert found["note"] == "enough for all at once"
    assert capacity.survey(cluster, 3, Quota(cpu="1", memory="1Gi", gpus=1)).missing == 1
    clusters = [kit.connect(f"of-{each.name}", kubeconfig=each.kubeconfig) for each in made.attendees]
    job = plain("print('trained')", nodes=1, name="uses")
    assert job.on(clusters[0]).gpus == 1  # nobody may list nodes: by the quota
    runs = [kit.launch(job, cluster=each) for each in clusters]
    for run in runs:
        run.wait(timeout=120)
    container = {"name": "main", "image": "busybox", "command": ["true"]}
    two = {"requests": {"nvidia.com/gpu": "2"}, "limits": {"nvidia.com/gpu": "2"}}
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "greedy"}}
    with pytest.raises(Rejected, match="exceeded quota.*nvidia.com/gpu"):
        clusters[0].kube.create(pod | {"spec": {"containers": [container | {"resources": two}]}})
    for each in clusters:
        each.forget()
