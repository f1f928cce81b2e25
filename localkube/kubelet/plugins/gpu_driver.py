"""The DRA driver of a node's GPUs, in the kubelet: it publishes them and shows them to containers.

Driver, classes and attributes have NVIDIA's names, so that its manifests work. GPUs are in ResourceSlices
alone: by the class's ``extendedResourceName``, ``nvidia.com/gpu`` allocates the same devices, and partitions
consume counters of their GPU, so no GPU is allocated twice. The placement of MIG partitions is not modelled.

Source: https://github.com/NVIDIA/k8s-dra-driver-gpu
"""

import hashlib
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any
from uuid import NAMESPACE_URL, uuid5
from xml.sax.saxutils import escape

from localkube import host
from localkube.api_path import MutableObject
from localkube.kubelet.plugins.cdi import ContainerEdits
from localkube.kubelet.plugins.declared_gpu import MODELS, DeclaredGpu
from localkube.kubelet.plugins.rpc import PluginError
from localkube.kubelet.resources.node_settings import NodeSettings
from localkube.kubelet.volumes.host_path import check
from localkube.kubelet.volumes.node_directory import KUBELET, NodeDirectory
from localkube.runtime.path_resolution import opened

DRIVER = "gpu.nvidia.com"
SIMULATED = "declared, simulated"
PER_SLICE = 3  # GPUs with all their partitions; a slice has 64 devices at most that consume counters
PROGRAM = "/usr/local/sbin/nvidia-smi"


@dataclass(frozen=True)
class GpuDevice:
    """A GPU or a partition of one; ``pace`` in ms per image, memory in bytes, slices of 7 and of 8."""

    name: str
    uuid: str
    index: int
    product: str
    memory: int
    pace: float = 0.0
    profile: str = ""
    parent: str = ""
    slices: tuple[int, int] = (7, 8)


