"""What is found before an EKS cluster is begun, and that each thing found says how to fix it."""

import json
from datetime import timedelta
from functools import cache

import boto3
import pytest

from clouds.aws.permissions import needed
from clouds.aws.plan import SYSTEM, TRAIN, EksPlan, NodeGroupPlan
from clouds.aws.preflight import check
from clouds.aws.session import AwsSession
from clouds.tags import Tags
from kitlib.clusters.checks import Check, Level
from kitlib.errors import PreflightFailed

from .eks_lifecycle import EksLifecycle

HERE = "us-east-1"
CHANGES = ("Create", "Delete", "Put", "Attach", "Modify", "Update", "Run", "Allocate", "Tag")


@cache
def shared(region: str) -> AwsSession:
    """Return a session that many tests use: loading boto3's models takes longer than all requests."""
    return AwsSession(region)


@pytest.fixture(autouse=True)
def asked_anew(amazon):
    for region in ("us-east-1", "eu-south-2"):
        shared(region).__dict__.pop("identity", None)


def plan(
    *, kind: str = "g4dn.xlarge", nodes: int = 2, spot: bool = False, region: str = "us-east-1", **more
) -> EksPlan:
    groups = (NodeGroupPlan(SYSTEM, "t3.large", 1, least=1), NodeGroupPlan(TRAIN, kind, nodes, spot=spot))
    return EksPlan(shared(region), Tags("lab", "ada", "self-paced"), groups=groups, **more)


def found(name: str, **how) -> Check:
    """Return the check whose name begins so."""
    report = check(plan(**how))
    return next(each for each in report.checks if each.name.startswith(name))


def test_in_an_account_in_order_nothing_stands_in_the_way_and_nothing_was_changed(amazon):
    report = check(plan())
    assert report.ok, repr(report)
    assert {each.level for each in report.checks} == {Level.OK}, repr(report)
    assert report.raise_failures() is report
    assert not [each for each in amazon.actions() if each.split(":")[1].startswith(CHANGES)]
    assert "AWS_ACCESS_KEY_ID" in report.checks[0].words and "user/instructor" in report.checks[0].words


def test_what_no_key_opens_ends_the_checks_at_once(amazon, monkeypatch):
    amazon.faults.expired.add("*")
    report = check(plan())
    assert [each.name for each in report.checks] == ["credentials"]
    assert "have expired" in report.checks[0].words and report.checks[0].fix
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")
    shared.cache_clear()
    (none,) = check(plan()).checks
    shared.cache_clear()
    assert none.level is Level.FAILED and "no credentials" in none.words and "aws configure" in none.fix


def test_a_profile_wins_over_the_environment_when_it_is_asked_for(amazon, monkeypatch, tmp_path):
    (tmp_path / "credentials").write_text(
        "[class]\naws_access_key_id = AKIAOTHER\naws_secret_access_key = x\n"
    )
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "credentials"))
    amazon.identities.add("AKIAOTHER", "arn:aws:iam::123456789012:user/other")
    own = EksPlan(AwsSession("us-east-1", "class"), Tags("lab", "ada", "self-paced"))
    first = check(own).checks[0]
    assert 'the file of credentials, profile "class"' in first.words and "user/other" in first.words


def test_a_clock_that_is_wrong_is_told_from_credentials_that_have_expired(amazon):
    amazon.faults.skew = timedelta(minutes=9)
    (only,) = check(plan()).checks
    assert only.name == "credentials" and "clock is wrong" in only.words and "chronyc" in only.fix


def test_a_quota_of_nothing_is_found_before_anything_is_paid_for(amazon):
    amazon.quota("L-DB2E81BA", 0, region=HERE)
    report = check(plan())
    (bad,) = report.failures
    assert bad.name == "quota of vCPUs of G and VT instances, on demand"
    assert bad.words == "2 × g4dn.xlarge need 8; of 0, 0 are taken"
    assert "us-east-1.console.aws.amazon.com/servicequotas/home/services/ec2/quotas/L-DB2E81BA" in bad.fix
    assert "request-service-quota-increase" in bad.fix and "--desired-value 8" in bad.fix
    assert "m5.xlarge" in bad.fix
    with pytest.raises(PreflightFailed, match="of 0, 0 are taken"):
        report.raise_failures()


