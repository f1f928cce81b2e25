"""The fake Amazon answers boto3 as the real one would: what takes time, what is refused, what is left."""

import json
from datetime import timedelta

import boto3
import pytest
from botocore.exceptions import ClientError, ConnectionClosedError

TRUST = {"Version": "2012-10-17", "Statement": [{"Effect": "Allow", "Action": "sts:AssumeRole"}]}


def client(service, **options):
    return boto3.client(service, **options)


def role(name, service, policy=None):
    statement = {**TRUST["Statement"][0], "Principal": {"Service": service}}
    document = json.dumps({**TRUST, "Statement": [statement]})
    iam = client("iam")
    try:
        arn = iam.create_role(RoleName=name, AssumeRolePolicyDocument=document)["Role"]["Arn"]
    except iam.exceptions.EntityAlreadyExistsException:
        return iam.get_role(RoleName=name)["Role"]["Arn"]
    if policy is not None:
        statement = {"Effect": "Allow", "Action": policy, "Resource": "*"}
        document = json.dumps({"Version": "2012-10-17", "Statement": [statement]})
        iam.put_role_policy(RoleName=name, PolicyName="it", PolicyDocument=document)
    return arn


def network():
    """Make a network that nodes can be in; return its ids."""
    ec2 = client("ec2")
    vpc = ec2.create_vpc(CidrBlock="10.0.0.0/16")["Vpc"]["VpcId"]
    gateway = ec2.create_internet_gateway()["InternetGateway"]["InternetGatewayId"]
    ec2.attach_internet_gateway(InternetGatewayId=gateway, VpcId=vpc)
    table = ec2.create_route_table(VpcId=vpc)["RouteTable"]["RouteTableId"]
    ec2.create_route(RouteTableId=table, DestinationCidrBlock="0.0.0.0/0", GatewayId=gateway)
    subnets, associations = [], []
    for number, zone in enumerate("ab"):
        made = ec2.create_subnet(
            VpcId=vpc, CidrBlock=f"10.0.{number}.0/24", AvailabilityZone=f"us-west-2{zone}"
        )
        subnets.append(made["Subnet"]["SubnetId"])
        ec2.modify_subnet_attribute(SubnetId=subnets[-1], MapPublicIpOnLaunch={"Value": True})
        made = ec2.associate_route_table(RouteTableId=table, SubnetId=subnets[-1])
        associations.append(made["AssociationId"])
    return {
        "vpc": vpc, "gateway": gateway, "table": table, "subnets": subnets, "associations": associations
    }  # fmt: skip


def cluster(subnets, name="yard", **options):
    given = {
        "name": name,
        "roleArn": role(f"{name}-cluster", "eks.amazonaws.com"),
        "resourcesVpcConfig": {"subnetIds": subnets},
        "accessConfig": {"authenticationMode": "API"},
        "bootstrapSelfManagedAddons": False,
        "tags": {"trainyard:kit": "true"},
    }
    return client("eks").create_cluster(**(given | options))["cluster"]


def nodes(subnets, name="train", cluster="yard", **options):
    given = {
        "clusterName": cluster,
        "nodegroupName": name,
        "subnets": subnets,
        "nodeRole": role(f"{cluster}-{name}", "ec2.amazonaws.com"),
        "scalingConfig": {"minSize": 0, "maxSize": 4, "desiredSize": 2},
    }
    return client("eks").create_nodegroup(**(given | options))["nodegroup"]


def refusal(act, **given):
    """Return (code, message) with which a call is refused."""
    with pytest.raises(ClientError) as caught:
        act(**given)
    return caught.value.response["Error"]["Code"], caught.value.response["Error"]["Message"]


