"""AWS's own resource schemas, and a linter of IAM policies, judge the templates of EKS clusters."""

import ast
import importlib.util
import json
import re
import sys
from email import message_from_string
from pathlib import Path
from types import SimpleNamespace

import iam_policy
import pytest
import yaml
from click.testing import CliRunner

from kitlib import config
from kitlib.k8s import manifests
from trainyard_kit.cli.main import main
from trainyard_kit.clouds.eks.plan import EksPlan
from trainyard_kit.clouds.eks.templates import template
from trainyard_kit.clouds.spec import Machines
from trainyard_kit.clouds.tags import Tags

from .aws import resources

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "trainyard_kit" / "clouds" / "eks"
TEMPLATES = ("cluster.yaml", "nodes.yaml", "end.yaml")
REGIONS = ["us-east-1", "us-west-2", "eu-central-1", "ap-southeast-2", "sa-east-1", "us-gov-west-1"]


def text(name: str) -> str:
    return (FOLDER / name).read_text(encoding="utf-8")


def loads(template: str) -> dict:
    from cfnlint.decode.cfn_yaml import loads  # with sympy: not where tests are only collected

    return loads(template)


def lint(template: str) -> list[str]:
    from cfnlint import api

    return [f"{match.rule.id} {match.message}" for match in api.lint(template, regions=REGIONS)]


@pytest.fixture(scope="module")
def parliament():
    """The linter; it finds a file of its own by a module that setuptools no longer brings."""

    def filename(package: str, name: str) -> str:
        return str(Path(importlib.util.find_spec(package).origin).with_name(name))

    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(sys.modules, "pkg_resources", SimpleNamespace(resource_filename=filename))
        import parliament

        yield parliament


@pytest.mark.parametrize("name", TEMPLATES)
def test_a_template_is_clean_by_the_schemas_of_several_regions(name):
    assert lint(text(name)) == []


@pytest.mark.parametrize("adapters", [range(2), range(4), range(32), range(1, 17)])  # p4d, p5, p6-b300
def test_each_network_card_gets_a_fabric_adapter_of_its_own(adapters):
    """https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/efa-acc-inst-types.html"""
    written = template("nodes", {}, adapters)
    assert lint(written) == [] and len(written.encode()) < 51_200
    patched, plain = json.loads(written), loads(text("nodes.yaml"))
    data = patched["Resources"]["LaunchTemplate"]["Properties"]["LaunchTemplateData"]
    cards = data["NetworkInterfaces"]["Fn::If"][1]
    assert [(card.get("NetworkCardIndex", 0), card["DeviceIndex"]) for card in cards] == [
        (card, min(card, 1)) for card in range(adapters.stop)
    ]
    first = "efa" if 0 in adapters else "interface"
    assert [card["InterfaceType"] for card in cards] == [first, *["efa"] * (adapters.stop - 1)]
    data["NetworkInterfaces"]["Fn::If"][1] = [cards[0] | {"InterfaceType": "efa"}]
    assert patched == json.loads(json.dumps(plain))


def test_training_nodes_pull_images_in_parallel_to_disks_that_are_fast_enough():
    """https://awslabs.github.io/amazon-eks-ami/nodeadm; it ignores the gate on the system's two cores."""
    launch = loads(text("nodes.yaml"))["Resources"]["LaunchTemplate"]["Properties"]["LaunchTemplateData"]
    _, part = message_from_string(launch["UserData"]["Fn::Base64"]).walk()
    assert part.get_content_type() == "application/node.eks.aws"
    config = yaml.safe_load(part.get_payload())
    assert (config["apiVersion"], config["kind"]) == ("node.eks.aws/v1alpha1", "NodeConfig")
    assert config["spec"] == {"featureGates": {"FastImagePull": True}}
    disk = launch["BlockDeviceMappings"][0]["Ebs"]
    assert disk["VolumeType"] == "gp3" and disk["Throughput"]["Fn::If"] == ["System", 125, 600]


def test_images_and_data_come_from_s3_without_the_price_of_the_nat_gateway():
    endpoint = loads(text("cluster.yaml"))["Resources"]["S3Endpoint"]
    properties = endpoint["Properties"]
    assert properties["VpcEndpointType"] == "Gateway" and endpoint["Condition"] == "OwnNetwork"
    assert properties["ServiceName"] == {"Fn::Sub": "com.amazonaws.${AWS::Region}.s3"}
    public, private = properties["RouteTableIds"]
    assert public == {"Ref": "PublicRouteTable"}
    assert private["Fn::If"][:2] == ["Private", {"Ref": "PrivateRouteTable"}]


PATCH = {"Parameters": {"PermissionsBoundary": {"Default": "arn:aws:iam::123456789012:policy/limit"}}}


