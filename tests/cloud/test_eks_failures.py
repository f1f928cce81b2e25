"""What goes wrong at AWS, said so that somebody can fix it: by the fake's answers over HTTP."""

from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from functools import cache

import pytest
from botocore import exceptions as boto

from clouds.aws.client_errors import AwsError, to_error
from clouds.aws.failures import explained
from clouds.aws.session import AwsSession
from clouds.tags import CLUSTER, KIT, OWNER, WORKSHOP, Tags, read
from kitlib.display.tables import Table
from kitlib.errors import BadInput

LAUNCH = "AsgInstanceLaunchFailures: Could not launch On-Demand Instances. "
NO_CAPACITY = LAUNCH + (
    "InsufficientInstanceCapacity - We currently do not have sufficient g4dn.xlarge capacity in the "
    "Availability Zone you requested (us-west-2a)."
)


@cache
def session() -> AwsSession:
    """Return one for all tests: loading boto3's models takes longer than all requests."""
    return AwsSession("us-west-2")


@pytest.fixture(autouse=True)
def no_rest(amazon, monkeypatch):
    monkeypatch.setattr("botocore.endpoint.time.sleep", lambda seconds: None)


def refusal(service: str, operation: str, **parameters) -> AwsError:
    with pytest.raises(AwsError) as error:
        session().call(service, operation, **parameters)
    return error.value


def test_capacity_that_is_not_there_proposes_other_types_and_names_the_zones(amazon):
    amazon.offer("g4dn.xlarge", ["us-west-2a", "us-west-2c"])
    said = explained(session(), "g4dn.xlarge", NO_CAPACITY, spot=False)
    assert said.startswith(NO_CAPACITY)
    assert 'instance_type="g5.xlarge"' in said and "offered in us-west-2a, us-west-2c" in said
    assert "spot=False" in explained(session(), "g4dn.xlarge", "UnfulfillableCapacity", spot=True)


def test_who_may_not_ask_for_zones_is_told_the_rest(amazon):
    amazon.deny("ec2:DescribeInstanceTypeOfferings")
    assert "another region" in explained(session(), "g4dn.xlarge", NO_CAPACITY, spot=False)


def test_a_quota_that_a_node_group_meets_has_its_page():
    said = explained(
        session(), "g4dn.xlarge", LAUNCH + "VcpuLimitExceeded - You have requested more", spot=False
    )
    assert "servicequotas/home/services/ec2/quotas/L-DB2E81BA" in said
    assert explained(session(), "m5.large", "AccessDenied: no", spot=False) == "AccessDenied: no"


@pytest.mark.parametrize(
    ("service", "operation"), [("eks", "list_clusters"), ("ec2", "describe_vpcs"), ("iam", "list_roles")]
)
def test_each_service_has_its_own_word_for_a_denial_and_all_come_to_the_same(amazon, service, operation):
    action = f"{service}:{''.join(word.title() for word in operation.split('_'))}"
    amazon.deny(action)
    said = refusal(service, operation)
    assert f"user/instructor may not do {action}" in said.what and f'"Action": "{action}"' in said.fix


@pytest.mark.parametrize(
    ("service", "operation"), [("eks", "list_clusters"), ("ec2", "describe_vpcs"), ("iam", "list_roles")]
)
def test_credentials_that_have_expired_are_told_from_those_nobody_knows(amazon, service, operation):
    amazon.faults.expired.add("*")
    assert "have expired" in refusal(service, operation).what
    amazon.faults.reset()
    amazon.faults.invalid.add("AKIATESTTESTTESTTEST")
    assert "does not know these credentials" in refusal(service, operation).what


def test_a_wrong_clock_is_told_from_credentials_that_have_expired_even_by_ec2(amazon):
    amazon.faults.skew = timedelta(hours=1)
    assert "clock is wrong" in refusal("eks", "list_clusters").what
    headers = {"date": format_datetime(datetime.now(UTC) + timedelta(hours=1), usegmt=True)}
    answer = {"Error": {"Code": "RequestExpired", "Message": "Request has expired."}}
    for told, words in (
        (headers, "clock is wrong"),
        ({"date": format_datetime(datetime.now(UTC))}, "have expired"),
        ({}, "have expired"),
    ):
        error = boto.ClientError(answer | {"ResponseMetadata": {"HTTPHeaders": told}}, "DescribeVpcs")
        said = to_error(error, "ec2", "describe_vpcs", {}, region="us-west-2", profile=None)
        assert words in said.what


def test_a_network_that_is_lost_says_that_the_same_call_goes_on(amazon):
    amazon.faults.offline = True
    said = refusal("eks", "list_clusters")
    assert "network does not reach AWS" in said.what and "call it again" in said.fix and said.passing
    amazon.faults.offline = False
    amazon.cut(1, action="eks:ListClusters")  # once is borne
    assert session().call("eks", "list_clusters")["clusters"] == []


def test_a_region_that_is_misspelt_is_put_right(amazon):
    with pytest.raises(BadInput) as error:
        AwsSession("us-wst-2")
    assert "us-west-2" in error.value.fix


def test_a_hostile_tag_value_is_neither_believed_nor_drawn():
    hostile = {KIT: "true", CLUSTER: "<script>alert(1)</script>", OWNER: "../../etc", WORKSHOP: "a\nb\0c"}
    found = read(hostile)
    assert (found.owner, found.workshop) == ("etc", "a-b-c")
    assert "<script>" not in Table(("cluster",), [(found.cluster,)])._repr_html_()
    assert read({KIT: "True", CLUSTER: "lab"}) is None  # it is the kit's word or none
    own = Tags("lab", "ada", "self-paced").amazon()
    assert all(len(value) < 256 for value in own.values())
