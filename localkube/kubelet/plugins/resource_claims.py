"""The ResourceClaims of a node's pods: prepared by the drivers of their devices before the pods start.

Allocation is the scheduler's. A pod whose claim no driver of the node can prepare does not start.

Source: pkg/kubelet/cm/dra of Kubernetes 1.36
"""

from collections.abc import Iterator, Mapping
from typing import Any

from localkube.api_client import Api, ApiError
from localkube.api_path import api_path

Object = Mapping[str, Any]


class ClaimPreparationError(Exception):
    """A pod's claims are not prepared; a later attempt may succeed.

    Attributes:
        reason: That of the Event.
        message: In the kubelet's words.
    """

    reason = "FailedPrepareDynamicResources"

    def __init__(self, problem: str) -> None:
        self.message = f"Failed to prepare dynamic resources: prepare dynamic resources: {problem}"
        super().__init__(self.message)


async def prepare_claims(api: Api, pod: Object) -> None:
    """Prepare the claims of a pod.

    Raises:
        ClaimPreparationError: A claim is not allocated to the pod, or needs a driver: none can register.
    """
    for name, is_owned in claim_names(pod):
        for driver in sorted(_drivers(await _claim(api, pod, name, is_owned=is_owned))):
            raise ClaimPreparationError(f"DRA driver {driver} is not registered")


def claim_names(pod: Object) -> Iterator[tuple[str, bool]]:
    """Yield the names of a pod's claims, and whether each was made for the pod from a template.

    Raises:
        ClaimPreparationError: A claim has not been made yet.
    """
    metadata, status = pod["metadata"], pod.get("status") or {}
    made = {
        entry["name"]: entry.get("resourceClaimName") for entry in status.get("resourceClaimStatuses") or ()
    }
    for claim in pod["spec"].get("resourceClaims") or ():
        if name := claim.get("resourceClaimName"):
            yield name, False
        elif claim["name"] not in made:
            place = f'pod "{metadata["namespace"]}/{metadata["name"]}"'
            raise ClaimPreparationError(f"{place}: ResourceClaim not created yet")
        elif name := made[claim["name"]]:  # without a name none is needed
            yield name, True
    if extended := status.get("extendedResourceClaimStatus"):
        yield extended["resourceClaimName"], False


async def _claim(api: Api, pod: Object, name: str, *, is_owned: bool) -> Object:
    """Get a claim of a pod, which has to be its own, and reserved for it."""
    namespace, uid = pod["metadata"]["namespace"], pod["metadata"]["uid"]
    try:
        claim = await api.get(api_path("resource.k8s.io/v1/resourceclaims", namespace=namespace, name=name))
    except ApiError as error:
        raise ClaimPreparationError(f"fetch ResourceClaim {name}: {error.message}") from error
    owners = claim["metadata"].get("ownerReferences") or ()
    if is_owned and not any(owner["uid"] == uid and owner.get("controller") for owner in owners):
        names = f"{namespace}/{name} was not created for Pod {namespace}/{pod['metadata']['name']}"
        raise ClaimPreparationError(f"ResourceClaim {names} (Pod is not owner)")
    consumers = (claim.get("status") or {}).get("reservedFor") or ()
    if not any(consumer["uid"] == uid for consumer in consumers):
        names = f"pod {pod['metadata']['name']} ({uid}) is not allowed to use ResourceClaim {name}"
        raise ClaimPreparationError(f"{names} ({claim['metadata']['uid']})")
    return claim


def _drivers(claim: Object) -> set[str]:
    allocation = (claim.get("status") or {}).get("allocation")
    if allocation is None:
        raise ClaimPreparationError(f"ResourceClaim {claim['metadata']['name']}: not allocated")
    return {result["driver"] for result in (allocation.get("devices") or {}).get("results") or ()}
