"""Simulated data-centre GPUs that the nodes of a local cluster declare, on a machine without any."""

from kitlib.display.signatures import checked
from kitlib.errors import BadInput
from kitlib.k8s.quantities import check_count, check_quantity

NVLINK = ("none", "node", "rack")


class GPU(str):
    """The GPUs of each node, for ``create_cluster(gpus=…)``; a machine that has GPUs uses its own.

    Pods request one by ``nvidia.com/gpu``, or by a ResourceClaim of the class ``gpu.nvidia.com``, or
    ``mig.nvidia.com`` for a partition, with the attributes of NVIDIA's driver. Its container has
    ``NVIDIA_VISIBLE_DEVICES`` and an ``nvidia-smi`` that says "declared, simulated". Torch finds no CUDA;
    trainers simulate an accelerator of the model's pace.

    Args:
        model: T4, V100, L4, L40S, A100, H100, H200 or B200.
        count: GPUs of each node, 1 to 16.
        memory: Memory of each GPU, as "80Gi"; by default the model's.
        nvlink: What shares an NVLink domain: "none", a "node" or a "rack".
        pace: Milliseconds that a trainer's simulated accelerator takes for an image; 0 simulates none. By
            default in proportion to the model's throughput: 4 ms on an A100.

    Example:
        >>> create_cluster("local", nodes=4, gpus=GPU("H100", count=8, nvlink="node"))
    """

    @checked
    def __new__(
        cls,
        model: str,
        *,
        count: int = 1,
        memory: str | None = None,
        nvlink: str = "none",
        pace: float | None = None,
    ) -> "GPU":
        check_count(count, what="count", least=1, most=16)
        check_quantity(memory, what="memory", example='"80Gi"')
        if nvlink not in NVLINK:
            raise BadInput("no such domain", about=f"nvlink={nvlink!r}", fix=f"one of {', '.join(NVLINK)}")
        values = {"count": count, "memory": memory, "nvlink": nvlink, "pace": pace}
        words = (f"{name}={value}" for name, value in values.items() if value is not None)
        return super().__new__(cls, ",".join((model, *words)))
