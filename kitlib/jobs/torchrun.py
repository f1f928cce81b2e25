"""`torchrun`: a program or a function in processes of this machine, without a cluster."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from kitlib import config
from kitlib.display.signatures import checked
from kitlib.jobs import functions
from kitlib.jobs.base import MAX_PROCESSES
from kitlib.jobs.layout import Layout
from kitlib.jobs.sources import collect, flags
from kitlib.k8s.quantities import check_count
from kitlib.runs.local_run import LocalRun


@checked
def torchrun(
    program: str | Path | Callable[..., object],
    *,
    processes_per_node: int = 1,
    args: Mapping[str, Any] | Sequence[object] = (),
    name: str | None = None,
) -> LocalRun:
    """Run a program or a function on this machine, by ``torchrun --standalone``, and return the run.

    Args:
        program: Its path, or a function, as for `launch`.
        processes_per_node: How many processes, as torchrun's ``--nproc-per-node``.
        args: Its flags; of a function its arguments by name.
        name: Of the run; by default the program's.

    Raises:
        BadInput: There is no such program, or another argument is invalid.

    Example:
        >>> run = torchrun("train.py", processes_per_node=2)
        >>> run.wait()
        >>> run.plot()
    """
    check_count(processes_per_node, what="processes_per_node", least=1, most=MAX_PROCESSES)
    if callable(program):
        path, words, sources = Path(f"{program.__name__}.py"), [], functions.carried(program, args)
    else:
        path, sources = config.find(program), None
        words = flags(args, collect(Layout(path, path.parent))[0].values())
    return LocalRun(name or path.stem, path, words, processes=processes_per_node, sources=sources)
