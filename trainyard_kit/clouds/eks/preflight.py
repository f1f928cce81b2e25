"""What may prevent a new EKS cluster: a short list, asked before anything is created."""

from collections.abc import Iterable
from datetime import timedelta
from functools import partial

from trainyard_kit.clouds import tags
from trainyard_kit.clouds.checks import Check, Probe, failed, ok, trainer_image, warn
from trainyard_kit.clouds.cloud_errors import classify
from trainyard_kit.clouds.eks import machines
from trainyard_kit.clouds.eks.create import ROLES, role_name
from trainyard_kit.clouds.eks.plan import SYSTEM_MACHINE, EksPlan
from trainyard_kit.clouds.eks.session import AwsSession
from trainyard_kit.clouds.eks.templates import policies

# Quotas of which a new cluster takes one: service, code, and the request that lists what is taken.
# https://docs.aws.amazon.com/general/latest/gr/vpc-service.html
ONE_OF = {
    "VPCs": ("vpc", "L-F678F1CE", ("ec2", "describe_vpcs", "Vpcs")),
    "internet gateways": ("vpc", "L-A4707A72", ("ec2", "describe_internet_gateways", "InternetGateways")),
    "Elastic IP addresses": ("ec2", "L-0263D0A3", ("ec2", "describe_addresses", "Addresses")),
    "EKS clusters": ("eks", "L-1194D53C", ("eks", "list_clusters", "clusters")),
}
SPOT_ROLE = "AWSServiceRoleForEC2Spot"
PAGE = "docs/eks.md has the whole policy"


def probes(session: AwsSession, name: str, plan: EksPlan | None) -> list[Probe]:
    """List the checks; without a plan, those that need none."""
    first = [
        Probe("credentials", partial(credentials, session), stops=True),
        Probe("account plan", partial(account_plan, session, plan), needed=False),
        Probe("name", partial(free, session, name)),
        Probe("permissions", partial(permissions, session, name), needed=False),
        Probe("trainer image", trainer_image, needed=False),
    ]
    if plan is None:
        return first
    requests = machines.on_quota(plan.machines, plan.machines.count, SYSTEM_MACHINE)
    return [
        *first,
        *([Probe("capacity block", partial(capacity_block, plan, plan.block))] if plan.block else ()),
        Probe("version", partial(version, session, plan.version)),
        Probe("instance types", partial(types, session, plan)),
        Probe("quotas of the network", partial(network_quotas, session, name, plan), needed=False),
        *([Probe("spot role", partial(spot_role, session), needed=False)] if plan.machines.spot else ()),
        Probe("quotas", partial(machines.check_vcpus, session, name, requests), needed=False),
    ]


def credentials(session: AwsSession) -> Check:
    """Describe which credentials are used, and whose they are."""
    arn = session.identity["Arn"]
    method, profile = session.credentials.method, f', profile "{session.profile}"' if session.profile else ""
    if arn.endswith(":root"):
        text = f"{method}{profile}: the account's root user, which cannot be given access to a cluster"
        return failed("credentials", text, "sign in as a user or a role of IAM: aws configure sso")
    return ok("credentials", f"{method}{profile}: {arn}")


def account_plan(session: AwsSession, plan: EksPlan | None) -> Check:
    """Check whether the account's plan lets it start the machines; accounts from before July 2025 have none.

    https://docs.aws.amazon.com/awsaccountbilling/latest/aboutv2/free-tier-plans.html
    """
    about = "account plan"
    if session.partition != "aws":
        return ok(about, "there are none in this partition")
    found = session.within("us-east-1").find("freetier", "get_account_plan_state")  # which is there alone
    kind, status = (found or {}).get("accountPlanType"), (found or {}).get("accountPlanStatus")
    upgrade = classify("amazon", "free plan").fix
    if kind != "FREE":
        return ok(about, "paid" if found else "the account has none, as all older ones")
    if status != "ACTIVE":
        text = f"the account's free plan is {str(status).lower().replace('_', ' ')}"
        return failed(about, f"{text}: it starts nothing", upgrade)
    names = {SYSTEM_MACHINE, *((plan.machines.type, *plan.machines.others) if plan else ())}
    answer = session.call("ec2", "describe_instance_types", InstanceTypes=sorted(names))
    not_free = [
        type_["InstanceType"] for type_ in answer["InstanceTypes"] if not type_.get("FreeTierEligible")
    ]
    if not not_free:
        return ok(about, "free; it has these machines")
    return failed(about, f"it is the free plan, which starts no {' and no '.join(not_free)}", upgrade)


def free(session: AwsSession, name: str) -> Check:
    answer = session.find("eks", "describe_cluster", name=name)
    if answer is None:
        return ok("name", f"{name} is free")
    owner_tags = tags.read(answer["cluster"].get("tags") or {})
    if owner_tags is None:
        text = f'there is an EKS cluster "{name}" in {session.region}, and it is not the kit\'s'
        return failed("name", text, f'`name="{name}-2"`')
    return ok("name", f"{name} exists already, created by {owner_tags.owner}")


