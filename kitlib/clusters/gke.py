"""Clusters of Google Kubernetes Engine, in a project of the user's.

What such a cluster is made of is in `kitlib.clouds.google`; here is that it is one of the kit's clusters:
made, found from a fresh kernel or another machine, scaled, and deleted until nothing is left. Google's
libraries are imported when one is asked for.
"""

from collections.abc import Mapping
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from kitlib import manifests, names, settings
from kitlib.clouds import consent, steps
from kitlib.clouds.clock import Clock
from kitlib.clouds.preflight import Report
from kitlib.clouds.tags import Tags
from kitlib.clusters.base import Cluster, Shape
from kitlib.clusters.cloud_memory import Memory
from kitlib.clusters.kubectl import kubectl
from kitlib.clusters.release import release
from kitlib.errors import BadInput, ClusterNotFound, ClusterUnreachable, KitError, ProviderFailed
from kitlib.quantities import check_count
from kitlib.storage import Volume, claims
from kitlib.tables import Table, Text
from kitlib.widgets.steps_table import StepsTable

if TYPE_CHECKING:
    from kitlib.clouds.google.everything import Plan
    from kitlib.clouds.google.session import Session
    from kitlib.clouds.images import Registry

LONGEST_NAME = 40
HOURS, MOST_HOURS, DISK_GB = 4, 336, 100
FILESTORE_SECONDS = 900.0
GPU = "nvidia.com/gpu"
ACCELERATOR = "cloud.google.com/gke-accelerator"
OPTIONS = {
    "project": "its id; by default that of your Google credentials",
    "zone": "where the machines are, such as us-central1-c",
    "accelerator": "the GPU of each training machine, such as nvidia-tesla-t4; by default none",
    "machine_type": "of the training machines; by default one that fits",
    "spot": "True takes machines that Google may take back, for less than half of the price",
    "hours": f"after which Google Cloud itself deletes it; by default {HOURS}",
    "disk_gb": f"of each training machine; by default {DISK_GB}",
    "network": "one of the project's, in place of one of its own",
    "confirm": "True agrees to the price beforehand",
    "budget": "dollars that it may cost; by default TRAINYARD_BUDGET",
}
MACHINE_OPTIONS = {"accelerator", "machine_type", "spot"}


