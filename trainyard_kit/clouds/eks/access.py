"""Who and what may use a cluster beside its creator: administrators by access entries, pods by pod identity.

Both go with the cluster. https://docs.aws.amazon.com/eks/latest/userguide/access-entries.html
"""

import re
from collections.abc import Mapping

from kitlib.errors import BadInput
from trainyard_kit.clouds import tags
from trainyard_kit.clouds.eks.session import AwsSession

POLICY = "AmazonEKSClusterAdminPolicy"
EXISTS = ("ResourceInUseException",)
_PRINCIPAL = re.compile(r"arn:aws[a-z-]*:iam::\d{12}:(user|role)/[\w+=,.@/-]+")
_SESSION = re.compile(r"arn:(aws[a-z-]*):sts::(\d{12}):assumed-role/([\w+=,.@-]+)/.+")


def check_principal(arn: object) -> str:
    """Validate the ARN of a user or role that can be an administrator.

    Raises:
        BadInput: It is none; of a session, the role is named that is meant.
    """
    if isinstance(arn, str) and _PRINCIPAL.fullmatch(arn):
        return arn
    fix = '"arn:aws:iam::123456789012:role/teachers", or …:user/ada: aws sts get-caller-identity tells'
    if meant := _SESSION.fullmatch(arn) if isinstance(arn, str) else None:
        partition, account, role = meant.groups()
        fix = f'the role of the session: "arn:{partition}:iam::{account}:role/{role}", with its path if any'
    raise BadInput("this is not the ARN of a user or role of IAM", about=f"admin {arn!r}", fix=fix)


def add_admin(session: AwsSession, cluster: str, arn: str, given: Mapping[str, str]) -> None:
    """Let a user or role do all in the cluster, until its end; the tags are those of the cluster."""
    whose = {"clusterName": cluster, "principalArn": check_principal(arn)}
    session.call("eks", "create_access_entry", fine=EXISTS, tags=dict(given), **whose)
    policy = f"arn:{session.partition}:eks::aws:cluster-access-policy/{POLICY}"
    scope = {"type": "cluster"}
    session.call("eks", "associate_access_policy", policyArn=policy, accessScope=scope, **whose)


def grant_pods(session: AwsSession, given: tags.Tags, namespace: str, role: str) -> None:
    """Let the pods of a namespace's ServiceAccount ``default`` take a role."""
    session.call(
        "eks",
        "create_pod_identity_association",
        fine=EXISTS,
        clusterName=given.cluster,
        namespace=namespace,
        serviceAccount="default",
        roleArn=role,
        tags=given.amazon(),
    )


def revoke_pods(session: AwsSession, cluster: str, namespace: str) -> None:
    """Undo `grant_pods`; idempotent."""
    which = {"clusterName": cluster, "namespace": namespace, "serviceAccount": "default"}
    found = session.find("eks", "list_pod_identity_associations", **which) or {}
    for association in found.get("associations", []):
        one = {"clusterName": cluster, "associationId": association["associationId"]}
        session.find("eks", "delete_pod_identity_association", **one)
