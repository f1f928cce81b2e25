"""Predict the memory, step time, MFU, duration and cost of training a transformer.

Only arithmetic with published formulas; nothing is measured, and no API is called.

- State of a parameter: 16 bytes with Adam, sharded by stage (Rajbhandari et al., ZeRO, 2020, section 3).
- Activations of a layer: ``s b h (34 + 5 a s / h)`` bytes in 16 bits, ``2 s b h`` with recomputation
  (Korthikanti et al., Reducing activation recomputation, 2022, section 4).
- FLOPs of a token: ``6 N + 12 L h s`` (Chowdhery et al., PaLM, 2022, appendix B), a third more with
  recomputation (Narayanan et al., Megatron-LM, 2021, section 5.1).
- An all-reduce sends ``2 (n - 1) / n`` times the gradients (Patarasuk and Yuan, 2009).
"""

from collections.abc import Mapping
from dataclasses import dataclass

from kitlib.display.tables import Table
from kitlib.errors import BadInput

SHAPE = ("layers", "width", "heads", "context", "vocabulary")
FORWARD = 1 / 3  # of a step's FLOPs; the exchange overlaps with the backward pass, the rest
GIGA = 1e9


@dataclass(frozen=True)
class Device:
    """Peak performance of a device.

    Attributes:
        tflops: 10^12 dense floating-point operations a second, in the precision of its matrix units.
        memory: 10^9 bytes.
        link: 10^9 bytes a second to its peers, in one direction.
        precision: Bytes per number.
    """

    tflops: float
    memory: float
    link: float
    precision: int = 2


DEVICES: dict[str, Device] = {
    "T4": Device(65, 16, 16),
    "L4": Device(121, 24, 32),
    "V100": Device(125, 32, 150),
    "A100": Device(312, 80, 300),
    "H100": Device(989, 80, 450),
    "H200": Device(989, 141, 450),
    "TPU v4": Device(275, 32, 50),
    "cpu": Device(0.1, 16, 1.25, precision=4),
}
"""Dense peaks from data sheets: NVIDIA T4, L4, V100 SXM2, A100 SXM (80 GB), H100 SXM, H200 SXM, with half of
NVLink's bandwidth, which counts both directions, and PCIe for T4 and L4; Google Cloud's page of TPU v4.
``cpu`` is an assumption: about two cores in fp32, and 10 Gbit/s."""


@dataclass(frozen=True)
class TrainingEstimate:
    """A prediction.

    Attributes:
        parameters: Of the whole model.
        memory: Bytes per rank by part: parameters, gradients, optimizer, activations.
        seconds: Of a step by part: computing, exchange, and ``hidden``, the exchange overlapped by computing.
        flops: Per token, without recomputation.
        tokens: Per rank and step.
        ranks: The world size.
        device: The device, with its peaks.
    """

    parameters: float
    memory: Mapping[str, float]
    seconds: Mapping[str, float]
    flops: float
    tokens: float
    ranks: int
    device: Device

    @property
    def step_seconds(self) -> float:
        """Computing, and the part of the exchange that it does not overlap."""
        return self.seconds["computing"] + self.seconds["exchange"] - self.seconds["hidden"]

    @property
    def tokens_per_s(self) -> float:
        """The throughput of all ranks."""
        return self.ranks * self.tokens / self.step_seconds

    @property
    def mfu(self) -> float:
        """Model FLOPs utilisation: useful FLOPs divided by the peak of all devices."""
        return mfu(self.tokens_per_s, flops=self.flops, devices=self.ranks, tflops=self.device.tflops)

    @property
    def fits(self) -> bool:
        """Whether the parts fit in a device's memory, without fragmentation and buffers."""
        return sum(self.memory.values()) <= self.device.memory * GIGA

    def days(self, tokens: float) -> float:
        """Days of training on this many tokens."""
        return tokens / self.tokens_per_s / 86_400

    def cost(self, tokens: float, *, dollars_an_hour: float) -> float:
        """Cost of training on this many tokens in US dollars, by the price of one device."""
        return self.days(tokens) * 24 * self.ranks * dollars_an_hour

    def table(self) -> Table:
        """Tabulate the parts: GB per rank, and milliseconds per step."""
        rows: list[tuple[str, float, str]] = [
            (f"memory: {part}", round(size / GIGA, 4), "GB") for part, size in self.memory.items()
        ]
        rows += [(f"step: {part}", round(1000 * seconds, 3), "ms") for part, seconds in self.seconds.items()]
        rows += [("step", round(1000 * self.step_seconds, 3), "ms"), ("MFU", round(100 * self.mfu, 1), "%")]
        rows += [("tokens", round(self.tokens_per_s, 1), "a second")]
        return Table(("part", "predicted", "unit"), rows)

    def __repr__(self) -> str:
        fits = "" if self.fits else f"\nIt does not fit in {self.device.memory:g} GB."
        return f"{self.table()!r}{fits}"

    def _repr_html_(self) -> str:
        fits = "" if self.fits else f"<p>It does not fit in {self.device.memory:g} GB.</p>"
        return self.table()._repr_html_() + fits


