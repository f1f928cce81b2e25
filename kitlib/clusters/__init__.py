"""Clusters of every provider: make one, find one again, list them."""

from pathlib import Path

from kitlib.clusters.base import Cluster, Shape
from kitlib.clusters.existing import ExistingCluster
from kitlib.clusters.local import LocalCluster, not_found
from kitlib.errors import BadInput
from kitlib.settings import DEFAULT_CLUSTER
from kitlib.tables import Table

PROVIDERS: dict[str, type[Cluster]] = {each.provider: each for each in (LocalCluster, ExistingCluster)}


def create_cluster(
    provider: str = "local",
    *,
    name: str = DEFAULT_CLUSTER,
    nodes: int = 4,
    cpus: float | None = None,
    memory: str | None = None,
    gpus: int | None = None,
    recreate: bool = False,
    **options: object,
) -> Cluster:
    """Make a cluster, or return the healthy one of this name.

    Args:
        provider: ``local``: on this machine; ``existing``: the one that a kubeconfig leads to.
        name: By it the cluster is found again.
        nodes: How many nodes.
        cpus: Cores of each node; by default the machine's are shared out.
        memory: Memory of each node, as "4Gi"; by default the machine's is shared out.
        gpus: GPUs that each node declares; by default those that there are.
        recreate: Delete a cluster of this name first.
        options: The provider's own: for ``local`` port, labels, simulated_nodes, warm; for ``existing``
            kubeconfig, context, namespace.

    Raises:
        BadInput: An argument is wrong; nothing was started.
        ClusterBroken: A cluster of this name is there, and cannot be used; the error says what to do.
        ProviderFailed: It could not be made.

    Example:
        >>> cluster = create_cluster("local", nodes=4)
        >>> cluster.nodes()
    """
    shape = Shape(nodes=nodes, cpus=cpus, memory=memory, gpus=gpus, options=options)
    if provider not in PROVIDERS:
        raise BadInput(
            f"there is no provider {provider!r}",
            about=f"create_cluster({provider!r})",
            fix=f"those that there are: {', '.join(PROVIDERS)}",
        )
    return PROVIDERS[provider].create(name, shape, recreate=recreate)


def connect(
    name: str = DEFAULT_CLUSTER,
    *,
    kubeconfig: str | Path | None = None,
    context: str | None = None,
    start: bool = False,
) -> Cluster:
    """Return a cluster that is there: from a fresh kernel, or after somebody else made it.

    Args:
        name: Its name; with a kubeconfig, what the kit shall call it.
        kubeconfig: Leads to a cluster that the kit did not make; needed once, the kit remembers its path.
        context: One of the kubeconfig's contexts.
        start: Start a local cluster that has stopped: after the machine was, for one.

    Raises:
        ClusterNotFound: There is none of this name; the error lists those that there are.
        ClusterBroken: It does not run; the error says how to get it back.
    """
    if kubeconfig is not None or context is not None:
        return ExistingCluster(name, kubeconfig=kubeconfig, context=context).remembered()
    cluster = LocalCluster.find(name)
    if cluster is None:
        if known := ExistingCluster.find(name):
            return known
        raise not_found(name)
    if start and cluster.status["state"] == "stopped":
        return cluster.start()
    return cluster.check_running()


def list_clusters() -> Table:
    """Return the clusters that the kit knows of, of every provider."""
    rows = [row for provider in PROVIDERS.values() for row in provider.existing()]
    columns = ("cluster", "provider", "state", "nodes", "version", "why")
    return Table(columns, [[row[column] for column in columns] for row in rows], empty="no clusters")


__all__ = ["PROVIDERS", "Cluster", "LocalCluster", "connect", "create_cluster", "list_clusters"]
