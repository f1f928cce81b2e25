"""The provider ``gke``: Google Kubernetes Engine clusters in the user's project."""

import re
import sys
from collections.abc import Iterable, Mapping
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Unpack

from kitlib import config
from kitlib.clusters.shape import Shape
from kitlib.display.tables import Text
from kitlib.errors import BadInput
from kitlib.k8s import manifests, names
from kitlib.k8s.quantities import check_count
from kitlib.storage import Volume, persistent_volume, pvc
from trainyard_kit.checks import Check, Report
from trainyard_kit.clouds import spec
from trainyard_kit.clouds.cloud_errors import ErrorReason
from trainyard_kit.clouds.cluster import CloudCluster
from trainyard_kit.clouds.cluster_store import ClusterStore, exec_kubeconfig
from trainyard_kit.clouds.gke import create, delete, machines, parts, preflight, token
from trainyard_kit.clouds.gke.client_errors import GcpError
from trainyard_kit.clouds.gke.credentials import find_credentials
from trainyard_kit.clouds.gke.iam import find_roles
from trainyard_kit.clouds.gke.images import ArtifactRegistry
from trainyard_kit.clouds.gke.machines import GkeInfo, GkePlan
from trainyard_kit.clouds.gke.operations import Operations
from trainyard_kit.clouds.gke.session import GcpSession
from trainyard_kit.clouds.provider import SearchScope
from trainyard_kit.clouds.spec import CloudResource, Machines
from trainyard_kit.clouds.steps import Steps

OPTIONS = {
    "project": "its id; by default that of your Google credentials",
    "zone": "of the machines, such as us-central1-c",
    "accelerator": "GPU type of the training machines, such as nvidia-tesla-t4; by default none",
    "machine_type": "of the training machines; by default one that suits the accelerator",
    "min_nodes": "the autoscaler's minimum of training nodes; by default 0",
    "pool": "False defers the training pool to a second call, which chooses its machines",
    "flex_start": "True queues pods for cheaper GPUs, which run for at most seven days",
    "spot": "True uses spot machines, for less than half of the price",
    "private": "True gives nodes no public address; they use Cloud NAT",
    "allowed_cidrs": 'addresses that may reach the API server, ["203.0.113.0/24"]; by default all',
    "request": "a dict merged into GKE's cluster request: network, resourceLabels, …",
    **spec.COMMON_OPTIONS,
}
NETWORK = ("network", "subnetwork")
RESERVED_FIELDS = {"name", "location", "nodePools", "workloadIdentityConfig", "maintenancePolicy"}
MACHINE_OPTIONS = ("machine_type", "accelerator", "spot", "flex_start")
RETENTION_REASON = "it outlives the cluster, so that no data is lost"
SUBJECTS = {"user": "User", "group": "Group", "serviceAccount": "User"}  # RBAC kinds of IAM members


