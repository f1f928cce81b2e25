"""The container API over HTTP, as schedules call it: each method is the RPC of the same name."""

import json

from google.cloud.container_v1 import types
from google.protobuf import empty_pb2, json_format

from .api_errors import ApiError
from .discovery import Route
from .rest import Request, Rest

_COLLECTIONS = {"clusters": "Cluster", "nodePools": "NodePool", "operations": "Operation"}
_OTHERS = {
    "setResourceLabels": "SetLabels",
    "setAddons": "SetAddonsConfig",
    "getServerConfig": "GetServerConfig",
}


def rpc_of(route: Route) -> str:
    """Return the RPC of a method.

    Example:
        ``container.projects.locations.clusters.nodePools.delete`` is ``DeleteNodePool``.
    """
    *_, collection, verb = route.id.split(".")
    kind = _COLLECTIONS.get(collection, "")
    if verb in _OTHERS:
        return _OTHERS[verb]
    if verb in ("get", "list", "create", "delete", "update", "cancel"):
        return f"{verb.capitalize()}{kind}{'s' if verb == 'list' else ''}"
    return f"{verb[:3].capitalize()}{kind}{verb[3:]}"


def call(rest: Rest, request: Request) -> dict:
    """Make the RPC of a request and return its answer."""
    name = rpc_of(request.route)
    method = getattr(rest.container, name, None)
    if method is None:
        raise ApiError("UNIMPLEMENTED", f"The fake has no {name}.")
    kind = getattr(types, f"{name}Request")
    field = "parent" if name.startswith(("Create", "List")) else "name"
    place = request.path.partition(":")[0]
    if field == "parent" or name == "GetServerConfig":
        place = place.rsplit("/", 1)[0]
    if field not in kind.meta.fields:
        raise ApiError("UNIMPLEMENTED", f"The fake has no {request.route.id}.")
    message = kind.from_json(json.dumps({**request.body, field: place}))
    answer = method(message)
    if isinstance(answer, empty_pb2.Empty):
        return {}
    return json_format.MessageToDict(type(answer).pb(answer))


SPECIALS = {"container.*": call}
