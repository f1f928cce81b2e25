"""An EKS cluster at the fake AWS: created, found, scaled, extended, ended, deleted, by AWS's own clients."""

from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from kitlib.errors import BadInput, ClusterNotFound, KitError, ProviderFailed
from trainyard_kit.clouds import eks, resources
from trainyard_kit.clouds.eks import delete
from trainyard_kit.clouds.eks.cluster import EksCluster
from trainyard_kit.clouds.eks.session import AwsSession
from trainyard_kit.clouds.spec import Machines
from trainyard_kit.clouds.steps import Steps

from ..rows import slow
from . import asleep
from .aws import administrator
from .aws.network import plant
from .eks_processes import NAME, REGION, STOCKOUT
from .ready_nodes import ReadyNodes

# What stays when a cluster has ended by itself costs nothing by the hour.
FREE = {"role", "schedule-group", "stack", "bucket"}
HOUR = 3600


def kinds(aws):
    return {resource.kind for resource in aws.left()}


def train():
    return administrator("eks").describe_nodegroup(clusterName=NAME, nodegroupName="train")["nodegroup"]


def test_a_cluster_is_created_described_and_deleted_and_nothing_is_left(aws, user):
    lab = user.create(hours=4)
    assert lab.status["state"] == "active" and lab.status["region"] == REGION
    assert timedelta(hours=3.9) < lab.status["expires"] - datetime.now(UTC) < timedelta(hours=4.1)
    assert lab._describe().machines == Machines("m5.xlarge", 2)
    assert lab.bucket == "s3://trainyard-123456789012-us-west-2-lab"
    kinds = {resource["kind"] for resource in lab.resources()}
    assert {"AWS::EKS::Cluster", "AWS::EKS::Nodegroup", "AWS::EFS::FileSystem", "AWS::IAM::Role"} <= kinds
    stacks = [
        call.parameters["StackName"] for call in aws.calls if call.action == "cloudformation:CreateStack"
    ]
    assert stacks[0] == "trainyard-lab-end"
    assert {action.partition(":")[0] for action in user.changes()} == {"cloudformation"}
    before = aws.left()
    user.create()
    assert aws.left() == before and user.changes().count("cloudformation:CreateStack") == 4
    assert EksCluster.find(NAME, region=REGION).status == lab.status
    assert lab.upload(__file__, to="code/main.py") == f"{lab.bucket}/code/main.py"
    stored = administrator("s3").get_object(Bucket=lab.bucket[5:], Key="code/main.py")
    assert stored["Body"].read() == Path(__file__).read_bytes()
    user.delete()
    assert aws.left() == []
    assert EksCluster.find(NAME, region=REGION) is None
    with pytest.raises(ClusterNotFound):
        lab.extend(4, confirm=True)


@pytest.mark.slow
def test_a_laptop_that_slept_creates_the_nodes_when_it_wakes(aws, user, monkeypatch):
    rows = asleep.warnings(monkeypatch)
    asleep.sleeps(aws.clock, monkeypatch, hours=3)
    user.create()
    assert rows == ["stack trainyard-lab-system", "stack trainyard-lab-train"]
    assert train()["status"] == "ACTIVE"
    user.delete()
    asleep.sleeps(aws.clock, monkeypatch, hours=3)
    with pytest.raises(KitError):  # its end was meanwhile
        user.create(hours=1)
    assert kinds(aws) <= FREE


def test_nodes_are_scaled_to_none_and_up_again(aws, user):
    lab = user.create()
    lab.kube = ReadyNodes(lab.pool, 3)
    for nodes in (0, 3):
        lab.scale(nodes, confirm=True)
        aws.clock.sleep(300)
        assert train()["scalingConfig"]["desiredSize"] == nodes == lab._describe().machines.count


def test_another_type_and_costs_above_the_budget_are_refused(user):
    lab = user.create()
    with pytest.raises(BadInput, match="other machines"):
        user.create(instance_type="g4dn.xlarge")
    with pytest.raises(BadInput, match="budget"):
        lab.scale(20, confirm=True, budget=5)
    with pytest.raises(BadInput, match="budget"):
        user.create(name="other", budget=2)


