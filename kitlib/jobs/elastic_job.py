"""Distributed training by an ElasticJob: workers that meet at an etcd, by TorchElastic's first operator."""

from kitlib.jobs.elasticity import ElasticTraining
from kitlib.k8s.manifests import Object, merge


class ElasticJob(ElasticTraining):
    """A training program on several nodes that find each other by etcd; needs ``kit.install("elastic-job")``.

    With ``min_nodes`` or ``max_nodes`` their number may change while they train: what is lost is made again,
    and ``run.scale`` changes how many are wanted. Without, it is fixed, and torchrun starts the trainer.

    The arguments are those of `TrainingJob`: trainer, nodes, processes, args, volumes, cpu, memory, gpus,
    priority and name; and min_nodes, max_nodes and max_restarts, of which `TorchElastic` tells.

    Example:
        >>> job = ElasticJob("trainers/digits_elastic.py", nodes=4, min_nodes=1, priority="low")
        >>> launch(job).wait()
    """

    folder = "elastic-job"

    def main(self) -> Object:
        """Return the ElasticJob."""
        item = self.read("elasticjob")
        worker = item["spec"]["replicaSpecs"]["Worker"]
        (container,) = worker["template"]["spec"]["containers"]
        command, flags = container["command"], [f"--nproc_per_node={self.processes_per_node}"]
        if self.limits is not None:
            command, flags = self.launcher, [*flags, f"--max_restarts={self.max_restarts}"]
        pod = self.pod(worker["template"], command=command, args=[*flags, self.path, *self.args])
        fewest, most = self.limits or (self.nodes, self.nodes)
        replicas = {"Worker": {"replicas": self.nodes, "template": pod}}
        return merge(item, {"spec": {"minReplicas": fewest, "maxReplicas": most, "replicaSpecs": replicas}})
