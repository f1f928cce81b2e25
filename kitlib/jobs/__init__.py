"""Jobs of all kinds, one module each; `launch` for a cluster, `torchrun` and `single_process` for here."""

from kitlib.jobs.base import Job, TrainingJob
from kitlib.jobs.elastic_job import ElasticJob
from kitlib.jobs.functions import single_process
from kitlib.jobs.indexed_job import IndexedJob
from kitlib.jobs.launcher import launch
from kitlib.jobs.pytorch_job import PyTorchJob
from kitlib.jobs.torch_elastic import TorchElastic
from kitlib.jobs.torchrun import torchrun
from kitlib.jobs.train_job import TrainJob

__all__ = [
    "ElasticJob",
    "IndexedJob",
    "Job",
    "PyTorchJob",
    "TorchElastic",
    "TrainJob",
    "TrainingJob",
    "launch",
    "single_process",
    "torchrun",
]
