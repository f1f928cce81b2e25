"""Clusters of every provider: create, connect, list, clean up."""

import inspect
import os
from collections.abc import Mapping
from pathlib import Path

from kitlib import config, plugins
from kitlib.clusters import existing, local
from kitlib.clusters.base import Cluster
from kitlib.clusters.cleanup import delete_all
from kitlib.clusters.existing import ExistingCluster
from kitlib.clusters.local import LocalCluster, not_found
from kitlib.clusters.machine import is_installed
from kitlib.clusters.shape import Shape
from kitlib.config import DEFAULT_CLUSTER
from kitlib.display.signatures import checked
from kitlib.display.tables import Table
from kitlib.errors import BadInput, ClusterNotFound, ProviderFailed, plain

BUILT_IN: dict[str, type[Cluster]] = {"local": LocalCluster, "existing": ExistingCluster}


@checked(options=local.OPTIONS | existing.OPTIONS)
def create_cluster(
    provider: str | None = None,
    *,
    name: str = DEFAULT_CLUSTER,
    nodes: int = 4,
    cpus: float | None = None,
    memory: str | None = None,
    gpus: int | str | None = None,
    recreate: bool = False,
    **options: object,
) -> Cluster:
    """Create a cluster, or return the healthy one of this name.

    Args:
        provider: ``local``: on this machine; ``existing``: reached by a kubeconfig; ``eks``: at AWS,
            ``gke``: at Google Cloud; both cost money, and ask first. None is what ``TRAINYARD_PROVIDER``
            says, or else ``local``.
        name: Name of the cluster.
        nodes: Number of nodes.
        cpus: Cores of each node; by default an equal share of the machine.
        memory: Memory of each node, as "4Gi"; by default an equal share of the machine.
        gpus: GPUs of each node, a number or ``kit.GPU(…)``; by default those of the machine.
        recreate: Delete a cluster of this name first.
        options: The provider's own: for ``local`` port, labels, racks, warm, mode, images; for ``existing``
            kubeconfig, context, namespace; for ``eks`` region, profile, instance_type, spot, hours and more;
            for ``gke`` project, zone, accelerator, machine_type, spot, hours and more.

    Raises:
        BadInput: An argument is wrong; nothing was started.
        ClusterBroken: The cluster of this name cannot be used; the error says what to do.
        ProviderFailed: It could not be created.

    Example:
        >>> cluster = create_cluster("local", nodes=4)
        >>> cluster.nodes()
    """
    shape = Shape(nodes=nodes, cpus=cpus, memory=memory, gpus=gpus, options=options)
    return provider_class(provider or config.read().provider).create(name, shape, recreate=recreate)


@checked
def connect(
    name: str = DEFAULT_CLUSTER,
    *,
    provider: str | None = None,
    kubeconfig: str | Path | None = None,
    context: str | None = None,
    start: bool = False,
    region: str | None = None,
    zone: str | None = None,
    project: str | None = None,
    profile: str | None = None,
) -> Cluster:
    """Connect to an existing cluster.

    Args:
        name: Its name; with a kubeconfig, its name in the kit from now on.
        provider: Of the cluster; by default all that this machine has used.
        kubeconfig: Of a cluster that the kit did not create; needed once, the kit keeps its path.
        context: One of the kubeconfig's contexts.
        start: Start a local cluster that has stopped, as after a restart of the machine.
        region: Its region at AWS; like the rest, only needed on a machine that did not create it.
        zone: Its zone at Google Cloud.
        project: Its project at Google Cloud.
        profile: The AWS profile to find it with.

    Raises:
        ClusterNotFound: There is none of this name; the error lists the existing ones.
        ClusterBroken: It does not run; the error says what to do.
    """
    if kubeconfig is not None or context is not None:
        return ExistingCluster(name, kubeconfig=kubeconfig, context=context).remembered()
    cluster = find(name, provider=provider, region=region, zone=zone, project=project, profile=profile)
    if cluster is None:
        raise not_found(name) if provider in (None, "local") else _not_there(name, provider)
    if not isinstance(cluster, LocalCluster):
        return cluster.announce_end()
    if start and cluster.status["state"] == "stopped":
        return cluster.start()
    return cluster.check_running()


@checked
def credentials(*, environment: Mapping[str, str] | None = None, home: Path | None = None) -> Table:
    """List the credentials that each provider would use, and what to do next; no cloud is contacted.

    Args:
        environment: By default this process's variables.
        home: By default the user's.
    """
    rows = [(*row, plain(fix)) for *row, fix in credential_rows(environment, home)]
    return Table(("provider", "would use", "next"), rows)


