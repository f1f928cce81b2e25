"""Every HTTP service: the methods of its discovery document, over one store of resources.

get, list, create, delete, patch and policies are the same for all of Google's APIs and are here; what one
service does besides is in its own module, by method. A method that is neither answers 501.
"""

import base64
import copy
import itertools
import re
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime
from urllib.parse import unquote

from google.rpc import code_pb2

from . import discovery
from .api_errors import ApiError, OperationFailure
from .store import Store, Thing, check_labels
from .world import World

_FILTER = re.compile(r'(\w+)\s*[:=]\s*"?([^"\s]+)"?')
LINK = "https://www.googleapis.com/compute/v1/"


@dataclass(frozen=True)
class Request:
    """A request: its path without the version, and all values of each parameter."""

    service: str
    route: discovery.Route
    path: str
    query: Mapping[str, list[str]]
    body: dict

    @property
    def verb(self) -> str:
        """The method's last word: ``list``."""
        return self.route.id.rsplit(".", 1)[1]

    @property
    def begins(self) -> bool:
        """Whether it begins an operation."""
        return self.route.response == "Operation"

    def first(self, key: str, default: str = "") -> str:
        """One parameter's first value."""
        return self.query.get(key, [default])[0]

    @property
    def project(self) -> str:
        """The project that it names; empty if none."""
        words = self.path.split("/")
        return words[words.index("projects") + 1].partition(":")[0] if "projects" in words[:-1] else ""


