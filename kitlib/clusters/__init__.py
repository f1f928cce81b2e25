"""Clusters of every provider: make one, find one again, list them."""

import inspect
from pathlib import Path

from kitlib import config
from kitlib.clusters.base import Cluster, Shape
from kitlib.clusters.checks import Report
from kitlib.clusters.cleanup import delete_all
from kitlib.clusters.existing import ExistingCluster
from kitlib.clusters.local import LocalCluster, not_found
from kitlib.clusters.plugins import PROVIDERS, load
from kitlib.config import DEFAULT_CLUSTER
from kitlib.display.tables import Table
from kitlib.errors import BadInput, ClusterNotFound


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
        provider: ``local``: on this machine; ``existing``: the one that a kubeconfig leads to; ``eks``: at
            AWS, ``gke``: at Google Cloud; both cost money, and ask first.
        name: By it the cluster is found again.
        nodes: How many nodes.
        cpus: Cores of each node; by default the machine's are shared out.
        memory: Memory of each node, as "4Gi"; by default the machine's is shared out.
        gpus: GPUs that each node declares; by default those that there are.
        recreate: Delete a cluster of this name first.
        options: The provider's own: for ``local`` port, labels, simulated_nodes, warm; for ``existing``
            kubeconfig, context, namespace; for ``eks`` region, profile, instance_type, spot, hours and more;
            for ``gke`` project, zone, accelerator, machine_type, spot, hours and more.

    Raises:
        BadInput: An argument is wrong; nothing was started.
        ClusterBroken: A cluster of this name is there, and cannot be used; the error says what to do.
        ProviderFailed: It could not be made.

    Example:
        >>> cluster = create_cluster("local", nodes=4)
        >>> cluster.nodes()
    """
    shape = Shape(nodes=nodes, cpus=cpus, memory=memory, gpus=gpus, options=options)
    return _class(provider).create(name, shape, recreate=recreate)


def preflight(
    provider: str,
    *,
    name: str = DEFAULT_CLUSTER,
    nodes: int = 4,
    **options: object,
) -> Report:
    """Look at what may stand in the way of a new cluster: credentials, permissions, quotas, zones, names.

    `create_cluster` does the same before anything is paid for.

    Args:
        provider: As for `create_cluster`.
        name: The same.
        nodes: The same.
        options: The same.

    Returns:
        A table with a row for each check, and what mends it; ``raise_failures()`` turns it into an error.

    Example:
        >>> preflight("eks", region="us-west-2", instance_type="g4dn.xlarge", nodes=2)
    """
    return _class(provider).preflight(name, Shape(nodes=nodes, options=options))


def connect(
    name: str = DEFAULT_CLUSTER,
    *,
    provider: str | None = None,
    kubeconfig: str | Path | None = None,
    context: str | None = None,
    start: bool = False,
    **where: str,
) -> Cluster:
    """Return a cluster that is there: from a fresh kernel, or after somebody else made it.

    Args:
        name: Its name; with a kubeconfig, what the kit shall call it.
        provider: Whose cluster; by default every provider is asked that this machine used for this name.
        kubeconfig: Leads to a cluster that the kit did not make; needed once, the kit remembers its path.
        context: One of the kubeconfig's contexts.
        start: Start a local cluster that has stopped: after the machine was, for one.
        where: Where the provider has it, on a machine that did not make it: as for `find`.

    Raises:
        ClusterNotFound: There is none of this name; the error lists those that there are.
        ClusterBroken: It does not run; the error says how to get it back.
    """
    if kubeconfig is not None or context is not None:
        return ExistingCluster(name, kubeconfig=kubeconfig, context=context).remembered()
    cluster = find(name, provider=provider, **where)
    if cluster is None:
        raise not_found(name) if provider in (None, "local") else _not_there(name, provider)
    if not isinstance(cluster, LocalCluster):
        return cluster
    if start and cluster.status["state"] == "stopped":
        return cluster.start()
    return cluster.check_running()


def find(name: str, *, provider: str | None = None, **where: str) -> Cluster | None:
    """Return the cluster of a name, in whatever state, or None.

    Args:
        name: Its name.
        provider: Whose; by default all are asked that this machine used for this name, local first.
        where: Where the provider has it: its own words.

    Raises:
        BadInput: There is no such provider, or it knows no such place.
    """
    if provider is None and where:
        raise BadInput(
            f"only a provider knows a {', '.join(where)}",
            about=f'cluster "{name}"',
            fix=f"say which: provider={' or '.join(map(repr, PROVIDERS))}",
        )
    asked = [_class(each) for each in (_used() if provider is None else [provider])]
    for each in asked:
        known = set(inspect.signature(each.find).parameters) - {"name"}
        if unknown := sorted(set(where) - known):
            raise BadInput(
                f"the provider {provider} has no {', '.join(unknown)}",
                about=f'cluster "{name}"',
                fix=f"it is found by: {', '.join(sorted(known)) or 'its name alone'}",
            )
        if cluster := each.find(name, **where):
            return cluster
    return None


def list_clusters() -> Table:
    """Return the clusters that the kit knows of, of every provider."""
    rows = [row for provider in _used() for row in _class(provider).existing()]
    columns = ("cluster", "provider", "state", "nodes", "version", "why")
    return Table(columns, [[row[column] for column in columns] for row in rows], empty="no clusters")


def clean_up(cluster: Cluster | str = DEFAULT_CLUSTER) -> Table:
    """Delete every run and every volume of the kit in a cluster, the cluster itself not; return what is left.

    Safe to call again.

    Args:
        cluster: The cluster, or its name.
    """
    return delete_all((connect(cluster) if isinstance(cluster, str) else cluster).kube)


def _class(provider: str) -> type[Cluster]:
    if provider not in PROVIDERS:
        raise BadInput(
            f"there is no provider {provider!r}",
            about=f"provider={provider!r}",
            fix=f"those that there are: {', '.join(PROVIDERS)}",
        )
    return load(PROVIDERS[provider])


def _used() -> list[str]:
    """Return the providers that may know a cluster: those on this machine, and clouds that it used."""
    here = ("local", "existing")
    return [each for each in PROVIDERS if each in here or (config.state_folder() / each).is_dir()]


def _not_there(name: str, provider: str) -> ClusterNotFound:
    known = [str(each["cluster"]) for each in _class(provider).existing()]
    return ClusterNotFound(
        f"{provider} has no such cluster of the kit's there",
        about=f'cluster "{name}"',
        fix=f'say where it is, or create it: kit.create_cluster("{provider}", name="{name}")'
        + (f"; used from here: {', '.join(known)}" if known else ""),
    )


__all__ = [
    "PROVIDERS",
    "Cluster",
    "LocalCluster",
    "clean_up",
    "connect",
    "create_cluster",
    "find",
    "list_clusters",
    "preflight",
]
