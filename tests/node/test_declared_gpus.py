"""GPUs that nodes declare: given once, however they are asked for, and seen as programs look for them."""

import pytest

from ..rows import slow
from .clusters import Pods, eventually, is_ready, pod, running_cluster, state_home

SEEN = "nvidia-smi -L; nvidia-smi -q -x; echo $NVIDIA_VISIBLE_DEVICES $SIMULATED_MS_PER_IMAGE"
MODES = ["namespaces", "plain"]
CLASS = {"gpu": None, "mig": "device.attributes['gpu.nvidia.com'].profile == '3g.40gb'"}


@pytest.fixture(scope="module")
def lab(request):
    shape = ("--nodes", "1", "--mode", request.param, "--gpus", "H100,nvlink=node,pace=2")
    with (
        state_home(request.config.cache.mkdir("gpus")) as home,
        running_cluster(*shape, name=f"gpus-{request.param}", home=home) as cluster,
        Pods(cluster) as pods,
    ):
        for name, expression in CLASS.items():
            exactly = {"deviceClassName": f"{name}.nvidia.com"}
            exactly |= {"selectors": [{"cel": {"expression": expression}}]} if expression else {}
            spec = {"spec": {"devices": {"requests": [{"name": "one", "exactly": exactly}]}}}
            template = {"kind": "ResourceClaimTemplate", "metadata": {"name": name}, "spec": spec}
            template["apiVersion"] = "resource.k8s.io/v1"
            cluster.kubectl("apply", "-f", "-", stdin=template)
        yield cluster, pods


def asking(way, script="exec sleep 600"):
    """Make a pod that asks for a device: by ``nvidia.com/gpu``, or by a claim from a template."""
    if way == "number":
        return pod(script, main={"resources": {"limits": {"nvidia.com/gpu": "1"}}})
    claims = [{"name": "mine", "resourceClaimTemplateName": way}]
    return pod(script, main={"resources": {"claims": [{"name": "mine"}]}}, resourceClaims=claims)


@pytest.mark.parametrize("lab", [MODES[0], *slow(*MODES[1:])], indirect=True)
@pytest.mark.parametrize(
    ("way", "words", "uuid", "pace"),
    [
        ("number", ["GPU 0: NVIDIA H100 80GB HBM3 (UUID: GPU-", "<total>81920 MiB</total>"], "GPU-", "2.0"),
        ("gpu", ["(UUID: GPU-", "declared, simulated", "Disabled</current_mig>"], "GPU-", "2.0"),
        ("mig", ["MIG 3g.40gb", "Enabled</current_mig>", "<total>40960 MiB</total>"], "MIG-", "4.667"),
    ],
)
def test_a_container_sees_its_device_as_programs_look_for_it(lab, way, words, uuid, pace):
    *listing, variables = lab[1].output(asking(way, SEEN)).splitlines()
    assert [word for word in words if word not in "\n".join(listing)] == []
    assert variables.startswith(uuid) and variables.endswith(f" {pace}")


@pytest.mark.parametrize("lab", [MODES[0], *slow(*MODES[1:])], indirect=True)
@pytest.mark.parametrize("way", ["number", "gpu", "mig"])
def test_a_device_is_allocated_once_and_kept_over_a_kubelets_restart(lab, way):
    cluster, pods = lab
    holder = pods.running(asking(way))["metadata"]["name"]
    cluster.restart_kubelet()
    if way == "mig":  # two of these partitions fit in a GPU
        ended(lab, pods.running(asking(way))["metadata"]["name"])
    for second_way in {"number", "gpu", "mig"} - ({"mig"} if way == "mig" else set()):
        name = pods.create(asking(second_way))
        pods.wait_for_event(name, "FailedScheduling", "cannot allocate all claims")
        ended(lab, name)
    ended(lab, holder)
    ended(lab, pods.running(asking("number"))["metadata"]["name"])


@pytest.mark.parametrize("lab", MODES[:1], indirect=True)
def test_a_gang_shares_the_device_of_its_groups_claim(lab):
    cluster, pods = lab
    group = {"apiVersion": "scheduling.k8s.io/v1beta1", "kind": "PodGroup", "metadata": {"name": "sharing"}}
    ask = asking("gpu", "nvidia-smi -L; exec sleep 600")
    claims = {"resourceClaims": ask["spec"]["resourceClaims"]}
    spec = {"spec": {"schedulingPolicy": {"gang": {"minCount": 2}}} | claims}
    cluster.kubectl("apply", "-f", "-", stdin=group | spec)
    ask["spec"]["schedulingGroup"] = {"podGroupName": "sharing"}
    names = [pods.create(ask) for _ in range(2)]
    workers = [pods.until(name, is_ready) for name in names]
    first, second = (lambda worker=worker: pods.logs(worker) for worker in workers)
    eventually(lambda: "GPU 0: NVIDIA H100" in first() == second())
    for name in names:
        ended(lab, name)
    cluster.kubectl("delete", "podgroup", "sharing")
    ended(lab, pods.running(asking("number"))["metadata"]["name"])


def ended(lab, name):
    lab[0].core.delete_namespaced_pod(name, "default", grace_period_seconds=0)
    lab[1].gone(name)