class GkeCluster(CloudCluster[GcpSession, GkePlan, GkeInfo]):
    provider, cloud, options = "gke", "Google Cloud", OPTIONS
    store = ClusterStore("gke")
    location_attribute, pool, ready_states = "zone", "training", ("running", "reconciling", "degraded")
    price_list, system_machine, retention_reason = "google", machines.SYSTEM_MACHINE, RETENTION_REASON
    credentials = staticmethod(find_credentials)

    @classmethod
    def find(cls, name: str, *, project: str | None = None, zone: str | None = None) -> "GkeCluster | None":
        """Find a cluster in any state.

        Args:
            name: Its name.
            project: Its project; needed once on each machine.
            zone: Its zone; by default looked up.
        """
        stored = cls.store.read(names.validate_name(name, kind="cluster")) or {}
        project, zone = project or stored.get("project"), zone or stored.get("zone")
        if project is None:
            return None
        cluster = cls(name, GcpSession(project, zone or parts.cluster_zones(GcpSession(project)).get(name)))
        if cluster._describe() is None:
            return None
        cluster._write_kubeconfig()
        return cluster

    @classmethod
    def validate_name(cls, name: str) -> str:
        names.validate_name(name, kind="cluster", longest=40)
        if name[0].isdigit():
            what, fix = "a GKE cluster's name begins with a letter", f'`name="c{name}"`'
            raise BadInput(what, about=f'name "{name}"', fix=fix)
        return name

    @classmethod
    def _session(cls, name: str, options: Mapping[str, Any]) -> GcpSession:
        stored = cls.store.read(name) or {}
        zone = options.get("zone") or stored.get("zone")
        if not zone:
            raise BadInput("no zone is given", about='create_cluster("gke")', fix='`zone="us-central1-c"`')
        return GcpSession(options.get("project") or stored.get("project"), str(zone))

    @classmethod
    def sessions(cls, **scope: Unpack[SearchScope]) -> list[GcpSession]:
        return [GcpSession(scope.get("project"))]

    # Describe

    @classmethod
    def clusters(cls, session: GcpSession) -> list[GkeInfo]:
        return [
            _info(cluster)
            for cluster in parts.clusters_of(session)
            if parts.is_ours(cluster, cluster["name"])
        ]

    @classmethod
    def find_resources(cls, session: GcpSession, cluster: str | None = None) -> list[CloudResource]:
        zones, resources = parts.cluster_zones(session), []
        for name in zones if cluster is None else (cluster,):
            zonal = session.at(zones.get(name) or session.zone)
            resources += [part.resource(zonal, name) for part in parts.find_parts(zonal, name)]
            for role in find_roles(session, name):
                kind = "cloudresourcemanager.googleapis.com/Policy"
                resources.append(CloudResource(name, f"roles of {role}", kind, role, session.project))
        return resources

    @classmethod
    def _delete(cls, session: GcpSession, name: str, steps: Steps) -> None:
        delete.delete(session.at(parts.cluster_zones(session).get(name) or session.zone), name, steps)

    def _describe(self) -> GkeInfo | None:
        if not self.session.zone:
            return None
        cluster = parts.parts(self.session, self.name)["cluster"].get(self.session)
        return _info(cluster) if cluster is not None and parts.is_ours(cluster, self.name) else None

    # Plan

    def _make_plan(self, shape: Shape) -> GkePlan:
        options, disk_gb = shape.options, shape.options.get("disk_gb", spec.DISK_GB)
        fix = '`machine_type="e2-standard-4"`, or `accelerator="nvidia-tesla-t4"` for a GPU'
        gpus = shape.gpus if isinstance(shape.gpus, int) else None
        fixed = ("cpus", "memory", *(() if gpus == shape.gpus else ("gpus",)))
        spec.reject_type_fields(shape, fixed, about="gke", cloud="Google Cloud", fix=fix)
        check_count(disk_gb, what="disk_gb", least=30, most=2000)
        kinds = {option: options.get(option) for option in MACHINE_OPTIONS}
        count = shape.nodes if options.get("pool", True) else 0
        plan = GkePlan(
            self._tags(spec.expiry_after(options.get("hours", spec.HOURS))),
            machines.choose(nodes=count, gpus=gpus, disk_gb=disk_gb, **kinds),
            bool(options.get("private")),
            request=_request(options.get("request") or {}),
            cidrs=spec.cidrs_of(options),
            admins=spec.strings_of(options, "admins"),
            least=check_count(options.get("min_nodes", 0), what="min_nodes", least=0, most=count),
            confirm=options.get("confirm") is True,
        )
        for admin in plan.admins:
            _subject(admin)
        return self._keep_expiry(plan)

    def _keep_expiry(self, plan: GkePlan) -> GkePlan:
        """Keep the expiry of an existing cluster; raise BadInput if it is in another zone."""
        try:
            existing, zone = parts.read_expiry_account(self.session, self.name)
        except GcpError as error:
            reported = (ErrorReason.DISABLED, ErrorReason.DENIED, ErrorReason.PROJECT, ErrorReason.BILLING)
            if error.reason not in reported:
                raise
            return plan  # the preflight reports it with all other problems
        if zone and zone != self.session.zone:
            what, fix = f"the kit has a cluster of this name in {zone}", f'`zone="{zone}"`, or another name'
            raise BadInput(what, about=self.title, fix=fix)
        if existing and existing.expires and existing.expires > datetime.now(UTC):
            return replace(plan, tags=existing)
        return plan

    def _reuse_existing(self, info: GkeInfo, plan: GkePlan, shape: Shape) -> GkePlan:
        planned, running = plan.machines, info.machines
        own_network = info.network.rpartition("/")[2] == f"trainyard-{self.name}"
        network = {} if own_network else {"network": info.network, "subnetwork": info.subnetwork}
        request = {key: value for key, value in plan.request.items() if key not in NETWORK}
        plan = replace(plan, private=info.private, request=request | network)
        if running is None:
            return plan
        kinds = [
            (machine.type, machine.accelerator, machine.spot, machine.flex_start)
            for machine in (running, planned)
        ]
        if set(MACHINE_OPTIONS) & set(shape.options) and kinds[0] != kinds[1]:
            options = zip(MACHINE_OPTIONS, kinds[0], strict=True)
            existing = ", ".join(f"{option}={value!r}" for option, value in options)
            raise spec.machines_differ(existing, self.title)
        return replace(plan, machines=replace(running, count=planned.count))

    def _preflight(self, plan: GkePlan) -> Report:
        return preflight.check(self.session, plan)

    def _quotas(self, machines_: Machines, nodes: int, added: int) -> Iterable[Check]:
        plan = GkePlan(self._tags(None), replace(machines_, count=added))
        return preflight.quotas(self.session, plan, new=False)

    # Change

    def _create(self, plan: GkePlan, steps: Steps) -> None:
        create.create(self.session, plan, steps)

    def _scale(self, nodes: int, steps: Steps) -> None:
        step, operations = create.TRAINING_STEP, Operations(self.session, steps)
        path = parts.parts(self.session, self.name)[step].path
        with steps.step(step):
            pool = self.session.request("GET", "container", path)
            least = min(pool.get("autoscaling", {}).get("minNodeCount", 0), nodes)
            limits = {"enabled": nodes > 0, "minNodeCount": least, "maxNodeCount": nodes}
            operations.change(step, "POST", f"{path}:setAutoscaling", {"autoscaling": limits})
            if pool["config"].get("flexStart") and nodes:
                return  # the autoscaler adds nodes for Pending pods
            watch = machines.launch_watch(self.session, self.name, steps.clock)
            operations.change(step, "POST", f"{path}:setSize", {"nodeCount": nodes}, watch=watch)

    def _launch_failures(self) -> dict[str, str]:
        return machines.launch_failures(self.session, self.name)

    def _permanent_failure_fix(self, message: str) -> str:
        error = machines.permanent_error(self.session, message)
        return error.fix if error else ""

    def _extend(self, info: GkeInfo, expiry: datetime, steps: Steps) -> None:
        creation = create.Creation(self.session, replace(info.tags, expires=expiry), steps)
        creation.ensure_account("expiry", exact=True)
        creation.ensure_schedules()
        creation.ensure_expiry_labels()

    def _install_addons(self, plan: GkePlan) -> None:
        labels = ",".join(f"{key}={value}" for key, value in parts.labels(plan.tags, self.session).items())
        network = plan.request.get("network") or f"trainyard-{self.name}"
        self.install_storage_class("storageclass.yaml", {"network": network, "labels": labels})
        for admin in plan.admins:
            self.add_admin(admin)

    def add_admin(self, principal: str) -> Text:
        """Make an IAM member an administrator by a ClusterRoleBinding; to connect they need an IAM role.

        Args:
            principal: An IAM member: ``user:ada@example.org``, ``group:…``, ``serviceAccount:…``.

        Example:
            >>> cluster.add_admin("user:ada@example.org")
            user:ada@example.org administers cluster "lab" in us-central1-c; …
        """
        subject, project = _subject(principal), self.session.project
        (item,) = manifests.read(config.manifests("gke", "admin.yaml"))
        item["metadata"] |= {"name": f"trainyard-admin-{names.slug(subject['name'])}"}
        item["subjects"][0] |= subject
        self.kube.apply(item)
        call = f'`kit.connect("{self.name}", provider="gke", project="{project}")`'
        flags = f"--member={principal} --role=roles/container.clusterViewer"
        command = f"gcloud projects add-iam-policy-binding {project} {flags}"
        return Text(
            f"{principal} administers {self.title}; they connect with {call}, which needs:\n{command}"
        )

    # Use

    def pod_additions(self, *, gpus: int = 0) -> dict[str, object]:
        info = self._describe() if gpus else None
        if info and info.machines and info.machines.flex_start:
            return {"nodeSelector": {machines.FLEX_START: "true"}}
        return super().pod_additions(gpus=gpus)

    def pod_annotations(self, mounted: Iterable[str]) -> Mapping[str, str]:
        """Annotations for pods that mount a bucket, which make GKE add the GCS FUSE sidecar."""
        claims = filter(None, (self.kube.find(pvc.CLAIM, claim) for claim in mounted))
        fuse = any(claim["spec"].get("storageClassName") == persistent_volume.GCS_FUSE for claim in claims)
        return persistent_volume.GCS_FUSE_ANNOTATIONS if fuse else {}

    def create_volume(
        self,
        name: str,
        *,
        size: str = "5Gi",
        storage_class: str | None = None,
        source: Mapping[str, Any] | None = None,
        access_mode: str | None = None,
    ) -> Volume:
        """Create a volume that pods on all nodes can write to, or return the existing one of this name.

        The default class ``gcs-fuse`` is a folder of the cluster's bucket, available immediately and
        almost free, but not a full file system: see `storage.persistent_volume`. Deleting the volume keeps
        its files, which a volume of the same name has again, until the cluster is deleted. The class
        ``filestore`` is a Filestore instance: it takes minutes, has at least 100 GiB regardless of
        ``size``, and costs about 2 cents an hour until it is deleted.
        """
        class_name = storage_class or config.read().storage_class or persistent_volume.GCS_FUSE
        if source is None and class_name == persistent_volume.GCS_FUSE:
            source = persistent_volume.gcs_fuse_source(self.bucket.removeprefix("gs://"), name)
        pvc.create(
            self.kube,
            name,
            timeout=900.0,
            size=size,
            class_name=storage_class,
            source=source,
            access_mode=access_mode,
        )
        return Volume(self, name)

    @property
    def bucket(self) -> str:
        """The bucket that its pods may write: ``gs://…``."""
        return f"gs://{parts.bucket_name(self.session.project, self.name)}"

    def upload(self, path: str | Path, *, to: str) -> str:
        """Copy a file to the cluster's bucket as ``to``; return its URI: ``gs://…``."""
        objects = f"b/{self.bucket.removeprefix('gs://')}/o"
        self.session.request("POST", "storage", objects, Path(path), uploadType="media", name=to)
        return f"{self.bucket}/{to}"

    @property
    def registry(self) -> ArtifactRegistry:
        return ArtifactRegistry(self.session, self._require_info().tags)

    def _location(self) -> dict[str, str | None]:
        return {"project": self.session.project, "zone": self.session.zone}

    def _kubeconfig(self, info: GkeInfo) -> dict[str, Any]:
        program = {
            "apiVersion": "client.authentication.k8s.io/v1",
            "command": sys.executable,
            "args": ["-P", token.__file__],  # -P: files beside it have names of standard modules
            "env": [{"name": "PYTHONPATH", "value": str(config.ROOT)}],  # kubectl may be started anywhere
            "provideClusterInfo": False,
        }
        return exec_kubeconfig(self.name, info, program)

    @property
    def _create_call(self) -> str:
        location = f'project="{self.session.project}", zone="{self.session.zone}"'
        return f'`kit.create_cluster("gke", name="{self.name}", {location})`'


