"""The clusters of a benchmark run: created on demand, and always deleted.

All state is in a temporary folder, except the user's cache of programs, so the user's clusters are not
affected.
"""

import logging
import os
import signal
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from functools import cached_property
from pathlib import Path
from typing import Any, TypeVar

import kitlib as kit
from bench import kubelets, kwok, machine
from bench.errors import PeerAbsent
from bench.results import Limit, Result
from bench.watching import wait_account
from kitlib.clusters import Cluster, LocalCluster
from localkube.controlplane import binaries

NODES = 4
STATE = "XDG_STATE_HOME"
UNLIMITED = ("--disable-qps-limits",)
KWOK, KUBELET = "kwok", "kubelet"
PEERS = {KUBELET: "kubelet, containerd, runc", KWOK: "kwok, fake pods"}

Peer = TypeVar("Peer", kwok.Kwok, kubelets.Kubelets)


class Lab(AbstractContextManager[Any]):
    """The resources that measures share.

    Args:
        rounds: The number of measurements of each side.
        quick: Do less in each round, without figures to publish.
        report: Called with progress.
    """

    def __init__(self, *, rounds: int, quick: bool = False, report: Callable[[str], None]) -> None:
        self.rounds, self.quick, self.report = rounds, quick, report
        self.absent: dict[str, str] = {}  # the reason, by peer
        self._count = 0
        self._stack = ExitStack()
        self._shared: dict[str, Cluster | kwok.KwokCluster | kubelets.KubeletCluster] = {}

    def __enter__(self) -> "Lab":
        with ExitStack() as stack:
            self.folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="trainyard-bench-")))
            stack.enter_context(environment(STATE, str(self.folder / "state")))
            stack.enter_context(_terminated())
            logging.getLogger("trainyard").setLevel(logging.WARNING)
            self._control_plane = binaries.obtain(report=self.report)
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *exception: object) -> None:
        try:
            self.sweep()
        finally:
            self._stack.close()

    # Peers

    @cached_property
    def _kwok(self) -> kwok.Kwok | None:
        """The factory of clusters of simulated nodes; None if it is not available."""
        return self._obtain(KWOK, kwok.obtain)

    @cached_property
    def _kubelets(self) -> kubelets.Kubelets | None:
        """The factory of clusters of real kubelets; None if it is not available."""
        return self._obtain(KUBELET, kubelets.obtain)

    def has(self, peer: str) -> bool:
        """Check whether a peer is available; the first call may build it, which takes minutes."""
        return {KWOK: lambda: self._kwok, KUBELET: lambda: self._kubelets}[peer]() is not None

    def _obtain(self, name: str, obtain: Callable[..., Peer]) -> Peer | None:
        try:
            return obtain(self._control_plane, folder=self.folder / f"of-{name}", report=self.report)
        except PeerAbsent as reason:
            self.absent[name] = str(reason)
            self.report(f"{name} is absent: {reason}")
            return None

    def compare(
        self,
        samples: Mapping[str, Sequence[float]],
        *,
        what: str,
        unit: str,
        limits: Mapping[str, Limit | None],
        notes: str = "",
        details: Mapping[str, Any] | None = None,
    ) -> list[Result]:
        """Return a row for each peer that has a limit.

        Args:
            samples: By side: ``ours``, and the available peers.
            what: A readable description.
            unit: The unit of all samples.
            limits: By peer; None for no goal.
            notes: Information needed to interpret the rows.
            details: Further raw figures, only in the JSON.
        """
        return [
            Result(
                what=what,
                unit=unit,
                ours=tuple(samples["ours"]),
                peer=PEERS[peer],
                theirs=tuple(samples.get(peer, ())),
                absent=self.absent.get(peer, ""),
                limit=limit,
                notes=notes,
                details=dict(details or {}),
            )
            for peer, limit in limits.items()
        ]

    # Clusters

    @contextmanager
    def cluster(self, *, warm: bool = True) -> Iterator[LocalCluster]:
        """Create one of our clusters for one sample, with or without forkservers."""
        name = self._name()
        try:
            cluster = kit.create_cluster("local", name=name, nodes=NODES, warm=warm)
            assert isinstance(cluster, LocalCluster)
            yield cluster
        finally:  # even if the creation was interrupted
            LocalCluster(name).delete()

    def kwok_cluster(self, *extra: str) -> kwok.KwokCluster:
        """Create a kwok cluster without nodes for one sample."""
        assert self._kwok is not None, "callers check whether kwok is available"
        name = self._name()
        return kwok.KwokCluster(self._kwok, name, folder=self.folder / name, extra=extra)

    def kubelet_cluster(self) -> kubelets.KubeletCluster:
        """Create a cluster of real kubelets, not started, for one sample."""
        assert self._kubelets is not None, "callers check whether it is available"
        name = self._name()
        return kubelets.KubeletCluster(self._kubelets, name, folder=self.folder / name, report=self.report)

    @property
    def ours(self) -> Cluster:
        """The cluster of this kit that several measures use."""
        if "ours" not in self._shared:
            self.report("creating our cluster")
            self._shared["ours"] = kit.create_cluster("local", name=self._name(), nodes=NODES)
        cluster = self._shared["ours"]
        assert isinstance(cluster, Cluster)
        return cluster

    @property
    def real(self) -> Cluster | None:
        """The cluster of real kubelets that several measures use; None if not available."""
        if self.has(KUBELET) and KUBELET not in self._shared:
            self.report("creating the kubelets' cluster")
            self._shared[KUBELET] = peer = self.kubelet_cluster()
            peer.start().wait_ready()
            wait_account(peer.kube)
        shared = self._shared.get(KUBELET)
        return shared.cluster if isinstance(shared, kubelets.KubeletCluster) else None

    @property
    def fake(self) -> kwok.KwokCluster | None:
        """The kwok cluster that several measures use, without its limits; None if not available."""
        if self.has(KWOK) and KWOK not in self._shared:
            self.report("creating kwok's cluster")
            self._shared[KWOK] = peer = self.kwok_cluster(*UNLIMITED)
            peer.add_nodes()
            wait_account(peer.kube)
        shared = self._shared.get(KWOK)
        return shared if isinstance(shared, kwok.KwokCluster) else None

    @property
    def sides(self) -> tuple[str, ...]:
        """The sides that are available, ours first."""
        return ("ours", *(peer for peer in (KUBELET, KWOK) if self.has(peer)))

    def alone(self, side: str) -> Cluster | kwok.KwokCluster:
        """Return the shared cluster of one side, while no other exists: it would take part of the CPU.

        A new one is returned when it no longer works on its start.
        """
        if others := [other for other in self._shared if other != side]:
            self.clear(*others)
        is_new = side not in self._shared
        cluster = {"ours": lambda: self.ours, KUBELET: lambda: self.real, KWOK: lambda: self.fake}[side]()
        assert cluster is not None, "callers check whether the peer is available"
        if is_new:
            machine.wait_until_idle(self.report)
        return cluster

    def clear(self, *sides: str) -> None:
        """Delete the shared clusters of some or all sides, so that they do not affect a measure."""
        with ExitStack() as stack:  # deletes the others even if one fails
            for name in sides or tuple(self._shared):
                if name in self._shared:
                    stack.callback(self._shared.pop(name).delete)

    def sweep(self) -> None:
        """Delete every cluster that this run has created, even incomplete ones."""
        with ExitStack() as stack:
            for path in (self.folder / "state").glob("trainyard/clusters/[!.]*"):
                stack.callback(LocalCluster(path.name).delete)
            stack.callback(self.clear)

    def _name(self) -> str:
        self._count += 1
        return f"bench-{self._count}"


@contextmanager
def environment(name: str, value: str) -> Iterator[None]:
    """Set an environment variable for started programs, and restore it."""
    previous = os.environ.get(name)
    os.environ[name] = value
    try:
        yield
    finally:
        if previous is None:
            del os.environ[name]
        else:
            os.environ[name] = previous


@contextmanager
def _terminated() -> Iterator[None]:
    """Handle SIGTERM like Ctrl-C, so that clusters are deleted as well."""

    def interrupt(number: int, frame: object) -> None:
        raise KeyboardInterrupt

    previous = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, previous)
