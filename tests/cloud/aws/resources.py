"""What stacks create, by the types of CloudFormation: each is a few calls of the service's own API.

Properties are judged by AWS's own schema of the type, and the calls by botocore's model of the service: a
property is passed on where the operation has a parameter of that name.
"""

import json
import re
import secrets
from collections.abc import Callable
from functools import cache
from typing import Any

import jsonschema
from botocore.exceptions import ClientError
from moto.iam.aws_managed_policies import aws_managed_policies_data

from .faults import ACCOUNT
from .templates import invalid

# How long things take, in simulated seconds: what people report, rounded. What has its own states is polled.
SECONDS = {"EC2::NatGateway": 100, "EFS::MountTarget": 90, "IAM::Role": 15}
SECONDS_GONE = {"EC2::NatGateway": 60, "EFS::MountTarget": 45}
POLLED = ("EKS::Cluster", "EKS::Nodegroup", "EKS::Addon")
# Type, without AWS: service, noun of its operations, where its id is in the answer, the parameter for it.
PLAIN = {
    "EC2::VPC": ("ec2", "vpc", "Vpc.VpcId", "VpcId"),
    "EC2::Subnet": ("ec2", "subnet", "Subnet.SubnetId", "SubnetId"),
    "EC2::InternetGateway": (
        *("ec2", "internet_gateway", "InternetGateway.InternetGatewayId", "InternetGatewayId"),
    ),
    "EC2::RouteTable": ("ec2", "route_table", "RouteTable.RouteTableId", "RouteTableId"),
    "EC2::NatGateway": ("ec2", "nat_gateway", "NatGateway.NatGatewayId", "NatGatewayId"),
    "EC2::EIP": ("ec2", "address", "PublicIp", "AllocationId"),
    "EC2::SecurityGroup": ("ec2", "security_group", "GroupId", "GroupId"),
    "EC2::LaunchTemplate": ("ec2", "launch_template", "LaunchTemplate.LaunchTemplateId", "LaunchTemplateId"),
    "EC2::SubnetRouteTableAssociation": ("ec2", "route_table", "AssociationId", "AssociationId"),
    "EFS::FileSystem": ("efs", "file_system", "FileSystemId", "FileSystemId"),
    "EFS::MountTarget": ("efs", "mount_target", "MountTargetId", "MountTargetId"),
    "IAM::Role": ("iam", "role", "Role.RoleName", "RoleName"),
    "ECR::Repository": ("ecr", "repository", "repository.repositoryName", "repositoryName"),
    "Logs::LogGroup": ("logs", "log_group", "=LogGroupName", "logGroupName"),
    "S3::Bucket": ("s3", "bucket", "=BucketName", "Bucket"),
    "Scheduler::ScheduleGroup": ("scheduler", "schedule_group", "=Name", "Name"),
    "Scheduler::Schedule": ("scheduler", "schedule", "=Name", "Name"),
    "EKS::Cluster": ("eks", "cluster", "cluster.name", "name"),
    "EKS::Nodegroup": ("eks", "nodegroup", "nodegroup.nodegroupName", "nodegroupName"),
    "EKS::Addon": ("eks", "addon", "addon.addonName", "addonName"),
    "EKS::AccessEntry": ("eks", "access_entry", "accessEntry.principalArn", "principalArn"),
    "EKS::PodIdentityAssociation": (
        *("eks", "pod_identity_association", "association.associationId", "associationId"),
    ),
}
VERBS = {"EIP": ("allocate", "release"), "SubnetRouteTableAssociation": ("associate", "disassociate")}
RENAMED = {"GroupDescription": "Description", "BucketName": "Bucket", "Token": "CreationToken"}
ARNS = ("Arn", "arn", "repositoryArn", "nodegroupArn", "addonArn", "accessEntryArn", "associationArn")


@cache
def schema(kind: str) -> dict[str, Any]:
    """Return AWS's schema of a type."""
    from cfnlint.schema.manager import (
        PROVIDER_SCHEMA_MANAGER,  # with sympy: not where tests are only collected
    )

    return PROVIDER_SCHEMA_MANAGER.get_resource_schema("us-west-2", f"AWS::{kind}").schema


