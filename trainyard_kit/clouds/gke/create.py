"""Creating and changing a cluster at Google Cloud, from top to bottom; `requests.yaml` has what is asked for.

Each ``ensure_`` finds a resource, creates it if it does not exist, and refuses one that is not the kit's; so
a second call continues after the first, wherever that died.
"""

import logging
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any

import yaml

from kitlib.errors import ProviderFailed
from kitlib.k8s.manifests import merge
from trainyard_kit.clouds.cloud_errors import ErrorReason
from trainyard_kit.clouds.gke.client_errors import ErrorReply, GcpError, to_error
from trainyard_kit.clouds.gke.iam import GRACE, ending_condition, project_part, set_roles
from trainyard_kit.clouds.gke.machines import (
    FLEX_DAYS,
    SYSTEM,
    SYSTEM_MACHINE,
    TRAINING,
    GkePlan,
    disk_type,
    launch_watch,
    next_zones,
)
from trainyard_kit.clouds.gke.operations import CLUSTERS, LONGEST, POLL, Operation, Operations, failure_of
from trainyard_kit.clouds.gke.parts import (
    ENDS,
    ROLES,
    Part,
    account,
    description,
    is_ours,
    labels,
    parts,
    tags_of,
)
from trainyard_kit.clouds.gke.session import GcpSession
from trainyard_kit.clouds.gke.token import SCOPE
from trainyard_kit.clouds.launches import AWAKE
from trainyard_kit.clouds.price_table import SYSTEM_DISK_GB
from trainyard_kit.clouds.steps import Phase, Steps
from trainyard_kit.clouds.tags import Tags

TRAINING_STEP = "training pool"
log = logging.getLogger(__name__)
USUAL = {  # seconds
    **dict.fromkeys(("account expiry", "rights expiry", *ENDS.values()), 2),
    **dict.fromkeys(("account nodes", "rights nodes"), 2),
    "network": 30,
    "subnet": 20,
    "router": 20,
    "bucket": 2,
    "repository": 8,
    "cluster": 360,
    TRAINING_STEP: 180,
}
UP, BROKEN = ("RUNNING", "DEGRADED", "RECONCILING", "RUNNING_WITH_ERROR"), ("ERROR", "STOPPING")


def create(session: GcpSession, plan: GkePlan, steps: Steps) -> None:
    """Create all of a cluster, or continue."""
    for name, seconds in USUAL.items():
        steps.update(name, Phase.WAITS, AWAKE if name == TRAINING_STEP else "", usual=seconds)
    make = Creation(session, plan.tags, steps)
    make._own(make.parts["cluster"])  # one that is not the kit's the schedules would delete
    make.ensure_account("expiry")
    make.ensure_project_role("expiry")
    make.ensure_schedules()
    make.ensure_account("nodes")
    make.ensure_project_role("nodes")
    if "network" not in plan.request:
        make.ensure_compute("network", project=session.project)
        make.ensure_compute("subnet", network=True, **make.here)
        if plan.private:
            make.ensure_compute("router", network=True, **make.here)
    make.ensure_bucket()
    make.ensure_repository()
    make.ensure_cluster(plan)
    make.ensure_end()
    make.ensure_bucket_access()
    if plan.machines.count:
        make.ensure_training_pool(plan)


def extend(session: GcpSession, tags: Tags, steps: Steps) -> None:
    """Move the end of a cluster to that of the tags."""
    make = Creation(session, tags, steps)
    make.ensure_account("expiry", exact=True)
    make.ensure_project_role("expiry")
    make.ensure_schedules()
    make.ensure_end()


def scale(session: GcpSession, cluster: str, nodes: int, steps: Steps) -> None:
    """Set the size of the training pool, and the limit to which it grows; 0 keeps it from growing."""
    path, operations = f"{session.parent}/clusters/{cluster}/nodePools/{TRAINING}", Operations(session, steps)
    with steps.step(TRAINING_STEP):
        pool = session.rest("container", f"{CLUSTERS}.nodePools.get", name=path)
        least = min(pool.get("autoscaling", {}).get("minNodeCount", 0), nodes)
        limits = {"enabled": nodes > 0, "minNodeCount": least, "maxNodeCount": nodes}
        change = partial(operations.change, TRAINING_STEP, name=path)
        change("nodePools.setAutoscaling", body={"autoscaling": limits})
        if pool["config"].get("flexStart") and nodes:
            return  # the autoscaler asks for machines when pods do
        watch = launch_watch(session, cluster, steps.clock)
        change("nodePools.setSize", watch=watch, body={"nodeCount": nodes})


