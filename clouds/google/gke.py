"""Clusters of Google Kubernetes Engine, in a project of the user's.

What such a cluster is made of is in `clouds.google`; here is how one is described, and
what it has that others have not. How one is planned is in `gke_planning`, all else that clusters at clouds
do is in `cloud`. Google's libraries are imported when one is asked for.
"""

from collections.abc import Iterable, Mapping
from dataclasses import replace
from datetime import datetime
from functools import cached_property
from typing import TYPE_CHECKING

from clouds.cluster_store import Memory
from clouds.google.planning import OPTIONS, PlannedGke, to_come
from clouds.prices import Estimate, Price
from clouds.reconciler import reconcile
from kitlib import config as settings
from kitlib.clusters.preflight import Check, Report
from kitlib.display.tables import Text
from kitlib.k8s import manifests, names
from kitlib.storage import Volume, persistent_volume, pvc

if TYPE_CHECKING:
    from clouds.google.everything import Plan
    from clouds.reconciler.resource import Resource
    from kitlib.clusters.registry import Registry

GPU = {"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"}
FILESTORE_SECONDS = 900.0
ACCELERATOR = "cloud.google.com/gke-accelerator"


class GkeCluster(PlannedGke):
    """A cluster of GKE.

    Args:
        name: Its name, of which there is one in a project.
        session: The way to its project and zone.
    """

    provider, cloud, options = "gke", "Google Cloud", OPTIONS
    memory = Memory("gke")
    place, pool, up = "zone", "training", ("running", "reconciling", "degraded")

    @classmethod
    def find(cls, name: str, *, project: str | None = None, zone: str | None = None) -> "GkeCluster | None":
        """Return the one of this name, in whatever state, or None.

        Args:
            name: Its name.
            project: Where it is; needed once on each machine.
            zone: The same; found by itself, as a rule.
        """
        from clouds.google.everything import traces
        from clouds.google.session import Session

        before = cls.memory.read(names.validate_name(name, kind="cluster"))
        if before is None and project is None:
            return None
        where = before or {}
        project = project or where.get("project")
        zone = zone or where.get("zone")
        if zone is None:
            trace = traces(Session(project)).get(name)
            zone = trace.zone if trace else None
        cluster = cls(name, Session(project, zone))
        if cluster._described() is None:
            return None
        cluster._keep()
        return cluster

    # What Google Cloud says

    def _described(self):
        from clouds.google.cluster import GkeCluster as Made

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

    def _look_first(self, plan: "Plan") -> Report:
        from clouds.google import preflight

        return preflight.check(plan)

    def _estimate(self, plan: "Plan", hours: float) -> Estimate:
        from clouds.google import prices

        return prices.estimate(plan, hours=hours)

    def _cost(self) -> Estimate:
        from clouds.google.standing import cost

        return cost(self.session, self.name)

    def _standing(self) -> list[Estimate]:
        from clouds.google.standing import standing

        return standing(self.session)

    def _parts(self, plan: "Plan") -> list["Resource"]:
        from clouds.google.everything import resources

        return resources(plan)

    def _doomed(self) -> list["Resource"]:
        from clouds.google.everything import discover

        return discover(self.session, self.name)

    def _bring_up(self, plan: "Plan") -> None:
        from clouds.google.preflight import elsewhere
        from clouds.google.refusals import Refused, Why

        try:
            super()._bring_up(plan)
        except Refused as error:
            if error.why is Why.STOCKOUT and (other := elsewhere(plan)):
                error.fix = f"delete it, and take {other}; or the same call again later"
            raise

    def _furnish(self, plan: "Plan") -> None:
        from clouds.google.network import network_of
        from clouds.google.owned import marked

        labels = ",".join(f"{key}={value}" for key, value in marked(plan.tags, self.session.zone).items())
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
        self.memory.write(self.name, where)
        self.__dict__.pop("accelerator", None)

    def _kubeconfig(self, found) -> dict | None:
        from clouds.google.kubeconfig import kubeconfig

        return kubeconfig(found) if found.endpoint else None

    @cached_property
    def accelerator(self) -> str | None:
        """The GPU of its training machines, as Google calls it."""
        return (self.memory.read(self.name) or {}).get("accelerator")

    def pod_additions(self, *, gpus: int = 0) -> dict[str, object]:
        """Return what lets training pods onto the training machines, and those with GPUs only there."""
        added: dict[str, object] = {"tolerations": [GPU]} if self.accelerator else {}
        if self.accelerator and gpus:
            return added | {"nodeSelector": {ACCELERATOR: self.accelerator}}
        return added | super().pod_additions()

    def pod_annotations(self, mounted: Iterable[str]) -> Mapping[str, str]:
        """Return what has GKE add the sidecar of GCS FUSE to pods that mount a bucket, and only to those."""
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
        from clouds.google.images import ArtifactRegistry
        from clouds.tags import read

        return ArtifactRegistry(self.session, read(self._found().resource_labels), clock=self.clock)

    @property
    def image_prefix(self) -> str:
        """With what the names of images begin that its machines may pull from its own repository."""
        from clouds.google.registry import image_prefix

        return image_prefix(self.session.project, self.session.region, self.name)

    def _pool(self):
        """Return what GKE says of its training machines."""
        from clouds.google.cluster import TrainingPool

        found = TrainingPool(self.session, self._tags(None)).found()
        if found is None:
            raise self._not_found()
        return found

    def _machines(self) -> int:
        return self._pool().autoscaling.max_node_count

    def _price_of_machines(self, count: int) -> tuple[Price, ...]:
        from clouds.google.everything import Plan
        from clouds.google.machines import Machines
        from clouds.google.prices import pool

        machines = Machines.found(self._pool().config, nodes=count)
        return tuple(pool(Plan(self.session, self._tags(None), machines)))

    def _quotas(self, nodes: int, more: int) -> Iterable[Check]:
        from clouds.google.everything import Plan
        from clouds.google.machines import Machines
        from clouds.google.quotas import check

        machines = Machines.found(self._pool().config, nodes=more)
        return check(Plan(self.session, self._tags(None), machines), cluster=False)

    def _scale(self, nodes: int) -> None:
        from clouds.google.scaling import Size

        self._work(
            reconcile.bring_up, [Size(self.session, self._tags(None), nodes)], f"cluster.scale({nodes})"
        )

    def _end(self) -> datetime | None:
        found = self._described()
        return None if found is None else to_come(self._facts(found)["expires"])

    def _move_end(self, found, until: datetime) -> None:
        from clouds.google.everything import extension
        from clouds.tags import read

        tags = replace(read(found.resource_labels), expires=until)
        self._work(reconcile.bring_up, extension(self.session, tags), f'kit.connect("{self.name}").extend(…)')

    @property
    def _again(self) -> str:
        where = f'project="{self.session.project}", zone="{self.session.zone}"'
        return f'kit.create_cluster("gke", name="{self.name}", {where})'
