"""Create and change a GKE cluster; `requests.yaml` has the bodies of the requests.

Each ``ensure_`` method creates a resource if it does not exist, and raises an error for one that is not the
kit's; so a second call resumes an interrupted one.
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
from trainyard_kit.clouds.gke.iam import GRACE, expiry_condition, project_part, set_roles
from trainyard_kit.clouds.gke.machines import GkePlan
from trainyard_kit.clouds.gke.operations import (
    POLL_SECONDS,
    TIMEOUT_SECONDS,
    Operation,
    Operations,
    failure_message,
)
from trainyard_kit.clouds.gke.parts import Part
from trainyard_kit.clouds.gke.session import GcpSession
from trainyard_kit.clouds.price_table import SYSTEM_DISK_GB
from trainyard_kit.clouds.steps import KEEP_AWAKE, Phase, Steps
from trainyard_kit.clouds.tags import Tags

TRAINING_STEP = "training pool"
log = logging.getLogger(__name__)
UP, BROKEN = ("RUNNING", "DEGRADED", "RECONCILING", "RUNNING_WITH_ERROR"), ("ERROR", "STOPPING")


def create(session: GcpSession, plan: GkePlan, steps: Steps) -> None:
    """Create a cluster's resources, or the missing ones."""
    for name, request in parts.REQUESTS.items():
        message = KEEP_AWAKE if name == TRAINING_STEP else ""
        steps.update(name, Phase.WAITING, message, usual=request["usual"])
    creation = Creation(session, plan.tags, steps)
    creation.get_own(creation.parts["cluster"])  # the schedules would delete one that is not the kit's
    creation.ensure_account("expiry")
    creation.ensure_schedules()
    creation.ensure_account("nodes")
    if "network" not in plan.request:
        for name in ("network", "subnet", *(("router",) if plan.private else ())):
            creation.ensure(name)
    creation.ensure("bucket")
    creation.ensure("repository")
    creation.grant("repository", "nodes", "roles/artifactregistry.reader", creation.member("nodes"))
    creation.ensure_cluster(plan)
    creation.ensure_expiry_labels()
    creation.grant("bucket", "pods", "roles/storage.objectUser", creation.pods())
    if plan.machines.count:
        creation.ensure_training_pool(plan)


