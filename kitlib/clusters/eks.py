"""Clusters of Amazon EKS, in an account of the user's.

What such a cluster is made of is in `kitlib.clouds.aws`; here is that it is one of the kit's clusters: made,
found from a fresh kernel or another machine, scaled, and deleted until nothing is left. boto3 is imported
when one is asked for.
"""

from datetime import UTC, datetime, timedelta
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from kitlib import manifests, names, settings
from kitlib.clouds import consent, steps
from kitlib.clouds.prices import Estimate
from kitlib.clouds.tags import Tags
from kitlib.clusters.base import Cluster, Shape
from kitlib.clusters.cloud_memory import Memory
from kitlib.clusters.kubectl import kubectl
from kitlib.clusters.release import release
from kitlib.errors import BadInput, ClusterNotFound, ClusterUnreachable, KitError, ProviderFailed
from kitlib.progress import progress
from kitlib.quantities import check_count
from kitlib.tables import Table, Text
from kitlib.widgets.steps_table import StepsTable

if TYPE_CHECKING:
    from kitlib.clouds.aws.plan import Plan
    from kitlib.clouds.aws.session import Session
    from kitlib.clouds.images import Registry
    from kitlib.clouds.preflight import Report

LONGEST_NAME = 24
MACHINE, HOURS, DISK_GB = "m5.xlarge", 4, 100
SYSTEM_MACHINE = "t3.large"
GPU = "nvidia.com/gpu"
OPTIONS = {
    "region": "of AWS; by default AWS_REGION, or the profile's",
    "profile": "of your AWS configuration; by default what boto3 finds",
    "instance_type": f"of the training nodes; by default {MACHINE}",
    "spot": "True takes machines that AWS may take back, for about a third of the price",
    "hours": f"after which AWS itself deletes it; by default {HOURS}",
    "disk_gb": f"of each training node; by default {DISK_GB}",
    "private": "True gives nodes no public address; the NAT gateway that they need costs by the hour",
    "version": "of Kubernetes",
    "confirm": "True agrees to the price beforehand",
    "budget": "dollars that it may cost; by default TRAINYARD_BUDGET",
}


