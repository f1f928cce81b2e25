"""Distributed training by a TrainJob of Kubeflow Trainer v2: the program here, the pods in a runtime.

The controller makes a JobSet of both. What a TrainJob of version 2.0 cannot say of its pods, such as labels
and a spread over the nodes, belongs in the runtime and is not here.
"""

from pathlib import Path
from typing import Any

from kitlib.errors import BadInput
from kitlib.jobs.base import WORKSPACE, TrainingJob
from kitlib.jobs.sources import literal, volume_of
from kitlib.k8s.manifests import Object, merge

OTHER_JOBS = "use kit.PyTorchJob or kit.IndexedJob"


class TrainJob(TrainingJob):
    """A training program on several nodes, by the runtime torch-distributed of ``kit.install("trainer")``.

    The arguments are those of `TrainingJob`, but for the priority: the runtime sets it, since a TrainJob of
    version 2.0 cannot.

    Example:
        >>> job = TrainJob("trainers/digits_ddp.py", nodes=2, processes_per_node=2)
        >>> launch(job).wait()
    """

    folder = "train-job"

    def __init__(self, trainer: str | Path, **job: Any) -> None:
        super().__init__(trainer, **job)
        if self.remote:
            fix = "name a file here, or use kit.PyTorchJob or kit.IndexedJob"
            raise self._cannot("be given a container that fetches a trainer", f"trainer {trainer}", fix)
        if self.settings.pull_secret:
            fix = f"{OTHER_JOBS}, or name it in the pods' ServiceAccount"
            raise self._cannot("name a Secret for its image", f"pull secret {self.settings.pull_secret}", fix)
        if self.priorities:
            fix = f"{OTHER_JOBS}, or name it in the ClusterTrainingRuntime"
            raise self._cannot("name the PriorityClass of its pods", f'priority="{self.priorities[0]}"', fix)

    def _cannot(self, what: str, about: str, fix: str) -> BadInput:
        return BadInput(
            f"a TrainJob of version 2.0 cannot {what}", about=f'TrainJob "{self.name}", {about}', fix=fix
        )

    def _main(self) -> Object:
        if self.annotations:
            about, fix = f"volumes {', '.join(self.claims)}", f"{OTHER_JOBS}, or a volume of another class"
            raise self._cannot("annotate its pods, as a volume of GCS FUSE needs it", about, fix)
        item = self._read("trainjob", file=self.file)
        (pods,) = item["spec"]["podSpecOverrides"]
        self._drop_workspace(pods)
        (container,) = pods["containers"]
        # Overrides cannot add an init container that would copy the files.
        named = {path: f"file-{index}" for index, path in enumerate(self.files)}
        files = [
            volume_of(self.sources, name=self.name, modes=self.modes, below=path) | {"name": name}
            for path, name in named.items()
        ]
        mounts = [*container["volumeMounts"], *self._mounts]
        mounts += [
            {"name": name, "mountPath": f"{WORKSPACE}/{path}", "subPath": path, "readOnly": True}
            for path, name in named.items()
        ]
        overrides = {
            "containers": [container | {"volumeMounts": mounts}],
            "volumes": [*self._pod_volumes, *files],
            **self._pod_additions(),
            "affinity": None,  # a preference for nodes; Trainer 2.0 rejects one
        }
        trainer = {
            "numNodes": self.nodes,
            "numProcPerNode": self.processes_per_node,
            "image": self.image,
            "command": [*item["spec"]["trainer"]["command"][:-1], *literal([self._path])],
            "args": literal(self.args),
            "env": [*item["spec"]["trainer"]["env"], *self._environment],
            "resourcesPerNode": self._resources,
        }
        return merge(item, {"spec": {"trainer": trainer, "podSpecOverrides": [merge(pods, overrides)]}})
