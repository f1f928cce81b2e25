"""GPUs of a local cluster: dealt out or shared, their device nodes, and figures in dcgm-exporter's words."""

from types import SimpleNamespace

import pytest

from kitlib.errors import Rejected
from kitlib.metrics.gpu_usage import combine, combine_by, read_gpus
from kitlib.widgets.gpu_reader import GpuReader
from localkube.config import ClusterSpec, gpu_labels
from localkube.errors import LocalClusterError
from localkube.host import Gpu
from localkube.kubelet.nodes.node import NodePool
from localkube.kubelet.resources.gpus import GpuLoad, GpuMeter, device_nodes, exposition, manages_gpus
from localkube.kubelet.resources.node_settings import NodeSettings

GPUS = [Gpu(str(n), "NVIDIA H200", 141 << 30, f"GPU-{n}", f"/dev/nvidia{n}") for n in range(8)]
DEV = ["null", "nvidia0", "nvidia1", "nvidia10", "nvidiactl", "nvidia-uvm", "nvidia-caps", "tty"]
PATHS = {"GPU-0": "/dev/nvidia0", "GPU-1": "/dev/nvidia1", "GPU-10": "/dev/nvidia10"}
CONTROL = ["/dev/nvidia-caps", "/dev/nvidia-uvm", "/dev/nvidiactl"]
# As dcgm-exporter 4.2 writes it, of a GPU operator's; the second GPU has no pod.
PUBLISHED = """\
# HELP DCGM_FI_DEV_GPU_UTIL GPU utilization (in %).
# TYPE DCGM_FI_DEV_GPU_UTIL gauge
DCGM_FI_DEV_GPU_UTIL{gpu="0",UUID="GPU-604a",namespace="lab",pod="digits-0"} 97
DCGM_FI_DEV_GPU_UTIL{gpu="1",UUID="GPU-7a1e",device="nvidia1",modelName="NVIDIA A100",Hostname="n"} 3
DCGM_FI_DEV_FB_FREE{gpu="0",UUID="GPU-604a",device="nvidia0",namespace="lab",pod="digits-0"} 39000
DCGM_FI_DEV_FB_USED{gpu="0",UUID="GPU-604a",device="nvidia0",namespace="lab",pod="digits-0"} 1960
DCGM_FI_DEV_FB_FREE{gpu="1",UUID="GPU-7a1e",device="nvidia1"} 40960
DCGM_FI_DEV_FB_USED{gpu="1",UUID="GPU-7a1e",device="nvidia1"} 0
DCGM_FI_DEV_SM_CLOCK{gpu="0",UUID="GPU-604a"} 1410
DCGM_FI_DEV_GPU_UTIL{gpu="2" torn
DCGM_FI_DEV_GPU_UTIL{gpu="3",UUID="GPU-9"} many
"""


def machine(gpus):
    return SimpleNamespace(cores=8, memory=1 << 33, disk_free=1 << 33, gpus=tuple(GPUS[:gpus]))


@pytest.mark.parametrize(
    ("real", "nodes", "gpus", "devices"),
    [
        (1, 2, None, [["GPU-0"], []]),
        (4, 2, None, [["GPU-0", "GPU-2"], ["GPU-1", "GPU-3"]]),
        (1, 2, 1, [["GPU-0"], ["GPU-0"]]),
        (1, 1, 3, [["GPU-0"] * 3]),
        (2, 4, 1, [["GPU-0"], ["GPU-1"], ["GPU-0"], ["GPU-1"]]),
        (8, 4, 1, [["GPU-0"], ["GPU-1"], ["GPU-2"], ["GPU-3"]]),
        (8, 2, 0, [[], []]),
        (0, 2, 2, [[], []]),
        (0, 2, "H100,count=2", [[], []]),
        (3, 2, "H100,count=2", [["GPU-0", "GPU-2"], ["GPU-1"]]),
    ],
)
def test_gpus_are_dealt_out_or_shared_in_turn(real, nodes, gpus, devices):
    settings = ClusterSpec(nodes=nodes, gpus=gpus).node_settings(machine(real))
    assert [list(node.gpu_devices) for node in settings] == devices
    text = isinstance(gpus, str)
    number = 2 if text and not real else None if text else gpus
    declared = [len(names) for names in devices] if number is None else [number] * nodes
    assert [node.gpus for node in settings] == declared


@pytest.mark.parametrize(
    ("real", "nodes", "gpus", "product", "replicas", "strategy"),
    [
        (1, 1, None, "NVIDIA-H200", "1", "none"),
        (2, 2, 1, "NVIDIA-H200", "1", "none"),
        (1, 2, 1, "NVIDIA-H200-SHARED", "1", "time-slicing"),
        (1, 1, 3, "NVIDIA-H200-SHARED", "3", "time-slicing"),
    ],
)
def test_labels_are_those_of_gpu_feature_discovery(real, nodes, gpus, product, replicas, strategy):
    node = ClusterSpec(nodes=nodes, gpus=gpus).node_settings(machine(real))[0]
    labels = {name.removeprefix("nvidia.com/gpu."): value for name, value in node.labels.items()}
    assert (labels["product"], labels["replicas"]) == (product, replicas)
    assert (labels["sharing-strategy"], labels["memory"]) == (strategy, str(141 << 10))


