"""The life of an EKS cluster, on a fake Amazon in simulated time: made, found, extended, ended, deleted."""

import json
import re
import threading
from datetime import timedelta

import boto3
import pytest

from clouds.aws.client_errors import AwsError
from clouds.aws.permissions import needed
from clouds.aws.roles import roles
from clouds.aws.stack import clusters, discover, extend, there
from kitlib.config import ROOT
from kitlib.errors import KitError

from .eks_lifecycle import REGION, EksLifecycle

HOUR = 3600
# What IAM calls otherwise than the API does; who somebody is, everybody may ask.
OTHERWISE = {
    "s3:DeleteObjects": "s3:DeleteObject",
    "s3:HeadBucket": "s3:ListBucket",
    "s3:ListObjectVersions": "s3:ListBucketVersions",
    "sts:GetCallerIdentity": "",
}


@pytest.fixture
def life(amazon):
    return EksLifecycle(amazon)


def client(service):
    return boto3.client(service, region_name=REGION)


def test_what_is_made_is_found_made_once_and_deleted_until_nothing_is_left(amazon, life):
    life.create()
    first = life.written()
    left = amazon.left()
    # EKS makes entries, the cluster's security group and the machines itself.
    mine = {"vpc", "subnet", "internet-gateway", "launch-template", "role", "cluster", "nodegroup", "addon"}
    assert mine <= {each.kind for each in left}
    for each in left:
        if each.kind in mine:
            assert each.tags["trainyard:cluster"] == "lab", each
            assert each.tags["trainyard:owner"] == "ada", each
    assert clusters(life.plan.session) == {"lab"}
    cni = client("eks").describe_addon(clusterName="lab", addonName="vpc-cni")["addon"]
    assert json.loads(cni["configurationValues"]) == {"enableNetworkPolicy": "true"}

    life.create()
    assert life.written() == first

    life.delete()
    assert amazon.left() == []
    assert there(life.plan) == []
    life.delete()
    assert {OTHERWISE.get(each, each) for each in amazon.actions()} <= {*needed(), ""}


def test_the_documented_policy_allows_what_is_needed_and_no_more():
    text = (ROOT / "docs" / "eks.md").read_text(encoding="utf-8")
    (found,) = re.findall(r"```json\n(.*?)```", text, re.DOTALL)
    told = [action for each in json.loads(found)["Statement"] for action in each["Action"]]
    assert sorted(told) == sorted(needed())


def test_the_cloud_is_asked_at_most_every_quarter_of_a_minute(amazon, life):
    life.create()
    made = life.clock.now()
    life.delete()
    seconds = life.clock.now()
    asked = {}
    for call in amazon.calls:
        if call.operation.startswith("Describe") and call.service == "eks":
            key = (call.operation, *sorted(map(str, call.parameters.values())))
            asked.setdefault(key, []).append(call.when)
    for key, times in asked.items():
        # A look before and after each request, and one every 15 seconds between.
        assert len(times) <= seconds / 15 + 10, key
    assert made < 900


def test_no_policy_has_a_wildcard_among_its_actions(amazon, life):
    for role in roles(life.plan).values():
        role.create()
        name = role.role
        found = client("iam").get_role(RoleName=name)["Role"]
        documents = [found["AssumeRolePolicyDocument"]]
        for inline in client("iam").list_role_policies(RoleName=name)["PolicyNames"]:
            told = client("iam").get_role_policy(RoleName=name, PolicyName=inline)
            documents.append(told["PolicyDocument"])
        for each in documents:
            each = json.loads(each) if isinstance(each, str) else each
            assert each["Version"] == "2012-10-17"
            for statement in each["Statement"]:
                actions = statement["Action"]
                for action in [actions] if isinstance(actions, str) else actions:
                    assert "*" not in action
                assert statement.get("Resource") != "*"
    assert found["Path"] == "/trainyard/"


@pytest.mark.slow
def test_of_two_who_make_it_at_once_one_cluster_comes_of_it(amazon, life):
    other = EksLifecycle(amazon)
    errors = []

    def make():
        try:
            other.create()
        except BaseException as error:  # noqa: BLE001
            errors.append(error)

    thread = threading.Thread(target=make, name="the other")
    thread.start()
    life.create()
    thread.join()
    assert errors == []
    kinds = life.kinds()
    for kind in ("vpc", "internet-gateway", "cluster", "file-system", "bucket", "schedule-group"):
        assert kinds[kind] == 1, kinds
    assert (kinds["subnet"], kinds["nodegroup"], kinds["mount-target"]) == (2, 2, 2)
    life.delete()
    assert amazon.left() == []


def test_a_name_that_is_somebody_elses_is_refused_and_theirs_stays(amazon, life):
    role = roles(life.plan)["cluster"].role
    client("iam").create_role(RoleName=role, AssumeRolePolicyDocument="{}")
    client("logs").create_log_group(logGroupName="/aws/eks/lab/cluster")
    with pytest.raises(AwsError, match="not the kit's") as refused:
        life.create()
    assert "another name" in refused.value.fix
    life.delete()
    assert sorted(each.id for each in amazon.left()) == ["/aws/eks/lab/cluster", role]