def _info(cluster: Mapping[str, Any]) -> GkeInfo:
    owner_tags = parts.tags_of(cluster)
    assert owner_tags is not None  # only the kit's clusters are described
    pools = [pool for pool in cluster.get("nodePools", ()) if pool["name"] == machines.TRAINING]
    return GkeInfo(
        owner_tags,
        _machines(pools[0]) if pools else None,
        bool(cluster.get("networkConfig", {}).get("defaultEnablePrivateNodes")),
        state=cluster["status"].lower(),
        version=cluster.get("currentMasterVersion", ""),
        endpoint=f"https://{cluster['endpoint']}" if cluster.get("endpoint") else "",
        authority=cluster.get("masterAuth", {}).get("clusterCaCertificate", ""),
        where=cluster["location"],
        network=cluster.get("network", ""),
        subnetwork=cluster.get("subnetwork", ""),
    )


def _request(raw: object) -> dict[str, Any]:
    """Validate the fields to merge into the cluster request; the kit's own cannot be set."""
    fix = '`request={"network": "shared", "subnetwork": "lab", "resourceLabels": {"team": "vision"}}`'
    if not isinstance(raw, dict):
        raise BadInput("this is not a dict", about=f"request={raw!r}", fix=fix)
    if reserved := sorted(RESERVED_FIELDS & raw.keys()):
        raise BadInput(f"the kit sets {', '.join(reserved)}", about=f"request={raw!r}", fix=fix)
    if "subnetwork" in raw and "network" not in raw:
        raise BadInput("a subnetwork needs its network", about=f"request={raw!r}", fix=fix)
    return raw


def _machines(pool: Mapping[str, Any]) -> Machines:
    config, limits = pool["config"], pool.get("autoscaling", {})
    kind: Mapping[str, Any] = next(iter(config.get("accelerators", ())), {})
    return Machines(
        config["machineType"],
        limits.get("maxNodeCount", 0) if limits.get("enabled") else 0,
        int(kind.get("acceleratorCount", 0)),
        kind.get("acceleratorType", ""),
        bool(config.get("spot")),
        disk_gb=config.get("diskSizeGb", spec.DISK_GB),
        flex_start=bool(config.get("flexStart")),
    )


def _subject(principal: str) -> dict[str, str]:
    """Convert an IAM member to an RBAC subject."""
    kind, _, address = principal.partition(":")
    if kind not in SUBJECTS or not re.fullmatch(r"[^\s@:]+@[^\s@:]+\.[^\s@:]+", address):
        fix = '"user:ada@example.org"; also group:… and serviceAccount:…'
        raise BadInput("this is not an IAM member", about=f"admin {principal!r}", fix=fix)
    return {"kind": SUBJECTS[kind], "name": address}