class GpuDriver:
    """The GPUs of one node: declared ones, or where the machine has some, real ones; never both."""

    def __init__(self, settings: NodeSettings, directory: NodeDirectory) -> None:
        self._settings, self._directory = settings, directory
        self.is_real = bool(settings.gpu_model and settings.gpu_devices)
        self._model = DeclaredGpu.parse(settings.gpu_model) if settings.gpu_model else None
        self.devices = {device.name: device for device in self._list()}

    def _list(self) -> Iterable[GpuDevice]:
        if self.is_real:
            real = {gpu.uuid: gpu for gpu in host.gpus()}
            for index, uuid in enumerate(self._settings.gpu_devices):
                if gpu := real.get(uuid):
                    yield GpuDevice(f"gpu-{index}", uuid, index, gpu.name, gpu.memory)
            return
        model = self._model
        for index in range(model.count if model else 0):
            assert model
            name, product = f"gpu-{index}", MODELS[model.model][0]
            yield GpuDevice(name, self._uuid("GPU", name), index, product, model.memory, model.pace)
            for profile, count, compute, memory in model.partitions():
                size, pace = model.memory * memory // 8, round(model.pace * 7 / compute, 3)
                for number in range(count):
                    own = f"{name}-mig-{profile.replace('.', '')}-{number}"
                    uuid, slices = self._uuid("MIG", own), (compute, memory)
                    yield GpuDevice(own, uuid, index, product, size, pace, profile, name, slices)

    def _uuid(self, kind: str, name: str) -> str:
        return f"{kind}-{uuid5(NAMESPACE_URL, f'trainyard/{self._settings.name}/{name}')}"

    def slices(self) -> list[MutableObject]:
        """Build the node's ResourceSlices."""
        gpus, bodies = (
            [device for device in self.devices.values() if not device.parent],
            list[MutableObject](),
        )
        for first in range(0, len(gpus), PER_SLICE):
            names = {gpu.name for gpu in gpus[first : first + PER_SLICE]}
            shown = [item for item in self.devices.values() if {item.name, item.parent} & names]
            bodies.append({"devices": [self._device(item) for item in shown]})
            if not self.is_real:
                whole = {"compute-slices": {"value": "7"}, "memory-slices": {"value": "8"}}
                bodies.append(
                    {"sharedCounters": [{"name": name, "counters": whole} for name in sorted(names)]}
                )
        node = self._settings.name
        pool = {"name": node, "generation": 1, "resourceSliceCount": len(bodies)}
        return [
            {
                "apiVersion": "resource.k8s.io/v1",
                "kind": "ResourceSlice",
                "metadata": {"name": f"{node}-{DRIVER}-{index}"},
                "spec": {"driver": DRIVER, "nodeName": node, "pool": pool, **body},
            }
            for index, body in enumerate(bodies)
        ]

    def _device(self, device: GpuDevice) -> MutableObject:
        attributes: MutableObject = {
            "type": {"string": "mig" if device.profile else "gpu"},
            "uuid": {"string": device.uuid},
            "index": {"int": device.index},
            "productName": {"string": device.product},
            "declared": {"bool": not self.is_real},
        }
        result: MutableObject = {
            "name": device.name,
            "capacity": {"memory": {"value": f"{device.memory >> 20}Mi"}},
        }
        if self._model and not self.is_real:
            _, architecture, capability, *_ = MODELS[self._model.model]
            attributes |= {"architecture": {"string": architecture}, "brand": {"string": "Nvidia"}}
            attributes["cudaComputeCapability"] = {"version": capability}
            compute, memory = map(str, device.slices)
            counters = {"compute-slices": {"value": compute}, "memory-slices": {"value": memory}}
            result["consumesCounters"] = [{"counterSet": device.parent or device.name, "counters": counters}]
        if device.profile:
            attributes["profile"] = {"string": device.profile}
            attributes["parentUUID"] = {"string": self.devices[device.parent].uuid}
        if self._settings.nvlink_domain and not self.is_real:
            attributes["nvlinkDomain"] = {"string": self._settings.nvlink_domain}
        return result | {"attributes": attributes}

    def prepare(self, claim: Mapping[str, Any]) -> list[MutableObject]:
        """List the devices of this node that are allocated to a claim, in the form of a driver's answer.

        Raises:
            PluginError: The node has no such device.
        """
        results = [
            result
            for result in claim["status"]["allocation"]["devices"]["results"]
            if (result["driver"], result["pool"]) == (DRIVER, self._settings.name)
        ]
        for result in results:
            if result["device"] not in self.devices:
                raise PluginError(f"device {result['device']} is not one of node {self._settings.name}")
        return [
            {"pool": item["pool"], "device": item["device"], "requests": [item["request"]], "cdi": []}
            for item in results
        ]

    def uuids(self, names: Iterable[str]) -> list[str]:
        return [self.devices[name].uuid for name in dict.fromkeys(names) if name in self.devices]

    def grant(self, names: Iterable[str]) -> ContainerEdits:
        """Make a container's declared devices visible to programs; real ones need no files of ours."""
        devices = [self.devices[name] for name in dict.fromkeys(names) if name in self.devices]
        if not devices or self.is_real:
            return ContainerEdits()
        text = self._nvidia_smi(devices)
        name = hashlib.sha256(text.encode()).hexdigest()[:16]
        self._directory.create()
        check("gpus", "DirectoryOrCreate", beneath=self._directory.path)
        with opened(self._directory.path, "gpus") as folder:  # pods of plugins may leave links here
            flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC
            with os.fdopen(os.open(name, flags, 0o755, dir_fd=folder), "w") as file:
                os.fchmod(file.fileno(), 0o755)  # whatever the umask: a container's users start it
                file.write(text)
        env = {"NVIDIA_VISIBLE_DEVICES": ",".join(device.uuid for device in devices)}
        env["SIMULATED_MS_PER_IMAGE"] = str(max(device.pace for device in devices))
        return ContainerEdits(env, [(PROGRAM, f"{KUBELET}/gpus/{name}", True)])

    def _nvidia_smi(self, devices: list[GpuDevice]) -> str:
        """Write the program that lists these devices, for any shell."""
        lines, elements = [], []
        for number, device in enumerate(devices):
            gpu = self.devices.get(device.parent, device)
            lines.append(f"GPU {number}: {device.product} (UUID: {gpu.uuid}) {SIMULATED}")
            if device.profile:
                lines.append(f"  MIG {device.profile:<11}  Device  0: (UUID: {device.uuid})")
            mode = "Enabled" if device.profile else "Disabled"
            elements.append(
                f'<gpu id="{number:08X}:00:00.0"><product_name>{escape(device.product)}</product_name>'
                f"<uuid>{device.uuid}</uuid><minor_number>{device.index}</minor_number>"
                f"<mig_mode><current_mig>{mode}</current_mig></mig_mode><fb_memory_usage>"
                f"<total>{device.memory >> 20} MiB</total></fb_memory_usage></gpu>"
            )
        head = f"<nvidia_smi_log><driver_version>{SIMULATED}</driver_version><attached_gpus>{len(devices)}"
        xml = "\n".join(["<?xml version='1.0' ?>", f"{head}</attached_gpus>", *elements, "</nvidia_smi_log>"])
        listing, xml = "\n".join(lines).replace("'", ""), xml.replace("'", '"')
        return (
            f"#!/bin/sh\ncase \"$*\" in\n'' | -L | --list-gpus) printf '%s\\n' '{listing}' ;;\n"
            f"'-q -x' | '-x -q') printf '%s\\n' '{xml}' ;;\n"
            f"*) echo 'nvidia-smi of GPUs that are {SIMULATED} has -L and -q -x' >&2; exit 2 ;;\nesac\n"
        )
