"""The ways to train, one module each, and `launch`."""

from kitlib.jobs.base import Job, launch
from kitlib.jobs.indexed_job import IndexedJob
from kitlib.jobs.training import TrainingJob

__all__ = ["IndexedJob", "Job", "TrainingJob", "launch"]
