"""What the kit's clusters in an account still cost until their ends: what a budget counts beside what is new.

They are found in all regions by the tags of their roles, which are the account's and in no region.
"""

from contextlib import suppress
from dataclasses import replace

from clouds.aws.expiry import ScheduleGroup
from clouds.aws.nat import NatGateway
from clouds.aws.plan import SYSTEM, TRAIN, EksPlan, NodeGroupPlan
from clouds.aws.prices import estimate
from clouds.aws.roles import homes
from clouds.aws.session import AwsSession
from clouds.aws.stack import control_plane, node_group, resources
from clouds.price_table import Estimate, hours_left
from clouds.reconciler.resource import ResourceState
from clouds.tags import Tags, read
from kitlib.errors import BadInput


def running_costs(session: AwsSession) -> list[Estimate]:
    """Estimate the cost of each cluster until its end; one that is gone costs nothing."""
    found = []
    for name, region in sorted(homes(session)):
        with suppress(BadInput):  # a role with the kit's tags, and a name that says no region
            there = session if region == session.region else AwsSession(region, session.profile)
            found.append(cost(there, name))
    return [each for each in found if each is not None]


def cost(session: AwsSession, name: str) -> Estimate | None:
    """Estimate the cost of a cluster from now until its end; None if it is gone."""
    plan = EksPlan(session, Tags(name, "", ""), strict=False)
    if control_plane(plan).description() is None:
        return None
    groups = tuple(filter(None, (_group(plan, each) for each in (SYSTEM, TRAIN))))
    tags = read(ScheduleGroup(plan).written_tags())
    now = replace(plan, groups=groups, private=_is_private(plan))
    return estimate(now, hours=hours_left(tags.expires if tags else None))


def _group(plan: EksPlan, name: str) -> NodeGroupPlan | None:
    found = node_group(plan, name).description()
    if found is None:
        return None
    spot, (kind, *_) = found["capacityType"] == "SPOT", found["instanceTypes"]
    return NodeGroupPlan(name, kind, found["scalingConfig"]["desiredSize"], spot=spot)


def _is_private(plan: EksPlan) -> bool:
    parts = resources(replace(plan, private=True))
    nat = next(each for each in parts if isinstance(each, NatGateway))
    return nat.describe().state is not ResourceState.ABSENT