def test_what_runs_already_counts_but_not_this_clusters_own(amazon):
    ec2 = boto3.client("ec2", HERE)
    image = ec2.describe_images()["Images"][0]["ImageId"]
    ec2.run_instances(ImageId=image, InstanceType="g4dn.xlarge", MinCount=3, MaxCount=3)
    own = [{"ResourceType": "instance", "Tags": [{"Key": "eks:cluster-name", "Value": "lab"}]}]
    ec2.run_instances(
        ImageId=image, InstanceType="g4dn.xlarge", MinCount=1, MaxCount=1, TagSpecifications=own
    )
    amazon.quota("L-DB2E81BA", 16, region=HERE)
    bad = found("quota of vCPUs of G and VT")
    assert (bad.level, bad.words) == (Level.FAILED, "2 × g4dn.xlarge need 8; of 16, 12 are taken")
    amazon.quota("L-DB2E81BA", 20, region=HERE)
    assert found("quota of vCPUs of G and VT").level is Level.WARN  # nothing is left for a node in exchange


def test_spot_nodes_have_a_quota_of_their_own(amazon):
    amazon.quota("L-DB2E81BA", 0, region=HERE)
    amazon.quota("L-3819A6DF", 0, region=HERE)
    assert found("quota of vCPUs of G and VT", spot=True).name.endswith("spot")
    assert "L-3819A6DF" in found("quota of vCPUs of G and VT", spot=True).fix


def test_the_network_and_the_cluster_need_room_too(amazon):
    for code, words in (("L-F678F1CE", "networks"), ("L-1194D53C", "EKS clusters")):
        amazon.quota(
            code, 1 if code == "L-F678F1CE" else 0, region=HERE
        )  # every region has a network from the start
        bad = found(f"quota of {words}")
        assert bad.level is Level.FAILED and code in bad.fix
    amazon.quota("L-0263D0A3", 0, region=HERE)
    assert found("quota of elastic IPs", private=True).level is Level.FAILED


def test_a_quota_that_may_not_be_looked_at_keeps_nobody_from_starting(amazon):
    amazon.deny("servicequotas:GetServiceQuota")
    report = check(plan())
    assert report.ok
    (one, *_) = [each for each in report.checks if each.name == "quotas"]
    assert one.level is Level.WARN and "could not be looked at" in one.words


def test_a_type_that_is_misspelt_is_put_right(amazon):
    bad = found("instance types", kind="g4dn.xlage")
    assert bad.level is Level.FAILED and "no such instance type" in bad.words
    assert "g4dn.xlarge" in bad.fix


def test_a_type_that_no_zone_offers_proposes_others(amazon):
    amazon.offer("g4dn.xlarge", [], region=HERE)
    bad = found("zones with g4dn.xlarge")
    assert bad.level is Level.FAILED and "no zone of us-east-1" in bad.words
    assert '"g5.xlarge"' in bad.fix and '"g4dn.xlarge"' not in bad.fix
    amazon.offer("g4dn.xlarge", ["us-east-1c"], region=HERE)
    assert found("zones with g4dn.xlarge").level is Level.WARN
    elsewhere = found("zones with g4dn.xlarge", zones=("us-east-1a", "us-east-1b"))
    assert elsewhere.level is Level.FAILED and "would be in us-east-1a, us-east-1b" in elsewhere.words


def test_a_denied_action_is_found_with_the_statement_that_allows_it(amazon):
    assert "eks:CreateNodegroup" in needed()
    amazon.deny("eks:CreateNodegroup")
    amazon.deny("iam:PassRole", explicit=True)
    bad = found("permissions")
    assert bad.level is Level.FAILED
    assert "user/instructor may not do eks:CreateNodegroup, iam:PassRole" in bad.words
    assert "a policy denies iam:PassRole" in bad.words
    assert '"Action": ["eks:CreateNodegroup", "iam:PassRole"]' in bad.fix


def test_permissions_that_may_not_be_simulated_are_a_warning_with_the_list(amazon):
    amazon.deny("iam:SimulatePrincipalPolicy")
    unsure = found("permissions")
    assert unsure.level is Level.WARN and "docs/eks.md" in unsure.fix


