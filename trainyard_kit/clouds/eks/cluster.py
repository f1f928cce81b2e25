"""The provider ``eks``: clusters of Amazon EKS in the user's account, each four CloudFormation stacks."""

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
from kitlib.errors import BadInput, KitError, ProviderFailed
from kitlib.k8s import manifests, names
from trainyard_kit.clouds.checks import Check, Probe, Report, failed, run
from trainyard_kit.clouds.cluster import CloudCluster
from trainyard_kit.clouds.cluster_store import ClusterStore, exec_kubeconfig
from trainyard_kit.clouds.eks import delete, machines
from trainyard_kit.clouds.eks import plan as planning
from trainyard_kit.clouds.eks.create import ROLES, bring_up, move_end
from trainyard_kit.clouds.eks.credentials import find_credentials
from trainyard_kit.clouds.eks.ecr import EcrRegistry
from trainyard_kit.clouds.eks.plan import OPTIONS, SYSTEM_MACHINE, EksPlan
from trainyard_kit.clouds.eks.preflight import probes
from trainyard_kit.clouds.eks.session import AwsSession, known_regions
from trainyard_kit.clouds.eks.stacks import (
    TRAIN,
    Stack,
    StackState,
    end_of,
    follow,
    patiently,
    stacks_of,
)
from trainyard_kit.clouds.eks.token import EXEC
from trainyard_kit.clouds.provider import Places
from trainyard_kit.clouds.spec import HOURS, CloudResource, ClusterInfo, Machines, other_machines, until_of
from trainyard_kit.clouds.steps import Steps
from trainyard_kit.clouds.tags import Tags, read

EXISTS = ("ResourceInUseException",)
LONGEST_NAME = 24  # a bucket's name holds the account's and the region's as well, in 63 characters


