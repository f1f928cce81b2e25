"""The cluster of a run: a local or cloud cluster created for it, or a namespace in an existing one.

All are context managers, and delete exactly what they created. Objects of the kit have the run's id in the
label ``trainyard/workshop``.
"""

import contextlib
import fcntl
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from datetime import timedelta
from functools import partial
from typing import IO, Any

import kitlib as kit
from kitlib import config
from kitlib.clusters import Cluster, LocalCluster, find
from kitlib.clusters.cleanup import OWNED
from kitlib.clusters.existing import ExistingCluster
from kitlib.display.progress import progress
from kitlib.errors import BadInput, KitError, Rejected
from kitlib.k8s import names
from kitlib.k8s.client import Kube, allowed
from kitlib.k8s.manifests import Object
from kitlib.k8s.terminating import remaining_conditions
from kitlib.k8s.wait import wait
from kitlib.k8s.watch import WatchSpec, watch_objects
from kitlib.operators.catalog import OPERATORS
from kitlib.operators.install import OPERATOR
from kitlib.runs.run import Run
from kitlib.runs.status import list_known
from kitlib.storage import pvc
from smoke.stopping import Stopping
from trainyard_kit.workshop.rehearsal import pull

LOCK = "trainyard-run"  # a ConfigMap that keeps two runs from using one namespace
KINDS_BY_KUBECTL = ("Deployment", "Job", "Pod", "Service", "ConfigMap", "Secret", "PersistentVolumeClaim")
# Options that locate a cluster, and the corresponding arguments of `kit.delete_resources`.
LOCATION_OPTIONS = {"region": "regions", "profile": "profile", "project": "project", "zone": ""}


@dataclass
class OwnCluster(AbstractContextManager[Any]):
    """A local cluster that is created for the run and deleted at its end.

    Args:
        name: Its name.
        nodes: The number of nodes.
        options: Further arguments of `kit.create_cluster`: ``gpus=1`` declares one on each node.
    """

    name: str
    nodes: int
    options: Mapping[str, Any] = field(default_factory=dict)
    provider = "local"
    _lock: IO[str] | None = None

    def open(self) -> Cluster:
        """Create the cluster.

        Raises:
            BadInput: Another run of notebooks on this machine uses the name.
        """
        path = config.state_folder() / "runs" / f"{self.name}.lock"
        path.parent.mkdir(parents=True, exist_ok=True)
        lock = path.open("w")
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)  # ends with this process
        except OSError as error:
            lock.close()
            fix = "wait for its end, or `--cluster NAME` gives this run one of another name"
            about = f'cluster "{self.name}"'
            raise BadInput("another run of notebooks uses it", about=about, fix=fix) from error
        self._lock = lock
        return kit.create_cluster(self.provider, name=self.name, nodes=self.nodes, **self.options)

    def parameters(self) -> dict[str, object]:
        """Return the notebook parameters that select it."""
        return _parameters(self)

    def close(self) -> None:
        """Delete it, and the clusters of notebooks 17 and 25; a notebook may have deleted them already."""
        if self._lock is None:
            return
        for name in (self.name, f"{self.name}-gpus", f"{self.name}-racks"):
            LocalCluster(name).delete()
        self._lock.close()
        self._lock = None

    def __exit__(self, *exception: object) -> None:
        self.close()


@dataclass
class RentedCluster(AbstractContextManager[Any]):
    """A cloud cluster that is created for the run and always deleted at its end.

    Args:
        provider: ``eks`` or ``gke``.
        name: Its name.
        nodes: The number of training nodes.
        options: The provider's options of `kit.create_cluster`: its location, and ``confirm=True`` without a
            terminal.
        image: The image of training pods; by default the trainer image is built, as in notebook 03.
    """

    provider: str
    name: str
    nodes: int
    options: Mapping[str, Any] = field(default_factory=dict)
    image: str = ""

    def open(self) -> Cluster:
        """Create the cluster, wait until it is ready, and build and pull its image on every node.

        The first pull takes minutes, longer than notebooks wait.
        """
        cluster = kit.create_cluster(self.provider, name=self.name, nodes=self.nodes, **self.options)
        cluster.wait_ready()
        if not self.image:
            kit.build_image(cluster=cluster)
        pull(cluster, [self.image or cluster.trainer_image()])
        return cluster

    def parameters(self) -> dict[str, object]:
        """Return the notebook parameters that select it."""
        return _parameters(self)

    def close(self) -> None:
        """Delete it, even if incomplete; a notebook may have deleted it already."""
        location = {key: str(value) for key, value in self.options.items() if key in LOCATION_OPTIONS}
        if cluster := find(self.name, provider=self.provider, **location):
            cluster.delete()
        # An incomplete cluster is not found above, and costs money.
        arguments = {LOCATION_OPTIONS[key]: value for key, value in location.items() if LOCATION_OPTIONS[key]}
        kit.delete_resources(self.provider, clusters=self.name, dry_run=False, **arguments)

    def __exit__(self, *exception: object) -> None:
        self.close()


