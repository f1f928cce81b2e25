"""Distributed training by an ElasticJob of TorchElastic's first operator: workers meet at an etcd server."""

from kitlib.jobs.sources import escape_dollars
from kitlib.jobs.torch_elastic import ElasticTrainingJob
from kitlib.k8s.manifests import Object, merge


class ElasticJob(ElasticTrainingJob):
    """A training program on several nodes with an etcd rendezvous; needs ``kit.install("elastic-job")``.

    With ``min_nodes`` or ``max_nodes`` the number of nodes may change during training: the operator replaces
    lost workers, and ``run.scale`` changes their number. Without, it is fixed, and torchrun starts the
    trainer.

    The arguments are those of `TrainingJob`, and min_nodes and max_nodes of `TorchElastic`.

    Example:
        >>> job = ElasticJob("trainers/digits_elastic.py", nodes=4, min_nodes=1, priority="low")
        >>> launch(job).wait()
    """

    folder = "elastic-job"

    def _main(self) -> Object:
        item = self._read("elasticjob", file=self.file)
        worker = item["spec"]["replicaSpecs"]["Worker"]
        (container,) = worker["template"]["spec"]["containers"]
        command, words = container["command"], [f"--nproc_per_node={self.processes_per_node}"]
        if self.limits is not None:
            command, words = self._launcher, [*words, f"--max_restarts={self.MAX_RESTARTS}"]
        pod = self._pod_template(
            worker["template"], command=command, args=[*words, *escape_dollars([*self._target, *self.args])]
        )
        fewest, most = self.limits or (self.nodes, self.nodes)
        replicas = {"Worker": {"replicas": self.nodes, "template": pod}}
        return merge(item, {"spec": {"minReplicas": fewest, "maxReplicas": most, "replicaSpecs": replicas}})
