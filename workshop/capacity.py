"""What an instructor has to know of a cluster before it is full: room, networks, where notebooks run.

Each answer is a pair: what there is, and what follows from it. How room is counted is in `room`, how
enforcers of policies are known in `policies`.
"""

from kitlib.clusters import Cluster
from kitlib.clusters.local import LocalCluster
from kitlib.errors import Rejected
from workshop import network_policies, room
from workshop.attendees import LABEL, Quota
from workshop.jupyter import Jupyter
from workshop.room import Room


def survey(on: Cluster, people: int, quota: Quota) -> Room | None:
    """Return whether the quotas of so many fit at once; None if this user may not see nodes."""
    try:
        nodes, pods = on.kube.get_all("Node"), on.kube.within("").get_all("Pod")
    except Rejected as error:
        if error.status != 403:
            raise
        return None
    theirs = {each["metadata"]["name"] for each in on.kube.get_all("Namespace", labels=LABEL)}
    return room.count(people, quota, nodes, [p for p in pods if p["metadata"]["namespace"] not in theirs])


def room_for_all(
    on: Cluster, found: Room | None, *, scale: bool = False, confirm: bool = False
) -> tuple[str, str]:
    """Say what the room is, and what to do about it; or do it, where that is asked for and possible.

    Args:
        on: The cluster.
        found: What `survey` found.
        scale: Add what is missing, if the cluster can: its price is shown, and has to be agreed to.
        confirm: It is agreed to beforehand.
    """
    if found is None:
        return "not known", "this kubeconfig may not see nodes"
    if found.enough:
        return str(found), "enough for all at once"
    grow = getattr(on, "grow", None)
    if found.missing is None:
        first = "" if grow is None or found.training else "; begin with cluster.scale(1), to go by it"
        return str(found), f"no node has what the quotas allow: pods that ask for it wait for ever{first}"
    if grow is None:
        local = "a local cluster may declare more than the machine has: recreate it with cpus= and memory="
        how = local if isinstance(on, LocalCluster) else f"add {found.missing} nodes, or give smaller quotas"
        return str(found), f"not enough for all at once: pods will wait for each other; {how}"
    wanted = found.training + found.missing
    report = on.headroom(wanted, there=found.training)
    if not scale:
        may = "" if report.ok else "; " + "; ".join(f"{each.name}: {each.words}" for each in report.failures)
        how = f"{found.missing} nodes are missing: scale=True shows their price, and adds them{may}"
        return str(found), how
    report.raise_failures()
    grow(wanted, confirm=confirm)
    return str(found), f"{found.missing} nodes are on their way"


def network(on: Cluster) -> tuple[str, str]:
    """Say whether attendees are kept out of each other's pods."""
    try:
        who = network_policies.enforcer(on.kube.within("").get_all("DaemonSet"))
    except Rejected as error:
        if error.status != 403:
            raise
        return "not known", "this kubeconfig may not see what enforces policies"
    if who:
        return "pods of others are kept out", f"by {who}"
    return "open", "NetworkPolicies are stored, and nobody in this cluster enforces them"


def place_of_notebooks(on: Cluster, jupyter: Jupyter | None) -> tuple[str, str]:
    """Say where attendees' notebooks run, and how they are reached."""
    if jupyter is not None:
        way = f"https://{jupyter.host}/NAME/" if jupyter.host else "kubectl port-forward"
        return "a pod for each", f"behind a token, by {way}: start.txt in the handout says how"
    if isinstance(on, LocalCluster):
        return "on this machine", "a local cluster is reached from 127.0.0.1 alone: a JupyterHub here will do"
    return "on attendees' own machines", "with kubectl, a clone of the kit, and their kubeconfig"
