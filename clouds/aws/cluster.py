"""The EKS cluster itself: control plane, node groups, add-ons."""

import json
from collections.abc import Mapping
from dataclasses import replace

from clouds.aws.failures import explained
from clouds.aws.network import VpcSubnet
from clouds.aws.plan import AwsResource, Ec2Resource, EksPlan, NodeGroupPlan, as_dict
from clouds.aws.roles import Role
from clouds.reconciler.resource import ABSENT, ResourceState, ResourceStatus

POOL = "trainyard/pool"
GPU = "nvidia.com/gpu"
EXISTS = {"ResourceInUseException"}
STATES = {
    "CREATING": ResourceState.PENDING,
    "PENDING": ResourceState.PENDING,
    "UPDATING": ResourceState.READY,
    "ACTIVE": ResourceState.READY,
    "DEGRADED": ResourceState.READY,
    "DELETING": ResourceState.DELETING,
    "FAILED": ResourceState.FAILED,
    "CREATE_FAILED": ResourceState.FAILED,
    "DELETE_FAILED": ResourceState.FAILED,
    "UPDATE_FAILED": ResourceState.FAILED,
}


class EksResource(AwsResource):
    """A thing of EKS: it has a status, issues and tags, and is told by name."""

    def status_of(self, found: Mapping, states: Mapping[str, ResourceState] = STATES) -> ResourceStatus:
        """Convert a description of EKS to a status."""
        tags = found.get("tags") or {}
        if not self.is_ours(tags):
            return ABSENT
        issues = (found.get("health") or {}).get("issues") or []
        words = "; ".join(f"{each.get('code', '')}: {each.get('message', '')}" for each in issues)
        identity = next((value for key, value in found.items() if key.lower().endswith("arn")), "")
        return self.seen(states.get(found["status"], ResourceState.PENDING), identity, words, tags=tags)

    def mark(self, tags: Mapping[str, str]) -> None:
        if arn := self.describe().id:
            self.session.call("eks", "tag_resource", resourceArn=arn, tags=dict(tags))


class EksControlPlane(EksResource):
    """The cluster, with access entries, and an API that the internet reaches and IAM guards."""

    kind, expected, expected_gone = "AWS::EKS::Cluster", 540.0, 240.0
    hourly_cost = "0.10 $ an hour"

    def __init__(
        self, plan: EksPlan, role: Role, subnets: list[VpcSubnet], depends_on: tuple[str, ...]
    ) -> None:
        super().__init__(plan, "cluster", (role.name, *(each.name for each in subnets), *depends_on))
        self.role, self.subnets = role, subnets

    def description(self) -> dict | None:
        """Describe it by the EKS API; None if there is none that is the kit's."""
        found = self.session.find("eks", "describe_cluster", name=self.plan.cluster)
        if found is None or not self.is_ours(found["cluster"].get("tags") or {}):
            return None
        return found["cluster"]

    def describe(self) -> ResourceStatus:
        found = self.description()
        return ABSENT if found is None else self.status_of(found)

    def create(self) -> None:
        self.session.call(
            "eks",
            "create_cluster",
            fine=EXISTS,  # the next look tells whose it is
            name=self.plan.cluster,
            version=self.plan.version,
            roleArn=self.role.arn,
            resourcesVpcConfig={
                "subnetIds": [each.id for each in self.subnets],
                "endpointPublicAccess": True,
                "endpointPrivateAccess": True,
            },
            accessConfig={"authenticationMode": "API", "bootstrapClusterCreatorAdminPermissions": True},
            bootstrapSelfManagedAddons=False,
            upgradePolicy={"supportType": "STANDARD"},  # extended support costs six times as much
            tags=self.written(),
        )

    def delete(self) -> None:
        if self.description() is not None:
            self.session.find("eks", "delete_cluster", name=self.plan.cluster)


class LaunchTemplate(Ec2Resource):
    """How the machines of a group are launched: their disk, and the tags on machine and disk."""

    kind, word = "AWS::EC2::LaunchTemplate", "launch-template"
    listing = ("describe_launch_templates", "LaunchTemplates", "LaunchTemplateId")

    def __init__(self, plan: EksPlan, group: NodeGroupPlan) -> None:
        super().__init__(plan, f"launch template {group.name}")
        self.group = group

    def describe(self) -> ResourceStatus:
        found = self.found()
        if not found:
            return ABSENT
        return self.seen(
            ResourceState.READY, found[0]["LaunchTemplateId"], tags=as_dict(found[0].get("Tags"))
        )

    def create(self) -> None:
        disk = {
            "VolumeSize": self.group.disk_gb,
            "VolumeType": "gp3",
            "Encrypted": True,
            "DeleteOnTermination": True,
        }
        written = self.specification()[0]["Tags"]
        self.session.call(
            "ec2",
            "create_launch_template",
            fine={"InvalidLaunchTemplateName.AlreadyExistsException"},
            LaunchTemplateName=self.plan.resource_name(self.group.name),
            LaunchTemplateData={
                "BlockDeviceMappings": [{"DeviceName": "/dev/xvda", "Ebs": disk}],
                # Pods get credentials by Pod Identity: those of the machine are not for them.
                "MetadataOptions": {"HttpTokens": "required", "HttpPutResponseHopLimit": 1},
                "TagSpecifications": [
                    {"ResourceType": each, "Tags": written} for each in ("instance", "volume")
                ],
            },
            TagSpecifications=self.specification(),
        )

    def delete(self) -> None:
        for each in self.found():
            self.session.find("ec2", "delete_launch_template", LaunchTemplateId=each["LaunchTemplateId"])


