"""Creating and changing a cluster at Google Cloud, from top to bottom; `requests.yaml` has what is asked for.

Each ``ensure_`` finds a resource, creates it if it does not exist, and refuses one that is not the kit's; so
a second call continues after the first, wherever that died.
"""

import logging
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any

from kitlib.errors import ProviderFailed
from kitlib.k8s.manifests import merge
from trainyard_kit.clouds.cloud_errors import ErrorReason
from trainyard_kit.clouds.gke import machines, parts
from trainyard_kit.clouds.gke.client_errors import ErrorReply, GcpError, to_error
from trainyard_kit.clouds.gke.iam import GRACE, ending_condition, project_part, set_roles
from trainyard_kit.clouds.gke.machines import GkePlan
from trainyard_kit.clouds.gke.operations import LONGEST, POLL, Operation, Operations, failure_of
from trainyard_kit.clouds.gke.parts import Part
from trainyard_kit.clouds.gke.session import GcpSession
from trainyard_kit.clouds.launches import AWAKE
from trainyard_kit.clouds.price_table import SYSTEM_DISK_GB
from trainyard_kit.clouds.steps import Phase, Steps
from trainyard_kit.clouds.tags import Tags

TRAINING_STEP = "training pool"
log = logging.getLogger(__name__)
UP, BROKEN = ("RUNNING", "DEGRADED", "RECONCILING", "RUNNING_WITH_ERROR"), ("ERROR", "STOPPING")


def create(session: GcpSession, plan: GkePlan, steps: Steps) -> None:
    """Create all of a cluster, or continue."""
    for name, request in parts.REQUESTS.items():
        words = AWAKE if name == TRAINING_STEP else ""
        steps.update(name, Phase.WAITS, words, usual=request["usual"])
    make = Creation(session, plan.tags, steps)
    make.own(make.parts["cluster"])  # one that is not the kit's the schedules would delete
    make.ensure_account("expiry")
    make.ensure_schedules()
    make.ensure_account("nodes")
    if "network" not in plan.request:
        for name in ("network", "subnet", *(("router",) if plan.private else ())):
            make.ensure(name)
    make.ensure("bucket")
    make.ensure("repository")
    make.grant("repository", "nodes", "roles/artifactregistry.reader", make.member("nodes"))
    make.ensure_cluster(plan)
    make.ensure_end()
    make.grant("bucket", "pods", "roles/storage.objectUser", make.pods())
    if plan.machines.count:
        make.ensure_training_pool(plan)