def test_scaling_reports_the_reason_for_which_nodes_are_missing(aws, user, monkeypatch):
    lab, messages, update = user.create(), [], Steps.update
    lab.kube = ReadyNodes(lab.pool, 0, 2, 3, 4)

    def record(steps, name, phase, message="", **details):
        messages.append(message)
        update(steps, name, phase, message, **details)

    monkeypatch.setattr(Steps, "update", record)
    aws.launches["train"] = STOCKOUT[1]
    lab.scale(4, confirm=True)
    assert any("3 of 4 are Ready" in message and "capacity" in message for message in messages)
    assert lab.kube.counts == [4]


def test_a_spot_limit_ends_scaling_at_once(aws, user):
    lab = user.create()
    lab.kube = ReadyNodes(lab.pool, 4)
    aws.launches["train"] = "MaxSpotInstanceCountExceeded: Max spot instance count exceeded"
    start = aws.clock.now()
    with pytest.raises(ProviderFailed, match="Max spot instance count") as raised:
        lab.scale(6, confirm=True)
    assert raised.value.fix == "call it again"
    assert aws.clock.now() - start < 300


def test_a_volume_of_a_cluster_that_is_gone_is_listed_and_deleted(aws, user):
    ec2, here = administrator("ec2"), {"AvailabilityZone": "us-west-2a", "Size": 5}
    tags = {"trainyard:kit": "true", "trainyard:cluster": "gone"}
    spec = [{"ResourceType": "volume", "Tags": [{"Key": key, "Value": value} for key, value in tags.items()]}]
    ec2.create_volume(**here, TagSpecifications=spec)
    foreign_volume = ec2.create_volume(**here)["VolumeId"]
    (row,) = EksCluster.find_resources(AwsSession("us-west-2"))
    assert (row.cluster, row.name) == ("gone", "volume of a claim") and "0.08 $" in row.costs
    EksCluster.delete_at(AwsSession("us-west-2"), "gone")
    assert [volume["VolumeId"] for volume in ec2.describe_volumes()["Volumes"]] == [foreign_volume]


def defaults(**values):
    """A patch that gives values to parameters of a template."""
    return {"Parameters": {name: {"Default": value} for name, value in values.items()}}


def test_the_node_group_has_the_limits_and_the_ssh_access_that_are_asked_for(aws, user):
    ec2 = administrator("ec2")
    ec2.create_key_pair(KeyName="ada")
    lab = user.create(
        min_nodes=1, max_nodes=5, patch={"nodes": defaults(SshKey="ada", SshCidr="203.0.113.7/32")}
    )
    assert train()["scalingConfig"] == {"minSize": 1, "maxSize": 5, "desiredSize": 2}
    templates = ec2.describe_launch_template_versions(LaunchTemplateName="trainyard-lab-train")
    assert templates["LaunchTemplateVersions"][0]["LaunchTemplateData"]["KeyName"] == "ada"
    nodes = administrator("eks").describe_cluster(name=NAME)["cluster"]["resourcesVpcConfig"]
    (group,) = ec2.describe_security_groups(GroupIds=[nodes["clusterSecurityGroupId"]])["SecurityGroups"]
    open_to = {rule.get("FromPort"): rule["IpRanges"] for rule in group["IpPermissions"]}
    assert [source["CidrIp"] for source in open_to[22]] == ["203.0.113.7/32"]
    lab.kube = ReadyNodes(lab.pool, 6)
    for nodes, limits in ((0, (0, 5)), (6, (0, 6))):
        lab.scale(nodes, confirm=True)
        aws.clock.sleep(300)
        scaling = train()["scalingConfig"]
        assert (scaling["minSize"], scaling["maxSize"], scaling["desiredSize"]) == (*limits, nodes)
    idle = {"clusterName": NAME, "nodegroupName": "train", "scalingConfig": {"desiredSize": 0}}
    administrator("eks").update_nodegroup_config(**idle)  # as the autoscaler does, by its Auto Scaling group
    aws.clock.sleep(300)
    lab.scale(6, confirm=True)
    aws.clock.sleep(300)
    assert train()["scalingConfig"] == {"minSize": 0, "maxSize": 6, "desiredSize": 6}
    user.delete()
    assert aws.left() == []


