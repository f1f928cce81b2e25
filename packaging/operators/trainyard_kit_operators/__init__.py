"""Operators for Trainyard's local clusters, in the folder ``binaries``."""
