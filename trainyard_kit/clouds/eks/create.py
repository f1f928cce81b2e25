"""Creating a cluster, or going on: the stack of its end, the cluster's own, then those of the nodes."""

from collections.abc import Mapping
from functools import partial
from typing import Any

from trainyard_kit.clouds.eks import machines
from trainyard_kit.clouds.eks.plan import SYSTEM_MACHINE, ZONES, EksPlan
from trainyard_kit.clouds.eks.session import AwsSession
from trainyard_kit.clouds.eks.stacks import END, SYSTEM, TRAIN, Stack, StackFailed, follow, patiently
from trainyard_kit.clouds.launches import AWAKE
from trainyard_kit.clouds.steps import Phase, Steps

ROLES = "/trainyard/"  # the path of all roles


def bring_up(session: AwsSession, plan: EksPlan, steps: Steps, *, fix: str) -> None:
    """Create all of a cluster; what exists stays, and what failed is continued or replaced."""
    role = ensure_end(session, plan, steps, fix=fix)  # before anything that costs
    cluster = Stack(session, plan.tags.cluster)
    for pool in (SYSTEM, TRAIN):
        steps.update(f"stack {Stack(session, plan.tags.cluster, pool).name}", Phase.WAITS, AWAKE)
    _create({cluster: plan.cluster_parameters(session.principal)}, plan, role, steps, fix=fix)
    pools = {Stack(session, plan.tags.cluster, pool): plan.pool_parameters(pool) for pool in (SYSTEM, TRAIN)}
    try:
        _create(pools, plan, role, steps, fix=fix)
    except StackFailed as error:
        failed = next(stack for stack in pools if stack.about == error.about)
        other_zone = ZONES[pools[failed].get("Zone") != ZONES[1]]
        zone, train = plan.zones[ZONES.index(other_zone)], plan.machines
        text, kind = (
            f"{error.what}\n{error.detail}",
            train.type if failed.pool == TRAIN else SYSTEM_MACHINE,
        )
        spot = train.spot and failed.pool == TRAIN
        error.fix = machines.advice(session, kind, text, spot=spot, alternative=zone) or error.fix
        if not error.stockout or not plan.confirm:  # no question: the browser may be closed by now
            raise
        pools = {**pools, failed: pools[failed] | {"Zone": other_zone}}
        _create(pools, plan, role, steps, fix=fix)


def ensure_end(session: AwsSession, plan: EksPlan, steps: Steps, *, fix: str) -> str:
    """Have the schedules of a cluster's end; return the role with which CloudFormation acts on its stacks."""
    stack, fix = Stack(session, plan.tags.cluster, END), f"{fix}; docs/eks.md has the policy that you need"
    _create({stack: plan.end_parameters()}, plan, "", steps, fix=fix)
    move_end(session, plan, steps, fix=fix)
    return session.arn("iam", f"role{ROLES}{role_name(session, plan.tags.cluster)}")


def move_end(session: AwsSession, plan: EksPlan, steps: Steps, *, fix: str) -> None:
    stack = Stack(session, plan.tags.cluster, END)
    if (now := stack.describe()) and now.busy:
        follow([stack], steps, fix=fix)
    times = {key: value for key, value in plan.end_parameters().items() if key != "PermissionsBoundary"}
    if stack.update(times):
        follow([stack], steps, fix=fix)
    if not ((now := stack.describe()) and now.complete):
        raise stack.error(fix)


def role_name(session: AwsSession, cluster: str) -> str:
    """Name the role with which CloudFormation acts: roles are one account's, in all regions."""
    return f"trainyard-{cluster}-{session.region}-stack"


def _create(
    parameters_of: Mapping[Stack, Mapping[str, Any]],
    plan: EksPlan,
    role: str,
    steps: Steps,
    *,
    fix: str,
) -> None:
    """Have these stacks complete, all at the same time."""
    follow([stack for stack in parameters_of if (now := stack.describe()) and now.busy], steps, fix=fix)
    missing = {stack: now for stack in parameters_of if not ((now := stack.describe()) and now.complete)}
    resumed, replaced = [], []
    for stack, now in missing.items():
        if now is not None and now.resumable and (stack.pool == END or _has_control_plane(stack)):
            stack.update(parameters_of[stack] if stack.pool == END else {})
            resumed.append(stack)
        elif now is not None:  # of a failed pool nothing is worth keeping
            stack.delete()
            replaced.append(stack)
    follow(replaced, steps, fix=fix)
    for stack in replaced:
        if stack.describe() is not None:
            raise stack.error("`cluster.delete()`, then create it again")
    for stack in missing:
        if stack not in resumed:
            body, parameters = plan.template(stack.pool), parameters_of[stack]
            patiently(steps, partial(stack.create, body, parameters, plan.stack_tags, role=role))
    follow(missing, steps, fix=fix)
    for stack in missing:
        now = stack.describe()
        if now is None or not now.complete:
            raise stack.error(fix)


def _has_control_plane(stack: Stack) -> bool:
    description = None if stack.pool else stack.session.find("eks", "describe_cluster", name=stack.cluster)
    return description is not None and description["cluster"]["status"] == "ACTIVE"
