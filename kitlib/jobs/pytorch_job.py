"""Distributed training by a PyTorchJob of the Kubeflow Training Operator: a master, workers, and torchrun.

The operator makes the pods and a headless Service for each, and tells torchrun by PET_* variables where the
others are. Its ``elasticPolicy`` is not here.
"""

from kitlib.jobs.training import TrainingJob
from kitlib.manifests import Object, merge


class PyTorchJob(TrainingJob):
    """A training program on several nodes, as master and workers; needs ``kit.install("training-operator")``.

    The arguments are those of `TrainingJob`: trainer, nodes, processes, args, volumes, cpu, memory, gpus,
    priority and name. The first node is the master, all others are workers.

    Example:
        >>> job = PyTorchJob("trainers/digits_ddp.py", nodes=2, processes=2)
        >>> launch(job).wait()
    """

    folder = "pytorch-job"

    def main(self) -> Object:
        """Return the PyTorchJob."""
        item = self.read("pytorchjob")
        master = item["spec"]["pytorchReplicaSpecs"]["Master"]
        replicas = {"Master": merge(master, {"template": self.pod(master["template"])})}
        if self.nodes > 1:
            replicas["Worker"] = replicas["Master"] | {"replicas": self.nodes - 1}
        return merge(item, {"spec": {"nprocPerNode": str(self.processes), "pytorchReplicaSpecs": replicas}})
