"""``kubectl exec``, ``attach`` and ``port-forward``: the API server's WebSockets, and their protocols."""
