"""What is found before an EKS cluster is begun, what a failed request says, and who is let in."""

from datetime import UTC, datetime, timedelta
from types import SimpleNamespace

import boto3
import pytest
from botocore import exceptions as boto

from kitlib.clusters.shape import Shape
from kitlib.errors import BadInput, KitError
from trainyard_kit.checks import Level
from trainyard_kit.clouds.cloud_errors import ErrorReason, classify
from trainyard_kit.clouds.eks import machines, preflight
from trainyard_kit.clouds.eks.client_errors import AwsError, to_error
from trainyard_kit.clouds.eks.cluster import EksCluster
from trainyard_kit.clouds.eks.plan import check_principal
from trainyard_kit.clouds.eks.session import AwsSession

from ..rows import slow
from .aws import administrator
from .eks_processes import OPTIONS

GPU = {"instance_type": "g4dn.xlarge"}


def report(**options):
    return EksCluster.preflight("lab", Shape(2, options=OPTIONS | options))


def worst(checks):
    return {check.name.split()[0]: check for check in checks.checks if check.level is not Level.OK}


def test_in_an_account_in_order_nothing_is_found_and_nothing_was_changed(aws, user):
    checks = report(**GPU)
    assert checks.ok and worst(checks) == {}, repr(checks)
    assert user.changes() == []
    assert "user/instructor" in checks.checks[0].message


def test_only_an_explicit_denial_fails_what_is_not_found_allowed_is_a_warning(aws, user):
    aws.faults.denied["cloudformation:CreateStack"] = False
    (only,) = worst(report()).values()
    assert only.level is Level.WARN and "cloudformation:CreateStack" in only.message
    aws.faults.denied["cloudformation:CreateStack"] = True
    (only,) = worst(report()).values()
    assert only.level is Level.FAILED and "no allow statement overrides" in only.message


def test_quotas_versions_and_a_foreign_cluster_are_found_before_anything_is_paid_for(aws, user):
    aws.quotas.values["L-DB2E81BA"] = 4
    (only,) = worst(report(**GPU)).values()
    assert only.level is Level.FAILED and "8 are needed" in only.message and "L-DB2E81BA" in only.fix
    assert "standard support" in worst(report(version="1.33"))["version"].message
    with pytest.raises(KitError, match="standard support"):
        user.create(version="1.20")
    assert aws.left() == []


@pytest.mark.parametrize(
    ("kind", "spot", "code"),
    [
        *((kind, False, "L-417A185B") for kind in ("p4d.24xlarge", "p5.48xlarge")),
        *(("p4d.24xlarge", True, "L-7212CCBC"), ("p5.48xlarge", True, "L-C4BD4855")),
    ],
)
def test_the_quota_of_an_a100_and_of_an_h100_is_checked_on_demand_and_as_spot(aws, user, kind, spot, code):
    aws.quotas.values[code] = 191
    rows = worst(report(instance_type=kind, spot=spot))
    assert ("create-service-linked-role" in rows.pop("spot").fix) if spot else "spot" not in rows
    (only,) = rows.values()
    assert only.level is Level.FAILED and "0 of 191 in use" in only.message and code in only.fix


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"instance_type": "p3.2xlarge"}, "Turing"),
        ({"instance_type": "g5g.xlarge"}, "ARM|arm"),
        ({"instance_type": "m5.xlarg"}, "m5.xlarge"),
        ({"efa": True}, "Elastic Fabric Adapter"),
        ({"efa": True, "instance_type": "p4d.24xlarge"}, "no public address to a node with 4"),
        ({"efa": True, "instance_type": "p6-b300.48xlarge"}, "no public address to a node with 17"),
        ({"patch": "SshKey"}, "this is a dict"),
        ({"min_nodes": 3}, "from 0 to 2"),
        ({"max_nodes": 1}, "from 2 to 100"),
    ],
)
def test_unusable_machines_and_options_are_refused_with_the_reason(aws, user, options, words):
    with pytest.raises(BadInput, match=words):
        user.create(**options)
    assert aws.left() == []


