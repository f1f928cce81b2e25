"""Run notebooks in parallel lanes, each a thread with its own cluster.

Notebooks mostly wait, so two of them on two cores take less than twice as long as one. A lane starts
processes and waits for them. Clusters are created and deleted in the main thread, because only it can be
interrupted, and incomplete clusters must be deleted. ``plan.py`` decides the order.
"""

import itertools
import queue
import sys
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any

from kitlib.clusters import Cluster
from kitlib.display.progress import shown_elsewhere
from kitlib.errors import KitError, ProviderFailed
from localkube.controlplane import binaries, programs
from localkube.errors import LocalClusterError
from localkube.host import cores, memory
from smoke import clusters
from smoke.brief import brief
from smoke.bundle import Bundle
from smoke.execution import Ended, Processes, notebook_command
from smoke.plan import Planned, Queue
from smoke.result import Outcome
from smoke.stopping import TIME_LIMIT, Stopping
from smoke.timeline import CLUSTER, NOTEBOOK, WAITING

# Alone on two cores, a notebook waits half of its time. More than four lanes would be idle, because the
# longest chain takes about a quarter of the total.
LANES_OF_A_CORE, MAX_LANES = 1.5, 4
BYTES_OF_A_LANE = 3 * 2**30
CONTROL_PLANE = "the control plane"


