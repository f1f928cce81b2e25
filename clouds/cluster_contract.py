"""What a cloud has to say, so that a cluster there is made, found and deleted as `cloud` does it with all."""

from abc import abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import ClassVar

from clouds.cluster_store import Memory
from clouds.prices import Estimate, Price
from clouds.reconciler.clock import Clock
from clouds.reconciler.resource import Resource
from kitlib.clusters.base import Cluster, Shape
from kitlib.clusters.preflight import Check, Report
from kitlib.display.tables import Text


class CloudContract(Cluster):
    """A cluster at a cloud, as far as each cloud has its own words for it.

    A plan is the cloud's own, and so is what it describes a cluster by: only its own class looks into them.

    Args:
        name: Its name.
        session: The way to its account or project, and its region or zone.

    Attributes:
        memory: What this machine remembers of such clusters.
        clock: Of the steps; None is the one on the wall.
        cloud: As people call it.
        options: What it may be asked for, with what each is.
        place: Which of the session's attributes says where a cluster is: ``region``.
        pool: What its training machines are called in the label ``trainyard/pool``.
        up: Its states in which its API answers.
    """

    memory: ClassVar[Memory]
    clock: ClassVar[Clock | None] = None
    cloud: ClassVar[str]
    options: ClassVar[Mapping[str, str]]
    place: ClassVar[str]
    pool: ClassVar[str]
    up: ClassVar[tuple[str, ...]]

    def __init__(self, name: str, session) -> None:
        super().__init__(self.checked(name))
        self.session = session

    @classmethod
    @abstractmethod
    def checked(cls, name: str) -> str:
        """Return a name that a cluster there can have."""

    @classmethod
    @abstractmethod
    def _session(cls, name: str, given: Mapping[str, object]):
        """Return the way to where it was asked for, or to where this machine knows it."""

    @abstractmethod
    def _described(self):
        """Return what the cloud says of it; None if there is none that is the kit's."""

    @abstractmethod
    def _state(self, found) -> str:
        """Return its state, in the cloud's word."""

    @abstractmethod
    def _facts(self, found) -> dict[str, object]:
        """Return its version, place, end and endpoint."""

    @abstractmethod
    def _planned(self, shape: Shape):
        """Return the cluster as it shall be; one that was begun keeps its end."""

    @abstractmethod
    def _as_it_is(self, found, plan, shape: Shape):
        """Return the plan with the machines that are there, which never change.

        Raises:
            BadInput: Others are asked for.
        """

    @abstractmethod
    def _look_first(self, plan) -> Report:
        """Look at what may stand in the way."""

    @abstractmethod
    def _estimate(self, plan, hours: float) -> Estimate:
        """Return what it costs."""

    @abstractmethod
    def _cost(self) -> Estimate:
        """Return what it costs from now until its end, as it stands."""

    @abstractmethod
    def _standing(self) -> list[Estimate]:
        """Return the same of each cluster of the kit's in the account or project."""

    @abstractmethod
    def _machines(self) -> int:
        """Return how many training machines it has, or may grow to."""

    @abstractmethod
    def _price_of_machines(self, count: int) -> tuple[Price, ...]:
        """Return what so many more of them cost."""

    @abstractmethod
    def _quotas(self, nodes: int, more: int) -> Iterable[Check]:
        """Look whether the account may have so many of them, of which so many are not there yet."""

    @abstractmethod
    def _scale(self, nodes: int) -> None:
        """Have so many of them."""

    @abstractmethod
    def add_admin(self, who: str) -> Text:
        """Let somebody of the cloud's do all in the cluster, beside who made it; they stay until its end.

        Args:
            who: At AWS the ARN of a user or role of IAM; at Google Cloud ``user:ada@example.org``.

        Returns:
            How they reach it.
        """

    @abstractmethod
    def _parts(self, plan) -> Sequence[Resource]:
        """Return all that it is made of."""

    @abstractmethod
    def _doomed(self) -> Sequence[Resource]:
        """Return all that there may be of it, with what Kubernetes made."""

    @abstractmethod
    def _furnish(self, plan) -> None:
        """Put into the cluster what its volumes and its machines need."""

    @abstractmethod
    def _remember(self, *, plan=None, found=None) -> None:
        """Keep where it is, before it is made or as it is found."""

    @abstractmethod
    def _kubeconfig(self, found) -> Mapping:
        """Return the kubeconfig that leads to it."""

    @abstractmethod
    def _end(self) -> datetime | None:
        """Return when it ends; None if it has no end that is to come."""

    @abstractmethod
    def _move_end(self, found, until: datetime) -> None:
        """Let it end then."""

    @property
    def _where(self) -> str:
        return getattr(self.session, self.place)

    @property
    def _title(self) -> str:
        return f'cluster "{self.name}" in {self._where}'

    @property
    @abstractmethod
    def _again(self) -> str:
        """The call that makes it, or goes on."""