def test_each_template_fits_in_one_request_also_with_a_patch_that_the_linter_takes():
    assert all(len(text(name).encode()) < 51_200 for name in TEMPLATES)
    patched = template("cluster", PATCH)
    assert lint(patched) == [] and len(patched.encode()) < 51_200
    assert json.loads(patched)["Parameters"]["PermissionsBoundary"]["Default"].endswith("policy/limit")
    assert template("cluster", {}) == text("cluster.yaml")
    end = EksPlan(Tags("lab", "", ""), Machines("", 0)).template("end")  # with the role's policy
    assert len(end.encode()) < 51_200 and "eks:CreateCluster" in end
    assert {words[:5] for words in lint(end)} == {"W3037"}  # AWS's schemas name actions that are none


@pytest.mark.parametrize("name", TEMPLATES)
def test_the_terminal_prints_a_template(name):
    result = CliRunner().invoke(main, ["cluster", "template", "eks", name.removesuffix(".yaml")])
    assert result.exit_code == 0 and result.output == text(name)


def documents(parsed: object):
    """Find the permission policies in a template; what takes a role has none of its own resources."""
    if isinstance(parsed, dict):
        for key, value in parsed.items():
            if key == "PolicyDocument":
                yield value
            else:
                yield from documents(value)
    elif isinstance(parsed, list):
        for item in parsed:
            yield from documents(item)


def plain(value: object) -> object:
    """Replace references of CloudFormation by ARNs of the right form."""
    if isinstance(value, list):
        return [plain(item) for item in value]
    if not isinstance(value, dict):
        return value
    if value == {"Ref": "ClusterName"}:
        return "lab"
    if "Fn::GetAtt" in value:
        name = value["Fn::GetAtt"][0]
        logs = "arn:aws:logs:us-east-1:123456789012:log-group:/aws/eks/lab/cluster:*"
        return {"Bucket": "arn:aws:s3:::trainyard-lab", "Log": logs}[name]
    if "Fn::Sub" in value:
        words = value["Fn::Sub"].replace("${Bucket.Arn}", "arn:aws:s3:::trainyard-lab")
        parts = {"Partition": "aws", "Region": "us-east-1", "AccountId": "123456789012"}
        words = re.sub(r"\$\{AWS::(\w+)\}", lambda match: parts[match[1]], words)
        return words.replace("${ClusterName}", "lab")
    return {key: plain(item) for key, item in value.items()}


def test_a_linter_of_policies_finds_nothing_in_the_templates(parliament):
    policies = [plain(document) for name in TEMPLATES for document in documents(loads(text(name)))]
    assert len(policies) == 3
    for policy in policies:
        assert list(map(str, parliament.analyze_policy_string(json.dumps(policy)).findings)) == []


@pytest.mark.parametrize("whose", ["stack", "user"])
def test_a_linter_of_policies_finds_only_actions_that_are_newer_than_itself(parliament, whose):
    policy = json.loads(text("policy.json"))[whose]
    findings = parliament.analyze_policy_string(json.dumps(policy)).findings
    serious = [finding for finding in findings if finding.issue not in {"UNKNOWN_ACTION", "RESOURCE_STAR"}]
    assert [str(finding) for finding in serious] == []


def test_the_policies_are_those_that_the_schemas_and_the_driver_ask_for():
    for path, expected in iam_policy.written().items():
        assert path.read_text(encoding="utf-8") == expected, f"{path.name}: run tools/iam_policy.py"


@pytest.mark.parametrize("whose", ["stack", "user"])
def test_a_policy_allows_what_aws_checks_beside_its_actions(whose):
    statements = json.loads(text("policy.json"))[whose]["Statement"]
    allowed = {action for rule in statements for action in rule["Action"]}
    assert iam_policy.with_dependent_actions(allowed) == allowed
    assert {"scheduler:DeleteSchedule", "cloudformation:ListStacks"} <= allowed or whose == "stack"


def test_the_policy_is_derived_from_each_request_of_the_driver():
    """Requests whose names come from elsewhere: of these, the tables above them have the pairs."""
    unnamed = {
        f"{path.name}: {ast.unparse(node.func)}({', '.join(map(ast.unparse, node.args))})"
        for path in (ROOT / "trainyard_kit").rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Call)
        and ast.unparse(node.func).endswith(("session.call", "session.paginate", "session.find", "_client"))
        and path.parent.name != "gke"
        and not all(isinstance(word, ast.Constant) for word in node.args[:2])
    }
    assert unnamed == {
        "orphans.py: session.find(service, operation)",
        "preflight.py: session.paginate(owner, operation, key)",
        "orphans.py: session.paginate(service, listing, key)",
    }


