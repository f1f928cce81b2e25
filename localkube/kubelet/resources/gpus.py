"""GPUs of this machine: device nodes for containers, and utilization metrics.

The metrics have the names of dcgm-exporter, which clouds run for the same purpose, so that the same queries
work. NVML is read on request, at most once a second. It reports whole GPUs: pods that share one have the same
figures.

Sources: https://docs.nvidia.com/deploy/nvml-api/, https://github.com/NVIDIA/dcgm-exporter
"""

import functools
import re
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from localkube import host
from localkube.kubelet.resources.pressure import is_critical

FRESH_SECONDS = 1.0
FAMILIES = {
    "DCGM_FI_DEV_GPU_UTIL": "GPU utilization (in %).",
    "DCGM_FI_DEV_FB_USED": "Framebuffer memory used (in MiB).",
    "DCGM_FI_DEV_FB_FREE": "Framebuffer memory free (in MiB).",
}


@dataclass(frozen=True)
class GpuLoad:
    """A sample of a GPU: the percentage of time in which a kernel ran, and its memory in MiB."""

    uuid: str
    index: int
    name: str
    percent: int
    used: int
    free: int


def _import_pynvml() -> Any:
    import pynvml

    return pynvml


class GpuMeter:
    """Samples the machine's GPUs on request.

    Args:
        load_nvml: Imports the module pynvml, when the first sample is requested.
    """

    def __init__(
        self, load_nvml: Callable[[], Any] = _import_pynvml, *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._load_nvml, self._clock = load_nvml, clock
        self._nvml: Any = None
        self._sample: list[GpuLoad] = []
        self._due = 0.0
        self._handles: list[Any] | None = None

    def sample(self) -> list[GpuLoad]:
        """Read all GPUs; a sample is reused for a second. A GPU that does not answer is skipped."""
        if self._clock() >= self._due:
            self._sample = [use for use in map(self._read, range(len(self._open()))) if use is not None]
            self._due = self._clock() + FRESH_SECONDS
        return self._sample

    def _open(self) -> list[Any]:
        if self._handles is None:
            nvml = self._nvml = self._load_nvml()
            try:
                nvml.nvmlInit()
                count = nvml.nvmlDeviceGetCount()
                self._handles = [nvml.nvmlDeviceGetHandleByIndex(index) for index in range(count)]
            except nvml.NVMLError:
                self._handles = []
        return self._handles

    def _read(self, index: int) -> GpuLoad | None:
        nvml, handle = self._nvml, self._open()[index]
        try:
            memory = nvml.nvmlDeviceGetMemoryInfo(handle)
            percent = nvml.nvmlDeviceGetUtilizationRates(handle).gpu
            uuid, name = nvml.nvmlDeviceGetUUID(handle), nvml.nvmlDeviceGetName(handle)
        except nvml.NVMLError:
            return None
        return GpuLoad(uuid, index, name, percent, memory.used >> 20, memory.free >> 20)


def exposition(node: str, uses: Iterable[GpuLoad], holders: Mapping[str, list[dict[str, str]]]) -> str:
    """Format a node's GPUs as dcgm-exporter does: once for each container that has one, or once without.

    Args:
        holders: The labels namespace, pod and container, by the GPU's UUID.
    """
    families: dict[str, list[str]] = {name: [] for name in FAMILIES}
    for use in uses:
        for holder in holders.get(use.uuid) or [{"container": "", "namespace": "", "pod": ""}]:
            labels = {"gpu": str(use.index), "UUID": use.uuid, "device": f"nvidia{use.index}"}
            labels |= {"modelName": use.name, "Hostname": node, **holder}
            series = "{" + ",".join(f'{name}="{value}"' for name, value in labels.items()) + "}"
            for name, value in zip(FAMILIES, (use.percent, use.used, use.free), strict=True):
                families[name].append(f"{name}{series} {value}\n")
    heads = {name: f"# HELP {name} {about}\n# TYPE {name} gauge\n" for name, about in FAMILIES.items()}
    return "".join(heads[name] + "".join(lines) for name, lines in families.items() if lines)


@functools.cache
def device_paths() -> Mapping[str, str]:
    """Map the UUID of each of the machine's GPUs to its device node."""
    return {gpu.uuid: gpu.device for gpu in host.gpus()}


def manages_gpus(pod: Mapping[str, Any], container: Mapping[str, Any]) -> bool:
    """Check whether a container may see all GPUs: it is privileged, or its pod is a system service.

    The RuntimeClass ``nvidia`` alone shows none, because anyone who may create pods may name it.
    """
    if (container.get("securityContext") or {}).get("privileged"):
        return True
    return pod["spec"].get("runtimeClassName") == "nvidia" and is_critical(pod)


def device_nodes(gpus: Iterable[str] | None, *, paths: Mapping[str, str], names: Iterable[str]) -> list[str]:
    """Choose the device nodes for these GPUs, by UUID, with the driver's control devices.

    Args:
        gpus: None for all GPUs.
        paths: The device nodes of the machine's GPUs, by UUID.
        names: The entries of /dev.
    """
    present = [f"/dev/{name}" for name in sorted(names) if name.startswith("nvidia")]
    if gpus is None:
        return present
    chosen = [paths[gpu] for gpu in gpus if gpu in paths]
    control = [path for path in present if not re.fullmatch(r"/dev/nvidia\d+", path)]
    return [*control, *chosen] if chosen else []
