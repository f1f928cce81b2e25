"""The kubelet: one process that serves every virtual node of a local cluster."""