class Rest:
    """The HTTP services; ``specials`` are methods of their own, by id, ``names`` their names in the log."""

    def __init__(self, world: World, store: Store) -> None:
        self.world, self.store = world, store
        self.specials: dict[str, Callable[[Rest, Request], dict | bytes]] = {}
        self.names: dict[str, str] = {}
        self._ids = itertools.count(1000)

    def handle(self, service: str, verb: str, path: str, query: Mapping, body, *, by: str = "user"):
        """Answer a request; see `World.serve`."""
        path = "/".join(unquote(word).replace("%", "%25").replace("/", "%2F") for word in path.split("/"))
        route, plain = discovery.find(service, verb, path), path.split("/", 1)[1]
        query = {key: value for key, value in query.items() if key != "$alt"}  # every API has it
        request = Request(service, route, plain, query, body or {})

        def act():
            discovery.check_query(route, query)
            if route.request:
                route.api.check(route.request, request.body)
            check_labels(request.body.get("labels") or {}, "resource.labels")
            verb = {"insert": "create", "update": "patch"}.get(request.verb, request.verb)
            act = self.specials.get(route.id) or getattr(Rest, f"_{verb}", None)
            if act is None:
                raise ApiError("UNIMPLEMENTED", f"The fake has no {route.id}.")
            answer = copy.deepcopy(act(self, request))
            if route.response and isinstance(answer, dict):
                route.api.check(route.response, answer, "INTERNAL")  # the fake is judged, too
            return answer

        name = self.names.get(route.id, route.id)
        return self.world.serve(name, plain, act, title=route.api.title, by=by)

    def begin(
        self,
        request: Request,
        target: str,
        *,
        failure: OperationFailure | None = None,
        done: Callable[[], dict] = dict,
        failed: Callable[[OperationFailure], None] = lambda failure: None,
    ) -> dict:
        """Begin an operation on a target, at the request's zone, location or project.

        At a good end ``done`` gives its response; ``failed`` is called at a bad one.
        """
        service, clock, delays = request.service, self.world.clock, self.world.delays
        words = request.path.split("/")
        name = f"operation-{int(clock.date().timestamp() * 1000)}-{uuid.uuid4().hex[:8]}"
        if service == "compute":
            place = "/".join(words[:3] if words[2] == "global" else words[:4])
            where = {} if words[2] == "global" else {words[2][:-1]: LINK + place}
            where["selfLink"] = f"{LINK}{place}/operations/{name}"
            body = {"name": name, "targetLink": LINK + target, "status": "RUNNING", **where}
        else:
            place = "/".join(words[:4]) if words[2:3] == ["locations"] else ""
            name = f"{place}/operations/{name}".lstrip("/")
            body = {"name": name, "metadata": {"target": target, "verb": request.verb}, "done": False}
        self.store.put(service, f"{place}/operations/{name.rpartition('/')[2]}".lstrip("/"), body, given=True)
        failure = failure or self.world.operation_failure(request.route.id)

        def finish() -> None:
            body.update({"status": "DONE"} if service == "compute" else {"done": True})
            if failure is None:
                answer = done()
                body.update({} if service == "compute" else {"response": answer})
                return
            failed(failure)
            error = {"code": code_pb2.Code.Value(failure.code), "message": failure.message}
            old = {"errors": [error | {"code": failure.condition}]}
            body["error"] = old if service == "compute" else error

        clock.after(delays.get(service, 0.0), finish)
        return copy.deepcopy(body)

    def listed(self, request: Request, things: list[dict], field: str) -> dict:
        """One page of a list."""
        if expression := request.first("filter"):
            if (term := _FILTER.fullmatch(expression)) is None:
                raise ApiError("UNIMPLEMENTED", f"The fake does not know the filter {expression}.")
            things = [item for item in things if term[2] in (item.get(term[1]), *item.get(term[1], ()))]
        size = int(request.first("pageSize") or request.first("maxResults") or 500)
        start = int(request.first("pageToken") or 0)
        page: dict = {field: things[start : start + size]} if things[start:] else {}
        if len(things) > start + size:
            page["nextPageToken"] = str(start + size)
        return page

    def create(self, request: Request, name: str, body: dict) -> dict:
        """Create a resource in the request's collection: at once, or by an operation."""
        path = f"{request.path}/{name}"
        if self.store.exists(request.service, path):
            raise ApiError("ALREADY_EXISTS", f"The resource '{path}' already exists")
        thing = self.store.put(request.service, path, {**copy.deepcopy(body), **self._own(request, path)})
        if not request.begins:
            return thing.body
        failed = lambda failure: self.store.drop(request.service, path)  # noqa: E731
        return self.begin(request, path, done=lambda: thing.body, failed=failed)

    def _get(self, request: Request) -> dict:
        return self.store.get(request.service, request.path).body

    def _list(self, request: Request) -> dict:
        items = [child.body for child in self.store.children(request.service, request.path)]
        return self.listed(request, items, _list_field(request.route))

    def _aggregatedList(self, request: Request) -> dict:
        project, kind = request.path.split("/")[1], request.path.rsplit("/", 1)[1]
        scopes: dict[str, dict] = {}
        for scope in ("zones/-", "regions/-", "global"):
            for child in self.store.children("compute", f"projects/{project}/{scope}/{kind}"):
                where = "/".join(child.path.split("/")[2:-2])
                scopes.setdefault(where, {kind: []})[kind].append(child.body)
        self.listed(request, [], "items")
        return {"items": scopes}

    def _create(self, request: Request) -> dict:
        name = next((values[0] for key, values in request.query.items() if key.endswith("Id")), "")
        name = name or str(request.body.get("name", "")).rsplit("/", 1)[-1]
        if not name:
            raise ApiError("INVALID_ARGUMENT", "Invalid value for field 'resource.name': ''.")
        return self.create(request, name, request.body)

    def _delete(self, request: Request) -> dict:
        self.store.get(request.service, request.path)
        drop = lambda: self.store.drop(request.service, request.path)  # noqa: E731
        return self.begin(request, request.path, done=drop) if request.begins else drop()

    def _patch(self, request: Request) -> dict:
        thing = self.store.get(request.service, request.path)
        mask = {_plain(word.split(".")[0]) for word in request.first("updateMask").split(",") if word}
        changes = {key: value for key, value in request.body.items() if not mask or _plain(key) in mask}
        thing.body.update(changes)
        return self.begin(request, request.path, done=lambda: thing.body) if request.begins else thing.body

    def _getIamPolicy(self, request: Request) -> dict:
        return self._policed(request).policy

    def _setIamPolicy(self, request: Request) -> dict:
        thing, policy = self._policed(request), request.body.get("policy", request.body)
        if policy.get("etag") not in (None, thing.policy["etag"]):
            raise ApiError("ABORTED", "There were concurrent policy changes. Please retry.")
        etag = base64.b64encode(uuid.uuid4().bytes[:8]).decode()
        thing.policies.append((self.world.clock.date(), {**policy, "etag": etag}))
        return thing.policy

    def _testIamPermissions(self, request: Request) -> dict:
        denied = self.world.project(request.project).denied if request.project else set()
        allowed = [name for name in request.body.get("permissions", []) if name not in denied]
        return {"permissions": allowed} if allowed else {}

    def _policed(self, request: Request) -> Thing:
        return self.store.get(request.service, re.sub(r"(:|/)(get|set)IamPolicy$|/iam$", "", request.path))

    def _own(self, request: Request, path: str) -> dict:
        """What the service itself writes on a new resource."""
        if request.service != "compute":
            return {"name": path}
        words = path.split("/")
        where = {} if words[2] == "global" else {words[2][:-1]: LINK + "/".join(words[:4])}
        return {"id": str(next(self._ids)), "selfLink": LINK + path, **where}


def timestamp(when: datetime) -> str:
    """Format a moment as RFC 3339, in UTC."""
    return when.isoformat(timespec="microseconds").replace("+00:00", "Z")


def _plain(name: str) -> str:
    return name.replace("_", "").lower()


def _list_field(route: discovery.Route) -> str:
    """The field of a list's answer with the resources."""
    fields = route.api.schemas[route.response]["properties"]
    return next(key for key, field in fields.items() if "$ref" in field.get("items", {}))
