"""Volumes of pods: their sources, their directories, and the provisioner for claims."""
