"""Training with parameter servers: a master that makes workers and servers, and hands out the records.

What the programs do is in ``trainers/parameter_server``; which pods there are at any time is the master's
business, which has an account of its own for that. Here is what it is given: its rights, its Service, the
programs, the user's file, and what a worker's and a server's pod are like.
"""

import ast
import copy
import json
from collections.abc import Mapping
from pathlib import Path, PurePosixPath
from typing import Any

from kitlib import config
from kitlib.errors import BadInput
from kitlib.jobs.base import TrainingJob
from kitlib.k8s import job_kinds, names
from kitlib.k8s.manifests import Object, merge
from kitlib.k8s.quantities import check_count, check_quantity

ROLES = ("master", "ps", "worker")
NEEDED = {
    "model": "model() -> nn.Module",
    "loss": "loss(outputs, labels)",
    "optimizer": "optimizer(parameters)",
    "dataset": "dataset(record: bytes) -> (tensor, label)",
}
MOST_WORKERS, MOST_SERVERS = 1000, 100
MAX_NAME = 40  # leaves room for "elasticdl-" and "-worker-" with a number


class ParameterServer(TrainingJob):
    """A model on parameter servers, trained by workers that come and go, as ElasticDL does it.

    Args:
        trainer: Path of a Python file that defines ``model()``, ``loss(outputs, labels)``,
            ``optimizer(parameters)`` and ``dataset(record)``.
        data: Where the records are: a `kitlib.datasets.Dataset`, by ``kit.prepare_dataset(…, records=True)``,
            or its path.
        workers: How many compute gradients; ``run.scale(n)`` changes it.
        servers: How many hold a part of the model each.
        epochs: How often each record counts.
        minibatch_size: Records in a gradient.
        minibatches_per_task: Gradients in a task, which is what a worker gets at a time.
        evaluation_steps: Minibatches between two evaluations beside the training; 0: at its end alone.
        grads_to_wait: 1 applies each gradient when it comes; more wait for so many, and apply their mean.
        args: More flags of ``parameter_server.master``, such as ``{"max_staleness": 8, "lr": 0.1}``.
        model_file: Where the trained model goes, on a volume; by default ``/data/models/<name>.pt``.
        volumes: What the pods see where; by default the data set's volume at ``/data``.
        resources: By role, ``{"worker": {"cpu": 0.5, "memory": "512Mi"}}``; roles are master, ps, worker.
        priority: PriorityClasses by role: ``{"worker": "low", "master": "high", "ps": "high"}``.
        image: Of all pods; by default ``TRAINYARD_IMAGE``, or PyTorch's official one.
        pull_secret: The Secret by which nodes may pull it.
        name: Of the run; by default made from the trainer's, and unique.

    Raises:
        BadInput: An argument cannot be used: no servers, no workers, a file without the four functions …

    Example:
        >>> data = kit.prepare_dataset("mnist", volume=volume, records=True)
        >>> job = ParameterServer("trainers/mnist_parameter_server.py", data=data, workers=4, servers=2)
        >>> launch(job).wait()
    """

    folder = "parameter-server"

    def __init__(
        self,
        trainer: str | Path,
        *,
        data: Any,
        workers: int = 4,
        servers: int = 2,
        epochs: int = 1,
        minibatch_size: int = 64,
        minibatches_per_task: int = 8,
        evaluation_steps: int = 0,
        grads_to_wait: int = 1,
        args: Mapping = (),
        model_file: str | None = None,
        volumes: Mapping[str, object] | None = None,
        resources: Mapping[str, Mapping] | None = None,
        priority: Mapping[str, str] | None = None,
        image: str | None = None,
        pull_secret: str | None = None,
        name: str | None = None,
    ) -> None:
        if name is not None:
            names.validate_name(name, kind="run", longest=MAX_NAME)
        self.about = None if isinstance(data, str) else data
        if volumes is None and self.about is not None:
            volumes = {str(PurePosixPath(data.path).parent): data.volume}
        super().__init__(
            trainer, nodes=1, volumes=volumes, args=args, image=image, pull_secret=pull_secret, name=name
        )
        if name is None:
            self.name = names.unique(names.slug(self.trainer.stem, MAX_NAME - 6).rstrip("-"))
            self.labels = self.labels | {names.RUN: self.name}
        _check_functions(self.trainer)
        self.data = data if isinstance(data, str) else data.path
        self.root = self._volume_of(self.data, what="data")
        self.model_file = model_file or f"{self.root}/models/{self.name}.pt"
        self._volume_of(self.model_file, what="model_file")
        self.workers = check_count(workers, what="workers", least=1, most=MOST_WORKERS)
        self.servers = check_count(servers, what="servers", least=1, most=MOST_SERVERS)
        self.options = {
            "epochs": check_count(epochs, what="epochs", least=1, most=100_000),
            "minibatch": check_count(minibatch_size, what="minibatch_size", least=1, most=2**20),
            "minibatches_per_task": check_count(
                minibatches_per_task, what="minibatches_per_task", least=1, most=2**20
            ),
            "evaluation_steps": check_count(evaluation_steps, what="evaluation_steps", least=0, most=2**30),
            "grads_to_wait": check_count(grads_to_wait, what="grads_to_wait", least=1, most=MOST_WORKERS),
        }
        if grads_to_wait > workers:
            raise BadInput(
                "more gradients are waited for than there are workers to compute them",
                about=f"grads_to_wait={grads_to_wait}, workers={workers}",
                fix=f"grads_to_wait={workers} at most; 1 applies each gradient when it comes",
            )
        self.asked = _by_role(resources, what="resources", check=_resources)
        self.classes = _by_role(priority, what="priority", check=_priority)
        self.priorities = tuple(dict.fromkeys(self.classes.values()))

    def _volume_of(self, path: str, *, what: str) -> str:
        """Return where the volume is mounted on which something lies."""
        place = PurePosixPath(path)
        holding = [each for each in self.volumes if place.is_relative_to(each) and str(place) != each]
        if not holding or ".." in place.parts:
            raise BadInput(
                "this lies on none of the job's volumes",
                about=f"{what}={path!r}, volumes={dict(self.volumes)}",
                fix='volumes={"/data": volume}, and a place below /data',
            )
        return max(holding, key=len)

    # Objects

    def build(self) -> list[Object]:
        """Return the programs, the pods' templates, the master's account, rights and Service, and its Job."""
        return [
            self.config_map(),
            self._package(),
            self._templates(),
            self._own("serviceaccount", "-master"),
            merge(self._own("role", "-master"), {"rules": self._rules()}),
            self._role_binding(),
            merge(
                self._own("service", "-master"),
                {"spec": {"selector": {"elasticdl-job-name": self.name}}},
            ),
            self.main(),
        ]

    def main(self) -> Object:
        """Return the master's Job."""
        item = self._own("job", "-master")
        notes = {job_kinds.REPLICAS: str(self.workers), job_kinds.SERVERS: str(self.servers)}
        pod = self._pod("master", item["spec"]["template"])
        (container,) = pod["spec"]["containers"]
        *command, _ = container["command"]
        state = f"--state-dir={self.root}/parameter-server/{self.name}/$(RUN_ID)"
        container |= {"command": [*command, state], "args": [*self._flags(), *self.args]}
        pod["spec"] |= {"serviceAccountName": self._called("-master")}
        spec = {"template": pod}
        return merge(item, {"metadata": {"annotations": notes}, "spec": spec})

    def _flags(self) -> list[str]:
        given = {
            "job": self.name,
            "trainer": self.path,
            "records": f"{self.data}/records/train.npy",
            "test-records": f"{self.data}/records/test.npy",
            "model-file": self.model_file,
            "workers": self.workers,
            "servers": self.servers,
        }
        given |= {name.replace("_", "-"): value for name, value in self.options.items()}
        if self.about is not None:
            given |= {"dataset": self.about.name, "classes": ",".join(self.about.classes)}
        return [f"--{name}={value}" for name, value in given.items()]

    def _called(self, suffix: str) -> str:
        return f"elasticdl-{self.name}{suffix}"

    def _own(self, kind: str, suffix: str) -> Object:
        return merge(self.read(kind), {"metadata": {"name": self._called(suffix)}})

    def _package(self) -> Object:
        folder = config.DATA / "trainers" / "parameter_server"
        files = {path.name: path.read_text("utf-8") for path in sorted(folder.glob("*.py"))}
        return self._own("package", "-package") | {"data": files}

    def _templates(self) -> Object:
        pods = {role: self._pod(role, self.read(role)) for role in ROLES[1:]}
        data = {f"{role}.json": json.dumps(pod, indent=1) for role, pod in pods.items()}
        return self._own("templates", "-templates") | {"data": data}

    def _rules(self) -> list[Object]:
        rules = copy.deepcopy(self.read("role")["rules"])
        for rule in rules:
            if "resourceNames" in rule:
                rule["resourceNames"] = [self._called("-master")]
        return rules

    def _role_binding(self) -> Object:
        name, item = self._called("-master"), self._own("rolebinding", "-master")
        subjects = [{"kind": "ServiceAccount", "name": name}]
        return merge(item, {"roleRef": {"name": name}}) | {"subjects": subjects}

    def _pod(self, role: str, template: Object) -> Object:
        """Return a pod, or a Job's pod template, of one role, filled in."""
        (there,) = template["spec"]["containers"]
        own = {"elasticdl-job-name": self.name, "elasticdl-replica-type": role}
        address = f"{self._called('-master')}:50001"
        container = merge(
            there,
            {
                "image": self.settings.image,
                "volumeMounts": [*there["volumeMounts"], *self.mounts],
                "resources": self.asked.get(role) or {},
            },
        )
        if role != "master":
            env = [{"name": "MASTER_ADDR", "value": address}]
            container = merge(container, {"args": [f"--master={address}"], "env": env})
        maps = {"package": self._called("-package"), "trainer": self.name}
        maps |= {"templates": self._called("-templates")} if role == "master" else {}
        mapped = [{"name": each, "configMap": {"name": name}} for each, name in maps.items()]
        claimed = [each for each in self.pod_volumes if each["name"] != "trainer"]
        additions = dict(self.additions)
        tolerations = [*self.tolerations, *additions.pop("tolerations", [])]
        spec = {
            "containers": [container],
            "volumes": [*mapped, *claimed],
            "tolerations": tolerations or None,
            "priorityClassName": self.classes.get(role),
            "imagePullSecrets": self.settings.pull_secrets,
            **additions,
        }
        meta = {"labels": {**self.labels, **own, names.ROLE: role}}
        if self.annotations:
            meta["annotations"] = dict(self.annotations)
        if template.get("kind") == "Pod":
            meta["name"] = self._called(f"-{role}-0")
        return merge(template, {"metadata": meta, "spec": spec})


