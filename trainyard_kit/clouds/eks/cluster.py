"""The provider ``eks``: Amazon EKS clusters in the user's account, each of four CloudFormation stacks."""

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
from trainyard_kit.checks import Check, Probe, Report, failed, run
from trainyard_kit.clouds.cluster import CloudCluster
from trainyard_kit.clouds.cluster_store import ClusterStore, exec_kubeconfig
from trainyard_kit.clouds.eks import delete, machines
from trainyard_kit.clouds.eks import plan as planning
from trainyard_kit.clouds.eks.create import ROLES, create_stacks, update_expiry
from trainyard_kit.clouds.eks.credentials import find_credentials
from trainyard_kit.clouds.eks.ecr import EcrRegistry
from trainyard_kit.clouds.eks.plan import OPTIONS, SYSTEM_MACHINE, EksPlan
from trainyard_kit.clouds.eks.preflight import probes
from trainyard_kit.clouds.eks.session import AwsSession, known_regions
from trainyard_kit.clouds.eks.stacks import (
    TRAIN,
    Stack,
    StackState,
    await_stacks,
    read_expiry,
    retry_transient,
    stacks_of,
)
from trainyard_kit.clouds.eks.token import EXEC
from trainyard_kit.clouds.provider import SearchScope
from trainyard_kit.clouds.spec import (
    HOURS,
    ClusterInfo,
    Machines,
    expiry_after,
    machines_differ,
)
from trainyard_kit.clouds.steps import Steps
from trainyard_kit.clouds.tags import Tags, read

ALREADY_EXISTS = ("ResourceInUseException",)
LONGEST_NAME = 24  # a bucket name of 63 characters also contains the account and the region


