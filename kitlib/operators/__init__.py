"""Operators: installed with their own manifests, removed again, the same way on every cluster."""

from kitlib.operators.install import install, uninstall

__all__ = ["install", "uninstall"]