def limit_of_the_schedules_role():
    role = administrator("iam").get_role(RoleName="trainyard-lab-us-west-2-expiry")["Role"]
    return role.get("PermissionsBoundary", {}).get("PermissionsBoundaryArn")


LIMIT = "arn:aws:iam::123456789012:policy/limit"


@pytest.mark.parametrize(
    "options",
    [
        {"patch": {"cluster": defaults(PermissionsBoundary=LIMIT)}, "private": True},
        *slow({"instance_type": "g4dn.8xlarge", "efa": True}),
    ],
)
def test_extend_moves_only_the_schedules_which_delete_all_that_costs(aws, user, options):
    lab = user.create(hours=2, **options)
    before, boundary = aws.left(), limit_of_the_schedules_role()
    assert boundary == (LIMIT if "patch" in options else None)
    calls_before = len(user.changes())
    lab.extend(6, confirm=True)
    services = {change.partition(":")[0] for change in user.changes()[calls_before:]}
    assert services == {"cloudformation"} and aws.left() == before
    assert limit_of_the_schedules_role() == boundary
    assert timedelta(hours=5.9) < lab.status["expires"] - datetime.now(UTC) < timedelta(hours=6.1)
    tags = administrator("eks").describe_cluster(name=NAME)["cluster"]["tags"]
    assert "trainyard:expires" not in tags  # which would be outdated
    aws.clock.sleep(4 * HOUR)
    assert "nodegroup" in kinds(aws) and not aws.schedules.fired
    aws.clock.sleep(4 * HOUR)
    assert kinds(aws) <= FREE
    assert {call.action for call in aws.schedules.fired} == {"cloudformation:DeleteStack"}
    user.delete()
    assert aws.left() == []


@pytest.mark.parametrize(("hours", "shown"), [(6, 2), *slow((1, 1))])
def test_an_end_that_could_not_be_moved_is_not_shown_later_than_its_schedules(aws, user, hours, shown):
    lab = user.create(hours=2)
    aws.fail("scheduler:UpdateSchedule", error="ValidationException", times=None, inside=True)
    with pytest.raises(KitError):
        lab.extend(hours, confirm=True)
    end = lab.status["expires"] - datetime.now(UTC)
    assert timedelta(hours=shown - 0.1) < end < timedelta(hours=shown + 0.1)


def test_nodes_that_fail_leave_the_control_plane_and_the_next_call_replaces_them(aws, user):
    aws.break_("Nodegroup", "train", "NodeCreationFailure", "Instances failed to join the kubernetes cluster")
    with pytest.raises(ProviderFailed, match="Instances failed to join the kubernetes cluster") as raised:
        user.create()
    assert "zone=" not in raised.value.fix and "NAT gateway" in raised.value.fix
    cluster = administrator("eks").describe_cluster(name=NAME)["cluster"]
    lab = user.create()
    assert administrator("eks").describe_cluster(name=NAME)["cluster"]["createdAt"] == cluster["createdAt"]
    assert train()["status"] == "ACTIVE"
    user.delete()
    assert aws.left() == [] and lab.status["state"] == "absent"


@pytest.mark.slow
def test_where_a_zone_has_no_machines_the_other_is_tried_if_the_user_agrees(aws, user, monkeypatch):
    aws.break_("Nodegroup", "train", *STOCKOUT)
    user.create()
    (subnet,) = administrator("ec2").describe_subnets(SubnetIds=train()["subnets"])["Subnets"]
    assert subnet["AvailabilityZone"] == "us-west-2b"
    user.delete()
    aws.break_("Nodegroup", "train", *STOCKOUT)
    monkeypatch.setattr("trainyard_kit.clouds.confirmation.confirm_cost", lambda *_, **__: None)
    with pytest.raises(ProviderFailed, match="sufficient m5.xlarge capacity") as raised:
        user.create(confirm=False)
    assert "us-west-2b" in raised.value.fix
    user.delete()
    assert aws.left() == []


