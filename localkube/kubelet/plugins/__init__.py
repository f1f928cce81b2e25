"""Plugins that extend a node from pods, by gRPC on Unix sockets below /var/lib/kubelet.

gRPC is imported when the first pod mounts that directory: most clusters have no plugins.
"""