class Creation:
    """What creates the resources of one cluster; an end that was set before counts."""

    def __init__(self, session: GcpSession, tags: Tags, steps: Steps) -> None:
        self.session, self.tags, self.steps, self.name = session, tags, steps, tags.cluster
        self.operations, self.parts = Operations(session, steps), parts.parts(session, tags.cluster)

    def body(self, name: str, more: dict[str, Any], key: str = "post") -> dict[str, Any]:
        values: dict[str, Any] = {
            **parts.addresses(self.session, self.name),
            "path": self.parts[name].path,
            "labels": parts.labels(self.tags, self.session),
            "description": parts.description(self.tags, self.session),
        }
        filled: dict[str, Any] = parts.fill(parts.REQUESTS[name][key], values | more)
        return filled

    def ensure(self, name: str, **more: object) -> dict[str, Any] | None:
        """Create a resource if it does not exist; returns it as it was before, or None."""
        part, body = self.parts[name], self.body(name, more)
        with self.steps.step(name):
            if (item := self.own(part)) is not None:
                return item
            where = part.path.rpartition("/")[0]
            call = partial(self.session.request, "POST", part.service, where, body, **part.query)
            if (operation := self.operations.create(name, call)) is None:
                return self.own(part)
            self.operations.wait_operation(name, part.service, operation)
        return None

    def ensure_account(self, role: str, *, exact: bool = False) -> None:
        """Create a service account with its roles; the description of the expiry's has the end."""
        part, words = self.parts[f"account {role}"], parts.description(self.tags, self.session)
        before = self.ensure(part.name)
        before_tags = parts.tags_of(before)
        end = before_tags.expires if before_tags else None
        if before is None:
            self.operations.account_created()
        elif role == "expiry" and not exact and before_tags and end and end > datetime.now(UTC):
            self.tags = before_tags
        elif before["description"] != words:
            body = {"serviceAccount": {"description": words}, "updateMask": "description"}
            self.send(part, "PATCH", part.path, body)
        ending = {"condition": ending_condition(self.tags)} if role == "expiry" else {}
        bindings = [{"role": name, **ending} for name in parts.ROLES[role]]
        project, step = project_part(self.session), f"rights {role}"
        set_roles(self.operations, step, project, self.member(role), bindings)

    def ensure_schedules(self) -> None:
        """Have Cloud Scheduler delete the training pool at the expiry, and the cluster 15 minutes later."""
        for name, when in zip(parts.ENDS, end_times(self.tags.end), strict=True):
            part, due = self.parts[name], cron(when)
            before = self.ensure(name, cron=due)
            if before is not None and before.get("schedule") != due:
                self.send(part, "PATCH", part.path, self.body(name, {"cron": due}))
            if before is not None and before.get("state") == "PAUSED":
                self.send(part, "POST", f"{part.path}:resume", {})

    def ensure_cluster(self, plan: GkePlan) -> None:
        """Create the cluster with a small pool for what Kubernetes runs, and no upgrades until its end."""
        own_labels = parts.labels(self.tags, self.session)
        machine = {"machine_type": machines.SYSTEM_MACHINE, "disk_gb": SYSTEM_DISK_GB}
        machine |= {"disk_type": machines.disk_type(machines.SYSTEM_MACHINE)}
        more = {"maintenance": maintenance(self.tags), "private": plan.private, **machine}
        body = self.body("cluster", more)
        if plan.allowed_cidrs:
            blocks = [{"cidrBlock": cidr} for cidr in plan.allowed_cidrs]
            allowed = {"authorizedNetworksConfig": {"enabled": True, "cidrBlocks": blocks}}
            ways = {"enabled": True, "enablePublicEndpoint": True, **allowed}
            body["controlPlaneEndpointsConfig"] = {"ipEndpointsConfig": ways}
        elsewhere: dict[str, Any] = (
            {"subnetwork": None} if "network" in plan.request else {}
        )  # which is GKE's choice then
        body = merge(merge(body, {**elsewhere, **plan.request}), {"resourceLabels": own_labels})
        self._ensure_running("cluster", {"cluster": body})

    def ensure_end(self) -> None:
        """Have the cluster's labels and its exclusion from upgrades be those of its end."""
        part, step = self.parts["cluster"], "end on the cluster"
        cluster = self.own(part)
        assert cluster is not None  # it was just created, or exists
        resource_labels = cluster["resourceLabels"] | parts.labels(self.tags, self.session)
        if cluster["resourceLabels"] == resource_labels:
            return
        version = cluster.get("maintenancePolicy", {}).get("resourceVersion", "")
        policy = {"maintenancePolicy": maintenance(self.tags) | {"resourceVersion": version}}
        own_labels = {"resourceLabels": resource_labels, "labelFingerprint": cluster["labelFingerprint"]}
        with self.steps.step(step):
            self.operations.change(step, "POST", f"{part.path}:setMaintenancePolicy", policy)
            self.operations.change(step, "POST", f"{part.path}:setResourceLabels", own_labels)

    def ensure_training_pool(self, plan: GkePlan) -> None:
        """Create the training nodes; where a zone has none left, in the next one of the region, if agreed."""
        zone, zones = self.session.zone, None
        while True:
            try:
                return self._ensure_running(TRAINING_STEP, {"nodePool": self._pool(plan, zone)})
            except GcpError as error:
                if error.why is not ErrorReason.STOCKOUT:
                    raise
                zones = machines.next_zones(self.session, plan.machines) if zones is None else zones
                if not zones or not plan.confirm:  # no question: the browser may be closed by now
                    alternative = f"`confirm=True` takes {zones[0]}, for the same price; or " if zones else ""
                    error.fix = f"call it again: {alternative}another accelerator; or later"
                    raise
                zone = zones.pop(0)

    def _pool(self, plan: GkePlan, zone: str) -> dict[str, Any]:
        nodes, hours = plan.machines, (self.tags.end - datetime.now(UTC)) / timedelta(hours=1)
        values = {
            "pool_zone": zone,
            "count": nodes.count,
            "least": plan.least,
            "machine_type": nodes.type,
            "disk_gb": nodes.disk_gb,
            "disk_type": machines.disk_type(nodes.type),
            "spot": nodes.spot,
            "accelerator": nodes.accelerator,
            "gpus": str(nodes.gpus),
            "seconds": round(3600 * min(max(hours, 1), machines.FLEX_DAYS * 24)),
        }
        pool = self.body(TRAINING_STEP, values)
        for template, applies in (("with_gpus", nodes.accelerator), ("flex_start", nodes.flex_start)):
            if applies:
                pool = merge(pool, self.body(TRAINING_STEP, values, template))
        return pool

    def pods(self) -> str:
        """The cluster's pods, as a member of policies, by workload identity.

        https://cloud.google.com/kubernetes-engine/docs/concepts/workload-identity#principal-id-examples
        """
        cluster = f"https://container.googleapis.com/v1/{self.parts['cluster'].path}"
        pool = f"projects/{self.session.number}/locations/global/workloadIdentityPools/{self.session.project}"
        return f"principalSet://iam.googleapis.com/{pool}.svc.id.goog/kubernetes.cluster/{cluster}"

    def member(self, role: str) -> str:
        return f"serviceAccount:{parts.account(self.session, role, self.name)}"

    def grant(self, name: str, who: str, role: str, member: str) -> None:
        set_roles(self.operations, f"{name} for {who}", self.parts[name], member, [{"role": role}])

    def own(self, part: Part) -> dict[str, Any] | None:
        """Find a resource; refuse one that is not the kit's."""
        item = part.get(self.session)
        if item is not None and not parts.is_ours(item, self.name):
            what = f"a {part.name} of this name exists, and is not the kit's: it is left alone"
            fix = "choose another name for the cluster"
            raise GcpError(what, about=part.path, fix=fix, why=ErrorReason.TAKEN)
        return item

    def send(self, part: Part, verb: str, path: str, body: Mapping[str, Any]) -> None:
        """Send a request about a resource, again while Google Cloud is busy."""
        self.operations.send(part.name, partial(self.session.request, verb, part.service, path, body))

    def _ensure_running(self, step: str, body: Mapping[str, Any]) -> None:
        """Create a cluster or node pool, in place of one that failed, and wait until it runs."""
        session, operations, clock = self.session, self.operations, self.steps.clock
        part = self.parts[step]
        with self.steps.step(step):
            item = part.get(session)
            if item is not None and item["status"] in BROKEN:
                operations.change(step, "DELETE", part.path)
                item = part.get(session)
            operation: Operation | None = None
            if item is None:
                parent = part.path.rpartition("/")[0]
                call = partial(session.request, "POST", part.service, parent, body)
                operation = operations.create(step, call)
            end = clock.now() + LONGEST
            pool = machines.TRAINING if step == TRAINING_STEP else machines.SYSTEM
            watch = machines.launch_watch(session, self.name, clock, pool)
            while True:
                operations.wait_operation(step, "container", operation, watch=watch)
                item = part.get(session) or {"status": "GONE", "statusMessage": "it was deleted meanwhile"}
                words = failure_of(item) or item.get("statusMessage") or "it gave no reason"
                if item["status"] in UP:
                    if item["status"] == "RUNNING_WITH_ERROR":
                        log.warning("%s: not all of it runs: %s", part.path, words)
                    return
                if item["status"] != "PROVISIONING":
                    raise to_error(ErrorReply(400, "", words), part.path, session.project)
                if clock.now() >= end:
                    what, fix = "it is still provisioning", "call it again to continue"
                    raise ProviderFailed(what, about=part.path, fix=fix)
                self.steps.sleep(POLL)
                operation = operations.running(part.path)  # of who was faster