class EksCluster(CloudCluster[AwsSession, EksPlan, ClusterInfo]):
    provider, cloud, options = "eks", "AWS", OPTIONS
    store = ClusterStore("eks")
    location_attribute, pool, ready_states = "region", TRAIN, ("active", "updating")
    price_list, system_machine = "amazon", SYSTEM_MACHINE

    @classmethod
    def checked(cls, name: str) -> str:
        return names.validate_name(name, kind="cluster", longest=LONGEST_NAME)

    @classmethod
    def _session(cls, name: str, options: Mapping[str, Any]) -> AwsSession:
        before = cls.store.read(name) or {}
        region, profile = (options.get(word) or before.get(word) for word in ("region", "profile"))
        return AwsSession(region, profile)

    @classmethod
    def sessions(cls, **places: Unpack[Places]) -> list[AwsSession]:
        regions, profile = places.get("regions"), places.get("profile")
        if regions != "all":
            chosen = [regions] if regions is None or isinstance(regions, str) else regions
            return [AwsSession(region, profile) for region in chosen]
        home = AwsSession(None, profile)
        return [
            home.within(region["RegionName"]) for region in home.call("ec2", "describe_regions")["Regions"]
        ]

    @classmethod
    def credentials(cls, environment: Mapping[str, str], home: Path) -> tuple[str, str]:
        return find_credentials(environment, home)

    @classmethod
    def find(cls, name: str, *, region: str | None = None, profile: str | None = None) -> "EksCluster | None":
        """Find a cluster, in whatever state; also one that was deployed from the templates without the kit.

        Args:
            name: Its name.
            region: Where it is; needed once on each machine.
            profile: Of the AWS configuration.
        """
        names.validate_name(name, kind="cluster")
        if cls.store.read(name) is None and region is None and profile is None:
            return None
        cluster = cls(name, cls._session(name, {"region": region, "profile": profile}))
        if cluster._describe() is None:
            return None
        cluster._write_kubeconfig()
        return cluster

    @classmethod
    def preflight(cls, name: str, shape: Shape) -> Report:
        """Check what may prevent a new cluster; nothing is created, and nothing costs."""
        cluster = cls._new(name, shape)
        try:
            return cluster._preflight(cluster._planned(shape))
        except KitError as error:  # what cannot be planned is one more finding, beside the others
            wrong = failed("plan", error.what, error.fix)
            all_probes = [*probes(cluster.session, name, None), Probe("plan", lambda: wrong)]
            return run(all_probes, about=cluster.title)

    # Looking

    @classmethod
    def clusters(cls, session: AwsSession) -> list[ClusterInfo]:
        infos = []
        for region in sorted(regions(session)):
            here = session if region == session.region else session.within(region)
            stacks = stacks_of(here)
            infos += [_info(here, now, stacks) for stack, now in stacks if not stack.pool]
        return infos

    @classmethod
    def find_resources(cls, session: AwsSession, cluster: str | None = None) -> list[CloudResource]:
        return delete.find_resources(session, cluster)

    def _describe(self) -> ClusterInfo | None:
        stacks = stacks_of(self.session, self.name)
        return next((_info(self.session, now, stacks) for stack, now in stacks if not stack.pool), None)

    def _stack(self, pool: str = "") -> StackState:
        state = Stack(self.session, self.name, pool).describe()
        if state is None:
            raise self._not_found()
        return state

    # Planning

    def _planned(self, shape: Shape) -> EksPlan:
        until = until_of(shape.options.get("hours", HOURS))
        before = end_of(stacks_of(self.session, self.name), self.name)
        expires = before if before and before > datetime.now(UTC) else until
        return planning.plan(self.session, self._tags(expires), shape)

    def _reuse_existing(self, info: ClusterInfo, plan: EksPlan, shape: Shape) -> EksPlan:
        if info.state.startswith("delete"):
            message = f"it is being deleted: its stack is {info.state.replace('_', ' ')}"
            raise ProviderFailed(message, about=self.title, fix="`cluster.delete()`, then again")
        if not info.version:  # it failed before its control plane: all of it is created anew
            return plan
        plan = self._in_its_zones(plan, shape)
        running, planned = info.machines, plan.machines
        if running is None or (running.type, running.others, running.spot) == (
            planned.type,
            planned.others,
            planned.spot,
        ):
            return plan
        if {"instance_type", "instance_types", "spot"} & set(shape.options):
            has = f'instance_type="{running.type}", spot={running.spot}'
            raise other_machines(has, self.title)
        return replace(plan, machines=running)

    def _in_its_zones(self, plan: EksPlan, shape: Shape) -> EksPlan:
        """Have the training nodes in one of the zones that the cluster has."""
        parameters = self._stack().parameters
        zones = (parameters["ZoneOne"], parameters["ZoneTwo"])
        having = machines.zones_with(self.session, (plan.machines.type, *plan.machines.others))
        wanted = shape.options.get("zone") or next((zone for zone in zones if zone in having), zones[0])
        if wanted not in zones:
            fix = f"`zone={' or '.join(map(repr, zones))}`"
            raise BadInput("the cluster has no subnet there", about=f'zone="{wanted}", {self.title}', fix=fix)
        private = parameters.get("PrivateNodes") == "true"
        return replace(plan, zones=zones, zone=planning.ZONES[zones.index(wanted)], private=private)

    def _preflight(self, plan: EksPlan) -> Report:
        return run(probes(self.session, self.name, plan), about=self.title)

    def _quotas(self, machines_: Machines, nodes: int, more: int) -> Iterable[Check]:
        quota_requests = machines.on_quota(machines_, nodes, SYSTEM_MACHINE)
        return machines.check_vcpus(self.session, self.name, quota_requests)

    # Changing

    def _create(self, plan: EksPlan, steps: Steps) -> None:
        bring_up(self.session, plan, steps, fix=self._again)
        for admin in plan.admins:
            self._authorize_admin(admin, plan.tags)

    def _scale(self, nodes: int, steps: Steps) -> None:
        stack = Stack(self.session, self.name, TRAIN)
        if (now := stack.describe()) and now.busy:
            follow([stack], steps, fix="call it again")
            now = stack.describe()
        if now is None or not now.complete:
            raise ProviderFailed(
                "it has no training nodes, or they failed", about=stack.about, fix=self._again
            )
        stack.known_failures = self._launch_failures()
        least, most = (int(now.parameters.get(limit) or 0) for limit in ("MinNodes", "MaxNodes"))
        if not stack.update({"Nodes": nodes, "MinNodes": min(least, nodes), "MaxNodes": max(most, nodes, 1)}):
            # So many were asked for before; the stack does not see what the autoscaler has removed since.
            size, group = {"desiredSize": nodes}, {"clusterName": self.name, "nodegroupName": TRAIN}
            call = self.session.call
            patiently(steps, lambda: call("eks", "update_nodegroup_config", scalingConfig=size, **group))
            return
        follow([stack], steps, fix="call it again")
        now = stack.describe()
        if now is None or now.status != "UPDATE_COMPLETE":
            raise stack.error("call it again, or with fewer nodes")

    def _launch_failures(self) -> dict[str, str]:
        return machines.launch_failures(self.session, self.name, TRAIN)

    def _permanent_failure_fix(self, message: str) -> str:
        if not machines.is_permanent(message):
            return ""
        machines_now = self._machines_of(self._found())
        return (
            machines.advice(self.session, machines_now.type, message, spot=machines_now.spot, alternative="")
            or ""
        )

    def _extend(self, info: ClusterInfo, until: datetime, steps: Steps) -> None:
        if not self._stack().service_role:
            words = "it was deployed without the kit, and has no end to extend"
            raise BadInput(words, about=self.title, fix="it stays until you delete it")
        later = EksPlan(replace(info.tags, expires=until), Machines("", 0))
        move_end(self.session, later, steps, fix="call it again")

    @classmethod
    def _delete(cls, session: AwsSession, name: str, steps: Steps) -> None:
        delete.delete(session, name, steps)

    def _install_addons(self, plan: EksPlan) -> None:
        self.install_storage_class("storageclass.yaml", {"fileSystemId": self._stack().outputs["Files"]})
        self.install_storage_class("storageclass-ebs.yaml", {})
        self._install_autoscaler()
        if plan.machines.gpus:
            from kitlib.operators import install  # which imports this package

            install("nvidia-device-plugin", cluster=self)

    def _install_autoscaler(self) -> None:
        """Let training nodes go while nothing runs on them, and come back for pods that wait."""
        for item in manifests.read(config.manifests("eks", "autoscaler.yaml")):
            if item["kind"] == "Deployment":
                (container,) = item["spec"]["template"]["spec"]["containers"]
                tags = f"k8s.io/cluster-autoscaler/enabled,k8s.io/cluster-autoscaler/{self.name}"
                container["args"] += [f"--node-group-auto-discovery=asg:tag={tags}"]  # EKS tags its groups
                container["env"] = [{"name": "AWS_REGION", "value": self.session.region}]
            self.kube.apply(item)

    # Using

    @property
    def bucket(self) -> str:
        """The bucket that its pods may read: ``s3://…``."""
        return f"s3://{self._stack().outputs['Bucket']}"

    def upload(self, path: str | Path, *, to: str) -> str:
        """Copy a file to the cluster's bucket, where it is called ``to``; return its address: ``s3://…``."""
        bucket = self.bucket
        where = {"Bucket": bucket.removeprefix("s3://"), "Key": to}
        self.session.call("s3", "put_object", Body=Path(path).read_bytes(), **where)
        return f"{bucket}/{to}"

    @property
    def registry(self) -> EcrRegistry:
        return EcrRegistry(self.session, self._found().tags)

    def add_admin(self, who: str) -> Text:
        """Let a user or role of IAM do all in the cluster, by an access entry.

        Example:
            >>> cluster.add_admin("arn:aws:iam::123456789012:user/ada")
            arn:aws:iam::123456789012:user/ada administers cluster "lab" in eu-central-1; they reach it by: …
        """
        self._authorize_admin(planning.check_principal(who), self._found().tags)
        way = f'`kit.connect("{self.name}", provider="eks", region="{self.session.region}")`'
        return Text(
            f"{who} administers {self.title}; they reach it by {way}, "
            "for which IAM has to allow them eks:DescribeCluster and cloudformation:DescribeStacks"
        )

    def grant_pod_access(self, namespace: str) -> None:
        """Let the pods of a namespace read the cluster's bucket."""
        amazon_tags, role = self._found().tags.amazon(), self._stack().outputs["PodRole"]
        pods = self._pods(namespace)
        self.session.find(
            "eks", "create_pod_identity_association", fine=EXISTS, roleArn=role, tags=amazon_tags, **pods
        )

    def revoke_pod_access(self, namespace: str) -> None:
        """Let them read it no longer."""
        associations = (
            self.session.find("eks", "list_pod_identity_associations", **self._pods(namespace)) or {}
        )
        for association in associations.get("associations", []):
            key = {"clusterName": self.name, "associationId": association["associationId"]}
            self.session.find("eks", "delete_pod_identity_association", **key)

    def _pods(self, namespace: str) -> dict[str, str]:
        return {"clusterName": self.name, "namespace": namespace, "serviceAccount": "default"}

    def _authorize_admin(self, arn: str, given: Tags) -> None:
        """Let a user or role do all: https://docs.aws.amazon.com/eks/latest/userguide/access-entries.html."""
        entry, tags = {"clusterName": self.name, "principalArn": arn}, given.amazon()
        self.session.find("eks", "create_access_entry", fine=EXISTS, tags=tags, **entry)
        policy = f"arn:{self.session.partition}:eks::aws:cluster-access-policy/AmazonEKSClusterAdminPolicy"
        scope = {"type": "cluster"}
        self.session.call("eks", "associate_access_policy", policyArn=policy, accessScope=scope, **entry)

    def _location(self) -> dict[str, str | None]:
        return {"region": self.session.region, "profile": self.session.profile}

    def _kubeconfig(self, info: ClusterInfo) -> dict[str, Any]:
        profile = ["--profile", self.session.profile] if self.session.profile else []
        where = ["--cluster", self.name, "--region", self.session.region]
        program = {
            "apiVersion": EXEC,
            "command": sys.executable,  # kubectl may be started anywhere
            "args": ["-m", "trainyard_kit.clouds.eks.token", *where, *profile],
            "env": [{"name": "PYTHONPATH", "value": str(config.ROOT)}],
        }
        return exec_kubeconfig(self.name, info, program)

    @property
    def _again(self) -> str:
        return f'`kit.create_cluster("eks", name="{self.name}", region="{self.session.region}")`'


