"""Distributed training by an ElasticJob: workers that meet at an etcd, by TorchElastic's first operator.

Here their number is fixed while they train; what happens when it changes is not here.
"""

from kitlib.jobs.training import TrainingJob
from kitlib.manifests import Object, merge


class ElasticJob(TrainingJob):
    """A training program on several nodes that find each other by etcd; needs ``kit.install("elastic-job")``.

    The arguments are those of `TrainingJob`: trainer, nodes, processes, args, volumes, cpu, memory, gpus,
    priority and name.

    Example:
        >>> job = ElasticJob("trainers/digits_ddp.py", nodes=2)
        >>> launch(job).wait()
    """

    folder = "elastic-job"

    def main(self) -> Object:
        """Return the ElasticJob."""
        item = self.read("elasticjob")
        worker = item["spec"]["replicaSpecs"]["Worker"]
        (container,) = worker["template"]["spec"]["containers"]
        pod = self.pod(
            worker["template"],
            command=container["command"],
            args=[f"--nproc_per_node={self.processes}", self.path, *self.args],
        )
        replicas = {"Worker": {"replicas": self.nodes, "template": pod}}
        return merge(
            item,
            {"spec": {"minReplicas": self.nodes, "maxReplicas": self.nodes, "replicaSpecs": replicas}},
        )