def test_a_cluster_and_its_nodes_take_their_time_come_and_go(amazon):
    eks, ec2, there = client("eks"), client("ec2"), network()
    made = cluster(there["subnets"])
    assert made["status"] == "CREATING"
    assert "endpoint" not in made
    assert refusal(nodes, subnets=there["subnets"])[1] == "Cluster 'yard' is not in ACTIVE status"
    amazon.clock.advance(539)
    assert eks.describe_cluster(name="yard")["cluster"]["status"] == "CREATING"
    amazon.clock.advance(2)
    now = eks.describe_cluster(name="yard")["cluster"]
    assert now["status"] == "ACTIVE"
    assert now["endpoint"].startswith("https://")
    for addon in ("vpc-cni", "coredns", "eks-pod-identity-agent"):
        eks.create_addon(clusterName="yard", addonName=addon)
    nodes(there["subnets"])
    amazon.clock.advance(120)
    statuses = {
        name: eks.describe_addon(clusterName="yard", addonName=name)["addon"]["status"]
        for name in eks.list_addons(clusterName="yard")["addons"]
    }
    assert statuses == {"vpc-cni": "ACTIVE", "coredns": "CREATING", "eks-pod-identity-agent": "ACTIVE"}
    amazon.clock.advance(61)
    assert (
        eks.describe_nodegroup(clusterName="yard", nodegroupName="train")["nodegroup"]["status"] == "ACTIVE"
    )
    assert eks.describe_addon(clusterName="yard", addonName="coredns")["addon"]["status"] == "ACTIVE"
    assert refusal(eks.delete_cluster, name="yard") == (
        "ResourceInUseException",
        "Cluster has nodegroups attached",
    )
    assert refusal(ec2.delete_subnet, SubnetId=there["subnets"][0])[0] == "DependencyViolation"
    eks.delete_nodegroup(clusterName="yard", nodegroupName="train")
    amazon.clock.advance(241)
    assert (
        refusal(eks.describe_nodegroup, clusterName="yard", nodegroupName="train")[0]
        == "ResourceNotFoundException"
    )
    eks.delete_cluster(name="yard")
    assert refusal(ec2.delete_vpc, VpcId=there["vpc"])[0] == "DependencyViolation"
    amazon.clock.advance(151)
    assert refusal(eks.describe_cluster, name="yard") == (
        "ResourceNotFoundException",
        "No cluster found for name: yard.",
    )
    for each in there["associations"]:
        ec2.disassociate_route_table(AssociationId=each)
    for each in there["subnets"]:
        ec2.delete_subnet(SubnetId=each)
    ec2.delete_route_table(RouteTableId=there["table"])
    ec2.detach_internet_gateway(InternetGatewayId=there["gateway"], VpcId=there["vpc"])
    ec2.delete_internet_gateway(InternetGatewayId=there["gateway"])
    ec2.delete_vpc(VpcId=there["vpc"])
    assert {str(each).split()[1] for each in amazon.left()} == {"role"}
    amazon.reset()
    assert amazon.left() == []


def test_who_may_enter_a_cluster_is_in_its_access_entries(amazon):
    eks, there = client("eks"), network()
    amazon.delay("cluster", 0)
    cluster(there["subnets"])
    (creator,) = eks.list_access_entries(clusterName="yard")["accessEntries"]
    assert creator == client("sts").get_caller_identity()["Arn"]
    helper = "arn:aws:iam::123456789012:role/helper"
    eks.create_access_entry(clusterName="yard", principalArn=helper)
    policy = "arn:aws:eks::aws:cluster-access-policy/AmazonEKSViewPolicy"
    eks.associate_access_policy(
        clusterName="yard",
        principalArn=helper,
        policyArn=policy,
        accessScope={"type": "namespace", "namespaces": ["a"]},
    )
    found = eks.list_associated_access_policies(clusterName="yard", principalArn=helper)
    assert found["associatedAccessPolicies"][0]["accessScope"] == {"type": "namespace", "namespaces": ["a"]}
    assert (
        refusal(eks.create_access_entry, clusterName="yard", principalArn=helper)[0]
        == "ResourceInUseException"
    )
    reads = role("reads", "pods.eks.amazonaws.com")
    made = eks.create_pod_identity_association(
        clusterName="yard", namespace="a", serviceAccount="b", roleArn=reads
    )
    number = made["association"]["associationId"]
    listed = eks.list_pod_identity_associations(clusterName="yard", namespace="a")["associations"]
    assert [each["associationId"] for each in listed] == [number]
    eks.delete_pod_identity_association(clusterName="yard", associationId=number)
    eks.delete_access_entry(clusterName="yard", principalArn=helper)
    assert eks.list_access_entries(clusterName="yard")["accessEntries"] == [creator]