def default_lanes(provider: str) -> int:
    """Return the number of lanes on this machine; one for a remote cluster."""
    if provider != "local":
        return 1
    return max(1, min(int(cores() * LANES_OF_A_CORE), memory() // BYTES_OF_A_LANE, MAX_LANES))


def ready(notebook: Planned) -> bool:
    """Check whether this machine has the programs that a notebook needs."""
    return len(programs.cached(notebook.programs)) == len(notebook.programs)


@dataclass
class Lane:
    """A lane: its site, its cluster once created, and its current notebook."""

    number: int
    site: clusters.OwnCluster | clusters.RentedCluster | clusters.BorrowedNamespace
    cluster: Cluster | None = None
    notebook: Planned | None = None
    open: bool = False
    answers: queue.SimpleQueue[Any] = field(default_factory=queue.SimpleQueue)


class Lanes:
    """Executes notebooks on the clusters of some sites.

    Args:
        sites: One for each lane.
        waiting: The notebooks, in the order in which lanes take them.
        outcome: The results are added to it.
        folder: The folder for executed notebooks.
        parameters: Parameters of the notebooks, in addition to the site's.
        profile: Further parameters by notebook.
        environment: The environment of the processes that execute them.
    """

    def __init__(
        self,
        sites: Sequence[Any],
        waiting: Queue,
        outcome: Outcome,
        *,
        folder: Path,
        parameters: Mapping[str, object],
        profile: Mapping[str, Mapping[str, object]] = MappingProxyType({}),
        environment: Mapping[str, str],
    ) -> None:
        self.lanes = [Lane(number, site) for number, site in enumerate(sites, 1)]
        self.waiting, self.outcome, self.folder = waiting, outcome, folder
        self.parameters, self.profile, self.environment = parameters, profile, environment
        self.processes, self.bundle = Processes(), Bundle()
        self._messages: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self._control_plane, self._count = threading.Lock(), itertools.count(1)

    def run(self, stopping: Stopping) -> None:
        """Execute all notebooks; in the main thread.

        Raises:
            KitError: A cluster could not be created or deleted.
            KeyboardInterrupt: The run was stopped; ``stopping.reason`` has the reason.
        """
        threads = [
            threading.Thread(target=self._follow, args=[lane], name=f"lane {lane.number}")
            for lane in self.lanes
        ]
        try:
            for lane in self.lanes:
                if lane.site.provider != "local":  # check that it answers before executing notebooks
                    self._open(lane)
            for thread in threads:
                thread.start()
            self._serve(stopping)
        finally:
            with stopping.held():
                self._end(threads, stopping)

    def _serve(self, stopping: Stopping) -> None:
        """Serve the lanes' requests until all are done."""
        busy = len(self.lanes)
        while busy:
            lane, message = self._messages.get()
            if isinstance(message, BaseException):
                raise message
            if message == CLUSTER:
                self._open(lane)
                lane.answers.put(lane.cluster)
                continue
            busy -= 1
            with stopping.held():
                self._close(lane)

    def _end(self, threads: Sequence[threading.Thread], stopping: Stopping) -> None:
        """End running notebooks, collect diagnostics, and delete the clusters."""
        if stopping.reason:
            print(stopping.reason, flush=True)
        self.processes.end()
        for lane in self.lanes:
            lane.answers.put(None)
        for thread in threads:
            if thread.ident:
                thread.join()
        for lane in self.lanes:
            if stopping.reason == TIME_LIMIT and lane.notebook:
                self._collect(lane, lane.notebook)
        saved = self.bundle.save(self.folder / "bundle.tar.gz")
        self.outcome.bundle = saved.name if saved else None
        failures = []
        for lane in self.lanes:
            try:
                self._close(lane)
            except KitError as error:
                failures.append(error)
        if failures:
            raise failures[0]

    def _open(self, lane: Lane) -> None:
        """Create a lane's cluster, or connect to it."""
        lane.open = True
        with self.outcome.timeline.span(CLUSTER, "creating the cluster", lane=lane.number):
            if lane.site.provider == "local":
                with shown_elsewhere():  # progress lines would be mixed with the notebooks' output
                    lane.cluster = lane.site.open()
            else:
                lane.cluster = lane.site.open()
        self.outcome.cluster = self.outcome.cluster or clusters.facts(
            lane.cluster, image=self.environment.get("TRAINYARD_IMAGE", "")
        )
        self.bundle.hide(lane.cluster.kubeconfig)

    def _close(self, lane: Lane) -> None:
        """Delete a lane's cluster, even if incomplete."""
        if lane.open:
            print(f"cleaning up after lane {lane.number}", flush=True)
            with self.outcome.timeline.span(CLUSTER, "deleting the cluster", lane=lane.number):
                lane.site.close()
            lane.open = False

    def _follow(self, lane: Lane) -> None:
        """Execute notebooks in a thread until none is left; report the outcome to the main thread."""
        try:
            while chain := self.waiting.next_chain():
                for notebook in chain:
                    self._obtain(lane, notebook)
                    self._execute(lane, notebook)
        except Ended:
            return
        except Exception as error:  # noqa: BLE001 - the main thread raises it
            self._messages.put((lane, error))
        else:
            self._messages.put((lane, None))

    def _obtain(self, lane: Lane, notebook: Planned) -> None:
        """Wait for a notebook's prerequisites: the control plane, a cluster, programs of images."""
        wait = self.outcome.timeline.span
        if notebook.needs_cluster and lane.cluster is None:
            if lane.site.provider == "local":
                with wait(WAITING, CONTROL_PLANE, lane=lane.number), self._control_plane:
                    self._obtain_control_plane(notebook)
            self._messages.put((lane, CLUSTER))
            if lane.answers.get() is None:
                raise Ended
        if lane.site.provider == "local" and not ready(notebook):
            names = ", ".join(notebook.programs)
            print(f"{notebook.label}  waiting for {names}", flush=True)
            with wait(WAITING, names, lane=lane.number):
                # If it fails, the notebook fails and shows the reason.
                self._python("-m", "trainyard_kit.cli", "images", "get", *notebook.programs)

    def _obtain_control_plane(self, notebook: Planned) -> None:
        try:
            binaries.present()
        except LocalClusterError:
            print(f"{notebook.label}  waiting for {CONTROL_PLANE}", flush=True)
            if self._python("-m", "localkube.controlplane"):
                raise ProviderFailed(
                    "it could not be obtained; the lines above say why",
                    about=CONTROL_PLANE,
                    fix="make setup",
                ) from None

    def _python(self, *arguments: str) -> int:
        return self.processes.run([sys.executable, *arguments], environment={"PYTHONUNBUFFERED": "1"})

    def _execute(self, lane: Lane, notebook: Planned) -> None:
        """Execute one notebook; collect diagnostics if it fails."""
        of_lane = f", lane {lane.number}" if len(self.lanes) > 1 else ""
        count = f"{next(self._count)} of {len(self.outcome.planned)}"
        print(f"{notebook.label}  {notebook.path.name}: {count}{of_lane}", flush=True)
        profile = dict(self.profile.get(notebook.name, {}))
        parameters = lane.site.parameters() | profile | dict(self.parameters)
        output = self.folder / notebook.path.name
        command = notebook_command(
            notebook.path, output, label=notebook.label, parameters=parameters, patient=bool(profile)
        )
        lane.notebook = notebook
        with self.outcome.timeline.span(NOTEBOOK, notebook.name, lane=lane.number) as start:
            failed = self.processes.run(command, environment=self.environment)
        lane.notebook = None
        seconds = self.outcome.timeline.seconds - start
        print(f"{notebook.label}  {'failed' if failed else 'passed'} after {seconds:.0f} s", flush=True)
        if failed:
            self._collect(lane, notebook)

    def _collect(self, lane: Lane, notebook: Planned) -> None:
        if lane.cluster is None:
            return
        print(f"{notebook.label}  collecting events, logs and manifests", flush=True)
        self.outcome.briefs[notebook.name] = self.bundle.clean(brief(lane.cluster))
        self.bundle.collect(lane.cluster, part=notebook.name)