@pytest.mark.parametrize(
    "name", ["NVIDIA A100-SXM4-80GB (rev. 2)", "Tesla T4", "x" * 80, "GeForce RTX™ 5090"]
)
def test_any_name_of_a_gpu_becomes_a_valid_label(name):
    product = gpu_labels([Gpu("0", name, 1, "u", "d")], shared=True)["nvidia.com/gpu.product"]
    assert len(product) <= 63 and product.isascii() and product[0].isalnum() and product[-1].isalnum()


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("H99", "no such model of a GPU: H99"),
        ("H100,cores=2", "no such property of a GPU: cores"),
        ("H100,count=two", "invalid literal"),
        ("H100,count=0", "1 to 16 GPUs"),
        ("H100,memory=80", "1Gi or more"),
        ("H100,nvlink=zone", "nvlink of none, node, rack"),
        ("L40S,nvlink=node", "L40S has no NVLink"),
        ("H100,pace=-1", "a pace from 0 ms on"),
    ],
)
def test_a_declaration_that_cannot_be_is_refused_before_anything_starts(text, words):
    with pytest.raises(LocalClusterError, match=words):
        ClusterSpec(gpus=text)


@pytest.mark.parametrize(
    ("model", "racks", "domains", "profiles", "pace"),
    [
        ("A100,nvlink=node", 2, {"node-0", "node-1", "node-2", "node-3"}, "1g.10gb 7g.80gb", 4.0),
        ("H200,nvlink=rack", 2, {"rack-a", "rack-b"}, "1g.18gb 7g.141gb", 1.262),
        ("T4,pace=9", None, {""}, "", 9.0),
        ("B200", None, {""}, "1g.23gb 7g.180gb", 0.555),
        ("B200", 2, {""}, "1g.23gb 7g.180gb", 0.555),
    ],
)
def test_a_model_has_its_partitions_pace_and_domains(model, racks, domains, profiles, pace):
    nodes = ClusterSpec(gpus=model, racks=racks).node_settings(machine(0))
    assert {node.nvlink_domain for node in nodes} == domains
    pool = NodePool(nodes[0])
    devices = [device for body in pool.gpu_driver.slices() for device in body["spec"].get("devices", [])]
    shown = [device["attributes"]["profile"]["string"] for device in devices[1:]]
    assert " ".join([*shown[:1], *shown[-1:]]) == profiles and len(shown) in (0, 18)
    assert pool.gpu_driver.devices["gpu-0"].pace == pace
    assert {
        device["attributes"].get("nvlinkDomain", {"string": ""})["string"] for device in devices
    } <= domains


def pool(*devices):
    node = NodeSettings("n", 0, 1, 1 << 30, 1 << 30, gpus=len(devices), gpu_devices=devices)
    return NodePool(node)


def test_a_share_is_given_once_and_comes_back_when_its_pod_has_gone():
    node = pool("GPU-0", "GPU-0", "GPU-1")
    assert node.gpus("a", "main", 1) == ["GPU-0"]
    assert node.gpus("b", "main", 2) == ["GPU-0", "GPU-1"]
    assert node.gpus("c", "main", 1) == []
    node.remove("a")
    assert node.gpus("d", "main", 1) == ["GPU-0"] == node.held_gpus("d", "main")


def test_two_shares_of_one_gpu_are_one_gpu():
    assert pool("GPU-0", "GPU-0").gpus("a", "main", 2) == ["GPU-0"]


def test_a_node_that_only_declares_gpus_gives_none():
    assert NodePool(NodeSettings("n", 0, 1, 1, 1, gpus=2)).gpus("a", "main", 1) is None


@pytest.mark.parametrize(
    ("gpus", "nodes"),
    [
        ([], []),
        (["GPU-1"], [*CONTROL, "/dev/nvidia1"]),
        (["GPU-10"], [*CONTROL, "/dev/nvidia10"]),
        (["unknown"], []),
        (None, sorted([*CONTROL, *PATHS.values()])),
    ],
)
def test_a_container_has_the_device_nodes_of_its_gpus_alone(gpus, nodes):
    assert sorted(device_nodes(gpus, paths=PATHS, names=DEV)) == sorted(nodes)


def test_figures_are_read_as_dcgm_exporter_publishes_them():
    first, second = read_gpus(PUBLISHED.splitlines())
    assert (first.pod_key, str(first.use)) == (("lab", "digits-0"), "97 %, 1.9 of 40.0 GiB")
    assert (second.pod, second.use.percent) == ("", 3)


