"""Training with parameter servers: a master creates workers and servers, and assigns the records.

The programs are in ``trainers/parameter_server``. Here are the Kubernetes objects: the master's Job,
ServiceAccount, Role and Service, the programs, the user's file, and the pod templates of workers and servers.
"""

import ast
import copy
import json
from collections.abc import Mapping, Sequence
from pathlib import Path, PurePosixPath
from types import MappingProxyType
from typing import Any, Self

from kitlib import config
from kitlib.clusters import Cluster
from kitlib.datasets.dataset import Dataset
from kitlib.display.signatures import checked_class
from kitlib.errors import BadInput
from kitlib.jobs.base import TrainingJob
from kitlib.jobs.program import TrainerProgram
from kitlib.jobs.sources import escape_dollars
from kitlib.jobs.syntax import parse
from kitlib.k8s import job_kinds, names
from kitlib.k8s.manifests import Object, merge
from kitlib.k8s.quantities import check_count

ROLES = ("master", "ps", "worker")
SIGNATURES = {
    "model": "model() -> nn.Module",
    "loss": "loss(outputs, labels)",
    "optimizer": "optimizer(parameters)",
    "dataset": "dataset(record: bytes) -> (tensor, label)",
}
MAX_WORKERS, MAX_SERVERS = 1000, 100
OPTIONS = {  # of the master, with their bounds
    "epochs": (1, 100_000),
    "minibatch_size": (1, 2**20),
    "minibatches_per_task": (1, 2**20),
    "evaluation_steps": (0, 2**30),
}
MAX_NAME = 40  # leaves room for "elasticdl-" and "-worker-" with a number


