"""The lifecycle that clusters at clouds share: create, find, scale, extend, delete, costs, local files.

How a cloud does each of these is in `trainyard_kit.clouds.eks` and `trainyard_kit.clouds.gke`.
"""

import logging
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Self

from kitlib import config
from kitlib.clusters import Cluster, cleanup, kubeconfigs, provider_class
from kitlib.clusters.base import Rows
from kitlib.clusters.kubectl import find_kubectl
from kitlib.clusters.nodes import is_ready, list_nodes
from kitlib.clusters.shape import Shape
from kitlib.config import DEFAULT_CLUSTER
from kitlib.display.signatures import checked
from kitlib.display.tables import Table, Text
from kitlib.errors import BadInput, ClusterNotFound, ClusterUnreachable, KitError, ProviderFailed
from kitlib.k8s import manifests, names
from kitlib.k8s.quantities import check_count
from trainyard_kit.clouds import confirmation
from trainyard_kit.clouds.checks import Check, Level, Probe, Report, ok, run
from trainyard_kit.clouds.launches import await_nodes
from trainyard_kit.clouds.price_table import (
    Estimate,
    Price,
    cluster_prices,
    cost_notes,
    hours_left,
    idle_note,
    machine_prices,
)
from trainyard_kit.clouds.provider import CloudProvider, Info, Plan, Session
from trainyard_kit.clouds.release import release
from trainyard_kit.clouds.spec import (
    HOURS,
    POOL,
    CloudSpec,
    ClusterInfo,
    Machines,
    hours_of,
    until_of,
)
from trainyard_kit.clouds.steps import Steps
from trainyard_kit.clouds.tags import Tags
from trainyard_kit.cluster_checks import check_cluster

SAME_END = timedelta(minutes=10)
log = logging.getLogger(__name__)


