"""Delete the load balancers and disks that Kubernetes created, before the cluster is deleted.

Kubernetes' own controllers delete them. What remains is found later at the cloud by its tags.
"""

from typing import Any

from kitlib.display.progress import progress
from kitlib.errors import KitError
from kitlib.k8s.client import Kube
from kitlib.k8s.pods import claims_of
from kitlib.k8s.wait import wait
from kitlib.k8s.watch import Snapshot, WatchSpec, watch_objects

SERVICE, CLAIM, POD, VOLUME = "Service", "PersistentVolumeClaim", "Pod", "PersistentVolume"
PROVISIONED_BY = "pv.kubernetes.io/provisioned-by"
TIMEOUT_SECONDS = 120.0


def release(kube: Kube, *, about: str) -> None:
    """Delete Services with load balancers, claims and the pods that use them, and wait until they are gone.

    Wait for dynamically provisioned volumes too: their driver deletes the disk first. An unreachable API
    and a timeout are not errors.
    """
    with progress(about) as line:
        try:
            all_namespaces, uses_claim = kube.in_namespace(""), lambda pod: any(claims_of(pod))
            for kind, selects in ((SERVICE, _has_load_balancer), (CLAIM, bool), (POD, uses_claim)):
                for item in all_namespaces.get_all(kind):
                    if selects(item):
                        meta = item["metadata"]
                        kube.in_namespace(meta["namespace"]).delete(kind, meta["name"])
            wait(
                watch_objects(all_namespaces, WatchSpec(SERVICE), WatchSpec(CLAIM), WatchSpec(VOLUME)),
                until=lambda snapshot: not any(_count(snapshot)),
                timeout=TIMEOUT_SECONDS,
                what="load balancers and disks to be released",
                about=about,
                resume="call delete again",
                describe=_describe,
                report=line.update,
            )
        except KeyboardInterrupt:  # Interrupted is also a KitError
            raise
        except KitError as error:
            line.done(f"not everything was released, and is searched for at the cloud: {error.what}")
            return
        line.done("load balancers and disks are released")


def _has_load_balancer(service: dict[str, Any]) -> bool:
    return service["spec"].get("type") == "LoadBalancer"


def _is_dynamic(volume: dict[str, Any]) -> bool:
    provisioned = PROVISIONED_BY in (volume["metadata"].get("annotations") or {})
    return provisioned and volume["spec"]["persistentVolumeReclaimPolicy"] == "Delete"


def _count(snapshot: Snapshot) -> tuple[int, int, int]:
    balancers = sum(map(_has_load_balancer, snapshot[SERVICE].values()))
    return balancers, len(snapshot[CLAIM]), sum(map(_is_dynamic, snapshot[VOLUME].values()))


def _describe(snapshot: Snapshot) -> str:
    balancers, claims, volumes = _count(snapshot)
    return f"{balancers} load balancers, {claims} claims and {volumes} volumes remain"
