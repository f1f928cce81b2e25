"""Distributed training by an Indexed Job: pods with numbers, a headless Service, and torchrun's static
rendezvous.

The simplest of the ways: nothing but Kubernetes itself. It starts and ends with a fixed number of pods; what
is elastic is not here.
"""

from kitlib.jobs.training import TrainingJob
from kitlib.k8s import names
from kitlib.k8s.manifests import Object, merge


class IndexedJob(TrainingJob):
    """A training program on several nodes, one pod each, by nothing but Kubernetes's own Job.

    The arguments are those of `TrainingJob`: trainer, nodes, processes, args, volumes, cpu, memory, gpus,
    priority and name.

    Example:
        >>> job = IndexedJob("trainers/digits_ddp.py", nodes=4, args={"epochs": 12})
        >>> job.manifest()
    """

    folder = "indexed-job"

    def build(self) -> list[Object]:
        """Return the ConfigMap, the Service and the Job."""
        return [self.config_map(), self._service(), self.main()]

    def _service(self) -> Object:
        return merge(self.read("service"), {"spec": {"selector": {names.JOB_NAME: self.name}}})

    def main(self) -> Object:
        """Return the Job."""
        item = self.read("job")
        template = item["spec"]["template"]
        replaced = {"--nnodes": self.nodes, "--nproc-per-node": self.processes_per_node}
        (container,) = template["spec"]["containers"]
        command = [
            f"{flag}={replaced[flag]}" if (flag := word.split("=")[0]) in replaced else word
            for word in container["command"][:-1]
        ]
        pod = self.pod(
            template,
            command=[*command, self.path],
            env=[{"name": "MASTER_ADDR", "value": f"{self.name}-0.{self.name}"}],
        )
        spec = {"completions": self.nodes, "parallelism": self.nodes}
        pod = merge(pod, {"spec": {"subdomain": self.name}})
        return merge(item, {"spec": {**spec, "template": pod}})
