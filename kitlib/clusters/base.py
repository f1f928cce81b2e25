"""The contract between the kit and a provider of clusters, and all that works through the Kubernetes API.

A provider is a class that `plugins` names: `local` and `existing` here, EKS and GKE in ``clouds``.
"""

import logging
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from datetime import UTC, datetime
from functools import cached_property
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from kitlib import config
from kitlib.clusters import nodes, trainer_image
from kitlib.clusters.kubectl import forward_port, run_kubectl
from kitlib.clusters.shape import Shape
from kitlib.display.signatures import checked_class
from kitlib.display.tables import Table, Text
from kitlib.errors import BadInput, KitError, Rejected, RunNotFound, VolumeNotFound
from kitlib.k8s import manifests, pods
from kitlib.k8s.api_errors import launch_rejected
from kitlib.k8s.client import Kube, allowed
from kitlib.k8s.events import events_table
from kitlib.k8s.manifests import title
from kitlib.k8s.pod_security import PodSecurity
from kitlib.runs.run import Run
from kitlib.runs.status import find_main, runs_table
from kitlib.storage import Volume, pvc

if TYPE_CHECKING:
    from kitlib.widgets.cluster_view import ClusterWatch
    from kitlib.widgets.placement_watch import PlacementWatch

Rows = list[dict[str, object]]

log = logging.getLogger(__name__)