class GkeCluster(Cluster):
    """A cluster of GKE.

    Args:
        name: Its name, of which there is one in a project.
        session: The way to its project and zone.
    """

    provider = "gke"
    memory = Memory("gke")
    clock: ClassVar[Clock | None] = None  # of the steps; by default the one on the wall

    def __init__(self, name: str, session: "Session") -> None:
        super().__init__(_checked_name(name))
        self.session = session

    @classmethod
    def create(cls, name: str, shape: Shape, *, recreate: bool = False) -> "GkeCluster":
        """Make a cluster, go on with one that was begun, or return the one that is there.

        Raises:
            BadInput: An argument is wrong; nothing was started.
            ProviderFailed: Google Cloud refused something; the same call goes on where it was.
            Interrupted: The user stopped it; the same call goes on where it was.
        """
        cluster = cls(name, _session(name, shape))
        plan = cluster._planned(shape)
        if recreate:
            cluster.delete()
        found = None if recreate else cluster._described()
        if found is None:
            cluster._agree(plan, shape)
        else:
            plan = _as_it_is(found, plan, shape, cluster._title)
        cluster._remember(plan.machines.accelerator)
        cluster._bring_up(plan)
        cluster._keep()
        cluster._furnish(plan)
        return cluster

    @classmethod
    def preflight(cls, name: str, shape: Shape) -> Report:
        """Look at what may stand in the way of a cluster, without making anything."""
        from kitlib.clouds.google import preflight

        return preflight.check(cls(name, _session(name, shape))._planned(shape))

    @classmethod
    def find(cls, name: str, *, project: str | None = None, zone: str | None = None) -> "GkeCluster | None":
        """Return the one of this name, in whatever state, or None.

        Args:
            name: Its name.
            project: Where it is; needed once on each machine.
            zone: The same; found by itself, as a rule.
        """
        from kitlib.clouds.google.everything import traces
        from kitlib.clouds.google.session import Session

        before = cls.memory.read(names.check(name, kind="cluster"))
        if before is None and project is None:
            return None
        where = before or {}
        project = project or where.get("project")
        zone = zone or where.get("zone")
        if zone is None:
            trace = traces(Session(project)).get(name)
            zone = trace.zone if trace else None
        cluster = cls(name, Session(project, zone))
        if zone is None or cluster._described() is None:
            return None
        cluster._keep()
        return cluster

    @classmethod
    def existing(cls) -> list[dict[str, object]]:
        """Return a row for each that was used from here; how it is, nobody asks Google Cloud."""
        return cls.memory.rows("zone")

    # What Google Cloud says

    def _described(self):
        """Return what GKE says of it; None if there is none that is the kit's."""
        from kitlib.clouds.google.cluster import GkeCluster as Made

        part = Made(self.session, self._tags(None))
        found = part.found()
        return found if found is not None and part.owns(found) else None

    @property
    def status(self) -> dict[str, object]:
        """What is known of it: state, version, place, end."""
        from kitlib.clouds.tags import read

        found = self._described()
        if found is None:
            return {"name": self.name, "state": "absent"}
        whose = read(found.resource_labels)
        return {
            "name": self.name,
            "state": found.status.name.lower(),
            "version": found.current_master_version,
            "project": self.session.project,
            "zone": self.session.zone,
            "expires": whose.expires if whose else None,
            "endpoint": found.endpoint,
        }

    def resources(self) -> Table:
        """Return all that Google Cloud has of it, and how each is."""
        from kitlib.clouds.google.everything import discover

        found = [(each, each.look()) for each in discover(self.session, self.name)]
        rows = [(each.name, each.kind, seen.state.value, seen.id, seen.words) for each, seen in found]
        columns = ("what", "kind", "state", "id", "words")
        return Table(columns, rows, empty="nothing is left of it at Google Cloud")

    def _tags(self, expires: datetime | None) -> Tags:
        whose = names.labels(workshop=settings.read().workshop, lifetime=timedelta())
        return Tags(self.name, whose[names.OWNER], whose[names.WORKSHOP], expires)

    def _planned(self, shape: Shape) -> "Plan":
        """Return the cluster as it shall be; one that was begun keeps its end."""
        from kitlib.clouds.google.everything import Plan
        from kitlib.clouds.google.machines import Machines

        given = shape.options
        for word in ("cpus", "memory"):
            if getattr(shape, word) is not None:
                raise BadInput(
                    f"{word} of a machine at Google Cloud come with its type",
                    about=f'create_cluster("gke", {word}=…)',
                    fix='machine_type="e2-standard-4", or accelerator="nvidia-tesla-t4" for a GPU',
                )
        machines = Machines.of(
            nodes=shape.nodes,
            machine_type=given.get("machine_type"),
            accelerator=given.get("accelerator"),
            gpus=shape.gpus,
            spot=bool(given.get("spot")),
            disk_gb=given.get("disk_gb", DISK_GB),
        )
        now = datetime.now(UTC).replace(microsecond=0)
        until = now + timedelta(hours=_hours(given.get("hours", HOURS)))
        trace = self._trace()
        if trace and trace.zone and trace.zone != self.session.zone:
            raise BadInput(
                f"the kit has a cluster of this name in {trace.zone}",
                about=self._title,
                fix=f'zone="{trace.zone}", or another name',
            )
        going_on = trace is not None and trace.tags.expires is not None and trace.tags.expires > now
        whose = trace.tags if going_on else self._tags(until)
        return Plan(self.session, whose, machines, given.get("network"))

    def _trace(self):
        """Return what is there of it already; None if nothing is, or nobody may look yet."""
        from kitlib.clouds.google.everything import traces
        from kitlib.clouds.google.refusals import Refused, Why

        try:
            return traces(self.session).get(self.name)
        except Refused as error:
            if error.why in (Why.DISABLED, Why.DENIED, Why.PROJECT, Why.BILLING):
                return None  # the preflight says so, with all else that stands in the way
            raise

    def _agree(self, plan: "Plan", shape: Shape) -> None:
        """Look at what may stand in the way, and have the price agreed to; nothing is made before."""
        from kitlib.clouds.google import preflight, prices

        preflight.check(plan).raise_failures()
        given = shape.options
        estimate = prices.estimate(plan, hours=_hours(given.get("hours", HOURS)))
        consent.agree(estimate, confirm=given.get("confirm") is True, budget=given.get("budget"))

    def _bring_up(self, plan: "Plan") -> None:
        from kitlib.clouds.google.everything import resources
        from kitlib.clouds.google.preflight import zones_with
        from kitlib.clouds.google.refusals import Refused, Why

        try:
            self._work(steps.bring_up, resources(plan), self._again)
        except Refused as error:
            if error.why is Why.STOCKOUT and (zones := zones_with(plan)):
                near = " or ".join(f'zone="{each}"' for each in zones[:4])
                error.fix = f"delete it, and make it elsewhere: {near}; or the same call again later"
            raise

    def _work(self, what, parts: list, resume: str) -> None:
        with StepsTable(self._title) as report:
            what(parts, title=self._title, resume=resume, report=report, clock=self.clock)

    def _furnish(self, plan: "Plan") -> None:
        """Put into the cluster what its volumes need."""
        from kitlib.clouds.google.network import network_of
        from kitlib.clouds.google.owned import marked

        (item,) = manifests.read(settings.manifests("gke", "storageclass.yaml"))
        labels = ",".join(f"{key}={value}" for key, value in marked(plan.tags, self.session.zone).items())
        own = {"network": plan.network or network_of(self.name), "labels": labels}
        self.kube.apply(manifests.merge(item, {"parameters": own}))

    # Reaching it

    @property
    def kubeconfig(self) -> Path:
        """Its own file, with a program of the kit's that brings the credentials."""
        path = self.memory.kubeconfig(self.name)
        if not path.exists():
            self._keep()
        return path

    def _remember(self, accelerator: str | None) -> None:
        where = {"project": self.session.project, "zone": self.session.zone, "accelerator": accelerator}
        self.memory.write(self.name, where)

    def _keep(self) -> None:
        """Let a fresh kernel find it by its name, and kubectl by its file."""
        from kitlib.clouds.google.kubeconfig import kubeconfig

        found = self._described()
        if found is None:
            raise self._not_found()
        pools = [each.config for each in found.node_pools]
        kinds = [each.accelerator_type for config in pools for each in config.accelerators]
        self._remember(next(iter(kinds), None))
        if found.endpoint:
            self.memory.write_kubeconfig(self.name, kubeconfig(found))
        self.__dict__.pop("accelerator", None)

    def kubectl_command(self) -> list[str]:
        """Return the kubectl on PATH, or else the kit's own."""
        return kubectl()

    @cached_property
    def accelerator(self) -> str | None:
        """The GPU of its training machines, as Google calls it."""
        return (self.memory.read(self.name) or {}).get("accelerator")

    def pod_additions(self, *, gpus: int = 0) -> dict[str, object]:
        """Return what lets training pods onto the training machines, and those with GPUs only there."""
        added: dict[str, object] = {}
        if self.accelerator:
            added["tolerations"] = [{"key": GPU, "operator": "Exists", "effect": "NoSchedule"}]
            if gpus:
                return added | {"nodeSelector": {ACCELERATOR: self.accelerator}}
        there = {"key": "trainyard/pool", "operator": "In", "values": ["training"]}
        preferred = {"weight": 100, "preference": {"matchExpressions": [there]}}
        term = {"preferredDuringSchedulingIgnoredDuringExecution": [preferred]}
        return added | {"affinity": {"nodeAffinity": term}}

    def explain(self, words: str) -> KitError:
        """Return why it does not answer, as far as Google Cloud knows."""
        state = self.status["state"]
        if state == "absent":
            return self._not_found()
        return ClusterUnreachable(
            f"its API server does not answer: {words}; Google Cloud says it is {state}",
            about=self._title,
            fix="try again in a minute" if state in ("running", "reconciling") else self._again,
        )

    def _not_found(self) -> ClusterNotFound:
        return ClusterNotFound(
            f"there is no such cluster of the kit's in {self.session.zone}",
            about=self._title,
            fix=self._again,
        )

    # Acting

    def create_volume(
        self,
        name: str,
        *,
        size: str = "1Ti",
        storage_class: str | None = None,
        source: Mapping | None = None,
    ) -> Volume:
        """Return a volume to which pods on all nodes can write; made if there is none of this name.

        By default it is a Filestore instance: it takes minutes, has at least 1 TiB whatever is asked for,
        and costs about 22 cents an hour until it is deleted.

        Args:
            name: By which pods mount it.
            size: At least so much.
            storage_class: Who makes it; by default that of the settings, or else Filestore.
            source: Where it is, if it exists already.
        """
        given = {"size": size, "storage_class": storage_class, "source": source}
        claims.create(self.kube, name, timeout=FILESTORE_SECONDS, **given)
        return Volume(self, name)

    @property
    def bucket(self) -> str:
        """The bucket to which its pods, and nobody else's, may write: ``gs://…``."""
        from kitlib.clouds.google.storage import bucket_name

        return f"gs://{bucket_name(self.session.project, self.name)}"

    @property
    def registry(self) -> "Registry":
        """Its repository in Artifact Registry."""
        from kitlib.clouds.google.images import ArtifactRegistry
        from kitlib.clouds.tags import read

        found = self._described()
        if found is None:
            raise self._not_found()
        return ArtifactRegistry(self.session, read(found.resource_labels), clock=self.clock)

    @property
    def image_prefix(self) -> str:
        """With what the names of images begin that its machines may pull from its own repository."""
        from kitlib.clouds.google.registry import image_prefix

        return image_prefix(self.session.project, self.session.region, self.name)

    def scale(self, nodes: int) -> Table:
        """Have so many training machines, and never more; those that idle are given back nevertheless.

        Example:
            >>> cluster.scale(2)
        """
        from kitlib.clouds.google.scaling import Size

        check_count(nodes, what="nodes", least=0, most=100)
        self._work(steps.bring_up, [Size(self.session, self._tags(None), nodes)], f"cluster.scale({nodes})")
        return self.nodes()

    def extend(self, hours: float) -> Text:
        """Let it live for so many hours from now: its schedules move, and the labels that say so.

        Example:
            >>> cluster.extend(hours=2)
            cluster "lab" in us-central1-c ends at 2026-11-22 18:00 UTC
        """
        from kitlib.clouds.google.everything import extension
        from kitlib.clouds.tags import read

        until = datetime.now(UTC).replace(microsecond=0) + timedelta(hours=_hours(hours))
        found = self._described()
        if found is None:
            raise self._not_found()
        tags = replace(read(found.resource_labels), expires=until)
        self._work(steps.bring_up, extension(self.session, tags), f"cluster.extend(hours={hours:g})")
        return Text(f"{self._title} ends at {until:%Y-%m-%d %H:%M} UTC")

    def delete(self) -> None:
        """Delete all of it, and see that nothing is left; one that is gone is fine.

        Raises:
            ProviderFailed: Something is left; the error names it, and what it costs.
        """
        from kitlib.clouds.google.everything import discover

        found = self._described() if self.session.zone else None
        if found is not None and found.status.name in ("RUNNING", "RECONCILING", "DEGRADED"):
            self._keep()
            release(self.kube, about=self._title)
        resume = f'kit.connect("{self.name}").delete()'
        self._work(steps.take_down, discover(self.session, self.name), resume)
        if left := discover(self.session, self.name):
            raise ProviderFailed(
                "something is left, and may cost: "
                + "; ".join(f"{each.name} {each.bills}".rstrip() for each in left),
                about=self._title,
                fix="delete it again; if it stays, docs/gke.md says how by hand",
            )
        self.memory.forget(self.name)

    @property
    def _title(self) -> str:
        return f'cluster "{self.name}" in {self.session.zone}'

    @property
    def _again(self) -> str:
        where = f'project="{self.session.project}", zone="{self.session.zone}"'
        return f'kit.create_cluster("gke", name="{self.name}", {where})'


