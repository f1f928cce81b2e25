"""The node agent: one process that serves every virtual node of a local cluster."""
