"""Trainyard's helper library: make a cluster, train on its nodes, look at what happens, clean up.

    >>> import kitlib as kit
    >>> cluster = kit.create_cluster("local", nodes=4)
    >>> run = kit.launch(kit.IndexedJob("trainers/digits_ddp.py", nodes=4), cluster=cluster)
    >>> run.wait()
    >>> run.plot()
    >>> cluster.delete()

These are all the names that notebooks need; the modules behind them are for those who want to know.
"""

import importlib

from kitlib.clusters import Cluster, clean_up, connect, create_cluster, list_clusters, preflight
from kitlib.clusters.credentials import providers
from kitlib.clusters.doctor import machine
from kitlib.datasets.dataset import Dataset, image_folder, prepare_dataset
from kitlib.errors import ClusterNotFound, KitError, RunFailed
from kitlib.images import build_image
from kitlib.jobs import ElasticJob, IndexedJob, ParameterServer, PyTorchJob, TorchElastic, TrainJob, launch
from kitlib.operators import install, uninstall
from kitlib.runs.run import Run
from kitlib.storage import Volume

# Loaded when they are first used: they need packages that not everybody has installed.
_ELSEWHERE = {
    "delete_resources": ("clouds.cleanup", "delete_resources"),
    "list_resources": ("clouds.inventory", "list_resources"),
    "workshop": ("workshop", None),
}

__version__ = "0.1.0"
__all__ = [
    "Cluster",
    "ClusterNotFound",
    "Dataset",
    "ElasticJob",
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
    "clean_up",
    "connect",
    "create_cluster",
    "delete_resources",
    "image_folder",
    "install",
    "launch",
    "list_clusters",
    "list_resources",
    "machine",
    "preflight",
    "prepare_dataset",
    "providers",
    "uninstall",
    "workshop",
]


def __getattr__(name: str):
    if name not in _ELSEWHERE:
        raise AttributeError(f"module 'kitlib' has no attribute {name!r}")
    module, attribute = _ELSEWHERE[name]
    loaded = importlib.import_module(module)
    return loaded if attribute is None else getattr(loaded, attribute)
