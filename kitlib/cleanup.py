"""Cleaning up after oneself: what a learner calls last, from the same kernel or from a fresh one."""

from kitlib.clusters import Cluster, connect
from kitlib.ownership import delete_all
from kitlib.settings import DEFAULT_CLUSTER
from kitlib.tables import Table


def clean_up(cluster: Cluster | str = DEFAULT_CLUSTER) -> Table:
    """Delete every run and every volume of the kit in a cluster, the cluster itself not; return what is left.

    Safe to call again.

    Args:
        cluster: The cluster, or its name.
    """
    return delete_all((connect(cluster) if isinstance(cluster, str) else cluster).kube)
