"""Distributed training by a TrainJob of Kubeflow Trainer v2: the program here, the pods in a runtime.

The controller makes a JobSet of both. What a TrainJob cannot patch in its pods, such as their priority and a
spread over the nodes, belongs in the runtime and is not here.
"""

from pathlib import Path, PurePosixPath
from typing import Unpack

from kitlib.display.signatures import checked_class
from kitlib.errors import BadInput
from kitlib.jobs.base import WORKSPACE, JobArguments, TrainingJob
from kitlib.jobs.sources import escape_dollars, volume_of
from kitlib.k8s.manifests import Object, merge

OTHER_JOBS = "use kit.PyTorchJob or kit.IndexedJob"


@checked_class
class TrainJob(TrainingJob):
    """A training program on several nodes, by the runtime torch-distributed of ``kit.install("trainer")``.

    The arguments are those of `TrainingJob`, but for the priority: the runtime sets it, since a TrainJob
    cannot.

    Example:
        >>> job = TrainJob("trainers/digits_ddp.py", nodes=2, processes_per_node=2)
        >>> launch(job).wait()
    """

    folder = "train-job"
    copies_files = False

    def __init__(
        self, trainer: str | Path | None = None, *, nodes: int = 4, **job: Unpack[JobArguments]
    ) -> None:
        super().__init__(trainer, nodes=nodes, **job)
        if self.remote:
            fix = f"name a file here, or {OTHER_JOBS}"
            raise self._cannot("be given a container that fetches a trainer", f"trainer {trainer}", fix)
        if self.priorities:
            fix = f"{OTHER_JOBS}, or name it in the ClusterTrainingRuntime"
            raise self._cannot("name the PriorityClass of its pods", f'priority="{self.priorities[0]}"', fix)

    def _cannot(self, what: str, about: str, fix: str) -> BadInput:
        return BadInput(f"a TrainJob cannot {what}", about=f'TrainJob "{self.name}", {about}', fix=fix)

    def _main(self) -> Object:
        item = self._read("trainjob", file=self.file)
        spec = item["spec"]
        trainer = {
            "numNodes": self.nodes,
            "numProcPerNode": self.processes_per_node,
            "image": self.image,
            "command": [*spec["trainer"]["command"][:-1], *escape_dollars(self._target)],
            "args": escape_dollars(self.args),
            "env": [*self._with_environment(spec["trainer"]["env"]), *self.security.environment],
            "resourcesPerNode": self._resources,
        }
        (patch,) = spec["runtimePatches"]
        (job,) = patch["trainingRuntimeSpec"]["template"]["spec"]["replicatedJobs"]
        job["template"]["spec"]["template"] = self._patched(job["template"]["spec"]["template"])
        return merge(item, {"spec": {"trainer": trainer}})

    def _patched(self, template: Object) -> Object:
        """Fill in the patch of the runtime's pod template."""
        self._drop_replaced(template["spec"])
        (container,) = template["spec"]["containers"]
        # Patches cannot add an init container that would copy the files.
        folder = PurePosixPath(self.layout.folder if self.layout else ".")
        named = {path: f"file-{index}" for index, path in enumerate(self.files)}
        files = [
            volume_of(self.sources, name=self.name, modes=self.modes, below=str(folder / path))
            | {"name": name}
            for path, name in named.items()
        ]
        mounts = [*container["volumeMounts"], *self._mounts]
        mounts += [
            {
                "name": name,
                "mountPath": f"{WORKSPACE}/{path}",
                "subPath": str(folder / path),
                "readOnly": True,
            }
            for path, name in named.items()
        ]
        spec = {
            "containers": [container | {"volumeMounts": mounts}],
            "volumes": [*self._pod_volumes, *files],
            "imagePullSecrets": self.settings.pull_secrets,
            **self._pod_additions(),
        }
        meta = {"labels": self.labels, "annotations": dict(self.annotations) or None}
        return merge(template, {"metadata": meta, "spec": spec})