@pytest.mark.parametrize(
    ("code", "options", "fix"),
    [
        (
            "L-F678F1CE",
            {},
            "services/vpc/quotas/L-F678F1CE; or delete one; or use your own VPC: docs/eks.md",
        ),
        ("L-A4707A72", {}, "services/vpc/quotas/L-A4707A72"),
        ("L-0263D0A3", {"private": True}, "services/ec2/quotas/L-0263D0A3"),
        ("L-1194D53C", {}, "services/eks/quotas/L-1194D53C"),
    ],
)
def test_a_quota_of_which_a_cluster_takes_one_is_found_used_up(aws, user, code, options, fix):
    """Codes: https://docs.aws.amazon.com/general/latest/gr/vpc-service.html, ec2-service.html, eks.html"""
    aws.quotas.values[code] = 0
    (only,) = worst(report(**options)).values()
    assert only.level is Level.FAILED and "1 is needed" in only.message and "of 0 in use" in only.message
    page, *ways = fix.split("; ")
    assert page in only.fix and all(way in only.fix for way in ways)
    aws.quotas.values[code] = 50
    assert worst(report(**options)) == {}


def test_an_address_is_needed_with_a_nat_gateway_alone(aws, user):
    aws.quotas.values["L-0263D0A3"] = 0
    assert worst(report()) == {}


def test_each_issue_that_eks_has_of_a_node_group_has_a_reason_and_a_next_step():
    session, rest = SimpleNamespace(region="us-west-2"), {"Unknown", "InternalFailure"}
    model = boto3.Session(region_name="us-east-1").client("eks").meta.service_model
    for code in model.shape_for("NodegroupIssueCode").enum:
        words = f"NodeGroup (AWS::EKS::Nodegroup): [Issue(Code={code}, Message=as EKS says, ResourceIds=[])]"
        assert classify("amazon", words).reason is not ErrorReason.OTHER, code
        how = {"spot": False, "alternative": "us-west-2b"}
        advice = machines.launch_failure_fix(session, "m5.xlarge", words, **how)
        assert (advice is None) is (code in rest), code


@pytest.mark.parametrize(
    ("words", "step"),
    [
        ("Code=NodeCreationFailure, Message=Instances failed to join the kubernetes cluster", "NAT gateway"),
        ("Unhealthy nodes; Instances failed to join the kubernetes cluster", "get-console-output"),
        ("Code=InsufficientFreeAddresses, Message=One or more subnets do not have enough", "larger subnets"),
        ("Code=Ec2SubnetInvalidConfiguration, Message=One or more Amazon EC2 Subnets", "map-public-ip"),
        ("Code=AccessDenied, Message=Your worker nodes do not have access to the cluster", "boundary"),
        (
            "Could not launch Spot Instances. AuthFailure.ServiceLinkedRoleCreationNotPermitted - no",
            "spot.ama",
        ),
        ("AuthFailure.ServiceLinkedRoleCreationNotPermitted: The provided credentials", "spot.amazonaws.com"),
        ("Code=PodEvictionFailure, Message=Reached max retries while trying to evict", "poddisruptionbudget"),
        ("Code=AsgInstanceLaunchFailures, Message=something new", "AutoScalingGroups"),
        (
            "Code=AsgInstanceLaunchFailures, Message=You have requested more vCPU capacity",
            "AutoScalingGroups",
        ),
    ],
)
def test_missing_nodes_are_explained_by_the_next_step_to_take(words, step):
    session = SimpleNamespace(region="us-west-2")
    assert step in machines.launch_failure_fix(
        session, "m5.xlarge", words, spot=True, alternative="us-west-2b"
    )


BLOCK = {"InstanceType": "p5.48xlarge", "AvailabilityZone": "us-west-2b", "State": "active"}
BLOCK |= {"ReservationType": "capacity-block", "TotalInstanceCount": 2, "AvailableInstanceCount": 2}
BLOCK |= {"StartDate": datetime(2030, 1, 1, 11, 30, tzinfo=UTC), "EndDate": datetime(2030, 1, 3, tzinfo=UTC)}