class EksCluster(CloudCluster[AwsSession, EksPlan, ClusterInfo]):
    provider, cloud, options = "eks", "AWS", OPTIONS
    store = ClusterStore("eks")
    location_attribute, pool, ready_states = "region", TRAIN, ("active", "updating")
    price_list, system_machine = "amazon", SYSTEM_MACHINE
    credentials, find_resources = staticmethod(find_credentials), staticmethod(delete.find_resources)
    _delete = staticmethod(delete.delete)

    @classmethod
    def validate_name(cls, name: str) -> str:
        return names.validate_name(name, kind="cluster", longest=LONGEST_NAME)

    @classmethod
    def _session(cls, name: str, options: Mapping[str, Any]) -> AwsSession:
        stored = cls.store.read(name) or {}
        region, profile = (options.get(key) or stored.get(key) for key in ("region", "profile"))
        return AwsSession(region, profile)

    @classmethod
    def sessions(cls, **scope: Unpack[SearchScope]) -> list[AwsSession]:
        regions, profile = scope.get("regions"), scope.get("profile")
        if regions != "all":
            selected = [regions] if regions is None or isinstance(regions, str) else regions
            return [AwsSession(region, profile) for region in selected]
        session = AwsSession(None, profile)
        enabled = session.call("ec2", "describe_regions")["Regions"]
        return [session.within(region["RegionName"]) for region in enabled]

    @classmethod
    def find(cls, name: str, *, region: str | None = None, profile: str | None = None) -> "EksCluster | None":
        """Find a cluster in any state, including one deployed from the templates without the kit.

        Args:
            name: Its name.
            region: Its region; needed once on each machine.
            profile: A profile of the AWS configuration.
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
        """Check what may prevent creating a cluster; nothing is created or charged."""
        cluster = cls._build(name, shape)
        try:
            return cluster._preflight(cluster._make_plan(shape))
        except KitError as error:  # report it with the results of the other checks
            check = failed("plan", error.what, error.fix)
            all_probes = [*probes(cluster.session, name, None), Probe("plan", lambda: check)]
            return run(all_probes, about=cluster.title)

    # Describe

    @classmethod
    def clusters(cls, session: AwsSession) -> list[ClusterInfo]:
        infos = []
        for region in sorted(regions(session)):
            regional = session if region == session.region else session.within(region)
            stacks = stacks_of(regional)
            infos += [_info(regional, state, stacks) for stack, state in stacks if not stack.pool]
        return infos

    def _describe(self) -> ClusterInfo | None:
        stacks = stacks_of(self.session, self.name)
        return next((_info(self.session, state, stacks) for stack, state in stacks if not stack.pool), None)

    def _stack(self, pool: str = "") -> StackState:
        state = Stack(self.session, self.name, pool).describe()
        if state is None:
            raise self._not_found()
        return state

    # Plan

    def _make_plan(self, shape: Shape) -> EksPlan:
        requested = expiry_after(shape.options.get("hours", HOURS))
        existing = read_expiry(stacks_of(self.session, self.name), self.name)
        expires = existing if existing and existing > datetime.now(UTC) else requested
        return planning.plan(self.session, self._tags(expires), shape)

    def _reuse_existing(self, info: ClusterInfo, plan: EksPlan, shape: Shape) -> EksPlan:
        if info.state.startswith("delete"):
            message = f"it is being deleted: its stack is {info.state.replace('_', ' ')}"
            raise ProviderFailed(message, about=self.title, fix="`cluster.delete()`, then again")
        if not info.version:  # it failed before its control plane: everything is recreated
            return plan
        plan = self._in_its_zones(plan, shape)
        running, planned = info.machines, plan.machines
        if running is None or all(
            getattr(running, field) == getattr(planned, field)
            for field in ("type", "alternative_types", "spot")
        ):
            return plan
        if {"instance_type", "instance_types", "spot"} & set(shape.options):
            raise machines_differ(f'instance_type="{running.type}", spot={running.spot}', self.title)
        return replace(plan, machines=running)

    def _in_its_zones(self, plan: EksPlan, shape: Shape) -> EksPlan:
        """Place the training nodes in one of the zones that the cluster has."""
        parameters = self._stack().parameters
        zones = (parameters["ZoneOne"], parameters["ZoneTwo"])
        offering = machines.zones_with(self.session, (plan.machines.type, *plan.machines.alternative_types))
        zone = shape.options.get("zone") or next((zone for zone in zones if zone in offering), zones[0])
        if zone not in zones:
            fix = f"`zone={' or '.join(map(repr, zones))}`"
            raise BadInput("the cluster has no subnet there", about=f'zone="{zone}", {self.title}', fix=fix)
        private = parameters.get("PrivateNodes") == "true"
        return replace(plan, zones=zones, zone=planning.ZONES[zones.index(zone)], private=private)

    def _preflight(self, plan: EksPlan) -> Report:
        return run(probes(self.session, self.name, plan), about=self.title)

    def _quotas(self, machines_: Machines, nodes: int, added: int) -> Iterable[Check]:
        requests = machines.vcpu_requests(machines_, nodes, SYSTEM_MACHINE)
        return machines.check_vcpus(self.session, self.name, requests)

    # Change

    def _create(self, plan: EksPlan, steps: Steps) -> None:
        create_stacks(self.session, plan, steps, fix=self._create_call)
        for admin in plan.admins:
            self._authorize_admin(admin, plan.tags)

    def _scale(self, nodes: int, steps: Steps) -> None:
        stack = Stack(self.session, self.name, TRAIN)
        if (state := stack.describe()) and state.busy:
            await_stacks([stack], steps, fix="call it again")
            state = stack.describe()
        if state is None or not state.complete:
            message = "it has no training nodes, or they failed"
            raise ProviderFailed(message, about=stack.about, fix=self._create_call)
        stack.known_failures = self._launch_failures()
        least, most = (int(state.parameters.get(limit) or 0) for limit in ("MinNodes", "MaxNodes"))
        if not stack.update({"Nodes": nodes, "MinNodes": min(least, nodes), "MaxNodes": max(most, nodes, 1)}):
            # The stack has this number already, but the autoscaler may have removed nodes since.
            size, group = {"desiredSize": nodes}, {"clusterName": self.name, "nodegroupName": TRAIN}
            call = self.session.call  # literal arguments, from which IAM policies are derived
            retry_transient(
                steps, lambda: call("eks", "update_nodegroup_config", scalingConfig=size, **group)
            )
            return
        await_stacks([stack], steps, fix="call it again")
        state = stack.describe()
        if state is None or state.status != "UPDATE_COMPLETE":
            raise stack.error("call it again, or with fewer nodes")

    def _launch_failures(self) -> dict[str, str]:
        return machines.launch_failures(self.session, self.name, TRAIN)

    def _permanent_failure_fix(self, message: str) -> str:
        if not machines.is_permanent(message):
            return ""
        train = self._machines_of(self._require_info())
        fix = machines.launch_failure_fix(self.session, train.type, message, spot=train.spot, alternative="")
        return fix or ""

    def _extend(self, info: ClusterInfo, expiry: datetime, steps: Steps) -> None:
        if not self._stack().service_role:
            message = "it was deployed without the kit, and does not expire"
            raise BadInput(message, about=self.title, fix="nothing to do: it runs until you delete it")
        plan = EksPlan(replace(info.tags, expires=expiry), Machines("", 0))
        update_expiry(self.session, plan, steps, fix="call it again")

    def _install_addons(self, plan: EksPlan) -> None:
        self.install_storage_class("storageclass.yaml", {"fileSystemId": self._stack().outputs["Files"]})
        self.install_storage_class("storageclass-ebs.yaml", {})
        self._install_autoscaler()
        if plan.machines.gpus:
            from kitlib.operators import install  # which imports this package

            install("nvidia-device-plugin", cluster=self)

    def _install_autoscaler(self) -> None:
        """Install the autoscaler, which removes idle training nodes and adds them for Pending pods."""
        for item in manifests.read(config.manifests("eks", "autoscaler.yaml")):
            if item["kind"] == "Deployment":
                (container,) = item["spec"]["template"]["spec"]["containers"]
                tags = f"k8s.io/cluster-autoscaler/enabled,k8s.io/cluster-autoscaler/{self.name}"
                container["args"] += [f"--node-group-auto-discovery=asg:tag={tags}"]  # EKS tags its groups
                container["env"] = [{"name": "AWS_REGION", "value": self.session.region}]
            self.kube.apply(item)

    # Use

    @property
    def bucket(self) -> str:
        """The bucket that its pods may read: ``s3://…``."""
        return f"s3://{self._stack().outputs['Bucket']}"

    def upload(self, path: str | Path, *, to: str) -> str:
        """Copy a file to the cluster's bucket as ``to``; return its URI: ``s3://…``."""
        bucket = self.bucket
        target = {"Bucket": bucket.removeprefix("s3://"), "Key": to}
        self.session.call("s3", "put_object", Body=Path(path).read_bytes(), **target)
        return f"{bucket}/{to}"

    @property
    def registry(self) -> EcrRegistry:
        return EcrRegistry(self.session, self._require_info().tags)

    def add_admin(self, principal: str) -> Text:
        """Make an IAM user or role a cluster administrator by an access entry.

        Example:
            >>> cluster.add_admin("arn:aws:iam::123456789012:user/ada")
            arn:aws:iam::123456789012:user/ada administers cluster "lab" in eu-central-1; they connect with …
        """
        self._authorize_admin(planning.check_principal(principal), self._require_info().tags)
        call = f'`kit.connect("{self.name}", provider="eks", region="{self.session.region}")`'
        return Text(
            f"{principal} administers {self.title}; they connect with {call}, "
            "for which IAM has to allow them eks:DescribeCluster and cloudformation:DescribeStacks"
        )

    def grant_pod_access(self, namespace: str) -> None:
        """Let the pods of a namespace read the cluster's bucket."""
        request = {
            **self._service_account(namespace),
            "roleArn": self._stack().outputs["PodRole"],
            "tags": self._require_info().tags.amazon(),
        }
        self.session.find("eks", "create_pod_identity_association", ignore=ALREADY_EXISTS, **request)

    def revoke_pod_access(self, namespace: str) -> None:
        """Revoke the pods' access to the bucket."""
        account = self._service_account(namespace)
        answer = self.session.find("eks", "list_pod_identity_associations", **account) or {}
        for association in answer.get("associations", []):
            key = {"clusterName": self.name, "associationId": association["associationId"]}
            self.session.find("eks", "delete_pod_identity_association", **key)

    def _service_account(self, namespace: str) -> dict[str, str]:
        return {"clusterName": self.name, "namespace": namespace, "serviceAccount": "default"}

    def _authorize_admin(self, arn: str, owner_tags: Tags) -> None:
        """Grant all rights: https://docs.aws.amazon.com/eks/latest/userguide/access-entries.html."""
        entry, tags = {"clusterName": self.name, "principalArn": arn}, owner_tags.amazon()
        self.session.find("eks", "create_access_entry", ignore=ALREADY_EXISTS, tags=tags, **entry)
        policy = f"arn:{self.session.partition}:eks::aws:cluster-access-policy/AmazonEKSClusterAdminPolicy"
        scope = {"type": "cluster"}
        self.session.call("eks", "associate_access_policy", policyArn=policy, accessScope=scope, **entry)

    def _location(self) -> dict[str, str | None]:
        return {"region": self.session.region, "profile": self.session.profile}

    def _kubeconfig(self, info: ClusterInfo) -> dict[str, Any]:
        profile = ["--profile", self.session.profile] if self.session.profile else []
        flags = ["--cluster", self.name, "--region", self.session.region, *profile]
        program = {
            "apiVersion": EXEC,
            "command": sys.executable,  # kubectl may be started anywhere
            "args": ["-m", "trainyard_kit.clouds.eks.token", *flags],
            "env": [{"name": "PYTHONPATH", "value": str(config.ROOT)}],
        }
        return exec_kubeconfig(self.name, info, program)

    @property
    def _create_call(self) -> str:
        return f'`kit.create_cluster("eks", name="{self.name}", region="{self.session.region}")`'


