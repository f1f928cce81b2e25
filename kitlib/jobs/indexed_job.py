"""Distributed training by an Indexed Job: numbered pods, a headless Service, torchrun's static rendezvous.

It needs nothing but Kubernetes itself. The number of pods is fixed; what is elastic is not here.
"""

from kitlib.jobs.base import TrainingJob
from kitlib.jobs.sources import literal
from kitlib.k8s import names
from kitlib.k8s.manifests import Object, merge


class IndexedJob(TrainingJob):
    """A training program on several nodes, one pod each, by Kubernetes's own Job.

    The arguments are those of `TrainingJob`.

    Example:
        >>> job = IndexedJob("trainers/digits_ddp.py", nodes=4, args={"epochs": 12})
        >>> job.manifest()
    """

    folder = "indexed-job"

    def build(self) -> list[Object]:
        service = merge(self._read("service"), {"spec": {"selector": {names.JOB_NAME: self.name}}})
        return [self._config_map(), service, self._main()]

    def _main(self) -> Object:
        item = self._read("job", file=self.file)
        template = item["spec"]["template"]
        replaced = {"--nnodes": self.nodes, "--nproc-per-node": self.processes_per_node}
        (container,) = template["spec"]["containers"]
        command = [
            f"{flag}={replaced[flag]}" if (flag := word.split("=")[0]) in replaced else word
            for word in container["command"][:-1]
        ]
        address = {"name": "MASTER_ADDR", "value": f"{self.name}-0.{self.name}"}
        pod = self._pod_template(template, command=[*command, *literal([self._path])], env=[address])
        pod = merge(pod, {"spec": {"subdomain": self.name}})
        spec = {"completions": self.nodes, "parallelism": self.nodes, "template": pod}
        return merge(item, {"spec": spec})