def _parameters(site: OwnCluster | RentedCluster) -> dict[str, object]:
    parameters = {"provider": site.provider, "cluster_name": site.name, "nodes": site.nodes}
    return parameters | {"options": dict(site.options)}


@dataclass
class BorrowedNamespace(AbstractContextManager[Any]):
    """A namespace in an existing cluster.

    It is created for the run if allowed. Otherwise the given namespace, or the kubeconfig's, is used, and
    only objects with the run's id are deleted at the end.

    Args:
        run: The run's id; also the name by which notebooks find the cluster.
        stopping: Defers interrupts while the namespace is created.
        kubeconfig: It is only read.
        context: A context of the kubeconfig.
        namespace: The namespace to use; it is created if it does not exist.
        nodes: The number of training pods; None for the notebooks' defaults.
    """

    run: str
    stopping: Stopping
    kubeconfig: str | None = None
    context: str | None = None
    namespace: str | None = None
    nodes: int | None = None
    provider = "existing"
    _cluster: ExistingCluster | None = None
    _created: list[str] = field(default_factory=list)
    _existing: set[str] | None = None
    _operators: set[str] | None = None

    def open(self) -> Cluster:
        """Connect to the cluster, and create or claim the namespace.

        Raises:
            BadInput: The kubeconfig cannot be used, there is no kubectl, or another run works in the
                namespace.
        """
        self._cluster = cluster = self._connect(self.namespace)
        cluster.kubectl_command()
        cluster.kube.version()
        name = self.namespace or f"trainyard-{self.run}"
        with self.stopping.held():
            if self._make(cluster.kube, "Namespace", name):
                self._cluster = self._connect(name)
        kube = self._cluster.kube
        if self._created:
            _wait_settled(kube)
        print(kit.preflight(self._cluster), flush=True)
        if not self._created:
            with self.stopping.held():
                if not self._make(kube, "ConfigMap", LOCK):
                    raise _in_use_error(kube)
        self._existing = {context["metadata"]["uid"] for _, context in _by_kubectl(kube)}
        self._operators = _operators(kube)
        return self._cluster

    def parameters(self) -> dict[str, object]:
        """Return the notebook parameters that select it; 13_clean_up makes the kit forget it."""
        assert self._cluster, "it was opened"
        self._cluster.remembered()
        parameters: dict[str, object] = {"provider": self.provider, "cluster_name": self.run}
        return parameters if self.nodes is None else parameters | {"nodes": self.nodes}

    def close(self) -> None:
        """Delete the namespace if the run created it, or else the run's objects; and operators."""
        if self._cluster is None or not self._created:
            return
        kube = self._cluster.kube
        if "Namespace" in self._created:
            _delete_namespace(kube)
        else:
            _delete_labelled(kube, self.run)
            if self._existing is not None:
                _delete_by_kubectl(kube, self._existing)
            kube.delete("ConfigMap", LOCK)
        if self._operators is not None:
            for name in sorted(_operators(kube) - self._operators):
                kit.uninstall(name, cluster=self._cluster)
        self._cluster.forget()

    def __exit__(self, *exception: object) -> None:
        self.close()

    def _connect(self, namespace: str | None) -> ExistingCluster:
        return ExistingCluster(
            self.run, kubeconfig=self.kubeconfig, context=self.context, namespace=namespace
        )

    def _make(self, kube: Kube, kind: str, name: str) -> bool:
        """Create an object that marks the run; return whether it is new."""
        labels = names.labels(workshop=self.run, lifetime=timedelta(hours=24))
        del labels[names.KIT]  # notebooks must not report it as a leftover
        item = {"apiVersion": "v1", "kind": kind, "metadata": {"name": name, "labels": labels}}
        try:
            kube.create(item)
        except Rejected as error:
            if error.status in (403, 409):
                return False
            raise
        self._created.append(kind)
        return True


