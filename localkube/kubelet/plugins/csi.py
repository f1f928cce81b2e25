"""The CSI drivers of one node: registered by a socket, then asked to stage and publish volumes.

A driver is a privileged pod that mounts in a mount namespace of its own, out of which no mount comes. Where
it has bound a directory, that directory is the volume; any other mount is taken over by the runtime. What was
published is in ``vol_data.json`` beside the target, as with a kubelet, so that the next one can undo it.

Not here: expansion, statistics, block devices, republishing.

Source: https://github.com/container-storage-interface/spec/blob/master/spec.md, pkg/volume/csi of Kubernetes
"""

import asyncio
import contextlib
import hashlib
import json
import logging
import os
import socket
import struct
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from localkube.api_client import Api, ApiError, find
from localkube.kubelet.plugins.node_directory import KUBELET, NodeDirectory
from localkube.kubelet.plugins.rpc import PluginClient, PluginError
from localkube.kubelet.volumes.host_path import places_of
from localkube.paths import write_private
from localkube.runtime.client import RuntimeClient, short_name
from localkube.runtime.trees import remove_tree
from localkube.tasks import start_task

log = logging.getLogger(__name__)

Object = Mapping[str, Any]
LOOK_SECONDS, MOUNT_SECONDS = 0.5, 120.0
STORAGE = "/apis/storage.k8s.io/v1"
REGISTRATION, NODE = "pluginregistration.Registration", "csi.v1.Node"
STAGE_UNSTAGE, SINGLE_NODE_MULTI_WRITER = 1, 5
ACCESS_MODES = {"ReadWriteOnce": 1, "ReadWriteOncePod": 1, "ReadOnlyMany": 3, "ReadWriteMany": 5}
PRECISE_MODES = ACCESS_MODES | {"ReadWriteOnce": 7, "ReadWriteOncePod": 6}
NODE_ID = "csi.volume.kubernetes.io/nodeid"


class CsiError(Exception):
    """A volume cannot be mounted yet; the message is the kubelet's."""


@dataclass(frozen=True)
class CsiVolume:
    """A volume of a driver.

    Attributes:
        handle: Its id for the driver; empty for one that lives and ends with its pod.
        name: Of the PersistentVolume, or of the pod's volume.
    """

    driver: str
    name: str
    handle: str = ""
    fs_type: str = ""
    access_mode: str = "ReadWriteOnce"
    read_only: bool = False
    attributes: Mapping[str, str] = field(default_factory=dict)
    mount_options: tuple[str, ...] = ()
    stage_secret: Object | None = None
    publish_secret: Object | None = None

    @classmethod
    def of_claim(cls, volume: Object) -> "CsiVolume":
        """Describe a v1.PersistentVolume of a driver."""
        spec, csi = volume["spec"], volume["spec"]["csi"]
        return cls(
            csi["driver"],
            volume["metadata"]["name"],
            csi["volumeHandle"],
            csi.get("fsType") or "",
            (spec.get("accessModes") or ["ReadWriteOnce"])[0],
            bool(csi.get("readOnly")),
            csi.get("volumeAttributes") or {},
            tuple(spec.get("mountOptions") or ()),
            csi.get("nodeStageSecretRef"),
            csi.get("nodePublishSecretRef"),
        )

    @classmethod
    def inline(cls, pod: Object, spec: Object) -> "CsiVolume":
        """Describe a volume of kind ``csi`` in a pod."""
        csi, secret = spec["csi"], spec["csi"].get("nodePublishSecretRef")
        return cls(
            csi["driver"],
            spec["name"],
            fs_type=csi.get("fsType") or "",
            read_only=bool(csi.get("readOnly")),
            attributes=csi.get("volumeAttributes") or {},
            publish_secret=secret and {"name": secret["name"], "namespace": pod["metadata"]["namespace"]},
        )


@dataclass(frozen=True)
class _Driver:
    """A driver; ``made`` is when its socket of registration was, in nanoseconds."""

    name: str
    socket: Path
    client: PluginClient
    capabilities: frozenset[int]
    made: int


@dataclass(frozen=True)
class PublishedVolume:
    """Where a published volume is on this machine, and whether its files belong to the machine's users."""

    path: Path
    on_disk: bool
    driver: Object