def test_a_schedule_deletes_the_nodes_and_then_the_cluster_when_its_time_has_come(amazon):
    eks, scheduler, there = client("eks"), client("scheduler"), network()
    amazon.delay("*", 0)
    cluster(there["subnets"])
    eks.create_addon(clusterName="yard", addonName="vpc-cni")
    nodes(there["subnets"])
    amazon.delay("node group gone", 240)
    may = role("expiry", "scheduler.amazonaws.com", ["eks:DeleteNodegroup", "eks:DeleteCluster"])
    scheduler.create_schedule_group(Name="yard", Tags=[{"Key": "trainyard:kit", "Value": "true"}])
    for minute, action, given in (
        (0, "deleteNodegroup", {"ClusterName": "yard", "NodegroupName": "train"}),
        (1, "deleteCluster", {"Name": "yard"}),
        (10, "deleteCluster", {"Name": "yard"}),
    ):
        scheduler.create_schedule(
            Name=f"{action}-{minute}",
            GroupName="yard",
            ScheduleExpression=f"at(2099-01-01T00:{minute:02}:00)",
            FlexibleTimeWindow={"Mode": "OFF"},
            Target={
                "Arn": f"arn:aws:scheduler:::aws-sdk:eks:{action}",
                "RoleArn": may,
                "Input": json.dumps(given),
            },
        )
    amazon.clock.advance(80 * 366 * 86400)
    assert [(each.action, each.outcome) for each in amazon.fired] == [
        ("eks:DeleteNodegroup", "ok"),
        ("eks:DeleteCluster", "ResourceInUseException"),
        ("eks:DeleteCluster", "ok"),
    ]
    assert eks.list_clusters()["clusters"] == []
    assert {each.kind for each in amazon.left() if each.service == "scheduler"} == {
        "schedule-group",
        "schedule",
    }


def test_what_goes_wrong_is_said_in_each_service_s_own_words(amazon):
    eks, ec2, iam = client("eks"), client("ec2"), client("iam")
    amazon.fail("eks:ListClusters", nth=2, error="ThrottlingException")
    eks.list_clusters()
    assert refusal(eks.list_clusters) == ("ThrottlingException", "Rate exceeded")
    amazon.deny("*:List*")
    amazon.deny("ec2:CreateVpc")
    assert refusal(eks.list_clusters)[0] == "AccessDeniedException"
    assert "not authorized to perform: iam:ListRoles" in refusal(iam.list_roles)[1]
    assert refusal(ec2.create_vpc, CidrBlock="10.0.0.0/16")[0] == "UnauthorizedOperation"
    amazon.faults.reset()
    amazon.faults.expired.add("*")
    assert refusal(eks.list_clusters)[0] == "ExpiredTokenException"
    assert refusal(iam.list_roles)[0] == "ExpiredToken"
    assert [call.outcome for call in amazon.calls][-2:] == ["ExpiredTokenException", "ExpiredToken"]


def test_a_connection_is_cut_before_or_after_a_call_took_effect(amazon, monkeypatch):
    monkeypatch.setenv("AWS_MAX_ATTEMPTS", "1")
    ec2 = client("ec2")
    amazon.cut(1, "before")
    with pytest.raises(ConnectionClosedError):
        ec2.create_vpc(CidrBlock="10.0.0.0/16")
    assert amazon.left() == []
    amazon.cut(1, "after")
    with pytest.raises(ConnectionClosedError):
        ec2.create_vpc(CidrBlock="10.0.0.0/16")
    assert [each.kind for each in amazon.left()] == ["vpc"]
    assert [call.outcome for call in amazon.calls] == ["cut before", "cut after"]


def test_what_is_tagged_is_found_whatever_service_made_it(amazon):
    amazon.delay("*", 0)
    tags = [{"Key": "trainyard:kit", "Value": "true"}]
    cluster(network()["subnets"])
    client("efs").create_file_system(CreationToken="a", Tags=tags)
    client("ec2").create_volume(
        AvailabilityZone="us-west-2a",
        Size=1,
        TagSpecifications=[{"ResourceType": "volume", "Tags": tags}],
    )
    pages = client("resourcegroupstaggingapi").get_paginator("get_resources")
    found = pages.paginate(TagFilters=[{"Key": "trainyard:kit", "Values": ["true"]}]).build_full_result()
    kinds = sorted(each["ResourceARN"].split(":")[2] for each in found["ResourceTagMappingList"])
    assert kinds == ["ec2", "eks", "elasticfilesystem"]


@pytest.mark.parametrize(
    ("how", "code"),
    [
        ("no way out", "NodeCreationFailure"),
        ("no public address", "Ec2SubnetInvalidConfiguration"),
        ("no network plugin", "NodeCreationFailure"),
        ("no capacity", "AsgInstanceLaunchFailures"),
    ],
)
def test_nodes_that_cannot_join_say_why(amazon, how, code):
    eks, ec2, there = client("eks"), client("ec2"), network()
    amazon.delay("cluster", 0)
    cluster(there["subnets"])
    if how != "no network plugin":
        eks.create_addon(clusterName="yard", addonName="vpc-cni")
    if how == "no way out":
        ec2.delete_route(RouteTableId=there["table"], DestinationCidrBlock="0.0.0.0/0")
    if how == "no public address":
        ec2.modify_subnet_attribute(SubnetId=there["subnets"][0], MapPublicIpOnLaunch={"Value": False})
    if how == "no capacity":
        amazon.break_("node group", "train", code, "We currently do not have sufficient g4dn.xlarge capacity")
    nodes(there["subnets"])
    amazon.clock.advance(2000)
    found = eks.describe_nodegroup(clusterName="yard", nodegroupName="train")["nodegroup"]
    assert (found["status"], found["health"]["issues"][0]["code"]) == ("CREATE_FAILED", code)


