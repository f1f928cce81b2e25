"""The contract of a cloud: what EKS and GKE each do in their own way. What they share is in `cluster`."""

from abc import abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any, ClassVar, Generic, TypedDict, TypeVar, Unpack

from kitlib.clusters.base import ScalableCluster
from kitlib.clusters.shape import Shape
from kitlib.display.tables import Text
from trainyard_kit.clouds.checks import Check, Report
from trainyard_kit.clouds.cluster_store import ClusterStore
from trainyard_kit.clouds.spec import CloudResource, CloudSpec, ClusterInfo, Machines
from trainyard_kit.clouds.steps import Clock, Steps

Session = TypeVar("Session")
Plan = TypeVar("Plan", bound=CloudSpec)
Info = TypeVar("Info", bound=ClusterInfo)


class Places(TypedDict, total=False):
    """Where clouds are asked: regions and profile of AWS, project of Google Cloud."""

    regions: str | Sequence[str] | None
    profile: str | None
    project: str | None


class CloudProvider(ScalableCluster, Generic[Session, Plan, Info]):
    """A cluster at a cloud, as far as each cloud is different.

    Attributes:
        store: The files on this machine about such clusters.
        clock: By which operations are awaited; tests bring their own.
        cloud: Its name for people.
        options: Of `create_cluster`, with a description of each.
        location_attribute: The session's attribute with the location: ``region``.
        pool: The value of the label ``trainyard/pool`` on training nodes.
        ready_states: States in which its API server answers.
        price_list: ``amazon`` or ``google``, in the table of prices.
        system_machine: The type of its system node.
        retention_reason: Why stored data is billed after the expiry; empty if the expiry deletes it.
    """

    store: ClassVar[ClusterStore]
    clock: ClassVar[Clock] = Clock()
    cloud: ClassVar[str]
    options: ClassVar[Mapping[str, str]]
    location_attribute: ClassVar[str]
    pool: ClassVar[str]
    ready_states: ClassVar[tuple[str, ...]]
    price_list: ClassVar[str]
    system_machine: ClassVar[str]
    retention_reason: ClassVar[str] = ""

    def __init__(self, name: str, session: Session) -> None:
        super().__init__(self.checked(name))
        self.session = session

    @classmethod
    @abstractmethod
    def checked(cls, name: str) -> str:
        """Validate a cluster's name, and return it."""

    @classmethod
    @abstractmethod
    def _session(cls, name: str, options: Mapping[str, Any]) -> Session:
        """Build the session from options, or from what this machine remembers of the cluster."""

    @classmethod
    @abstractmethod
    def sessions(cls, **places: Unpack[Places]) -> list[Session]:
        """Build a session for each place: regions, or ``"all"``, and profile of AWS; project of Google."""

    @classmethod
    def where(cls, session: Session) -> str:
        """Name the region or zone that a session asks, or without a zone its project."""
        return str(getattr(session, cls.location_attribute, None) or getattr(session, "project", ""))

    @classmethod
    @abstractmethod
    def clusters(cls, session: Session) -> list[Info]:
        """Describe each cluster of the kit in the whole account or project."""

    @classmethod
    @abstractmethod
    def find_resources(cls, session: Session, cluster: str | None = None) -> list[CloudResource]:
        """Find what exists of one cluster, or of all for None, by the kit's tags, whoever created it.

        What Kubernetes created for a cluster (load balancers, volumes) and what is being deleted count.
        """

    @classmethod
    @abstractmethod
    def _delete(cls, session: Session, name: str, steps: Steps) -> None:
        """Delete what exists of a cluster; an error does not keep independent resources."""

    @abstractmethod
    def _describe(self) -> Info | None:
        """Describe the cluster; None if there is none, or it is not the kit's."""

    @abstractmethod
    def _planned(self, shape: Shape) -> Plan:
        """Plan the cluster; one that was begun keeps its end."""

    @abstractmethod
    def _reuse_existing(self, info: Info, plan: Plan, shape: Shape) -> Plan:
        """Take over the existing machines, which never change, into the plan; refuse others."""

    @abstractmethod
    def _preflight(self, plan: Plan) -> Report:
        """Check what may prevent it."""

    @abstractmethod
    def _create(self, plan: Plan, steps: Steps) -> None:
        """Create all of it, or continue; what exists stays. Schedules of its end come first."""

    @abstractmethod
    def _scale(self, nodes: int, steps: Steps) -> None:
        """Change the number of training nodes."""

    @abstractmethod
    def _launch_failures(self) -> dict[str, str]:
        """The cloud's words for why it gives no training nodes, the newest first, each with an id."""

    @abstractmethod
    def _permanent_failure_fix(self, message: str) -> str:
        """What to do about such words if waiting does not help; empty if it may."""

    @abstractmethod
    def _extend(self, info: Info, until: datetime, steps: Steps) -> None:
        """Move its end."""

    @abstractmethod
    def _quotas(self, machines: Machines, nodes: int, more: int) -> Iterable[Check]:
        """Check quotas for so many of these machines, of which so many are not there yet."""

    @abstractmethod
    def _install_addons(self, plan: Plan) -> None:
        """Install StorageClasses, and what the nodes need."""

    @abstractmethod
    def _location(self) -> dict[str, str | None]:
        """What this machine remembers of it: region and profile, or project and zone."""

    @abstractmethod
    def _kubeconfig(self, info: Info) -> Mapping[str, Any]:
        """Build its kubeconfig."""

    @abstractmethod
    def add_admin(self, who: str) -> Text:
        """Make somebody an administrator of the cluster, until its end; returns how they reach it.

        Args:
            who: At AWS the ARN of a user or role of IAM; at Google Cloud ``user:ada@example.org``.
        """

    @property
    @abstractmethod
    def bucket(self) -> str:
        """Its bucket, which its pods may use: ``s3://…`` or ``gs://…``."""

    @property
    @abstractmethod
    def _again(self) -> str:
        """The call that creates it, or continues."""
