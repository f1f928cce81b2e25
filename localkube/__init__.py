"""A real Kubernetes control plane whose nodes run containers as processes: no Docker, no root, no account.

The package knows nothing of training or of notebooks. It is used as a program, ``python -m localkube``,
whose answers are JSON lines; it need not be imported.
"""

__version__ = "0.1.0"
