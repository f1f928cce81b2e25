"""Deletion of what Kubernetes created at a cloud, before the cluster goes: load balancers and disks.

Its own controllers delete them. What is left after a while is found at the cloud by its tags.
"""

from typing import Any

from kitlib.display.progress import progress
from kitlib.errors import KitError
from kitlib.k8s.client import Kube
from kitlib.k8s.wait import wait
from kitlib.k8s.watch import Snapshot, WatchSpec, watch_objects

SERVICE, CLAIM, POD, VOLUME = "Service", "PersistentVolumeClaim", "Pod", "PersistentVolume"
MADE_FOR_A_CLAIM = "pv.kubernetes.io/provisioned-by"
SECONDS = 120.0


def release(kube: Kube, *, about: str) -> None:
    """Delete Services with load balancers, claims and the pods that hold them, and wait until they are gone.

    The volumes made for those claims have to be gone as well: their driver deletes the disk first. An API
    that does not answer, and what is not gone in time, are no errors.
    """
    with progress(about) as line:
        try:
            everywhere = kube.within("")
            for kind, goes in ((SERVICE, _balanced), (CLAIM, bool), (POD, _holds_a_claim)):
                for item in everywhere.get_all(kind):
                    if goes(item):
                        meta = item["metadata"]
                        kube.within(meta["namespace"]).delete(kind, meta["name"])
            wait(
                watch_objects(everywhere, WatchSpec(SERVICE), WatchSpec(CLAIM), WatchSpec(VOLUME)),
                until=lambda snapshot: not any(_counts(snapshot)),
                timeout=SECONDS,
                what="load balancers and disks to be released",
                about=about,
                resume="call delete again",
                describe=_left,
                report=line.update,
            )
        except KeyboardInterrupt:
            raise
        except KitError as error:
            line.done(f"not everything was released; remaining resources are searched for: {error.what}")
            return
        line.done("load balancers and disks are released")


def _balanced(service: dict[str, Any]) -> bool:
    return service["spec"].get("type") == "LoadBalancer"


def _holds_a_claim(pod: dict[str, Any]) -> bool:
    return any("persistentVolumeClaim" in volume for volume in pod["spec"].get("volumes") or ())


def _made_for_a_claim(volume: dict[str, Any]) -> bool:
    for_claim = MADE_FOR_A_CLAIM in (volume["metadata"].get("annotations") or {})
    return for_claim and volume["spec"]["persistentVolumeReclaimPolicy"] == "Delete"


def _counts(snapshot: Snapshot) -> tuple[int, int, int]:
    balanced = sum(map(_balanced, snapshot[SERVICE].values()))
    return balanced, len(snapshot[CLAIM]), sum(map(_made_for_a_claim, snapshot[VOLUME].values()))


def _left(snapshot: Snapshot) -> str:
    balanced, claims, volumes = _counts(snapshot)
    return f"{balanced} load balancers, {claims} claims and {volumes} volumes are left"
