"""Checks of what may prevent creating an EKS cluster."""

from collections.abc import Iterable
from datetime import timedelta
from functools import partial

from trainyard_kit.checks import Check, Probe, failed, ok, trainer_image, warn
from trainyard_kit.clouds import tags
from trainyard_kit.clouds.cloud_errors import classify
from trainyard_kit.clouds.eks import machines
from trainyard_kit.clouds.eks.create import ROLES, role_name
from trainyard_kit.clouds.eks.plan import SYSTEM_MACHINE, EksPlan
from trainyard_kit.clouds.eks.session import AwsSession
from trainyard_kit.clouds.eks.templates import policies

# Quotas of which a cluster uses one: service, code, and the request that lists what is in use.
# https://docs.aws.amazon.com/general/latest/gr/vpc-service.html
NETWORK_QUOTAS = {
    "VPCs": ("vpc", "L-F678F1CE", ("ec2", "describe_vpcs", "Vpcs")),
    "internet gateways": ("vpc", "L-A4707A72", ("ec2", "describe_internet_gateways", "InternetGateways")),
    "Elastic IP addresses": ("ec2", "L-0263D0A3", ("ec2", "describe_addresses", "Addresses")),
    "EKS clusters": ("eks", "L-1194D53C", ("eks", "list_clusters", "clusters")),
}
SPOT_ROLE = "AWSServiceRoleForEC2Spot"
PAGE = "docs/eks.md has the whole policy"


def probes(session: AwsSession, name: str, plan: EksPlan | None) -> list[Probe]:
    """List the checks; without a plan only those that need none."""
    first = [
        Probe("credentials", partial(credentials, session), blocking=True),
        Probe("account plan", partial(account_plan, session, plan), required=False),
        Probe("name", partial(name_available, session, name)),
        Probe("permissions", partial(permissions, session, name), required=False),
        Probe("trainer image", trainer_image, required=False),
    ]
    if plan is None:
        return first
    requests = machines.vcpu_requests(plan.machines, plan.machines.count, SYSTEM_MACHINE)
    return [
        *first,
        *([Probe("capacity block", partial(capacity_block, plan, plan.block))] if plan.block else ()),
        Probe("version", partial(version, session, plan.version)),
        Probe("instance types", partial(types, session, plan)),
        Probe("quotas of the network", partial(network_quotas, session, name, plan), required=False),
        *([Probe("spot role", partial(spot_role, session), required=False)] if plan.machines.spot else ()),
        Probe("quotas", partial(machines.check_vcpus, session, name, requests), required=False),
    ]


def credentials(session: AwsSession) -> Check:
    """Check which credentials are used, and their identity."""
    arn = session.identity["Arn"]
    method, profile = session.credentials.method, f', profile "{session.profile}"' if session.profile else ""
    if arn.endswith(":root"):
        text = f"{method}{profile}: the root user, which cannot be given access to a cluster"
        return failed("credentials", text, "sign in as an IAM user or role: aws configure sso")
    return ok("credentials", f"{method}{profile}: {arn}")


def account_plan(session: AwsSession, plan: EksPlan | None) -> Check:
    """Check whether the account's plan allows the machines; accounts from before July 2025 have none.

    https://docs.aws.amazon.com/awsaccountbilling/latest/aboutv2/free-tier-plans.html
    """
    about = "account plan"
    if session.partition != "aws":
        return ok(about, "this partition has none")
    answer = session.within("us-east-1").find("freetier", "get_account_plan_state")  # its only region
    kind, status = (answer or {}).get("accountPlanType"), (answer or {}).get("accountPlanStatus")
    upgrade = classify("amazon", "free plan").fix
    if kind != "FREE":
        return ok(about, "paid" if answer else "none: the account is older than plans")
    if status != "ACTIVE":
        text = f"the account's free plan is {str(status).lower().replace('_', ' ')}"
        return failed(about, f"{text}: it cannot start machines", upgrade)
    names = {SYSTEM_MACHINE, *((plan.machines.type, *plan.machines.alternative_types) if plan else ())}
    types = session.call("ec2", "describe_instance_types", InstanceTypes=sorted(names))["InstanceTypes"]
    excluded = [type_["InstanceType"] for type_ in types if not type_.get("FreeTierEligible")]
    if not excluded:
        return ok(about, "free, with these machines")
    return failed(about, f"the free plan does not include {' and '.join(excluded)}", upgrade)


def name_available(session: AwsSession, name: str) -> Check:
    answer = session.find("eks", "describe_cluster", name=name)
    if answer is None:
        return ok("name", f"{name} is available")
    owner_tags = tags.read(answer["cluster"].get("tags") or {})
    if owner_tags is None:
        text = f'there is an EKS cluster "{name}" in {session.region} that is not the kit\'s'
        return failed("name", text, f'`name="{name}-2"`')
    return ok("name", f"{name} exists already, created by {owner_tags.owner}")


