"""Distributed training by a PyTorchJob of the Kubeflow Training Operator, with a fixed or elastic size.

The operator makes the pods and a headless Service for each, and gives torchrun, or the elastic launcher, the
addresses of the others in PET_* variables.
"""

from pathlib import Path
from typing import Any

from kitlib.errors import BadInput
from kitlib.jobs.sources import literal
from kitlib.jobs.torch_elastic import STORES, ElasticTrainingJob
from kitlib.k8s.manifests import Object, merge
from kitlib.k8s.quantities import check_count

RENDEZVOUS = "c10d"


class PyTorchJob(ElasticTrainingJob):
    """A training program on several nodes, as master and workers; needs ``kit.install("training-operator")``.

    The first node is the master, all others are workers. With ``min_nodes`` or ``max_nodes`` there are
    workers alone, by the operator's ``elasticPolicy``: lost ones are replaced, and ``run.scale`` changes
    their number. Their rendezvous store is a pod of its own.

    Args:
        trainer: The program; for elastic training an elastic one.
        target_cpu: Percent of the workers' CPU request: the operator has a HorizontalPodAutoscaler add
            workers above it and remove them below it, within the limits. Needs ``cpu=``.
        job: The other arguments of `TrainingJob`; min_nodes, max_nodes and max_restarts as in `TorchElastic`.

    Example:
        >>> job = PyTorchJob("trainers/digits_ddp.py", nodes=2, processes_per_node=2)
        >>> launch(job).wait()
        >>> job = PyTorchJob("trainers/digits_elastic.py", nodes=1, min_nodes=1, max_nodes=4)
        >>> launch(job).scale(2)
    """

    folder = "pytorch-job"

    def __init__(self, trainer: str | Path, *, target_cpu: int | None = None, **job: Any) -> None:
        super().__init__(trainer, **job)
        self.target_cpu = target_cpu
        if target_cpu is not None:
            check_count(target_cpu, what="target_cpu", least=1, most=1000)
            if self.limits is None or self.cpu is None:
                raise BadInput(
                    "an autoscaler needs limits, and the CPU request of which it is a percentage",
                    about=f"target_cpu={target_cpu}",
                    fix=f'max_nodes=4, cpu="0.5", target_cpu={target_cpu}',
                )

    def build(self) -> list[Object]:
        store = [] if self.limits is None else self._store(RENDEZVOUS)
        return [self._config_map(), *store, self._main()]

    def _main(self) -> Object:
        item = self._read("pytorchjob", file=self.file)
        master = item["spec"]["pytorchReplicaSpecs"]["Master"]
        if self.limits is not None:
            return self._elastic(item, master)
        replicas = {"Master": merge(master, {"template": self._pod_template(master["template"])})}
        if self.nodes > 1:
            replicas["Worker"] = replicas["Master"] | {"replicas": self.nodes - 1}
        spec = {"nprocPerNode": str(self.processes_per_node), "pytorchReplicaSpecs": replicas}
        return merge(item, {"spec": spec})

    def _elastic(self, item: Object, master: Object) -> Object:
        pod = self._pod_template(master["template"], command=[*self._launcher, *literal([self._path])])
        # OnFailure: the kubelet restarts containers, which the operator counts; it replaces deleted pods.
        worker = {"replicas": self.nodes, "restartPolicy": "OnFailure", "template": pod}
        backend, port = STORES[RENDEZVOUS]
        assert self.limits, "the job is elastic"
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
            "runPolicy": {"backoffLimit": 1},  # the launcher in a pod has retried often by then
            "pytorchReplicaSpecs": {"Master": None, "Worker": worker},
        }
        return merge(item, {"spec": spec})
