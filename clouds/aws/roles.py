"""The IAM roles of a cluster: what the control plane, the machines, the storage driver, the pods and the
schedules may do. All are under the path ``/trainyard/``.

Where AWS keeps a policy of exactly what a role needs, that one is attached; the kit's own are for one bucket
and one cluster.
"""

import json
from collections.abc import Mapping
from datetime import datetime

from clouds.aws.plan import PATH, AwsResource, EksPlan, as_dict, as_list
from clouds.aws.session import AwsSession
from clouds.reconciler.resource import ABSENT, ResourceState, ResourceStatus
from clouds.tags import read

INLINE = "trainyard"
EXISTS = {"EntityAlreadyExists"}


class Role(AwsResource):
    """A role: who may take it, and what it allows.

    Args:
        plan: The cluster.
        part: The end of its name: ``nodes``.
        trust: The statement on who may take it, without its effect.
        managed: Names of AWS's own policies.
        statements: The kit's own.
    """

    kind = "AWS::IAM::Role"
    expected = 2.0

    def __init__(
        self,
        plan: EksPlan,
        part: str,
        trust: Mapping,
        *,
        managed: tuple[str, ...] = (),
        statements: tuple[Mapping, ...] = (),
    ) -> None:
        super().__init__(plan, f"role {part}")
        self.role, self.trust, self.statements = plan.role(part), policy(trust), statements
        self.managed = [f"arn:{plan.session.partition}:iam::aws:policy/{each}" for each in managed]

    @property
    def arn(self) -> str:
        """Its name in all of AWS, whether it is there or not."""
        return self.plan.arn("iam", f"role{PATH}{self.role}", regional=False)

    def describe(self) -> ResourceStatus:
        found = self.session.find("iam", "get_role", RoleName=self.role)
        if found is None:
            return ABSENT
        tags = as_dict(found["Role"].get("Tags"))
        if not self.is_ours(tags):
            return ABSENT
        whole = set(self.managed) <= set(self._attached()) and (not self.statements or self._inline())
        return self.seen(
            ResourceState.READY if whole else ResourceState.PARTIAL, found["Role"]["Arn"], tags=tags
        )

    def create(self) -> None:
        self.session.call(
            "iam",
            "create_role",
            fine=EXISTS,
            Path=PATH,
            RoleName=self.role,
            AssumeRolePolicyDocument=self.trust,
            Description=f"{self.name} of the Trainyard cluster {self.plan.cluster}",
            Tags=as_list(self.written()),
        )
        for each in self.managed:
            self.session.call("iam", "attach_role_policy", RoleName=self.role, PolicyArn=each)
        if self.statements:
            self.session.call(
                "iam",
                "put_role_policy",
                RoleName=self.role,
                PolicyName=INLINE,
                PolicyDocument=policy(*self.statements),
            )

    def delete(self) -> None:
        found = self.session.find("iam", "get_role", RoleName=self.role)
        if found is None or not self.is_ours(as_dict(found["Role"].get("Tags"))):
            return
        for each in self._attached():
            self.session.find("iam", "detach_role_policy", RoleName=self.role, PolicyArn=each)
        if self._inline():
            self.session.find("iam", "delete_role_policy", RoleName=self.role, PolicyName=INLINE)
        self.session.find("iam", "delete_role", RoleName=self.role)

    def created(self) -> datetime | None:
        """Time of creation; None if it is not there."""
        found = self.session.find("iam", "get_role", RoleName=self.role)
        return None if found is None else found["Role"]["CreateDate"]

    def mark(self, tags: Mapping[str, str]) -> None:
        self.session.find("iam", "tag_role", RoleName=self.role, Tags=as_list(tags))

    def _attached(self) -> list[str]:
        every = self.session.every(
            "iam", "list_attached_role_policies", "AttachedPolicies", RoleName=self.role
        )
        return [each["PolicyArn"] for each in every]

    def _inline(self) -> bool:
        found = self.session.find("iam", "get_role_policy", RoleName=self.role, PolicyName=INLINE)
        return found is not None


def policy(*statements: Mapping) -> str:
    """Return a policy that allows what the statements say."""
    return json.dumps(
        {"Version": "2012-10-17", "Statement": [{"Effect": "Allow"} | dict(each) for each in statements]}
    )


def roles(plan: EksPlan) -> dict[str, Role]:
    """Return the roles of a cluster, by the ends of their names."""
    return {
        "cluster": Role(plan, "cluster", trusts("eks"), managed=("AmazonEKSClusterPolicy",)),
        "nodes": Role(
            plan,
            "nodes",
            trusts("ec2"),
            managed=(
                "AmazonEKSWorkerNodePolicy",
                "AmazonEKS_CNI_Policy",
                "AmazonEC2ContainerRegistryPullOnly",
            ),
        ),
        "efs": Role(plan, "efs", _pods(plan), managed=("service-role/AmazonEFSCSIDriverPolicy",)),
        "pods": Role(plan, "pods", _pods(plan), statements=_reading(plan)),
        "expiry": Role(plan, "expiry", _schedules(plan), statements=_deleting(plan)),
    }


def homes(session: AwsSession) -> set[tuple[str, str]]:
    """Return the clusters of the account of which there is a role, each with its region."""
    found = set()
    for each in session.every("iam", "list_roles", "Roles", PathPrefix=PATH):
        told = session.find("iam", "list_role_tags", RoleName=each["RoleName"]) or {}
        tags = read(as_dict(told.get("Tags")))
        begins = f"trainyard-{tags.cluster}-" if tags else ""
        if tags and tags.cluster and each["RoleName"].startswith(begins):
            region = each["RoleName"].removeprefix(begins).rpartition("-")[0]
            found.add((tags.cluster, region))
    return found


def trusts(service: str) -> dict:
    """Return the statement that lets one of AWS's services take a role."""
    return {"Action": "sts:AssumeRole", "Principal": {"Service": f"{service}.amazonaws.com"}}


def _pods(plan: EksPlan) -> dict:
    mine = plan.arn("eks", f"cluster/{plan.cluster}")
    return trusts("pods.eks") | {
        "Action": ["sts:AssumeRole", "sts:TagSession"],
        "Condition": {
            "StringEquals": {"aws:SourceAccount": plan.session.account},
            "ArnEquals": {"aws:SourceArn": mine},
        },
    }


def _schedules(plan: EksPlan) -> dict:
    group = plan.arn("scheduler", f"schedule-group/trainyard-{plan.cluster}")
    return trusts("scheduler") | {
        "Condition": {
            "StringEquals": {"aws:SourceAccount": plan.session.account, "aws:SourceArn": group},
        }
    }


def _reading(plan: EksPlan) -> tuple[Mapping, ...]:
    bucket = f"arn:{plan.session.partition}:s3:::{plan.bucket}"
    return (
        {"Action": ["s3:ListBucket", "s3:GetBucketLocation"], "Resource": bucket},
        {"Action": "s3:GetObject", "Resource": f"{bucket}/*"},
    )


def _deleting(plan: EksPlan) -> tuple[Mapping, ...]:
    return (
        {
            "Action": "eks:DeleteNodegroup",
            "Resource": plan.arn("eks", f"nodegroup/{plan.cluster}/*/*"),
        },
        {"Action": "eks:DeleteCluster", "Resource": plan.arn("eks", f"cluster/{plan.cluster}")},
    )
