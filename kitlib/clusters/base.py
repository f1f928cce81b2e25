"""What a cluster is to the kit, whoever provides it: the contract, and all that goes by the Kubernetes API
alone.

How a provider makes, finds and deletes a cluster is in the modules beside this.
"""

import os
import shlex
import subprocess
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from functools import cached_property
from html import escape
from pathlib import Path
from typing import ClassVar

from kitlib import config
from kitlib.clusters import nodes
from kitlib.clusters.preflight import Report, ok
from kitlib.clusters.registry import Registry
from kitlib.clusters.switches import NodeSwitches
from kitlib.clusters.volumes import Volumes
from kitlib.display.progress import progress
from kitlib.display.tables import Table, Text
from kitlib.errors import BadInput, CommandFailed, KitError, Rejected, RunNotFound
from kitlib.k8s import manifests, pods, rbac
from kitlib.k8s.api_errors import launch_rejected, rbac_hint
from kitlib.k8s.client import Kube
from kitlib.k8s.event_table import events_table
from kitlib.k8s.manifests import title
from kitlib.k8s.quantities import check_count, check_quantity
from kitlib.k8s.usage import node_usage, pod_usage
from kitlib.k8s.wait import wait
from kitlib.k8s.watch import WatchSpec, watch_objects
from kitlib.runs import run as runs
from kitlib.runs.run import Run
from kitlib.runs.runs_table import runs_table

MOST_NODES = 100
METRICS = {"nodes": "NodeMetrics", "pods": "PodMetrics"}


@dataclass(frozen=True)
class Shape:
    """How large a new cluster is; checked before anything is started.

    Attributes:
        nodes: How many.
        cpus: Cores of each; None lets the provider choose.
        memory: Of each, as "4Gi"; None lets the provider choose.
        gpus: Of each; None takes those that there are.
        options: What only one provider understands.
    """

    nodes: int
    cpus: float | None = None
    memory: str | None = None
    gpus: int | None = None
    options: Mapping[str, object] = field(default_factory=dict)

    def __post_init__(self) -> None:
        check_count(self.nodes, what="nodes", least=1, most=MOST_NODES)
        check_quantity(self.cpus, what="cpus", example="1")
        check_quantity(self.memory, what="memory", example='"4Gi"')
        if self.gpus is not None:
            check_count(self.gpus, what="gpus", least=0, most=64)

    def check_options(self, known: Mapping[str, str], provider: str) -> None:
        """Refuse options that the provider does not know; ``known`` says what each is."""
        unknown = sorted(set(self.options) - set(known))
        if unknown:
            raise BadInput(
                f"the provider {provider} has no option {', '.join(unknown)}",
                about=f'create_cluster("{provider}", {unknown[0]}=…)',
                fix="its own options: " + ("; ".join(f"{k}: {v}" for k, v in known.items()) or "none"),
            )


