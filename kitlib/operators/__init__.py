"""Install and uninstall operators with their own manifests, the same way on every cluster."""

from kitlib.operators.install import install, uninstall

__all__ = ["install", "uninstall"]