@pytest.mark.parametrize(
    ("found", "options", "words", "fix"),
    [
        (None, {}, "no such reservation", "CapacityReservations"),
        ({"State": "scheduled"}, {}, "begins at 2030-01-01 11:30 UTC", "when it is active"),
        ({"State": "payment-failed"}, {}, "payment failed", "another one"),
        ({"State": "expired"}, {}, "expired", "another one"),
        ({"ReservationType": "default"}, {}, "not a Capacity Block", 'zone="us-west-2b"'),
        ({"TotalInstanceCount": 1}, {}, "1 machines", "nodes=1"),
        ({}, {"spot": True}, "spot cannot be chosen", "leave out"),
        ({}, {"instance_type": "p5.48xlarge", "zone": "us-west-2a"}, "the block determines", "leave out"),
    ],
)
def test_a_capacity_block_that_does_not_fit_is_refused_with_what_it_is(aws, user, found, options, words, fix):
    if found is not None:
        aws.reservations["cr-1"] = BLOCK | found
    options = {"region": "us-west-2", "capacity_block": "cr-1", "confirm": True} | options
    with pytest.raises(BadInput, match=words) as raised:
        EksCluster.create("lab", Shape(2, options=options))
    assert fix in raised.value.fix and aws.left() == []


def test_a_capacity_block_brings_type_zone_and_price_and_counts_against_no_quota(aws, user):
    aws.reservations["cr-1"] = dict(BLOCK)
    options = {"region": "us-west-2", "capacity_block": "cr-1", "confirm": True}
    checks = EksCluster.preflight("lab", Shape(2, options=options))
    assert checks.ok and not any("of P instances" in check.name for check in checks.checks)
    aws.reservations["cr-1"]["AvailableInstanceCount"] = 1
    (only,) = EksCluster.preflight("lab", Shape(2, options=options)).failures
    assert "1 of its machines are free" in only.message and only.fix == "`nodes=1`"
    aws.reservations["cr-1"] |= {
        "AvailableInstanceCount": 2,
        "EndDate": datetime.now(UTC) + timedelta(hours=2),
    }
    (only,) = worst(EksCluster.preflight("lab", Shape(2, options=options))).values()
    assert only.level is Level.WARN and "before the cluster expires" in only.message
    lab = EksCluster.create("lab", Shape(2, options=options))
    eks, ec2 = administrator("eks"), administrator("ec2")
    pool = eks.describe_nodegroup(clusterName="lab", nodegroupName="train")["nodegroup"]
    assert pool["capacityType"] == "CAPACITY_BLOCK" and pool["scalingConfig"]["minSize"] == 2
    versions = ec2.describe_launch_template_versions(LaunchTemplateName="trainyard-lab-train")
    launch = versions["LaunchTemplateVersions"][0]["LaunchTemplateData"]
    assert launch["InstanceType"] == "p5.48xlarge"
    assert launch["InstanceMarketOptions"] == {"MarketType": "capacity-block"}
    target = launch["CapacityReservationSpecification"]["CapacityReservationTarget"]
    assert target == {"CapacityReservationId": "cr-1"}
    (paid,) = (price for price in lab.running_costs(lab.session)[0].prices if "capacity block" in price.what)
    assert paid.hourly == 0.0 and paid.count == 2
    user.delete()
    assert aws.left() == []


def test_the_root_user_and_a_name_of_somebody_elses_cluster_are_refused():
    root = SimpleNamespace(
        identity={"Arn": "arn:aws:iam::1:root"}, credentials=SimpleNamespace(method="keys"), profile="home"
    )
    check = preflight.credentials(root)
    assert check.level is Level.FAILED and 'profile "home": the root user' in check.message
    theirs = SimpleNamespace(find=lambda *_, **__: {"cluster": {"tags": {}}}, region="eu-central-1")
    check = preflight.name_available(theirs, "lab")
    assert check.level is Level.FAILED and check.fix == '`name="lab-2"`'


