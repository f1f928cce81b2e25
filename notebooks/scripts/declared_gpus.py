"""Let a node declare GPUs that it does not have, as an extended resource: the scheduler counts them."""

import json


def declare(cluster, gpus):
    """Set the GPUs of the first node; None removes them. In an existing cluster others' pods would come."""
    if cluster.provider == "existing":
        return
    resources = {key: {"nvidia.com/gpu": gpus} for key in ("capacity", "allocatable")}
    patch = json.dumps({"status": resources})
    node = cluster.nodes()[0]["node"]
    cluster.kubectl(f"patch node {node} --subresource=status --type=merge -p '{patch}'")