def regions(session: AwsSession) -> set[str]:
    """Find the regions that have clusters of the kit, by the names of their roles, which are global."""
    pattern = re.compile(rf"trainyard-.+-({'|'.join(known_regions())})-[a-z]+")
    roles = session.paginate("iam", "list_roles", "Roles", PathPrefix=ROLES)
    matches = (pattern.fullmatch(role["RoleName"]) for role in roles)
    return {session.region, *(match[1] for match in matches if match)}


def _info(session: AwsSession, main: StackState, stacks: Iterable[tuple[Stack, StackState]]) -> ClusterInfo:
    """Describe a cluster by its stacks, of which ``main`` has the control plane, and by EKS."""
    name = main.parameters["ClusterName"]
    description = (session.find("eks", "describe_cluster", name=name) or {}).get("cluster") or {}
    cluster_tags = read(main.tags)
    assert cluster_tags is not None  # `stacks_of` returns only the kit's
    ready = main.complete or (main.busy and main.status.startswith("UPDATE"))
    training = None
    for stack, state in stacks:
        if (stack.cluster, stack.pool) == (name, TRAIN) and (state.complete or state.busy):
            training = planning.training(session, state.parameters)
    return ClusterInfo(
        replace(cluster_tags, cluster=name, expires=read_expiry(stacks, name)),
        training,
        main.parameters.get("PrivateNodes") == "true",
        state=description.get("status", main.status).lower() if ready else main.status.lower(),
        version=description.get("version", ""),
        endpoint=description.get("endpoint") or "",
        authority=(description.get("certificateAuthority") or {}).get("data", ""),
        where=session.region,
    )
