"""Distributed training by a PyTorchJob of the Kubeflow Training Operator: a master and workers, or workers
alone whose number may change.

The operator makes the pods and a headless Service for each, and tells torchrun, or the elastic launcher, by
PET_* variables where the others are.
"""

from pathlib import Path

from kitlib.clusters import Cluster
from kitlib.errors import BadInput
from kitlib.jobs.elasticity import STORES, ElasticTraining, fresh_id, store
from kitlib.k8s.manifests import Object, merge
from kitlib.k8s.quantities import check_count

RENDEZVOUS = "c10d"


class PyTorchJob(ElasticTraining):
    """A training program on several nodes, as master and workers; needs ``kit.install("training-operator")``.

    The arguments are those of `TrainingJob`: trainer, nodes, processes, args, volumes, cpu, memory, gpus,
    priority and name. The first node is the master, all others are workers.

    With ``min_nodes`` or ``max_nodes`` there are workers alone, by the operator's ``elasticPolicy``: what is
    lost is made again, and ``run.scale`` changes how many are wanted. They meet at a store outside of them.

    Args:
        trainer: The program; for elastic training one that is made for it.
        target_cpu: Percent of the CPU that the workers ask for: the operator has a HorizontalPodAutoscaler
            add workers above it, and take them away below it, within the limits. Needs ``cpu=``.
        job: The other arguments; of min_nodes, max_nodes and max_restarts `TorchElastic` tells.

    Example:
        >>> job = PyTorchJob("trainers/digits_ddp.py", nodes=2, processes_per_node=2)
        >>> launch(job).wait()
        >>> job = PyTorchJob("trainers/digits_elastic.py", nodes=1, min_nodes=1, max_nodes=4)
        >>> launch(job).scale(2)
    """

    folder = "pytorch-job"

    def __init__(self, trainer: str | Path, *, target_cpu: int | None = None, **job: object) -> None:
        super().__init__(trainer, **job)
        self.id = fresh_id(self.name)
        self.target_cpu = target_cpu
        if target_cpu is not None:
            check_count(target_cpu, what="target_cpu", least=1, most=1000)
            if self.limits is None or self.cpu is None:
                raise BadInput(
                    "an autoscaler needs limits, and to know of how much CPU it is a percentage",
                    about=f"target_cpu={target_cpu}",
                    fix=f'max_nodes=4, cpu="0.5", target_cpu={target_cpu}',
                )

    def on(self, cluster: Cluster) -> "PyTorchJob":
        """Return a copy as `launch` sends it there, with a rendezvous id of its own."""
        other = super().on(cluster)
        other.id = fresh_id(self.name)
        return other

    def build(self) -> list[Object]:
        """Return the ConfigMap, the store of an elastic job, and the PyTorchJob."""
        meeting = [] if self.limits is None else store(self, RENDEZVOUS)
        return [self.config_map(), *meeting, self.main()]

    def main(self) -> Object:
        """Return the PyTorchJob."""
        item = self.read("pytorchjob")
        master = item["spec"]["pytorchReplicaSpecs"]["Master"]
        if self.limits is not None:
            return self._elastic(item, master)
        replicas = {"Master": merge(master, {"template": self.pod(master["template"])})}
        if self.nodes > 1:
            replicas["Worker"] = replicas["Master"] | {"replicas": self.nodes - 1}
        return merge(
            item, {"spec": {"nprocPerNode": str(self.processes_per_node), "pytorchReplicaSpecs": replicas}}
        )

    def _elastic(self, item: Object, master: Object) -> Object:
        pod = self.pod(master["template"], command=[*self.launcher, self.path])
        # OnFailure: containers begin again, and the operator counts that; what is deleted is made again.
        worker = {"replicas": self.nodes, "restartPolicy": "OnFailure", "template": pod}
        backend, port = STORES[RENDEZVOUS]
        fewest, most = self.limits
        policy = {
            "minReplicas": fewest,
            "maxReplicas": most,
            "maxRestarts": self.max_restarts,
            "rdzvBackend": backend,
            "rdzvHost": f"{self.name}-store.{self.name}",
            "rdzvPort": port,
            "rdzvId": self.id,
        }
        if self.target_cpu is not None:
            target = {"type": "Utilization", "averageUtilization": self.target_cpu}
            policy["metrics"] = [{"type": "Resource", "resource": {"name": "cpu", "target": target}}]
        spec = {
            "nprocPerNode": str(self.processes_per_node),
            "elasticPolicy": policy,
            "runPolicy": {"backoffLimit": 1},  # the launcher in a pod has tried often by then
            "pytorchReplicaSpecs": {"Master": None, "Worker": worker},
        }
        return merge(item, {"spec": spec})
