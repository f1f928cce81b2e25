"""The contract that EKS and GKE each implement. What they share is in `cluster`."""

from abc import abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any, ClassVar, Generic, TypedDict, TypeVar, Unpack

from kitlib.clusters.base import ScalableCluster
from kitlib.clusters.shape import Shape
from kitlib.display.tables import Text
from trainyard_kit.checks import Check, Report
from trainyard_kit.clouds.cluster_store import ClusterStore
from trainyard_kit.clouds.spec import CloudResource, CloudSpec, ClusterInfo, Machines
from trainyard_kit.clouds.steps import Clock, Steps

Session = TypeVar("Session")
Plan = TypeVar("Plan", bound=CloudSpec)
Info = TypeVar("Info", bound=ClusterInfo)


class SearchScope(TypedDict, total=False):
    """What to search: regions and profile of AWS, project of Google Cloud."""

    regions: str | Sequence[str] | None
    profile: str | None
    project: str | None


class CloudProvider(ScalableCluster, Generic[Session, Plan, Info]):
    """The provider-specific part of a cloud cluster.

    Attributes:
        store: Local files about the provider's clusters.
        clock: The clock of all waits; tests replace it.
        cloud: The display name.
        options: Options of `create_cluster`, with a description of each.
        location_attribute: The session's attribute with the location: ``region``.
        pool: The value of the label ``trainyard/pool`` on training nodes.
        ready_states: States in which the API server is available.
        price_list: ``amazon`` or ``google``, a key of the price table.
        system_machine: The machine type of the system node.
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
        super().__init__(self.validate_name(name))
        self.session = session

    @classmethod
    @abstractmethod
    def validate_name(cls, name: str) -> str:
        """Validate a cluster's name, and return it."""

    @classmethod
    @abstractmethod
    def _session(cls, name: str, options: Mapping[str, Any]) -> Session:
        """Build the session from options, or from the stored location of the cluster."""

    @classmethod
    @abstractmethod
    def sessions(cls, **scope: Unpack[SearchScope]) -> list[Session]:
        """Build a session for each AWS region, or all for ``"all"``; for the Google Cloud project."""

    @classmethod
    def where(cls, session: Session) -> str:
        """Name a session's region or zone, or without a zone its project."""
        return str(getattr(session, cls.location_attribute, None) or getattr(session, "project", ""))

    @classmethod
    @abstractmethod
    def clusters(cls, session: Session) -> list[Info]:
        """Describe all the kit's clusters in the account or project."""

    @classmethod
    @abstractmethod
    def find_resources(cls, session: Session, cluster: str | None = None) -> list[CloudResource]:
        """Find the resources of one cluster, or of all for None, by the kit's tags, whoever created them.

        Includes those that Kubernetes created (load balancers, volumes) and those being deleted.
        """

    @classmethod
    @abstractmethod
    def _delete(cls, session: Session, name: str, steps: Steps) -> None:
        """Delete a cluster's resources; after an error continue with independent ones."""

    @abstractmethod
    def _describe(self) -> Info | None:
        """Describe the cluster; None if there is none, or it is not the kit's."""

    @abstractmethod
    def _make_plan(self, shape: Shape) -> Plan:
        """Plan the cluster; an existing one keeps its expiry."""

    @abstractmethod
    def _reuse_existing(self, info: Info, plan: Plan, shape: Shape) -> Plan:
        """Return the plan with the existing machines, which never change; raise BadInput for others."""

    @abstractmethod
    def _preflight(self, plan: Plan) -> Report:
        """Check what may prevent creating the cluster."""

    @abstractmethod
    def _create(self, plan: Plan, steps: Steps) -> None:
        """Create all resources, or the missing ones; the schedules that delete it come first."""

    @abstractmethod
    def _scale(self, nodes: int, steps: Steps) -> None:
        """Change the number of training nodes."""

    @abstractmethod
    def _launch_failures(self) -> dict[str, str]:
        """The cloud's messages about failed launches of training nodes, by id, newest first."""

    @abstractmethod
    def _permanent_failure_fix(self, message: str) -> str:
        """The fix for such a message if waiting does not help; empty if it may."""

    @abstractmethod
    def _extend(self, info: Info, expiry: datetime, steps: Steps) -> None:
        """Change the expiry."""

    @abstractmethod
    def _quotas(self, machines: Machines, nodes: int, added: int) -> Iterable[Check]:
        """Check quotas for ``nodes`` of these machines, of which ``added`` do not exist yet."""

    @abstractmethod
    def _install_addons(self, plan: Plan) -> None:
        """Install StorageClasses and what the nodes need."""

    @abstractmethod
    def _location(self) -> dict[str, str | None]:
        """The location to store: region and profile, or project and zone."""

    @abstractmethod
    def _kubeconfig(self, info: Info) -> Mapping[str, Any]:
        """Build its kubeconfig."""

    @abstractmethod
    def add_admin(self, principal: str) -> Text:
        """Make a user an administrator of the cluster; return how they connect to it.

        Args:
            principal: At AWS the ARN of an IAM user or role; at Google Cloud ``user:ada@example.org``.
        """

    @property
    @abstractmethod
    def bucket(self) -> str:
        """The bucket that its pods may use: ``s3://…`` or ``gs://…``."""

    @property
    @abstractmethod
    def _create_call(self) -> str:
        """The call that creates the cluster, for fixes in error messages."""
