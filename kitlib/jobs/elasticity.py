"""A number of nodes that may change while they train: its limits, its launcher, and the store to meet at.

What the classes of jobs that can do so have in common; what makes the pods is in the modules beside this,
what happens in the pods in ``trainers/elastic_launch.py`` and ``trainers/elastic.py``.
"""

import secrets
from pathlib import Path
from typing import ClassVar

from kitlib import config
from kitlib.errors import BadInput
from kitlib.jobs.sources import sources
from kitlib.jobs.training import FOLDER, MOST_NODES, TrainingJob
from kitlib.k8s import names
from kitlib.k8s.manifests import Object, merge
from kitlib.k8s.quantities import check_count

LAUNCHER = "trainers/elastic_launch.py"
OFFERED = ("trainers/elastic.py", "trainers/checkpoints.py")  # that a trainer may import, wherever it lies
# What the store is: torch's name for the backend, and the port.
STORES = {"c10d": ("c10d", 29400), "etcd": ("etcd-v2", 2379)}
LOST_AFTER_SECONDS = 5  # on a node that does not answer: others train on, and one elsewhere joins them
UNREACHABLE = ("node.kubernetes.io/unreachable", "node.kubernetes.io/not-ready")


def check_limits(nodes: int, fewest: int | None, most: int | None) -> tuple[int, int]:
    """Return the fewest and the most nodes; by default one, and twice as many as at the beginning.

    Raises:
        BadInput: They are no counts, or ``nodes`` does not lie between them.
    """
    most = check_count(2 * nodes if most is None else most, what="max_nodes", least=1, most=MOST_NODES)
    fewest = check_count(1 if fewest is None else fewest, what="min_nodes", least=1, most=MOST_NODES)
    if not fewest <= nodes <= most:
        raise BadInput(
            "nodes lies between min_nodes and max_nodes",
            about=f"min_nodes={fewest}, nodes={nodes}, max_nodes={most}",
            fix=f"nodes={nodes}, min_nodes=1, max_nodes={max(nodes, most)}",
        )
    return fewest, most


def fresh_id(name: str) -> str:
    """Return a rendezvous id that no earlier run has had: a store remembers the state of older ones."""
    return f"{name}-{secrets.token_hex(4)}"


def store(job: TrainingJob, rendezvous: str) -> list[Object]:
    """Return the pod at which a job's workers meet, which is none of them, and the Service that names it.

    Its address is ``<run>-store.<run>``, with the port in :data:`STORES`.
    """
    service = merge(
        job.read("service", folder="torch-elastic"), {"spec": {"selector": {names.RUN: job.name}}}
    )
    name = f"{job.name}-store"
    spec = {"hostname": name, "subdomain": job.name, "tolerations": job.settings.tolerations or None}
    if rendezvous == "c10d":
        spec["containers"] = [{"name": "store", "image": job.settings.image}]
        spec["imagePullSecrets"] = job.settings.pull_secrets
    pod = merge(
        job.read(f"store-{rendezvous}", folder="torch-elastic"), {"metadata": {"name": name}, "spec": spec}
    )
    return [service, pod]


class ElasticTraining(TrainingJob):
    """A job that an operator runs, whose number of nodes may change if limits for it are given.

    Args:
        trainer: As for the other jobs; with limits one that is made for it: ``trainers/digits_elastic.py``.
        nodes: How many to begin with.
        min_nodes: With how many it still trains.
        max_nodes: How many ``run.scale`` may bring it to.
        max_restarts: How often the launcher in a pod starts the trainer again after it died.
        job: The other arguments of `TrainingJob`.
    """

    limits: tuple[int, int] | None = None
    SPREAD: ClassVar = "ScheduleAnyway"  # with a node lost, its workers may go where there is room

    def __init__(
        self,
        trainer: str | Path,
        *,
        nodes: int = 4,
        min_nodes: int | None = None,
        max_nodes: int | None = None,
        max_restarts: int = 10,
        **job: object,
    ) -> None:
        super().__init__(trainer, nodes=nodes, **job)
        self.max_restarts = check_count(max_restarts, what="max_restarts", least=0, most=1000)
        if min_nodes is not None or max_nodes is not None:
            self.limits = check_limits(self.nodes, min_nodes, max_nodes)
            offered = [config.find(each) for each in OFFERED]
            if self.remote:  # nobody knows yet what it imports
                self.sources |= sources(config.find(LAUNCHER), *offered)
            else:
                self.sources = sources(self.trainer, config.find(LAUNCHER), offered=offered)

    @property
    def launcher(self) -> list[str]:
        """The command that starts a trainer: the elastic launcher, or for one that cannot use it torchrun."""
        if Path(OFFERED[0]).name not in self.sources:
            return ["torchrun"]
        return ["python", f"{FOLDER}/{Path(LAUNCHER).name}"]

    @property
    def tolerations(self) -> list[Object]:
        """Those of every job; an elastic one gives up a node that does not answer after seconds."""
        if self.limits is None:
            return super().tolerations
        how = {"operator": "Exists", "effect": "NoExecute", "tolerationSeconds": LOST_AFTER_SECONDS}
        return [*super().tolerations, *({"key": key} | how for key in UNREACHABLE)]

    def pod(self, template: Object, **container: object) -> Object:
        """Return a manifest's pod template, filled in; elastic pods spread over the nodes if they can."""
        pod = super().pod(template, **container)
        if self.limits is not None:
            for each in pod["spec"]["topologySpreadConstraints"]:
                each["whenUnsatisfiable"] = self.SPREAD
        return pod
