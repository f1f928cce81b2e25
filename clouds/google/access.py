"""That somebody may use one thing of a cluster's: lines of that thing's own policy, which go with it.

What an account may do in the whole project is in `accounts`.
"""

from abc import abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager

from clouds.google.client_errors import ErrorReason, GcpError
from clouds.google.session import GcpSession
from clouds.reconciler.resource import ABSENT, Resource, ResourceState, ResourceStatus
from clouds.tags import Tags


class IamBinding(Resource):
    """Roles that somebody has for one thing.

    Args:
        session: The way into its project.
        tags: Whose the thing is.

    Attributes:
        roles: What he may do with it.
    """

    roles: tuple[str, ...]
    expected, poll = 2.0, 5.0

    def __init__(self, session: GcpSession, tags: Tags) -> None:
        self.session, self.tags = session, tags

    @property
    @abstractmethod
    def member(self) -> str:
        """Who, as policies call him."""

    @abstractmethod
    def policy(self) -> dict | None:
        """Return the thing's policy; None if the thing is not there."""

    @abstractmethod
    def set_policy(self, policy: dict) -> None:
        """Put another one in its place."""

    def describe(self) -> ResourceStatus:
        lacking = self._lacking(self.policy() or {})
        if len(lacking) == len(self.roles):
            return ABSENT
        return ResourceStatus(ResourceState.PARTIAL if lacking else ResourceState.READY, self.member)

    def create(self) -> None:
        policy = self.policy() or {}
        for role in self._lacking(policy):
            policy.setdefault("bindings", []).append({"role": role, "members": [self.member]})
        with new_account(self.member):
            self.set_policy(policy)

    def delete(self) -> None:
        """Do nothing: the policy goes with the thing."""

    def _lacking(self, policy: dict) -> list[str]:
        given = {
            each["role"] for each in policy.get("bindings", ()) if self.member in each.get("members", ())
        }
        return [role for role in self.roles if role not in given]


@contextmanager
def new_account(member: str) -> Iterator[None]:
    """Have what is refused because nobody knows an account yet pass: that takes some seconds.

    Args:
        member: The account, for the error.
    """
    try:
        yield
    except GcpError as error:
        if "does not exist" not in error.what:
            raise
        raise GcpError(error.what, about=member, fix=error.fix, why=ErrorReason.BUSY) from error
