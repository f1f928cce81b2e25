"""All that a cluster at Google Cloud is made of, for its creation; and all that is there of one, or of all,
found by whose it is, for listing and deletion.
"""

from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from clouds import tags as tags_
from clouds.google import orphans
from clouds.google.accounts import BUILDS, IamGrant, ServiceAccount
from clouds.google.client_errors import ErrorReason, GcpError
from clouds.google.cluster import ClusterLabels, GkeControlPlane, TrainingPool
from clouds.google.expiry import TIMES, DeletionJob
from clouds.google.machines import MachinePool
from clouds.google.network import Subnetwork, VpcNetwork, network_of
from clouds.google.owned import ZONE, read, sound
from clouds.google.registry import Repository, RepositoryAccess
from clouds.google.session import GcpSession
from clouds.google.storage import BucketAccess, StorageBucket
from clouds.reconciler.resource import Resource, ResourceState
from clouds.tags import Tags


@dataclass(frozen=True)
class Trace:
    """That there is, or was, a cluster of the kit.

    Attributes:
        tags: Whose, and until when.
        zone: Where it is; empty if nobody wrote it down.
    """

    tags: Tags
    zone: str


@dataclass(frozen=True)
class GkePlan:
    """A cluster as it shall be.

    Attributes:
        session: The way into its project and zone.
        tags: Whose it is, and when it ends.
        machines: Of its training pool.
        network: One that is there and shall be used; None if the cluster has its own.
        admins: Who administers it, beside who made it: ``user:ada@example.org``.
    """

    session: GcpSession
    tags: Tags
    machines: MachinePool
    network: str | None = None
    admins: tuple[str, ...] = ()


def resources(plan: GkePlan) -> list[Resource]:
    """Return all that a cluster is made of, in an order in which it can be read."""
    session, tags, network = plan.session, plan.tags, plan.network
    own = [] if network else [VpcNetwork(session, tags), Subnetwork(session, tags, session.region)]
    return [
        ServiceAccount(session, tags, "expiry"),
        IamGrant(session, tags, "expiry"),
        *(DeletionJob(session, tags, what) for what in TIMES),
        ServiceAccount(session, tags, "nodes"),
        IamGrant(session, tags, "nodes"),
        *own,
        GkeControlPlane(session, tags, network=network),
        TrainingPool(session, tags, plan.machines),
        StorageBucket(session, tags),
        BucketAccess(session, tags),
        Repository(session, tags),
        RepositoryAccess(session, tags),
    ]


def extension(session: GcpSession, tags: Tags) -> list[Resource]:
    """List what a new end of the cluster changes.

    Args:
        session: The way into its project and zone.
        tags: Its tags, with the new end.
    """
    labels = ClusterLabels(session, tags)
    labels.depends_on = tuple(f"end of the {each}" for each in ("training pool", "cluster"))
    return [
        ServiceAccount(session, tags, "expiry", exact=True),
        IamGrant(session, tags, "expiry", exact=True),
        *(DeletionJob(session, tags, what, exact=True) for what in TIMES),
        labels,
    ]


def traces(session: GcpSession) -> dict[str, Trace]:
    """Return every cluster of the kit of which something is left in the project, by name."""
    found: dict[str, Trace] = {}
    with ThreadPoolExecutor(len(_PLACES), thread_name_prefix="traces") as pool:
        for labels in (
            each for place in pool.map(lambda look: list(look(session)), _PLACES) for each in place
        ):
            tags = tags_.read(labels)
            if tags is None or not sound(tags.cluster):
                continue
            known = found.get(tags.cluster)
            zone = labels.get(ZONE, "")
            zone = zone if sound(zone) and zone.count("-") == 2 else ""
            if known is None or not known.zone:
                found[tags.cluster] = Trace(tags, zone)
    return found


def discover(session: GcpSession, cluster: str | None = None) -> list[Resource]:
    """Discover the resources of a cluster, or of all clusters of the project.

    Args:
        session: The way into the project; its zone, if it has one, is where a cluster is looked for that left
            no trace of its own.
        cluster: Its name; None for all.
    """
    known = traces(session)
    if cluster is not None:
        known = {cluster: known.get(cluster, Trace(Tags(cluster, "", ""), session.zone or ""))}
    everything: list[Resource] = []
    for trace in known.values():
        there = session.at(trace.zone or session.zone)
        everything += of_cluster(there, trace.tags)
    return everything


def of_cluster(session: GcpSession, tags: Tags) -> list[Resource]:
    """Find the resources of one cluster."""
    candidates: list[Resource] = [ServiceAccount(session, tags, role) for role in ("expiry", "nodes", BUILDS)]
    candidates += [IamGrant(session, tags, role) for role in ("expiry", "nodes")]
    candidates += [VpcNetwork(session, tags), StorageBucket(session, tags)]
    if session.zone:
        candidates += [
            *(DeletionJob(session, tags, what) for what in TIMES),
            Subnetwork(session, tags, session.region),
            GkeControlPlane(session, tags),
            TrainingPool(session, tags),
            Repository(session, tags),
        ]
    with ThreadPoolExecutor(8, thread_name_prefix="discover") as pool:
        there = [
            each for each, found in zip(candidates, pool.map(_is_there, candidates), strict=True) if found
        ]
    own = any(isinstance(each, VpcNetwork) for each in there)
    left = orphans.find_all(session, tags, network_of(tags.cluster) if own else None)
    for each in there:
        if isinstance(each, GkeControlPlane):  # what it still looks after is deleted after it
            each.depends_on = (*each.depends_on, *(one.name for one in left))
    return [*there, *left]


def _is_there(resource: Resource) -> bool:
    try:
        return resource.describe().state is not ResourceState.ABSENT
    except GcpError as error:
        if error.why in (
            ErrorReason.TAKEN,
            ErrorReason.DISABLED,
        ):  # somebody else's; or a service that nobody has used
            return False
        raise


def _clusters(session: GcpSession) -> Iterator[dict[str, str]]:
    listed = session.container("list_clusters", parent=f"projects/{session.project}/locations/-")
    for each in listed.clusters:
        yield {**each.resource_labels, ZONE: each.location} if each.resource_labels else {}


def _accounts(session: GcpSession) -> Iterable[dict[str, str]]:
    name = f"projects/{session.project}"
    found = session.every("iam", "projects.serviceAccounts.list", "accounts", name=name, pageSize=100)
    return (read(each.get("description", "")) for each in found)


def _networks(session: GcpSession) -> Iterable[dict[str, str]]:
    found = session.every("compute", "networks.list", "items", project=session.project)
    return (read(each.get("description", "")) for each in found)


def _buckets(session: GcpSession) -> Iterable[dict[str, str]]:
    found = session.every("storage", "buckets.list", "items", project=session.project)
    return (each.get("labels") or {} for each in found)


_PLACES = (_clusters, _accounts, _networks, _buckets)