@checked_class
class Cluster(AbstractContextManager["Cluster"], ABC):
    """A Kubernetes cluster; as a context manager it is deleted at the end.

    This is all that the kit requires of a provider. The contract:

    - The abstract methods say how a cluster is created, found, listed, reached, and deleted. `create` is
      idempotent: it returns a healthy cluster of this name and shape as it is. `find` returns None for a name
      that the provider does not have. `delete` is idempotent and deletes only what the provider created for
      this cluster. No ``~/.kube/config`` is written. Every error is a `KitError` that says what to do.
    - The methods under "What a provider may add" have defaults that suit most clusters.
    - All other methods use the Kubernetes API alone, and a provider leaves them as they are.
    """

    provider: ClassVar[str]

    def __init__(self, name: str) -> None:
        self.name = name

    @classmethod
    @abstractmethod
    def create(cls, name: str, shape: Shape, *, recreate: bool) -> "Cluster":
        """Create a cluster, or return the existing one."""

    @classmethod
    @abstractmethod
    def find(cls, name: str) -> "Cluster | None":
        """Find a cluster in any state; keyword arguments of a provider are its location, as ``region``."""

    @classmethod
    @abstractmethod
    def list(cls) -> Rows:
        """List the clusters: cluster, provider, state, nodes, version and note of each."""

    @classmethod
    def _row(cls, name: str, note: object, **known: object) -> dict[str, object]:
        unknown = dict.fromkeys(("state", "nodes", "version"))
        return {"cluster": name, "provider": cls.provider, **unknown, **known, "note": note}

    @property
    @abstractmethod
    def kubeconfig(self) -> Path:
        """The kubeconfig file of the cluster."""

    @abstractmethod
    def kubectl_command(self) -> Sequence[str]:
        """The kubectl command line for the cluster, without arguments."""

    @abstractmethod
    def delete(self) -> None:
        """Delete the cluster and wait until it is gone; idempotent."""

    @abstractmethod
    def explain(self, message: str) -> KitError:
        """Build the error for an API server that does not answer; ``message`` is the connection's."""

    # What a provider may add

    @classmethod
    def credentials(cls, environment: Mapping[str, str], home: Path) -> tuple[str, str]:
        """Describe the credentials that would be used, from variables and files, and the next step."""
        return "nothing: it needs no account", f'`kit.create_cluster("{cls.provider}")`'

    @property
    def registry(self) -> object | None:
        """The provider's `trainyard_kit.container_images.registry.Registry`, if it has one."""
        return None

    @property
    def bucket(self) -> str:
        """The bucket that its pods may read by their own identity; empty if the cluster has none."""
        return ""

    def load_images(self, archive: Path) -> bool:
        """Give the nodes the images of an archive of ``docker save``; False if only a registry can."""
        return False

    def built_in(self, operator: str) -> str:
        """Describe how the provider's clusters already have an operator; empty if they do not."""
        return ""

    def operator_manifests(self, program: str) -> Path | None:
        """Folder of an operator's own manifests, if the provider runs that program without an image."""
        return None

    def trainer_image(self) -> str:
        """Find the image of the cluster's training pods.

        It is ``TRAINYARD_IMAGE``, or the one that `build_image` built for the cluster, or PyTorch's official
        one, which has no packages but torch's; a cluster with a registry of its own has to have one built.

        Raises:
            BadInput: None was built.
        """
        image = config.read().image or trainer_image.recall(self.kube)
        if image is None and self.registry is not None:
            raise BadInput(
                "no image for training pods was built for this cluster",
                about=f'cluster "{self.name}"',
                fix="`kit.build_image(cluster=cluster)` builds it, once, as notebook 03 does; or set "
                "TRAINYARD_IMAGE, or a job's `image=`",
            )
        return image or config.DEFAULT_IMAGE

    def pod_additions(self, *, gpus: int = 0) -> dict[str, object]:
        """Fields of a pod's spec that the provider's nodes need: a selector, a toleration.

        `launch` merges them into training pods; ``job.bind(cluster).manifest()`` shows them. Pods with GPUs
        tolerate the taint ``nvidia.com/gpu`` on every provider.

        Args:
            gpus: Number of GPUs of the pod.
        """
        return {}

    def pod_security(self, user: int | None = None) -> PodSecurity:
        """The security context of the kit's pods.

        Args:
            user: The user ID that the job or the settings specify; None for the default.
        """
        return PodSecurity.read(self.kube, user)

    def training_gpus(self) -> tuple[int, ...]:
        """GPUs of each training node, also of those that do not exist until a pod needs them."""
        return ()

    def pod_annotations(self, mounted: Iterable[str]) -> Mapping[str, str]:
        """Annotations that the provider needs on a pod that mounts these PersistentVolumeClaims."""
        return {}

    def show_packages(self) -> None:  # noqa: B027 elsewhere pods have the packages of their image
        """Let pods import the packages that this process can import, and log the others."""

    def image_notice(self, image: str) -> str:
        """Describe what runs instead of an image; empty if the image itself runs."""
        return ""

    def share_files(
        self, files: Mapping[str, str | bytes], modes: Mapping[str, int]
    ) -> dict[str, object] | None:
        """Put files where every node sees them; returns a volume's source, or None if nodes see no disk."""
        return None

    def grant_pod_access(self, namespace: str) -> None:  # noqa: B027 most providers have nothing to do
        """Let the pods of an attendee's namespace use what the provider gives to pods, such as its bucket."""

    def revoke_pod_access(self, namespace: str) -> None:  # noqa: B027
        """Undo `grant_pod_access`; idempotent."""

    def _switch(self, verb: str, node: str) -> None:
        """Stop, shut down, start, isolate or reconnect a node."""
        raise nodes.unsupported(verb, self.provider, about=f'node "{node}" of cluster "{self.name}"')

    # Looking

    @cached_property
    def kube(self) -> Kube:
        """The client of its API server."""
        return Kube(self.kubeconfig, cluster=self.name, explain=self.explain)

    def nodes(self) -> Table:
        """List the nodes, with what is allocatable on each.

        Raises:
            Rejected: This user may not list nodes; attendees may not.
        """
        return nodes.table(nodes.list_nodes(self.kube))

    def overload(self) -> tuple[str, ...]:
        """List its short resources, their largest users and a command for each; empty if not known.

        Memory, disk, processes, the memory of Secrets; of the machine, also time.
        """
        return nodes.shortages(allowed(lambda: nodes.list_nodes(self.kube)) or ())

    def pods(self) -> Table:
        """List the pods of its namespace."""
        return pods.table(self.kube.get_all("Pod"))

    def top(self, of: str = "nodes") -> Table:
        """Resource usage of its nodes, or with ``"pods"`` of the pods in its namespace, by metrics-server.

        Raises:
            Rejected: There is no metrics-server, or it has no figures yet.
        """
        return nodes.usage(self.kube, of)

    def watch(self, *, minutes: float = 60) -> "ClusterWatch":
        """Show CPU, memory and GPUs of every node over time, and the pods, live.

        It polls in the background until it is stopped, its view is closed, the minutes are over or the
        cluster is gone. Without a frontend, as under papermill, the output is a picture and a table, updated
        after each cell.

        Args:
            minutes: Maximum duration.

        Returns:
            A watch, which displays itself; ``stop()`` ends it, ``save("cluster.png")`` writes its picture.

        Example:
            >>> cluster.watch()
            Cluster trainyard: nodes Ready: 4 of 4, pods running: 0, cpu, mean of nodes: 1 %
        """
        from kitlib.widgets.cluster_view import ClusterWatch  # numpy and matplotlib take half a second

        self.announce_end()
        return ClusterWatch(self.kube, minutes=minutes).start()

    def watch_placement(self) -> "PlacementWatch":
        """Record pod placement for an hour at most: nodes × time, pending pods, and the runs' losses.

        Returns:
            A watch, which displays itself; ``stop()`` ends it, ``table()`` has a row for each pod,
            ``save("placement.png")`` writes its picture.

        Example:
            >>> with cluster.watch_placement() as placement:
            ...     run.wait()
            >>> placement
            Placement in cluster trainyard: 4 pods seen, 0 run, 0 wait
        """
        from kitlib.widgets.placement_watch import PlacementWatch  # matplotlib takes half a second

        return PlacementWatch(self.kube).start()

    def events(self) -> Table:
        """List the Events of its namespace, oldest first."""
        return events_table(self.kube.get_all("Event"))

    def runs(self) -> Table:
        """List the kit's runs, whoever launched them."""
        return runs_table(self.kube)

    def run(self, name: str) -> Run:
        """Get a run that was launched before, perhaps from another machine.

        Raises:
            RunNotFound: There is none of this name.
        """
        if find_main(self.kube, name) is None:
            known = ", ".join(str(run["run"]) for run in self.runs())
            fix = f"use one of its runs: {known}" if known else "launch it first"
            raise RunNotFound("there is no such run", about=f'run "{name}" in cluster "{self.name}"', fix=fix)
        return Run(self.kube, name, cluster=self)

    def delete_run(self, name: str) -> None:
        """Delete a run, if there is one; idempotent."""
        Run(self.kube, name, cluster=self).delete()

    def volumes(self) -> Table:
        """List the volumes of its namespace."""
        return pvc.table(self.kube)

    def volume(self, name: str) -> Volume:
        """Get a volume.

        Raises:
            VolumeNotFound: There is none of this name.
        """
        if self.kube.find(pvc.CLAIM, name) is None:
            known = ", ".join(str(volume["volume"]) for volume in self.volumes())
            fix = (f"use one of: {known}; or " if known else "") + f'`cluster.create_volume("{name}")`'
            raise VolumeNotFound("there is no such volume", about=pvc.about(self.kube, name), fix=fix)
        return Volume(self, name)

    # Acting

    def create_volume(
        self,
        name: str,
        *,
        size: str = "5Gi",
        storage_class: str | None = None,
        source: Mapping[str, Any] | None = None,
        access_mode: str | None = None,
    ) -> Volume:
        """Create a volume that pods on all nodes can write to, or return the one of this name.

        Args:
            name: Name of the claim, by which pods mount it.
            size: Minimum capacity, as "5Gi".
            storage_class: By default the class of the settings, or else the cluster's default.
            source: Of an existing volume: ``{"nfs": {"server": "10.0.0.2", "path": "/share"}}``.
            access_mode: ``ReadWriteMany`` for pods on all nodes, ``ReadWriteOnce`` for pods that are all on
                one; by default the first, or on a cluster with one node what its class can.

        Raises:
            BadInput: There is no such class, it is for one node, or the volume exists and is smaller.
            WaitTimeout: It was not provisioned; the error has the last event.

        Example:
            >>> cluster.create_volume("shared", size="5Gi")
        """
        pvc.create(
            self.kube, name, size=size, class_name=storage_class, source=source, access_mode=access_mode
        )
        return Volume(self, name)

    def kubectl(self, command: str) -> Text:
        """Run kubectl on this cluster and return its output.

        Raises:
            CommandFailed: kubectl failed; the error has its message.

        Example:
            >>> cluster.kubectl("get pods -o wide")
        """
        return run_kubectl(self.kubectl_command(), command, kubeconfig=self.kubeconfig, cluster=self.name)

    def port_forward(self, target: str, port: int) -> AbstractContextManager[str]:
        """Forward a free port of this machine to a port of a pod or a Service, as ``kubectl port-forward``.

        Args:
            target: ``pod/NAME`` or ``service/NAME``.
            port: Its port.

        Returns:
            A context with the address here, such as ``127.0.0.1:40123``.

        Raises:
            CommandFailed: There is none, or it is not ready.

        Example:
            >>> with cluster.port_forward("service/s3", 5000) as address:
            ...     urllib.request.urlopen(f"http://{address}")
        """
        return forward_port(self.kubectl_command(), target, port, kubeconfig=self.kubeconfig)

    def apply(self, path: str | Path) -> Table:
        """Apply the objects of a YAML file.

        Raises:
            LaunchRejected: The API server rejected one; the error has its message and the line.
        """
        path = config.find(path)
        text = manifests.read_text(path)
        applied = []
        for document, item in enumerate(manifests.parse(text, about=str(path))):
            try:
                applied.append(self.kube.apply(item))
            except Rejected as error:
                raise launch_rejected(error, text, document=document, fix=f"fix {path}") from error
        return Table(
            ("object", "namespace"),
            [(title(item), item["metadata"].get("namespace")) for item in applied],
            empty="the file has no objects",
        )

    def wait_ready(self, *, timeout: float | None = None) -> "Cluster":
        """Wait until every node is Ready.

        Args:
            timeout: Seconds; by default until nothing has changed for three minutes.

        Raises:
            WaitTimeout: One is not; the error says how many are.
        """
        nodes.wait_ready(self.kube, timeout=timeout)
        return self

    def stop_node(self, node: str, *, graceful: bool = False) -> Table:
        """Switch a node off: its processes are killed at once, as in a power failure. Return the nodes.

        Kubernetes notices after about 16 seconds without a heartbeat, and evicts its pods when their
        toleration of ``node.kubernetes.io/unreachable`` has passed: 300 seconds by default.

        Args:
            graceful: Shut it down: its pods end within their grace period, at most 30 seconds, those of
                critical priority last, and are Failed with the reason ``Terminated``.

        Raises:
            BadInput: The provider's nodes cannot be switched off.
            ProviderFailed: There is no such node.
        """
        return self._switched("shutdown" if graceful else "stop", node)

    def start_node(self, node: str) -> Table:
        """Switch a node on again: it removes pods that were deleted meanwhile, and restarts the others."""
        return self._switched("start", node)

    def isolate(self, node: str) -> Table:
        """Isolate a node from the network: its processes run on, and it is unreachable. Return the nodes."""
        return self._switched("isolate", node)

    def reconnect(self, node: str) -> Table:
        """Reconnect a node to the network: pods that were evicted meanwhile end there."""
        return self._switched("reconnect", node)

    def link(
        self, *, bandwidth: str, latency: str = "", between: Sequence[str] = (), node: str = ""
    ) -> Table:
        """Limit the link between two racks, zones or nodes, or of one node to all others; return the links.

        Args:
            bandwidth: Bandwidth for programs in each direction, as ``"100Mbit"``.
            latency: One-way latency, as ``"10ms"``; needs netem in the machine's kernel.
            between: Two racks, as of ``create_cluster(racks=2)``, zones or nodes; or else a ``node``.
        """
        limits = [f"--bandwidth={bandwidth}", f"--latency={latency}"]
        return self._shape_links(*nodes.link_ends(between, node), *limits)

    def unlink(self, *, between: Sequence[str] = (), node: str = "") -> Table:
        """Remove a link's limit, or those of all links. Return the links that remain."""
        return self._shape_links(*between, *filter(None, [node]), "--remove")

    def links(self) -> Table:
        """List the limited links, with the current throughput in the busier direction."""
        return self._shape_links()

    def _shape_links(self, *arguments: str) -> Table:
        raise nodes.unsupported("link", self.provider, about=f'cluster "{self.name}"')

    def _switched(self, verb: str, node: str) -> Table:
        now = datetime.now(UTC)
        self._switch(verb, node)
        nodes.write_switched(self.kube, node, verb, at=now)
        return self.nodes()

    # Showing

    def __repr__(self) -> str:
        return f'Cluster "{self.name}" ({self.provider}): {self._summary()}'

    def _repr_html_(self) -> str:
        return f"<b>Cluster</b> <code>{escape(self.name)}</code> ({self.provider}): {escape(self._summary())}"

    def _summary(self) -> str:
        try:
            end = self.end_notice()
            return f"{self._shown_nodes()}, Kubernetes {self.kube.version()}{end and f'; {end}'}"
        except KitError as error:  # a repr never fails
            return error.what

    def end_notice(self) -> str:
        """When the cloud will delete the cluster, and how to extend that; empty if it will not."""
        return ""

    def announce_end(self) -> "Cluster":
        """Log when the cloud deletes it, if it does; return the cluster."""
        if notice := self.end_notice():
            log.warning('cluster "%s" %s', self.name, notice)
        return self

    def _shown_nodes(self) -> str:
        if (rows := allowed(self.nodes)) is None:
            return f'namespace "{self.kube.namespace}"'
        return f"{sum(node['status'] == 'Ready' for node in rows)} of {len(rows)} nodes Ready"

    def __exit__(self, *exception: object) -> None:
        self.delete()


class ScalableCluster(Cluster):
    """A cluster whose number of nodes can be changed while it runs."""

    @abstractmethod
    def scale(self, nodes: int, *, confirm: bool = False, budget: float | None = None) -> Table: ...