def credential_rows(
    environment: Mapping[str, str] | None = None, home: Path | None = None
) -> list[tuple[str, str, str]]:
    """List the rows of `credentials`; the next step has the form of an error's fix."""
    variables = dict(os.environ if environment is None else environment), home or config.home_directory()
    rows = []
    for provider in _providers():
        try:
            rows.append((provider, *provider_class(provider).credentials(*variables)))
        except ProviderFailed as error:  # the clouds are not installed
            rows.append((provider, error.what, error.fix))
    return rows


@checked
def find(
    name: str,
    *,
    provider: str | None = None,
    region: str | None = None,
    zone: str | None = None,
    project: str | None = None,
    profile: str | None = None,
) -> Cluster | None:
    """Find a cluster by its name, in any state.

    Args:
        name: Its name.
        provider: Of the cluster; by default all that this machine has used, local first.
        region: Its region at AWS.
        zone: Its zone at Google Cloud.
        project: Its project at Google Cloud.
        profile: The AWS profile to find it with.

    Raises:
        BadInput: There is no such provider, or its clusters have no such location.
    """
    arguments = {"region": region, "zone": zone, "project": project, "profile": profile}
    location = {key: value for key, value in arguments.items() if value is not None}
    if provider is None and location:
        what = f"only one provider's clusters have a {', '.join(location)}"
        fix = f"pass `provider={' or '.join(map(repr, _providers()))}`"
        raise BadInput(what, about=f'cluster "{name}"', fix=fix)
    classes = [provider_class(name) for name in (_used() if provider is None else [provider])]
    for kind in classes:
        known = set(inspect.signature(kind.find).parameters) - {"name"}
        if unknown := sorted(set(location) - known):
            what = f"the provider {provider} has no {', '.join(unknown)}"
            fix = f"find it by: {', '.join(sorted(known)) or 'its name alone'}"
            raise BadInput(what, about=f'cluster "{name}"', fix=fix)
        if cluster := kind.find(name, **location):
            return cluster
    return None


@checked
def list_clusters() -> Table:
    """List the clusters of every provider."""
    rows = [row for provider in _used() for row in provider_class(provider).list()]
    columns = ("cluster", "provider", "state", "nodes", "version", "note")
    return Table(columns, [[row[column] for column in columns] for row in rows], empty="no clusters")


@checked
def clean_up(cluster: Cluster | str = DEFAULT_CLUSTER) -> Table:
    """Delete the kit's runs and volumes in a cluster, but not the cluster; return what remains. Idempotent.

    Args:
        cluster: The cluster, or its name.
    """
    return delete_all((connect(cluster) if isinstance(cluster, str) else cluster).kube)


def provider_class(provider: str) -> type[Cluster]:
    """Load the class of a provider.

    Raises:
        BadInput: There is no such provider.
        ProviderFailed: A Python package that it needs is not installed.
    """
    if provider in BUILT_IN:
        return BUILT_IN[provider]
    if provider not in _providers():
        fix = f"use one of the providers: {', '.join(_providers())}"
        raise BadInput(f"there is no provider {provider!r}", about=f"provider={provider!r}", fix=fix)
    cluster_class: type[Cluster] = plugins.load(plugins.entries("kitlib.providers")[provider])
    return cluster_class


def _providers() -> list[str]:
    return [*BUILT_IN, *sorted(plugins.entries("kitlib.providers"))]


def _used() -> list[str]:
    """Providers that may have a cluster: those on this machine, and clouds that it has used."""
    return [
        provider
        for provider in _providers()
        if (provider in BUILT_IN or (config.state_folder() / provider).is_dir())
        and (provider != "local" or is_installed())
    ]


def _not_there(name: str, provider: str) -> ClusterNotFound:
    known = [str(cluster["cluster"]) for cluster in provider_class(provider).list()]
    return ClusterNotFound(
        f"{provider} has no cluster of that name at this location",
        about=f'cluster "{name}"',
        fix=f'pass its location, or create it: `kit.create_cluster("{provider}", name="{name}")`'
        + (f"; used from this machine: {', '.join(known)}" if known else ""),
    )


__all__ = [
    "Cluster",
    "LocalCluster",
    "clean_up",
    "connect",
    "create_cluster",
    "credentials",
    "find",
    "list_clusters",
    "provider_class",
]
