"""The provider ``gke``: clusters of Google Kubernetes Engine, in a project of the user's.

The resources of such a cluster are in the modules beside this. Google's libraries are imported when one is
asked for.
"""

from collections.abc import Iterable, Mapping
from dataclasses import replace
from datetime import UTC, datetime
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from clouds.cloud_cluster import CloudCluster
from clouds.cluster_store import ClusterStore
from clouds.google.credentials import find_credentials
from clouds.options import COMMON_OPTIONS, DISK_GB, HOURS, admins_of, no_words, other_machines, until_of
from clouds.price_table import Estimate, Price
from clouds.reconciler import reconcile
from kitlib import config as settings
from kitlib.clusters.base import Shape
from kitlib.clusters.checks import Check, Report
from kitlib.display.tables import Text
from kitlib.errors import BadInput
from kitlib.k8s import manifests, names
from kitlib.storage import Volume, persistent_volume, pvc

if TYPE_CHECKING:
    from clouds.google.session import GcpSession
    from clouds.google.stack import GkePlan
    from clouds.reconciler.resource import Resource
    from kitlib.clusters.image_registry import Registry

LONGEST_NAME = 40
OPTIONS = {
    "project": "its id; by default that of your Google credentials",
    "zone": "where the machines are, such as us-central1-c",
    "accelerator": "the GPU of each training machine, such as nvidia-tesla-t4; by default none",
    "machine_type": "of the training machines; by default one that fits",
    "spot": "True takes machines that Google may take back, for less than half of the price",
    "network": "one of the project's, in place of one of its own",
    **COMMON_OPTIONS,
}
MACHINE_OPTIONS = {"accelerator", "machine_type", "spot"}
GPU = {"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"}
FILESTORE_SECONDS = 900.0
ACCELERATOR = "cloud.google.com/gke-accelerator"


