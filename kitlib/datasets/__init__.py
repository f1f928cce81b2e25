"""Datasets on a shared volume: prepared there by a Job, or uploaded."""

from kitlib.datasets.dataset import Dataset, DatasetJob, prepare_dataset, upload_image_folder

__all__ = ["Dataset", "DatasetJob", "prepare_dataset", "upload_image_folder"]
