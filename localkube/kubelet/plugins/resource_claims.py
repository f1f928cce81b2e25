"""The ResourceClaims of a node's pods: prepared by the drivers of their devices before the pods start.

The scheduler allocates devices. A pod whose claim no driver of the node can prepare does not start. Prepared
claims are recorded in a file for the next kubelet, and unprepared with the last pod that uses them.

Source: pkg/kubelet/cm/dra of Kubernetes 1.37
"""

import asyncio
import contextlib
import json
import logging
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from typing import Any

from localkube.api_client import Api
from localkube.api_path import Object, api_path
from localkube.errors import ApiError
from localkube.kubelet.plugins.dra_drivers import DraDriver, DraDrivers, PublishedSlices
from localkube.kubelet.plugins.gpu_driver import DRIVER, GpuDriver
from localkube.kubelet.plugins.rpc import PluginError, plugin_messages
from localkube.kubelet.status.container_state import containers
from localkube.kubelet.volumes.node_directory import NodeDirectory
from localkube.paths import read_json, write_private

log = logging.getLogger(__name__)

RETRY_SECONDS, LONGEST_RETRY_SECONDS = 0.5, 10.0
RECONCILE_SECONDS = 60.0


class ClaimPreparationError(Exception):
    """A pod's claims are not prepared; a later attempt may succeed.

    Attributes:
        reason: The Event's reason.
        message: The kubelet's message.
    """

    reason = "FailedPrepareDynamicResources"

    def __init__(self, problem: str) -> None:
        super().__init__(problem)
        self.message = f"Failed to prepare dynamic resources: prepare dynamic resources: {problem}"


