"""Creating a cluster, or going on: roles, schedules, the cluster's stack, then those of the nodes."""

from collections.abc import Mapping
from functools import partial
from typing import Any

from kitlib.errors import ProviderFailed
from trainyard_kit.clouds.eks import expiry, machines, roles
from trainyard_kit.clouds.eks.plan import SYSTEM_MACHINE, ZONES, EksPlan
from trainyard_kit.clouds.eks.session import AwsSession
from trainyard_kit.clouds.eks.stacks import SYSTEM, TRAIN, Stack, StackFailed, follow, patiently
from trainyard_kit.clouds.launches import AWAKE
from trainyard_kit.clouds.steps import Phase, Steps


def bring_up(session: AwsSession, plan: EksPlan, steps: Steps, *, fix: str) -> None:
    """Create all of a cluster; what exists stays, and what failed is continued or replaced."""
    with steps.step("schedules of its end"):  # before anything that costs
        boundary = plan.patched("PermissionsBoundary")
        role = roles.create_stack_role(session, plan.tags, boundary=boundary)
        expiry.create(session, plan.tags, steps, boundary=boundary)
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
        if now is not None and now.resumable and _has_control_plane(stack):
            stack.update({})
            resumed.append(stack)
        elif now is not None:  # of a failed pool nothing is worth keeping
            stack.delete()
            replaced.append(stack)
    follow(replaced, steps, fix=fix)
    for stack in replaced:
        if stack.describe() is not None:
            raise stack.error("cluster.delete(), then create it again")
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


def resize(session: AwsSession, cluster: str, nodes: int, steps: Steps, *, fix: str) -> None:
    """Change the number of training nodes; returns when their group has accepted it."""
    stack = Stack(session, cluster, TRAIN)
    if (now := stack.describe()) and now.busy:
        follow([stack], steps, fix="call it again")
        now = stack.describe()
    if now is None or not now.complete:
        raise ProviderFailed("it has no training nodes, or they failed", about=stack.about, fix=fix)
    stack.known_failures = machines.launch_failures(session, cluster, TRAIN)
    least, most = (int(now.parameters.get(limit) or 0) for limit in ("MinNodes", "MaxNodes"))
    if not stack.update({"Nodes": nodes, "MinNodes": min(least, nodes), "MaxNodes": max(most, nodes, 1)}):
        # So many were asked for before; the stack does not see what the autoscaler has removed since.
        size, group = {"desiredSize": nodes}, {"clusterName": cluster, "nodegroupName": TRAIN}
        patiently(steps, lambda: session.call("eks", "update_nodegroup_config", scalingConfig=size, **group))
        return
    follow([stack], steps, fix="call it again")
    now = stack.describe()
    if now is None or now.status != "UPDATE_COMPLETE":
        raise stack.error("call it again, or with fewer nodes")
