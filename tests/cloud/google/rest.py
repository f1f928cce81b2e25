"""The other APIs: any method of any discovery document, over one store of resources.

What get, list, create, delete and patch do is the same for all and is here; what one service does besides is
in `specials`. A method that is neither answers 501.
"""

import base64
import copy
import fnmatch
import itertools
import re
import uuid
from collections.abc import Callable
from dataclasses import dataclass, replace
from urllib.parse import unquote

from . import discovery, labels
from .api_errors import ApiError, OperationFailure
from .container import Container
from .filters import fits
from .operations import timestamp
from .store import Store, Thing
from .world import World

PAGE = 500
_LISTS = ("list", "aggregatedList", "search")


@dataclass(frozen=True)
class Request:
    """A request that fits its method.

    Attributes:
        path: From the version on, without it: ``projects/p/zones``.
        names: What stands in the path's braces.
        query: Its parameters, the first of each.
        lists: The same, all of each.
        by: Who asks.
    """

    service: str
    route: discovery.Route
    path: str
    names: dict[str, str]
    query: dict[str, str]
    lists: dict[str, list[str]]
    body: dict
    by: str

    @property
    def verb(self) -> str:
        """The method's last word: ``list``."""
        return self.route.id.rsplit(".", 1)[1]

    def without(self, key: str) -> "Request":
        """Return it without a parameter."""
        return replace(self, query={name: value for name, value in self.query.items() if name != key})

    @property
    def project(self) -> str:
        """The project it speaks of; empty if it speaks of none."""
        words = self.path.split("/")
        return words[words.index("projects") + 1].partition(":")[0] if "projects" in words[:-1] else ""


