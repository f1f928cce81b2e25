"""The lifecycle that cloud clusters share: create, find, scale, extend, delete, costs, local files.

`trainyard_kit.clouds.eks` and `trainyard_kit.clouds.gke` implement the steps.
"""

import logging
from collections.abc import Collection, Mapping, Sequence
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
from trainyard_kit.checks import Probe, Report, ok, run
from trainyard_kit.clouds import confirmation
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
    Machines,
    check_hours,
    expiry_after,
)
from trainyard_kit.clouds.steps import Phase, Steps
from trainyard_kit.clouds.tags import Tags
from trainyard_kit.cluster_checks import check_cluster

EXPIRY_TOLERANCE = timedelta(minutes=10)
NODES_STEP, POLL_SECONDS, NO_PROGRESS_SECONDS = "training nodes", 15.0, 900.0
log = logging.getLogger(__name__)


class CloudCluster(CloudProvider[Session, Plan, Info]):
    """A cloud cluster, with one lifecycle for EKS and GKE."""

    # Create

    @classmethod
    def create(cls, name: str, shape: Shape, *, recreate: bool = False) -> Self:
        """Create a cluster, resume an interrupted creation, or return the existing cluster."""
        cluster = cls._build(name, shape)
        plan = cluster._make_plan(shape)
        confirm, budget = shape.options.get("confirm") is True, shape.options.get("budget")
        if recreate:  # confirmed first: the user may leave while the old cluster is deleted
            confirmation.confirm_cost(cluster._estimate(plan, shape), confirm=confirm, budget=budget)
            confirm = True
            cluster.delete()
            plan = cluster._make_plan(shape)  # without the old cluster's expiry
        info = cluster._describe()
        if info is None:
            cluster._preflight(plan).raise_failures()
            cluster._confirm_cost(cluster._estimate(plan, shape), confirm=confirm, budget=budget)
        else:
            reused = cluster._reuse_existing(info, plan, shape)
            if cluster._extend_to_hours(info, shape):  # plan again, with the new expiry
                reused = cluster._reuse_existing(cluster._require_info(), cluster._make_plan(shape), shape)
            plan = reused
            if info.machines is None and plan.machines:  # the pool failed, or was deferred
                cluster._confirm_nodes(plan, plan.machines.count, confirm=confirm, budget=budget)
        cluster.store.write(cluster.name, cluster._location())
        with Steps(cluster.title, clock=cluster.clock) as steps:
            cluster._create(plan, steps)
        cluster._write_kubeconfig()
        cluster._install_addons(plan)
        return cluster

    @classmethod
    def preflight(cls, name: str, shape: Shape) -> Report:
        """Check what may prevent creating a cluster; nothing is created or charged."""
        cluster = cls._build(name, shape)
        return cluster._preflight(cluster._make_plan(shape))

    @classmethod
    def list(cls) -> Rows:
        """List the clusters used from this machine, without querying the cloud."""
        stored = {name: cls.store.read(name) or {} for name in cls.store.names()}
        return [
            cls._row(name, f"in {location.get(cls.location_attribute)}; not contacted")
            for name, location in stored.items()
        ]

    @classmethod
    def _build(cls, name: str, shape: Shape) -> Self:
        shape.check_options(cls.options, cls.provider)
        return cls(name, cls._session(cls.validate_name(name), shape.options))

    def _tags(self, expires: datetime | None) -> Tags:
        labels = names.labels()
        return Tags(self.name, labels[names.OWNER], labels[names.WORKSHOP], expires)

    # Costs

    @classmethod
    def _prices(cls, spec: CloudSpec) -> tuple[Price, ...]:
        return cluster_prices(
            cls.price_list, spec, system=cls.system_machine, retention_reason=cls.retention_reason
        )

    def _estimate(self, plan: CloudSpec, shape: Shape) -> Estimate:
        hours = check_hours(shape.options.get("hours", HOURS))
        idle = self._prices(
            replace(plan, machines=replace(plan.machines or Machines("", 0), count=plan.least))
        )
        notes = (*cost_notes(self.price_list, plan), idle_note(idle, plan.least))
        return Estimate(self.title, self._prices(plan), hours, notes=notes)

    def _confirm_cost(self, estimate: Estimate, *, confirm: bool, budget: float | None) -> None:
        """Have a cost confirmed; a budget also covers all existing clusters until they expire."""
        limited = (config.read().budget if budget is None else budget) is not None
        committed = confirmation.committed_cost(self.running_costs(self.session)) if limited else 0.0
        confirmation.confirm_cost(estimate, confirm=confirm, budget=budget, committed=committed)

    def _confirm_nodes(self, spec: CloudSpec, added: int, *, confirm: bool, budget: float | None) -> None:
        if added > 0:
            price = machine_prices(self.price_list, replace(self._machines_of(spec), count=added))
            estimate = Estimate(f"{added} more nodes of {self.title}", price, hours_left(spec.tags.expires))
            self._confirm_cost(estimate, confirm=confirm, budget=budget)

    @classmethod
    def running_costs(cls, session: Session) -> Sequence[Estimate]:
        """Estimate what each of the kit's clusters in the account or project costs until it expires."""
        estimates = []
        for cluster in cls.clusters(session):
            about = f'cluster "{cluster.tags.cluster}" in {cluster.where}'
            estimates.append(Estimate(about, cls._prices(cluster), hours_left(cluster.tags.expires)))
        return estimates

    # Describe

    @property
    def status(self) -> dict[str, object]:
        """What the cloud reports: state, version, location, expiry, endpoint."""
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
        """List its resources at the cloud."""
        rows = [
            (resource.name, resource.kind, resource.state, resource.costs, resource.id)
            for resource in self.find_resources(self.session, self.name)
        ]
        columns = ("resource", "kind", "state", "costs", "id")
        return Table(columns, rows, empty=f"no resources at {self.cloud}")

    def explain(self, message: str) -> KitError:
        """Build the error for an unreachable API server, with the state that the cloud reports."""
        info = self._describe()
        if info is None:
            return self._not_found()
        return ClusterUnreachable(
            f"its API server does not answer: {message}; {self.cloud} reports the state {info.state}",
            about=self.title,
            fix="try again in a minute" if info.state in self.ready_states else self._create_call,
        )

    def _require_info(self) -> Info:
        """Describe the cluster; raise ClusterNotFound if there is none."""
        info = self._describe()
        if info is None:
            raise self._not_found()
        return info

    def _not_found(self) -> ClusterNotFound:
        return ClusterNotFound(
            f"the kit has no such cluster in {self.where(self.session)}",
            about=self.title,
            fix=self._create_call,
        )

    # Connect

    @property
    def kubeconfig(self) -> Path:
        """The kit's kubeconfig file for this cluster, with an exec credential plugin."""
        path = self.store.kubeconfig(self.name, self._location())
        if not path.exists():
            self._write_kubeconfig()
        return path

    def _write_kubeconfig(self) -> None:
        """Store its location, by which other kernels find it, and its kubeconfig."""
        info = self._require_info()
        self.store.write(self.name, self._location())
        if info.endpoint:
            self.store.write_kubeconfig(self.name, self._location(), self._kubeconfig(info))

    def kubectl_command(self) -> Sequence[str]:
        """The kubectl on PATH, or the kit's own."""
        return find_kubectl()

    def pod_additions(self, *, gpus: int = 0) -> dict[str, object]:
        """Fields of a training pod's spec: without GPUs, a preference for the training nodes."""
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
        """Apply a StorageClass of the manifests; replace one with other parameters, keeping its volumes."""
        (template,) = manifests.read(config.manifests(self.provider, item))
        storage_class = manifests.merge(template, {"parameters": dict(parameters)})
        kind, name = storage_class["kind"], storage_class["metadata"]["name"]
        existing = self.kube.find(kind, name)
        if existing and existing.get("parameters") != storage_class["parameters"]:
            self.kube.delete(kind, name)
        self.kube.apply(storage_class)

    # Change

    def scale(self, nodes: int, *, confirm: bool = False, budget: float | None = None) -> Table:
        """Change the number of training nodes, and wait until they are Ready; with 0 none are charged.

        Args:
            nodes: The new number.
            confirm: Accept the cost of added nodes without a prompt.
            budget: Limit in dollars for all the kit's clusters of the account until they expire, with the
                added nodes; by default ``TRAINYARD_BUDGET``.

        Raises:
            BadInput: The cost exceeds the budget, or there is no terminal to confirm it; nothing changed.
            NotConfirmed: The user declined; nothing changed.
            ProviderFailed: The cloud does not provide the machines; the message has its reason.

        Example:
            >>> cluster.scale(4)
        """
        check_count(nodes, what="nodes", least=0, most=100)
        info = self._require_info()
        machines = self._machines_of(info)
        self._confirm_nodes(info, nodes - machines.count, confirm=confirm, budget=budget)
        known = self._launch_failures()  # of earlier operations
        with Steps(self.title, clock=self.clock) as steps:
            self._scale(nodes, steps)
            if not machines.flex_start:  # those start once pods need them
                self._await_nodes(nodes, steps, known)
        return self.nodes()

    def _await_nodes(self, nodes: int, steps: Steps, known: Collection[str]) -> None:
        """Wait until so many training nodes are Ready; launch failures in ``known`` are older."""
        deadline, before = steps.clock.now() + NO_PROGRESS_SECONDS, 0
        with steps.step(NODES_STEP):
            while (now := self._ready_nodes()) < nodes:
                failures = self._launch_failures().items()
                message = next((message for id_, message in failures if id_ not in known), "")
                fix = self._permanent_failure_fix(message) if message else ""
                if now > before:
                    before, deadline = now, steps.clock.now() + NO_PROGRESS_SECONDS
                if fix or steps.clock.now() > deadline:
                    reason = message or "the cloud gives no reason"
                    what = f"{now} of {nodes} training nodes are Ready: {reason}"
                    fix = fix or f"wait, or `cluster.scale({now})`, so that no more are requested"
                    raise ProviderFailed(what, about=self.title, fix=fix)
                state = f"{now} of {nodes} are Ready{message and f'; {message}'}"
                steps.update(NODES_STEP, Phase.RUNNING, state)
                steps.sleep(POLL_SECONDS)

    def _ready_nodes(self) -> int:
        nodes = (node for node in list_nodes(self.kube) if is_ready(node))
        return sum((node["metadata"].get("labels") or {}).get(POOL) == self.pool for node in nodes)

    def scale_up_to(self, nodes: int, *, confirm: bool = False) -> Table:
        """Scale to at least ``nodes`` training nodes; never scales down."""
        return self.scale(max(nodes, self._machines_of(self._require_info()).count), confirm=confirm)

    def check_quota(self, nodes: int, *, existing: int) -> Report:
        """Check whether the account's quotas allow ``nodes`` training nodes; nothing changes.

        Args:
            nodes: The target.
            existing: How many exist.

        Example:
            >>> cluster.check_quota(30, existing=4)
        """
        about = f"{nodes} training nodes of {self.title}"
        machines = self._machines_of(self._require_info())
        return run([Probe("quotas", lambda: self._quotas(machines, nodes, nodes - existing))], about=about)

    def extend(self, hours: float, *, confirm: bool = False, budget: float | None = None) -> Text:
        """Set the cluster's expiry: when its schedules delete it, and the tags that record it.

        Args:
            hours: From now.
            confirm: Accept the cost of added hours without a prompt.
            budget: Limit in dollars for all the kit's clusters of the account until they expire, this one
                at its new expiry; by default ``TRAINYARD_BUDGET``.

        Raises:
            BadInput: The cost exceeds the budget, or there is no terminal to confirm it; nothing changed.
            NotConfirmed: The user declined; nothing changed.

        Example:
            >>> cluster.extend(hours=2)
            cluster "lab" in eu-central-1 expires at 2026-11-22 18:00 UTC
        """
        expiry = expiry_after(hours)
        info = self._require_info()
        added = round(hours - hours_left(info.tags.expires), 2)
        if added > 0:
            about = f"{added:g} more hours of {self.title}"
            self._confirm_cost(Estimate(about, self._prices(info), added), confirm=confirm, budget=budget)
        with Steps(self.title, clock=self.clock) as steps:
            self._extend(info, expiry, steps)
        return Text(f"{self.title} expires at {expiry:%Y-%m-%d %H:%M} UTC")

    def _extend_to_hours(self, info: Info, shape: Shape) -> bool:
        """Extend an existing cluster to ``hours`` if that is later; return whether its expiry changed."""
        if "hours" not in shape.options:
            return False
        hours, options, expires = check_hours(shape.options["hours"]), shape.options, info.tags.expires
        if expires is None:
            what = "it exists already, and does not expire"
            raise BadInput(what, about=f"hours={hours:g}, {self.title}", fix="leave hours out")
        if expiry_after(hours) - expires > EXPIRY_TOLERANCE:
            self.extend(hours, confirm=options.get("confirm") is True, budget=options.get("budget"))
            return True
        if expires - expiry_after(hours) > EXPIRY_TOLERANCE:
            message = f"hours={hours:g} does not shorten that: cluster.extend(hours={hours:g}) does"
            log.warning("%s %s; %s", self.title, self.end_notice(), message)
        return False

    def end_notice(self) -> str:
        """When the cluster expires, and how to extend it; a warning in its last hour."""
        try:
            info = self._describe()
        except KitError:  # a notice must not prevent the actual call
            return ""
        expires = info.tags.expires if info else None
        if expires is None:
            return ""
        minutes = int((expires - datetime.now(UTC)).total_seconds() // 60)
        if minutes < 0:
            return f"expired at {expires:%Y-%m-%d %H:%M} UTC: {self.cloud} is deleting it"
        left = f"{minutes} min" if minutes < 60 else f"{minutes // 60} h {minutes % 60} min"
        warning = "WARNING: less than an hour left; " if minutes < 60 else ""
        consequence = f"{self.cloud} then deletes it with its data; cluster.extend(hours=2) postpones that"
        return f"expires at {expires:%Y-%m-%d %H:%M} UTC, in {left}: {warning}{consequence}"

    def delete(self) -> None:
        """Delete the cluster and its resources; idempotent. An error names what remains, and its cost."""
        info = self._describe()
        if info is not None and info.state in self.ready_states:
            self._write_kubeconfig()
            release(self.kube, about=self.title)
        self.delete_at(self.session, self.name)
        self.store.forget(self.name, self._location())

    @classmethod
    def delete_at(cls, session: Session, name: str) -> None:
        """Delete a cluster's resources, whether or not the cluster itself exists, and verify it."""
        title = f'cluster "{name}" in {cls.where(session)}'
        cleanup.delete_kubeconfigs(name)
        kubeconfigs.remove(name)
        with Steps(title, clock=cls.clock) as steps:
            cls._delete(session, name, steps)
        if remaining := cls.find_resources(session, name):
            listed = (f"{resource.name} {resource.id} {resource.costs}".rstrip() for resource in remaining)
            raise ProviderFailed(
                f"resources remain, and may cost: {'; '.join(listed)}",
                about=title,
                fix=f"delete it again; if that fails too, docs/{cls.provider}.md says how to do it by hand",
            )

    def _machines_of(self, spec: CloudSpec) -> Machines:
        if spec.machines is None:
            raise ProviderFailed("it has no training nodes yet", about=self.title, fix=self._create_call)
        return spec.machines

    @property
    def title(self) -> str:
        """For messages: ``cluster "lab" in us-west-2``."""
        return f'cluster "{self.name}" in {self.where(self.session)}'


@checked
def preflight(
    provider: str | Cluster, *, name: str = DEFAULT_CLUSTER, nodes: int = 4, **options: object
) -> Report:
    """Check what may prevent creating a cluster: credentials, permissions, quotas, zones, names.

    For an existing cluster, check what it and its namespace allow: RBAC, Pod Security, quotas, storage,
    policies, nodes, images, operators; rights in one namespace suffice. Nothing is created.

    `create_cluster` runs the same checks before anything is charged.

    Args:
        provider: As for `create_cluster`; or a cluster.
        name: As for `create_cluster`.
        nodes: As for `create_cluster`.
        options: As for `create_cluster`.

    Returns:
        A report with a row for each check and its fix; ``raise_failures()`` raises its failures.

    Example:
        >>> preflight("eks", region="us-west-2", instance_type="g4dn.xlarge", nodes=2)
    """
    if isinstance(provider, Cluster):
        return check_cluster(provider)
    shape = Shape(nodes=nodes, options=options)
    cluster_class = provider_class(provider)
    if issubclass(cluster_class, CloudCluster):
        return cluster_class.preflight(name, shape)
    message = f"the provider {provider} needs no account and costs nothing"
    return Report(f'cluster "{name}"', (ok("account", message),))
