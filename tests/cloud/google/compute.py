"""What Compute Engine does besides keeping things: quotas of regions, the use of networks, waiting."""

from . import quotas
from .api_errors import ApiError, OperationFailure
from .rest import Request, Rest


def region(rest: Rest, request: Request) -> dict:
    """Return a region with its quotas."""
    return _with_quotas(rest, request, rest.store.get("compute", request.path).body)


def regions(rest: Rest, request: Request) -> dict:
    """Return the regions with their quotas."""
    found = [_with_quotas(rest, request, each.body) for each in rest.store.children("compute", request.path)]
    return {"kind": "compute#regionList", **rest.listed(request, found, "items")}


def project(rest: Rest, request: Request) -> dict:
    """Return a project with its quotas."""
    found = rest.world.project(request.names["project"])
    return {
        "kind": "compute#project",
        "id": str(found.number),
        "name": found.id,
        "defaultServiceAccount": f"{found.number}-compute@developer.gserviceaccount.com",
        "quotas": quota_list(rest, found.id, None),
    }


def wait(rest: Rest, request: Request) -> dict:
    """Return an operation as it is; the real API waits for up to two minutes."""
    return rest.store.get("compute", request.path.removesuffix("/wait")).body


def delete(rest: Rest, request: Request) -> dict:
    """Delete a network or a part of it; the operation fails if something uses it."""
    thing = rest.store.get("compute", request.path)
    word = request.path.split("/")[-2]

    def users() -> list[str]:
        return list(users_of(rest, request.path))

    if used := users():
        message = f"The {word[:-1]} resource '{thing.path}' is already being used by '{used[0]}'"
        failure = OperationFailure("FAILED_PRECONDITION", message, "RESOURCE_IN_USE_BY_ANOTHER_RESOURCE")
        return rest.begin(request, request.path, kind="delete", failure=failure)

    def done() -> dict:
        rest.store.drop("compute", request.path)
        return {}

    return rest.begin(request, request.path, kind="delete", done=done)


def insert_in_network(rest: Rest, request: Request) -> dict:
    """Make a thing of a network, which has to be there."""
    network = request.body.get("network", f"projects/{request.project}/global/networks/default")
    path = f"projects/{request.project}/global/networks/{network.rsplit('/', 1)[-1]}"
    if not rest.store.has("compute", path):
        raise ApiError("NOT_FOUND", f"The resource '{path}' was not found")
    return rest._create(request)


def users_of(rest: Rest, path: str):
    """Yield the paths of what uses a network, or a part of one."""
    field = {"networks": "network", "subnetworks": "subnetwork"}.get(path.split("/")[-2])
    if field is None:
        return
    region_ = path.split("/")[3]
    for thing in rest.store.every("compute"):
        if f"/{thing.body.get(field, '')}".endswith(
            "/" + "/".join(path.split("/")[-4 if field == "subnetwork" else -2 :])
        ):
            yield thing.path
    for (_, location, _), cluster in rest.container.clusters.items():
        here = field == "network" or quotas.region_of(location) == region_
        if here and getattr(cluster, field).rsplit("/", 1)[-1] == path.rsplit("/", 1)[-1]:
            yield f"{cluster.self_link.partition('/v1/')[2]}"


def quota_list(rest: Rest, name: str, where: str | None) -> list[dict]:
    """Return the quotas of a project in a region, or of all together, with what is used."""
    found = rest.world.project(name)
    own = {metric for place, metric in found.quotas if place == where}
    used = quotas.usage(rest.container, found.id, where)
    defaults = quotas.GLOBAL if where is None else quotas.REGIONAL
    return [
        {"metric": each, "limit": quotas.limit(found, where, each), "usage": used.get(each, 0.0)}
        for each in {**defaults, **dict.fromkeys(own)}
    ]


def _with_quotas(rest: Rest, request: Request, body: dict) -> dict:
    return body | {"quotas": quota_list(rest, request.project, body["name"])}


SPECIALS = {
    "compute.regions.get": region,
    "compute.regions.list": regions,
    "compute.projects.get": project,
    "compute.*Operations.wait": wait,
    "compute.networks.delete": delete,
    "compute.subnetworks.delete": delete,
    "compute.subnetworks.insert": insert_in_network,
    "compute.firewalls.insert": insert_in_network,
}
