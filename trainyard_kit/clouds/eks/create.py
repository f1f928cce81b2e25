"""Create a cluster, or resume its creation: the stacks of its expiry, of the cluster, and of the nodes."""

from collections.abc import Mapping
from functools import partial
from typing import Any

from trainyard_kit.clouds.eks import machines
from trainyard_kit.clouds.eks.plan import SYSTEM_MACHINE, ZONES, EksPlan
from trainyard_kit.clouds.eks.session import AwsSession
from trainyard_kit.clouds.eks.stacks import (
    END,
    SYSTEM,
    TRAIN,
    Stack,
    StackFailed,
    await_stacks,
    retry_transient,
)
from trainyard_kit.clouds.steps import KEEP_AWAKE, Phase, Steps

ROLES = "/trainyard/"  # the path of all roles


def create_stacks(session: AwsSession, plan: EksPlan, steps: Steps, *, fix: str) -> None:
    """Create a cluster's stacks; existing ones are kept, failed ones resumed or replaced."""
    role = ensure_expiry(session, plan, steps, fix=fix)  # before anything is charged
    cluster = Stack(session, plan.tags.cluster)
    for pool in (SYSTEM, TRAIN):
        steps.update(f"stack {Stack(session, plan.tags.cluster, pool).name}", Phase.WAITING, KEEP_AWAKE)
    _create({cluster: plan.cluster_parameters(session.principal)}, plan, role, steps, fix=fix)
    pools = {Stack(session, plan.tags.cluster, pool): plan.pool_parameters(pool) for pool in (SYSTEM, TRAIN)}
    try:
        _create(pools, plan, role, steps, fix=fix)
    except StackFailed as error:
        failed = next(stack for stack in pools if stack.about == error.about)
        other_zone = ZONES[pools[failed].get("Zone") != ZONES[1]]
        zone, train = plan.zones[ZONES.index(other_zone)], plan.machines
        text = f"{error.what}\n{error.detail}"
        kind, spot = (train.type, train.spot) if failed.pool == TRAIN else (SYSTEM_MACHINE, False)
        error.fix = machines.launch_failure_fix(session, kind, text, spot=spot, alternative=zone) or error.fix
        if not error.stockout or not plan.confirm:  # no prompt: the user may have left
            raise
        pools = {**pools, failed: pools[failed] | {"Zone": other_zone}}
        _create(pools, plan, role, steps, fix=fix)


def ensure_expiry(session: AwsSession, plan: EksPlan, steps: Steps, *, fix: str) -> str:
    """Create the schedules that delete the cluster; return the role that CloudFormation assumes."""
    stack, fix = Stack(session, plan.tags.cluster, END), f"{fix}; docs/eks.md has the policy that you need"
    _create({stack: plan.expiry_parameters()}, plan, "", steps, fix=fix)
    update_expiry(session, plan, steps, fix=fix)
    return session.role_arn(f"{ROLES}{role_name(session, plan.tags.cluster)}")


def update_expiry(session: AwsSession, plan: EksPlan, steps: Steps, *, fix: str) -> None:
    """Set the schedules to the plan's expiry."""
    stack = Stack(session, plan.tags.cluster, END)
    if (state := stack.describe()) and state.busy:
        await_stacks([stack], steps, fix=fix)
    times = {key: value for key, value in plan.expiry_parameters().items() if key != "PermissionsBoundary"}
    if stack.update(times):
        await_stacks([stack], steps, fix=fix)
    if not ((state := stack.describe()) and state.complete):
        raise stack.error(fix)


def role_name(session: AwsSession, cluster: str) -> str:
    """Name the role that CloudFormation assumes; roles are global in an account."""
    return f"trainyard-{cluster}-{session.region}-stack"


def _create(
    parameters_of: Mapping[Stack, Mapping[str, Any]],
    plan: EksPlan,
    role: str,
    steps: Steps,
    *,
    fix: str,
) -> None:
    """Complete these stacks concurrently."""
    await_stacks(
        [stack for stack in parameters_of if (state := stack.describe()) and state.busy], steps, fix=fix
    )
    missing = {
        stack: state for stack in parameters_of if not ((state := stack.describe()) and state.complete)
    }
    resumed, replaced = [], []
    for stack, state in missing.items():
        if state is not None and state.resumable and (stack.pool == END or _has_control_plane(stack)):
            stack.update(parameters_of[stack] if stack.pool == END else {})
            resumed.append(stack)
        elif state is not None:  # a failed pool has nothing worth keeping
            stack.delete()
            replaced.append(stack)
    await_stacks(replaced, steps, fix=fix)
    for stack in replaced:
        if stack.describe() is not None:
            raise stack.error("`cluster.delete()`, then create it again")
    for stack in missing:
        if stack not in resumed:
            body, parameters = plan.template(stack.pool), parameters_of[stack]
            retry_transient(steps, partial(stack.create, body, parameters, plan.stack_tags, role=role))
    await_stacks(missing, steps, fix=fix)
    for stack in missing:
        state = stack.describe()
        if state is None or not state.complete:
            raise stack.error(fix)


def _has_control_plane(stack: Stack) -> bool:
    description = None if stack.pool else stack.session.find("eks", "describe_cluster", name=stack.cluster)
    return description is not None and description["cluster"]["status"] == "ACTIVE"