def _session(name: str, shape: Shape) -> "Session":
    """Return the way to the project and zone that were asked for, or where this machine knows the cluster."""
    from kitlib.clouds.google.session import Session

    shape.check_options(OPTIONS, GkeCluster.provider)
    before = GkeCluster.memory.read(_checked_name(name)) or {}
    zone = shape.options.get("zone") or before.get("zone")
    if not zone:
        raise BadInput("no zone is named", about='create_cluster("gke")', fix='zone="us-central1-c"')
    return Session(shape.options.get("project") or before.get("project"), str(zone))


def _as_it_is(found, plan: "Plan", shape: Shape, title: str) -> "Plan":
    """Return the plan with the machines that are there, which never change.

    Raises:
        BadInput: Others are asked for.
    """
    from kitlib.clouds.google.cluster import TRAINING
    from kitlib.clouds.google.machines import Machines

    asked = plan.machines
    for config in (each.config for each in found.node_pools if each.name == TRAINING):
        gpus = next(iter(config.accelerators), None)
        there = Machines(
            nodes=asked.nodes,
            machine_type=config.machine_type,
            accelerator=gpus.accelerator_type if gpus else None,
            gpus=gpus.accelerator_count if gpus else 0,
            spot=config.spot,
            disk_gb=config.disk_size_gb,
        )
        same = (there.machine_type, there.accelerator, there.spot)
        wanted = (asked.machine_type, asked.accelerator, asked.spot)
        if MACHINE_OPTIONS & set(shape.options) and same != wanted:
            has = f"machine_type={same[0]!r}, accelerator={same[1]!r}, spot={same[2]}"
            raise BadInput(
                f"it is there already, with other machines: {has}",
                about=title,
                fix="ask for these, take another name, or delete it first; cluster.scale(n) changes how many",
            )
        plan = replace(plan, machines=there)
    return plan


def _checked_name(name: str) -> str:
    names.check(name, kind="cluster", longest=LONGEST_NAME)
    if name[0].isdigit():
        raise BadInput(
            "a GKE cluster's name begins with a letter", about=f'name "{name}"', fix=f'name="c{name}"'
        )
    return name


def _hours(hours: object) -> float:
    usable = isinstance(hours, int | float) and not isinstance(hours, bool) and 0.5 <= hours <= MOST_HOURS
    if not usable:
        raise BadInput(
            f"hours are a number from 0.5 to {MOST_HOURS}", about=f"hours={hours!r}", fix=f"hours={HOURS}"
        )
    return float(hours)
