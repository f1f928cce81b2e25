"""Plan the order of notebooks, and which share a cluster, from their metadata.

A notebook works alone. But where it uses what an earlier one left (a dataset, a model), it runs after that
one on the same cluster; and what takes longest begins first. A notebook's ``metadata.trainyard`` has:

- ``needs``: ``cluster``, and the programs of images that have to be on this machine, as ``images get`` calls
  them; without this key a cluster, and nothing else.
- ``after``: the names of notebooks after which it runs, on their cluster, where they are in the same run.
- ``last``: whether it begins when nothing else is left to begin.
- ``seconds``: about how long it takes on two cores.

Who executes them is in ``lanes.py``.
"""

import json
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

CLUSTER = "cluster"


@dataclass(frozen=True)
class Planned:
    """A notebook, and what its metadata says; the module's docstring has the meaning of each."""

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

    In one lane they keep their order. In several, those that need no cluster come first, as they run while
    one is created, then the longest chain; those that are ``last`` come last.

    Example:
        >>> two = [Planned(Path("04_a.ipynb")), Planned(Path("06_b.ipynb"), after=("04_a",))]
        >>> [[each.label for each in chain] for chain in chains(two, lanes=2)]
        [['04', '06']]
    """
    by_name: dict[str, Chain] = {}
    for notebook in notebooks:
        before = next((name for name in notebook.after if name in by_name and lanes > 1), None)
        by_name[notebook.name] = [notebook] if before is None else by_name[before]
        if before is not None:
            by_name[before].append(notebook)
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
        waiting: In the order in which they are to be taken.
        ready: Whether the programs that a notebook needs are on this machine. One that still has to wait is
            taken when there is nothing else but those that are ``last``.
    """

    def __init__(self, waiting: Sequence[Chain], *, ready: Callable[[Planned], bool]) -> None:
        self._waiting = list(waiting)
        self._ready = ready
        self._lock = threading.Lock()

    def next_chain(self) -> Chain | None:
        """Return the next chain, or None when all are taken."""
        with self._lock:
            now = [chain for chain in self._waiting if not any(notebook.last for notebook in chain)]
            possible = [chain for chain in now if all(map(self._ready, chain))]
            chain = next(iter(possible or now or self._waiting), None)
            if chain:
                self._waiting.remove(chain)
            return chain
