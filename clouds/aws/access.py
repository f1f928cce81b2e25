"""Who may administer a cluster of EKS beside the one who made it: access entries, which go with the cluster.

How an entry leads to rights in Kubernetes: https://docs.aws.amazon.com/eks/latest/userguide/access-entries.html
"""

import re
from collections.abc import Mapping

from clouds.aws.plan import AwsResource, EksPlan
from clouds.reconciler.resource import ABSENT, ResourceState, ResourceStatus
from kitlib.errors import BadInput

POLICY = "AmazonEKSClusterAdminPolicy"
_PRINCIPAL = re.compile(r"arn:aws[a-z-]*:iam::\d{12}:(user|role)/[\w+=,.@/-]+")
_SESSION = re.compile(r"arn:(aws[a-z-]*):sts::(\d{12}):assumed-role/([\w+=,.@-]+)/.+")


def check_principal(arn: object) -> str:
    """Return the ARN of a user or role that can be an administrator.

    Raises:
        BadInput: It is none; of a session, the role is named that is meant.
    """
    if isinstance(arn, str) and _PRINCIPAL.fullmatch(arn):
        return arn
    meant = _SESSION.fullmatch(arn) if isinstance(arn, str) else None
    if meant:
        partition, account, role = meant.groups()
        fix = (
            f'the role that it has taken: "arn:{partition}:iam::{account}:role/{role}", with its path if any'
        )
    else:
        fix = '"arn:aws:iam::123456789012:role/teachers", or …:user/ada: aws sts get-caller-identity tells'
    raise BadInput("this is not the ARN of a user or role of IAM", about=f"admin {arn!r}", fix=fix)


class AccessEntry(AwsResource):
    """That a user or role of IAM may do all in the cluster.

    Args:
        plan: The cluster.
        arn: Of the user or role.
    """

    kind, expected = "AWS::EKS::AccessEntry", 2.0

    def __init__(self, plan: EksPlan, arn: str) -> None:
        super().__init__(plan, f"admin {arn.partition('::')[2]}", ("cluster",))
        self.arn = arn
        self.policy = f"arn:{plan.session.partition}:eks::aws:cluster-access-policy/{POLICY}"

    @property
    def whose(self) -> dict[str, str]:
        """What names the entry in requests."""
        return {"clusterName": self.plan.cluster, "principalArn": self.arn}

    def describe(self) -> ResourceStatus:
        found = self.session.find("eks", "describe_access_entry", **self.whose)
        if found is None:
            return ABSENT
        given = self.session.every(
            "eks", "list_associated_access_policies", "associatedAccessPolicies", **self.whose
        )
        whole = any(
            each["policyArn"] == self.policy and each["accessScope"]["type"] == "cluster" for each in given
        )
        entry = found["accessEntry"]
        return self.seen(
            ResourceState.READY if whole else ResourceState.PARTIAL,
            entry["accessEntryArn"],
            tags=entry.get("tags") or {},
        )

    def create(self) -> None:
        self.session.call(
            "eks", "create_access_entry", fine={"ResourceInUseException"}, tags=self.written(), **self.whose
        )
        scope = {"type": "cluster"}
        self.session.call(
            "eks", "associate_access_policy", policyArn=self.policy, accessScope=scope, **self.whose
        )

    def delete(self) -> None:
        self.session.find("eks", "delete_access_entry", **self.whose)

    def mark(self, tags: Mapping[str, str]) -> None:
        """Do nothing: it goes with the cluster."""
