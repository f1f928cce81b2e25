"""Which actions the kit needs at AWS, and whether these credentials may do them, by IAM's own simulation."""

import json
from collections.abc import Iterable

from clouds.aws.session import AwsSession
from clouds.cluster_preflight import failed, warn
from kitlib.clusters.checks import Check, ok
from kitlib.errors import KitError

# All that creating, listing, extending and deleting a cluster asks for; a test compares it with what a whole
# life of a cluster really asks of the tests' server.
ACTIONS = {
    "codebuild": """
        BatchGetBuilds BatchGetProjects CreateProject DeleteProject StartBuild StopBuild
        UpdateProject
    """,
    "ec2": """
        AllocateAddress AssociateRouteTable AttachInternetGateway AuthorizeSecurityGroupIngress
        CreateInternetGateway CreateLaunchTemplate CreateNatGateway CreateRoute CreateRouteTable
        CreateSecurityGroup CreateSubnet CreateTags CreateVpc DeleteInternetGateway
        DeleteLaunchTemplate DeleteNatGateway DeleteNetworkInterface DeleteRouteTable
        DeleteSecurityGroup DeleteSubnet DeleteVolume DeleteVpc DescribeAddresses
        DescribeAvailabilityZones DescribeInstanceTypeOfferings DescribeInstanceTypes
        DescribeInstances DescribeInternetGateways DescribeLaunchTemplateVersions
        DescribeLaunchTemplates DescribeNatGateways DescribeNetworkInterfaces DescribeRegions
        DescribeRouteTables DescribeSecurityGroups DescribeSpotPriceHistory DescribeSubnets
        DescribeVolumes DescribeVpcs DetachInternetGateway DisassociateRouteTable
        ModifySubnetAttribute ModifyVpcAttribute ReleaseAddress RevokeSecurityGroupIngress
        RunInstances
    """,
    "ecr": """
        BatchCheckLayerAvailability CompleteLayerUpload CreateRepository DeleteRepository
        DescribeImages DescribeRepositories GetAuthorizationToken InitiateLayerUpload
        ListTagsForResource PutImage TagResource UploadLayerPart
    """,
    "eks": """
        AssociateAccessPolicy CreateAccessEntry CreateAddon CreateCluster CreateNodegroup
        CreatePodIdentityAssociation DeleteAddon DeleteCluster DeleteNodegroup
        DeletePodIdentityAssociation DescribeAccessEntry DescribeAddon DescribeCluster
        DescribeClusterVersions DescribeNodegroup DescribePodIdentityAssociation
        ListAssociatedAccessPolicies ListClusters ListPodIdentityAssociations TagResource
        UpdateNodegroupConfig
    """,
    "elasticfilesystem": """
        CreateFileSystem CreateMountTarget DeleteFileSystem DeleteMountTarget DescribeFileSystems
        DescribeMountTargets TagResource
    """,
    "elasticloadbalancing": """
        DeleteLoadBalancer DeleteTargetGroup DescribeLoadBalancers DescribeTags DescribeTargetGroups
    """,
    "iam": """
        AttachRolePolicy CreateRole CreateServiceLinkedRole DeleteRole DeleteRolePolicy
        DetachRolePolicy GetRole GetRolePolicy ListAttachedRolePolicies ListRoleTags ListRoles
        PassRole PutRolePolicy TagRole
    """,
    "logs": """
        CreateLogGroup DeleteLogGroup DescribeLogGroups GetLogEvents ListTagsForResource
        PutRetentionPolicy TagResource
    """,
    "s3": """
        CreateBucket DeleteBucket DeleteObject DeleteObjectVersion GetBucketTagging GetObject
        ListBucket ListBucketVersions PutBucketTagging PutObject
    """,
    "scheduler": """
        CreateSchedule CreateScheduleGroup DeleteSchedule DeleteScheduleGroup GetSchedule
        GetScheduleGroup ListScheduleGroups ListTagsForResource TagResource UpdateSchedule
    """,
    "tag": "GetResources",
}
WHOLE = "docs/eks.md has the whole policy"


def needed() -> list[str]:
    """Return the actions as policies write them: ``eks:CreateCluster``."""
    return [f"{service}:{action}" for service, actions in ACTIONS.items() for action in actions.split()]


def policy(actions: Iterable[str]) -> str:
    """Return a statement that allows actions, as JSON."""
    return json.dumps({"Effect": "Allow", "Action": sorted(actions), "Resource": "*"})


def check(session: AwsSession) -> Check:
    """Check whether the caller may do all of it.

    A simulation knows the caller's policies, the boundary and the organisation's, but neither what a
    resource's own policy says nor conditions that depend on the request.
    """
    name = "permissions"
    who = session.identity["Arn"]
    if who.endswith(":root"):
        return warn(
            name, "these are the credentials of the account's root user, who may do everything", "take a role"
        )
    if ":federated-user/" in who:
        return warn(name, "what a federated user may do cannot be simulated", WHOLE)
    try:
        refused = _refused(session, _principal(session, who))
    except KitError as error:
        return warn(
            name,
            f"they could not be looked at: {error.what}",
            f"see that they cover all that is needed: {WHOLE}",
        )
    if refused:
        denied = [each for each, decision in refused.items() if decision == "explicitDeny"]
        words = f"{who} may not do {', '.join(sorted(refused))}"
        if denied:
            words += f"; of these, a policy denies {', '.join(sorted(denied))}, which no permission outweighs"
        return failed(name, words, f"have this added to their policy: {policy(refused)}; {WHOLE}")
    return ok(name, f"{who} may do all {len(needed())} actions")


def _refused(session: AwsSession, principal: str) -> dict[str, str]:
    """Return the decision on each action that is not allowed."""
    every = session.every(
        "iam",
        "simulate_principal_policy",
        "EvaluationResults",
        PolicySourceArn=principal,
        ActionNames=needed(),
    )
    return {
        each["EvalActionName"]: each["EvalDecision"] for each in every if each["EvalDecision"] != "allowed"
    }


def _principal(session: AwsSession, who: str) -> str:
    if ":assumed-role/" not in who:
        return who
    role = who.split("/")[1]
    return session.call("iam", "get_role", RoleName=role)["Role"]["Arn"]
