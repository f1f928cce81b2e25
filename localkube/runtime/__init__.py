"""The container runtime: PID 1 of a cluster's namespaces, and everything that it does to start a container.

Standard library only, except for ``client.py``, by which the kubelet and the supervisor call it.
"""
