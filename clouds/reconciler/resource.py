"""One thing at a cloud: how it is found by its tags, made, and unmade.

Each resource is small enough that making it is one request, or several of which each may be the last one
before the process dies: `look` then says ``PARTIAL``, and `make` goes on from there. Which comes first, what
goes on at the same time and how long it is waited for is in `steps`. Nothing here knows a cloud.
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from enum import StrEnum

from clouds.tags import Tags


class State(StrEnum):
    """How a resource is, in the words that all clouds share."""

    ABSENT = "absent"
    PARTIAL = "partial"  # some of what belongs to it is not there: `make` goes on
    PENDING = "pending"  # the cloud is at it
    READY = "ready"
    FAILED = "failed"  # the cloud gave up; `words` say why. It has to be unmade before it can be made again
    GOING = "going"  # the cloud deletes it


@dataclass(frozen=True)
class Seen:
    """What a look at a resource found.

    Attributes:
        state: How it is.
        id: The cloud's own name of it: an ARN, an id, a self link; empty if it is absent.
        words: What the cloud says of it: why it failed, what it waits for.
    """

    state: State
    id: str = ""
    words: str = ""


ABSENT = Seen(State.ABSENT)


class Resource(ABC):
    """One thing at a cloud that belongs to one cluster.

    Contract: `look` only reads, and finds what is there by the kit's tags (or, where a service has no tags,
    by a name that holds the cluster's, with a check of who owns it). `make` is idempotent: somebody else may
    make the same thing at the same time, and a process may have died in the middle of it; it returns as soon
    as the cloud has taken the request. `unmake` is idempotent as well, works from every state, and never
    touches what is not the kit's. All three raise a `KitError` that says what to do, and let nothing of the
    client library through.

    Attributes:
        name: Shown to people, unique in a cluster: ``cluster``, ``node group train`` …
        kind: The cloud's word for it: ``AWS::EC2::VPC``, ``container.googleapis.com/NodePool``.
        needs: The names of those that must be ready before it is made; they are unmade
            after it.
        expected: Seconds until it is ready, as a rule.
        expected_gone: Seconds until it is gone, as a rule.
        poll: Seconds between two looks while the cloud is at it; at least 15 where it takes minutes.
        again: Whether making it once more may help when it has failed: capacity comes and goes, say.
        tags: What is written on it, if it was found by its tags rather than asked for.
        where: The region, or the project and zone, that it was found in.
        bills: What it costs as long as it stands, in words; empty if nothing.
    """

    name: str
    kind: str
    needs: tuple[str, ...] = ()
    expected: float = 1.0
    expected_gone: float = 1.0
    poll: float = 15.0
    again: bool = False
    tags: Tags | None = None
    where: str = ""
    bills: str = ""

    @abstractmethod
    def look(self) -> Seen:
        """Return how it is."""

    @abstractmethod
    def make(self) -> None:
        """Ask the cloud for it, or for what of it is missing."""

    @abstractmethod
    def unmake(self) -> None:
        """Ask the cloud to delete it; nothing to do is fine."""