class NodeGroup(EksResource):
    """Machines of one kind, which EKS keeps at a number."""

    kind, expected, expected_gone = "AWS::EKS::Nodegroup", 180.0, 300.0

    def __init__(
        self,
        plan: EksPlan,
        group: NodeGroupPlan,
        role: Role,
        template: LaunchTemplate,
        subnets: list[VpcSubnet],
    ) -> None:
        super().__init__(plan, f"node group {group.name}", ("cluster", role.name, template.name))
        self.group, self.role, self.template, self.subnets = group, role, template, subnets
        self.hourly_cost = f"{group.nodes} × {group.instance_type}" if group.nodes else ""

    def description(self) -> dict | None:
        """Describe it by the EKS API; None if there is none that is the kit's."""
        found = self.session.find(
            "eks", "describe_nodegroup", clusterName=self.plan.cluster, nodegroupName=self.group.name
        )
        return None if found is None else found["nodegroup"]

    def describe(self) -> ResourceStatus:
        found = self.description()
        if found is None:
            return ABSENT
        seen = self.status_of(found)
        if seen.state is not ResourceState.FAILED:
            return seen
        kind, spot = self.group.instance_type, self.group.spot
        return replace(seen, words=explained(self.session, kind, seen.words, spot=spot))

    def create(self) -> None:
        taints = [{"key": GPU, "value": "present", "effect": "NO_SCHEDULE"}] if self.group.gpus else []
        self.session.call(
            "eks",
            "create_nodegroup",
            fine=EXISTS,
            clusterName=self.plan.cluster,
            nodegroupName=self.group.name,
            scalingConfig={
                "minSize": self.group.least,
                "maxSize": max(self.group.nodes, 1),
                "desiredSize": self.group.nodes,
            },
            subnets=[each.id for each in self.subnets],
            instanceTypes=[self.group.instance_type],
            amiType=self.group.image,
            capacityType="SPOT" if self.group.spot else "ON_DEMAND",
            nodeRole=self.role.arn,
            labels={POOL: self.group.name},
            launchTemplate={"id": self.template.id},
            tags=self.written(),
            **({"taints": taints} if taints else {}),
        )

    def scale(self, count: int) -> None:
        """Have so many machines; the request returns before they are there."""
        self.session.call(
            "eks",
            "update_nodegroup_config",
            clusterName=self.plan.cluster,
            nodegroupName=self.group.name,
            scalingConfig={
                "minSize": min(self.group.least, count),
                "maxSize": max(count, 1),
                "desiredSize": count,
            },
        )

    def delete(self) -> None:
        if self.describe().state is not ResourceState.ABSENT:
            self.session.find(
                "eks", "delete_nodegroup", clusterName=self.plan.cluster, nodegroupName=self.group.name
            )


class Addon(EksResource):
    """A program that EKS installs and keeps up to date in the cluster."""

    kind, expected, expected_gone, again = "AWS::EKS::Addon", 45.0, 30.0, True

    def __init__(
        self,
        plan: EksPlan,
        addon: str,
        depends_on: tuple[str, ...] = (),
        *,
        account: str = "",
        role: Role | None = None,
        settings: Mapping[str, object] | None = None,
    ) -> None:
        super().__init__(plan, f"add-on {addon}", ("cluster", *depends_on, *([role.name] if role else [])))
        self.addon, self.account, self.role, self.settings = addon, account, role, settings

    def describe(self) -> ResourceStatus:
        found = self.session.find(
            "eks", "describe_addon", clusterName=self.plan.cluster, addonName=self.addon
        )
        if found is None:
            return ABSENT
        # Degraded is one whose pods have no node yet.
        return self.status_of(found["addon"], STATES | {"DEGRADED": ResourceState.PENDING})

    def create(self) -> None:
        identities = [{"serviceAccount": self.account, "roleArn": self.role.arn}] if self.role else []
        self.session.call(
            "eks",
            "create_addon",
            fine=EXISTS,
            clusterName=self.plan.cluster,
            addonName=self.addon,
            resolveConflicts="OVERWRITE",
            tags=self.written(),
            **({"podIdentityAssociations": identities} if identities else {}),
            **({"configurationValues": json.dumps(self.settings)} if self.settings else {}),
        )

    def delete(self) -> None:
        if self.describe().state is not ResourceState.ABSENT:
            self.session.find("eks", "delete_addon", clusterName=self.plan.cluster, addonName=self.addon)