class Cluster(NodeSwitches, Volumes, AbstractContextManager, ABC):
    """A Kubernetes cluster.

    Contract for providers: `create` is idempotent (a healthy cluster of this name and shape is returned as
    it is); `find` returns None for a name it does not have; `delete` is idempotent and touches only what the
    provider made for this cluster; nobody's ``~/.kube/config`` is written.

    As a context manager it is deleted at the end.
    """

    provider: ClassVar[str]

    def __init__(self, name: str) -> None:
        self.name = name

    @classmethod
    @abstractmethod
    def create(cls, name: str, shape: Shape, *, recreate: bool) -> "Cluster":
        """Make a cluster, or return the one that is there."""

    @classmethod
    @abstractmethod
    def find(cls, name: str) -> "Cluster | None":
        """Return an existing cluster, in whatever state, or None."""

    @classmethod
    @abstractmethod
    def existing(cls) -> list[dict[str, object]]:
        """Return a row for each cluster of this provider: name, provider, state, nodes, version."""

    @classmethod
    def preflight(cls, name: str, shape: Shape) -> Report:
        """Look at what may stand in the way of a new cluster; nothing is made, and nothing costs."""
        words = f"the provider {cls.provider} needs no account and costs nothing"
        return Report(f'cluster "{name}"', (ok("account", words),))

    @property
    @abstractmethod
    def kubeconfig(self) -> Path:
        """The file with which kubectl and the kit reach it."""

    @abstractmethod
    def kubectl_command(self) -> list[str]:
        """Return how kubectl is started for it, without arguments."""

    @abstractmethod
    def delete(self) -> None:
        """Delete it and wait until it is gone; one that is gone is fine."""

    @abstractmethod
    def explain(self, words: str) -> KitError:
        """Return the error to raise when its API server does not answer; ``words`` are the connection's."""

    @cached_property
    def kube(self) -> Kube:
        """Its API."""
        return Kube(self.kubeconfig, cluster=self.name, explain=self.explain)

    # Looking

    def nodes(self) -> Table:
        """Return its nodes, with what is allocatable on each.

        Raises:
            Rejected: This user may not see them, as attendees may not.
        """
        return nodes.table(nodes.seen(self.kube))

    def pods(self) -> Table:
        """Return the pods of its namespace."""
        return pods.table(self.kube.get_all("Pod"))

    def top(self, of: str = "nodes") -> Table:
        """Return what its nodes use, or with ``"pods"`` the pods of its namespace, by metrics-server.

        Raises:
            Rejected: It has no metrics-server, or one that has no figures yet.
        """
        if of not in METRICS:
            raise BadInput("top tells of nodes and of pods", about=f"top({of!r})", fix='top("pods")')
        try:
            figures = nodes.seen(self.kube, METRICS[of]) if of == "nodes" else self.kube.get_all(METRICS[of])
        except Rejected as error:
            if error.status not in (404, 503):
                raise
            raise Rejected(
                f"nobody tells what {of} use",
                about=f'metrics-server of cluster "{self.name}"',
                fix="ask again in half a minute if the cluster is new; otherwise install metrics-server",
                status=error.status,
                reason=error.reason,
            ) from error
        return pod_usage(figures) if of == "pods" else node_usage(figures, nodes.seen(self.kube))

    def watch(self, *, minutes: float = 60):
        """Return a live picture of it: CPU, memory and GPUs of every node over time, and its pods.

        It asks in the background until it is stopped, its view is closed, the minutes are over or the cluster
        is gone. Where nobody looks, as under papermill, the output is a picture and a table, renewed
        after each cell.

        Args:
            minutes: How long at most.

        Returns:
            A watch, which shows itself; ``stop()`` ends it, ``save("cluster.png")`` writes its picture.

        Example:
            >>> cluster.watch()
            Cluster trainyard: nodes Ready: 4 of 4, pods running: 0, cpu, mean of nodes: 1 %
        """
        from kitlib.widgets.cluster_watch import ClusterWatch  # numpy and matplotlib take half a second

        return ClusterWatch(self.kube, minutes=minutes).start()

    def watch_placement(self, *, minutes: float = 60):
        """Return a record of who runs where from now on: nodes × time, who waits, and the runs' losses.

        It looks on in the background until it is stopped or the minutes are over. In a notebook its output is
        a picture and a table, renewed after each cell.

        Args:
            minutes: How long at most.

        Returns:
            A watch, which shows itself; ``stop()`` ends it, ``table()`` has a row a pod,
            ``save("where.png")`` writes its picture.

        Example:
            >>> with cluster.watch_placement() as placement:
            ...     run.wait()
            >>> placement
            Placement in cluster trainyard: 4 pods seen, 0 run, 0 wait
        """
        from kitlib.widgets.placement import PlacementWatch  # matplotlib takes half a second

        return PlacementWatch(self.kube, minutes=minutes).start()

    def events(self) -> Table:
        """Return what Kubernetes has said of late, oldest first."""
        return events_table(self.kube.get_all("Event"))

    def runs(self) -> Table:
        """Return the kit's runs, whoever launched them."""
        return runs_table(self.kube)

    def run(self, name: str) -> Run:
        """Return a run that was launched before, perhaps elsewhere.

        Raises:
            RunNotFound: There is none of this name.
        """
        if runs.main(self.kube, name) is None:
            known = ", ".join(str(each["run"]) for each in self.runs()) or "none"
            raise RunNotFound(
                "there is no such run",
                about=f'run "{name}" in cluster "{self.name}"',
                fix=f"take one of those that there are: {known}",
            )
        return Run(self.kube, name)

    def pod_additions(self, *, gpus: int = 0) -> dict[str, object]:
        """Return what this provider's nodes ask of a pod's spec: a selector, a toleration.

        `launch` merges it into each training pod; ``job.on(cluster).manifest()`` shows it.

        Args:
            gpus: How many the pod has.
        """
        return {}

    def pod_annotations(self, mounted: Iterable[str]) -> Mapping[str, str]:
        """Return what this provider wants to read on a pod that mounts these claims."""
        return {}

    # What only a provider knows

    def brings(self, operator: str) -> str:
        """Return in what form a cluster of this provider has an operator anyway; empty if it has not."""
        return ""

    @property
    def registry(self) -> Registry | None:
        """Where its images are, if its provider brings a registry; None if it does not."""
        return None

    def operator_manifests(self, program: str) -> Path | None:
        """Return the folder with an operator's own manifests, if the provider runs that program by itself."""
        return None

    # Sharing

    def allowed(self) -> Table:
        """Return what this user may do here, asked of the API server: a row for each thing the course does.

        Example:
            >>> cluster.allowed()
            TO           TAKES              ALLOWED  NOTEBOOKS   THE ROLE THAT WOULD ALLOW IT
            launch runs  create jobs.batch  yes      all         -
            see nodes    list nodes         NO       01, 09, 11  kubectl create clusterrole list-nodes …
        """
        return rbac.table(self.kube)

    def grant_pod_access(self, namespace: str) -> None:  # noqa: B027 most providers have nothing to do
        """Let the pods of an attendee's namespace use what the provider gives to pods, such as its bucket."""

    def revoke_pod_access(self, namespace: str) -> None:  # noqa: B027
        """Undo `grant_pod_access`; idempotent."""

    # Acting

    def kubectl(self, command: str) -> Text:
        """Run kubectl on this cluster and return what it prints.

        Raises:
            CommandFailed: kubectl ended with an error; the error has its words.

        Example:
            >>> cluster.kubectl("get pods -o wide")
        """
        try:
            words = shlex.split(command)
        except ValueError as error:
            raise BadInput(
                f"the command cannot be split into words: {error}", about=command, fix="close its quotes"
            ) from error
        words = words[1:] if words[:1] == ["kubectl"] else words
        done = subprocess.run(
            [*self.kubectl_command(), *words],
            env=os.environ | {"KUBECONFIG": str(self.kubeconfig)},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            check=False,
        )
        if done.returncode:
            said = (done.stderr or done.stdout).strip()
            helps = f"read what it says; kubectl {words[0] if words else ''} --help lists the options"
            raise CommandFailed(
                said or f"exit status {done.returncode}",
                about=f'kubectl {shlex.join(words)}, in cluster "{self.name}"',
                fix=rbac_hint(said) if "forbidden" in said else helps,
            )
        return Text(done.stdout or done.stderr)

    def apply(self, path: str | Path) -> Table:
        """Create the objects of a YAML file, or bring them to its shape.

        Raises:
            LaunchRejected: The API server refused one; the error has its words and the line.
        """
        path = config.find(path)
        text = manifests.read_text(path)
        applied = []
        for document, each in enumerate(manifests.parse(text, about=str(path))):
            try:
                applied.append(self.kube.apply(each))
            except Rejected as error:
                raise launch_rejected(error, text, document=document, fix=f"mend {path}") from error
        return Table(
            ("object", "namespace"),
            [(title(each), each["metadata"].get("namespace")) for each in applied],
            empty="no objects in the file",
        )

    def wait_ready(self, *, timeout: float | None = None) -> "Cluster":
        """Wait until every node is Ready.

        Args:
            timeout: Seconds; by default as long as anything changes, and three minutes more.

        Raises:
            WaitTimeout: One is not; the error says how many are.
        """
        with progress(f"cluster {self.name}") as line:
            wait(
                watch_objects(self.kube, WatchSpec("Node")),
                timeout=timeout,
                what="the nodes to be Ready",
                until=lambda seen: bool(seen["Node"]) and all(map(nodes.is_ready, seen["Node"].values())),
                about=f'cluster "{self.name}"',
                resume="cluster.wait_ready() goes on waiting",
                describe=lambda seen: nodes.readiness(seen["Node"].values()),
                report=line.update,
            )
        return self

    # Showing

    def __repr__(self) -> str:
        return f'Cluster "{self.name}" ({self.provider}): {self._summary()}'

    def _repr_html_(self) -> str:
        return f"<b>Cluster</b> <code>{escape(self.name)}</code> ({self.provider}): {escape(self._summary())}"

    def _summary(self) -> str:
        try:
            return f"{self._shown_nodes()}, Kubernetes {self.kube.version()}"
        except KitError as error:  # showing an object never fails
            return error.what

    def _shown_nodes(self) -> str:
        try:
            every = self.nodes()
        except Rejected as error:
            if error.status != 403:
                raise
            return f'namespace "{self.kube.namespace}"'
        return f"{sum(each['status'] == 'Ready' for each in every)} of {len(every)} nodes Ready"

    def __exit__(self, *exception) -> None:
        self.delete()