def mfu(tokens_per_s: float, *, flops: float, devices: int, tflops: float) -> float:
    """Compute the model FLOPs utilisation: FLOPs of the model by the devices' peak (PaLM, appendix B).

    Args:
        tokens_per_s: Of all devices.
        flops: Per token.
        devices: Number of devices.
        tflops: Peak of each device, 10^12 FLOPs a second.
    """
    return tokens_per_s * flops / (devices * tflops * 1e12)


def estimate(
    model: float | Mapping[str, float],
    *,
    ranks: int = 1,
    link: float | None = None,
    device: str | Device = "H100",
    tokens: float = 8192,
    sharded: int = 0,
    utilisation: float = 0.5,
) -> TrainingEstimate:
    """Predict memory, step time and MFU of data-parallel training with Adam.

    Args:
        model: The number of parameters; or the shape, which adds attention and activations: ``layers``,
            ``width``, ``heads``, ``context``, ``vocabulary``; ``recompute=1`` is activation checkpointing,
            and ``dropout=0`` a model without dropout.
        ranks: Number of devices.
        link: Gbit/s of a rank to its peers, in one direction; by default the device's.
        device: One of `DEVICES`, or a `Device`.
        tokens: Per rank and step.
        sharded: The stage of ZeRO: 1 shards the optimizer state, 2 also gradients, 3 also weights, as FSDP;
            0 nothing, as DDP.
        utilisation: The share of its peak that a device reaches while it computes.

    Raises:
        BadInput: An argument is out of range, or the device is unknown.

    Example:
        >>> round(estimate(7e9, ranks=8, sharded=3).memory["optimizer"] / 1e9, 1)
        10.5
    """
    peak = _device(device)
    shape = dict(model) if isinstance(model, Mapping) else {}
    if shape and (missing := [name for name in SHAPE if not shape.get(name, 0) > 0]):
        raise BadInput("the shape is incomplete", about=", ".join(missing), fix=f"give {', '.join(SHAPE)}")
    parameters = count_parameters(shape) if isinstance(model, Mapping) else model
    if not (parameters > 0 and ranks >= 1 and tokens > 0 and sharded in range(4) and 0 < utilisation <= 1):
        about = f"{parameters:g} parameters, {ranks=}, {tokens=}, {sharded=}, {utilisation=}"
        fix = "above 0; sharded from 0 to 3; utilisation at most 1"
        raise BadInput("an argument is out of range", about=about, fix=fix)
    recompute = bool(shape.get("recompute"))
    flops = 6 * parameters + 12 * shape.get("layers", 0) * shape.get("width", 0) * shape.get("context", 0)
    computing = flops * (4 / 3 if recompute else 1) * tokens / (peak.tflops * 1e12 * utilisation)
    rate = peak.link * GIGA if link is None else link / 8 * GIGA
    times = 3 if sharded == 3 else 2  # two all-gathers and a reduce-scatter, or an all-reduce
    exchange = times * (ranks - 1) / ranks * parameters * peak.precision / rate
    hidden = min(exchange, computing * (1 - FORWARD))
    memory = state_bytes(parameters, ranks=ranks, sharded=sharded, precision=peak.precision)
    if shape:
        memory["activations"] = activation_bytes(shape, tokens=tokens, precision=peak.precision)
    seconds = {"computing": computing, "exchange": exchange, "hidden": hidden}
    return TrainingEstimate(parameters, memory, seconds, flops, tokens, ranks, peak)


def count_parameters(shape: Mapping[str, float]) -> float:
    """Count weights: 12 h² per layer, and an embedding tied to the output; no biases, no norms."""
    return 12 * shape["layers"] * shape["width"] ** 2 + shape["vocabulary"] * shape["width"]


def state_bytes(parameters: float, *, ranks: int, sharded: int, precision: int) -> dict[str, float]:
    """Bytes per rank of weights, gradients and Adam's state, which has an fp32 copy of 16-bit weights."""
    moments = 8 if precision == 4 else 12
    parts = {"parameters": (precision, 3), "gradients": (precision, 2), "optimizer": (moments, 1)}
    return {
        part: parameters * size / (ranks if sharded >= stage else 1) for part, (size, stage) in parts.items()
    }


def activation_bytes(shape: Mapping[str, float], *, tokens: float, precision: int) -> float:
    """Bytes per rank of activations; in fp32 twice those in 16 bits."""
    width, scores = shape["width"], shape["heads"] * shape["context"]
    linear, square = (34, 5) if shape.get("dropout", 1) else (32, 2)  # without dropout masks and outputs
    layer = 2 * width if shape.get("recompute") else linear * width + square * scores
    return shape["layers"] * tokens * layer * precision / 2


def _device(device: str | Device) -> Device:
    if isinstance(device, Device):
        return device
    if device not in DEVICES:
        raise BadInput("no such device", about=f"device={device!r}", fix=f"one of {', '.join(DEVICES)}")
    return DEVICES[device]