def test_machines_of_a_single_zone_are_a_warning():
    offered = {"g4dn.xlarge": "a", preflight.SYSTEM_MACHINE: "b"}

    def paginate(*_, Filters, **__):  # noqa: N803 (as AWS names it)
        return [{"Location": offered[name]} for name in Filters[0]["Values"]]

    train = SimpleNamespace(type="g4dn.xlarge", alternative_types=(), gpus=1)
    plan = SimpleNamespace(machines=train, zones=("a", "b"))
    alone, system = preflight.types(SimpleNamespace(paginate=paginate), plan)
    assert alone.level is Level.WARN and "offered in a only, 1 GPUs each" in alone.message
    assert alone.fix.startswith('`instance_type="g') and "g4dn.xlarge" not in alone.fix
    assert system.level is Level.FAILED and system.fix == '`zone="b"`'


def test_expired_credentials_end_the_checks_at_once(aws, user):
    words = "The security token included in the request is expired"
    aws.fail("*", error="ExpiredToken", message=words, times=None)
    checks = report()
    assert [check.name for check in checks.checks][:1] == ["credentials"] and not checks.ok
    assert "have expired" in checks.checks[0].message and checks.checks[0].fix


def test_administrators_and_pods_of_rooms_are_let_in_until_the_cluster_goes(aws, user):
    role, ada = "arn:aws:iam::123456789012:role/staff/teachers", "arn:aws:iam::123456789012:user/ada"
    lab, eks = user.create(admins=[role]), administrator("eks")
    message = lab.add_admin(ada)
    assert 'kit.connect("lab", provider="eks", region="us-west-2")' in message
    lab.add_admin(ada)  # once more is fine
    for arn in (role, ada):
        policies = eks.list_associated_access_policies(clusterName="lab", principalArn=arn)
        assert policies["associatedAccessPolicies"][0]["policyArn"].endswith("AmazonEKSClusterAdminPolicy")
    for _ in range(2):
        lab.grant_pod_access("attendee-ada")
    account = {"clusterName": "lab", "namespace": "attendee-ada"}
    assert len(eks.list_pod_identity_associations(**account)["associations"]) == 1
    for _ in range(2):
        lab.revoke_pod_access("attendee-ada")
    assert eks.list_pod_identity_associations(**account)["associations"] == []
    lab.grant_pod_access("attendee-bob")
    user.delete()
    assert aws.left() == []
    with pytest.raises(BadInput, match="ARN"):
        check_principal("ada")


def refusal(code, words="no"):
    return boto.ClientError({"Error": {"Code": code, "Message": words}}, "CreateStack")


@pytest.mark.parametrize(
    ("error", "words", "passing"),
    [
        (refusal("ExpiredToken"), "have expired", False),
        (refusal("UnrecognizedClientException"), "does not accept these credentials", False),
        (refusal("SignatureDoesNotMatch", "Signature expired: 2020 is now earlier"), "clock is wrong", False),
        (refusal("Throttling"), "throttles", True),
        (refusal("ServiceUnavailable"), "AWS failed", True),
        (boto.NoCredentialsError(), "no credentials", False),
        (boto.EndpointConnectionError(endpoint_url="https://eks"), "unreachable", True),
    ],
)
def test_each_way_to_fail_has_its_words(error, words, passing):
    names = {"StackName": "trainyard-lab"}
    translated = to_error(error, "cloudformation", "create_stack", names, region="eu-west-1", profile=None)
    assert words in translated.what and translated.fix
    assert isinstance(translated, AwsError) and translated.transient is passing


def test_a_region_or_profile_that_does_not_exist_is_refused(monkeypatch):
    with pytest.raises(BadInput, match="eu-central-1"):
        AwsSession("eu-centrl-1")
    with pytest.raises(BadInput, match='"nobody"'):
        AwsSession("eu-central-1", profile="nobody")