@checked_class
class ParameterServer(TrainingJob):
    """Elastic training with parameter servers, as in ElasticDL: workers may join and leave at any time.

    Args:
        trainer: Path of a Python file that defines ``model()``, ``loss(outputs, labels)``,
            ``optimizer(parameters)`` and ``dataset(record)``.
        data: The records: a `kitlib.datasets.Dataset`, by ``kit.prepare_dataset(…, records=True)``, or its
            path.
        workers: Number of workers, which compute gradients; ``run.scale(n)`` changes it.
        servers: Number of servers, each with a shard of the model.
        epochs: Passes over the data.
        minibatch_size: Records per gradient.
        minibatches_per_task: Minibatches in a task, the unit of work of a worker.
        evaluation_steps: Minibatches between two evaluations; 0 evaluates only at the end.
        grads_to_wait: Gradients to average in an update; 1 applies each immediately.
        args: Further flags of ``parameter_server.master``, such as ``{"max_staleness": 8, "lr": 0.1}``.
        model_file: Path of the trained model, on a volume; by default ``/data/models/<name>.pt``.
        volumes: Mount paths and volumes; by default the dataset's volume at ``/data``.
        cpu: Cores of each worker, as for `TrainingJob`.
        memory: Memory of each worker.
        gpus: GPUs of each worker; master and servers have none.
        priority: PriorityClasses by role: ``{"worker": "low", "master": "high", "ps": "high"}``.
        image: Of all pods; by default ``TRAINYARD_IMAGE``, or the cluster's own.
        run_as_user: User id of all pods, as for `TrainingJob`.
        name: Of the run; by default unique, from the trainer's name.

    Raises:
        BadInput: An argument is invalid: no servers, no workers, a file without the four functions, …

    Example:
        >>> data = kit.prepare_dataset("mnist", volume=volume, records=True)
        >>> job = ParameterServer("trainers/mnist_parameter_server.py", data=data, workers=4, servers=2)
        >>> launch(job).wait()
    """

    folder = "parameter-server"
    additions_without_gpus: Mapping[str, Any] = MappingProxyType({})

    def __init__(
        self,
        trainer: str | Path | TrainerProgram,
        *,
        data: Dataset | str,
        workers: int = 4,
        servers: int = 2,
        epochs: int = 1,
        minibatch_size: int = 64,
        minibatches_per_task: int = 8,
        evaluation_steps: int = 0,
        grads_to_wait: int = 1,
        args: Mapping[str, Any] | Sequence[object] = (),
        model_file: str | None = None,
        volumes: Mapping[str, object] | None = None,
        cpu: str | float | None = None,
        memory: str | None = None,
        gpus: int | None = None,
        priority: Mapping[str, str] | None = None,
        image: str | None = None,
        run_as_user: int | None = None,
        name: str | None = None,
    ) -> None:
        if isinstance(args, Mapping):  # flags of the master, which the trainer does not declare
            args = {str(flag).replace("_", "-"): value for flag, value in args.items()}
        path = trainer.path if isinstance(trainer, TrainerProgram) else Path(trainer)
        stem = names.slug(path.stem, MAX_NAME - 6).rstrip("-")
        name = names.validate_name(names.unique(stem) if name is None else name, kind="run", longest=MAX_NAME)
        self.dataset: Dataset | None = None if isinstance(data, str) else data
        if volumes is None and self.dataset is not None:
            volumes = {str(PurePosixPath(self.dataset.path).parent): self.dataset.volume}
        super().__init__(
            trainer,
            nodes=check_count(workers, what="workers", least=1, most=MAX_WORKERS),
            processes_per_node=1,
            volumes=volumes,
            args=args,
            cpu=cpu,
            memory=memory,
            gpus=gpus,
            image=image,
            run_as_user=run_as_user,
            name=name,
        )
        if not isinstance(trainer, TrainerProgram):
            check_functions(self.trainer, SIGNATURES, fix="trainers/mnist_parameter_server.py is an example")
        self.data: str = data if isinstance(data, str) else data.path
        self.root: str = self._volume_of(self.data, what="data")
        self.ranks = {}  # it has no process group
        self.model_file: str = model_file or f"{self.root}/models/{self.name}.pt"
        self._volume_of(self.model_file, what="model_file")
        self.servers: int = check_count(servers, what="servers", least=1, most=MAX_SERVERS)
        self.options: dict[str, int] = {
            **_check_options(epochs=epochs, minibatch_size=minibatch_size),
            **_check_options(minibatches_per_task=minibatches_per_task, evaluation_steps=evaluation_steps),
            "grads_to_wait": _check_grads(grads_to_wait, workers),
        }
        self.classes: dict[str, str] = _check_priorities(priority)
        self.priorities = tuple(dict.fromkeys(self.classes.values()))

    def _volume_of(self, path: str, *, what: str) -> str:
        """Return the mount path of the volume that has a path."""
        pure = PurePosixPath(path)
        mounts = [mount for mount in self.volumes if pure.is_relative_to(mount) and str(pure) != mount]
        if not mounts or ".." in pure.parts:
            raise BadInput(
                "this path is on none of the job's volumes",
                about=f"{what}={path!r}, volumes={dict(self.volumes)}",
                fix='`volumes={"/data": volume}`, and a path below /data',
            )
        return max(mounts, key=len)

    @property
    def workers(self) -> int:
        """The number of worker pods."""
        return self.nodes

    @property
    def _pods(self) -> int:
        return self.workers + self.servers + 1

    def bind(self, cluster: Cluster) -> Self:
        bound = super().bind(cluster)
        bound.additions_without_gpus = cluster.pod_additions()
        return bound

    @property
    def _without_gpus(self) -> Object:
        """The provider's additions to the pod spec of the master and the servers."""
        additions = self.additions_without_gpus
        tolerations = [*self.settings.tolerations, *additions.get("tolerations", [])]
        return {**additions, "tolerations": tolerations or None}

    def build(self) -> list[Object]:
        """Build the ConfigMaps, and the master's ServiceAccount, Role, RoleBinding, Service and Job."""
        folder = config.DATA / "trainers" / "parameter_server"
        programs = {path.name: path.read_text("utf-8") for path in sorted(folder.glob("*.py"))}
        pods = {
            f"{role}.json": json.dumps(self._admitted(self._pod(role, self._read(role))), indent=1)
            for role in ROLES[1:]
        }
        master = self._object_name("-master")
        rules = copy.deepcopy(self._read("role")["rules"])
        for rule in rules:
            if "resourceNames" in rule:
                rule["resourceNames"] = [master]
        binding = merge(self._own("rolebinding", "-master"), {"roleRef": {"name": master}})
        selector = {"elasticdl-job-name": self.name}
        return [
            self._config_map(),
            self._own("package", "-package") | {"data": programs},
            self._own("templates", "-templates") | {"data": pods},
            self._own("serviceaccount", "-master"),
            merge(self._own("role", "-master"), {"rules": rules}),
            binding | {"subjects": [{"kind": "ServiceAccount", "name": master}]},
            merge(self._own("service", "-master"), {"spec": {"selector": selector}}),
            self._main(),
        ]

    @property
    def objects(self) -> list[Object]:
        *others, job = super().objects
        template = job["spec"]["template"]
        meta = {"name": job["metadata"]["name"]} | template["metadata"]
        pod = {"apiVersion": "v1", "kind": "Pod", "metadata": meta, "spec": template["spec"]}
        return [*others, pod, job]  # the Job adopts the pod

    def _main(self) -> Object:
        """Build the master's Job."""
        item = self._own("job", "-master")
        annotations = {job_kinds.REPLICAS: str(self.workers), job_kinds.SERVERS: str(self.servers)}
        pod = self._pod("master", item["spec"]["template"])
        (container,) = pod["spec"]["containers"]
        *command, _ = container["command"]
        state = f"--state-dir={self.root}/parameter-server/{self.name}"
        owner = {"name": "JOB_NAME", "value": self._object_name("-master")}
        container |= {
            "command": [*command, *escape_dollars([state])],
            "args": escape_dollars([*self._flags(), *self.args]),
        }
        pod["spec"]["containers"] = [merge(container, {"env": [owner]})]
        pod["spec"] |= {"serviceAccountName": self._object_name("-master")}
        selector = {"matchLabels": {"elasticdl-job-name": self.name}}
        spec = {"selector": selector, "template": pod}
        return merge(item, {"metadata": {"annotations": annotations}, "spec": spec})

    def _flags(self) -> list[str]:
        flags = {
            "job": self.name,
            "trainer": self._path,
            "records": f"{self.data}/records/train.npy",
            "test-records": f"{self.data}/records/test.npy",
            "model-file": self.model_file,
            "workers": self.workers,
            "servers": self.servers,
        }
        flags |= {name.replace("_", "-"): value for name, value in self.options.items()}
        if self.dataset is not None:
            flags |= {"dataset": self.dataset.name, "classes": ",".join(self.dataset.classes)}
        return [f"--{name}={value}" for name, value in flags.items()]

    def _resources_for(self, role: str) -> Object:
        if role == "worker":
            return self._resources
        return merge(self._resources_of(None, None), {"limits": {"memory": self.memory}})

    def _object_name(self, suffix: str) -> str:
        return f"elasticdl-{self.name}{suffix}"

    def _own(self, kind: str, suffix: str) -> Object:
        return merge(self._read(kind), {"metadata": {"name": self._object_name(suffix)}})

    def _pod(self, role: str, template: Object) -> Object:
        (base,) = template["spec"]["containers"]
        role_labels = {"elasticdl-job-name": self.name, "elasticdl-replica-type": role}
        role_labels |= {names.REPLICA: role} if role == "master" else {}  # the master labels the others
        is_worker = role == "worker"
        address = f"{self._object_name('-master')}:50001"
        container = merge(
            base,
            {
                "image": self.image,
                "env": [*base["env"], *(self._environment if is_worker else [])],
                "volumeMounts": [*base["volumeMounts"], *self._mounts],
                "resources": self._resources_for(role),
            },
        )
        if role != "master":
            env = [{"name": "MASTER_ADDR", "value": address}]
            container = merge(container, {"args": [f"--master={address}"], "env": env})
        maps = ("package", "templates") if role == "master" else ("package",)
        map_volumes = [{"name": name, "configMap": {"name": self._object_name(f"-{name}")}} for name in maps]
        spec = {
            "containers": [container],
            "volumes": [*map_volumes, *self._pod_volumes],
            "priorityClassName": self.classes.get(role),
            "imagePullSecrets": self.settings.pull_secrets,
            **(self._pod_additions() if is_worker else self._without_gpus),
        }
        meta: Object = {"labels": {**self.labels, **role_labels, names.ROLE: role}}
        if self.annotations:
            meta["annotations"] = dict(self.annotations)
        if template.get("kind") == "Pod":
            meta["name"] = self._object_name(f"-{role}-0")
        return merge(template, {"metadata": meta, "spec": spec})