@cache
def permissions(kind: str, verb: str) -> tuple[str, ...]:
    """Return what a type's handler asks for: all that AWS's schema lists, whatever the properties are."""
    listed = schema(kind).get("handlers", {}).get(verb, {}).get("permissions", ())
    return tuple(name for name in listed if re.fullmatch(r"[\w-]+:\w+", name))


@cache
def _validator(kind: str) -> Any:
    return jsonschema.Draft7Validator(schema(kind))


def replaced(kind: str, before: dict[str, Any], after: dict[str, Any]) -> bool:
    """Return whether a change needs a new resource."""
    paths = [".".join(path.split("/")[2:]) for path in schema(kind).get("createOnlyProperties", ())]
    return any(_within(before, path) != _within(after, path) for path in paths)


def _within(value: Any, path: str) -> Any:
    for word in path.split("."):
        value = value.get(word) if isinstance(value, dict) else None
    return value


@cache
def _policies() -> dict[str, dict]:
    return json.loads(aws_managed_policies_data)


class Resources:
    """Creates, tags, updates and deletes; ``aws`` gives a client of a service that acts for a stack."""

    def __init__(self, aws: Callable[[str], Any]) -> None:
        self.aws = aws

    def create(self, resource: Any, fields: dict[str, Any], tags: dict[str, str], token: str) -> None:
        """Create a resource; its physical id is known also where a later call fails."""
        kind = resource.kind
        for error in _validator(kind).iter_errors(fields):
            where = "/".join(map(str, error.absolute_path))
            raise invalid(
                f"Properties validation failed for resource with message: #/{where}: {error.message}"
            )
        if kind not in PLAIN:
            resource.physical = getattr(self, f"_create_{kind.split('::')[1].lower()}")(fields)
            return
        service, noun, where, _ = PLAIN[kind]
        client, verb = self.aws(service), VERBS.get(kind.split("::")[1], ("create", ""))[0]
        more = {"Token": token, "GroupName": token, "ClientRequestToken": token}
        more["CreateBucketConfiguration"] = {"LocationConstraint": client.meta.region_name}
        answer = self._call(service, f"{verb}_{noun}", more | fields)
        identity = fields[where[1:]] if where.startswith("=") else _within(answer, where)
        values = fields | answer | (_within(answer, where.split(".")[0]) if "." in where else {})
        values["Arn"] = next((values[arn] for arn in ARNS if arn in values), "")
        resource.physical, resource.attributes, resource.properties = identity, values, fields
        getattr(self, f"_more_{kind.split('::')[1].lower()}", lambda *_: None)(identity, fields, values)
        if tags:
            self.tag(kind, identity, values, tags)

    def delete(self, kind: str, identity: str, fields: dict[str, Any]) -> None:
        """Delete a resource; one that is gone already is fine."""
        if kind not in PLAIN:
            getattr(self, f"_delete_{kind.split('::')[1].lower()}")(identity, fields)
            return
        service, noun, _, parameter = PLAIN[kind]
        if kind == "IAM::Role":
            for policy in fields.get("Policies", ()):
                self._gone(service, "delete_role_policy", RoleName=identity, PolicyName=policy["PolicyName"])
        if kind == "EC2::EIP":
            addresses = self.aws("ec2").describe_addresses()["Addresses"]
            identity = next((ip["AllocationId"] for ip in addresses if ip["PublicIp"] == identity), "")
        more = {"force": fields["EmptyOnDelete"]} if "EmptyOnDelete" in fields else {}
        more |= {"clusterName": fields["ClusterName"]} if "ClusterName" in fields else {}
        more |= {"GroupName": fields["GroupName"]} if kind == "Scheduler::Schedule" else {}
        verb = VERBS.get(kind.split("::")[1], ("", "delete"))[1]
        self._gone(service, f"{verb}_{noun}", **{parameter: identity}, **more)

    def update(self, kind: str, before: dict[str, Any], after: dict[str, Any]) -> None:
        """Change properties, but for tags: how many nodes there are, and when schedules begin."""
        if kind == "Scheduler::Schedule":
            self._call("scheduler", "update_schedule", after)
            return
        changed = {key for key, value in after.items() if before.get(key) != value}
        if kind != "EKS::Nodegroup" or changed != {"ScalingConfig"}:
            raise NotImplementedError(f"the fake changes no {changed} of {kind}")
        self._call("eks", "update_nodegroup_config", after)

    def tag(self, kind: str, identity: str, values: dict[str, Any], tags: dict[str, str]) -> None:
        """Set tags."""
        service, arn = PLAIN[kind][0], values.get("Arn", "")
        pairs = [{"Key": key, "Value": value} for key, value in tags.items()]
        operation, fields = {
            "ec2": ("create_tags", {"Resources": [values.get("AllocationId", identity)], "Tags": pairs}),
            "iam": ("tag_role", {"RoleName": identity, "Tags": pairs}),
            "efs": ("tag_resource", {"ResourceId": identity, "Tags": pairs}),
            "s3": ("put_bucket_tagging", {"Bucket": identity, "Tagging": {"TagSet": pairs}}),
            "ecr": ("tag_resource", {"resourceArn": arn, "tags": pairs}),
            "logs": ("tag_resource", {"resourceArn": arn.removesuffix(":*"), "tags": tags}),
            "eks": ("tag_resource", {"resourceArn": arn, "tags": tags}),
            "scheduler": (
                "tag_resource",
                {"ResourceArn": values.get("ScheduleGroupArn", arn), "Tags": pairs},
            ),
        }[service]
        getattr(self.aws(service), operation)(**fields)

    def status(self, kind: str, resource: Any) -> tuple[str, list[dict[str, Any]]]:
        """Return the state of what has one of its own, and its issues; of what is gone, an empty text."""
        _, noun, where, parameter = PLAIN[kind]
        fields = resource.properties
        name = {"clusterName": fields["ClusterName"]} if "ClusterName" in fields else {}
        state = self._gone("eks", f"describe_{noun}", **{parameter: resource.physical}, **name)
        state = state and state[where.split(".")[0]]
        return (state["status"], state["health"]["issues"]) if state else ("", [])

    def cluster(self, name: str) -> dict[str, Any]:
        """Return the attributes that a cluster has only when it is active."""
        description = self.aws("eks").describe_cluster(name=name)["cluster"]
        group = description["resourcesVpcConfig"]["clusterSecurityGroupId"]
        return {"Endpoint": description["endpoint"], "ClusterSecurityGroupId": group}

    def _call(self, service: str, operation: str, fields: dict[str, Any]) -> Any:
        client = self.aws(service)
        model = client.meta.service_model.operation_model(client.meta.method_to_api_mapping[operation])
        return getattr(client, operation)(**_members(fields, model.input_shape))

    def _gone(self, service: str, operation: str, **fields: Any) -> Any:
        """Call, and pass over that there is no such thing."""
        try:
            return getattr(self.aws(service), operation)(**fields)
        except ClientError as error:
            code = error.response["Error"]["Code"]
            if "NotFound" in code or code.startswith("NoSuch"):
                return None
            raise

    # What the first call does not do

    def _more_subnet(self, identity: str, fields: dict, values: dict) -> None:
        public = {"Value": bool(fields.get("MapPublicIpOnLaunch"))}
        self.aws("ec2").modify_subnet_attribute(SubnetId=identity, MapPublicIpOnLaunch=public)

    def _more_launchtemplate(self, identity: str, fields: dict, values: dict) -> None:
        values["LatestVersionNumber"] = "1"

    def _more_role(self, identity: str, fields: dict, values: dict) -> None:
        for arn in fields.get("ManagedPolicyArns", ()):
            if arn.split("/")[-1] not in _policies():
                raise invalid(f"Policy {arn} does not exist or is not attachable.")
        for policy in fields.get("Policies", ()):
            self._call("iam", "put_role_policy", policy | {"RoleName": identity})

    def _more_bucket(self, identity: str, fields: dict, values: dict) -> None:
        values["Arn"] = f"arn:aws:s3:::{identity}"

    def _more_repository(self, identity: str, fields: dict, values: dict) -> None:
        values["RepositoryUri"] = values["repositoryUri"]

    def _more_loggroup(self, identity: str, fields: dict, values: dict) -> None:
        values["Arn"] = f"arn:aws:logs:{self.aws('logs').meta.region_name}:{ACCOUNT}:log-group:{identity}:*"

    def _more_accessentry(self, identity: str, fields: dict, values: dict) -> None:
        for accesspolicy in fields.get("AccessPolicies", ()):
            self._call("eks", "associate_access_policy", fields | accesspolicy)

    # What has no operations of its own

    def _create_vpcgatewayattachment(self, fields: dict) -> str:
        self._call("ec2", "attach_internet_gateway", fields)
        return f"IGW|{fields['VpcId']}"

    def _delete_vpcgatewayattachment(self, identity: str, fields: dict) -> None:
        self._gone("ec2", "detach_internet_gateway", **fields)

    def _create_vpcendpoint(self, fields: dict) -> str:
        return self._call("ec2", "create_vpc_endpoint", fields)["VpcEndpoint"]["VpcEndpointId"]

    def _delete_vpcendpoint(self, identity: str, fields: dict) -> None:
        self._gone("ec2", "delete_vpc_endpoints", VpcEndpointIds=[identity])

    def _create_route(self, fields: dict) -> str:
        self._call("ec2", "create_route", fields)
        return f"{fields['RouteTableId']}|{fields['DestinationCidrBlock']}"

    def _delete_route(self, identity: str, fields: dict) -> None:
        table, _, block = identity.partition("|")
        self._gone("ec2", "delete_route", RouteTableId=table, DestinationCidrBlock=block)

    def _create_securitygroupingress(self, fields: dict) -> str:
        rule = {key: fields[key] for key in ("IpProtocol", "FromPort", "ToPort")}
        if source := fields.get("SourceSecurityGroupId"):
            rule["UserIdGroupPairs"] = [{"GroupId": source}]
        else:
            rule["IpRanges"] = [{"CidrIp": fields["CidrIp"]}]
        self.aws("ec2").authorize_security_group_ingress(GroupId=fields["GroupId"], IpPermissions=[rule])
        return json.dumps(rule)

    def _delete_securitygroupingress(self, identity: str, fields: dict) -> None:
        rules = [json.loads(identity)]
        self._gone("ec2", "revoke_security_group_ingress", GroupId=fields["GroupId"], IpPermissions=rules)

    def _create_placementgroup(self, fields: dict) -> str:
        return f"placement-{secrets.token_hex(8)}"  # moto has none; they cost nothing

    def _delete_placementgroup(self, identity: str, fields: dict) -> None:
        pass


def _members(fields: Any, shape: Any) -> Any:
    """Return properties as parameters of an operation: those that it has, by its own names and types."""
    kind = shape.type_name
    if kind == "structure":
        names, members = {member.lower(): member for member in shape.members}, {}
        for key, value in fields.items() if isinstance(fields, dict) else ():
            key = next((word for word in (key.lower(), RENAMED.get(key, key).lower()) if word in names), "")
            if key:
                members[names[key]] = _members(value, shape.members[names[key]])
        return members
    if kind == "list":
        return [_members(item, shape.member) for item in fields] if isinstance(fields, list) else []
    if kind == "map":
        pairs = [(tag["Key"], tag["Value"]) for tag in fields] if isinstance(fields, list) else fields.items()
        return dict(pairs)
    if kind in ("integer", "long"):
        return int(fields)
    return fields if kind == "boolean" else json.dumps(fields) if isinstance(fields, dict) else str(fields)