class Creation:
    """The creation of one cluster's resources; an expiry that was set before takes precedence."""

    def __init__(self, session: GcpSession, tags: Tags, steps: Steps) -> None:
        self.session, self.tags, self.steps, self.name = session, tags, steps, tags.cluster
        self.operations, self.parts = Operations(session, steps), parts.parts(session, tags.cluster)

    def body(self, name: str, more: dict[str, Any], key: str = "post") -> dict[str, Any]:
        values: dict[str, Any] = {
            **parts.placeholders(self.session, self.name),
            "path": self.parts[name].path,
            "labels": parts.labels(self.tags, self.session),
            "description": parts.description(self.tags, self.session),
        }
        filled: dict[str, Any] = parts.fill(parts.REQUESTS[name][key], values | more)
        return filled

    def ensure(self, name: str, **more: object) -> dict[str, Any] | None:
        """Create a resource if it does not exist; return the existing one, or None if it was created."""
        part, body = self.parts[name], self.body(name, more)
        with self.steps.step(name):
            if (item := self.get_own(part)) is not None:
                return item
            parent = part.path.rpartition("/")[0]
            call = partial(self.session.request, "POST", part.service, parent, body, **part.query)
            if (operation := self.operations.create(name, call)) is None:
                return self.get_own(part)
            self.operations.wait_operation(name, part.service, operation)
        return None

    def ensure_account(self, role: str, *, exact: bool = False) -> None:
        """Create a service account with its roles; the description of the expiry account has the expiry.

        With ``exact`` its expiry is updated; otherwise an existing one in the future is adopted.
        """
        part, text = self.parts[f"account {role}"], parts.description(self.tags, self.session)
        existing = self.ensure(part.name)
        existing_tags = parts.tags_of(existing)
        expires = existing_tags.expires if existing_tags else None
        if existing is None:
            self.operations.account_created()
        elif role == "expiry" and not exact and existing_tags and expires and expires > datetime.now(UTC):
            self.tags = existing_tags
        elif existing["description"] != text:
            body = {"serviceAccount": {"description": text}, "updateMask": "description"}
            self.send(part, "PATCH", part.path, body)
        condition = {"condition": expiry_condition(self.tags)} if role == "expiry" else {}
        bindings = [{"role": name, **condition} for name in parts.ROLES[role]]
        project, step = project_part(self.session), f"roles of {role}"
        set_roles(self.operations, step, project, self.member(role), bindings)

    def ensure_schedules(self) -> None:
        """Schedule the deletion of the training pool at the expiry, and of the cluster 15 minutes later."""
        for name, when in zip(parts.EXPIRY_JOBS, expiry_times(self.tags.end), strict=True):
            part, schedule = self.parts[name], cron(when)
            existing = self.ensure(name, cron=schedule)
            if existing is not None and existing.get("schedule") != schedule:
                self.send(part, "PATCH", part.path, self.body(name, {"cron": schedule}))
            if existing is not None and existing.get("state") == "PAUSED":
                self.send(part, "POST", f"{part.path}:resume", {})

    def ensure_cluster(self, plan: GkePlan) -> None:
        """Create the cluster with a small system pool, and no upgrades until it expires."""
        own_labels = parts.labels(self.tags, self.session)
        values = {
            "maintenance": maintenance(self.tags),
            "private": plan.private,
            "machine_type": machines.SYSTEM_MACHINE,
            "disk_gb": SYSTEM_DISK_GB,
            "disk_type": machines.disk_type(machines.SYSTEM_MACHINE),
        }
        body = self.body("cluster", values)
        if plan.cidrs:
            blocks = [{"cidrBlock": cidr} for cidr in plan.cidrs]
            networks = {"authorizedNetworksConfig": {"enabled": True, "cidrBlocks": blocks}}
            endpoints = {"enabled": True, "enablePublicEndpoint": True, **networks}
            body["controlPlaneEndpointsConfig"] = {"ipEndpointsConfig": endpoints}
        if "network" in plan.request:  # GKE chooses the subnetwork by default
            body = merge(body, {"subnetwork": None})
        body = merge(merge(body, plan.request), {"resourceLabels": own_labels})
        self._ensure_running("cluster", {"cluster": body})

    def ensure_expiry_labels(self) -> None:
        """Update the cluster's labels and its exclusion from upgrades to the expiry."""
        part, step = self.parts["cluster"], "expiry on the cluster"
        cluster = self.get_own(part)
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
        """Create the training nodes; if a zone has no capacity and the cost is accepted, in the next zone."""
        zone, zones = self.session.zone, None
        while True:
            try:
                return self._ensure_running(TRAINING_STEP, {"nodePool": self._pool(plan, zone)})
            except GcpError as error:
                if error.reason is not ErrorReason.STOCKOUT:
                    raise
                zones = machines.next_zones(self.session, plan.machines) if zones is None else zones
                if not zones or not plan.confirm:  # no prompt: the user may have left
                    alternative = f"`confirm=True` uses {zones[0]}, for the same price; or " if zones else ""
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
        """The cluster's pods as a member of IAM policies, by workload identity.

        https://cloud.google.com/kubernetes-engine/docs/concepts/workload-identity#principal-id-examples
        """
        cluster = f"https://container.googleapis.com/v1/{self.parts['cluster'].path}"
        pool = f"projects/{self.session.number}/locations/global/workloadIdentityPools/{self.session.project}"
        return f"principalSet://iam.googleapis.com/{pool}.svc.id.goog/kubernetes.cluster/{cluster}"

    def member(self, role: str) -> str:
        return f"serviceAccount:{parts.account(self.session, role, self.name)}"

    def grant(self, name: str, title: str, role: str, member: str) -> None:
        set_roles(self.operations, f"{name} for {title}", self.parts[name], member, [{"role": role}])

    def get_own(self, part: Part) -> dict[str, Any] | None:
        """Get a resource; None if it does not exist; raise GcpError if it is not the kit's."""
        item = part.get(self.session)
        if item is not None and not parts.is_ours(item, self.name):
            what = f"a {part.name} of this name exists, and is not the kit's"
            fix = "choose another name for the cluster"
            raise GcpError(what, about=part.path, fix=fix, reason=ErrorReason.TAKEN)
        return item

    def send(self, part: Part, verb: str, path: str, body: Mapping[str, Any]) -> None:
        """Send a request about a resource, again while another operation is in progress."""
        self.operations.send(part.name, partial(self.session.request, verb, part.service, path, body))

    def _ensure_running(self, step: str, body: Mapping[str, Any]) -> None:
        """Create a cluster or node pool, replacing a failed one, and wait until it is running."""
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
            deadline = clock.now() + TIMEOUT_SECONDS
            pool = machines.TRAINING if step == TRAINING_STEP else machines.SYSTEM
            watch = machines.launch_watch(session, self.name, clock, pool)
            while True:
                operations.wait_operation(step, "container", operation, watch=watch)
                item = part.get(session) or {"status": "GONE", "statusMessage": "it was deleted meanwhile"}
                message = failure_message(item) or item.get("statusMessage") or "no reason was given"
                if item["status"] in UP:
                    if item["status"] == "RUNNING_WITH_ERROR":
                        log.warning("%s: running with errors: %s", part.path, message)
                    return
                if item["status"] != "PROVISIONING":
                    raise to_error(ErrorReply(400, "", message), part.path, session.project)
                if clock.now() >= deadline:
                    what, fix = "it is still provisioning", "call it again to continue"
                    raise ProviderFailed(what, about=part.path, fix=fix)
                self.steps.sleep(POLL_SECONDS)
                operation = operations.running(part.path)  # started by another call


def maintenance(tags: Tags) -> dict[str, Any]:
    """The exclusion from all upgrades until the expiry; GKE allows 30 days.

    https://cloud.google.com/kubernetes-engine/docs/concepts/maintenance-windows-and-exclusions
    """
    now = datetime.now(UTC)
    times = {"startTime": now, "endTime": max(tags.end, now + GRACE)}
    window: dict[str, Any] = {key: f"{when:%Y-%m-%dT%H:%M:%SZ}" for key, when in times.items()}
    window["maintenanceExclusionOptions"] = {"scope": "NO_UPGRADES"}
    return {"window": {"maintenanceExclusions": {"trainyard": window}}}


def expiry_times(expiry: datetime) -> tuple[datetime, datetime, datetime]:
    """When the three schedules begin; the first two end at midnight, so a third covers the next day."""
    cluster = expiry + timedelta(minutes=15)
    next_day = cluster.astimezone(UTC) + timedelta(days=1)
    return expiry, cluster, next_day.replace(hour=0, minute=5, second=0, microsecond=0)


def cron(when: datetime) -> str:
    """A schedule that begins at a time, rounded up to the minute, and repeats each hour of that day.

    Cloud Scheduler retries a rejected request, but not a deletion that is accepted and fails later.

    Example:
        >>> cron(datetime(2026, 11, 22, 13, 0, 30, tzinfo=UTC))
        '1 13-23 22 11 *'
    """
    minute = when.astimezone(UTC) + timedelta(seconds=59)
    return f"{minute.minute} {minute.hour}-23 {minute.day} {minute.month} *"