def maintenance(tags: Tags) -> dict[str, Any]:
    """The exclusion from all upgrades until the end; GKE allows 30 days.

    https://cloud.google.com/kubernetes-engine/docs/concepts/maintenance-windows-and-exclusions
    """
    now = datetime.now(UTC)
    times = {"startTime": now, "endTime": max(tags.end, now + GRACE)}
    window: dict[str, Any] = {key: f"{when:%Y-%m-%dT%H:%M:%SZ}" for key, when in times.items()}
    window["maintenanceExclusionOptions"] = {"scope": "NO_UPGRADES"}
    return {"window": {"maintenanceExclusions": {"trainyard": window}}}


def end_times(end: datetime) -> tuple[datetime, datetime, datetime]:
    """When the schedules begin: they repeat until midnight, which may be soon, so one has the day after."""
    cluster = end + timedelta(minutes=15)
    midnight = (cluster.astimezone(UTC) + timedelta(days=1)).replace(
        hour=0, minute=5, second=0, microsecond=0
    )
    return end, cluster, midnight


def cron(when: datetime) -> str:
    """A schedule that begins at a moment, rounded up to the minute, and repeats each hour of that day.

    Cloud Scheduler repeats what is refused; a deletion that is accepted and fails later it does not.

    Example:
        >>> cron(datetime(2026, 11, 22, 13, 0, 30, tzinfo=UTC))
        '1 13-23 22 11 *'
    """
    full = when.astimezone(UTC) + timedelta(seconds=59)
    return f"{full.minute} {full.hour}-23 {full.day} {full.month} *"