class GkeCluster(CloudCluster):
    """A cluster of GKE.

    Args:
        name: Its name, of which there is one in a project.
        session: The way to its project and zone.
    """

    provider, cloud, options = "gke", "Google Cloud", OPTIONS
    store = ClusterStore("gke")
    place, pool, up = "zone", "training", ("running", "reconciling", "degraded")

    @classmethod
    def credentials(cls, environment: Mapping[str, str], home: Path) -> tuple[str, str]:
        return find_credentials(environment, home)

    @classmethod
    def find(cls, name: str, *, project: str | None = None, zone: str | None = None) -> "GkeCluster | None":
        """Return the one of this name, in whatever state, or None.

        Args:
            name: Its name.
            project: Where it is; needed once on each machine.
            zone: The same; found by itself, as a rule.
        """
        from clouds.google.session import GcpSession
        from clouds.google.stack import traces

        before = cls.store.read(names.validate_name(name, kind="cluster"))
        if before is None and project is None:
            return None
        where = before or {}
        project = project or where.get("project")
        zone = zone or where.get("zone")
        if zone is None:
            trace = traces(GcpSession(project)).get(name)
            zone = trace.zone if trace else None
        cluster = cls(name, GcpSession(project, zone))
        if cluster._description() is None:
            return None
        cluster._keep()
        return cluster

    @classmethod
    def checked(cls, name: str) -> str:
        names.validate_name(name, kind="cluster", longest=LONGEST_NAME)
        if name[0].isdigit():
            raise BadInput(
                "a GKE cluster's name begins with a letter", about=f'name "{name}"', fix=f'name="c{name}"'
            )
        return name

    @classmethod
    def _session(cls, name: str, given: Mapping[str, object]) -> "GcpSession":
        from clouds.google.session import GcpSession

        before = cls.store.read(name) or {}
        zone = given.get("zone") or before.get("zone")
        if not zone:
            raise BadInput("no zone is named", about='create_cluster("gke")', fix='zone="us-central1-c"')
        return GcpSession(given.get("project") or before.get("project"), str(zone))

    def _planned(self, shape: Shape) -> "GkePlan":
        from clouds.google.admins import subject_of
        from clouds.google.machines import MachinePool
        from clouds.google.stack import GkePlan

        given = shape.options
        fix = 'machine_type="e2-standard-4", or accelerator="nvidia-tesla-t4" for a GPU'
        no_words(shape, ("cpus", "memory"), about="gke", cloud="Google Cloud", fix=fix)
        machines = MachinePool.of(
            nodes=shape.nodes,
            machine_type=given.get("machine_type"),
            accelerator=given.get("accelerator"),
            gpus=shape.gpus,
            spot=bool(given.get("spot")),
            disk_gb=given.get("disk_gb", DISK_GB),
        )
        until = until_of(given.get("hours", HOURS))
        admins = admins_of(given.get("admins"))
        for each in admins:
            subject_of(each)
        trace = self._trace()
        if trace and trace.zone and trace.zone != self.session.zone:
            raise BadInput(
                f"the kit has a cluster of this name in {trace.zone}",
                about=self._title,
                fix=f'zone="{trace.zone}", or another name',
            )
        going_on = trace is not None and to_come(trace.tags.expires) is not None
        whose = trace.tags if going_on else self._tags(until)
        return GkePlan(self.session, whose, machines, given.get("network"), admins)

    def _trace(self):
        from clouds.google.client_errors import ErrorReason, GcpError
        from clouds.google.stack import traces

        try:
            return traces(self.session).get(self.name)
        except GcpError as error:
            if error.why in (
                ErrorReason.DISABLED,
                ErrorReason.DENIED,
                ErrorReason.PROJECT,
                ErrorReason.BILLING,
            ):
                return None  # the preflight says so, with all else that stands in the way
            raise

    def _reuse_existing(self, found, plan: "GkePlan", shape: Shape) -> "GkePlan":
        from clouds.google.cluster import TRAINING
        from clouds.google.machines import MachinePool

        asked = plan.machines
        for config in (each.config for each in found.node_pools if each.name == TRAINING):
            there = MachinePool.found(config, nodes=asked.nodes)
            same = (there.machine_type, there.accelerator, there.spot)
            wanted = (asked.machine_type, asked.accelerator, asked.spot)
            if MACHINE_OPTIONS & set(shape.options) and same != wanted:
                has = f"machine_type={same[0]!r}, accelerator={same[1]!r}, spot={same[2]}"
                raise other_machines(has, self._title)
            plan = replace(plan, machines=there)
        return plan

    # What Google Cloud says

    def _description(self):
        from clouds.google.cluster import GkeControlPlane as Made

        if not self.session.zone:
            return None
        part = Made(self.session, self._tags(None))
        found = part.found()
        return found if found is not None and part.owns(found) else None

    def _state(self, found) -> str:
        return found.status.name.lower()

    def _facts(self, found) -> dict[str, object]:
        from clouds.tags import read

        whose = read(found.resource_labels)
        return {
            "version": found.current_master_version,
            "project": self.session.project,
            "zone": self.session.zone,
            "expires": whose.expires if whose else None,
            "endpoint": found.endpoint,
        }

    def _preflight(self, plan: "GkePlan") -> Report:
        from clouds.google import preflight

        return preflight.check(plan)

    def _estimate(self, plan: "GkePlan", hours: float) -> Estimate:
        from clouds.google import prices

        return prices.estimate(plan, hours=hours)

    def _cost(self) -> Estimate:
        from clouds.google.running_costs import cost

        return cost(self.session, self.name)

    def _running_costs(self) -> list[Estimate]:
        from clouds.google.running_costs import running_costs

        return running_costs(self.session)

    def _parts(self, plan: "GkePlan") -> list["Resource"]:
        from clouds.google.stack import resources

        return resources(plan)

    def _all_resources(self) -> list["Resource"]:
        from clouds.google.stack import discover

        return discover(self.session, self.name)

    def _bring_up(self, plan: "GkePlan") -> None:
        from clouds.google.client_errors import ErrorReason, GcpError
        from clouds.google.preflight import elsewhere

        try:
            super()._bring_up(plan)
        except GcpError as error:
            if error.why is ErrorReason.STOCKOUT and (other := elsewhere(plan)):
                error.fix = f"delete it, and take {other}; or the same call again later"
            raise

    def _install_addons(self, plan: "GkePlan") -> None:
        from clouds.google.network import network_of
        from clouds.google.owned import labels_of

        labels = ",".join(f"{key}={value}" for key, value in labels_of(plan.tags, self.session.zone).items())
        own = {"network": plan.network or network_of(self.name), "labels": labels}
        self._install("storageclass.yaml", own)
        for each in plan.admins:
            self.add_admin(each)

    # Reaching it

    def _remember(self, *, plan=None, found=None) -> None:
        if found is not None:
            pools = [each.config for each in found.node_pools]
            kinds = (each.accelerator_type for config in pools for each in config.accelerators)
            accelerator = next(kinds, None)
        else:
            accelerator = plan.machines.accelerator
        where = {"project": self.session.project, "zone": self.session.zone, "accelerator": accelerator}
        self.store.write(self.name, where)
        self.__dict__.pop("accelerator", None)

    def _kubeconfig(self, found) -> dict | None:
        from clouds.google.kubeconfig import kubeconfig

        return kubeconfig(found) if found.endpoint else None

    @cached_property
    def accelerator(self) -> str | None:
        """The GPU of its training machines, as Google calls it."""
        return (self.store.read(self.name) or {}).get("accelerator")

    def pod_additions(self, *, gpus: int = 0) -> dict[str, object]:
        """Tolerations and node affinity with which pods are scheduled on the training nodes."""
        added: dict[str, object] = {"tolerations": [GPU]} if self.accelerator else {}
        if self.accelerator and gpus:
            return added | {"nodeSelector": {ACCELERATOR: self.accelerator}}
        return added | super().pod_additions()

    def pod_annotations(self, mounted: Iterable[str]) -> Mapping[str, str]:
        """Annotations with which GKE adds the sidecar of GCS FUSE to pods that mount a bucket."""
        for each in mounted:
            claim = self.kube.find(pvc.CLAIM, each)
            if claim is not None and claim["spec"].get("storageClassName") == persistent_volume.GCS_FUSE:
                return persistent_volume.GCS_FUSE_ANNOTATIONS
        return {}

    # Sharing

    def add_admin(self, who: str) -> Text:
        """Let somebody do all in the cluster, by a ClusterRoleBinding; to reach it they need a role of IAM.

        Args:
            who: As IAM writes it: ``user:ada@example.org``, ``group:…``, ``serviceAccount:…``.

        Raises:
            BadInput: That is none of them.

        Example:
            >>> cluster.add_admin("user:ada@example.org")
            user:ada@example.org administers cluster "lab" in us-central1-c; …
        """
        from clouds.google.admins import grant, subject_of

        subject = subject_of(who)
        (item,) = manifests.read(settings.manifests("gke", "admin.yaml"))
        item["metadata"] |= {"name": f"trainyard-admin-{names.slug(subject['name'])}"}
        item["subjects"][0] |= subject
        self.kube.apply(item)
        way = f'kit.connect("{self.name}", provider="gke", project="{self.session.project}")'
        line = grant(self.session.project, who)
        return Text(f"{who} administers {self._title}; they reach it by {way}, if IAM lets them:\n{line}")

    # Acting

    def create_volume(
        self,
        name: str,
        *,
        size: str = "5Gi",
        storage_class: str | None = None,
        source: Mapping | None = None,
    ) -> Volume:
        """Return a volume to which pods on all nodes can write; made if there is none of this name.

        By default it is a Filestore instance: it takes minutes, has at least 1 TiB whatever is asked for,
        and costs about 22 cents an hour until it is deleted. Of the class ``gcs-fuse`` it is a folder of the
        cluster's bucket, at once and next to free, but no full file system: `storage.persistent_volume`.
        Deleting that leaves its files in the bucket, where a volume of the same name finds them, until the
        cluster goes.

        Args:
            name: By which pods mount it.
            size: At least so much.
            storage_class: Who makes it; ``gcs-fuse``, or by default that of the settings, or else Filestore.
            source: Where it is, if it exists already.
        """
        if source is None and (storage_class or settings.read().storage_class) == persistent_volume.GCS_FUSE:
            source = persistent_volume.gcs_fuse_source(self.bucket.removeprefix("gs://"), name)
        given = {"size": size, "storage_class": storage_class, "source": source}
        pvc.create(self.kube, name, timeout=FILESTORE_SECONDS, **given)
        return Volume(self, name)

    @property
    def bucket(self) -> str:
        """The bucket to which its pods, and nobody else's, may write: ``gs://…``."""
        from clouds.google.storage import bucket_name

        return f"gs://{bucket_name(self.session.project, self.name)}"

    @property
    def registry(self) -> "Registry":
        """Its repository in Artifact Registry."""
        from clouds.google.artifact_registry import ArtifactRegistry
        from clouds.tags import read

        return ArtifactRegistry(self.session, read(self._found().resource_labels), clock=self.clock)

    @property
    def image_prefix(self) -> str:
        """With what the names of images begin that its machines may pull from its own repository."""
        from clouds.google.registry import image_prefix

        return image_prefix(self.session.project, self.session.region, self.name)

    def _pool(self):
        from clouds.google.cluster import TrainingPool

        found = TrainingPool(self.session, self._tags(None)).found()
        if found is None:
            raise self._not_found()
        return found

    def _machines(self) -> int:
        return self._pool().autoscaling.max_node_count

    def _price_of_machines(self, count: int) -> tuple[Price, ...]:
        from clouds.google.machines import MachinePool
        from clouds.google.prices import pool
        from clouds.google.stack import GkePlan

        machines = MachinePool.found(self._pool().config, nodes=count)
        return tuple(pool(GkePlan(self.session, self._tags(None), machines)))

    def _quotas(self, nodes: int, more: int) -> Iterable[Check]:
        from clouds.google.machines import MachinePool
        from clouds.google.quotas import check
        from clouds.google.stack import GkePlan

        machines = MachinePool.found(self._pool().config, nodes=more)
        return check(GkePlan(self.session, self._tags(None), machines), cluster=False)

    def _scale(self, nodes: int) -> None:
        from clouds.google.scaling import PoolSize

        self._work(
            reconcile.bring_up, [PoolSize(self.session, self._tags(None), nodes)], f"cluster.scale({nodes})"
        )

    def _end(self) -> datetime | None:
        found = self._description()
        return None if found is None else to_come(self._facts(found)["expires"])

    def _move_end(self, found, until: datetime) -> None:
        from clouds.google.stack import extension
        from clouds.tags import read

        tags = replace(read(found.resource_labels), expires=until)
        self._work(reconcile.bring_up, extension(self.session, tags), f'kit.connect("{self.name}").extend(…)')

    @property
    def _again(self) -> str:
        where = f'project="{self.session.project}", zone="{self.session.zone}"'
        return f'kit.create_cluster("gke", name="{self.name}", {where})'


def to_come(when: datetime | None) -> datetime | None:
    """Return a moment if it is to come."""
    return when if when is not None and when > datetime.now(UTC) else None
