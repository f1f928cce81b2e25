"""The fake's CloudFormation, with the kit's templates: what AWS does that a driver has to reckon with."""

import json
from pathlib import Path

import boto3
import pytest
from botocore.exceptions import ClientError

from trainyard_kit.clouds import eks

TEMPLATES = Path(eks.__file__).parent
CLUSTER = {"ClusterName": "lab", "AdminArn": "arn:aws:iam::123456789012:user/ada"}
CLUSTER |= {"ZoneOne": "us-west-2a", "ZoneTwo": "us-west-2b"}
POOL = {"ClusterName": "lab", "Pool": "system", "InstanceTypes": "m5.large", "Nodes": "1", "MaxNodes": "2"}
STOCKOUT = ("AsgInstanceLaunchFailures", "Could not launch On-Demand Instances. InsufficientInstanceCapacity")


class Driver:
    """Plain boto3, and a clock that is moved."""

    def __init__(self, aws):
        self.aws, self.stacks, self.iam = aws, boto3.client("cloudformation"), boto3.client("iam")
        trust = {"Effect": "Allow", "Principal": {"Service": "cloudformation.amazonaws.com"}}
        document = json.dumps({"Statement": [{**trust, "Action": "sts:AssumeRole"}]})
        made = self.iam.create_role(RoleName="stacks", AssumeRolePolicyDocument=document)
        self.role = made["Role"]["Arn"]
        policy = json.loads((TEMPLATES / "policy.json").read_text())["stack"]
        self.iam.put_role_policy(RoleName="stacks", PolicyName="it", PolicyDocument=json.dumps(policy))

    def create(self, name, template, parameters, **more):
        given = [{"ParameterKey": key, "ParameterValue": value} for key, value in parameters.items()]
        text = (TEMPLATES / f"{template}.yaml").read_text()
        how = {"DisableRollback": True, "Capabilities": ["CAPABILITY_NAMED_IAM"], "RoleARN": self.role}
        tags = [{"Key": "trainyard:cluster", "Value": "lab"}]
        how |= {"TemplateBody": text, "Parameters": given, "Tags": tags} | more
        if "OnFailure" in how:
            del how["DisableRollback"]
        return self.stacks.create_stack(StackName=name, **how)["StackId"]

    def wait(self, stack):
        while (found := self.stacks.describe_stacks(StackName=stack)["Stacks"][0])["StackStatus"].endswith(
            "PROGRESS"
        ):
            self.aws.clock.sleep(15)
        return found["StackStatus"], found.get("StackStatusReason", "")

    def delete(self, stack):
        self.stacks.delete_stack(StackName=stack)
        return self.wait(stack)


@pytest.fixture
def driver(aws):
    found = Driver(aws)
    aws.clock.sleep(30)
    return found


@pytest.mark.parametrize("private", ["false", "true"])
def test_both_templates_are_created_in_order_tagged_and_deleted_without_a_rest(aws, driver, private):
    cluster = driver.create("trainyard-lab", "cluster", CLUSTER | {"PrivateNodes": private})
    assert driver.wait(cluster)[0] == "CREATE_COMPLETE"
    aws.page_size = 20
    pages = driver.stacks.get_paginator("describe_stack_events").paginate(StackName=cluster)
    events = [each for page in pages for each in page["StackEvents"]][::-1]
    first = [each["LogicalResourceId"] for each in events if each["ResourceStatus"] == "CREATE_COMPLETE"]
    assert events[0]["ResourceStatusReason"] == "User Initiated" and first[-1] == "trainyard-lab"
    assert (
        first.index("Vpc") < first.index("PublicSubnetOne") < first.index("Cluster") < first.index("Network")
    )
    pool = driver.create("trainyard-lab-system", "nodes", POOL)
    assert driver.wait(pool)[0] == "CREATE_COMPLETE"
    tag = [{"Name": "tag:trainyard:cluster", "Values": ["lab"]}]
    assert len(boto3.client("ec2").describe_subnets(Filters=tag)["Subnets"]) == (
        4 if private == "true" else 2
    )
    (files,) = boto3.client("efs").describe_file_systems()["FileSystems"]
    assert {"Key": "trainyard:cluster", "Value": "lab"} in files["Tags"]
    assert driver.delete(cluster) == (
        "CREATE_COMPLETE",
        "Export trainyard-lab-EbsDriverRole cannot be deleted as it is in use by trainyard-lab-system",
    )
    assert driver.delete(pool)[0] == driver.delete(cluster)[0] == "DELETE_COMPLETE"
    assert [each.id for each in aws.left()] == ["stacks"]


