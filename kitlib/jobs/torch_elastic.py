"""Elastic training: limits, launcher and rendezvous store of elastic jobs; and `TorchElastic`, by plain pods.

A run of plain pods needs no operator; `kitlib.k8s.job_kinds` judges it, and `Run` scales it. What happens in
the pods when workers change is in ``trainers/elastic_launch.py`` and ``trainers/elastic.py``.
"""

import secrets
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar, Self, Unpack

from kitlib import config
from kitlib.clusters import Cluster
from kitlib.display.signatures import checked_class
from kitlib.errors import BadInput
from kitlib.jobs.base import MAX_NODES, JobArguments, TrainingJob
from kitlib.jobs.layout import FOLDER
from kitlib.jobs.sources import collect, escape_dollars, imports, sources
from kitlib.k8s import job_kinds, names
from kitlib.k8s.manifests import Object, merge
from kitlib.k8s.quantities import check_count

LAUNCHER = "trainers/elastic_launch.py"
# What a trainer may import, wherever it is.
OFFERED = tuple(f"trainers/{name}.py" for name in ("elastic", "checkpoints", "tiny_imagenet_ddp"))
STORES = {"c10d": ("c10d", 29400), "etcd": ("etcd-v2", 2379)}  # torch's name of the backend, and the port
UNREACHABLE_SECONDS = 5  # before pods of a node that does not answer are replaced on another
UNREACHABLE = ("node.kubernetes.io/unreachable", "node.kubernetes.io/not-ready")


@checked_class
class ElasticTrainingJob(TrainingJob):
    """A training job whose number of nodes may change if limits for it are given."""

    limits: tuple[int, int] | None = None
    MAX_RESTARTS: ClassVar = 10  # of a failed trainer by the launcher in its pod
    SPREAD: ClassVar = "ScheduleAnyway"  # when a node is lost, its workers may go where there is room

    def __init__(
        self,
        trainer: str | Path | Callable[..., object] | None = None,
        *,
        nodes: int = 4,
        min_nodes: int | None = None,
        max_nodes: int | None = None,
        **job: Unpack[JobArguments],
    ) -> None:
        super().__init__(trainer, nodes=nodes, **job)
        self.id: str = self._new_id()
        if min_nodes is not None or max_nodes is not None:
            self.limits = _check_limits(self.nodes, min_nodes, max_nodes)
            shared_modules = [config.find(path) for path in OFFERED]
            if self.remote:  # its imports are not known yet
                self.sources |= sources(config.find(LAUNCHER), *shared_modules)
            elif self.function:
                imported = imports(str(self.sources[self.trainer.name]))
                self.sources |= sources(
                    config.find(LAUNCHER), *(path for path in shared_modules if path.stem in imported)
                )
            else:
                assert self.layout, "the trainer is a file"
                self.sources |= collect(self.layout, shared_modules=shared_modules)[0] | sources(
                    config.find(LAUNCHER)
                )

    def _new_id(self) -> str:
        """Choose a rendezvous id that no earlier run has had: a store keeps the state of older ones."""
        return f"{self.name}-{secrets.token_hex(4)}"

    def bind(self, cluster: Cluster) -> Self:
        """Copy the job as `launch` sends it to a cluster, with a rendezvous id of its own."""
        placed = super().bind(cluster)
        placed.id = self._new_id()
        return placed

    @property
    def _launcher(self) -> list[str]:
        """The command that starts a trainer: the elastic launcher, or torchrun if it does not use it."""
        if Path(OFFERED[0]).name not in self.sources:
            return ["torchrun"]
        return ["python", f"{FOLDER}/{Path(LAUNCHER).name}"]

    @property
    def _tolerations(self) -> list[Object]:
        """Those of every job; pods of an elastic one leave an unreachable node after seconds."""
        if self.limits is None:
            return super()._tolerations
        toleration = {"operator": "Exists", "effect": "NoExecute", "tolerationSeconds": UNREACHABLE_SECONDS}
        return [*super()._tolerations, *({"key": key} | toleration for key in UNREACHABLE)]

    def _pod_template(self, template: Object, **container: Any) -> Object:
        pod = super()._pod_template(template, **container)
        if self.limits is not None:
            for constraint in pod["spec"]["topologySpreadConstraints"]:
                constraint["whenUnsatisfiable"] = self.SPREAD
        return pod

    def _store(self, rendezvous: str) -> list[Object]:
        """Build the pod with the rendezvous store, which is no worker, and the Service that names it.

        Its address is ``<run>-store.<run>``, with the port in :data:`STORES`.
        """
        service = self._read("service", folder="torch-elastic")
        name = f"{self.name}-store"
        spec: Object = {
            "hostname": name,
            "subdomain": self.name,
            "tolerations": self.settings.tolerations or None,
            "priorityClassName": self.priorities[0] if self.priorities else None,
        }
        if rendezvous == "c10d":
            spec["containers"] = [{"name": "store", "image": self.image}]
            spec["imagePullSecrets"] = self.settings.pull_secrets
        pod = self._read(f"store-{rendezvous}", folder="torch-elastic")
        return [
            merge(service, {"spec": {"selector": {names.RUN: self.name}}}),
            merge(pod, {"metadata": {"name": name}, "spec": spec}),
        ]


