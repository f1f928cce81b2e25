"""A stand-in for ``api.Informer``: a store that a test changes, whose subscribers hear of it as from a watch.

And the smallest objects that the network parts read.
"""

import asyncio


class FakeInformer:
    """One resource as a watch would have mirrored it."""

    def __init__(self, *objects):
        self.store = {}
        self.synced = asyncio.Event()
        self.synced.set()
        self._callbacks = []
        for item in objects:
            self.put(item)

    def subscribe(self, callback):
        self._callbacks.append(callback)

    def put(self, item):
        """Add or change an object."""
        key = item["metadata"].get("namespace", ""), item["metadata"]["name"]
        before = self.store.get(key)
        self.store[key] = item
        self._tell("MODIFIED" if before else "ADDED", item, before)

    def drop(self, namespace, name):
        """Delete an object."""
        before = self.store.pop((namespace, name))
        self._tell("DELETED", before, before)

    def _tell(self, change, item, before):
        for callback in self._callbacks:
            callback(change, item, before)


def service(name, *, namespace="default", cluster_ip="None", ports=(), selector=None, **spec):
    """Return a Service; ``ports`` are (name, number, protocol)."""
    spec |= {"clusterIP": cluster_ip, "clusterIPs": [cluster_ip]} if cluster_ip else {}
    spec["ports"] = [
        {"name": port, "port": number, "protocol": protocol, "targetPort": number}
        for port, number, protocol in ports
    ]
    if selector:
        spec["selector"] = selector
    return {"metadata": {"namespace": namespace, "name": name}, "spec": spec}


def slice_of(name, *endpoints, namespace="default", ports=(), suffix="abcde"):
    """Return an EndpointSlice of the Service ``name``."""
    return {
        "metadata": {
            "namespace": namespace,
            "name": f"{name}-{suffix}",
            "labels": {"kubernetes.io/service-name": name},
        },
        "addressType": "IPv4",
        "endpoints": list(endpoints),
        "ports": [{"name": port, "port": number, "protocol": protocol} for port, number, protocol in ports],
    }


def endpoint(address, *, hostname=None, ready=True, pod=None, node=None, **conditions):
    """Return an endpoint of a slice."""
    item = {"addresses": [address], "conditions": {"ready": ready, **conditions}}
    if node:
        item["nodeName"] = node
    if hostname:
        item["hostname"] = hostname
    if pod:
        item["targetRef"] = {"kind": "Pod", "name": pod, "uid": f"uid-{pod}"}
    return item


def pod(name, *, address=None, hostname=None, subdomain=None, ready=True, phase="Running", labels=None):
    """Return a pod in ``default``."""
    conditions = [{"type": "Ready", "status": "True" if ready else "False"}]
    return {
        "metadata": {"namespace": "default", "name": name, "uid": f"uid-{name}", "labels": labels or {}},
        "spec": {"hostname": hostname, "subdomain": subdomain, "containers": [{"name": "c"}]},
        "status": {"podIP": address, "phase": phase, "conditions": conditions},
    }