def test_what_was_made_a_moment_ago_is_not_seen_by_everybody(amazon):
    ec2 = client("ec2")
    amazon.lag("ec2:CreateVpc", 2)
    vpc = ec2.create_vpc(CidrBlock="10.0.0.0/16")["Vpc"]["VpcId"]
    assert refusal(ec2.describe_vpcs, VpcIds=[vpc])[0] == "InvalidVpcID.NotFound"
    assert vpc not in [each["VpcId"] for each in ec2.describe_vpcs()["Vpcs"]]
    assert vpc in [each["VpcId"] for each in ec2.describe_vpcs()["Vpcs"]]
    amazon.lag("iam:CreateRole", 1)
    subnets = network()["subnets"]
    assert "could not be assumed" in refusal(cluster, subnets=subnets)[1]
    assert cluster(subnets)["status"] == "CREATING"


def test_quotas_prices_and_offers_are_as_in_an_account_that_has_trained_before(amazon):
    quotas, pricing, ec2 = client("service-quotas"), client("pricing", region_name="us-east-1"), client("ec2")
    amazon.quota("L-DB2E81BA", 8)
    found = quotas.get_service_quota(ServiceCode="ec2", QuotaCode="L-DB2E81BA")["Quota"]
    assert (found["QuotaName"], found["Value"]) == ("Running On-Demand G and VT instances", 8.0)
    wanted = {"instanceType": "g4dn.xlarge", "regionCode": "us-west-2", "operatingSystem": "Linux"}
    filters = [{"Type": "TERM_MATCH", "Field": key, "Value": value} for key, value in wanted.items()]
    (row,) = pricing.get_products(ServiceCode="AmazonEC2", Filters=filters)["PriceList"]
    (term,) = json.loads(row)["terms"]["OnDemand"].values()
    (price,) = term["priceDimensions"].values()
    assert float(price["pricePerUnit"]["USD"]) == 0.526
    amazon.offer("g4dn.xlarge", ["us-west-2b"])
    offered = ec2.describe_instance_type_offerings(
        LocationType="availability-zone", Filters=[{"Name": "instance-type", "Values": ["g4dn.xlarge"]}]
    )["InstanceTypeOfferings"]
    assert [each["Location"] for each in offered] == ["us-west-2b"]


def test_lists_come_in_pages_and_files_take_their_time(amazon):
    eks, efs, there = client("eks"), client("efs"), network()
    amazon.page_size = 1
    amazon.delay("cluster", 0)
    cluster(there["subnets"])
    cluster(there["subnets"], name="yard-2")
    assert eks.list_clusters()["clusters"] == ["yard"]
    pages = eks.get_paginator("list_clusters").paginate()
    assert [name for page in pages for name in page["clusters"]] == ["yard", "yard-2"]
    files = efs.create_file_system(CreationToken="a")["FileSystemId"]
    amazon.clock.advance(10)
    target = efs.create_mount_target(FileSystemId=files, SubnetId=there["subnets"][0])["MountTargetId"]

    def states():
        return [
            each["LifeCycleState"] for each in efs.describe_mount_targets(FileSystemId=files)["MountTargets"]
        ]

    assert states() == ["creating"]
    amazon.clock.advance(91)
    assert states() == ["available"]
    assert refusal(client("ec2").delete_subnet, SubnetId=there["subnets"][0])[0] == "DependencyViolation"
    efs.delete_mount_target(MountTargetId=target)
    assert refusal(efs.delete_file_system, FileSystemId=files)[0] == "FileSystemInUse"
    amazon.clock.advance(46)
    efs.delete_file_system(FileSystemId=files)


def test_a_clock_that_is_wrong_is_told_in_each_service_s_own_words(amazon):
    amazon.faults.skew = timedelta(minutes=10)
    assert refusal(client("eks").list_clusters)[0] == "InvalidSignatureException"
    assert refusal(client("iam").list_roles)[0] == "SignatureDoesNotMatch"
    assert refusal(client("ec2").describe_vpcs) == ("RequestExpired", "Request has expired.")
