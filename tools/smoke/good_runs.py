"""Check that ``why()`` reports no cause for succeeded runs.

It is called before each cell that deletes, because the runs do not exist afterwards.
"""

from collections.abc import Callable

from kitlib.clusters import Cluster, connect
from kitlib.errors import ClusterBroken, ClusterNotFound
from kitlib.runs.status import SUCCEEDED

# GPUs of local nodes may be only declared, so that training on the CPU is correct.
DECLARED_GPUS = ("local", "GpusUnused")


class GoodRuns:
    """The succeeded runs of a cluster, each checked once.

    Args:
        name: The cluster's name, the notebook's parameter ``cluster_name``.
        find: Finds the cluster by that name.

    Attributes:
        false_causes: The causes that were reported for such runs.
    """

    def __init__(self, name: str, *, find: Callable[[str], Cluster] = connect) -> None:
        self.name, self.find = name, find
        self.checked, self.false_causes = set[str](), list[str]()

    def check(self) -> None:
        """Check new succeeded runs; none if the cluster is not running."""
        try:
            cluster = self.find(self.name)
        except (ClusterNotFound, ClusterBroken):
            return
        for row in cluster.runs():
            name = str(row["run"])
            if row["status"] == SUCCEEDED and name not in self.checked:
                self.checked.add(name)
                self.false_causes += [
                    f"run {name} has succeeded, and why names {cause.kind}: {cause.line}"
                    for cause in cluster.run(name).why().causes
                    if (cluster.provider, cause.kind) != DECLARED_GPUS
                ]