@pytest.mark.parametrize(
    ("service", "method", "actions"),
    [
        ("s3", "list_object_versions", {"s3:ListBucketVersions"}),
        ("s3", "list_buckets", {"s3:ListAllMyBuckets"}),
        ("s3", "head_bucket", {"s3:ListBucket"}),
        ("s3", "delete_object", {"s3:DeleteObject", "s3:DeleteObjectVersion"}),
        ("elbv2", "describe_target_groups", {"elasticloadbalancing:DescribeTargetGroups"}),
        ("service-quotas", "get_service_quota", {"servicequotas:GetServiceQuota"}),
        ("freetier", "get_account_plan_state", {"freetier:GetAccountPlanState"}),
    ],
)
def test_the_actions_of_a_request_are_those_that_the_reference_leads_to(service, method, actions):
    assert actions <= iam_policy.actions_of(service, method)


def test_an_operation_without_an_action_of_its_name_is_not_passed_over():
    with pytest.raises(AssertionError, match="s3:HeadObject"):
        iam_policy.actions_of("s3", "head_object")


def test_pods_may_do_what_the_programs_that_fetch_from_a_bucket_ask_for():
    source = (ROOT / "trainers" / "fetch_trainer.py").read_text(encoding="utf-8")
    methods = {node.attr for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Attribute)}
    methods &= set(iam_policy._methods("s3"))
    role = loads(text("cluster.yaml"))["Resources"]["PodRole"]["Properties"]["Policies"][0]
    allowed = {action for rule in role["PolicyDocument"]["Statement"] for action in rule["Action"]}
    assert methods == {"get_object"}
    needed = set().union(*(iam_policy.actions_of("s3", method) for method in methods))
    assert {action for action in needed if not action.endswith("Version")} <= allowed


def test_the_autoscaler_may_change_only_the_pools_of_its_cluster():
    """https://github.com/kubernetes/autoscaler/blob/master/cluster-autoscaler/cloudprovider/aws/README.md"""
    template = loads(text("cluster.yaml"))["Resources"]
    policy = template["AutoscalerRole"]["Properties"]["Policies"][0]["PolicyDocument"]["Statement"]
    changes = {action for rule in policy for action in rule["Action"] if "Describe" not in action}
    conditional = [rule for rule in policy if "Condition" in rule]
    assert changes - {"ec2:GetInstanceTypesFromInstanceRequirements"} == set(conditional[0]["Action"])
    assert conditional[0]["Condition"] == {
        "StringEquals": {"aws:ResourceTag/eks:cluster-name": {"Ref": "ClusterName"}}
    }
    items = {item["kind"]: item for item in manifests.read(config.manifests("eks", "autoscaler.yaml"))}
    identity = template["AutoscalerIdentity"]["Properties"]
    account = items["ServiceAccount"]["metadata"]
    assert (identity["Namespace"], identity["ServiceAccount"]) == (account["namespace"], account["name"])
    pod = items["Deployment"]["spec"]["template"]["spec"]
    flags = dict(flag.removeprefix("--").split("=") for flag in pod["containers"][0]["args"])
    for kind in ("scale-down-utilization-threshold", "scale-down-gpu-utilization-threshold"):
        assert 0 < float(flags[kind]) < 0.01  # a pod that asks for 20m of two cores keeps its node
    assert flags["ignore-daemonsets-utilization"] == "true"
    assert pod["nodeSelector"] == {"trainyard/pool": "system"}
    assert "@sha256:" in pod["containers"][0]["image"]


def test_the_stacks_role_may_do_all_that_a_handler_lists():
    rules = json.loads(text("policy.json"))["stack"]["Statement"]
    allowed = {action for rule in rules for action in rule["Action"]} | {"s3:REST.PUT.OBJECT"}  # of S3's logs
    listed = {}
    for kind in sorted(set(re.findall(r"Type: (AWS::\S+)", text("cluster.yaml") + text("nodes.yaml")))):
        schema = resources.schema(kind.removeprefix("AWS::"))
        for verb, handler in schema.get("handlers", {}).items():
            listed[kind, verb] = set(handler.get("permissions", []))
        listed[kind, "tags"] = set(schema.get("tagging", {}).get("permissions", []))
    assert len(listed) > 50
    assert {place: actions - allowed for place, actions in listed.items() if actions - allowed} == {}


def test_the_policies_fit_in_a_role_and_in_a_managed_policy():
    """https://docs.aws.amazon.com/IAM/latest/UserGuide/reference_iam-quotas.html"""
    stack, user = (re.sub(r"\s", "", json.dumps(item)) for item in json.loads(text("policy.json")).values())
    assert len(stack) < 10_240 and len(user) < 6_144
