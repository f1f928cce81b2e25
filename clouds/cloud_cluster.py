"""The lifecycle that clusters at clouds share: create, find, scale, extend, delete, costs, local files.

The resources of a cluster are in `clouds.aws` and `clouds.google`, and so are its planning and description.
"""

from abc import abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import datetime, timedelta
from pathlib import Path
from typing import ClassVar, Self

from clouds import confirmation
from clouds.cluster_preflight import Probe, run
from clouds.cluster_store import ClusterStore
from clouds.options import HOURS, hours_of, until_of
from clouds.price_table import Estimate, Price, hours_left
from clouds.reconciler import reconcile
from clouds.reconciler.clock import Clock
from clouds.reconciler.resource import Resource, ResourceState, ResourceStatus
from clouds.reconciler.steps_table import StepsTable
from clouds.release import release
from clouds.tags import Tags
from kitlib import config as settings
from kitlib.clusters.base import Cluster, Shape
from kitlib.clusters.checks import Check, Report
from kitlib.clusters.kubectl import find_kubectl
from kitlib.display.tables import Table, Text
from kitlib.errors import ClusterNotFound, ClusterUnreachable, KitError, ProviderFailed
from kitlib.k8s import manifests, names
from kitlib.k8s.quantities import check_count

LOOKS = 8  # at one time


