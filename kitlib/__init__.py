"""Trainyard's helper library: make a cluster, train on its nodes, look at what happens, clean up.

    >>> import kitlib as kit
    >>> cluster = kit.create_cluster("local", nodes=4)
    >>> run = kit.launch(kit.IndexedJob("trainers/digits_ddp.py", nodes=4), cluster=cluster)
    >>> run.wait()
    >>> run.plot()
    >>> cluster.delete()

These are all the names that notebooks need; the modules behind them are for those who want to know.
"""

from kitlib import workshop
from kitlib.cleanup import clean_up, delete_resources
from kitlib.clouds.inventory import list_resources
from kitlib.clusters import Cluster, connect, create_cluster, list_clusters, preflight
from kitlib.container_images import build_image
from kitlib.datasets import Dataset, image_folder, prepare_dataset
from kitlib.doctor import machine
from kitlib.errors import ClusterNotFound, KitError, RunFailed
from kitlib.jobs import ElasticJob, IndexedJob, ParameterServer, PyTorchJob, TorchElastic, TrainJob, launch
from kitlib.operators import install, uninstall
from kitlib.providers import providers
from kitlib.runs import Run
from kitlib.storage import Volume

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