class CsiDrivers:
    """Registers the drivers of a node, and mounts their volumes.

    Args:
        node: Its name.
        directory: Of the node.
        api: With the node's rights.
        client: The runtime.
        secret: Reads a Secret by namespace and name.
    """

    def __init__(
        self, node: str, directory: NodeDirectory, *, api: Api, client: RuntimeClient, secret: Any
    ) -> None:
        self._node, self._directory = node, directory
        self._api, self._client, self._secret = api, client, secret
        self._drivers: dict[Path, _Driver] = {}
        self._watching: asyncio.Task | None = None
        self._locks: dict[str, asyncio.Lock] = {}
        # Pods that have gone, of which a driver has not undone all.
        self._left: set[str] = set()

    # Registration.

    async def open(self) -> None:
        """Look for drivers, from the first call on."""
        if self._watching is None:
            self._watching = start_task(self._watch(), name=f"plugins of {self._node}", critical=True)

    async def _watch(self) -> None:
        folder, problems = self._directory.path / "plugins_registry", {}
        while True:
            present = _sockets(folder)
            for path, driver in list(self._drivers.items()):
                if present.get(path) != driver.made:
                    await self._deregister(path)
            for path in present.keys() - self._drivers.keys():
                try:
                    await self._register(path, made=present[path])
                    for uid in list(self._left):
                        await self.unpublish(uid)
                    problems.pop(path, None)
                except (PluginError, ApiError, OSError) as error:
                    if problems.get(path) != str(error):
                        log.warning("plugin %s: %s", path.name, error)
                    problems[path] = str(error)
            await asyncio.sleep(LOOK_SECONDS)

    async def _register(self, path: Path, *, made: int) -> None:
        from localkube.kubelet.plugins import messages_pb2 as messages

        plugin = PluginClient(path, service=REGISTRATION)
        try:
            info = await plugin.call("GetInfo", messages.Empty(), messages.PluginInfo)
            if info.type != "CSIPlugin":
                raise PluginError(f"plugins of type {info.type} do not register here")
            endpoint = self._directory.resolve(info.endpoint)
            if endpoint is None:
                raise PluginError(f"its socket {info.endpoint} is not below {KUBELET}")
            driver = await self._connect(info.name, endpoint, made=made)
            self._drivers[path] = driver
            status = messages.RegistrationStatus(plugin_registered=True)
            await plugin.call("NotifyRegistrationStatus", status, messages.Empty)
            log.info("CSI driver %s registered", info.name)
        finally:
            await plugin.close()

    async def _connect(self, name: str, endpoint: Path, *, made: int) -> _Driver:
        from localkube.kubelet.plugins import messages_pb2 as messages

        client = PluginClient(endpoint, service=NODE)
        info = await client.call("NodeGetInfo", messages.Empty(), messages.NodeGetInfoResponse)
        found = await client.call(
            "NodeGetCapabilities", messages.Empty(), messages.NodeGetCapabilitiesResponse
        )
        segments = dict(info.accessible_topology.segments)
        await self._publish_node(name, info.node_id, segments, info.max_volumes_per_node)
        capabilities = frozenset(each.rpc.type for each in found.capabilities)
        return _Driver(name, endpoint, client, capabilities, made)

    async def _deregister(self, path: Path) -> None:
        driver = self._drivers.pop(path)
        await driver.client.close()
        with contextlib.suppress(ApiError):
            await self._update_csi_node(driver.name, None)
        log.info("CSI driver %s has gone", driver.name)

    async def _publish_node(self, driver: str, node_id: str, segments: dict[str, str], most: int) -> None:
        path = f"/api/v1/nodes/{self._node}"
        node = await self._api.get(path)
        known = json.loads((node["metadata"].get("annotations") or {}).get(NODE_ID, "{}"))
        annotations = {NODE_ID: json.dumps(known | {driver: node_id})}
        await self._api.patch(path, {"metadata": {"annotations": annotations, "labels": segments}})
        entry = {"name": driver, "nodeID": node_id, "topologyKeys": sorted(segments)}
        await self._update_csi_node(driver, entry | ({"allocatable": {"count": most}} if most else {}))

    async def _update_csi_node(self, driver: str, entry: Object | None) -> None:
        """Replace a driver's entry in the node's CSINode, or remove it."""
        path = f"{STORAGE}/csinodes/{self._node}"
        found = await find(self._api, path)
        others = [
            each for each in (found or {"spec": {}})["spec"].get("drivers") or [] if each["name"] != driver
        ]
        drivers = [*others, entry] if entry else others
        if found:
            body = {"metadata": {"resourceVersion": found["metadata"]["resourceVersion"]}}
            await self._api.patch(path, body | {"spec": {"drivers": drivers}}, kind="merge")
            return
        node = await self._api.get(f"/api/v1/nodes/{self._node}")
        owner = {"apiVersion": "v1", "kind": "Node", "name": self._node, "uid": node["metadata"]["uid"]}
        metadata = {"name": self._node, "ownerReferences": [owner]}
        await self._api.post(f"{STORAGE}/csinodes", {"metadata": metadata, "spec": {"drivers": drivers}})

    # Volumes.

    async def publish(self, pod: Object, volume: CsiVolume) -> PublishedVolume:
        """Mount a volume for a pod. Safe to repeat.

        Raises:
            CsiError: The driver is not registered, or refuses; or the volume is not attached.
            ApiError: The API server does not answer.
        """
        registered = (each for each in self._drivers.values() if each.name == volume.driver)
        driver = next(registered, None)
        if driver is None:
            raise CsiError(f"driver name {volume.driver} not found in the list of registered CSI drivers")
        found = await find(self._api, f"{STORAGE}/csidrivers/{volume.driver}")
        spec = (found or {}).get("spec") or {}
        modes = spec.get("volumeLifecycleModes") or ["Persistent"]
        mode = "Persistent" if volume.handle else "Ephemeral"
        if mode not in modes:
            hint = f"only supports {modes}" if found else "no CSIDriver object"
            raise CsiError(f'volume mode "{mode}" not supported by driver {volume.driver} ({hint})')
        uid = pod["metadata"]["uid"]
        target = f"{KUBELET}/pods/{uid}/volumes/kubernetes.io~csi/{volume.name}/mount"
        record = self._directory.resolve(target).parent / "vol_data.json"
        async with self._locks.setdefault(volume.handle or uid, asyncio.Lock()):
            known = _read(record)
            place = Path(known["place"]) if known.get("place") else None
            if place is None or not (place.is_mount() if known["taken"] else place.exists()):
                handle = volume.handle or f"csi-{_digest(uid + volume.name)}"
                data = {"driverName": volume.driver, "volumeHandle": handle, "nodeName": self._node}
                data["staging"] = _staging(volume) if STAGE_UNSTAGE in driver.capabilities else ""
                record.parent.mkdir(parents=True, exist_ok=True)
                write_private(record, json.dumps(data))
                try:
                    await self._mount(driver, pod, volume, spec, data, target)
                except PluginError as error:
                    raise CsiError(str(error)) from error
                place, taken = await self._locate(driver, target)
                known = data | {"place": str(place), "taken": taken}
                write_private(record, json.dumps(known))
        return PublishedVolume(place, not known["taken"], spec)

    async def _mount(
        self, driver: _Driver, pod: Object, volume: CsiVolume, spec: Object, data: Object, target: str
    ) -> None:
        from localkube.kubelet.plugins import messages_pb2 as messages

        context = {}
        if volume.handle and spec.get("attachRequired", True):
            context = await self._attachment(volume)
        modes = PRECISE_MODES if SINGLE_NODE_MULTI_WRITER in driver.capabilities else ACCESS_MODES
        capability = messages.VolumeCapability(
            mount=messages.VolumeCapability.Mount(fs_type=volume.fs_type, mount_flags=volume.mount_options),
            access_mode=messages.VolumeCapability.AccessMode(mode=modes[volume.access_mode]),
        )
        common = {
            "volume_id": data["volumeHandle"],
            "publish_context": context,
            "volume_capability": capability,
        }
        if data["staging"]:
            self._directory.resolve(data["staging"]).mkdir(parents=True, exist_ok=True)
            request = messages.NodeStageVolumeRequest(
                staging_target_path=data["staging"],
                secrets=await self._secrets(volume.stage_secret),
                volume_context=volume.attributes,
                **common,
            )
            await driver.client.call("NodeStageVolume", request, messages.Empty, seconds=MOUNT_SECONDS)
        about = _pod_info(pod, ephemeral=not volume.handle) if spec.get("podInfoOnMount") else {}
        request = messages.NodePublishVolumeRequest(
            staging_target_path=data["staging"],
            target_path=target,
            readonly=volume.read_only,
            secrets=await self._secrets(volume.publish_secret),
            volume_context={**volume.attributes, **about},
            **common,
        )
        await driver.client.call("NodePublishVolume", request, messages.Empty, seconds=MOUNT_SECONDS)

    async def _attachment(self, volume: CsiVolume) -> dict[str, str]:
        """Return what the attachment of a volume to the node says of it."""
        name = f"csi-{_digest(volume.handle + volume.driver + self._node)}"
        found = await find(self._api, f"{STORAGE}/volumeattachments/{name}")
        status = (found or {}).get("status") or {}
        if not status.get("attached"):
            problem = (status.get("attachError") or {}).get("message")
            raise CsiError(
                f"volume {volume.handle} is not attached to the node yet"
                + (f": {problem}" if problem else "")
            )
        return status.get("attachmentMetadata") or {}

    async def _locate(self, driver: _Driver, target: str) -> tuple[Path, bool]:
        """Find what a driver has mounted: the directory that it has bound, or its own mount, taken over."""
        own, pid = self._directory.resolve(target), _peer(driver.socket)
        mountinfo = Path(f"/proc/{pid}/mountinfo").read_text()
        mounted = [fields for line in mountinfo.splitlines() if (fields := line.split(" "))[4] == target]
        if not mounted:
            own.mkdir(parents=True, exist_ok=True)
            return own, False
        device, root = mounted[-1][2:4]
        there = os.stat(f"/proc/{pid}/root{target}")
        places = places_of(device, root, Path("/proc/self/mountinfo").read_text())
        found = [
            Path(each) for each in places if os.path.exists(each) and os.path.samestat(os.stat(each), there)
        ]
        # The cluster's own first: its directory may be mounted elsewhere as well, where it is hidden.
        found.sort(key=lambda each: not each.is_relative_to(self._directory.path.parents[1]))
        if found:
            return found[0], False
        own.mkdir(parents=True, exist_ok=True)
        await self._client.call("take_mount", pid=pid, path=target, target=str(own))
        return own, True

    async def unpublish(self, uid: str) -> None:
        """Undo what was published for a pod; what a driver refuses is named in the log, and stays."""
        root = self._directory.path / "pods"
        self._left.discard(uid)
        if not os.path.exists(root / uid):
            return
        from localkube.kubelet.plugins import messages_pb2 as messages

        for record in root.glob(f"{uid}/volumes/kubernetes.io~csi/*/vol_data.json"):
            data, target = _read(record), f"{KUBELET}/pods/{record.parent.relative_to(root)}/mount"
            driver = next((each for each in self._drivers.values() if each.name == data["driverName"]), None)
            try:
                if driver is None:
                    raise PluginError(f"driver {data['driverName']} is not registered")
                if (record.parent / "mount").is_mount():
                    await self._client.call("drop_mount", target=str(record.parent / "mount"))
                request = messages.NodeUnpublishVolumeRequest(
                    volume_id=data["volumeHandle"], target_path=target
                )
                await driver.client.call(
                    "NodeUnpublishVolume", request, messages.Empty, seconds=MOUNT_SECONDS
                )
                await asyncio.to_thread(remove_tree, record.parent)
                if data["staging"] and data["volumeHandle"] not in self._in_use():
                    request = messages.NodeUnstageVolumeRequest(
                        volume_id=data["volumeHandle"], staging_target_path=data["staging"]
                    )
                    await driver.client.call(
                        "NodeUnstageVolume", request, messages.Empty, seconds=MOUNT_SECONDS
                    )
            except PluginError as error:
                log.warning("volume %s of pod %s stays: %s", record.parent.name, uid, error)
                self._left.add(uid)
        if uid not in self._left:
            with contextlib.suppress(OSError):
                await asyncio.to_thread(remove_tree, root / uid)

    def _in_use(self) -> set[str]:
        records = (self._directory.path / "pods").glob("*/volumes/kubernetes.io~csi/*/vol_data.json")
        return {_read(record).get("volumeHandle", "") for record in records}

    async def _secrets(self, reference: Object | None) -> dict[str, str]:
        import base64

        if not reference:
            return {}
        found = await self._secret(reference["namespace"], reference["name"])
        if found is None:
            raise CsiError(f'secret "{reference["name"]}" not found')
        return {key: base64.b64decode(text).decode() for key, text in (found.get("data") or {}).items()}


