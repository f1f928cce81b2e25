"""The contract of one resource at a cloud: how it is described by its tags, created, and deleted.

Creating a resource is one request, or several of which each may be the last one before the process dies:
`describe` then says ``PARTIAL``, and `create` continues from there. Order, parallelism and waiting are in
`reconcile`. Nothing here knows a cloud.
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from enum import StrEnum

from clouds.tags import Tags


class ResourceState(StrEnum):
    """The state of a resource, in words that all clouds share."""

    ABSENT = "absent"
    PARTIAL = "partial"  # some of what belongs to it is not there: `create` goes on
    PENDING = "pending"  # the cloud is at it
    READY = "ready"
    FAILED = "failed"  # the cloud gave up; `words` say why. It has to be unmade before it can be made again
    DELETING = "deleting"  # the cloud deletes it


@dataclass(frozen=True)
class ResourceStatus:
    """The status of a resource as the cloud reports it.

    Attributes:
        state: Its state.
        id: The cloud's own name of it: an ARN, an id, a self link; empty if it is absent.
        words: What the cloud says of it: why it failed, what it waits for.
    """

    state: ResourceState
    id: str = ""
    words: str = ""


ABSENT = ResourceStatus(ResourceState.ABSENT)


class Resource(ABC):
    """One thing at a cloud that belongs to one cluster.

    Contract: `describe` only reads, and finds the resource by the kit's tags (or, where a service has no
    tags, by a name that holds the cluster's, with a check of its owner). `create` is idempotent: another
    process may create the same resource at the same time, or have died in the middle of it; it returns as
    soon as the cloud has accepted the request. `delete` is idempotent as well, works from every state, and
    never touches what is not the kit's. All raise a `KitError` that says what to do, and no other error.

    Attributes:
        name: Shown to people, unique in a cluster: ``cluster``, ``node group train`` …
        kind: The cloud's word for it: ``AWS::EC2::VPC``, ``container.googleapis.com/NodePool``.
        depends_on: The names of those that must be ready before it is created; they are deleted after it.
        expected: Seconds until it is ready, as a rule.
        expected_gone: Seconds until it is gone, as a rule.
        poll: Seconds between two looks while the cloud is at it; at least 15 where it takes minutes.
        again: Whether making it once more may help when it has failed: capacity comes and goes, say.
        tags: What is written on it, if it was found by its tags rather than asked for.
        where: The region, or the project and zone, that it was found in.
        hourly_cost: What it costs as long as it stands, in words; empty if nothing.
    """

    name: str
    kind: str
    depends_on: tuple[str, ...] = ()
    expected: float = 1.0
    expected_gone: float = 1.0
    poll: float = 15.0
    again: bool = False
    tags: Tags | None = None
    where: str = ""
    hourly_cost: str = ""

    @abstractmethod
    def describe(self) -> ResourceStatus:
        """Describe its current status."""

    @abstractmethod
    def create(self) -> None:
        """Ask the cloud for it, or for what of it is missing."""

    @abstractmethod
    def delete(self) -> None:
        """Ask the cloud to delete it; nothing to do is fine."""
