"""Trainyard's helper library: create a cluster, train on its nodes, watch the run, clean up.

    >>> import kitlib as kit
    >>> cluster = kit.create_cluster("local", nodes=4)
    >>> run = kit.launch(kit.IndexedJob("trainers/digits_ddp.py", nodes=4), cluster=cluster)
    >>> run.wait()
    >>> run.plot()
    >>> cluster.delete()

These are all the names that notebooks need. Names that are not imported here belong to the package
``trainyard_kit``, and are loaded at their first use (`kitlib.plugins`).
"""

from typing import Any

from kitlib import plugins
from kitlib.clusters import Cluster, clean_up, connect, create_cluster, credentials, list_clusters
from kitlib.clusters.declared_gpu import GPU
from kitlib.clusters.machine import doctor
from kitlib.datasets import DatasetJob, prepare_dataset, upload_image_folder
from kitlib.errors import ClusterNotFound, KitError, RunFailed
from kitlib.jobs import (
    ElasticJob,
    IndexedJob,
    PyTorchJob,
    TorchElastic,
    TrainJob,
    launch,
    single_process,
    torchrun,
)
from kitlib.k8s.job_kinds import JOBS
from kitlib.metrics.estimate import estimate
from kitlib.operators import install, uninstall
from kitlib.runs.run import Run
from kitlib.storage import Volume

__version__ = "0.1.0"
__all__ = [
    "Cluster",
    "ClusterNotFound",
    "DatasetJob",
    "ElasticJob",
    "GPU",
    "IndexedJob",
    "KitError",
    "ParameterServer",
    "PyTorchJob",
    "Run",
    "RunFailed",
    "TorchElastic",
    "TrainJob",
    "Volume",
    "build_image",
    "check",
    "clean_up",
    "connect",
    "create_cluster",
    "credentials",
    "delete_resources",
    "doctor",
    "estimate",
    "install",
    "launch",
    "list_clusters",
    "list_resources",
    "preflight",
    "prepare_dataset",
    "single_process",
    "speed_up",
    "torchrun",
    "uninstall",
    "upload_image_folder",
    "workshop",
]


def __getattr__(name: str) -> Any:
    jobs = {kind.entry.name: kind.entry for kind in JOBS}
    added = {**jobs, **plugins.entries("kitlib.names")}
    if name not in added:
        raise AttributeError(f"module 'kitlib' has no attribute {name!r}")
    return plugins.load(added[name])


def __dir__() -> list[str]:
    return sorted({*globals(), *plugins.entries("kitlib.names")})