def test_what_failed_stays_with_the_rest_and_an_update_with_rollback_disabled_goes_on(aws, driver):
    driver.wait(driver.create("trainyard-lab", "cluster", CLUSTER))
    aws.break_("Nodegroup", "system", *STOCKOUT)
    pool = driver.create("trainyard-lab-system", "nodes", POOL)
    assert driver.wait(pool) == ("CREATE_FAILED", "The following resource(s) failed to create: [NodeGroup]. ")
    assert "launch-template" in {each.kind for each in aws.left()}
    given = [{"ParameterKey": each, "UsePreviousValue": True} for each in POOL]
    again = {"StackName": pool, "UsePreviousTemplate": True, "Parameters": given}
    with pytest.raises(ClientError, match="non-terminal"):
        driver.stacks.update_stack(**again)
    driver.stacks.update_stack(**again, DisableRollback=True)
    assert driver.wait(pool)[0] == "UPDATE_COMPLETE"
    with pytest.raises(ClientError, match="No updates"):
        driver.stacks.update_stack(**again)


def test_a_stack_that_was_created_to_do_nothing_on_failure_is_never_updated_after_one(aws, driver):
    words = "The maximum number of VPCs has been reached."
    aws.fail("ec2:CreateVpc", error="VpcLimitExceeded", message=words, inside=True)
    cluster = driver.create("trainyard-lab", "cluster", CLUSTER, OnFailure="DO_NOTHING")
    assert driver.wait(cluster)[0] == "CREATE_FAILED"
    given = [{"ParameterKey": each, "UsePreviousValue": True} for each in CLUSTER]
    again = {"StackName": cluster, "UsePreviousTemplate": True, "Parameters": given, "DisableRollback": True}
    with pytest.raises(ClientError, match="on-failure: DO_NOTHING"):
        driver.stacks.update_stack(**again)
    assert driver.delete(cluster)[0] == "DELETE_COMPLETE"


@pytest.mark.parametrize(
    ("how", "words"),
    [
        ({"TemplateBody": "A: &a {}\nResources: *a"}, "YAML aliases are not allowed"),
        ({"TemplateBody": "Resources: {}\n#" + "x" * 51_200}, "less than or equal to 51200"),
        ({"Capabilities": []}, "CAPABILITY_NAMED_IAM"),
        ({"RoleARN": "arn:aws:iam::123456789012:role/none"}, "cannot be assumed"),
        ({"Parameters": []}, "must have values"),
    ],
)
def test_a_request_that_aws_would_refuse_is_refused(driver, how, words):
    with pytest.raises(ClientError, match=words):
        driver.create("trainyard-lab", "cluster", CLUSTER, **how)


def test_a_role_that_lacks_one_read_of_a_handler_cannot_create_what_asks_for_it(driver):
    policy = json.loads((TEMPLATES / "policy.json").read_text())["stack"]
    policy["Statement"][1]["Action"].remove("elasticfilesystem:DescribeReplicationConfigurations")
    driver.iam.put_role_policy(RoleName="stacks", PolicyName="it", PolicyDocument=json.dumps(policy))
    stack = driver.create("trainyard-lab", "cluster", CLUSTER)
    assert driver.wait(stack)[0] == "CREATE_FAILED"
    pages = driver.stacks.get_paginator("describe_stack_events").paginate(StackName=stack)
    events = [event for page in pages for event in page["StackEvents"]]
    failed = [each["ResourceStatusReason"] for each in events if each["ResourceStatus"] == "CREATE_FAILED"]
    assert any("perform: elasticfilesystem:DescribeReplicationConfigurations" in each for each in failed)