def test_a_session_of_a_role_is_judged_by_the_roles_own_name(amazon):
    boto3.client("iam").create_role(RoleName="teacher", Path="/staff/", AssumeRolePolicyDocument="{}")
    amazon.identities.add("AKIATESTTESTTESTTEST", "arn:aws:sts::123456789012:assumed-role/teacher/ada")
    assert found("permissions").level is Level.OK
    (asked,) = [each for each in amazon.calls if each.operation == "SimulatePrincipalPolicy"]
    assert asked.parameters["PolicySourceArn"] == "arn:aws:iam::123456789012:role/staff/teacher"


def make_cluster(**more):
    """Make an EKS cluster "lab" without the kit."""
    trust = {"Effect": "Allow", "Principal": {"Service": "eks.amazonaws.com"}, "Action": "sts:AssumeRole"}
    document = json.dumps({"Version": "2012-10-17", "Statement": [trust]})
    role = boto3.client("iam").create_role(RoleName="r", AssumeRolePolicyDocument=document)["Role"]["Arn"]
    subnets = [each["SubnetId"] for each in boto3.client("ec2", HERE).describe_subnets()["Subnets"]][:2]
    boto3.client("eks", HERE).create_cluster(
        name="lab", roleArn=role, resourcesVpcConfig={"subnetIds": subnets}, **more
    )


def test_a_name_that_is_somebody_elses_is_not_taken(amazon):
    make_cluster()
    theirs = found("name")
    assert theirs.level is Level.FAILED and "not the kit's" in theirs.words and "lab-2" in theirs.fix


def test_ones_own_cluster_is_gone_on_with_and_counts_against_no_quota(amazon):
    make_cluster(tags=Tags("lab", "ada", "self-paced").amazon())
    amazon.quota("L-1194D53C", 1, region=HERE)
    report = check(plan())
    assert "is gone on with" in next(each for each in report.checks if each.name == "name").words
    assert not [each for each in report.checks if "EKS clusters" in each.name]


def test_a_region_that_is_not_enabled_says_how_it_is(amazon):
    bad = found("region", region="eu-south-2")
    assert bad.level is Level.FAILED and "not enabled" in bad.words and "enable-region" in bad.fix


def test_a_region_without_a_service_is_told_before_anything_is_made(amazon, monkeypatch):
    monkeypatch.setattr("botocore.endpoint.time.sleep", lambda seconds: None)
    nobody = "http://127.0.0.1:1"  # as where a name of AWS leads nowhere
    monkeypatch.setenv("AWS_ENDPOINT_URL_EFS", nobody)
    monkeypatch.setenv("AWS_ENDPOINT_URL_SCHEDULER", nobody)
    amazon.deny("eks:ListClusters")  # who refuses is there
    report = check(EksPlan(AwsSession("us-west-1"), Tags("lab", "ada", "self-paced"), groups=plan().groups))
    (bad,) = report.failures
    assert bad.words.startswith("nothing answers as efs, scheduler in us-west-1")
    assert "take another region" in bad.fix and report.checks[-1] is bad


def test_networks_with_the_same_addresses_are_a_warning(amazon):
    boto3.client("ec2", HERE).create_vpc(CidrBlock="10.42.128.0/20")
    same = found("addresses")
    assert same.level is Level.WARN and "10.42.128.0/20" in same.words and "vpc-" in same.words


# What boto3 calls otherwise than policies do.
ALSO = {
    "s3:HeadBucket": "s3:ListBucket",
    "s3:ListObjectsV2": "s3:ListBucket",
    "s3:ListObjectVersions": "s3:ListBucketVersions",
    "s3:ListBuckets": "s3:ListAllMyBuckets",
    "s3:DeleteObjects": "s3:DeleteObject",
    "s3:PutPublicAccessBlock": "s3:PutBucketPublicAccessBlock",
    "s3:GetPublicAccessBlock": "s3:GetBucketPublicAccessBlock",
}


def test_the_actions_that_are_checked_are_all_that_a_whole_life_of_a_cluster_asks_for(amazon):
    life = EksLifecycle(amazon, private=True)
    life.create()
    life.delete()
    asked = {ALSO.get(each, each) for each in amazon.actions()} - {"sts:GetCallerIdentity"}
    assert sorted(asked - set(needed())) == []