class ClaimManager:
    """Prepares and unprepares the claims of a node's pods.

    Args:
        active: Returns the uids of the node's pods.
        changed: Called when the health of devices has changed.
        gpus: The node's own driver.
    """

    def __init__(
        self,
        directory: NodeDirectory,
        *,
        active: Callable[[], Collection[str]],
        changed: Callable[[], None],
        gpus: GpuDriver,
    ) -> None:
        self._gpus = gpus
        # Outside of the directory, to which the pods of plugins may write.
        self._checkpoint, self._active = directory.path.with_name(f"{directory.path.name}.claims"), active
        self._slices = PublishedSlices(directory.path.name, excluded=DRIVER if gpus.devices else "")
        self._drivers = DraDrivers(directory, scanned=self._reconcile, changed=changed, slices=self._slices)
        self._lock = asyncio.Lock()
        self._reconciled = time.monotonic()
        # By namespace and name: uid, pods, whether it is prepared, and devices by driver.
        self._claims: dict[str, dict[str, Any]] = read_json(self._checkpoint)

    def open(self, api: Api) -> None:
        """Watch for drivers, from the first call on."""
        self._slices.api = api
        self._drivers.open()

    async def prepare(self, api: Api, pod: Object) -> None:
        """Prepare the claims of a pod that are not prepared for it yet.

        Raises:
            ClaimPreparationError: A claim is not the pod's, its driver is absent, or cannot prepare it.
        """
        names, uid = list(claim_names(pod)), pod["metadata"]["uid"]
        keys = [f"{pod['metadata']['namespace']}/{name}" for name, _ in names]
        known = [self._claims.get(key) or {} for key in keys]
        if all(claim.get("prepared") and uid in claim["pods"] for claim in known):
            return
        async with self._lock:
            claims = {}
            for key, (name, is_owned) in zip(keys, names, strict=True):
                claims[key] = claim = await _claim(api, pod, name, is_owned=is_owned)
                for driver in _drivers(claim):
                    self._is_own(driver) or self._driver(driver)
            for key, claim in claims.items():
                drivers: dict[str, list[Any]] = {driver: [] for driver in _drivers(claim)}
                new = {"uid": claim["metadata"]["uid"], "pods": [], "prepared": False, "drivers": drivers}
                entry = self._claims.setdefault(key, new)
                if entry["uid"] != claim["metadata"]["uid"]:
                    old = f"old ResourceClaim with same name {claim['metadata']['name']} and different UID"
                    raise ClaimPreparationError(f"{old} {entry['uid']} still exists")
                entry["pods"] = sorted({*entry["pods"], uid})
            self._save()
            unprepared = [key for key in claims if not self._claims[key]["prepared"]]
            for driver, batch in self._batches(unprepared).items():
                for key, devices in (await self._prepare(driver, batch, claims)).items():
                    self._claims[key]["drivers"][driver] = devices
            for key in unprepared:
                self._claims[key]["prepared"] = True
            self._save()

    async def _prepare(
        self, driver: str, keys: list[str], claims: Mapping[str, Object]
    ) -> dict[str, list[dict[str, Any]]]:
        if not self._is_own(driver):
            answers = await self._call(driver, "NodePrepareResources", keys)
            return {key: list(map(_device, answers[key].devices)) for key in keys}
        try:
            return {key: self._gpus.prepare(claims[key]) for key in keys}
        except PluginError as error:
            raise ClaimPreparationError(f"NodePrepareResources: {error}") from error

    def _is_own(self, driver: str) -> bool:
        return driver == DRIVER and bool(self._gpus.devices)

    async def unprepare(self, uid: str, event: Callable[..., None]) -> None:
        """Unprepare the claims that only this pod uses: retried until it succeeds, or the pod is deleted.

        Args:
            event: Records an Event with a reason and a message.
        """
        delay = RETRY_SECONDS
        while any(uid in claim["pods"] for claim in self._claims.values()):
            try:
                async with self._lock:
                    return await self._unprepare(uid)
            except ClaimPreparationError as error:
                event("FailedSync", f"error syncing pod, trying again: {error}", warning=True)
            await asyncio.sleep(delay)
            delay = min(delay * 2, LONGEST_RETRY_SECONDS)
            if uid not in self._active():
                break
        return None

    async def _unprepare(self, uid: str) -> None:
        used = [key for key, claim in self._claims.items() if uid in claim["pods"]]
        ending = [key for key in used if self._claims[key]["pods"] == [uid]]
        for driver, batch in self._batches(ending).items():
            if not self._is_own(driver):
                await self._call(driver, "NodeUnprepareResources", batch)
        for key in used:
            self._claims[key]["pods"].remove(uid)
            if key in ending:
                del self._claims[key]
        if used:
            self._save()

    async def _reconcile(self) -> None:
        """Unprepare the claims of pods that were deleted while no kubelet ran."""
        if time.monotonic() < self._reconciled + RECONCILE_SECONDS:
            return
        self._reconciled = time.monotonic()
        async with self._lock:
            for uid in {uid for claim in self._claims.values() for uid in claim["pods"]} - {*self._active()}:
                try:
                    await self._unprepare(uid)
                except ClaimPreparationError as error:
                    log.warning("claims of the deleted pod %s: %s", uid, error)

    def uses(self, uid: str) -> bool:
        return any(uid in claim["pods"] for claim in self._claims.values())

    def cdi_devices(self, pod: Object, container: Object) -> list[str]:
        devices = (device for _, _, devices in self._granted(pod, container) for device in devices)
        return list(dict.fromkeys(name for device in devices for name in device["cdi"]))

    def gpus(self, pod: Object, container: Object) -> list[str]:
        """List a container's devices from the node's own driver."""
        granted = (devices for _, driver, devices in self._granted(pod, container) if self._is_own(driver))
        return [device["device"] for devices in granted for device in devices]

    def statuses(self, pod: Object, name: str) -> list[dict[str, Any]]:
        """List the devices of a container by claim, as its status reports them, with their health."""
        container = next((item for _, item in containers(pod) if item["name"] == name), {})
        by_claim: dict[str, dict[str, dict[str, str]]] = {}
        for claim, driver, devices in self._granted(pod, container):
            for device in devices if claim else ():  # not allowed for an extended resource's claim
                identity = (device["cdi"] or [f"{driver}/{device['pool']}/{device['device']}"])[0]
                health = {"resourceID": identity}
                health |= self._drivers.health(driver, device["pool"], device["device"])
                by_claim.setdefault(f"claim:{claim}", {})[identity] = health
        return [{"name": claim, "resources": list(devices.values())} for claim, devices in by_claim.items()]

    def _granted(self, pod: Object, container: Object) -> Iterator[tuple[str, str, list[Any]]]:
        """Yield a container's devices: the name of the claim in the pod, if any, the driver, the devices."""
        namespace = pod["metadata"]["namespace"]
        for claim, name, request in _container_claims(pod, container):
            entry = self._claims.get(f"{namespace}/{name}") or {"drivers": {}}
            shown = f"{claim}/{request}" if claim and request else claim
            for driver, devices in entry["drivers"].items():
                matching = [
                    device
                    for device in devices
                    if not request or not device["requests"] or request in device["requests"]
                ]
                yield shown, driver, matching

    def _batches(self, keys: Iterable[str]) -> dict[str, list[str]]:
        batches: dict[str, list[str]] = {}
        for key in keys:
            for driver in self._claims[key]["drivers"]:
                batches.setdefault(driver, []).append(key)
        return batches

    def _driver(self, name: str) -> DraDriver:
        if driver := self._drivers.get(name):
            return driver
        raise ClaimPreparationError(f"DRA driver {name} is not registered")

    async def _call(self, name: str, method: str, keys: list[str]) -> dict[str, Any]:
        """Call a method of a driver for claims, and return its answer for each of them."""
        messages = plugin_messages()
        driver = self._driver(name)
        is_end = method == "NodeUnprepareResources"
        kind = messages.UnprepareResponse if is_end else messages.ClaimsResponse
        request = messages.ClaimsRequest()
        for key in keys:
            namespace, _, claim = key.partition("/")
            request.claims.add(namespace=namespace, name=claim, uid=self._claims[key]["uid"])
        try:
            answer = await driver.call(method, request, kind)
        except PluginError as error:
            raise ClaimPreparationError(f"{method}: {error}") from error
        answers = {claim.name: answer.claims.get(claim.uid) for claim in request.claims}
        for claim, result in answers.items():
            if result is not None and result.error:
                raise ClaimPreparationError(f"{method} failed for ResourceClaim {claim}: {result.error}")
        if skipped := sum(result is None for result in answers.values()):
            raise ClaimPreparationError(f"{method} skipped {skipped} ResourceClaims")
        return {key: answers[key.partition("/")[2]] for key in keys}

    def _save(self) -> None:
        with contextlib.suppress(OSError):  # on a full disk only the next kubelet lacks it
            self._checkpoint.parent.mkdir(parents=True, exist_ok=True)
            write_private(self._checkpoint, json.dumps(self._claims))


