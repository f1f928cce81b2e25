"""What clusters of the kit in a project still cost until their ends, which a budget counts beside the new."""

from clouds.google.cluster import TRAINING, GkeControlPlane
from clouds.google.machines import CPU_MACHINE, MachinePool
from clouds.google.prices import estimate
from clouds.google.session import GcpSession
from clouds.google.stack import GkePlan, traces
from clouds.price_table import Estimate, hours_left
from clouds.tags import Tags, read


def running_costs(session: GcpSession) -> list[Estimate]:
    """Estimate the cost of each cluster until its end; one that is gone costs nothing."""
    found = [
        cost(session.at(trace.zone), name) for name, trace in sorted(traces(session).items()) if trace.zone
    ]
    return [each for each in found if each is not None]


def cost(session: GcpSession, name: str) -> Estimate | None:
    """Estimate the cost of a cluster from now until its end; None if it is gone.

    Its training pool is counted with all the machines to which it may grow.
    """
    part = GkeControlPlane(session, Tags(name, "", ""))
    found = part.found()
    if found is None or not part.owns(found):
        return None
    tags = read(found.resource_labels)
    machines = MachinePool(0, CPU_MACHINE)
    for pool in (each for each in found.node_pools if each.name == TRAINING):
        machines = MachinePool.found(pool.config, nodes=pool.autoscaling.max_node_count)
    hours = hours_left(tags.expires if tags else None)
    return estimate(GkePlan(session, tags or part.tags, machines), hours=hours)