def _in_use_error(kube: Kube) -> KitError:
    """Return why a namespace cannot be used: it is in use, or this user may create nothing there."""
    about = f'namespace "{kube.namespace}"'
    lock = kube.find("ConfigMap", LOCK)
    if lock is None:
        return BadInput("this user may not create objects in it", about=about, fix="set another NAMESPACE")
    holder = (lock["metadata"].get("labels") or {}).get(names.WORKSHOP)
    return BadInput(
        f"{holder} has used it since {lock['metadata']['creationTimestamp']}",
        about=about,
        fix=f"wait for it; if it was killed: kubectl -n {kube.namespace} delete configmap {LOCK}",
    )


def _wait_settled(kube: Kube) -> None:
    """Wait until pods are accepted in a new namespace: they need its ServiceAccount."""
    wait(
        watch_objects(kube, WatchSpec("ServiceAccount", fields="metadata.name=default")),
        until=lambda objects: bool(objects["ServiceAccount"]),
        what="the namespace to be ready",
        about=f'namespace "{kube.namespace}"',
        resume="run again",
        describe=lambda objects: "its ServiceAccount does not exist yet",
    )


def _delete_namespace(kube: Kube) -> None:
    name = kube.namespace
    with progress(f"namespace {name}") as line:
        kube.delete("Namespace", name)
        wait(
            watch_objects(kube, WatchSpec("Namespace", fields=f"metadata.name={name}")),
            until=lambda objects: not objects["Namespace"],
            what="the namespace to be gone",
            about=f'namespace "{name}"',
            resume=f"kubectl delete namespace {name}",
            describe=lambda objects: (
                "; ".join(map(remaining_conditions, objects["Namespace"].values()))
                or "Kubernetes is deleting its objects"
            ),
            report=line.update,
        )
        line.done("deleted")


def _delete_labelled(kube: Kube, run: str) -> None:
    """Delete the objects of this run's notebooks in a namespace, which are labelled with its id."""
    label = f"{names.WORKSHOP}={run}"
    items = [item for kind in OWNED for item in list_known(kube, kind, labels=label)]
    for name in sorted({item["metadata"]["labels"].get(names.RUN, "") for item in items} - {""}):
        Run(kube, name).delete()
    for claim in kube.get_all(pvc.CLAIM, labels=label):
        pvc.delete(kube, claim["metadata"]["name"], report=print)


def _delete_by_kubectl(kube: Kube, existing: set[str]) -> None:
    """Delete the objects that notebooks created with kubectl: new ones labelled with their number."""
    for kind, item in _by_kubectl(kube):
        if item["metadata"]["uid"] not in existing:
            kube.delete(kind, item["metadata"]["name"])


def _by_kubectl(kube: Kube) -> Iterator[tuple[str, Object]]:
    for kind in KINDS_BY_KUBECTL:
        for item in allowed(partial(kube.get_all, kind, labels=names.NOTEBOOK)) or ():
            yield kind, item


def _operators(kube: Kube) -> set[str]:
    """Return the operators installed by the kit that are visible to this user."""
    names = set()
    for name, parts in OPERATORS.items():
        for kind, namespace, workload in (part.workload for part in parts):
            with contextlib.suppress(Rejected):
                item = kube.in_namespace(namespace).find(kind, workload)
                if item and OPERATOR in (item["metadata"].get("labels") or {}):
                    names.add(name)
    return names


def facts(cluster: Cluster, *, image: str = "") -> dict[str, object]:
    """Describe a cluster for the report; nodes that this user may not list are None.

    Args:
        cluster: The cluster.
        image: The image of training containers, if set.

    Example:
        >>> facts(kit.connect())["kubernetes"]
        'v1.37.2'
    """
    try:
        nodes = [{column: node[column] for column in cluster.nodes().columns} for node in cluster.nodes()]
    except KitError:
        nodes = None
    return {
        "provider": cluster.provider,
        "name": cluster.name,
        "namespace": cluster.kube.namespace,
        "kubernetes": cluster.kube.version(),
        "image": image or cluster.trainer_image(),
        "nodes": nodes,
    }