def regions(session: AwsSession) -> set[str]:
    """Find the regions of the account in which there are clusters of the kit: their roles are in none."""
    pattern = re.compile(rf"trainyard-.+-({'|'.join(known_regions())})-[a-z]+")
    roles = session.every("iam", "list_roles", "Roles", PathPrefix=ROLES)
    matches = (pattern.fullmatch(role["RoleName"]) for role in roles)
    return {session.region, *(match[1] for match in matches if match)}


def _info(session: AwsSession, now: StackState, stacks: Iterable[tuple[Stack, StackState]]) -> ClusterInfo:
    """Describe a cluster by its stacks, by EKS, and by its schedules' end."""
    name = now.parameters["ClusterName"]
    description = (session.find("eks", "describe_cluster", name=name) or {}).get("cluster") or {}
    cluster_tags = read(now.tags)
    assert cluster_tags is not None  # `stacks_of` finds the kit's alone
    ready = now.complete or (now.busy and now.status.startswith("UPDATE"))
    trained = None
    for stack, state in stacks:
        if (stack.cluster, stack.pool) == (name, TRAIN) and (state.complete or state.busy):
            trained = planning.training(session, state.parameters)
    return ClusterInfo(
        replace(cluster_tags, cluster=name, expires=end_of(stacks, name)),
        trained,
        now.parameters.get("PrivateNodes") == "true",
        state=description.get("status", now.status).lower() if ready else now.status.lower(),
        version=description.get("version", ""),
        endpoint=description.get("endpoint") or "",
        authority=(description.get("certificateAuthority") or {}).get("data", ""),
        where=session.region,
    )
