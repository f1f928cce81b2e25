"""The kubelet's HTTP API: its routes, and those that stream."""
