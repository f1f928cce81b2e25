"""Causes for which a claim has no volume though PersistentVolumes of its class exist: why none of them fits.

A cluster without dynamic provisioning has such volumes. What provisioners report is in ``reported``.
"""

from collections.abc import Iterator

from kitlib.causes.cause import CERTAIN, Cause
from kitlib.causes.facts import Facts
from kitlib.k8s import pods
from kitlib.k8s.events import event_time
from kitlib.k8s.manifests import Object
from kitlib.k8s.quantities import parse_quantity

BY_HAND = "kubernetes.io/no-provisioner"


def unbound(facts: Facts) -> Iterator[Cause]:
    """Find why no existing volume fits a claim, and claims that lost theirs."""
    names = {name for pod in facts.pods for name in pods.claims_of(pod)}
    for claim in facts.of("PersistentVolumeClaim"):
        name, phase = claim["metadata"]["name"], (claim.get("status") or {}).get("phase")
        if name not in names or phase not in ("Pending", "Lost"):
            continue
        first = next(iter(facts.events_of(claim)), None)
        time = event_time(first) if first else ""
        if phase == "Lost":
            what = f"has lost its PersistentVolume {claim['spec'].get('volumeName', '')}"
            fix = f"restore the volume, or delete and create the claim: kubectl delete pvc {name}"
            yield Cause(kind="ClaimLost", who=_who(claim), what=what, fix=fix, certainty=CERTAIN, time=time)
        for kind, what in _misfits(facts, claim):
            fix = (
                "change the claim's accessModes, size or class, or create a volume that fits: kubectl get pv"
            )
            yield Cause(kind=kind, who=_who(claim), what=what, fix=fix, certainty=CERTAIN, time=time)


def has_volumes(facts: Facts, claim: str) -> bool:
    """Check whether there are volumes of a claim's class, none of which fits."""
    item = facts.find("PersistentVolumeClaim", claim)
    return item is not None and any(_misfits(facts, item))


def _who(claim: Object) -> str:
    return f"PersistentVolumeClaim {claim['metadata']['name']}"


def _misfits(facts: Facts, claim: Object) -> Iterator[tuple[str, str]]:
    """Yield the reason why each volume of the claim's class does not fit: the kind of cause, and a clause."""
    spec, name = claim["spec"], claim["spec"].get("storageClassName")
    storage_class = facts.find("StorageClass", name or "")
    if name is None or (storage_class and storage_class.get("provisioner") != BY_HAND) or pods.deleted(claim):
        return
    for volume in facts.of("PersistentVolume"):
        offer, title = volume["spec"], f"PersistentVolume {volume['metadata']['name']}"
        if (offer.get("storageClassName") or "") != name:
            continue
        reference, modes = offer.get("claimRef"), set(spec.get("accessModes") or [])
        size, requested = offer["capacity"]["storage"], spec["resources"]["requests"]["storage"]
        if reference and reference.get("name") != claim["metadata"]["name"]:
            owner = reference.get("name")
            yield "VolumeTaken", f"is not bound: {title} of its class belongs to claim {owner} already"
        elif missing := modes - set(offer.get("accessModes") or []):
            available = ", ".join(offer.get("accessModes") or [])
            requested = ", ".join(sorted(missing))
            what = f"is not bound: it asks for {requested}, and {title} of its class offers {available}"
            yield "AccessMode", what
        elif parse_quantity(size) < parse_quantity(requested):
            yield "VolumeSize", f"is not bound: it asks for {requested}, and {title} of its class has {size}"


RULES = (unbound,)
