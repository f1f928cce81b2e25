"""Compute Engine, beyond keeping things: quotas, and networks in use. The limits are made up."""

from collections.abc import Iterator

from .api_errors import OperationFailure
from .rest import Request, Rest, timestamp

REGIONAL = dict.fromkeys(("CPUS", "N2_CPUS", "PREEMPTIBLE_CPUS", "IN_USE_ADDRESSES"), 72.0)
REGIONAL |= dict.fromkeys(("DISKS_TOTAL_GB", "SSD_TOTAL_GB"), 4096.0)
REGIONAL |= dict.fromkeys(("NVIDIA_T4_GPUS", "PREEMPTIBLE_NVIDIA_T4_GPUS", "NVIDIA_L4_GPUS"), 8.0)
GLOBAL = {"GPUS_ALL_REGIONS": 8.0, "CPUS_ALL_REGIONS": 128.0, "NETWORKS": 15.0}


def region(rest: Rest, request: Request) -> dict:
    """A region with its quotas."""
    body = rest.store.get("compute", request.path).body
    return body | {"quotas": _quotas(rest, body["name"])}


def project(rest: Rest, request: Request) -> dict:
    """The project with its quotas."""
    project_state = rest.world.project(request.project)
    return {"id": str(project_state.number), "name": project_state.id, "quotas": _quotas(rest, None)}


def delete(rest: Rest, request: Request) -> dict:
    """Delete a network or subnetwork; the operation fails if something uses it."""
    if used := next(_users_of(rest, request.path), None):
        rest.store.get("compute", request.path)
        words = f"The resource '{request.path}' is already being used by '{used}'"
        failure = OperationFailure("FAILED_PRECONDITION", words, "RESOURCE_IN_USE_BY_ANOTHER_RESOURCE")
        return rest.begin(request, request.path, failure=failure)
    return rest._delete(request)


def insert_in_network(rest: Rest, request: Request) -> dict:
    """Create a part of a network, which has to exist."""
    network = request.body.get("network", "").rpartition("/")[2]
    rest.store.get("compute", f"projects/{request.project}/global/networks/{network}")
    return rest._create(request)


def launch_errors(rest: Rest, request: Request) -> dict:
    """Why the machines of a pool do not start: Compute Engine tries again and again."""
    group, items = request.path.split("/")[-2], []
    for pool, (code, message) in rest.world.launches.items():
        if f"-{pool}-" in group:
            error = {"code": code, "message": message}
            items.append({"timestamp": timestamp(rest.world.clock.date()), "error": error})
    return {"items": items}


def _users_of(rest: Rest, path: str) -> Iterator[str]:
    *_, collection, name = path.split("/")
    field = collection.removesuffix("s")
    for thing in rest.store.every("compute"):
        if f"/{thing.body.get(field, '')}".endswith(f"/{collection}/{name}"):
            yield thing.path
    for key, cluster in rest.world.clusters.items():
        if getattr(cluster, field).rpartition("/")[2] == name:
            yield "/".join(key)


def _quotas(rest: Rest, where: str | None) -> list[dict]:
    quotas = rest.world.the_project.quotas.items()
    own_quotas = {metric: limit for (place, metric), limit in quotas if place == where}
    limits = {**(GLOBAL if where is None else REGIONAL), **own_quotas}
    return [{"metric": key, "limit": limit, "usage": 0.0} for key, limit in limits.items()]


SPECIALS = {
    "compute.regions.get": region,
    "compute.projects.get": project,
    "compute.instanceGroupManagers.listErrors": launch_errors,
    "compute.networks.delete": delete,
    "compute.subnetworks.delete": delete,
    "compute.subnetworks.insert": insert_in_network,
    "compute.routers.insert": insert_in_network,
    "compute.firewalls.insert": insert_in_network,
}