def network_quotas(session: AwsSession, name: str, plan: EksPlan) -> Iterable[Check]:
    """Check each quota of which a cluster takes one: new accounts have five VPCs and five addresses."""
    if session.find("eks", "describe_cluster", name=name):
        return
    needed = {"EKS clusters", *(() if plan.patched("ExistingVpc") else ("VPCs", "internet gateways"))}
    needed |= {"Elastic IP addresses"} if plan.private else set()
    for what, (service, code, (owner, operation, key)) in ONE_OF.items():
        if what in needed:
            used, limit = (
                len(list(session.every(owner, operation, key))),
                machines.quota(session, service, code),
            )
            text = (
                f"1 is needed; of {'an unknown limit' if limit is None else f'{limit:g}'}, {used} are taken"
            )
            about, instead = f"quota of {what}", "; or delete one; or a VPC of your own: docs/eks.md"
            if limit is not None and used + 1 > limit:
                more = machines.more_quota(session, code, used + 1, service)
                yield failed(about, text, more + ("" if what == "EKS clusters" else instead))
            else:
                yield ok(about, text)


def spot_role(session: AwsSession) -> Check:
    if session.find("iam", "get_role", RoleName=SPOT_ROLE):
        return ok("spot role", SPOT_ROLE)
    row = classify("amazon", "ServiceLinkedRoleCreationNotPermitted")
    return warn("spot role", f"{row.what}, {SPOT_ROLE}", row.fix)


def version(session: AwsSession, requested: str) -> Check:
    """Check whether EKS has the version in standard support: past it, it costs six times as much."""
    versions = session.every(
        "eks", "describe_cluster_versions", "clusterVersions", versionStatus="STANDARD_SUPPORT"
    )
    known = sorted({item["clusterVersion"] for item in versions})
    if requested not in known:
        text = f"Kubernetes {requested} is not, or no longer, in the standard support of EKS"
        return failed("version", text, f"set `version=` to one of: {', '.join(known)}")
    return ok("version", f"Kubernetes {requested}")


def types(session: AwsSession, plan: EksPlan) -> Iterable[Check]:
    """Check in which of the cluster's zones there are machines."""
    train, (first, second) = plan.machines, plan.zones
    names = (train.type, *train.others)
    about, gpus = f"instance type {', '.join(names)}", f", {train.gpus} GPUs each" if train.gpus else ""
    if second in machines.zones_with(session, names):
        yield ok(about, f"offered in {first}, and in {second} if that has none left{gpus}")
    else:
        text = f"offered in {first} alone{gpus}: when that has none left, there is no other zone"
        yield warn(about, text, f"`instance_type={' or '.join(machines.instead(train.type))}`")
    if first not in machines.zones_with(session, [SYSTEM_MACHINE]):
        yield failed(
            f"instance type {SYSTEM_MACHINE}", f"{first} has none for the system", f'`zone="{second}"`'
        )


def capacity_block(plan: EksPlan, block: machines.CapacityBlock) -> Check:
    """Check whether a Capacity Block has enough machines, for as long as the cluster lives.

    https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/capacity-blocks-how.html
    """
    about, until = f"capacity block {block.id}", block.end - timedelta(minutes=30)
    if block.free < plan.machines.count:
        text = f"{plan.machines.count} machines are needed, and {block.free} of it are free"
        return failed(about, text, f"`nodes={block.free}`" if block.free else "end the instances that use it")
    if plan.tags.expires and plan.tags.expires > until:
        text = f"AWS ends its machines at {until:%Y-%m-%d %H:%M} UTC, before the cluster's end"
        return warn(about, text, "fewer hours; save checkpoints before that time")
    return ok(about, f"{block.free} {block.type} in {block.zone} until {until:%Y-%m-%d %H:%M} UTC")


def permissions(session: AwsSession, name: str) -> Check:
    """Ask IAM's simulation whether a policy denies something that the kit calls.

    The simulation does not know policies of resources, and conditions on requests: what it does not find
    allowed is a warning; only an explicit denial fails.
    """
    role = session.arn("iam", f"role{ROLES}{role_name(session, name)}")
    decided: dict[str, str] = {}
    for statement in policies()["user"]["Statement"]:
        arns = {"ResourceArns": [role]} if statement["Resource"] != "*" else {}
        for result in session.every(
            "iam",
            "simulate_principal_policy",
            "EvaluationResults",
            PolicySourceArn=session.principal,
            ActionNames=statement["Action"],
            **arns,
        ):
            decided[result["EvalActionName"]] = result["EvalDecision"]
    about, principal = "permissions", session.principal
    if denied := sorted(action for action, decision in decided.items() if decision == "explicitDeny"):
        text = f"a policy denies {principal} {', '.join(denied)}, which no permission outweighs"
        return failed(about, text, f"ask the account's administrator; {PAGE}")
    if unknown := sorted(action for action, decision in decided.items() if decision != "allowed"):
        text = f"{principal} may not be allowed {', '.join(unknown)}"
        text += "; a policy for certain ARNs can allow it after all"
        return warn(about, text, f"have it added to their policy if creation is refused; {PAGE}")
    return ok(about, f"{principal} may do all {len(decided)} actions")
