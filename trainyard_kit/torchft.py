"""Fault-tolerant training with torchft: replica groups that may fail and rejoin, and its Lighthouse.

Each pod is a replica group with its own torchrun. The loss of a group costs the others one step; it rejoins
with their weights. The pods need the package torchft: ``pip install torchft`` for local nodes, or an image
that contains it. https://github.com/meta-pytorch/torchft
"""

from collections.abc import Callable
from pathlib import Path
from typing import Self, Unpack

from kitlib.clusters import Cluster
from kitlib.display.signatures import checked_class
from kitlib.jobs.base import JobArguments
from kitlib.jobs.sources import escape_dollars
from kitlib.jobs.torch_elastic import TorchElastic
from kitlib.k8s import job_kinds, names
from kitlib.k8s.manifests import Object, merge

PORT = 29510


@checked_class
class TorchFT(TorchElastic):
    """Run a training program that uses torchft as replica groups of one pod each, without an operator.

    Args:
        trainer: As for other jobs: a program with a `torchft.Manager`, such as
            ``notebooks/scripts/digits_torchft.py`` or torchft's ``train_ddp.py``.
        nodes: Initial number of replica groups.
        min_nodes: Minimum for ``run.scale``.
        max_nodes: Maximum for ``run.scale``; by default twice ``nodes``.
        job: The other arguments of `TrainingJob`; ``processes_per_node`` is the number of ranks of a group.

    Raises:
        BadInput: An argument is invalid, such as more ``min_nodes`` than ``nodes``.

    Example:
        >>> run = launch(TorchFT("notebooks/scripts/digits_torchft.py", nodes=2))
        >>> run.kill(rank=1)
    """

    folder = "torchft"
    namespace = "default"

    def __init__(
        self,
        trainer: str | Path | Callable[..., object] | None = None,
        *,
        nodes: int = 2,
        min_nodes: int = 1,
        max_nodes: int | None = None,
        **job: Unpack[JobArguments],
    ) -> None:
        super().__init__(trainer, nodes=nodes, min_nodes=min_nodes, max_nodes=max_nodes, **job)

    def bind(self, cluster: Cluster) -> Self:
        """Copy the job for a cluster, whose namespace is in the pods' DNS search path."""
        bound = super().bind(cluster)
        bound.namespace = cluster.kube.namespace
        return bound

    def build(self) -> list[Object]:
        service = self._read("service", folder="torch-elastic")
        service = merge(service, {"spec": {"selector": {names.RUN: self.name}}})
        return [self._config_map(), service, self._lighthouse(), self._main()]

    def _lighthouse(self) -> Object:
        name = f"{self.name}-lighthouse"
        spec: Object = {
            "hostname": name,
            "subdomain": self.name,
            "containers": [{"name": "lighthouse", "image": self.image}],
            "imagePullSecrets": self.settings.pull_secrets,
            "tolerations": self.settings.tolerations or None,
            "priorityClassName": self.priorities[0] if self.priorities else None,
        }
        return merge(self._read("lighthouse"), {"metadata": {"name": name}, "spec": spec})

    def _main(self) -> Object:
        item = self._read("podtemplate", file=self.file)
        assert self.limits, "min_nodes has a default"
        (container,) = item["template"]["spec"]["containers"]
        ranks = f"--nproc-per-node={self.processes_per_node}"
        command = [ranks if word.startswith("--nproc-per-node") else word for word in container["command"]]
        variables = {
            "NUM_REPLICA_GROUPS": str(self.nodes),
            "TORCHFT_LIGHTHOUSE": f"http://{self.name}-lighthouse.{self.name}:{PORT}",
        }
        env = [{"name": key, "value": value} for key, value in variables.items()]
        pod = self._pod_template(item["template"], command=[*command[:-1], *escape_dollars(self._target)])
        search = {"searches": [f"{self.name}.{self.namespace}.svc.cluster.local"]}
        spec = {"subdomain": self.name, "dnsConfig": search, "containers": [{"name": "worker", "env": env}]}
        pod = merge(pod, {"spec": spec})
        counts = zip(
            (job_kinds.REPLICAS, job_kinds.MIN_REPLICAS, job_kinds.MAX_REPLICAS),
            (self.nodes, *self.limits),
            strict=True,
        )
        annotations = {key: str(count) for key, count in counts}
        return merge(item, {"metadata": {"annotations": annotations}, "template": pod})
