"""Datasets on a shared volume: prepared there by a Job, or uploaded."""

from kitlib.datasets.dataset import Dataset, image_folder, prepare_dataset

__all__ = ["Dataset", "image_folder", "prepare_dataset"]