class CloudCluster(Cluster):
    """A cluster at a cloud: created, found, scaled, extended and deleted in one way for EKS and GKE.

    The abstract methods are what each cloud does in its own way. A plan is the cloud's own type, and so is
    the description of a cluster: only its own class looks into them.

    Args:
        name: Its name.
        session: The client of its account or project, in its region or zone.

    Attributes:
        store: The files on this machine about such clusters.
        clock: Of the reconciler; None is the wall clock.
        cloud: Its name for people.
        options: Of `create_cluster`, with a description of each.
        place: The session's attribute with the location: ``region``.
        pool: The value of the label ``trainyard/pool`` on training machines.
        up: States in which its API server answers.
    """

    store: ClassVar[ClusterStore]
    clock: ClassVar[Clock | None] = None
    cloud: ClassVar[str]
    options: ClassVar[Mapping[str, str]]
    place: ClassVar[str]
    pool: ClassVar[str]
    up: ClassVar[tuple[str, ...]]

    def __init__(self, name: str, session) -> None:
        super().__init__(self.checked(name))
        self.session = session

    # Making and finding

    @classmethod
    def create(cls, name: str, shape: Shape, *, recreate: bool = False) -> Self:
        """Make a cluster, go on with one that was begun, or return the one that is there.

        Raises:
            BadInput: An argument is wrong; nothing was started.
            ProviderFailed: The cloud refused something; the same call goes on where it was.
            Interrupted: The user stopped it; the same call goes on where it was.
        """
        cluster = cls._asked(name, shape)
        plan = cluster._planned(shape)
        if recreate:
            cluster.delete()
        found = None if recreate else cluster._description()
        if found is None:
            cluster._agree(plan, shape)
        else:
            plan = cluster._reuse_existing(found, plan, shape)
        cluster._remember(plan=plan)
        cluster._bring_up(plan)
        cluster._keep()
        cluster._install_addons(plan)
        return cluster

    @classmethod
    def preflight(cls, name: str, shape: Shape) -> Report:
        """Look at what may stand in the way of a new cluster; nothing is made, and nothing costs."""
        cluster = cls._asked(name, shape)
        return cluster._preflight(cluster._planned(shape))

    @classmethod
    def existing(cls) -> list[dict[str, object]]:
        """Return a row for each that was used from here; how it is, nobody asks the cloud."""
        return cls.store.rows(cls.place)

    @classmethod
    def _asked(cls, name: str, shape: Shape) -> Self:
        shape.check_options(cls.options, cls.provider)
        return cls(name, cls._session(cls.checked(name), shape.options))

    def _tags(self, expires: datetime | None) -> Tags:
        whose = names.labels(workshop=settings.read().workshop, lifetime=timedelta())
        return Tags(self.name, whose[names.OWNER], whose[names.WORKSHOP], expires)

    def _agree(self, plan, shape: Shape) -> None:
        """Look at what may stand in the way, and have the price agreed to; nothing is made before."""
        self._preflight(plan).raise_failures()
        given = shape.options
        estimate = self._estimate(plan, hours_of(given.get("hours", HOURS)))
        self._spend(estimate, confirm=given.get("confirm") is True, budget=given.get("budget"))

    def _spend(self, estimate: Estimate, *, confirm: bool, budget: float | None) -> None:
        """Have a price agreed to; a budget counts all clusters that stand until their ends as well."""
        already = (
            confirmation.committed_cost(self._running_costs()) if confirmation.is_limited(budget) else 0.0
        )
        confirmation.confirm_cost(estimate, confirm=confirm, budget=budget, already=already)

    def _bring_up(self, plan) -> None:
        self._work(reconcile.bring_up, self._parts(plan), self._again)

    def _work(self, what: Callable, parts: Sequence[Resource], resume: str) -> None:
        """Bring parts up or take them down, and show how far it is."""
        with StepsTable(self._title) as report:
            what(parts, title=self._title, resume=resume, report=report, clock=self.clock)

    def _install(self, item: str, parameters: Mapping[str, str]) -> None:
        """Put a StorageClass of the kit's manifests into the cluster, with parameters of its own."""
        (found,) = manifests.read(settings.manifests(self.provider, item))
        wanted = manifests.merge(found, {"parameters": dict(parameters)})
        kind, name = wanted["kind"], wanted["metadata"]["name"]
        there = self.kube.find(kind, name)
        if there and there.get("parameters") != wanted["parameters"]:
            self.kube.delete(kind, name)  # its parameters cannot be changed; volumes of it stay
        self.kube.apply(wanted)

    # Looking

    @property
    def status(self) -> dict[str, object]:
        """What is known of it: state, version, place, end."""
        found = self._description()
        if found is None:
            return {"name": self.name, "state": "absent"}
        return {"name": self.name, "state": self._state(found), **self._facts(found)}

    def resources(self) -> Table:
        """Return all that the cloud has of it, and how each is."""
        rows = [
            (part.name, part.kind, seen.state.value, part.hourly_cost, seen.id, seen.words)
            for part, seen in self._there()
        ]
        columns = ("what", "kind", "state", "costs", "id", "words")
        return Table(columns, rows, empty=f"nothing is left of it at {self.cloud}")

    def _there(self) -> list[tuple[Resource, ResourceStatus]]:
        parts = self._all_resources()
        with ThreadPoolExecutor(LOOKS, thread_name_prefix="describe") as pool:
            seen = list(pool.map(lambda part: part.describe(), parts))
        return [
            (part, how)
            for part, how in zip(parts, seen, strict=True)
            if how.state is not ResourceState.ABSENT
        ]

    def explain(self, words: str) -> KitError:
        """Build the error for an API server that does not answer, with the state that the cloud reports."""
        found = self._description()
        if found is None:
            return self._not_found()
        state = self._state(found)
        return ClusterUnreachable(
            f"its API server does not answer: {words}; {self.cloud} says it is {state}",
            about=self._title,
            fix="try again in a minute" if state in self.up else self._again,
        )

    def _found(self):
        """Describe it by the cloud's API.

        Raises:
            ClusterNotFound: There is none.
        """
        found = self._description()
        if found is None:
            raise self._not_found()
        return found

    def _not_found(self) -> ClusterNotFound:
        return ClusterNotFound(
            f"there is no such cluster of the kit's in {self._where}", about=self._title, fix=self._again
        )

    # Reaching it

    @property
    def kubeconfig(self) -> Path:
        """Its own file, with a program of the kit's that brings the credentials."""
        path = self.store.kubeconfig(self.name)
        if not path.exists():
            self._keep()
        return path

    def _keep(self) -> None:
        """Let a fresh kernel find it by its name, and kubectl by its file."""
        found = self._found()
        self._remember(found=found)
        if config := self._kubeconfig(found):
            self.store.write_kubeconfig(self.name, config)

    def kubectl_command(self) -> list[str]:
        """Return the kubectl on PATH, or else the kit's own."""
        return find_kubectl()

    def pod_additions(self, *, gpus: int = 0) -> dict[str, object]:
        """Tolerations and node affinity with which pods are scheduled on the training nodes."""
        there = {"key": "trainyard/pool", "operator": "In", "values": [self.pool]}
        term = {"weight": 100, "preference": {"matchExpressions": [there]}}
        return {"affinity": {"nodeAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": [term]}}}

    # Acting

    def scale(self, nodes: int, *, confirm: bool = False, budget: float | None = None) -> Table:
        """Have so many training machines; returns when the cloud has begun. None costs nothing for machines.

        Args:
            nodes: How many.
            confirm: Agree to the price of more beforehand.
            budget: Dollars that all clusters of the kit there may cost until their ends, with those that are
                added; by default ``TRAINYARD_BUDGET``.

        Raises:
            BadInput: It is above the budget, or nobody can be asked; nothing was changed.
            NotConfirmed: The answer was not yes; nothing was changed.

        Example:
            >>> cluster.scale(4)
        """
        check_count(nodes, what="nodes", least=0, most=100)
        self._found()
        more = nodes - self._machines()
        if more > 0:
            about, hours = f"{more} more nodes of {self._title}", self._hours_left()
            estimate = Estimate(about, self._price_of_machines(more), hours)
            self._spend(estimate, confirm=confirm, budget=budget)
        self._scale(nodes)
        return self.nodes()

    def scale_up_to(self, nodes: int, *, confirm: bool = False) -> Table:
        """Have at least so many training machines: as `scale`, but what it has, or may grow to, stays."""
        return self.scale(max(nodes, self._machines()), confirm=confirm)

    def check_quota(self, nodes: int, *, there: int) -> Report:
        """Look whether the account's quotas allow so many training machines; nothing changes.

        Args:
            nodes: How many there shall be.
            there: How many there are.

        Example:
            >>> cluster.check_quota(30, there=4)
        """
        about = f"{nodes} training machines of {self._title}"
        return run([Probe("quotas", lambda: self._quotas(nodes, nodes - there))], about=about)

    def extend(self, hours: float, *, confirm: bool = False, budget: float | None = None) -> Text:
        """Let it live for so many hours from now: its schedules move, and the tags that say so.

        Args:
            hours: From now.
            confirm: Agree to the price of those that are added beforehand.
            budget: Dollars that all clusters of the kit there may cost until their ends, this one until its
                new one; by default ``TRAINYARD_BUDGET``.

        Raises:
            BadInput: It is above the budget, or nobody can be asked; nothing was changed.
            NotConfirmed: The answer was not yes; nothing was changed.

        Example:
            >>> cluster.extend(hours=2)
            cluster "lab" in eu-central-1 ends at 2026-11-22 18:00 UTC
        """
        until = until_of(hours)
        found = self._found()
        now = self._cost()
        further = round(hours - now.hours, 2)
        if further > 0:
            longer = replace(now, about=f"{further:g} more hours of {self._title}", hours=further)
            self._spend(longer, confirm=confirm, budget=budget)
        self._move_end(found, until)
        return Text(f"{self._title} ends at {until:%Y-%m-%d %H:%M} UTC")

    def _hours_left(self) -> float:
        return hours_left(self._end())

    def delete(self) -> None:
        """Delete all of it, and see that nothing is left; one that is gone is fine.

        Raises:
            ProviderFailed: Something is left; the error names it, and what it costs.
        """
        found = self._description()
        if found is not None and self._state(found) in self.up:
            self._keep()
            release(self.kube, about=self._title)
        self._work(reconcile.take_down, self._all_resources(), f'kit.connect("{self.name}").delete()')
        if left := self._there():
            raise ProviderFailed(
                "something is left, and may cost: "
                + "; ".join(f"{part.name} {seen.id} {part.hourly_cost}".rstrip() for part, seen in left),
                about=self._title,
                fix=f"delete it again; if it stays, docs/{self.provider}.md says how by hand",
            )
        self.store.forget(self.name)

    # What each cloud does in its own way

    @classmethod
    @abstractmethod
    def checked(cls, name: str) -> str:
        """Return a name that a cluster there can have."""

    @classmethod
    @abstractmethod
    def _session(cls, name: str, given: Mapping[str, object]):
        """Return the way to where it was asked for, or to where this machine knows it."""

    @abstractmethod
    def _description(self):
        """Describe it by the cloud's API; None if there is none that is the kit's."""

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
    def _reuse_existing(self, found, plan, shape: Shape):
        """Return the plan with the machines that are there, which never change.

        Raises:
            BadInput: Others are asked for.
        """

    @abstractmethod
    def _preflight(self, plan) -> Report:
        """Look at what may stand in the way."""

    @abstractmethod
    def _estimate(self, plan, hours: float) -> Estimate:
        """Estimate the cost."""

    @abstractmethod
    def _cost(self) -> Estimate:
        """Estimate the cost from now until its end, as it stands."""

    @abstractmethod
    def _running_costs(self) -> list[Estimate]:
        """Return the same of each cluster of the kit's in the account or project."""

    @abstractmethod
    def _machines(self) -> int:
        """Count the training machines that it has, or may grow to."""

    @abstractmethod
    def _price_of_machines(self, count: int) -> tuple[Price, ...]:
        """Price more training machines."""

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
    def _all_resources(self) -> Sequence[Resource]:
        """Return all that there may be of it, with what Kubernetes made."""

    @abstractmethod
    def _install_addons(self, plan) -> None:
        """Put into the cluster what its volumes and its machines need."""

    @abstractmethod
    def _remember(self, *, plan=None, found=None) -> None:
        """Keep where it is, before it is made or as it is found."""

    @abstractmethod
    def _kubeconfig(self, found) -> Mapping:
        """Return the kubeconfig that leads to it."""

    @abstractmethod
    def _end(self) -> datetime | None:
        """Time of its end; None if it has none in the future."""

    @abstractmethod
    def _move_end(self, found, until: datetime) -> None:
        """Let it end then."""

    @property
    @abstractmethod
    def _again(self) -> str:
        """The call that makes it, or goes on."""

    @property
    def _where(self) -> str:
        return getattr(self.session, self.place)

    @property
    def _title(self) -> str:
        return f'cluster "{self.name}" in {self._where}'
