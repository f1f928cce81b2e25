"""Summarize a failed notebook's cluster: nodes, events, runs with their timelines and last lines.

It is for logs of which only the end may be kept. The bundle has the complete information.
"""

from collections.abc import Callable, Iterator
from functools import partial

from kitlib.clusters import Cluster
from kitlib.errors import KitError

RUNS, EVENTS, LINES, WIDTH = 3, 25, 12, 200  # the newest of each; of a log, per run


def brief(cluster: Cluster) -> str:
    """Describe the cluster's state; a failed request becomes a line.

    Example:
        >>> print(brief(kit.connect("trainyard")))
        -- nodes
        ...
    """
    return "\n".join(line[:WIDTH] for line in _lines(cluster))


def _lines(cluster: Cluster) -> Iterator[str]:
    yield from _part("nodes", lambda: repr(cluster.nodes()).splitlines())
    yield from _part("events", lambda: repr(cluster.events()).splitlines()[-EVENTS:])
    yield from _part("pods", lambda: repr(cluster.pods()).splitlines())
    yield from _part("runs", lambda: repr(cluster.runs()).splitlines())
    try:
        newest = [str(run["run"]) for run in cluster.runs()][-RUNS:]
    except KitError:
        return
    for name in newest:
        yield from _part(f"run {name}", partial(_run, cluster, name))


def _run(cluster: Cluster, name: str) -> list[str]:
    run = cluster.run(name)
    timeline = run.timeline()
    changes = repr(timeline).splitlines() if timeline.world_size else []
    return [str(run.status), *changes, *str(run.logs()).splitlines()[-LINES:]]


def _part(title: str, read: Callable[[], list[str]]) -> list[str]:
    try:
        return [f"-- {title}", *read()]
    except Exception as error:  # noqa: BLE001 - a broken cluster must not end the run
        return [f"-- {title}", *f"{type(error).__name__}: {error}".splitlines()]
