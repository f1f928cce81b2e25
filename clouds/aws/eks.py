"""The provider ``eks``: clusters of Amazon EKS, in an account of the user's.

The resources of such a cluster are in the modules beside this. boto3 is imported when one is asked for.
"""

from collections.abc import Iterable, Mapping
from dataclasses import replace
from datetime import datetime
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from clouds.aws.credentials import find_credentials
from clouds.cloud_cluster import CloudCluster
from clouds.cluster_store import ClusterStore
from clouds.options import COMMON_OPTIONS, DISK_GB, HOURS, admins_of, no_words, other_machines, until_of
from clouds.price_table import Estimate, Price
from kitlib.clusters.base import Shape
from kitlib.clusters.checks import Check, Report
from kitlib.display.progress import progress
from kitlib.display.tables import Text
from kitlib.errors import KitError
from kitlib.k8s import names
from kitlib.k8s.quantities import check_count

if TYPE_CHECKING:
    from clouds.aws.cluster import NodeGroup
    from clouds.aws.plan import AwsResource, EksPlan
    from clouds.aws.session import AwsSession
    from kitlib.clusters.image_registry import Registry

GPU = {"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"}
LONGEST_NAME = 24
MACHINE, SYSTEM_MACHINE = "m5.xlarge", "t3.large"
OPTIONS = {
    "region": "of AWS; by default AWS_REGION, or the profile's",
    "profile": "of your AWS configuration; by default what boto3 finds",
    "instance_type": f"of the training nodes; by default {MACHINE}",
    "spot": "True takes machines that AWS may take back, for about a third of the price",
    "private": "True gives nodes no public address; the NAT gateway that they need costs by the hour",
    "version": "of Kubernetes",
    **COMMON_OPTIONS,
}


