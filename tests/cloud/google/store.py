"""The resources of all HTTP services, by service and path, in the order of their creation."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime

from ..simulated_clock import SimulatedClock
from .api_errors import ApiError

_KEY, _VALUE = re.compile(r"[a-z][-_a-z0-9]{0,62}"), re.compile(r"[-_a-z0-9]{0,63}")


@dataclass
class Thing:
    """A resource: its path without the version, and its body as the API shows it, from ``seen_at`` on.

    What is ``given`` is no one's: a new project has it, or it is a record. The last of the policies counts.
    """

    service: str
    path: str
    body: dict
    given: bool = False
    seen_at: datetime | None = None
    policies: list[tuple[datetime | None, dict]] = field(
        default_factory=lambda: [(None, {"version": 1, "etag": "BwAAAAAAAAA="})]
    )

    @property
    def policy(self) -> dict:
        """Its IAM policy."""
        return self.policies[-1][1]

    def policy_at(self, when: datetime) -> dict:
        """The IAM policy at a moment: bindings take a while to count."""
        return [policy for since, policy in self.policies if since is None or since <= when][-1]


class Store:
    """What exists."""

    def __init__(self, clock: SimulatedClock) -> None:
        self._clock = clock
        self._things: dict[tuple[str, str], Thing] = {}

    def put(self, service: str, path: str, body: dict, *, given: bool = False) -> Thing:
        """Put a resource there, in place of one that may be there."""
        thing = self._things[(service, path)] = Thing(service, path, body, given)
        return thing

    def get(self, service: str, path: str) -> Thing:
        """Find a resource that the API shows."""
        if not self.has(service, path):
            raise ApiError("NOT_FOUND", f"The resource '{path}' was not found")
        return self._things[(service, path)]

    def has(self, service: str, path: str) -> bool:
        """Check whether the API shows such a resource."""
        return self.exists(service, path) and self._seen(self._things[(service, path)])

    def exists(self, service: str, path: str) -> bool:
        """Check whether there is such a resource, shown or not."""
        return (service, path) in self._things

    def drop(self, service: str, path: str) -> dict:
        """Forget a resource, with all in it; returns an empty answer."""
        for of, path_of_thing in list(self._things):
            if of == service and f"{path_of_thing}/".startswith(f"{path}/"):
                del self._things[(of, path_of_thing)]
        return {}

    def children(self, service: str, collection: str) -> list[Thing]:
        """List the resources of a collection; ``-`` in its path stands for every name."""
        words = collection.split("/")
        return [
            thing
            for thing in self.every(service)
            if len(parts := thing.path.split("/")) == len(words) + 1
            and all(word in ("-", word_of_path) for word, word_of_path in zip(words, parts, strict=False))
            and self._seen(thing)
        ]

    def every(self, service: str = "") -> list[Thing]:
        """List all resources, or those of a service."""
        return [item for item in self._things.values() if service in ("", item.service)]

    def left(self) -> list[str]:
        """List what somebody created, with the lines of the project's policy."""
        leftovers = [f"{item.service}.googleapis.com/{item.path}" for item in self.every() if not item.given]
        for thing in self.every("cloudresourcemanager"):
            for binding in thing.policy.get("bindings", ()):
                leftovers += [
                    f"{thing.path} policy: {binding['role']} {member}" for member in binding["members"]
                ]
        return leftovers

    def _seen(self, thing: Thing) -> bool:
        return thing.seen_at is None or thing.seen_at <= self._clock.date()


def check_labels(labels: Mapping[str, str], field: str) -> None:
    """Refuse what is no label: https://cloud.google.com/compute/docs/labeling-resources#requirements."""
    wrong = [label for label in labels if not _KEY.fullmatch(label)]
    wrong += [label for label in labels.values() if not _VALUE.fullmatch(label)]
    if wrong or len(labels) > 64:
        message = f"{wrong[0]!r} violates format constraints." if wrong else "There are more than 64 labels."
        raise ApiError("INVALID_ARGUMENT", f"Invalid value for field '{field}': {message}")
