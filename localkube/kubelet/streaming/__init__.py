"""``kubectl exec``, ``attach`` and ``port-forward``: WebSockets of the API server, and what is in them."""
