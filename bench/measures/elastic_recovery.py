"""From a membership change to the next step: the elastic launcher and a stock ``torchrun``.

One of two workers is killed; one of three hangs; two become four. Nodes are processes of this machine. The
limits are 1:8 nodes: a stock rendezvous then waits 30 s for more. In its best case the run has reached its
maximum again and does not wait: the rows without a goal.

If a worker hangs, a stock run waits minutes for gloo. If a worker is killed, it continues after about 35 s,
or only after minutes: at each restart a worker connected to one that had just been stopped on another node
("Gloo connectFullMesh failed, connection refused").

With torchft (two replica groups of one rank), heartbeats expire after one second; ours after one and a half,
the default.

Bounded by the survivor, which notices the loss at its next collective, and by two reads of the rendezvous'
record.
"""

import signal
from collections.abc import Callable
from pathlib import Path

from bench import torchft
from bench.elastic import Workers
from bench.errors import MeasureFailed, PeerAbsent
from bench.lab import Lab
from bench.results import Limit, Result
from bench.sampling import alternate

PEER = "torchrun, with --max-restarts"
PEER_TIMEOUT = 60
TORCHFT = "torchft, two replica groups"
LAB = "1:8"


def measure(lab: Lab) -> list[Result]:
    """Change each kind of run, alternating between ours and the stock one."""
    lab.clear()
    kill = _pairs(lab, "kill", _kill, LAB)
    full_kill = _pairs(lab, "kill-full", _kill, "1:2")
    hang = _pairs(lab, "hang", _hang, LAB)
    scale, full_scale = _pairs(lab, "scale", _scale, LAB), _pairs(lab, "scale-full", _scale, "1:4")
    return [
        _line("SIGKILL of 1 of 2 workers → next step", kill, Limit(2, of="value", unit="s")),
        _line("SIGKILL of 1 of 2 workers → next step, as a share", kill, Limit(0.06)),
        _line("SIGKILL of 1 of 2 workers → next step, at most 2 nodes", full_kill, None),
        _line(
            "SIGSTOP of 1 of 3 workers → survivors' next step",
            hang,
            Limit(2, of="value", unit="s"),
        ),
        _line("2 → 4 workers → first step at four", scale, Limit(0.3)),
        _line("2 → 4 workers → first step at four, at most 4 nodes", full_scale, None),
        *measure_torchft(lab),
    ]


def measure_torchft(lab: Lab) -> list[Result]:
    """Kill and stop one of two workers, alternating between ours and torchft's."""
    lab.clear()
    try:
        packages = torchft.install(Path(lab.folder))
    except PeerAbsent as reason:
        lab.report(f"torchft is absent: {reason}")
        return []
    kill = _pairs(lab, "kill-ft", _kill, LAB, packages)
    hang = _pairs(lab, "hang-ft", _hang_of_two, LAB, packages)
    limits = Limit(0.2), Limit(2, of="value", unit="s")
    return [
        _line("SIGKILL of 1 of 2 workers → next step, beside torchft", kill, limits[0], TORCHFT),
        _line("SIGSTOP of 1 of 2 workers → survivor's next step", hang, limits[1], TORCHFT),
    ]


def _line(what: str, samples: dict[str, list[float]], limit: Limit | None, peer: str = PEER) -> Result:
    ours, theirs = tuple(samples["ours"]), tuple(samples["theirs"])
    return Result(what=what, unit="s", ours=ours, peer=peer, theirs=theirs, limit=limit, timeout=PEER_TIMEOUT)


def _pairs(
    lab: Lab, name: str, change: Callable[[Workers, bool], float], nodes: str, packages: Path | None = None
) -> dict[str, list[float]]:
    lab.report(f"{name}, --nnodes {nodes}")
    number = iter(range(1000))

    def side(stock: bool) -> float:
        folder = Path(lab.folder) / f"{name}-{next(number)}"
        if stock and packages:
            group: Workers = torchft.ReplicaGroups(folder, packages)
        else:
            group = Workers(folder, stock=stock, nodes=nodes)
        with group as workers:
            seconds = change(workers, stock)
        lab.report(f"{name}, {'theirs' if stock else 'ours'}: {seconds:.2f} s")
        return seconds

    return alternate({"ours": lambda: side(False), "theirs": lambda: side(True)}, lab.rounds)


def _kill(workers: Workers, stock: bool) -> float:
    workers.start_training(2)
    return _next_step(workers, stock, workers.signal(signal.SIGKILL))


def _hang_of_two(workers: Workers, stock: bool) -> float:
    workers.start_training(2)
    return _next_step(workers, stock, workers.signal(signal.SIGSTOP))


def _hang(workers: Workers, stock: bool) -> float:
    workers.start_training(3)
    return _next_step(workers, stock, workers.signal(signal.SIGSTOP))


def _scale(workers: Workers, stock: bool) -> float:
    workers.start_training(2)
    return _next_step(workers, stock, workers.add(2), world=4)


def _next_step(workers: Workers, stock: bool, changed_at: float, *, world: int = 0) -> float:
    step = workers.wait_for_step(after=changed_at, world=world, within=PEER_TIMEOUT)
    if step is not None:
        return step - changed_at
    if stock:
        return PEER_TIMEOUT
    raise MeasureFailed("training did not continue")
