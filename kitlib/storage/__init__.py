"""Volumes that all pods share, and the way of files to and from them."""

from kitlib.storage.volume import Volume

__all__ = ["Volume"]
