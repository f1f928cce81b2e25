"""What machines a cluster at Google Cloud has. Data, checked before anything is asked for."""

from dataclasses import dataclass

from kitlib.errors import BadInput
from kitlib.k8s.quantities import check_count

GPU_MACHINE, CPU_MACHINE, SYSTEM_MACHINE = "n1-standard-4", "e2-standard-4", "e2-standard-4"
SYSTEM_DISK_GB = 50
CHANNEL = "REGULAR"
# Machine types that come with their accelerators; others are N1, to which any of the older ones is attached.
COMES_WITH = {
    "nvidia-l4": "g2-standard-8",
    "nvidia-tesla-a100": "a2-highgpu-1g",
    "nvidia-a100-80gb": "a2-ultragpu-1g",
    "nvidia-h100-80gb": "a3-highgpu-1g",
}


@dataclass(frozen=True)
class MachinePool:
    """The training machines of a cluster.

    Attributes:
        nodes: How many.
        machine_type: Google's word: ``n1-standard-4``.
        accelerator: Google's word for the GPU in each; None for none.
        gpus: How many of it in each.
        spot: Cheaper, and may be taken away at any time.
        disk_gb: Of each machine's disk.
    """

    nodes: int
    machine_type: str
    accelerator: str | None = None
    gpus: int = 0
    spot: bool = False
    disk_gb: int = 100

    @classmethod
    def of(
        cls,
        *,
        nodes: int,
        machine_type: str | None = None,
        accelerator: str | None = None,
        gpus: int | None = None,
        spot: bool = False,
        disk_gb: int = 100,
    ) -> "MachinePool":
        """Return machines, with what is not named chosen.

        Raises:
            BadInput: GPUs are asked for, and no kind of them; or a disk on which no image has room.
        """
        if gpus and not accelerator:
            raise BadInput(
                "which GPUs is not said", about=f"gpus={gpus}", fix='accelerator="nvidia-tesla-t4"'
            )
        check_count(disk_gb, what="disk_gb", least=30, most=2000)
        usual = COMES_WITH.get(accelerator, GPU_MACHINE) if accelerator else CPU_MACHINE
        count = 0 if not accelerator else (1 if gpus is None else gpus)
        return cls(nodes, machine_type or usual, accelerator if count else None, count, bool(spot), disk_gb)

    @classmethod
    def found(cls, config, *, nodes: int) -> "MachinePool":
        """Return the machines of a pool that is there, from what GKE says of them."""
        gpus = next(iter(config.accelerators), None)
        return cls(
            nodes=nodes,
            machine_type=config.machine_type,
            accelerator=gpus.accelerator_type if gpus else None,
            gpus=gpus.accelerator_count if gpus else 0,
            spot=config.spot,
            disk_gb=config.disk_size_gb,
        )