def _sockets(folder: Path) -> dict[Path, int]:
    """Find the sockets below a folder, and when they were made, in nanoseconds."""
    found = {}
    for path in folder.glob("**/*"):
        with contextlib.suppress(FileNotFoundError):
            if path.is_socket():
                found[path] = path.stat().st_mtime_ns
    return found


def _pod_info(pod: Object, *, ephemeral: bool) -> dict[str, str]:
    metadata, prefix = pod["metadata"], "csi.storage.k8s.io/"
    return {
        f"{prefix}pod.name": metadata["name"],
        f"{prefix}pod.namespace": metadata["namespace"],
        f"{prefix}pod.uid": metadata["uid"],
        f"{prefix}serviceAccount.name": pod["spec"].get("serviceAccountName", ""),
        f"{prefix}ephemeral": str(ephemeral).lower(),
    }


def _staging(volume: CsiVolume) -> str:
    place = f"{KUBELET}/plugins/kubernetes.io/csi/{volume.driver}/{_digest(volume.handle)}/globalmount"
    return place if volume.handle else ""


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def _read(record: Path) -> dict[str, Any]:
    try:
        return json.loads(record.read_text())
    except (FileNotFoundError, ValueError):
        return {}


def _peer(path: Path) -> int:
    """Find the process that listens on a socket."""
    with socket.socket(socket.AF_UNIX) as connection, short_name(path) as name:
        connection.connect(name)
        credentials = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
    return struct.unpack("3i", credentials)[0]
