"""Distributed training by an Indexed Job: numbered pods, a headless Service, torchrun's static rendezvous.

It needs nothing but Kubernetes itself. The number of pods is fixed; elastic jobs are in `torch_elastic`.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Unpack

from kitlib.display.signatures import checked_class
from kitlib.errors import BadInput
from kitlib.jobs.base import JobArguments, TrainingJob
from kitlib.jobs.program import TrainerProgram
from kitlib.jobs.sources import escape_dollars
from kitlib.k8s import names
from kitlib.k8s.manifests import Object, merge

LAUNCHERS = ("torchrun", "python")


@checked_class
class IndexedJob(TrainingJob):
    """A training program on several nodes, one pod each, by Kubernetes's own Job.

    Args:
        nodes: Number of pods, each on a node of its own as far as there are nodes.
        launcher: What starts the program: "torchrun"; or "python", once in each pod and without the variables
            of ranks, for programs that are alone or start their ranks themselves by ``NODE_RANK`` and
            ``MASTER_ADDR``.
        options: The other arguments of `TrainingJob`.

    Raises:
        BadInput: There is no such launcher, or it starts one process alone.

    Example:
        >>> job = IndexedJob("trainers/digits_ddp.py", nodes=4, args={"epochs": 12})
        >>> job.manifest()
    """

    folder = "indexed-job"

    def __init__(
        self,
        trainer: str | Path | Callable[..., object] | TrainerProgram | None = None,
        *,
        nodes: int = 4,
        launcher: str = "torchrun",
        **options: Unpack[JobArguments],
    ) -> None:
        super().__init__(trainer, nodes=nodes, **options)
        if launcher not in LAUNCHERS:
            fix = '"torchrun": it sets what accelerate, deepspeed, composer and Lightning read; or "python"'
            raise BadInput("there is no such launcher", about=f"launcher={launcher!r}", fix=fix)
        if launcher == "python" and self.processes_per_node > 1:
            fix = '`launcher="torchrun"`, or `processes_per_node=1`'
            raise BadInput("python starts one process in each pod", about=f"launcher={launcher!r}", fix=fix)
        self.launcher = launcher

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
        if self.launcher == "python":
            command = ["python"]
        target = ["-m", self._target[1]] if self.launcher == "python" and self._target[1:] else self._target
        address = {"name": "MASTER_ADDR", "value": f"{self.name}-0.{self.name}"}
        pod = self._pod_template(template, command=[*command, *escape_dollars(target)], env=[address])
        pod = merge(pod, {"spec": {"subdomain": self.name}})
        spec = {"completions": self.nodes, "parallelism": self.nodes, "template": pod}
        return merge(item, {"spec": spec})
