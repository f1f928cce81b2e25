"""Derive the IAM policies of EKS clusters, and write them to policy.json and docs/eks.md.

``stack`` is what CloudFormation needs to create, update and delete the templates' resources: AWS's own
resource schemas, which cfn-lint brings, list the permissions of each type. ``user`` is what the driver itself
asks for, found in its source, where service and operation stand side by side as literals.

    python tools/iam_policy.py           # writes both
    python tools/iam_policy.py --check   # exits 1 if one is out of date
"""

import ast
import json
import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
FOLDER, PAGE = ROOT / "trainyard_kit" / "clouds" / "eks", ROOT / "docs" / "eks.md"
BLOCK = re.compile(r"(?<=<!-- policy of users -->\n).*?(?=<!-- end -->)", re.DOTALL)
ROLES = "arn:aws:iam::*:role/trainyard/*"
REGION = "us-east-1"
# What the schemas leave out: CodeBuild's type has none, and that of mount targets lacks network interfaces.
# https://docs.aws.amazon.com/codebuild/latest/userguide/auth-and-access-control-permissions-reference.html
# https://docs.aws.amazon.com/efs/latest/ug/API_CreateMountTarget.html
LEFT_OUT = {
    "codebuild": "BatchGetProjects CreateProject DeleteProject UpdateProject",
    "ec2": "CreateNetworkInterface DeleteNetworkInterface DescribeSubnets ModifyNetworkInterfaceAttribute",
}
ACTION = re.compile(r"[a-z0-9-]+:[A-Za-z0-9]+")  # S3's schema names an operation of its logs as well
# Names of operations that are not names of actions.
ACTIONS = {
    "s3:HeadBucket": ["s3:ListBucket"],
    "s3:ListObjectVersions": ["s3:ListBucketVersions"],
    "s3:DeleteObjects": ["s3:DeleteObject", "s3:DeleteObjectVersion"],
}
# What a container engine does to push an image, and what a request with a role or with tags in it needs.
BESIDE = [
    *(f"ecr:{action}" for action in ("BatchCheckLayerAvailability", "BatchGetImage", "CompleteLayerUpload")),
    *(
        f"ecr:{action}"
        for action in ("GetDownloadUrlForLayer", "InitiateLayerUpload", "PutImage", "UploadLayerPart")
    ),
    *("iam:PassRole", "iam:TagRole", "cloudformation:TagResource", "ecr:TagResource", "eks:TagResource"),
]


def resource_types() -> set[str]:
    """Collect the types of the templates' resources."""
    texts = (path.read_text(encoding="utf-8") for path in FOLDER.glob("*.yaml"))
    return {
        resource
        for text in texts
        for resource in re.findall(r"^    Type: (AWS::\w+::\w+)$", text, re.MULTILINE)
    }


def of_stacks() -> set[str]:
    """Collect the actions that CloudFormation needs for the templates."""
    from cfnlint.schema import PROVIDER_SCHEMA_MANAGER

    found = {f"{service}:{word}" for service, words in LEFT_OUT.items() for word in words.split()}
    for kind in resource_types():
        schema = PROVIDER_SCHEMA_MANAGER.get_resource_schema(REGION, kind).schema
        # All that a handler lists: some ask for what no property here needs, and fail where it is denied.
        for handler in schema.get("handlers", {}).values():
            found |= set(handler.get("permissions", []))
        found |= set(schema.get("tagging", {}).get("permissions", []))
    return set(filter(ACTION.fullmatch, found))


def of_users() -> set[str]:
    """Collect the actions that the driver asks for: a service of boto3 and an operation, side by side."""
    import boto3

    session, found = boto3.Session(region_name=REGION), set(BESIDE)
    services = set(session.get_available_services())
    for path in FOLDER.glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            pair = getattr(node, "args", None) or getattr(node, "elts", None)
            pair = [getattr(node, "value", None) for node in pair[:2]] if isinstance(pair, list) else []
            if len(pair) < 2 or pair[0] not in services:
                continue
            client = session.client(pair[0])
            if operation := client.meta.method_to_api_mapping.get(pair[1]):
                action = f"{client.meta.service_model.signing_name}:{operation}"
                found |= set(ACTIONS.get(action, [action]))
    return found - {"sts:GetCallerIdentity"}  # which nobody can be denied


def policy(actions: set[str]) -> dict:
    """Write a policy that allows actions; what is about roles is limited to the kit's path."""
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
    """Build the content of both files; lines hold the actions of one service."""
    both = {"stack": policy(of_stacks()), "user": policy(of_users())}
    block = f"```json\n{_wrapped(json.dumps(both['user'], indent=2))}\n```\n"
    page = PAGE.read_text(encoding="utf-8")
    return {
        FOLDER / "policy.json": _wrapped(json.dumps(both, indent=1)) + "\n",
        PAGE: BLOCK.sub(lambda _: block, page),
    }


def _wrapped(text: str) -> str:
    """Put actions of one service beside each other."""
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
