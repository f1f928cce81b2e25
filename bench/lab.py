"""The clusters of a run of benchmarks: made when they are needed, deleted whatever happens.

All state lies in a folder of its own that goes at the end; only the cache of programs is the user's. So the
user's clusters are neither seen nor touched.
"""

import logging
import os
import signal
import tempfile
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from pathlib import Path

import kitlib as kit
from bench import kwok
from bench.errors import PeerAbsent
from bench.watching import wait_account
from kitlib.clusters import Cluster, LocalCluster
from localkube.controlplane import binaries

NODES = 4
STATE = "XDG_STATE_HOME"
UNLIMITED = ("--disable-qps-limits",)


class Lab(AbstractContextManager):
    """What measures share.

    Args:
        rounds: How often each side is measured.
        quick: Do less in each round: a look, and no figures to keep.
        report: Called with what happens now.
    """

    def __init__(self, *, rounds: int, quick: bool = False, report: Callable[[str], None]) -> None:
        self.rounds, self.quick, self.report = rounds, quick, report
        self.kwok: kwok.Kwok | None = None
        self.kwok_absent = ""
        self._made = 0
        self._stack = ExitStack()
        self._shared: dict[str, Cluster | kwok.KwokCluster] = {}

    def __enter__(self) -> "Lab":
        with ExitStack() as stack:
            self.folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="trainyard-bench-")))
            stack.enter_context(_environment(STATE, str(self.folder / "state")))
            stack.enter_context(_terminated())
            logging.getLogger("trainyard").setLevel(logging.WARNING)
            control_plane = binaries.obtain(report=self.report)
            try:
                folder = self.folder / "kubernetes"
                self.kwok = kwok.obtain(control_plane, folder=folder, report=self.report)
            except PeerAbsent as reason:
                self.kwok_absent = str(reason)
                self.report(f"kwok is absent: {reason}")
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *exception) -> None:
        try:
            self.sweep()
        finally:
            self._stack.close()

    # Clusters

    @contextmanager
    def cluster(self, **options: object) -> Iterator[Cluster]:
        """Make one of our clusters, for one sample."""
        name = self._name()
        try:
            yield kit.create_cluster("local", name=name, nodes=NODES, **options)
        finally:  # also what an interruption left half made
            LocalCluster(name).delete()

    def kwok_cluster(self, *extra: str) -> kwok.KwokCluster:
        """Make a cluster of kwok's, without nodes, for one sample."""
        assert self.kwok is not None, "callers ask whether kwok is there"
        name = self._name()
        return kwok.KwokCluster(self.kwok, name, folder=self.folder / name, extra=extra)

    @property
    def ours(self) -> Cluster:
        """The cluster of this kit that several measures use."""
        if "ours" not in self._shared:
            self.report("creating our cluster")
            self._shared["ours"] = kit.create_cluster("local", name=self._name(), nodes=NODES)
        return self._shared["ours"]

    @property
    def theirs(self) -> kwok.KwokCluster | None:
        """The cluster of kwok's that several measures use, its limits lifted; None where kwok is absent."""
        if self.kwok is not None and "theirs" not in self._shared:
            self.report("creating kwok's cluster")
            self._shared["theirs"] = self.kwok_cluster(*UNLIMITED)
            self._shared["theirs"].add_nodes()
            wait_account(self._shared["theirs"].kube)
        return self._shared.get("theirs")

    def clear(self, *which: str) -> None:
        """Delete shared clusters, ``ours`` or ``theirs`` or all, so that a measure has the machine alone."""
        with ExitStack() as stack:  # one that cannot be deleted does not keep the others
            for name in which or tuple(self._shared):
                if name in self._shared:
                    stack.callback(self._shared.pop(name).delete)

    def sweep(self) -> None:
        """Delete every cluster that this run has made, also those that were interrupted half made."""
        with ExitStack() as stack:
            for path in (self.folder / "state").glob("trainyard/clusters/[!.]*"):
                stack.callback(LocalCluster(path.name).delete)
            stack.callback(self.clear)

    def _name(self) -> str:
        self._made += 1
        return f"bench-{self._made}"


@contextmanager
def _environment(name: str, value: str) -> Iterator[None]:
    """Set a variable for the programs that are started, and put back what it was."""
    before = os.environ.get(name)
    os.environ[name] = value
    try:
        yield
    finally:
        if before is None:
            del os.environ[name]
        else:
            os.environ[name] = before


@contextmanager
def _terminated() -> Iterator[None]:
    """Take SIGTERM as Ctrl-C is taken, so that clusters are deleted then too."""

    def interrupt(number: int, frame: object) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