@pytest.mark.parametrize(
    ("plan", "level", "words"),
    [
        (None, Level.OK, "older"),
        (("PAID", "ACTIVE"), Level.OK, "paid"),
        (("FREE", "ACTIVE"), Level.FAILED, "m5.xlarge and t3.large"),
        (("FREE", "EXPIRED"), Level.FAILED, "expired"),
        (("FREE", "NOT_STARTED"), Level.FAILED, "not started"),
    ],
)
def test_the_accounts_plan_is_known_before_anything_is_created(aws, user, plan, level, words):
    aws.plan = plan
    (check,) = (check for check in report().checks if check.name == "account plan")
    assert check.level is level and words in check.message
    assert ("billing" in check.fix) == (level is Level.FAILED)


def test_a_user_who_may_not_read_the_account_plan_is_only_warned(aws, user):
    aws.fail("freetier:GetAccountPlanState", error="AccessDeniedException", times=None)
    (check,) = worst(report()).values()
    assert check.level is Level.WARN and "freetier:GetAccountPlanState" in check.message


PENDING = (
    "Launching a new EC2 instance. Status Reason: Your request for accessing resources in this region is "
    "being validated, and you will not be able to launch additional resources in this region until the "
    "validation is complete. Launching EC2 instance failed."
)
BLOCKED = "This account is currently blocked and not recognized as a valid account. Launching failed."
NO_TIER = "The specified instance type is not eligible for Free Tier. Launching EC2 instance failed."
NO_DISKS = "VolumeLimitExceeded: You have reached the maximum storage. Launching EC2 instance failed."
NO_QUOTA = "You have requested more vCPU capacity than your current vCPU limit of 1 allows. VcpuLimitExceeded"


@pytest.mark.parametrize(
    ("pool", "words", "fix"),
    [
        ("train", PENDING, "e-mail"),
        *slow(
            ("system", NO_QUOTA, "quotas/L-"),
            ("system", BLOCKED, "e-mail"),
            ("train", NO_TIER, "upgrade"),
            ("train", NO_DISKS, "Service Quotas"),
        ),
    ],
)
def test_an_unverified_account_is_reported_within_minutes(aws, user, pool, words, fix):
    aws.launches[pool] = words
    began = aws.clock.now()
    with pytest.raises(AwsError) as raised:
        user.create()
    assert fix in raised.value.fix and "zone=" not in raised.value.fix and words[:30] in raised.value.what
    assert aws.clock.now() - began < 1000  # of which the control plane takes most
    aws.launches.clear()
    user.create()
    user.delete()
    assert aws.left() == []


@pytest.mark.parametrize(
    ("words", "fix"),
    [
        ("not authorized: ec2:RunInstances, with an explicit deny in a service control policy", "ask"),
        ("Termination Reason: Client.InternalError: Client error on launch", "AWSServiceRoleForAutoScaling"),
        ("Your requested instance type is not supported in your requested Availability Zone", "zone="),
        ("MaxSpotInstanceCountExceeded - Max spot instance count exceeded", "quotas/L-34B43A08"),
    ],
)
def test_machines_that_a_policy_or_a_key_forbids_are_not_sought_in_another_zone(words, fix):
    session = SimpleNamespace(region="us-west-2")
    advice = machines.launch_failure_fix(
        session, "m5.xlarge", f"train: {words}", spot=True, alternative="us-west-2b"
    )
    assert fix in advice and ("zone=" in advice) is (fix == "zone=")
    assert machines.is_permanent(words) is (fix != "zone=")


@pytest.mark.parametrize("code", ["OptInRequired", "SubscriptionRequiredException", "PendingVerification"])
def test_an_account_that_is_not_active_is_not_sent_to_another_region(code):
    translated = to_error(refusal(code), "ec2", "describe_regions", {}, region="eu-west-1", profile=None)
    assert "aws" in translated.fix and "opt-in region" not in translated.fix and not translated.transient


def test_a_companys_certificate_is_named_with_the_variable_that_helps():
    words = "CERTIFICATE_VERIFY_FAILED: self-signed certificate"
    error = boto.SSLError(endpoint_url="https://eks", error=words)
    translated = to_error(error, "eks", "list_clusters", {}, region="eu-west-1", profile=None)
    assert "AWS_CA_BUNDLE" in translated.fix and not translated.transient
