"""That somebody may use one thing of a cluster's: lines of that thing's own policy, which go with it.

What an account may do in the whole project is in `accounts`.
"""

from abc import abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager

from clouds.google.refusals import Refused, Why
from clouds.google.session import Session
from clouds.reconciler.resource import ABSENT, Resource, Seen, State
from clouds.tags import Tags


class Access(Resource):
    """Roles that somebody has for one thing.

    Args:
        session: The way into its project.
        tags: Whose the thing is.

    Attributes:
        roles: What he may do with it.
    """

    roles: tuple[str, ...]
    expected, poll = 2.0, 5.0

    def __init__(self, session: Session, tags: Tags) -> None:
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

    def look(self) -> Seen:
        lacking = self._lacking(self.policy() or {})
        if len(lacking) == len(self.roles):
            return ABSENT
        return Seen(State.PARTIAL if lacking else State.READY, self.member)

    def make(self) -> None:
        policy = self.policy() or {}
        for role in self._lacking(policy):
            policy.setdefault("bindings", []).append({"role": role, "members": [self.member]})
        with new_account(self.member):
            self.set_policy(policy)

    def unmake(self) -> None:
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
    except Refused as error:
        if "does not exist" not in error.what:
            raise
        raise Refused(error.what, about=member, fix=error.fix, why=Why.BUSY) from error