class Rest:
    """Every HTTP service.

    Args:
        world: What all services share.
        store: What there is.
        container: The clusters, which use quotas of Compute Engine.
        specials: Methods of their own, by patterns of ids: called with this and the request.
        names: How a method is called in the log.
    """

    def __init__(
        self, world: World, store: Store, container: Container, specials: dict, names=lambda route: route.id
    ) -> None:
        self.world = world
        self.store = store
        self.container = container
        self._specials = specials
        self._names = names
        self._ids = itertools.count(1000)

    def handle(self, service: str, verb: str, path: str, query: dict, body, *, by: str = "user") -> dict:
        """Answer a request.

        Raises:
            ApiError: The answer is no.
            LineCut: There is none.
        """
        path = "/".join(unquote(each).replace("%", "%25").replace("/", "%2F") for each in path.split("/"))
        found = discovery.find(service, verb, path)
        if found is None:
            raise ApiError("NOT_FOUND", f"The requested URL /{path} was not found on this server.")
        route, names = found
        plain = path.split("/", 1)[1]
        flat = {key: values[0] for key, values in query.items()}
        request = Request(service, route, plain, names, flat, query, body or {}, by)

        def act() -> dict:
            discovery.check_query(route, query, names)
            if route.request:
                route.api.check(route.request, request.body)
            labels.check(request.body.get("labels") or {}, "resource.labels")
            return copy.deepcopy(self._act(request))

        return self.world.serve(self._names(route), plain, act, title=route.api.title, by=by)

    def begin(
        self,
        request: Request,
        target: str,
        *,
        kind: str = "",
        failure: OperationFailure | None = None,
        done: Callable[[], dict] = dict,
        failed: Callable[[OperationFailure], None] = lambda failure: None,
    ) -> dict:
        """Begin an operation for a request, at its zone, location or project; see `Store.begin`."""
        service = request.service
        delays = self.world.delays
        seconds = delays.get(f"{service}.{kind}", delays.get(service, 0.0))
        words = request.path.split("/")
        if service == "compute":
            place = "/".join(words[:4] if words[2] in ("zones", "regions") else words[:3])
        else:
            place = "/".join(words[:4]) if words[2:3] == ["locations"] else ""
        return self.store.begin(
            service,
            place,
            seconds=seconds,
            target=target,
            verb=request.verb,
            failure=failure or self.world.operation_failure(request.route.id),
            done=done,
            failed=failed,
        )

    def listed(self, request: Request, things: list[dict], field: str) -> dict:
        """Return a page of a list, filtered."""
        size = int(request.query.get("pageSize") or request.query.get("maxResults") or PAGE)
        start = int(base64.b64decode(request.query.get("pageToken", "")).decode() or 0)
        things = [each for each in things if fits(each, request.query.get("filter", ""))]
        page = {field: things[start : start + size]} if things[start:] else {}
        if len(things) > start + size:
            page["nextPageToken"] = base64.b64encode(str(start + size).encode()).decode()
        return page

    def _act(self, request: Request) -> dict:
        for pattern, special in self._specials.items():
            if fnmatch.fnmatchcase(request.route.id, pattern):
                return special(self, request)
        method = {"insert": "create", "update": "patch"}.get(request.verb, request.verb)
        plain = getattr(self, f"_{method}", None)
        if plain is None:
            raise ApiError("UNIMPLEMENTED", f"The fake has no {request.route.id}.")
        return plain(request)

    def _get(self, request: Request) -> dict:
        return self.store.get(request.service, request.path).body

    def _list(self, request: Request) -> dict:
        found = [each.body for each in self.store.children(request.service, request.path)]
        answer = self.listed(request, found, _list_field(request.route))
        if request.service in ("compute", "storage"):
            answer = {"kind": f"{request.service}#{request.path.rsplit('/', 1)[-1][:-1]}List", **answer}
        return answer

    def _aggregatedList(self, request: Request) -> dict:
        project, kind = request.path.split("/")[1], request.path.rsplit("/", 1)[1]
        scopes: dict[str, dict] = {}
        for scope in ("zones", "regions"):
            for each in self.store.children("compute", f"projects/{project}/{scope}/-/{kind}"):
                if fits(each.body, request.query.get("filter", "")):
                    scopes.setdefault("/".join(each.path.split("/")[2:4]), {kind: []})[kind].append(each.body)
        for each in self.store.children("compute", f"projects/{project}/global/{kind}"):
            if fits(each.body, request.query.get("filter", "")):
                scopes.setdefault("global", {kind: []})[kind].append(each.body)
        return {"kind": f"compute#{kind[:-1]}AggregatedList", "items": scopes}

    def _create(self, request: Request) -> dict:
        name = next((value for key, value in request.query.items() if key.endswith("Id")), "")
        name = name or str(request.body.get("name", "")).rsplit("/", 1)[-1]
        if not name:
            raise ApiError("INVALID_ARGUMENT", "Invalid value for field 'resource.name': ''.")
        return self.create(request, name, request.body)

    def create(self, request: Request, name: str, body: dict) -> dict:
        """Make a thing in the request's collection: at once, or by an operation that it returns."""
        path = f"{request.path}/{name}"
        if self.store.has(request.service, path):
            if request.service == "compute":
                raise ApiError("ALREADY_EXISTS", f"The resource '{path}' already exists")
            raise ApiError("ALREADY_EXISTS", f"Resource '{path}' already exists")
        thing = self.store.put(
            request.service, path, {**copy.deepcopy(body), **self._furniture(request, path)}
        )
        if request.route.response != "Operation":
            return thing.body
        state = thing.body.get("state")

        def done() -> dict:
            if state == "CREATING":
                thing.body["state"] = "READY"
            return thing.body

        def failed(failure) -> None:
            if state == "CREATING":
                thing.body.update(state="ERROR", statusMessage=failure.message)
            else:
                self.store.drop(request.service, path)

        return self.begin(request, path, kind="create", done=done, failed=failed)

    def _delete(self, request: Request) -> dict:
        thing = self.store.get(request.service, request.path)
        self._check_etag(request, thing)
        if request.route.response != "Operation":
            self.store.drop(request.service, request.path)
            return {}
        if thing.body.get("state") in ("CREATING", "DELETING"):
            raise ApiError("FAILED_PRECONDITION", f"Resource '{request.path}' is {thing.body['state']}.")
        if "state" in thing.body:
            thing.body["state"] = "DELETING"

        def done() -> dict:
            self.store.drop(request.service, request.path)
            return {}

        return self.begin(request, request.path, kind="delete", done=done)

    def _patch(self, request: Request) -> dict:
        thing = self.store.get(request.service, request.path)
        self._check_etag(request, thing)
        mask = [each.split(".")[0] for each in request.query.get("updateMask", "").split(",") if each]
        for key, value in request.body.items():
            if not mask or _camel(key) in map(_camel, mask):
                thing.body[key] = value
        if "etag" in thing.body:
            thing.body["etag"] = uuid.uuid4().hex[:10]
        if request.route.response != "Operation":
            return thing.body
        return self.begin(request, request.path, done=lambda: thing.body)

    def _setLabels(self, request: Request) -> dict:
        path = request.path.rsplit("/", 1)[0]
        thing = self.store.get(request.service, path)
        if request.body.get("labelFingerprint") != thing.body.get("labelFingerprint"):
            raise ApiError("FAILED_PRECONDITION", "Labels fingerprint either invalid or labels have changed")
        thing.body.update(labels=request.body.get("labels", {}), labelFingerprint=_fingerprint())
        return self.begin(request, path)

    def _getIamPolicy(self, request: Request) -> dict:
        return self._policed(request).policy

    def _setIamPolicy(self, request: Request) -> dict:
        thing, given = self._policed(request), request.body.get("policy", request.body)
        if given.get("etag") not in (None, thing.policy["etag"]):
            raise ApiError("ABORTED", "There were concurrent policy changes. Please retry.")
        thing.policy = {**given, "etag": base64.b64encode(uuid.uuid4().bytes[:8]).decode()}
        return thing.policy

    def _testIamPermissions(self, request: Request) -> dict:
        denied = self.world.project(request.project).denied if request.project else set()
        asked = request.body.get("permissions", [])
        allowed = [each for each in asked if each not in denied]
        return {"permissions": allowed} if allowed else {}

    def _policed(self, request: Request) -> Thing:
        return self.store.get(request.service, re.sub(r"(:|/)(get|set)IamPolicy$|/iam$", "", request.path))

    def _check_etag(self, request: Request, thing: Thing) -> None:
        given = request.body.get("etag") or request.query.get("etag")
        if given and given != thing.body.get("etag"):
            raise ApiError("ABORTED", f"The etag of '{request.path}' has changed; read it again.")

    def _furniture(self, request: Request, path: str) -> dict:
        """Return what the service itself writes on a new thing."""
        now = timestamp(self.world.clock.now)
        words = path.split("/")
        if request.service == "compute":
            link = "https://www.googleapis.com/compute/v1/"
            kind = {"addresses": "address"}.get(words[-2], words[-2].removesuffix("s"))
            where = {} if words[2] == "global" else {words[2][:-1]: link + "/".join(words[:4])}
            return {
                "kind": f"compute#{kind}",
                "id": str(next(self._ids)),
                "creationTimestamp": now,
                "selfLink": link + path,
                "labelFingerprint": _fingerprint(),
                **where,
            }
        made = {"name": path, "createTime": now, "updateTime": now}
        if request.service == "iam":
            made = {"name": path}
        if request.service == "file":
            made["state"] = "CREATING"
        if "etag" in request.route.api.schemas.get(request.route.request, {}).get("properties", {}):
            made["etag"] = uuid.uuid4().hex[:10]
        return made


def _fingerprint() -> str:
    return base64.urlsafe_b64encode(uuid.uuid4().bytes[:8]).decode()


def _camel(name: str) -> str:
    return name.replace("_", "").lower()


def _list_field(route: discovery.Route) -> str:
    """Return the field of a list's answer that has the things."""
    fields = route.api.schemas[route.response]["properties"]
    return next(
        key for key, each in fields.items() if each.get("type") == "array" and "$ref" in each["items"]
    )