def _check_functions(trainer: Path) -> None:
    """See that the file defines what the workers call, without running it."""
    defined: set[str] = set()
    for node in ast.parse(trainer.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            defined.add(node.name)
        elif isinstance(node, ast.Import | ast.ImportFrom):
            defined |= {alias.asname or alias.name for alias in node.names}
        elif isinstance(node, ast.Assign | ast.AnnAssign):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            defined |= {each.id for each in targets if isinstance(each, ast.Name)}
    lacking = [words for name, words in NEEDED.items() if name not in defined]
    if lacking:
        raise BadInput(
            f"the model file does not define {', '.join(lacking)}",
            about=f"trainer {trainer}",
            fix="define it at the top of the file; trainers/mnist_parameter_server.py is an example",
        )


def _by_role(given: Mapping | None, *, what: str, check) -> dict:
    """Return what is asked for by role, checked."""
    example = {"resources": '{"worker": {"cpu": 0.5, "memory": "512Mi"}}', "priority": '{"worker": "low"}'}
    fix = f"{what}={example[what]}"
    if not isinstance(given or {}, Mapping):
        raise BadInput(f"{what} is a dict by role", about=f"{what}={given!r}", fix=fix)
    unknown = sorted(set(given or {}) - set(ROLES))
    if unknown:
        raise BadInput(
            f"there is no role {', '.join(unknown)}: roles are master, ps and worker",
            about=f"{what}={dict(given)!r}",
            fix=fix,
        )
    return {role: check(asked, fix) for role, asked in (given or {}).items()}


def _resources(asked: object, fix: str) -> Object:
    if not isinstance(asked, Mapping) or not set(asked) <= {"cpu", "memory"}:
        raise BadInput("a role's resources are cpu and memory", about=repr(asked), fix=fix)
    checked = {
        what: check_quantity(value, what=what, example={"cpu": "0.5", "memory": '"512Mi"'}[what])
        for what, value in asked.items()
        if value is not None
    }
    return {"requests": checked, "limits": checked}


def _priority(asked: object, fix: str) -> str:
    return names.validate_name(asked, kind="priority class")