def test_what_was_deleted_by_hand_and_half_deleted_is_made_again_or_goes(amazon, life):
    life.create()
    eks = client("eks")
    for group in ("system", "train"):
        eks.delete_nodegroup(clusterName="lab", nodegroupName=group)
    amazon.clock.advance(HOUR)
    eks.delete_cluster(name="lab")
    amazon.clock.advance(HOUR)
    life.create()
    assert life.kinds()["nodegroup"] == 2

    amazon.deny("ec2:DeleteSubnet")
    with pytest.raises(KitError, match="DeleteSubnet") as left:
        life.delete()
    assert "subnet 1" in str(left.value)
    amazon.faults.denied.clear()
    life.delete()
    assert amazon.left() == []


def test_a_network_that_is_lost_in_the_middle_leaves_what_the_same_call_goes_on_with(
    amazon, life, monkeypatch
):
    monkeypatch.setattr("botocore.endpoint.time.sleep", lambda seconds: None)
    amazon.cut(1, action="ec2:CreateVpc", times=None)
    with pytest.raises(KitError, match="network does not reach AWS") as lost:
        life.create()
    assert "create it again" in str(lost.value) and amazon.left()
    amazon.faults.rules.clear()
    life.delete()
    assert amazon.left() == []


def test_the_end_comes_without_the_kit_and_moves_when_it_is_extended(amazon, life):
    life.create()
    until = life.plan.tags.expires + timedelta(hours=2)
    extend(life.plan, until, report=lambda text: None)
    assert {each.tags["trainyard:expires"] for each in amazon.left() if each.kind == "vpc"} == {
        until.strftime("%Y%m%dT%H%M%SZ")
    }
    amazon.clock.advance(5 * HOUR)
    assert life.kinds()["nodegroup"] == 2
    amazon.clock.advance(3 * HOUR)
    kinds = life.kinds()
    assert (kinds["nodegroup"], kinds["cluster"], kinds["instance"]) == (0, 0, 0)
    assert {each.action for each in amazon.services.schedules.fired if each.outcome == "ok"} == {
        "eks:DeleteNodegroup",
        "eks:DeleteCluster",
    }
    amazon.clock.advance(48 * HOUR)
    assert life.kinds()["schedule"] == 0
    life.delete()
    assert amazon.left() == []


def test_spoiled_tags_hide_nothing_from_the_end(amazon, life):
    life.create()
    vpc = next(each for each in amazon.left() if each.kind == "vpc").id
    spoiled = {"trainyard:part": "<b>'; drop", "trainyard:expires": "never", "trainyard:owner": "A' B"}
    tags = [{"Key": key, "Value": value} for key, value in spoiled.items()]
    client("ec2").create_tags(Resources=[vpc], Tags=tags)
    (found,) = [each for each in discover(life.plan.session) if each.name == "vpc"]
    assert found.describe().id == vpc
    assert (found.tags.owner, found.tags.expires) == ("a-b", None)
    life.delete()
    assert amazon.left() == []


@pytest.mark.slow
def test_what_kubernetes_left_goes_and_what_somebody_added_is_named(amazon):
    life = EksLifecycle(amazon, private=True)
    life.create()
    assert life.kinds()["natgateway"] == 1
    ec2, elb = client("ec2"), client("elbv2")
    ours = {each.kind: each.id for each in amazon.left()}
    subnets = [each.id for each in amazon.left() if each.kind == "subnet"]
    mark = {"Key": "kubernetes.io/cluster/lab", "Value": "owned"}
    group = ec2.create_security_group(GroupName="k8s-elb-1", Description="-", VpcId=ours["vpc"])["GroupId"]
    ec2.create_tags(Resources=[group], Tags=[mark])
    elb.create_load_balancer(Name="service", Subnets=subnets[:2], SecurityGroups=[group], Tags=[mark])
    volume = ec2.create_volume(AvailabilityZone=f"{REGION}a", Size=1)["VolumeId"]
    ec2.create_tags(Resources=[volume], Tags=[mark])
    theirs = ec2.create_security_group(GroupName="theirs", Description="-", VpcId=ours["vpc"])["GroupId"]
    with pytest.raises(KitError, match="vpc"):
        life.delete()
    assert {each.id for each in amazon.left() if each.kind != "bucket"} == {ours["vpc"], theirs}
    ec2.delete_security_group(GroupId=theirs)
    life.delete()
    assert amazon.left() == []


@pytest.mark.slow
def test_nodes_that_cannot_be_had_are_told_in_the_clouds_words_and_tried_again(amazon, life):
    words = "We currently do not have sufficient m5.xlarge capacity"
    amazon.break_("node group", "train", "AsgInstanceLaunchFailures", words)
    with pytest.raises(KitError, match="sufficient m5.xlarge capacity"):
        life.create()
    life.create()
    assert life.kinds()["nodegroup"] == 2
    life.delete()
    assert amazon.left() == []