def test_a_shared_gpu_in_a_kubelets_metrics_counts_once():
    uses = [GpuLoad("GPU-0", 0, "H200", 80, 1024, 1024), GpuLoad("GPU-1", 1, "H200", 20, 0, 2048)]
    holder = {"container": "main", "namespace": "lab"}
    holders = {"GPU-0": [holder | {"pod": "a"}, holder | {"pod": "b"}]}
    samples = read_gpus(exposition("node-0", uses, holders).splitlines())
    assert [(sample.uuid, sample.pod) for sample in samples] == [
        ("GPU-0", "a"),
        ("GPU-0", "b"),
        ("GPU-1", ""),
    ]
    assert str(combine(samples)) == "50 %, 1.0 of 4.0 GiB"
    assert {pod: use.percent for pod, use in combine_by(samples, lambda sample: sample.pod).items()} == {
        "a": 80,
        "b": 80,
        "": 20,
    }
    assert combine([]) is None


class Nvml:
    """A driver with two GPUs, of which the second does not answer."""

    class NVMLError(Exception):
        pass

    calls = 0

    def nvmlInit(self):
        pass

    def nvmlDeviceGetCount(self):
        return 2

    def nvmlDeviceGetHandleByIndex(self, index):
        return index

    def nvmlDeviceGetMemoryInfo(self, index):
        self.calls += 1
        if index:
            raise self.NVMLError
        return SimpleNamespace(used=3 << 20, free=5 << 20)

    def nvmlDeviceGetUtilizationRates(self, index):
        return SimpleNamespace(gpu=42)

    def nvmlDeviceGetUUID(self, index):
        return f"GPU-{index}"

    def nvmlDeviceGetName(self, index):
        return "NVIDIA H200"


class NoDriver(Nvml):
    def nvmlInit(self):
        raise self.NVMLError


def test_a_sample_is_reused_for_a_second_and_leaves_out_what_does_not_answer():
    now = [10.0]
    nvml = Nvml()
    meter = GpuMeter(lambda: nvml, clock=lambda: now[0])
    for _ in range(3):
        assert meter.sample() == [GpuLoad("GPU-0", 0, "NVIDIA H200", 42, 3, 5)]
    assert nvml.calls == 2
    now[0] += 1.1
    meter.sample()
    assert nvml.calls == 4


def test_without_a_driver_there_are_no_samples():
    assert GpuMeter(NoDriver).sample() == []


class Kube:
    """An API with a kubelet that knows nothing of GPUs, and dcgm-exporter on one node of two."""

    def __init__(self, *, forbidden=False, namespace=""):
        self.forbidden, self.namespace, self.asked = forbidden, namespace, []

    def in_namespace(self, namespace):
        inside = Kube(forbidden=self.forbidden, namespace=namespace)
        inside.asked = self.asked
        return inside

    def path(self, kind, name):
        return f"/{kind}/{self.namespace}/{name}"

    def get_all(self, kind, *, labels):
        if "nvidia-dcgm-exporter" not in labels:
            return []
        meta = {"name": "dcgm-x", "namespace": "gpu-operator"}
        return [{"metadata": meta, "spec": {"nodeName": "b"}, "status": {"phase": "Running"}}]

    def stream(self, path, *, about, params, seconds):
        self.asked.append(path)
        if self.forbidden:
            raise Rejected("no", about=path, fix="", status=403)
        return PUBLISHED.splitlines() if ":9400/" in path else ["node_cpu_usage_seconds_total 1"]


def test_where_kubelets_do_not_know_dcgm_exporter_is_asked_on_its_nodes():
    kube = Kube()
    reader = GpuReader(kube)
    assert {node: len(samples) for node, samples in reader.read(["a", "b"]).items()} == {"b": 2}
    assert reader.source == "dcgm-exporter"
    assert kube.asked[-1] == "/Pod/gpu-operator/dcgm-x:9400/proxy/metrics"


def test_a_user_without_access_to_gpu_metrics_does_not_retry():
    kube = Kube(forbidden=True)
    reader = GpuReader(kube)
    assert reader.read(["a"]) == {} == reader.read(["a"])
    assert len(kube.asked) == 1 and reader.source == ""


@pytest.mark.parametrize(
    ("spec", "container", "manages"),
    [
        ({}, {}, False),
        ({}, {"securityContext": {"privileged": True}}, True),
        ({"runtimeClassName": "nvidia"}, {}, False),
        ({"runtimeClassName": "nvidia", "priority": 2_000_001_000}, {}, True),
        ({"priority": 2_000_001_000}, {}, False),
    ],
    ids=["a pod", "privileged", "of the class", "a node's service of the class", "another service"],
)
def test_all_gpus_are_for_what_manages_them(spec, container, manages):
    assert manages_gpus({"spec": spec}, container) == manages