@pytest.mark.parametrize(
    ("action", "error", "words"),
    [
        *slow(("ec2:CreateVpc", "VpcLimitExceeded", "The maximum number of VPCs has been reached.")),
        ("iam:CreateRole", "AccessDenied", "is not authorized to perform: iam:CreateRole"),
        *slow(("eks:CreateCluster", "UnsupportedAvailabilityZoneException", "not currently have sufficient")),
    ],
)
def test_a_refusal_has_the_clouds_message_and_the_same_call_resumes(aws, user, action, error, words):
    aws.fail(action, error=error, message=words, inside=True)
    with pytest.raises(KitError, match=words):
        user.create()
    user.create()
    user.delete()
    assert aws.left() == []


@pytest.mark.slow
def test_throttling_and_lost_connections_are_passed_over(aws, user):
    for nth in range(1, 60, 6):
        aws.fail("*", nth, "Throttling")
    aws.cut(20)
    aws.cut(45, "after")
    user.create()
    user.delete()
    assert aws.left() == []


def test_delete_removes_leftovers_of_kubernetes_and_keeps_foreign_resources(aws, user):
    foreign = foreign_network()
    lab = user.create()
    outputs = lab._stack().outputs
    for kind in ("load balancer", "classic load balancer", "volume", "network interface", "GuardDuty"):
        plant(administrator, kind, vpc=outputs["Vpc"], subnet=outputs["SubnetOne"], cluster=NAME)
    administrator("s3").put_object(Bucket=outputs["Bucket"], Key="model.pt", Body=b"it")
    listed = " ".join(resource["resource"] for resource in lab.resources())
    assert all(
        words in listed for words in ("load balancer", "endpoint", "volume of a claim", "security group")
    )
    user.delete()
    assert {resource.id for resource in aws.left()} == foreign


def foreign_network():
    """Have somebody else's network, role and bucket, with names like the kit's; return their ids."""
    ec2, iam = administrator("ec2"), administrator("iam")
    vpc = ec2.create_vpc(CidrBlock="10.42.0.0/16")["Vpc"]["VpcId"]
    subnets = []
    for number, zone in enumerate("ab"):
        block, where = f"10.42.{number}.0/24", f"{REGION}{zone}"
        subnet = ec2.create_subnet(VpcId=vpc, CidrBlock=block, AvailabilityZone=where)["Subnet"]["SubnetId"]
        ec2.modify_subnet_attribute(SubnetId=subnet, MapPublicIpOnLaunch={"Value": True})
        subnets.append(subnet)
    iam.create_role(RoleName="trainyard-lab", Path="/trainyard/", AssumeRolePolicyDocument="{}")
    administrator("s3").create_bucket(
        Bucket="trainyard-lab", CreateBucketConfiguration={"LocationConstraint": REGION}
    )
    return {vpc, *subnets, "trainyard-lab"}


def test_an_existing_network_is_used_and_stays(aws, user):
    network = foreign_network()
    vpc, *subnets = sorted(
        network - {"trainyard-lab"}, key=lambda identifier: not identifier.startswith("vpc")
    )
    gateway = administrator("ec2").create_internet_gateway()["InternetGateway"]["InternetGatewayId"]
    administrator("ec2").attach_internet_gateway(InternetGatewayId=gateway, VpcId=vpc)
    listed = administrator("ec2").describe_subnets(SubnetIds=subnets)["Subnets"]
    subnets = [row["SubnetId"] for row in sorted(listed, key=lambda row: row["AvailabilityZone"])]
    existing_network = defaults(ExistingVpc=vpc, ExistingSubnets=",".join(subnets))
    user.create(patch={"cluster": existing_network})
    assert train()["subnets"] == [subnets[0]]
    plant(administrator, "load balancer", vpc=vpc, subnet=subnets[0], cluster="somebody-elses")
    rejected_networks = {
        resource.id
        for resource in aws.left()
        if resource.kind in ("load-balancer", "security-group", "network-interface")
    }
    user.delete()
    assert {resource.id for resource in aws.left()} - rejected_networks == network | {gateway}


