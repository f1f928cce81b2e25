"""GPU utilisation, from the metrics of dcgm-exporter, which a local cluster's kubelet serves too. Pure.

Source: https://github.com/NVIDIA/dcgm-exporter
"""

import re
from collections.abc import Callable, Hashable, Iterable, Mapping
from dataclasses import dataclass
from statistics import fmean
from typing import TypeVar

_FIELDS = {"DCGM_FI_DEV_GPU_UTIL": "percent", "DCGM_FI_DEV_FB_USED": "used", "DCGM_FI_DEV_FB_FREE": "free"}
_LINE = re.compile(r"(DCGM_FI_DEV_\w{1,40})\{([^{}]{0,4000})\}\s{1,8}(\S{1,40})")
_LABEL = re.compile(r'(\w{1,80})="([^"]{0,400})"')
MEBIBYTE = 2**20
Key = TypeVar("Key", bound=Hashable)


@dataclass(frozen=True)
class GpuUse:
    """The use of GPUs at one time: percent of the time in which kernels ran, and memory in bytes."""

    percent: float
    used: float
    total: float

    def __str__(self) -> str:
        return f"{self.percent:.0f} %, {self.used / 2**30:.1f} of {self.total / 2**30:.1f} GiB"


@dataclass(frozen=True)
class GpuSample:
    """A sample of one GPU, with the pod that it is assigned to; ``pod`` is empty if there is none."""

    uuid: str
    namespace: str
    pod: str
    use: GpuUse

    @property
    def pod_key(self) -> tuple[str, str]:
        """Namespace and name of the pod."""
        return self.namespace, self.pod


def read_gpus(text: Iterable[str]) -> list[GpuSample]:
    """Read the GPUs from a page of metrics; lines of other metrics are skipped.

    Example:
        >>> labels = '{gpu="0",UUID="GPU-1",namespace="default",pod="digits-0"}'
        >>> kinds = {"GPU_UTIL": 87, "FB_USED": 1024, "FB_FREE": 1024}
        >>> [sample] = read_gpus(f"DCGM_FI_DEV_{kind}{labels} {value}" for kind, value in kinds.items())
        >>> sample.pod, str(sample.use)
        ('digits-0', '87 %, 1.0 of 2.0 GiB')
    """
    values: dict[tuple[str, str, str], dict[str, float]] = {}
    for line in text:
        match = _LINE.match(line)
        field = _FIELDS.get(match[1]) if match else None
        if match is None or field is None:
            continue
        labels = dict(_LABEL.findall(match[2]))
        uuid = labels.get("UUID") or labels.get("gpu", "")
        key = (uuid, labels.get("namespace", ""), labels.get("pod", ""))
        try:
            values.setdefault(key, {})[field] = float(match[3])
        except ValueError:
            continue
    samples = []
    for key, gpu in values.items():
        if gpu.keys() == {"percent", "used", "free"}:
            used, total = gpu["used"] * MEBIBYTE, (gpu["used"] + gpu["free"]) * MEBIBYTE
            samples.append(GpuSample(*key, GpuUse(gpu["percent"], used, total)))
    return samples


def combine(samples: Iterable[GpuSample]) -> GpuUse | None:
    """Combine GPUs to the mean of percents and the sum of memory; a shared GPU counts once."""
    uses = {sample.uuid: sample.use for sample in samples}.values()
    if not uses:
        return None
    percent = fmean(use.percent for use in uses)
    return GpuUse(percent, sum(use.used for use in uses), sum(use.total for use in uses))


def combine_by(samples: Iterable[GpuSample], key: Callable[[GpuSample], Key]) -> Mapping[Key, GpuUse]:
    """Combine the GPUs of each group, by a function that returns the group."""
    groups: dict[Key, list[GpuSample]] = {}
    for sample in samples:
        groups.setdefault(key(sample), []).append(sample)
    return {name: use for name, group in groups.items() if (use := combine(group)) is not None}
