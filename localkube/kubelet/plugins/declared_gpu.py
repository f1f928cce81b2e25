"""GPUs that nodes declare and this machine does not have: their model, memory, NVLink domain and pace.

Figures are from NVIDIA's data sheets, without sparsity; the simulated pace is proportional to them.

Sources: data sheets of each product, https://www.nvidia.com/en-us/data-center/; of those with MIG, memory and
compute capability in https://docs.nvidia.com/datacenter/tesla/mig-user-guide/supported-gpus.html
"""

from dataclasses import dataclass
from typing import Any

from localkube.errors import LocalClusterError
from localkube.host import Gpu
from localkube.kubelet.quantity import parse

# Product, architecture, compute capability, GiB, dense TFLOPS in half precision, and whether it has MIG.
MODELS = {
    "T4": ("Tesla T4", "Turing", "7.5.0", 16, 65, False),
    "V100": ("Tesla V100-SXM2-32GB", "Volta", "7.0.0", 32, 125, False),
    "L4": ("NVIDIA L4", "Ada Lovelace", "8.9.0", 24, 121, False),
    "L40S": ("NVIDIA L40S", "Ada Lovelace", "8.9.0", 48, 362, False),
    "A100": ("NVIDIA A100-SXM4-80GB", "Ampere", "8.0.0", 80, 312, True),
    "H100": ("NVIDIA H100 80GB HBM3", "Hopper", "9.0.0", 80, 989, True),
    "H200": ("NVIDIA H200", "Hopper", "9.0.0", 141, 989, True),
    "B200": ("NVIDIA B200", "Blackwell", "10.0.0", 180, 2250, True),
}
REFERENCE_MS, REFERENCE_TFLOPS = 4.0, 312  # an image on a simulated A100
MAX_GPUS = 16
HOW = "docs/gpus.md shows how GPUs are declared"
NVLINK, NO_NVLINK = ("none", "node", "rack"), ("T4", "L4", "L40S")  # PCIe cards


@dataclass(frozen=True)
class DeclaredGpu:
    """The GPUs of each node.

    Attributes:
        model: A key of ``MODELS``.
        memory: Bytes of each.
        nvlink: The extent of an NVLink domain: ``none``, a ``node``, or a ``rack``.
        pace: Milliseconds that a trainer's simulated accelerator takes for an image.
    """

    model: str
    count: int
    memory: int
    nvlink: str
    pace: float

    @classmethod
    def parse(cls, text: str) -> "DeclaredGpu":
        """Parse ``H100,count=8,memory=80Gi,nvlink=node,pace=1.5``; all but the model may be left out.

        Raises:
            LocalClusterError: With what is known.
        """
        model, *pairs = text.split(",")
        values: dict[str, Any] = {"count": 1, "nvlink": "none"}
        values |= dict(pair.partition("=")[::2] for pair in pairs)
        wrong = sorted(values.keys() - {"count", "memory", "nvlink", "pace"})
        if model not in MODELS or wrong:
            what = f"no such property of a GPU: {wrong[0]}" if wrong else f"no such model of a GPU: {model}"
            fix = f"one of {', '.join(MODELS)}; then a count, memory, nvlink or pace"
            raise LocalClusterError(what, about=text, fix=fix)
        try:
            pace = float(values.get("pace") or REFERENCE_MS * REFERENCE_TFLOPS / MODELS[model][4])
            memory = int(parse(values.get("memory") or f"{MODELS[model][3]}Gi"))
            gpu = cls(model, int(values["count"]), memory, values["nvlink"], round(pace, 3))
        except ValueError as error:
            raise LocalClusterError(f"not a number: {error}", about=text, fix=HOW) from error
        fits = 1 <= gpu.count <= MAX_GPUS and memory >= 1 << 30 and 0 <= pace < 1e6
        if not fits or gpu.nvlink not in NVLINK:
            limits = f"1 to {MAX_GPUS} GPUs, 1Gi or more, nvlink of {', '.join(NVLINK)}, a pace from 0 ms on"
            raise LocalClusterError(f"a node declares {limits}", about=text, fix=HOW)
        if gpu.nvlink != "none" and model in NO_NVLINK:
            raise LocalClusterError(f"{model} has no NVLink", about=text, fix="leave nvlink out")
        return gpu

    def gpus(self) -> list[Gpu]:
        """Describe them like a machine's real GPUs."""
        product = MODELS[self.model][0]
        return [Gpu(str(index), product, self.memory, f"gpu-{index}", "") for index in range(self.count)]

    def partitions(self) -> list[tuple[str, int, int, int]]:
        """List the MIG profiles: name, how many fit, compute slices of 7, and memory slices of 8.

        Source: https://docs.nvidia.com/datacenter/tesla/mig-user-guide/supported-mig-profiles.html
        """
        if not MODELS[self.model][5]:
            return []
        slices = ((1, 1, 7), (1, 2, 4), (2, 2, 3), (3, 4, 2), (4, 4, 1), (7, 8, 1))
        return [
            (f"{compute}g.{int(self.memory * memory / (8 << 30) + 0.5)}gb", count, compute, memory)
            for compute, memory, count in slices
        ]