class Creation:
    """What creates the resources of one cluster; an end that was set before counts."""

    def __init__(self, session: GcpSession, tags: Tags, steps: Steps) -> None:
        self.session, self.tags, self.steps = session, tags, steps
        self.name, self.root = tags.cluster, f"projects/{session.project}"
        self.here = {"project": session.project, "region": session.region}
        self.operations, self.parts = Operations(session, steps), parts(session, tags.cluster)
        self.bodies = yaml.safe_load(Path(__file__).with_name("requests.yaml").read_text(encoding="utf-8"))

    def ensure_account(self, role: str, *, exact: bool = False) -> None:
        """Create a service account; that of the expiry comes first, and its description has the end."""
        part, words = self.parts[f"account {role}"], description(self.tags, self.session)
        about = {"displayName": f"Trainyard {self.name}: {role}", "description": words}
        body = {"accountId": part.id.rpartition("/")[2].partition("@")[0], "serviceAccount": about}
        if (before := self._ensure(part, "create", name=self.root, body=body)) is None:
            self.operations.account_created()
            return
        before_tags = tags_of(before)
        if (
            role == "expiry"
            and not exact
            and before_tags
            and before_tags.expires
            and before_tags.expires > datetime.now(UTC)
        ):
            self.tags = before_tags
        elif before["description"] != words:
            body = {"serviceAccount": {"description": words}, "updateMask": "description"}
            self._send(part, "patch", name=part.id, body=body)

    def ensure_project_role(self, role: str) -> None:
        """Grant a service account its roles in the project; that of the expiry until two days after it."""
        ending = {"condition": ending_condition(self.tags)} if role == "expiry" else {}
        bindings = [{"role": name, **ending} for name in ROLES[role]]
        project, member = project_part(self.session), self._member(role)
        set_roles(self.operations, f"rights {role}", project, member, bindings)

    def ensure_schedules(self) -> None:
        """Have Cloud Scheduler delete the training pool at the expiry, and the cluster 15 minutes later."""
        sender = {"serviceAccountEmail": account(self.session, "expiry", self.name), "scope": SCOPE}
        for what, when in end_times(self.tags.end).items():
            part, path = self.parts[ENDS[what]], self.parts["cluster"].id
            path += f"/nodePools/{TRAINING}" if what == "training" else ""
            target = {"uri": f"https://container.googleapis.com/v1/{path}", "httpMethod": "DELETE"}
            body = {
                **self.bodies["schedule"],
                "name": part.id,
                "description": description(self.tags, self.session),
                "schedule": cron(when),
                "httpTarget": target | {"oauthToken": sender},
            }
            before = self._ensure(part, "create", parent=part.id.rpartition("/jobs/")[0], body=body)
            if before is not None and before.get("schedule") != body["schedule"]:
                self._send(part, "patch", name=part.id, body=body)
            if before is not None and before.get("state") == "PAUSED":
                self._send(part, "resume", name=part.id, body={})

    def ensure_bucket(self) -> None:
        """Create a bucket that is closed to the public."""
        part, bucket_labels = self.parts["bucket"], labels(self.tags, self.session)
        body = {"name": part.id, "location": self.session.region.upper(), "labels": bucket_labels}
        self._ensure(part, "insert", project=self.session.project, body=body | self.bodies["bucket"])

    def ensure_repository(self) -> None:
        """Create a repository of images, from which nodes pull."""
        part = self.parts["repository"]
        parent, _, name = part.id.rpartition("/repositories/")
        body = self.bodies["repository"] | {"labels": labels(self.tags, self.session)}
        self._ensure(part, "create", parent=parent, repositoryId=name, body=body)
        self._grant(part, "nodes", "roles/artifactregistry.reader")

    def ensure_cluster(self, plan: GkePlan) -> None:
        """Create the cluster with a small pool for what Kubernetes runs, and no upgrades until its end."""
        network_name, own_labels = f"trainyard-{self.name}", labels(self.tags, self.session)
        body = self.bodies["cluster"] | {
            "name": self.name,
            "maintenancePolicy": maintenance(self.tags),
            **({} if "network" in plan.request else {"network": network_name, "subnetwork": network_name}),
            "workloadIdentityConfig": {"workloadPool": f"{self.session.project}.svc.id.goog"},
        }
        body["networkConfig"]["defaultEnablePrivateNodes"] = plan.private
        body["nodePools"][0]["config"] = self._node(SYSTEM_MACHINE, SYSTEM_DISK_GB)
        if plan.allowed_cidrs:
            blocks = [{"cidrBlock": cidr} for cidr in plan.allowed_cidrs]
            allowed = {"authorizedNetworksConfig": {"enabled": True, "cidrBlocks": blocks}}
            ways = {"enabled": True, "enablePublicEndpoint": True, **allowed}
            body["controlPlaneEndpointsConfig"] = {"ipEndpointsConfig": ways}
        body = merge(merge(body, plan.request), {"resourceLabels": own_labels})
        self._ensure_container("cluster", self.parts["cluster"].id, {"cluster": body})

    def ensure_end(self) -> None:
        """Have the cluster's labels and its exclusion from upgrades be those of its end."""
        cluster, path, step = self._own(self.parts["cluster"]), self.parts["cluster"].id, "end on the cluster"
        resource_labels = cluster["resourceLabels"] | labels(self.tags, self.session)
        if cluster["resourceLabels"] == resource_labels:
            return
        version = cluster.get("maintenancePolicy", {}).get("resourceVersion", "")
        policy = {"maintenancePolicy": maintenance(self.tags) | {"resourceVersion": version}}
        own_labels = {"resourceLabels": resource_labels, "labelFingerprint": cluster["labelFingerprint"]}
        with self.steps.step(step):
            self.operations.change(step, "setMaintenancePolicy", name=path, body=policy)
            self.operations.change(step, "setResourceLabels", name=path, body=own_labels)

    def ensure_bucket_access(self) -> None:
        """Let the cluster's pods use its bucket, by workload identity.

        https://cloud.google.com/kubernetes-engine/docs/concepts/workload-identity#principal-id-examples
        """
        cluster = f"https://container.googleapis.com/v1/{self.parts['cluster'].id}"
        pool = f"projects/{self.session.number}/locations/global/workloadIdentityPools/{self.session.project}"
        member = f"principalSet://iam.googleapis.com/{pool}.svc.id.goog/kubernetes.cluster/{cluster}"
        self._grant(self.parts["bucket"], "pods", "roles/storage.objectUser", member=member)

    def ensure_training_pool(self, plan: GkePlan) -> None:
        """Create the training nodes; where a zone has none left, in the next one of the region, if agreed."""
        path, zone = f"{self.parts['cluster'].id}/nodePools/{TRAINING}", self.session.zone
        zones: list[str] | None = None
        while True:
            try:
                return self._ensure_container(TRAINING_STEP, path, {"nodePool": self._pool(plan, zone)})
            except GcpError as error:
                if error.why is not ErrorReason.STOCKOUT:
                    raise
                zones = next_zones(self.session, plan.machines) if zones is None else zones
                if not zones or not plan.confirm:  # no question: the browser may be closed by now
                    alternative = f"confirm=True takes {zones[0]}, for the same price; or " if zones else ""
                    error.fix = f"call it again: {alternative}another accelerator; or later"
                    raise
                zone = zones.pop(0)

    def _pool(self, plan: GkePlan, zone: str) -> dict[str, Any]:
        machines = plan.machines
        node = self._node(machines.type, machines.disk_gb)
        node |= {"spot": machines.spot, "labels": {"trainyard/pool": TRAINING}}
        if machines.accelerator:
            gpu = {"acceleratorType": machines.accelerator, "acceleratorCount": str(machines.gpus)}
            node["accelerators"] = [gpu | self.bodies["gpu"]]
        limits: dict[str, Any] = {"enabled": True, "minNodeCount": plan.least, "maxNodeCount": machines.count}
        count = {"initialNodeCount": machines.count, "autoscaling": limits}
        pool = {**self.bodies["pool"], "locations": [zone], "config": node, **count}
        if machines.flex_start:  # its nodes come when pods ask for them, and go when their time is over
            hours = (self.tags.end - datetime.now(UTC)) / timedelta(hours=1)
            seconds = round(3600 * min(max(hours, 1), FLEX_DAYS * 24))
            node |= {**self.bodies["flex"], "maxRunDuration": f"{seconds}s"}
            limits |= {"minNodeCount": 0, "locationPolicy": "ANY"}
            pool |= {"initialNodeCount": 0, "management": {"autoRepair": False, "autoUpgrade": True}}
        return pool

    def _node(self, machine: str, disk_gb: int) -> dict[str, Any]:
        return {
            **self.bodies["node"],
            "machineType": machine,
            "diskSizeGb": disk_gb,
            "diskType": disk_type(machine),
            "serviceAccount": account(self.session, "nodes", self.name),
            "resourceLabels": labels(self.tags, self.session),
        }

    def _member(self, role: str) -> str:
        return f"serviceAccount:{account(self.session, role, self.name)}"

    def _grant(self, part: Part, who: str, *roles: str, member: str = "") -> None:
        bindings, step = [{"role": role} for role in roles], f"{part.name} for {who}"
        set_roles(self.operations, step, part, member or self._member(who), bindings)

    def _own(self, part: Part) -> Any:
        """Find a resource; refuse one that is not the kit's."""
        item = part.get(self.session)
        if item is not None and not is_ours(item, self.name):
            what = f"a {part.name} of this name exists, and is not the kit's: it is left alone"
            fix = "choose another name for the cluster"
            raise GcpError(what, about=part.id, fix=fix, why=ErrorReason.TAKEN)
        return item

    def _send(self, part: Part, verb: str, **given: Any) -> dict[str, Any]:
        method = f"{part.collection}.{verb}"
        return self.operations.send(part.name, lambda: self.session.rest(part.service, method, **given))

    def _ensure(self, part: Part, verb: str, **given: Any) -> Any:
        """Create a resource if it does not exist; returns it as it was before, or None."""
        with self.steps.step(part.name):
            if (item := self._own(part)) is not None:
                return item
            call = lambda: self.session.rest(part.service, f"{part.collection}.{verb}", **given)  # noqa: E731
            if (operation := self.operations.create(part.name, call)) is None:
                return self._own(part)
            self.operations.wait_operation(part.name, part.service, operation)
        return None

    def ensure_compute(self, name: str, *, network: bool = False, **where: str) -> None:
        """Create a network, or inside of it a subnet or a router: all that is in it is the cluster's."""
        words, title = description(self.tags, self.session), f"trainyard-{self.name}"
        inside = {"network": f"{self.root}/global/networks/{title}"} if network else {}
        body = {**self.bodies[name], "name": title, "description": words, **inside}
        self._ensure(self.parts[name], "insert", body=body, **where)

    def _ensure_container(self, step: str, path: str, body: Mapping[str, Any]) -> None:
        """Create a cluster or node pool, in place of one that failed, and wait until it runs."""
        session, operations, clock = self.session, self.operations, self.steps.clock
        parent, _, pool = (
            path.rpartition("/nodePools/") if "/nodePools/" in path else (session.parent, "", "")
        )
        collection = "nodePools." if pool else ""
        get = partial(session.find, "container", f"{CLUSTERS}.{collection}get", name=path)
        with self.steps.step(step):
            item = get()
            if item is not None and item["status"] in BROKEN:
                operations.change(step, f"{collection}delete", name=path)
                item = get()
            operation: Operation | None = None
            if item is None:
                method = f"{CLUSTERS}.{collection}create"
                operation = operations.create(
                    step, partial(session.rest, "container", method, parent=parent, body=body)
                )
            end = clock.now() + LONGEST
            watch = launch_watch(session, self.name, clock, pool or SYSTEM)
            while True:
                operations.wait_operation(step, "container", operation, watch=watch)
                item = get() or {"status": "GONE", "statusMessage": "it was deleted meanwhile"}
                message = failure_of(item) or item.get("statusMessage") or "it gave no reason"
                if item["status"] in UP:
                    if item["status"] == "RUNNING_WITH_ERROR":
                        log.warning("%s: not all of it runs: %s", path, message)
                    return
                if item["status"] != "PROVISIONING":
                    raise to_error(ErrorReply(400, "", message), path, session.project)
                if clock.now() >= end:
                    what, fix = "it is still provisioning", "call it again to continue"
                    raise ProviderFailed(what, about=path, fix=fix)
                self.steps.sleep(POLL)
                operation = operations.running(path.partition(f"{session.zone}/")[2])  # of who was faster


