"""The things of all HTTP services: by their path, in the order they were made; and their operations.

Every Google API has collections of resources with the same few methods, so one store serves all. What a
service does besides is in `specials`.
"""

import copy
import uuid
from collections.abc import Callable
from dataclasses import dataclass, field

from google.rpc import code_pb2

from .api_errors import ApiError, OperationFailure
from .operations import timestamp
from .world import World


@dataclass
class Thing:
    """A resource.

    Attributes:
        service: Of which API.
        path: Where it is, from the version on: ``projects/p/zones/z/disks/d``.
        body: As the API shows it.
        given: Whether every project has it from the beginning.
        going: Whether it is being deleted.
    """

    service: str
    path: str
    body: dict
    given: bool = False
    going: bool = False
    policy: dict = field(default_factory=lambda: {"version": 1, "etag": "BwAAAAAAAAA="})


class Store:
    """What there is."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._things: dict[tuple[str, str], Thing] = {}

    def put(self, service: str, path: str, body: dict, *, given: bool = False) -> Thing:
        """Put a thing there, in place of one that may be there."""
        thing = self._things[(service, path)] = Thing(service, path, body, given)
        return thing

    def get(self, service: str, path: str) -> Thing:
        """Return a thing.

        Raises:
            ApiError: There is none.
        """
        if (service, path) not in self._things:
            raise _not_found(service, path)
        return self._things[(service, path)]

    def has(self, service: str, path: str) -> bool:
        """Return whether there is such a thing."""
        return (service, path) in self._things

    def drop(self, service: str, path: str) -> None:
        """Forget a thing, with all that is in it."""
        for key in [key for key in self._things if key[0] == service]:
            if key[1] == path or key[1].startswith(f"{path}/"):
                del self._things[key]

    def children(self, service: str, collection: str) -> list[Thing]:
        """Return the things of a collection; ``-`` in its path stands for every name."""
        words = collection.split("/")
        return [
            thing
            for (of, path), thing in self._things.items()
            if of == service
            and len(found := path.split("/")) == len(words) + 1
            and all(word in ("-", other) for word, other in zip(words, found, strict=False))
        ]

    def every(self, service: str | None = None) -> list[Thing]:
        """Return all things, or those of a service."""
        return [each for each in self._things.values() if service in (None, each.service)]

    def left(self) -> list[str]:
        """Return the paths of the things that somebody made; operations are none."""
        return [
            f"{each.service}.googleapis.com/{each.path}"
            for each in self._things.values()
            if not each.given and "/operations/" not in f"/{each.path}"
        ]

    # Operations

    def begin(
        self,
        service: str,
        place: str,
        *,
        seconds: float,
        target: str,
        verb: str,
        failure: OperationFailure | None = None,
        done: Callable[[], dict] = dict,
        failed: Callable[[OperationFailure], None] = lambda failure: None,
    ) -> dict:
        """Begin an operation at a place (``projects/p/locations/l``), and return it as it is shown.

        Args:
            seconds: Until its end; 0 ends it at once.
            failure: How it ends, if it is to fail.
            done: Called at a good end; returns the operation's response.
            failed: Called at a bad one.
        """
        clock = self._world.clock
        now = timestamp(clock.now)
        name = f"operation-{int(clock.now.timestamp() * 1000)}-{uuid.uuid4().hex[:8]}"
        path = f"{place}/operations/{name}" if place else f"operations/{name}"
        if service == "compute":
            link = "https://www.googleapis.com/compute/v1/"
            body = {
                "kind": "compute#operation",
                "id": str(uuid.uuid4().int % 10**18),
                "name": name,
                "operationType": verb,
                "targetLink": link + target,
                "selfLink": link + path,
                "status": "RUNNING",
                "progress": 0,
                "insertTime": now,
                "startTime": now,
                **_zone(path),
            }
        else:
            metadata = {"createTime": now, "target": target, "verb": verb, "apiVersion": "v1"}
            body = {"name": path, "metadata": metadata, "done": False}
        self.put(service, path, body)

        def finish() -> None:
            if service == "compute":
                body.update(status="DONE", progress=100, endTime=timestamp(clock.now))
            else:
                body["done"] = True
                body["metadata"]["endTime"] = timestamp(clock.now)
            if failure is None:
                answer = done()
                if service != "compute":
                    body["response"] = answer
                return
            failed(failure)
            if service == "compute":
                number, _ = ApiError(failure.code, failure.message).json()
                error = {"code": failure.condition, "message": failure.message}
                body.update(error={"errors": [error]}, httpErrorStatusCode=number)
            else:
                body["error"] = {"code": code_pb2.Code.Value(failure.code), "message": failure.message}

        if seconds:
            clock.after(seconds, finish)
        else:
            finish()
        return copy.deepcopy(body)


def _zone(path: str) -> dict[str, str]:
    words = path.split("/")
    link = "https://www.googleapis.com/compute/v1/" + "/".join(words[:4])
    return {words[2][:-1]: link} if words[2] in ("zones", "regions") else {}


def _not_found(service: str, path: str) -> ApiError:
    if service == "compute":
        return ApiError("NOT_FOUND", f"The resource '{path}' was not found")
    if service == "storage":
        return ApiError("NOT_FOUND", "The specified bucket does not exist.")
    return ApiError("NOT_FOUND", f"Resource '{path}' was not found")