@pytest.mark.parametrize("what", ["stack", *slow("role", "schedule group")])
def test_foreign_resources_with_the_clusters_name_are_refused_and_stay(aws, user, what):
    if what == "stack":
        body = "Resources: {Log: {Type: AWS::Logs::LogGroup, Properties: {LogGroupName: it}}}"
        administrator("cloudformation").create_stack(StackName="trainyard-lab", TemplateBody=body)
    elif what == "role":
        name = "trainyard-lab-us-west-2-expiry"
        administrator("iam").create_role(RoleName=name, AssumeRolePolicyDocument="{}")
    else:
        administrator("scheduler").create_schedule_group(Name="trainyard-lab")
    aws.clock.sleep(60)
    before = aws.left()
    with pytest.raises(KitError, match="not the kit's|exists"):
        user.create()
    user.delete()
    assert aws.left() == before


def test_a_cluster_deployed_without_the_kit_is_found_and_deleted(aws, user):
    stacks, folder = administrator("cloudformation"), Path(eks.__file__).parent
    tags = [{"Key": "trainyard:kit", "Value": "true"}, {"Key": "trainyard:cluster", "Value": NAME}]
    cluster = {"ClusterName": NAME, "AdminArn": "arn:aws:iam::123456789012:user/ada"}
    cluster |= {"ZoneOne": f"{REGION}a", "ZoneTwo": f"{REGION}b"}
    pool = {"ClusterName": NAME, "Pool": "train", "InstanceTypes": "m5.xlarge", "Nodes": "2", "MaxNodes": "2"}
    for name, template, values in (
        ("trainyard-lab", "cluster", cluster),
        ("trainyard-lab-train", "nodes", pool),
    ):
        parameters = [{"ParameterKey": key, "ParameterValue": value} for key, value in values.items()]
        body, how = (folder / f"{template}.yaml").read_text(), {"Capabilities": ["CAPABILITY_NAMED_IAM"]}
        stacks.create_stack(StackName=name, TemplateBody=body, Parameters=parameters, Tags=tags, **how)
        aws.clock.sleep(2000)
    lab = EksCluster.find(NAME, region=REGION)
    assert lab.status["state"] == "active" and lab.status["expires"] is None
    assert lab._describe().machines == Machines("m5.xlarge", 2)
    with pytest.raises(BadInput, match="without the kit"):
        lab.extend(4, confirm=True)
    user.delete()
    assert aws.left() == []


def test_resources_deleted_by_hand_do_not_prevent_deleting_the_rest(aws, user):
    user.create()
    eks, iam, role = administrator("eks"), administrator("iam"), "trainyard-lab-us-west-2-stack"
    for pool in ("system", "train"):
        eks.delete_nodegroup(clusterName=NAME, nodegroupName=pool)
    aws.clock.sleep(HOUR)
    eks.delete_cluster(name=NAME)
    aws.clock.sleep(HOUR)
    iam.delete_role_policy(RoleName=role, PolicyName="trainyard")
    iam.delete_role(RoleName=role)  # with which CloudFormation acts
    user.delete()
    assert aws.left() == []


def test_a_stack_that_its_schedule_deletes_first_is_no_error(aws, user, monkeypatch):
    def meanwhile(session, network, steps):
        administrator("cloudformation").delete_stack(StackName="trainyard-lab")
        aws.clock.sleep(HOUR)

    user.create()
    monkeypatch.setattr(delete.orphans, "clean", meanwhile)
    user.delete()
    assert aws.left() == []


def test_all_clusters_of_a_region_are_listed_priced_and_deleted_from_any_machine(aws, user):
    user.create()
    user.create(name="other")
    table = resources.list_resources("eks")
    assert {row["cluster"] for row in table} == {NAME, "other"}
    costs = EksCluster.running_costs(AwsSession(REGION))
    assert len(costs) == 2 and all(0.4 < cost.hourly < 1 for cost in costs)
    assert resources.delete_resources("eks", clusters="other", dry_run=False).rows == []
    assert {resource["cluster"] for resource in resources.list_resources("eks")} == {NAME}
    assert resources.delete_resources("eks", dry_run=False, confirm=True).rows == []
    assert aws.left() == []
