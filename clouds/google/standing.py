"""What clusters of the kit in a project still cost until their ends, which a budget counts beside the new."""

from clouds.google.cluster import TRAINING, GkeCluster
from clouds.google.everything import Plan, traces
from clouds.google.machines import CPU_MACHINE, Machines
from clouds.google.prices import estimate
from clouds.google.session import Session
from clouds.prices import Estimate, hours_left
from clouds.tags import Tags, read


def standing(session: Session) -> list[Estimate]:
    """Return what each cluster of the project costs until its end; one that is gone costs nothing."""
    found = [
        cost(session.at(trace.zone), name) for name, trace in sorted(traces(session).items()) if trace.zone
    ]
    return [each for each in found if each is not None]


def cost(session: Session, name: str) -> Estimate | None:
    """Return what a cluster costs from now until its end; None if it is gone.

    Its training pool is counted with all the machines to which it may grow.
    """
    part = GkeCluster(session, Tags(name, "", ""))
    found = part.found()
    if found is None or not part.owns(found):
        return None
    tags = read(found.resource_labels)
    machines = Machines(0, CPU_MACHINE)
    for pool in (each for each in found.node_pools if each.name == TRAINING):
        machines = Machines.found(pool.config, nodes=pool.autoscaling.max_node_count)
    hours = hours_left(tags.expires if tags else None)
    return estimate(Plan(session, tags or part.tags, machines), hours=hours)