def _check_limits(nodes: int, fewest: int | None, most: int | None) -> tuple[int, int]:
    most = check_count(2 * nodes if most is None else most, what="max_nodes", least=1, most=MAX_NODES)
    fewest = check_count(1 if fewest is None else fewest, what="min_nodes", least=1, most=MAX_NODES)
    if not fewest <= nodes <= most:
        what = "nodes lies between min_nodes and max_nodes"
        fix = f"`nodes={nodes}`, `min_nodes=1`, `max_nodes={max(nodes, most)}`"
        raise BadInput(what, about=f"min_nodes={fewest}, nodes={nodes}, max_nodes={most}", fix=fix)
    return fewest, most


@checked_class
class TorchElastic(ElasticTrainingJob):
    """A training program on a number of nodes that may change while it trains; needs no operator.

    Args:
        trainer: As for the other jobs. One that is made for it, such as ``trainers/digits_elastic.py``,
            continues while workers come and go; one that does not import ``elastic`` is started by torchrun,
            and so restarts at each change.
        nodes: Number of workers at the beginning.
        min_nodes: The fewest with which it trains.
        max_nodes: The most that ``run.scale`` may request; by default twice ``nodes``.
        rendezvous: The store of the rendezvous: ``"c10d"``, torch's own, or ``"etcd"``, with the v2 API.
        job: The other arguments of `TrainingJob`.

    Raises:
        BadInput: An argument is invalid, such as more ``min_nodes`` than ``nodes``.

    Example:
        >>> run = launch(TorchElastic("trainers/digits_elastic.py", nodes=3, max_nodes=4))
        >>> run.kill(rank=1)
        >>> run.scale(4)
    """

    folder = "torch-elastic"

    def __init__(
        self,
        trainer: str | Path | Callable[..., object] | None = None,
        *,
        nodes: int = 4,
        min_nodes: int = 1,
        max_nodes: int | None = None,
        rendezvous: str = "c10d",
        **job: Unpack[JobArguments],
    ) -> None:
        super().__init__(trainer, nodes=nodes, min_nodes=min_nodes, max_nodes=max_nodes, **job)
        if rendezvous not in STORES:
            fix = " or ".join(f'`rendezvous="{store}"`' for store in STORES)
            raise BadInput("there is no such rendezvous", about=f"rendezvous={rendezvous!r}", fix=fix)
        self.rendezvous = rendezvous

    def build(self) -> list[Object]:
        return [self._config_map(), *self._store(self.rendezvous), self._main()]

    @property
    def objects(self) -> list[Object]:
        """The objects that `launch` creates: the workers are made from the patched PodTemplate."""
        *rest, template = super().objects
        workers = (job_kinds.worker_pod(template, number) for number in range(self.nodes))
        return [*rest, *workers, template]

    def _main(self) -> Object:
        item = self._read("podtemplate", file=self.file)
        assert self.limits, "min_nodes has a default"
        (fewest, most), (backend, port) = self.limits, STORES[self.rendezvous]
        variables = {
            "PET_NNODES": f"{fewest}:{most}",
            "PET_NPROC_PER_NODE": str(self.processes_per_node),
            "PET_RDZV_BACKEND": backend,
            "PET_RDZV_ENDPOINT": f"{self.name}-store.{self.name}:{port}",
            "PET_RDZV_ID": self.id,
            "PET_MAX_RESTARTS": str(self.MAX_RESTARTS),
        }
        env = [{"name": key, "value": value} for key, value in variables.items()]
        pod = self._pod_template(item["template"], command=[*self._launcher, *escape_dollars(self._target)])
        pod = merge(pod, {"spec": {"subdomain": self.name, "containers": [{"name": "worker", "env": env}]}})
        counts = {
            job_kinds.REPLICAS: str(self.nodes),
            job_kinds.MIN_REPLICAS: str(fewest),
            job_kinds.MAX_REPLICAS: str(most),
        }
        return merge(item, {"metadata": {"annotations": counts}, "template": pod})