def maintenance(tags: Tags) -> dict[str, Any]:
    """The exclusion from all upgrades until the end; GKE allows 30 days.

    https://cloud.google.com/kubernetes-engine/docs/concepts/maintenance-windows-and-exclusions
    """
    now = datetime.now(UTC)
    times = {"startTime": now, "endTime": max(tags.end, now + GRACE)}
    window: dict[str, Any] = {key: f"{when:%Y-%m-%dT%H:%M:%SZ}" for key, when in times.items()}
    window["maintenanceExclusionOptions"] = {"scope": "NO_UPGRADES"}
    return {"window": {"maintenanceExclusions": {"trainyard": window}}}


def end_times(end: datetime) -> dict[str, datetime]:
    """When the schedules begin: they repeat until midnight, which may be soon, so one has the day after."""
    cluster = end + timedelta(minutes=15)
    midnight = (cluster.astimezone(UTC) + timedelta(days=1)).replace(
        hour=0, minute=5, second=0, microsecond=0
    )
    return {"training": end, "cluster": cluster, "again": midnight}


def cron(when: datetime) -> str:
    """A schedule that begins at a moment, rounded up to the minute, and repeats each hour of that day.

    Cloud Scheduler repeats what is refused; a deletion that is accepted and fails later it does not.

    Example:
        >>> cron(datetime(2026, 11, 22, 13, 0, 30, tzinfo=UTC))
        '1 13-23 22 11 *'
    """
    full = when.astimezone(UTC) + timedelta(seconds=59)
    return f"{full.minute} {full.hour}-23 {full.day} {full.month} *"
