"""Jobs of all kinds, one module each, and `launch`."""

from kitlib.jobs.base import Job, TrainingJob
from kitlib.jobs.elastic_job import ElasticJob
from kitlib.jobs.indexed_job import IndexedJob
from kitlib.jobs.launcher import launch
from kitlib.jobs.pytorch_job import PyTorchJob
from kitlib.jobs.torch_elastic import TorchElastic
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
]
