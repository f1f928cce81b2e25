"""Distributed training by a PyTorchJob of the Kubeflow Training Operator, with a fixed or elastic size.

The operator makes the pods and a headless Service for each, and gives torchrun, or the elastic launcher, the
addresses of the others in PET_* variables.
"""

from kitlib.jobs.sources import escape_dollars
from kitlib.jobs.torch_elastic import STORES, ElasticTrainingJob
from kitlib.k8s.manifests import Object, merge

RENDEZVOUS = "c10d"


class PyTorchJob(ElasticTrainingJob):
    """A training program on several nodes, as master and workers; needs ``kit.install("training-operator")``.

    The first node is the master, all others are workers. With ``min_nodes`` or ``max_nodes`` there are
    workers alone, by the operator's ``elasticPolicy``: lost ones are replaced, and ``run.scale`` changes
    their number. Their rendezvous store is a pod of its own.

    Args:
        trainer: The program; for elastic training an elastic one.
        job: The other arguments of `TrainingJob`; min_nodes and max_nodes as in `TorchElastic`.

    Example:
        >>> job = PyTorchJob("trainers/digits_ddp.py", nodes=2, processes_per_node=2)
        >>> launch(job).wait()
        >>> job = PyTorchJob("trainers/digits_elastic.py", nodes=1, min_nodes=1, max_nodes=4)
        >>> launch(job).scale(2)
    """

    folder = "pytorch-job"

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
        pod = self._pod_template(master["template"], command=[*self._launcher, *escape_dollars(self._target)])
        # OnFailure: the kubelet restarts containers, which the operator counts; it replaces deleted pods.
        worker = {"replicas": self.nodes, "restartPolicy": "OnFailure", "template": pod}
        backend, port = STORES[RENDEZVOUS]
        assert self.limits, "the job is elastic"
        fewest, most = self.limits
        policy = {
            "minReplicas": fewest,
            "maxReplicas": most,
            "maxRestarts": self.MAX_RESTARTS,
            "rdzvBackend": backend,
            "rdzvHost": f"{self.name}-store.{self.name}",
            "rdzvPort": port,
            "rdzvId": self.id,
        }
        spec = {
            "nprocPerNode": str(self.processes_per_node),
            "elasticPolicy": policy,
            "runPolicy": {"backoffLimit": 1},  # the launcher in a pod has retried often by then
            "pytorchReplicaSpecs": {"Master": None, "Worker": worker},
        }
        return merge(item, {"spec": spec})
