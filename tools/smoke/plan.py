"""Plan the order of notebooks, and which share a cluster, from their metadata.

Notebooks are independent, but one that uses results of another (a dataset, a model) runs after it on the same
cluster. The longest start first. A notebook's ``metadata.trainyard`` has:

- ``needs``: ``cluster``, and programs of images that must be on this machine, by their names in ``images
get``;
  by default only a cluster.
- ``after``: the names of notebooks of the same run after which it runs, on their cluster.
- ``last``: whether it starts after all others.
- ``follows``: the name of the notebook after which a learner reads it, if not that of the number before.
- ``seconds``: its approximate duration on two cores.

``lanes.py`` executes them.
"""

import json
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

CLUSTER = "cluster"


@dataclass(frozen=True)
class Planned:
    """A notebook and its metadata, which the module's docstring describes."""

    path: Path
    needs: tuple[str, ...] = (CLUSTER,)
    after: tuple[str, ...] = ()
    last: bool = False
    seconds: float = 0.0

    @property
    def name(self) -> str:
        """Its file's name without the suffix."""
        return self.path.stem

    @property
    def label(self) -> str:
        """The prefix of its output lines."""
        return self.name.partition("_")[0]

    @property
    def needs_cluster(self) -> bool:
        """Whether it works on a cluster."""
        return CLUSTER in self.needs

    @property
    def programs(self) -> tuple[str, ...]:
        """The programs of images that it needs."""
        return tuple(need for need in self.needs if need != CLUSTER)


def read(path: Path) -> Planned:
    """Read a notebook's metadata."""
    metadata = json.loads(path.read_text(encoding="utf-8"))["metadata"].get("trainyard", {})
    return Planned(
        path,
        needs=tuple(metadata.get("needs", (CLUSTER,))),
        after=tuple(metadata.get("after", ())),
        last=bool(metadata.get("last", False)),
        seconds=float(metadata.get("seconds", 0)),
    )


Chain = list[Planned]  # notebooks that run one after the other on one cluster


def chains(notebooks: Sequence[Planned], *, lanes: int) -> list[Chain]:
    """Return the notebooks in the order in which lanes take them.

    One lane keeps the order. In several lanes, notebooks without a cluster come first, as they run while a
    cluster is created, then the longest chains; ``last`` ones come last.

    Example:
        >>> two = [Planned(Path("04_a.ipynb")), Planned(Path("06_b.ipynb"), after=("04_a",))]
        >>> [[notebook.label for notebook in chain] for chain in chains(two, lanes=2)]
        [['04', '06']]
    """
    by_name: dict[str, Chain] = {}
    for notebook in notebooks:
        previous = next((name for name in notebook.after if name in by_name and lanes > 1), None)
        by_name[notebook.name] = [notebook] if previous is None else by_name[previous]
        if previous is not None:
            by_name[previous].append(notebook)
    different = list({id(chain): chain for chain in by_name.values()}.values())
    return sorted(different, key=lambda chain: _rank(chain, lanes))


def _rank(chain: Chain, lanes: int) -> tuple[bool, bool, float]:
    last = any(notebook.last for notebook in chain)
    if lanes == 1:
        return last, False, 0.0
    return (
        last,
        any(notebook.needs_cluster for notebook in chain),
        -sum(notebook.seconds for notebook in chain),
    )


class Queue:
    """The queue of chains for the lanes.

    Args:
        waiting: The chains in order.
        ready: Whether the programs that a notebook needs are on this machine. Others are taken only when
        nothing
            else but ``last`` notebooks remains.
    """

    def __init__(self, waiting: Sequence[Chain], *, ready: Callable[[Planned], bool]) -> None:
        self._waiting = list(waiting)
        self._ready = ready
        self._lock = threading.Lock()

    def next_chain(self) -> Chain | None:
        """Return the next chain, or None when all are taken."""
        with self._lock:
            regular = [chain for chain in self._waiting if not any(notebook.last for notebook in chain)]
            possible = [chain for chain in regular if all(map(self._ready, chain))]
            chain = next(iter(possible or regular or self._waiting), None)
            if chain:
                self._waiting.remove(chain)
            return chain
