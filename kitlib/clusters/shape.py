"""The size of a new cluster, checked before anything is started."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from kitlib.display.signatures import near_argument
from kitlib.errors import BadInput
from kitlib.k8s.quantities import check_count, check_quantity

MAX_NODES = 100
SIZES = ("name", "nodes", "cpus", "memory", "gpus", "recreate")


@dataclass(frozen=True)
class Shape:
    """The size of a new cluster; the provider chooses a value for None."""

    nodes: int
    cpus: float | None = None
    memory: str | None = None
    gpus: int | str | None = None
    options: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        check_count(self.nodes, what="nodes", least=1, most=MAX_NODES)
        check_quantity(self.cpus, what="cpus", example="1")
        check_quantity(self.memory, what="memory", example='"4Gi"')
        if self.gpus is not None and not isinstance(self.gpus, str):
            check_count(self.gpus, what="gpus", least=0, most=64)

    def check_options(self, known: Mapping[str, str], provider: str) -> None:
        """Raise BadInput for options that are not among ``known``, which describes each."""
        unknown = sorted(set(self.options) - set(known))
        if unknown:
            listing = "its own options: " + ("; ".join(f"{k}: {v}" for k, v in known.items()) or "none")
            near = near_argument(
                unknown[0], [*SIZES, *known], value=self.options[unknown[0]], otherwise=listing
            )
            what = f"the provider {provider} has no option {', '.join(unknown)}"
            raise BadInput(what, about=f'create_cluster("{provider}", {unknown[0]}=…)', fix=near)
