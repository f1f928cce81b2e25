"""Distributed training by an Indexed Job: pods with numbers, a headless Service, and torchrun's static
rendezvous.

The simplest of the ways: nothing but Kubernetes itself. It starts and ends with a fixed number of pods; what
is elastic is not here.
"""

import ast
from collections.abc import Mapping, Sequence
from pathlib import Path

from kitlib import manifests, names, settings
from kitlib.errors import BadInput
from kitlib.jobs.base import Job
from kitlib.manifests import Object, merge
from kitlib.quantities import check as check_quantity
from kitlib.quantities import check_count

MOST_NODES, MOST_GPUS = 1000, 16
CONFIG_MAP_BYTES = 1024 * 1024 - 4096  # etcd's limit, less what the object itself needs
GPU = "nvidia.com/gpu"


class IndexedJob(Job):
    """A training program on several nodes, one pod each.

    Args:
        trainer: Path of a Python file, as seen from here or from the root of the repository. It travels in a
            ConfigMap; torchrun starts it.
        nodes: How many pods, each on a node of its own as far as there are nodes.
        args: Flags of the trainer: ``{"epochs": 3, "amp": True}`` or ``["--epochs=3", "--amp"]``.
        cpu: Cores of each pod, such as 0.5 or "500m"; by default at most one, and whatever is free.
        memory: Memory of each pod, such as "2Gi"; by default not limited.
        gpus: GPUs of each pod; torchrun starts a process for each.
        name: Name of the run; by default made from the trainer's, and unique.

    Raises:
        BadInput: The trainer is missing, too large or no Python; or another argument cannot be used.

    Example:
        >>> job = IndexedJob("trainers/digits_ddp.py", nodes=4, args={"epochs": 12})
        >>> job.manifest
    """

    def __init__(
        self,
        trainer: str | Path,
        *,
        nodes: int = 4,
        args: Mapping | Sequence = (),
        cpu: str | float | None = None,
        memory: str | None = None,
        gpus: int = 0,
        name: str | None = None,
    ) -> None:
        self.trainer = settings.find(trainer)
        self.source = _read(self.trainer)
        self.nodes = check_count(nodes, what="nodes", least=1, most=MOST_NODES)
        self.args = flags(args)
        self.cpu = check_quantity(cpu, what="cpu", example="0.5")
        self.memory = check_quantity(memory, what="memory", example='"2Gi"')
        self.gpus = check_count(gpus, what="gpus", least=0, most=MOST_GPUS)
        self.name = (
            names.unique(self.trainer.stem)
            if name is None
            else names.check(name, kind="run", longest=names.MAX_RUN_NAME)
        )
        self.settings = settings.read()
        self.labels = names.labels(
            run=self.name, workshop=self.settings.workshop, lifetime=self.settings.lifetime
        )

    def build(self) -> list[Object]:
        """Return the ConfigMap, the Service and the Job."""
        return [self._config_map(), self._service(), self._job()]

    def _template(self, kind: str) -> Object:
        (item,) = manifests.read(settings.manifests("indexed-job", f"{kind}.yaml"))
        return merge(item, {"metadata": {"name": self.name, "labels": self.labels}})

    def _config_map(self) -> Object:
        return self._template("configmap") | {"data": {self.trainer.name: self.source}}

    def _service(self) -> Object:
        return merge(self._template("service"), {"spec": {"selector": {names.JOB_NAME: self.name}}})

    def _job(self) -> Object:
        item = self._template("job")
        (spread,) = item["spec"]["template"]["spec"]["topologySpreadConstraints"]
        (container,) = item["spec"]["template"]["spec"]["containers"]
        pod = {
            "subdomain": self.name,
            "topologySpreadConstraints": [
                merge(spread, {"labelSelector": {"matchLabels": {names.JOB_NAME: self.name}}})
            ],
            "containers": [self._container(container)],
            "volumes": [{"name": "trainer", "configMap": {"name": self.name}}],
        }
        if self.gpus:  # as GKE and EKS mark their GPU nodes
            pod["tolerations"] = [{"key": GPU, "operator": "Exists", "effect": "NoSchedule"}]
        return merge(
            item,
            {
                "spec": {
                    "completions": self.nodes,
                    "parallelism": self.nodes,
                    "template": {"metadata": {"labels": self.labels}, "spec": pod},
                }
            },
        )

    def _container(self, container: Object) -> Object:
        replaced = {"--nnodes": self.nodes, "--nproc-per-node": max(1, self.gpus)}
        command = [
            f"{flag}={replaced[flag]}" if (flag := word.split("=")[0]) in replaced else word
            for word in container["command"][:-1]
        ]
        return merge(
            container,
            {
                "image": self.settings.image,
                "command": [*command, f"/trainyard/trainer/{self.trainer.name}"],
                "args": self.args,
                "env": [{"name": "MASTER_ADDR", "value": f"{self.name}-0.{self.name}"}],
                "resources": self._resources(),
            },
        )

    def _resources(self) -> Object:
        asked = {"cpu": self.cpu, "memory": self.memory, GPU: str(self.gpus) if self.gpus else None}
        asked = {key: value for key, value in asked.items() if value is not None}
        return {"requests": asked, "limits": asked}


def flags(args: Mapping | Sequence) -> list[str]:
    """Return a trainer's flags as a command line's words.

    Example:
        >>> flags({"epochs": 3, "log_every": 5, "amp": True, "resume": None})
        ['--epochs=3', '--log-every=5', '--amp']

    Raises:
        BadInput: It is neither a dict nor a list.
    """
    if isinstance(args, Mapping):
        words = [
            f"--{str(key).replace('_', '-')}" + ("" if value is True else f"={value}")
            for key, value in args.items()
            if value is not None and value is not False
        ]
    elif isinstance(args, Sequence) and not isinstance(args, str | bytes):
        words = [str(each) for each in args]
    else:
        raise BadInput(
            "a trainer's arguments are a dict or a list", about=f"args={args!r}", fix='args={"epochs": 3}'
        )
    return [word.replace("$(", "$$(") for word in words]  # or Kubernetes would expand it


def _read(trainer: Path) -> str:
    """Return a trainer's source, once it is known to be one."""
    about = f"trainer {trainer}"
    try:
        source = trainer.read_text(encoding="utf-8")
        ast.parse(source, filename=str(trainer))
    except OSError as error:
        raise BadInput(
            f"the trainer cannot be read: {error.strerror}",
            about=about,
            fix="give the path of a file that you can read",
        ) from error
    except SyntaxError as error:
        line = (error.text or "").strip()
        raise BadInput(
            f"the trainer is not valid Python: {error.msg}",
            about=f"{about}, line {error.lineno}: {line}",
            fix="mend that line",
        ) from error
    except ValueError as error:  # bytes that are no UTF-8, or a null byte
        raise BadInput(
            f"the trainer is no Python source: {error}", about=about, fix="give a .py file"
        ) from error
    size = len(source.encode())
    if size > CONFIG_MAP_BYTES:
        raise BadInput(
            f"the trainer has {size:,} bytes, and a ConfigMap carries at most {CONFIG_MAP_BYTES:,}",
            about=about,
            fix="keep data out of the source; put it on a volume or into an image",
        )
    return source