class CloudCluster(CloudProvider[Session, Plan, Info]):
    """A cluster at a cloud: created, found, scaled, extended and deleted in one way for EKS and GKE."""

    # Creating and finding

    @classmethod
    def create(cls, name: str, shape: Shape, *, recreate: bool = False) -> Self:
        """Create a cluster, continue one that was begun, or return the one that is there."""
        cluster = cls._new(name, shape)
        plan = cluster._planned(shape)
        confirm, budget = shape.options.get("confirm") is True, shape.options.get("budget")
        if recreate:  # asked for now: when the other is gone, the browser may be closed
            confirmation.confirm_cost(cluster._estimate(plan, shape), confirm=confirm, budget=budget)
            confirm = True
            cluster.delete()
            plan = cluster._planned(shape)  # the first one has the end of the cluster that is gone
        info = cluster._describe()
        if info is None:
            cluster._preflight(plan).raise_failures()
            cluster._confirm_cost(cluster._estimate(plan, shape), confirm=confirm, budget=budget)
        else:
            reused = cluster._reuse_existing(info, plan, shape)
            if cluster._extend_to_hours(info, shape):  # the plan has the end from before
                reused = cluster._reuse_existing(cluster._found(), cluster._planned(shape), shape)
            plan = reused
            if info.machines is None and plan.machines:  # a pool that failed, or was left to this call
                cluster._raise_budget(plan.machines, plan.machines.count, confirm=confirm, budget=budget)
        cluster.store.write(cluster.name, cluster._location())
        with Steps(cluster.title, clock=cluster.clock) as steps:
            cluster._create(plan, steps)
        cluster._write_kubeconfig()
        cluster._install_addons(plan)
        return cluster

    @classmethod
    def preflight(cls, name: str, shape: Shape) -> Report:
        """Check what may prevent a new cluster; nothing is created, and nothing costs."""
        cluster = cls._new(name, shape)
        return cluster._preflight(cluster._planned(shape))

    @classmethod
    def list(cls) -> Rows:
        """List the clusters that this machine has used; the cloud is not asked for their state."""
        where = {name: (cls.store.read(name) or {}).get(cls.location_attribute) for name in cls.store.names()}
        return [cls._row(name, f"in {place}; see kit.connect({name!r})") for name, place in where.items()]

    @classmethod
    def _new(cls, name: str, shape: Shape) -> Self:
        shape.check_options(cls.options, cls.provider)
        return cls(name, cls._session(cls.checked(name), shape.options))

    def _tags(self, expires: datetime | None) -> Tags:
        own_labels = names.labels()
        return Tags(self.name, own_labels[names.OWNER], own_labels[names.WORKSHOP], expires)

    # Costs

    @classmethod
    def _prices(cls, spec: CloudSpec) -> tuple[Price, ...]:
        return cluster_prices(
            cls.price_list, spec, system=cls.system_machine, retention_reason=cls.retention_reason
        )

    def _estimate(self, plan: CloudSpec, shape: Shape) -> Estimate:
        hours = hours_of(shape.options.get("hours", HOURS))
        idle = self._prices(
            replace(plan, machines=replace(plan.machines or Machines("", 0), count=plan.least))
        )
        notes = (*cost_notes(self.price_list, plan), idle_note(idle, plan.least))
        return Estimate(self.title, self._prices(plan), hours, notes=notes)

    def _confirm_cost(self, estimate: Estimate, *, confirm: bool, budget: float | None) -> None:
        """Have a price confirmed; a budget counts all existing clusters until their ends as well."""
        limited = (config.read().budget if budget is None else budget) is not None
        already = confirmation.committed_cost(self.running_costs(self.session)) if limited else 0.0
        confirmation.confirm_cost(estimate, confirm=confirm, budget=budget, already=already)

    def _raise_budget(self, machines: Machines, more: int, *, confirm: bool, budget: float | None) -> None:
        if more > 0:
            price = machine_prices(self.price_list, replace(machines, count=more))
            estimate = Estimate(f"{more} more nodes of {self.title}", price, hours_left(self._end()))
            self._confirm_cost(estimate, confirm=confirm, budget=budget)

    @classmethod
    def running_costs(cls, session: Session) -> Sequence[Estimate]:
        """Estimate what each cluster of the kit in the account or project costs until its end."""
        estimates = []
        for cluster in cls.clusters(session):
            about = f'cluster "{cluster.tags.cluster}" in {cluster.where}'
            estimates.append(Estimate(about, cls._prices(cluster), hours_left(cluster.tags.expires)))
        return estimates

    # Looking

    @property
    def status(self) -> dict[str, object]:
        """What the cloud reports of it: state, version, place, end."""
        info = self._describe()
        if info is None:
            return {"name": self.name, "state": "absent"}
        return {
            "name": self.name,
            "state": info.state,
            "version": info.version,
            **{key: value for key, value in self._location().items() if value},
            "expires": info.tags.expires,
            "endpoint": info.endpoint,
        }

    def resources(self) -> Table:
        """List what exists of it at the cloud."""
        rows = [
            (resource.name, resource.kind, resource.state, resource.costs, resource.id)
            for resource in self.find_resources(self.session, self.name)
        ]
        columns = ("what", "kind", "state", "costs", "id")
        return Table(columns, rows, empty=f"nothing is left of it at {self.cloud}")

    def explain(self, message: str) -> KitError:
        """Build the error for an API server that does not answer, with the state that the cloud reports."""
        info = self._describe()
        if info is None:
            return self._not_found()
        return ClusterUnreachable(
            f"its API server does not answer: {message}; {self.cloud} says it is {info.state}",
            about=self.title,
            fix="try again in a minute" if info.state in self.ready_states else self._again,
        )

    def _found(self) -> Info:
        """Describe it; raise ClusterNotFound if there is none."""
        info = self._describe()
        if info is None:
            raise self._not_found()
        return info

    def _not_found(self) -> ClusterNotFound:
        return ClusterNotFound(
            f"there is no such cluster of the kit's in {self.where(self.session)}",
            about=self.title,
            fix=self._again,
        )

    # Reaching it

    @property
    def kubeconfig(self) -> Path:
        """The kit's own kubeconfig file, with a program that provides the credentials."""
        path = self.store.kubeconfig(self.name, self._location())
        if not path.exists():
            self._write_kubeconfig()
        return path

    def _write_kubeconfig(self) -> None:
        """Let a fresh kernel find it by its name, and kubectl by its file."""
        info = self._found()
        self.store.write(self.name, self._location())
        if info.endpoint:
            self.store.write_kubeconfig(self.name, self._location(), self._kubeconfig(info))

    def kubectl_command(self) -> Sequence[str]:
        """The kubectl on PATH, or else the kit's own."""
        return find_kubectl()

    def pod_additions(self, *, gpus: int = 0) -> dict[str, object]:
        """Fields of a training pod's spec: GPUs lead to training nodes, and other pods prefer them."""
        if gpus:
            return {}
        in_pool = {"key": POOL, "operator": "In", "values": [self.pool]}
        term = {"weight": 100, "preference": {"matchExpressions": [in_pool]}}
        return {"affinity": {"nodeAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": [term]}}}

    def training_gpus(self) -> tuple[int, ...]:
        info = self._describe()
        machines = info.machines if info else None
        return (machines.gpus,) * machines.count if machines else ()

    def install_storage_class(self, item: str, parameters: Mapping[str, str]) -> None:
        """Apply a StorageClass of the manifests; one with other parameters is replaced, its volumes stay."""
        (template,) = manifests.read(config.manifests(self.provider, item))
        storage_class = manifests.merge(template, {"parameters": dict(parameters)})
        kind, name = storage_class["kind"], storage_class["metadata"]["name"]
        existing = self.kube.find(kind, name)
        if existing and existing.get("parameters") != storage_class["parameters"]:
            self.kube.delete(kind, name)
        self.kube.apply(storage_class)

    # Acting

    def scale(self, nodes: int, *, confirm: bool = False, budget: float | None = None) -> Table:
        """Change the number of training nodes; it returns when they are Ready. 0 costs nothing for them.

        Args:
            nodes: How many.
            confirm: Agree to the price of more beforehand.
            budget: Dollars that all clusters of the kit there may cost until their ends, with those that are
                added; by default ``TRAINYARD_BUDGET``.

        Raises:
            BadInput: It is above the budget, or no terminal can confirm it; nothing was changed.
            NotConfirmed: The answer was not yes; nothing was changed.
            ProviderFailed: The cloud gives no such machines; the error has its reason.

        Example:
            >>> cluster.scale(4)
        """
        check_count(nodes, what="nodes", least=0, most=100)
        machines = self._machines_of(self._found())
        more = nodes - machines.count
        self._raise_budget(machines, more, confirm=confirm, budget=budget)
        known = self._launch_failures()  # of an earlier call, dealt with since
        with Steps(self.title, clock=self.clock) as steps:
            self._scale(nodes, steps)
            failures = (self._launch_failures, self._permanent_failure_fix, known)
            if not machines.flex_start:  # whose nodes come when pods ask for them
                await_nodes(nodes, steps, self._ready_nodes, *failures)
        return self.nodes()

    def _ready_nodes(self) -> int:
        nodes = (node for node in list_nodes(self.kube) if is_ready(node))
        return sum((node["metadata"].get("labels") or {}).get(POOL) == self.pool for node in nodes)

    def scale_up_to(self, nodes: int, *, confirm: bool = False) -> Table:
        """Have at least so many training nodes: as `scale`, but existing ones stay."""
        return self.scale(max(nodes, self._machines_of(self._found()).count), confirm=confirm)

    def check_quota(self, nodes: int, *, existing: int) -> Report:
        """Check whether the account's quotas allow so many training nodes; nothing changes.

        Args:
            nodes: How many there shall be.
            existing: How many there are.

        Example:
            >>> cluster.check_quota(30, existing=4)
        """
        about = f"{nodes} training nodes of {self.title}"
        machines = self._machines_of(self._found())
        return run([Probe("quotas", lambda: self._quotas(machines, nodes, nodes - existing))], about=about)

    def extend(self, hours: float, *, confirm: bool = False, budget: float | None = None) -> Text:
        """Let it live for so many hours from now: its schedules move, and the tags that say so.

        Args:
            hours: From now.
            confirm: Agree to the price of those that are added beforehand.
            budget: Dollars that all clusters of the kit there may cost until their ends, this one until its
                new one; by default ``TRAINYARD_BUDGET``.

        Raises:
            BadInput: It is above the budget, or no terminal can confirm it; nothing was changed.
            NotConfirmed: The answer was not yes; nothing was changed.

        Example:
            >>> cluster.extend(hours=2)
            cluster "lab" in eu-central-1 ends at 2026-11-22 18:00 UTC
        """
        until = until_of(hours)
        info = self._found()
        further = round(hours - hours_left(info.tags.expires), 2)
        if further > 0:
            about = f"{further:g} more hours of {self.title}"
            self._confirm_cost(Estimate(about, self._prices(info), further), confirm=confirm, budget=budget)
        with Steps(self.title, clock=self.clock) as steps:
            self._extend(info, until, steps)
        return Text(f"{self.title} ends at {until:%Y-%m-%d %H:%M} UTC")

    def _extend_to_hours(self, info: Info, shape: Shape) -> bool:
        """Extend an existing cluster to more hours than it has; return whether its end has moved."""
        if "hours" not in shape.options:
            return False
        hours, options, end = hours_of(shape.options["hours"]), shape.options, info.tags.expires
        if end is None:
            what = "it exists already, and has no end that could be moved"
            raise BadInput(what, about=f"hours={hours:g}, {self.title}", fix="leave hours out")
        if until_of(hours) - end > SAME_END:
            self.extend(hours, confirm=options.get("confirm") is True, budget=options.get("budget"))
            return True
        if end - until_of(hours) > SAME_END:
            message = f"hours={hours:g} does not shorten it: cluster.extend(hours={hours:g}) does"
            log.warning("%s %s; %s", self.title, self.end_notice(), message)
        return False

    def end_notice(self) -> str:
        """When the cloud deletes it by itself, and how to put that off; urgent in its last hour."""
        try:
            info = self._describe()
        except KitError:  # a notice must not prevent the actual call
            return ""
        end = info.tags.expires if info else None
        if end is None:
            return ""
        minutes = int((end - datetime.now(UTC)).total_seconds() // 60)
        if minutes < 0:
            return f"is past its end, {end:%Y-%m-%d %H:%M} UTC: {self.cloud} is deleting it"
        left = f"{minutes} min" if minutes < 60 else f"{minutes // 60} h {minutes % 60} min"
        urgent = "WARNING: less than an hour is left; " if minutes < 60 else ""
        how = f"{self.cloud} then deletes it and what is on it; cluster.extend(hours=2) puts that off"
        return f"ends at {end:%Y-%m-%d %H:%M} UTC, in {left}: {urgent}{how}"

    def delete(self) -> None:
        """Delete all of it; idempotent. If something is left, the error names it, and what it costs."""
        info = self._describe()
        if info is not None and info.state in self.ready_states:
            self._write_kubeconfig()
            release(self.kube, about=self.title)
        self.delete_at(self.session, self.name)
        self.store.forget(self.name, self._location())

    @classmethod
    def delete_at(cls, session: Session, name: str) -> None:
        """Delete what exists of a cluster, whether the cluster itself exists or not, and verify it."""
        title = f'cluster "{name}" in {cls.where(session)}'
        cleanup.delete_kubeconfigs(name)
        kubeconfigs.remove(name)
        with Steps(title, clock=cls.clock) as steps:
            cls._delete(session, name, steps)
        if left := cls.find_resources(session, name):
            raise ProviderFailed(
                "something is left, and may cost: "
                + "; ".join(f"{resource.name} {resource.id} {resource.costs}".rstrip() for resource in left),
                about=title,
                fix=f"delete it again; if that fails too, docs/{cls.provider}.md says how to do it by hand",
            )

    def _machines_of(self, info: ClusterInfo) -> Machines:
        if info.machines is None:
            raise ProviderFailed("it has no training nodes yet", about=self.title, fix=self._again)
        return info.machines

    def _end(self) -> datetime | None:
        """Time of its end; None if it has none in the future."""
        info = self._describe()
        when = None if info is None else info.tags.expires
        return when if when is not None and when > datetime.now(UTC) else None

    @property
    def title(self) -> str:
        """It for messages: ``cluster "lab" in us-west-2``."""
        return f'cluster "{self.name}" in {self.where(self.session)}'


@checked
def preflight(
    provider: str | Cluster, *, name: str = DEFAULT_CLUSTER, nodes: int = 4, **options: object
) -> Report:
    """Check what may prevent a new cluster: credentials, permissions, quotas, zones, names.

    Of a cluster that exists, check what it and its namespace allow: rights, Pod Security, quotas, storage,
    policies, nodes, images, operators, with rights in one namespace. Nothing is created.

    `create_cluster` runs the same checks before anything is paid for.

    Args:
        provider: As for `create_cluster`; or a cluster.
        name: The same.
        nodes: The same.
        options: The same.

    Returns:
        A report with a row for each check and its fix; ``raise_failures()`` turns it into an error.

    Example:
        >>> preflight("eks", region="us-west-2", instance_type="g4dn.xlarge", nodes=2)
    """
    if isinstance(provider, Cluster):
        checks = (Check(name, Level(result), *text) for name, result, *text in check_cluster(provider))
        return Report(f'cluster "{provider.name}"', tuple(checks))
    shape = Shape(nodes=nodes, options=options)
    chosen = provider_class(provider)
    if issubclass(chosen, CloudCluster):
        return chosen.preflight(name, shape)
    message = f"the provider {provider} needs no account and costs nothing"
    return Report(f'cluster "{name}"', (ok("account", message),))
