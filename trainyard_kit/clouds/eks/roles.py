"""Roles outside the stacks: that of CloudFormation, and that of the schedules which end the cluster.

Both are needed to delete the stacks, so they are created before them and deleted after them.
"""

import json
import re
from collections.abc import Iterator, Mapping
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

from trainyard_kit.clouds import tags
from trainyard_kit.clouds.eks.client_errors import foreign
from trainyard_kit.clouds.eks.session import AwsSession, as_dict, as_list, known_regions

PATH, INLINE = "/trainyard/", "trainyard"
STACK, EXPIRY = "stack", "expiry"


def create_stack_role(session: AwsSession, owner_tags: tags.Tags, *, boundary: str = "") -> str:
    """Create the service role of a cluster's stacks, or find it; return its ARN."""
    policies = json.loads(Path(__file__).with_name("policy.json").read_text(encoding="utf-8"))
    allowed = json.loads(json.dumps(policies["stack"]).replace("arn:aws:", f"arn:{session.partition}:"))
    return create_role(session, owner_tags, STACK, "cloudformation", allowed["Statement"], boundary=boundary)


def create_role(
    session: AwsSession,
    owner_tags: tags.Tags,
    part: str,
    service: str,
    statements: list[Mapping[str, Any]],
    *,
    condition: Mapping[str, Any] | None = None,
    boundary: str = "",
) -> str:
    """Create a role, or take over the one that is there; return its ARN."""
    name = role_name(session, owner_tags.cluster, part)
    trust = {
        "Effect": "Allow",
        "Action": "sts:AssumeRole",
        "Principal": {"Service": f"{service}.amazonaws.com"},
    }
    trust |= {"Condition": condition} if condition else {}
    role = session.call(
        "iam",
        "create_role",
        fine=("EntityAlreadyExists",),
        Path=PATH,
        RoleName=name,
        AssumeRolePolicyDocument=_policy([trust]),
        Description=f"{part} of the Trainyard cluster {owner_tags.cluster}",
        Tags=as_list(owner_tags.amazon()),
        **({"PermissionsBoundary": boundary} if boundary else {}),
    )
    if role is None and not _is_ours(session, name):
        raise foreign(f"role {name}")
    session.call(
        "iam", "put_role_policy", RoleName=name, PolicyName=INLINE, PolicyDocument=_policy(statements)
    )
    return session.arn("iam", f"role{PATH}{name}")


def delete_role(session: AwsSession, name: str) -> None:
    """Delete a role, if it is there and the kit's."""
    if _is_ours(session, name):
        session.find("iam", "delete_role_policy", RoleName=name, PolicyName=INLINE)
        session.find("iam", "delete_role", RoleName=name)


def find_roles(session: AwsSession, cluster: str | None = None) -> Iterator[tuple[tags.Tags, str]]:
    """Find the roles outside the stacks, of one cluster or of all in the region, by their tags."""
    for name in _names(session):
        cluster_pattern = "*" if cluster is None else cluster
        if not any(fnmatch(name, role_name(session, cluster_pattern, part)) for part in (STACK, EXPIRY)):
            continue
        answer = session.find("iam", "list_role_tags", RoleName=name)
        role_tags = tags.read(as_dict(answer["Tags"])) if answer else None
        if role_tags and role_tags.cluster:
            yield role_tags, name


def regions(session: AwsSession) -> set[str]:
    """Find the regions of the account in which there are clusters of the kit: roles are in no region."""
    pattern = re.compile(rf"trainyard-.+-({'|'.join(known_regions())})-[a-z]+")
    matches = map(pattern.fullmatch, _names(session))
    return {session.region, *(match[1] for match in matches if match)}


def role_name(session: AwsSession, cluster: str, part: str) -> str:
    """Name a role: roles are one account's, in all regions."""
    return f"trainyard-{cluster}-{session.region}-{part}"


def _names(session: AwsSession) -> list[str]:
    return [role["RoleName"] for role in session.every("iam", "list_roles", "Roles", PathPrefix=PATH)]


def _is_ours(session: AwsSession, name: str) -> bool:
    answer = session.find("iam", "list_role_tags", RoleName=name)
    return answer is not None and tags.read(as_dict(answer["Tags"])) is not None


def _policy(statements: list[Mapping[str, Any]]) -> str:
    return json.dumps({"Version": "2012-10-17", "Statement": statements})