class EksCluster(CloudCluster):
    """A cluster of EKS.

    Args:
        name: Its name.
        session: The way to its account and region.
    """

    provider, cloud, options = "eks", "AWS", OPTIONS
    store = ClusterStore("eks")
    place, pool, up = "region", "train", ("active", "updating")

    @classmethod
    def checked(cls, name: str) -> str:
        return names.validate_name(name, kind="cluster", longest=LONGEST_NAME)

    @classmethod
    def _session(cls, name: str, given: Mapping[str, object]) -> "AwsSession":
        from clouds.aws.session import AwsSession

        before = cls.store.read(name) or {}
        return AwsSession(*(given.get(word) or before.get(word) for word in ("region", "profile")))

    @classmethod
    def credentials(cls, environment: Mapping[str, str], home: Path) -> tuple[str, str]:
        return find_credentials(environment, home)

    @classmethod
    def find(cls, name: str, *, region: str | None = None, profile: str | None = None) -> "EksCluster | None":
        """Return the one of this name, in whatever state, or None.

        Args:
            name: Its name.
            region: Where it is; needed once on each machine.
            profile: Whose account.
        """
        if (
            cls.store.read(names.validate_name(name, kind="cluster")) is None
            and region is None
            and profile is None
        ):
            return None
        cluster = cls(name, cls._session(name, {"region": region, "profile": profile}))
        if cluster._description() is None:
            return None
        cluster._keep()
        return cluster

    @classmethod
    def preflight(cls, name: str, shape: Shape) -> Report:
        """Look at what may stand in the way of a new cluster; nothing is made, and nothing costs."""
        cluster = cls._asked(name, shape)
        try:
            return cluster._preflight(cluster._planned(shape))
        except KitError:  # nothing can be planned without credentials: that report says so
            report = cluster._preflight(cluster._plan)
            if report.ok:
                raise
            return report

    # What AWS says

    def _description(self) -> dict | None:
        from clouds.aws.stack import control_plane

        return control_plane(self._plan).description()

    def _state(self, found: Mapping) -> str:
        return found["status"].lower()

    def _facts(self, found: Mapping) -> dict[str, object]:
        return {
            "version": found["version"],
            "region": self.session.region,
            "account": self.session.account,
            "expires": self._end(),
            "endpoint": found.get("endpoint"),
        }

    @cached_property
    def _plan(self) -> "EksPlan":
        """The cluster as far as its name tells."""
        from clouds.aws.plan import EksPlan

        return EksPlan(self.session, self._tags(None), strict=False)

    def _planned(self, shape: Shape) -> "EksPlan":
        from clouds.aws.access import check_principal
        from clouds.aws.instance_types import instance_type, zones, zones_with
        from clouds.aws.plan import SYSTEM, TRAIN, VERSION, EksPlan, NodeGroupPlan

        given = shape.options
        fix = 'instance_type="m5.xlarge", or "g4dn.xlarge" for a GPU'
        no_words(shape, ("cpus", "memory", "gpus"), about="eks", cloud="AWS", fix=fix)
        wanted = instance_type(self.session, str(given.get("instance_type") or MACHINE))
        here = zones(self.session, wanted.name)
        until = until_of(given.get("hours", HOURS))
        train = NodeGroupPlan(
            TRAIN,
            wanted.name,
            shape.nodes,
            disk_gb=check_count(given.get("disk_gb", DISK_GB), what="disk_gb", least=20, most=16384),
            spot=bool(given.get("spot")),
            gpus=wanted.gpus,
            arm=wanted.arm,
            places=len(set(here) & set(zones_with(self.session, wanted.name))),
        )
        return EksPlan(
            self.session,
            self._tags(self._end() or until),
            zones=here,
            groups=(NodeGroupPlan(SYSTEM, SYSTEM_MACHINE, 1, least=1), train),
            private=bool(given.get("private")),
            version=str(given.get("version") or VERSION),
            admins=tuple(map(check_principal, admins_of(given.get("admins")))),
        )

    def _reuse_existing(self, found: Mapping, plan: "EksPlan", shape: Shape) -> "EksPlan":
        from clouds.aws.instance_types import instance_type

        there = self._group().description()
        if there is None:
            return plan
        system, train = plan.groups
        (kind, *_), spot = there["instanceTypes"], there["capacityType"] == "SPOT"
        if (kind, spot) == (train.instance_type, train.spot):
            return plan
        if {"instance_type", "spot"} & set(shape.options):
            raise other_machines(f'instance_type="{kind}", spot={spot}', self._title)
        own = instance_type(self.session, kind)
        train = replace(train, instance_type=kind, spot=spot, gpus=own.gpus, arm=own.arm)
        return replace(plan, groups=(system, train))

    def _preflight(self, plan: "EksPlan") -> Report:
        from clouds.aws import preflight

        return preflight.check(plan)

    def _estimate(self, plan: "EksPlan", hours: float) -> Estimate:
        from clouds.aws import prices

        return prices.estimate(plan, hours=hours)

    def _cost(self) -> Estimate:
        from clouds.aws.running_costs import cost

        return cost(self.session, self.name)

    def _running_costs(self) -> list[Estimate]:
        from clouds.aws.running_costs import running_costs

        return running_costs(self.session)

    def _parts(self, plan: "EksPlan") -> list["AwsResource"]:
        from clouds.aws.stack import resources

        return resources(plan)

    def _all_resources(self) -> list["AwsResource"]:
        from clouds.aws.stack import all_resources

        return all_resources(self._plan)

    def _install_addons(self, plan: "EksPlan") -> None:
        from clouds.aws.storage import EfsFileSystem

        self._install("storageclass.yaml", {"fileSystemId": EfsFileSystem(plan).id})
        if any(each.gpus for each in plan.groups):
            from kitlib.operators import install  # which imports this package

            install("nvidia-device-plugin", cluster=self)

    # Reaching it

    def _remember(self, *, plan=None, found=None) -> None:
        self.store.write(self.name, {"region": self.session.region, "profile": self.session.profile})

    def _kubeconfig(self, found: Mapping) -> dict | None:
        from clouds.aws.kubeconfig import kubeconfig

        return kubeconfig(self.session, found) if found.get("endpoint") else None

    def pod_additions(self, *, gpus: int = 0) -> dict[str, object]:
        """Tolerations and node affinity with which pods are scheduled on the training nodes."""
        onto = {"tolerations": [GPU]}  # a cluster's training nodes may be those with GPUs alone
        return onto if gpus else onto | super().pod_additions()

    @property
    def registry(self) -> "Registry":
        """Its repositories in ECR."""
        from clouds.aws.ecr import EcrRegistry

        return EcrRegistry(self._plan, clock=self.clock)

    # Sharing

    def add_admin(self, who: str) -> Text:
        """Let a user or role of IAM do all in the cluster, by an access entry.

        Args:
            who: Its ARN: ``arn:aws:iam::123456789012:role/teachers``.

        Raises:
            BadInput: That is no user and no role.

        Example:
            >>> cluster.add_admin("arn:aws:iam::123456789012:user/ada")
            arn:aws:iam::123456789012:user/ada administers cluster "lab" in eu-central-1; they reach it by: …
        """
        from clouds.aws.access import AccessEntry, check_principal

        self._found()
        AccessEntry(self._plan, check_principal(who)).create()
        way = f'kit.connect("{self.name}", provider="eks", region="{self.session.region}")'
        return Text(
            f"{who} administers {self._title}; they reach it by {way}, "
            "for which IAM has to allow them eks:DescribeCluster"
        )

    def grant_pod_access(self, namespace: str) -> None:
        """Let the pods of a namespace read the cluster's bucket."""
        from clouds.aws.stack import pods_of

        pods_of(self._plan, namespace).create()

    def revoke_pod_access(self, namespace: str) -> None:
        """Let them read it no longer."""
        from clouds.aws.stack import pods_of

        pods_of(self._plan, namespace).delete()

    # Acting

    def _group(self) -> "NodeGroup":
        from clouds.aws.stack import node_group

        return node_group(self._plan, "train")

    def _there_of_group(self) -> dict:
        found = self._group().description()
        if found is None:
            raise self._not_found()
        return found

    def _machines(self) -> int:
        return self._there_of_group()["scalingConfig"]["desiredSize"]

    def _price_of_machines(self, count: int) -> tuple[Price, ...]:
        from clouds.aws.prices import price_of_nodes

        found = self._there_of_group()
        spot, (kind, *_) = found["capacityType"] == "SPOT", found["instanceTypes"]
        return (price_of_nodes(self.session, instance_type=kind, nodes=count, spot=spot),)

    def _quotas(self, nodes: int, more: int) -> Iterable[Check]:
        from clouds.aws.quotas import Quotas

        found = self._there_of_group()
        spot, (kind, *_) = found["capacityType"] == "SPOT", found["instanceTypes"]
        wanted = [(kind, nodes, spot), (SYSTEM_MACHINE, 1, False)]  # what is its own already is not counted
        return Quotas(self.session, self.name).vcpus(wanted)

    def _scale(self, nodes: int) -> None:
        self._group().scale(nodes)

    def _end(self) -> datetime | None:
        from clouds.aws.expiry import end

        return end(self._plan)

    def _move_end(self, found: Mapping, until: datetime) -> None:
        from clouds.aws.stack import extend

        with progress(self._title) as line:
            extend(self._plan, until, report=line.update)
            line.done(f"it ends at {until:%Y-%m-%d %H:%M} UTC")

    @property
    def _again(self) -> str:
        return f'kit.create_cluster("eks", name="{self.name}", region="{self.session.region}")'
