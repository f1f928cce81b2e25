"""Distributed training by a TrainJob of Kubeflow Trainer v2: the program here, the pods in a runtime.

The controller makes a JobSet of both. What a TrainJob of version 2.0 cannot say of its pods, such as labels
and a spread over the nodes, belongs into the runtime and is not here.
"""

from pathlib import Path

from kitlib.errors import BadInput
from kitlib.jobs.training import TrainingJob
from kitlib.k8s.manifests import Object, merge


class TrainJob(TrainingJob):
    """A training program on several nodes, by the runtime torch-distributed of ``kit.install("trainer")``.

    The arguments are those of `TrainingJob`: trainer, nodes, processes, args, volumes, cpu, memory, gpus and
    name. Its pods have the priority that its runtime gives them: a TrainJob of version 2.0 names none.

    Example:
        >>> job = TrainJob("trainers/digits_ddp.py", nodes=2, processes_per_node=2)
        >>> launch(job).wait()
    """

    folder = "train-job"

    def __init__(self, trainer: str | Path, **arguments) -> None:
        super().__init__(trainer, **arguments)
        if self.remote:
            raise BadInput(
                "a TrainJob of version 2.0 can be given no container that fetches a trainer",
                about=f'TrainJob "{self.name}", trainer {trainer}',
                fix="name a file here, or use kit.PyTorchJob or kit.IndexedJob",
            )
        if self.settings.pull_secret:
            raise BadInput(
                "a TrainJob of version 2.0 cannot name a Secret for its image",
                about=f'TrainJob "{self.name}", pull secret {self.settings.pull_secret}',
                fix="use kit.PyTorchJob or kit.IndexedJob, or name it in the pods' ServiceAccount",
            )
        if self.priorities:
            raise BadInput(
                "a TrainJob of version 2.0 cannot name the PriorityClass of its pods",
                about=f'TrainJob "{self.name}", priority="{self.priorities[0]}"',
                fix="use kit.PyTorchJob or kit.IndexedJob, or name it in the ClusterTrainingRuntime",
            )

    def main(self) -> Object:
        """Return the TrainJob."""
        if self.annotations:
            raise BadInput(
                "a TrainJob of version 2.0 cannot annotate its pods, as a volume of GCS FUSE needs it",
                about=f'TrainJob "{self.name}", volumes {", ".join(self.claims)}',
                fix="use kit.PyTorchJob or kit.IndexedJob, or a volume of another class",
            )
        item = self.read("trainjob")
        (pods,) = item["spec"]["podSpecOverrides"]
        (container,) = pods["containers"]
        mounts = [*container["volumeMounts"], *self.mounts]
        additions = dict(self.additions)
        tolerations = [*self.tolerations, *additions.pop("tolerations", [])]
        additions.pop("affinity", None)  # what the nodes prefer; Trainer 2.0 refuses one
        pods = merge(
            pods,
            {
                "containers": [container | {"volumeMounts": mounts}],
                "volumes": self.pod_volumes,
                "tolerations": tolerations or None,
                **additions,
            },
        )
        trainer = {
            "numNodes": self.nodes,
            "numProcPerNode": self.processes_per_node,
            "image": self.settings.image,
            "command": [*item["spec"]["trainer"]["command"][:-1], self.path],
            "args": self.args,
            "env": [*item["spec"]["trainer"]["env"], *self.environment],
            "resourcesPerNode": self.resources,
        }
        return merge(item, {"spec": {"trainer": trainer, "podSpecOverrides": [pods]}})