class EksCluster(Cluster):
    """A cluster of EKS.

    Args:
        name: Its name.
        session: The way to its account and region.
    """

    provider = "eks"
    memory = Memory("eks")

    def __init__(self, name: str, session: "Session") -> None:
        super().__init__(names.check(name, kind="cluster", longest=LONGEST_NAME))
        self.session = session

    @classmethod
    def create(cls, name: str, shape: Shape, *, recreate: bool = False) -> "EksCluster":
        """Make a cluster, go on with one that was begun, or return the one that is there.

        Raises:
            BadInput: An argument is wrong; nothing was started.
            ProviderFailed: AWS refused something; the same call goes on where it was.
            Interrupted: The user stopped it; the same call goes on where it was.
        """
        from kitlib.clouds.aws.everything import resources
        from kitlib.clouds.aws.session import Session

        shape.check_options(OPTIONS, cls.provider)
        cluster = cls(name, Session(shape.options.get("region"), shape.options.get("profile")))
        plan = cluster._planned(shape)
        if recreate:
            cluster.delete()
        if recreate or cluster._described() is None:
            cluster._agree(plan, shape)
        with StepsTable(cluster._title) as report:
            steps.bring_up(resources(plan), title=cluster._title, resume=cluster._again, report=report)
        cluster._keep()
        cluster._furnish(plan)
        return cluster

    @classmethod
    def find(cls, name: str, *, region: str | None = None, profile: str | None = None) -> "EksCluster | None":
        """Return the one of this name, in whatever state, or None.

        Args:
            name: Its name.
            region: Where it is; needed once on each machine.
            profile: Whose account.
        """
        from kitlib.clouds.aws.session import Session

        before = cls.memory.read(names.check(name, kind="cluster"))
        if before is None and region is None and profile is None:
            return None
        where = before or {}
        cluster = cls(name, Session(region or where.get("region"), profile or where.get("profile")))
        if cluster._described() is None:
            return None
        cluster._keep()
        return cluster

    @classmethod
    def preflight(cls, name: str, shape: Shape) -> "Report":
        """Look at what may stand in the way of a new cluster; nothing is made, and nothing costs."""
        from kitlib.clouds.aws import preflight
        from kitlib.clouds.aws.session import Session

        shape.check_options(OPTIONS, cls.provider)
        cluster = cls(name, Session(shape.options.get("region"), shape.options.get("profile")))
        try:
            return preflight.check(cluster._planned(shape))
        except KitError:  # nothing can be planned without credentials: that report says so
            report = preflight.check(cluster._plan)
            if report.ok:
                raise
            return report

    @classmethod
    def existing(cls) -> list[dict[str, object]]:
        """Return a row for each that was used from here; how it is, nobody asks AWS."""
        return cls.memory.rows("region")

    # What AWS says

    def _described(self) -> dict | None:
        """Return what EKS says of it; None if there is none that is the kit's."""
        from kitlib.clouds.aws.everything import control_plane

        return control_plane(self._plan).described()

    @property
    def status(self) -> dict[str, object]:
        """What is known of it: state, version, end, the machines of each group."""
        from kitlib.clouds.aws.expiry import end

        found = self._described()
        if found is None:
            return {"name": self.name, "state": "absent"}
        return {
            "name": self.name,
            "state": found["status"].lower(),
            "version": found["version"],
            "region": self.session.region,
            "account": self.session.account,
            "expires": end(self._plan),
            "endpoint": found.get("endpoint"),
        }

    def resources(self) -> Table:
        """Return all that AWS has of it, and how each is."""
        from kitlib.clouds.aws.everything import there

        rows = [
            (part.name, part.kind, seen.state.value, part.bills, seen.id, seen.words)
            for part, seen in there(self._plan)
        ]
        columns = ("what", "kind", "state", "costs", "id", "words")
        return Table(columns, rows, empty="nothing is left of it at AWS")

    @cached_property
    def _plan(self) -> "Plan":
        """The cluster as far as its name tells."""
        from kitlib.clouds.aws.plan import Plan

        return Plan(self.session, self._tags(None), strict=False)

    def _tags(self, expires: datetime | None) -> Tags:
        whose = names.labels(workshop=settings.read().workshop, lifetime=timedelta())
        return Tags(self.name, whose[names.OWNER], whose[names.WORKSHOP], expires)

    def _planned(self, shape: Shape) -> "Plan":
        """Return the cluster as it shall be; one that was begun keeps its end."""
        from kitlib.clouds.aws.expiry import end
        from kitlib.clouds.aws.machines import machine, zones, zones_with
        from kitlib.clouds.aws.plan import SYSTEM, TRAIN, VERSION, Group, Plan

        given = shape.options
        for word in ("cpus", "memory", "gpus"):
            if getattr(shape, word) is not None:
                raise BadInput(
                    f"{word} of a node at AWS come with its type",
                    about=f'create_cluster("eks", {word}=…)',
                    fix='instance_type="m5.xlarge", or "g4dn.xlarge" for a GPU',
                )
        wanted = machine(self.session, str(given.get("instance_type") or MACHINE))
        here = zones(self.session, wanted.name)
        until = datetime.now(UTC).replace(microsecond=0) + timedelta(hours=_hours(given.get("hours", HOURS)))
        train = Group(
            TRAIN,
            wanted.name,
            shape.nodes,
            disk_gb=check_count(given.get("disk_gb", DISK_GB), what="disk_gb", least=20, most=16384),
            spot=bool(given.get("spot")),
            gpus=wanted.gpus,
            arm=wanted.arm,
            places=len(set(here) & set(zones_with(self.session, wanted.name))),
        )
        return Plan(
            self.session,
            self._tags(end(self._plan) or until),
            zones=here,
            groups=(Group(SYSTEM, SYSTEM_MACHINE, 1, least=1), train),
            private=bool(given.get("private")),
            version=str(given.get("version") or VERSION),
        )

    def _agree(self, plan: "Plan", shape: Shape) -> None:
        """Look at what may stand in the way, and have the price agreed to; nothing is made before."""
        from kitlib.clouds.aws import preflight, prices
        from kitlib.clouds.aws.versions import check_version

        preflight.check(plan).raise_failures()
        check_version(plan)
        given = shape.options
        estimate = prices.estimate(plan, hours=_hours(given.get("hours", HOURS)))
        consent.agree(estimate, confirm=given.get("confirm") is True, budget=given.get("budget"))

    def _furnish(self, plan: "Plan") -> None:
        """Put into the cluster what its volumes and its GPUs need."""
        from kitlib.clouds.aws.storage import FileSystem

        (item,) = manifests.read(settings.manifests("eks", "storageclass.yaml"))
        own = {"parameters": {"fileSystemId": FileSystem(plan).id}}
        self.kube.apply(manifests.merge(item, own))
        if any(each.gpus for each in plan.groups):
            from kitlib.operators import install  # which imports this package

            install("nvidia-device-plugin", cluster=self)

    # Reaching it

    @property
    def kubeconfig(self) -> Path:
        """Its own file, with a program of the kit's that brings the credentials."""
        path = self.memory.kubeconfig(self.name)
        if not path.exists():
            self._keep()
        return path

    def _keep(self) -> None:
        """Let a fresh kernel find it by its name, and kubectl by its file."""
        from kitlib.clouds.aws.kubeconfig import kubeconfig

        self.memory.write(self.name, {"region": self.session.region, "profile": self.session.profile})
        found = self._described()
        if found is not None and found.get("endpoint"):
            self.memory.write_kubeconfig(self.name, kubeconfig(self.session, found))

    def kubectl_command(self) -> list[str]:
        """Return the kubectl on PATH, or else the kit's own."""
        return kubectl()

    def pod_additions(self, *, gpus: int = 0) -> dict[str, object]:
        """Return what lets training pods onto GPU nodes, and keeps others off the system's if they can."""
        if gpus:
            return {"tolerations": [{"key": GPU, "operator": "Exists", "effect": "NoSchedule"}]}
        there = {"key": "trainyard/pool", "operator": "In", "values": ["train"]}
        preferred = {"weight": 100, "preference": {"matchExpressions": [there]}}
        term = {"preferredDuringSchedulingIgnoredDuringExecution": [preferred]}
        return {"affinity": {"nodeAffinity": term}}

    def explain(self, words: str) -> KitError:
        """Return why it does not answer, as far as AWS knows."""
        state = self.status["state"]
        if state == "absent":
            return self._not_found()
        return ClusterUnreachable(
            f"its API server does not answer: {words}; AWS says it is {state}",
            about=self._title,
            fix="try again in a minute" if state == "active" else self._again,
        )

    def _not_found(self) -> ClusterNotFound:
        return ClusterNotFound(
            f"there is no such cluster of the kit's in {self.session.region}",
            about=self._title,
            fix=self._again,
        )

    @property
    def registry(self) -> "Registry":
        """Its repositories in ECR."""
        from kitlib.clouds.aws.images import EcrRegistry

        return EcrRegistry(self._plan)

    # Acting

    def scale(self, nodes: int, *, confirm: bool = False, budget: float | None = None) -> Table:
        """Have so many training nodes; returns when AWS has begun. None costs nothing for machines.

        Args:
            nodes: How many.
            confirm: Agree to the price of more beforehand.
            budget: Dollars that those which are added may cost until the cluster's end.

        Example:
            >>> cluster.scale(4)
        """
        from kitlib.clouds.aws import prices
        from kitlib.clouds.aws.everything import node_group

        check_count(nodes, what="nodes", least=0, most=100)
        group = node_group(self._plan, "train")
        found = group.described()
        if found is None:
            raise self._not_found()
        more = nodes - found["scalingConfig"]["desiredSize"]
        if more > 0:
            spot, (machine, *_) = found["capacityType"] == "SPOT", found["instanceTypes"]
            price = prices.price_of_nodes(self.session, instance_type=machine, nodes=more, spot=spot)
            about = f"{more} more nodes of {self._title}"
            consent.agree(Estimate(about, (price,), self._hours_left()), confirm=confirm, budget=budget)
        group.scale(nodes)
        return self.nodes()

    def _hours_left(self) -> float:
        from kitlib.clouds.aws.expiry import end

        until = end(self._plan)
        return HOURS if until is None else round((until - datetime.now(UTC)).total_seconds() / 3600, 1)

    def extend(self, hours: float) -> Text:
        """Let it live for so many hours from now: its schedules move, and the tags of all that it is made of.

        Example:
            >>> cluster.extend(hours=2)
            cluster "lab" in eu-central-1 ends at 2026-11-22 18:00 UTC
        """
        from kitlib.clouds.aws.everything import extend

        until = datetime.now(UTC).replace(microsecond=0) + timedelta(hours=_hours(hours))
        if self._described() is None:
            raise self._not_found()
        with progress(self._title) as line:
            extend(self._plan, until, report=line.update)
            line.done(f"it ends at {until:%Y-%m-%d %H:%M} UTC")
        return Text(f"{self._title} ends at {until:%Y-%m-%d %H:%M} UTC")

    def delete(self) -> None:
        """Delete all of it, and see that nothing is left; one that is gone is fine.

        Raises:
            ProviderFailed: Something is left; the error names it, and what it costs.
        """
        from kitlib.clouds.aws.everything import doomed, there

        found = self._described()
        if found is not None and found["status"] == "ACTIVE":
            self._keep()
            release(self.kube, about=self._title)
        again = f'kit.connect("{self.name}").delete()'
        with StepsTable(self._title) as report:
            steps.take_down(doomed(self._plan), title=self._title, resume=again, report=report)
        left = there(self._plan)
        if left:
            raise ProviderFailed(
                "something is left, and may cost: "
                + "; ".join(f"{part.name} {seen.id} {part.bills}".rstrip() for part, seen in left),
                about=self._title,
                fix="delete it again; if it stays, docs/eks.md says how by hand",
            )
        self.memory.forget(self.name)

    @property
    def _title(self) -> str:
        return f'cluster "{self.name}" in {self.session.region}'

    @property
    def _again(self) -> str:
        return f'kit.create_cluster("eks", name="{self.name}", region="{self.session.region}")'


def _hours(hours: object) -> float:
    if isinstance(hours, bool) or not isinstance(hours, int | float) or not 0.5 <= hours <= 24 * 14:
        raise BadInput("hours are a number from 0.5 to 336", about=f"hours={hours!r}", fix=f"hours={HOURS}")
    return float(hours)