def claim_names(pod: Object) -> Iterator[tuple[str, bool]]:
    """Yield the names of a pod's claims, and whether each was created for the pod from a template.

    Raises:
        ClaimPreparationError: A claim has not been created yet.
    """
    generated = {status["name"] for status in _generated(pod)}
    for claim in pod["spec"].get("resourceClaims") or ():
        if not claim.get("resourceClaimName") and claim["name"] not in generated:
            place = f'pod "{pod["metadata"]["namespace"]}/{pod["metadata"]["name"]}"'
            raise ClaimPreparationError(f"{place}: ResourceClaim not created yet")
        if name := _claim_name(pod, claim):
            yield name, not claim.get("resourceClaimName")
    if extended := (pod.get("status") or {}).get("extendedResourceClaimStatus"):
        yield extended["resourceClaimName"], False


def _claim_name(pod: Object, claim: Object) -> str | None:
    """Find the name of a pod's claim; None if none is needed, or it is not created yet."""
    names = {status["name"]: status.get("resourceClaimName") for status in _generated(pod)}
    return claim.get("resourceClaimName") or names.get(claim["name"])


def _generated(pod: Object) -> Iterable[Object]:
    """List the statuses of the claims that were created for the pod from templates."""
    return (pod.get("status") or {}).get("resourceClaimStatuses") or ()


def _container_claims(pod: Object, container: Object) -> Iterator[tuple[str, str, str]]:
    """Yield the claims of a container: the name in the pod, that of the object, and one of its requests."""
    by_name = {claim["name"]: claim for claim in pod["spec"].get("resourceClaims") or ()}
    for claim in (container.get("resources") or {}).get("claims") or ():
        if name := _claim_name(pod, by_name[claim["name"]]):
            yield claim["name"], name, claim.get("request") or ""
    extended = (pod.get("status") or {}).get("extendedResourceClaimStatus") or {}
    for mapping in extended.get("requestMappings") or ():
        if mapping["containerName"] == container.get("name"):
            yield "", extended["resourceClaimName"], mapping["requestName"]


async def _claim(api: Api, pod: Object, name: str, *, is_owned: bool) -> Object:
    """Get a claim of a pod, and check that it belongs to the pod, or its group, and is reserved for it."""
    namespace, uid = pod["metadata"]["namespace"], pod["metadata"]["uid"]
    try:
        claim = await api.get(api_path("resource.k8s.io/v1/resourceclaims", namespace=namespace, name=name))
    except ApiError as error:
        raise ClaimPreparationError(f"fetch ResourceClaim {name}: {error.message}") from error
    group = (pod["spec"].get("schedulingGroup") or {}).get("podGroupName")  # pods do not know its UID
    owners = claim["metadata"].get("ownerReferences") or ()
    controller: Object = next((owner for owner in owners if owner.get("controller")), {})
    is_of_group = controller.get("kind") == "PodGroup" and controller["name"] == group
    if is_owned and controller.get("uid") != uid and not is_of_group:
        names = f"{namespace}/{name} was not created for Pod {namespace}/{pod['metadata']['name']}"
        raise ClaimPreparationError(f"ResourceClaim {names} (Pod is not owner)")
    consumers = (claim.get("status") or {}).get("reservedFor") or ()
    if not any(
        consumer["uid"] == uid or (consumer["resource"] == "podgroups" and consumer["name"] == group)
        for consumer in consumers
    ):
        names = f"pod {pod['metadata']['name']} ({uid}) is not allowed to use ResourceClaim {name}"
        raise ClaimPreparationError(f"{names} ({claim['metadata']['uid']})")
    return claim


def _drivers(claim: Object) -> list[str]:
    allocation = (claim.get("status") or {}).get("allocation")
    if allocation is None:
        raise ClaimPreparationError(f"ResourceClaim {claim['metadata']['name']}: not allocated")
    results = (allocation.get("devices") or {}).get("results") or ()
    return sorted({result["driver"] for result in results})


def _device(device: Any) -> dict[str, Any]:
    return {
        "pool": device.pool_name,
        "device": device.device_name,
        "requests": list(device.request_names),
        "cdi": list(device.cdi_device_ids),
    }