def check_functions(trainer: Path, signatures: Mapping[str, str], *, fix: str) -> None:
    """Raise BadInput if a file is not Python, or lacks a function of ``signatures``, which are by name."""
    defined: set[str] = set()
    try:
        tree = parse(trainer.read_bytes(), filename=str(trainer))
    except (SyntaxError, ValueError) as error:  # the latter for null bytes, before Python 3.12
        what = f"the model file is not valid Python: {error}"
        raise BadInput(what, about=f"trainer {trainer}", fix="correct that line") from error
    for node in tree.body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            defined.add(node.name)
        elif isinstance(node, ast.Import | ast.ImportFrom):
            defined |= {alias.asname or alias.name for alias in node.names}
        elif isinstance(node, ast.Assign | ast.AnnAssign):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            defined |= {target.id for target in targets if isinstance(target, ast.Name)}
    missing = [signature for name, signature in signatures.items() if name not in defined]
    if missing:
        raise BadInput(
            f"the model file does not define {', '.join(missing)}",
            about=f"trainer {trainer}",
            fix=f"define them at the top level of the file; {fix}",
        )


def _check_options(**options: int) -> dict[str, int]:
    counts = {}
    for name, value in options.items():
        least, most = OPTIONS[name]
        counts[name.removesuffix("_size")] = check_count(value, what=name, least=least, most=most)
    return counts


def _check_grads(grads_to_wait: int, workers: int) -> int:
    check_count(grads_to_wait, what="grads_to_wait", least=1, most=MAX_WORKERS)
    if grads_to_wait > workers:
        raise BadInput(
            "an update waits for more gradients than there are workers",
            about=f"grads_to_wait={grads_to_wait}, workers={workers}",
            fix=f"`grads_to_wait={workers}` at most; 1 applies each gradient immediately",
        )
    return grads_to_wait


def _check_priorities(priority: Mapping[str, str] | None) -> dict[str, str]:
    raw: object = priority or {}
    if not isinstance(raw, Mapping) or not set(raw) <= set(ROLES):
        fix = 'the roles are master, ps and worker: `priority={"worker": "low"}`'
        raise BadInput("priority is a dict by role", about=f"priority={priority!r}", fix=fix)
    return {role: names.validate_name(name, kind="priority class") for role, name in raw.items()}