def network_quotas(session: AwsSession, name: str, plan: EksPlan) -> Iterable[Check]:
    """Check each quota of which a cluster uses one: new accounts have five VPCs and five addresses."""
    if session.find("eks", "describe_cluster", name=name):
        return
    needed = {"EKS clusters", *(() if plan.patched("ExistingVpc") else ("VPCs", "internet gateways"))}
    needed |= {"Elastic IP addresses"} if plan.private else set()
    for what, (service, code, (owner, operation, key)) in NETWORK_QUOTAS.items():
        if what in needed:
            used = len(list(session.paginate(owner, operation, key)))
            other = "" if what == "EKS clusters" else "; or delete one; or use your own VPC: docs/eks.md"
            yield machines.check_quota(session, f"quota of {what}", service, code, 1, used, other)


def spot_role(session: AwsSession) -> Check:
    if session.find("iam", "get_role", RoleName=SPOT_ROLE):
        return ok("spot role", SPOT_ROLE)
    row = classify("amazon", "ServiceLinkedRoleCreationNotPermitted")
    return warn("spot role", f"{row.what}, {SPOT_ROLE}", row.fix)


def version(session: AwsSession, requested: str) -> Check:
    """Check whether EKS has the version in standard support; extended support costs six times as much."""
    versions = session.paginate(
        "eks", "describe_cluster_versions", "clusterVersions", versionStatus="STANDARD_SUPPORT"
    )
    known = sorted({item["clusterVersion"] for item in versions})
    if requested not in known:
        text = f"Kubernetes {requested} is not in the standard support of EKS"
        return failed("version", text, f"set `version=` to one of: {', '.join(known)}")
    return ok("version", f"Kubernetes {requested}")


def types(session: AwsSession, plan: EksPlan) -> Iterable[Check]:
    """Check which of the cluster's zones offer the machines."""
    train, (first, second) = plan.machines, plan.zones
    names = (train.type, *train.alternative_types)
    about, gpus = f"instance type {', '.join(names)}", f", {train.gpus} GPUs each" if train.gpus else ""
    if second in machines.zones_with(session, names):
        yield ok(about, f"offered in {first}, and in {second} as a fallback{gpus}")
    else:
        text = f"offered in {first} only{gpus}: there is no fallback if it has no capacity"
        yield warn(
            about,
            text,
            " or ".join(f'`instance_type="{type_}"`' for type_ in machines.similar_types(train.type)),
        )
    if first not in machines.zones_with(session, [SYSTEM_MACHINE]):
        text = f"{first} does not offer it for the system node"
        yield failed(f"instance type {SYSTEM_MACHINE}", text, f'`zone="{second}"`')


def capacity_block(plan: EksPlan, block: machines.CapacityBlock) -> Check:
    """Check whether a Capacity Block has enough machines until the cluster expires.

    https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/capacity-blocks-how.html
    """
    about, end = f"capacity block {block.id}", block.end - timedelta(minutes=30)
    if block.free < plan.machines.count:
        text = f"{plan.machines.count} machines are needed, and {block.free} of its machines are free"
        return failed(about, text, f"`nodes={block.free}`" if block.free else "end the instances that use it")
    if plan.tags.expires and plan.tags.expires > end:
        text = f"AWS terminates its machines at {end:%Y-%m-%d %H:%M} UTC, before the cluster expires"
        return warn(about, text, "fewer hours; save checkpoints before that time")
    return ok(about, f"{block.free} {block.type} in {block.zone} until {end:%Y-%m-%d %H:%M} UTC")


def permissions(session: AwsSession, name: str) -> Check:
    """Simulate the caller's IAM policies for the actions that the kit calls.

    The simulation ignores resource policies and conditions on requests, so an action that it does not
    allow is a warning; only an explicit deny is a failure.
    """
    role = session.role_arn(f"{ROLES}{role_name(session, name)}")
    decisions: dict[str, str] = {}
    for statement in policies()["user"]["Statement"]:
        arns = {"ResourceArns": [role]} if statement["Resource"] != "*" else {}
        for result in session.paginate(
            "iam",
            "simulate_principal_policy",
            "EvaluationResults",
            PolicySourceArn=session.principal,
            ActionNames=statement["Action"],
            **arns,
        ):
            decisions[result["EvalActionName"]] = result["EvalDecision"]
    about, principal = "permissions", session.principal
    if denied := sorted(action for action, decision in decisions.items() if decision == "explicitDeny"):
        text = f"a policy denies {principal} {', '.join(denied)}, which no allow statement overrides"
        return failed(about, text, f"ask the account's administrator; {PAGE}")
    if unknown := sorted(action for action, decision in decisions.items() if decision != "allowed"):
        text = f"{principal} may lack {', '.join(unknown)}; a policy for certain ARNs may still allow it"
        return warn(about, text, f"have it added to their policy if creation is denied; {PAGE}")
    return ok(about, f"{principal} may do all {len(decisions)} actions")
