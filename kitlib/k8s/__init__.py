"""The Kubernetes API in dicts: client, watches, manifests, quantities, pods, logs, events."""
