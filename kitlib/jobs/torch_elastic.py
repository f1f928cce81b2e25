"""Elastic training by plain pods: workers that come and go, and a store outside of them at which they meet.

No operator is needed, and no controller looks after the pods: `kitlib.k8s.plain_pods` says how such a run is
judged, and `Run` scales it. What happens when the workers change is the launcher's and the trainer's.
"""

from pathlib import Path

from kitlib.clusters import Cluster
from kitlib.errors import BadInput
from kitlib.jobs.elasticity import STORES, ElasticTraining, fresh_id, store
from kitlib.k8s import plain_pods
from kitlib.k8s.manifests import Object, merge


class TorchElastic(ElasticTraining):
    """A training program on a number of nodes that may change while it trains; needs no operator.

    Args:
        trainer: As for the other jobs. One that is made for it, such as ``trainers/digits_elastic.py``, goes
            on while workers come and go; one that does not import ``elastic`` is started by torchrun, and so
            anew at each change.
        nodes: How many workers to begin with.
        min_nodes: With how many it still trains.
        max_nodes: How many ``run.scale`` may bring it to; by default twice as many as at the beginning.
        rendezvous: What the workers meet at: ``"c10d"``, torch's own store, or ``"etcd"``, with the v2 API.
        max_restarts: How often the launcher in a pod starts the trainer again after it died.
        job: The other arguments of `TrainingJob`: processes, args, volumes, cpu, memory, gpus, priority and
            name.

    Raises:
        BadInput: An argument cannot be used, such as more ``min_nodes`` than ``nodes``.

    Example:
        >>> run = launch(TorchElastic("trainers/digits_elastic.py", nodes=3, max_nodes=4))
        >>> run.kill(rank=1)
        >>> run.scale(4)
    """

    folder = "torch-elastic"

    def __init__(
        self,
        trainer: str | Path,
        *,
        nodes: int = 4,
        min_nodes: int = 1,
        max_nodes: int | None = None,
        rendezvous: str = "c10d",
        **job: object,
    ) -> None:
        super().__init__(trainer, nodes=nodes, min_nodes=min_nodes, max_nodes=max_nodes, **job)
        if rendezvous not in STORES:
            raise BadInput(
                "there is no such rendezvous",
                about=f"rendezvous={rendezvous!r}",
                fix=" or ".join(f'rendezvous="{each}"' for each in STORES),
            )
        self.rendezvous = rendezvous
        self.id = fresh_id(self.name)

    def on(self, cluster: Cluster) -> "TorchElastic":
        """Return a copy as `launch` sends it there, with a rendezvous id of its own."""
        other = super().on(cluster)
        other.id = fresh_id(self.name)
        return other

    def build(self) -> list[Object]:
        """Return ConfigMap, Service, store, and the PodTemplate of the workers."""
        return [self.config_map(), *store(self, self.rendezvous), self.main()]

    @property
    def objects(self) -> list[Object]:
        """The objects that `launch` creates: the workers are made of the PodTemplate as it is patched."""
        *others, template = super().objects
        return [*others, *(plain_pods.worker(template, number) for number in range(self.nodes)), template]

    def main(self) -> Object:
        """Return the PodTemplate of the workers, with the limits of their number."""
        item = self.read("podtemplate")
        (fewest, most), (backend, port) = self.limits, STORES[self.rendezvous]
        given = {
            "PET_NNODES": f"{fewest}:{most}",
            "PET_NPROC_PER_NODE": str(self.processes_per_node),
            "PET_RDZV_BACKEND": backend,
            "PET_RDZV_ENDPOINT": f"{self.name}-store.{self.name}:{port}",
            "PET_RDZV_ID": self.id,
            "PET_MAX_RESTARTS": str(self.max_restarts),
        }
        pod = self.pod(item["template"], command=[*self.launcher, self.path])
        container = {"name": "worker", "env": [{"name": key, "value": value} for key, value in given.items()]}
        pod = merge(pod, {"spec": {"subdomain": self.name, "containers": [container]}})
        counts = {
            plain_pods.REPLICAS: str(self.nodes),
            plain_pods.FEWEST: str(fewest),
            plain_pods.MOST: str(most),
        }
        return merge(item, {"metadata": {"annotations": counts}, "template": pod})
