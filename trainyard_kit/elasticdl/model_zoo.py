"""Jobs of ``elasticdl``: a module of a model zoo, trained, evaluated or used for predictions.

A model zoo is a folder of modules with ElasticDL's functions: ``custom_model``, ``loss``, ``optimizer``,
``feed``, ``eval_metrics_fn``. Pods get it from a ConfigMap, or from their image. The command line is in
`trainyard_kit.elasticdl.commands`.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Any

from kitlib.errors import BadInput
from kitlib.jobs.layout import FOLDER
from kitlib.jobs.program import TrainerProgram
from kitlib.jobs.sources import Sources, check_size, content_of, escape_dollars, flags
from kitlib.k8s.manifests import Object, merge
from kitlib.k8s.quantities import GPU
from trainyard_kit.elasticdl.parameter_server import ParameterServer, check_functions

IMAGE_ROOT = "/"  # of relative paths in an image
TRAINING = "training"
SIGNATURES = {
    "model": "{}()",
    "loss": "{}(labels, predictions)",
    "optimizer": "{}(parameters)",
    "feed": "{}(dataset, mode, metadata)",
}


@dataclass(frozen=True)
class ModelZoo:
    """A module of a model zoo.

    Attributes:
        folder: The zoo's folder, local or in the image.
        module: The module's path in the folder.
        functions: Names of its functions by role: ``{"model": "custom_model", "loss": "loss", …}``.
        in_image: Whether the folder is in the pods' image.
    """

    folder: PurePosixPath
    module: PurePosixPath
    functions: Mapping[str, str] = field(default_factory=dict)
    in_image: bool = False

    @property
    def sources(self) -> Sources:
        """The zoo's modules by their paths; none if they are in the image."""
        if self.in_image:
            return {}
        root = Path(self.folder)
        paths = (path.relative_to(root) for path in sorted(root.rglob("*.py")))
        visible = (path for path in paths if not any(part.startswith(".") for part in path.parts))
        sources = {path.as_posix(): content_of(root / path) for path in visible}
        return check_size(sources, about=f"model zoo {root}")


def find_zoo(folder: str, model_def: str, functions: Mapping[str, str], *, in_image: bool) -> ModelZoo:
    """Find ``package.module.function`` in a model zoo's folder, local or in the image."""
    *path, function = model_def.split(".")
    if not path or not all(part.isidentifier() for part in (*path, function)):
        fix = "--model_def=mnist_functional_api.mnist_functional_api.custom_model"
        raise BadInput("this is not package.module.function", about=f"--model_def={model_def}", fix=fix)
    module = PurePosixPath(*path).with_suffix(".py")
    all_functions = {"model": function, **functions}
    if in_image:
        return ModelZoo(PurePosixPath(IMAGE_ROOT, folder), module, all_functions, in_image=True)
    root = Path(folder).resolve()
    if not root.is_dir() and Path.cwd().name == folder.rstrip("/"):
        root = Path.cwd()
    about = f"--model_zoo={folder} --model_def={model_def}, looked for in {root}"
    if not (root / module).is_file():
        modules = sorted(str(path.relative_to(root)) for path in root.rglob("*.py"))[:5]
        what = f"the model zoo has no {module}" if root.is_dir() else "there is no such model zoo"
        existing = f"it has {', '.join(modules)}; " if modules else ""
        fix = f"{existing}`elasticdl zoo init` in an empty folder writes an example"
        raise BadInput(what, about=about, fix=fix)
    required = {all_functions[role]: text.format(all_functions[role]) for role, text in SIGNATURES.items()}
    check_functions(root / module, required, fix="`elasticdl zoo init` writes an example")
    return ModelZoo(PurePosixPath(root), module, all_functions)


class ModelZooJob(ParameterServer):
    """A job that `elasticdl` submits.

    Args:
        zoo: The module.
        mode: ``training``, ``evaluation`` or ``prediction``.
        data: Path of the records to train on, to evaluate or to predict.
        validation: Path of the records for evaluations during training; empty for none.
        output: The model file, or a folder for ``model.pt``; empty for none.
        init: The initial model: a model file, or a folder with one or with checkpoints; empty for none.
        state_dir: Folder of the master's state and the checkpoints; by default on the data's volume.
        requests: By role, as in a container's ``resources``; the workers' GPUs are ``gpus``.
        limits: By role; by default the requests.
        pull_policy: Of the image.
        environment: Variables of all pods.
        log_level: Of the human-readable log.
        args: Further flags of the master.
        job: Other arguments of `ParameterServer`.
    """

    def __init__(
        self,
        zoo: ModelZoo,
        *,
        mode: str,
        data: str,
        validation: str = "",
        output: str = "",
        init: str = "",
        state_dir: str = "",
        requests: Mapping[str, Mapping[str, str]],
        limits: Mapping[str, Mapping[str, str]],
        pull_policy: str,
        environment: Mapping[str, str],
        log_level: str,
        args: Mapping[str, Any] | Sequence[object] = (),
        **job: Any,
    ) -> None:
        self.zoo, self.mode, self.validation, self.init = zoo, mode, validation, init
        self.requests, self.limits, self.pull_policy = requests, limits, pull_policy
        self.environment, self.log_level = environment, log_level
        if isinstance(args, Mapping):
            args = {str(flag).replace("_", "-"): value for flag, value in args.items()}
        program = TrainerProgram(Path(zoo.module), zoo.sources, flags(args))
        super().__init__(program, data=data, **job)
        file = output if not output or output.endswith(".pt") else f"{output.rstrip('/')}/model.pt"
        self.model_file, self.state_dir = file, state_dir
        if mode != TRAINING:
            self.options["epochs"] = 0

    @property
    def _folder(self) -> str:
        return str(self.zoo.folder) if self.zoo.in_image else FOLDER

    @property
    def _path(self) -> str:
        return f"{self._folder}/{self.zoo.module}"

    def _main(self) -> Object:
        main = super()._main()
        if self.state_dir:
            (master,) = main["spec"]["template"]["spec"]["containers"]
            master["command"][-1] = escape_dollars([f"--state-dir={self.state_dir}"])[0]
        return main

    def _flags(self) -> list[str]:
        flags = {
            "job": self.name,
            "trainer": self._path,
            "model-zoo": self._folder,
            "functions": json.dumps(self.zoo.functions),
            "mode": self.mode,
            "records": self.data,
            "test-records": self.validation if self.mode == TRAINING else self.data,
            "model-file": self.model_file,
            "init": self.init,
            "log-level": self.log_level,
            "workers": self.workers,
            "servers": self.servers,
        }
        flags |= {name.replace("_", "-"): value for name, value in self.options.items()}
        return [f"--{name}={value}" for name, value in flags.items() if value != ""]

    def _resources_for(self, role: str) -> Object:
        requests, limits = self.requests[role], {**self.requests[role], **self.limits[role]}
        if role == "worker" and self.gpus:
            limits |= {GPU: str(self.gpus)}
        return {"requests": requests, "limits": limits}

    def _pod(self, role: str, template: Object) -> Object:
        pod = super()._pod(role, template)
        variables = [{"name": name, "value": value} for name, value in self.environment.items()]
        pod["spec"]["containers"] = [
            merge(container, {"imagePullPolicy": self.pull_policy, "env": variables})
            for container in pod["spec"]["containers"]
        ]
        return pod
