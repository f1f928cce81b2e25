"""Volumes that all pods share: claims, PersistentVolumes, and copying files to and from them."""

from kitlib.storage.volume import Volume

__all__ = ["Volume"]
