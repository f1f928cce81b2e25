"""The cluster's own programs as pods in ``kube-system``: mirror pods, as those of kubeadm's static pods.

The supervisor runs them, and goes on when a pod is deleted. The pods say what runs, since when, and how often
it was started again; their logs are the programs' own. DNS and the Service proxy are parts of the kubelet.
"""

import asyncio
import json
import time
from collections.abc import AsyncGenerator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from localkube.api_client import Api, Informer
from localkube.api_path import Object, api_path
from localkube.errors import ApiError
from localkube.kubelet.kubelet_config import KubeletConfig
from localkube.kubelet.logs.log_reader import LogOptions
from localkube.kubelet.pods.mirror_pods import HASH, SEEN, SOURCE, MirrorPods, config_hash
from localkube.kubelet.status.container_state import ContainerRecord
from localkube.kubelet.status.pod_status import pod_status, status_patch, timestamp
from localkube.network.addresses import NETWORK
from localkube.runtime.client import RuntimeClient
from localkube.tasks import wait_for_first

NAMESPACE, PRIORITY_CLASS = "kube-system", "system-node-critical"
CHECK_SECONDS, SETTLE_SECONDS = 5.0, 0.1
FOLLOW_SECONDS, BLOCK = 0.5, 1 << 18
CONTROL_PLANE = ("etcd", "kube-apiserver", "kube-controller-manager", "kube-scheduler")
# What is part of the kubelet, by the labels that it has elsewhere.
IN_KUBELET = {"kube-dns": {"k8s-app": "kube-dns"}, "kube-proxy": {"k8s-app": "kube-proxy"}}


@dataclass
class Component:
    """A program of the cluster: its process among the runtime's, its command, its log, its pod."""

    name: str
    process: str
    log: Path
    pod: Object
    started: float = 0.0
    restarts: int = 0
    counted: bool = False
    records: dict[str, ContainerRecord] = field(default_factory=dict)


class ComponentPods:
    """Reports the cluster's programs as pods of one node.

    Args:
        config: The kubelet's: what the supervisor runs is beside it, and the pods are the first node's.
    """

    def __init__(
        self,
        config: KubeletConfig,
        *,
        api: Api,
        client: RuntimeClient,
        mirrors: MirrorPods,
        pods: Informer,
    ) -> None:
        self._api, self._client, self._mirrors = api, client, mirrors
        self._node, plan = config.nodes[0], config.file.with_name("plan.json")
        self._changed = asyncio.Event()
        pods.subscribe(self._pod_changed)
        programs = {component["name"]: component for component in json.loads(plan.read_text())["components"]}
        self._components: dict[str, Component] = {}
        for name, program in programs.items():
            if name in CONTROL_PLANE:
                labels = {"component": name, "tier": "control-plane"}
                self._add(name, program, labels, f"registry.k8s.io/{name}:{config.version}")
            elif name == "metrics-server":
                self._add(name, program, {"k8s-app": name}, f"registry.k8s.io/metrics-server/{name}")
            elif name == "kubelet":
                for part, labels in IN_KUBELET.items():
                    self._add(part, program, labels, "trainyard/localkube")

    def _add(self, name: str, program: Object, labels: Mapping[str, str], image: str) -> None:
        container = {"name": name, "image": image, "command": list(program["argv"])}
        pod = component_pod(f"{name}-{self._node.name}", container, labels=labels, node=self._node.name)
        component = Component(name, program["name"], Path(program["log"]), pod)
        self._components[pod["metadata"]["name"]] = component
        self._mirrors.ensure(pod)

    def log(self, namespace: str, name: str) -> Path | None:
        component = self._components.get(name) if namespace == NAMESPACE else None
        return component.log if component else None

    def program_exited(self) -> None:
        """Check the components at once, because a program has ended."""
        self._changed.set()

    def _pod_changed(self, _change: str, pod: Object, _before: Object | None) -> None:
        if pod["metadata"]["namespace"] == NAMESPACE and pod["metadata"]["name"] in self._components:
            self._changed.set()

    async def run(self) -> None:
        """Report the components' status as it changes."""
        while True:
            answer, _ = await self._client.call("list")
            running = [entry for entry in answer["entries"] if entry["owner"] == "component"]
            for component in self._components.values():
                _observe(component, running)
                if mirror := self._mirrors.get(component.pod):
                    await self._report(component, mirror)
            await wait_for_first(self._changed.wait(), seconds=CHECK_SECONDS)
            if self._changed.is_set():
                await asyncio.sleep(SETTLE_SECONDS)
            self._changed.clear()

    async def _report(self, component: Component, mirror: Object) -> None:
        _restore_restart_count(component, mirror)
        status = pod_status(
            mirror,
            records=component.records,
            pod_ip=NETWORK.address,
            host_ip=self._node.address,
            start_time=component.started,
            now=time.time(),
        )
        if patch := status_patch(mirror, status):
            name = mirror["metadata"]["name"]
            path = api_path("v1/pods", namespace=NAMESPACE, name=name, subresource="status")
            try:
                await self._api.patch(path, patch)
            except ApiError:
                self._changed.set()


def component_pod(name: str, container: Object, *, labels: Mapping[str, str], node: str) -> dict[str, Any]:
    """Build the pod of a program of the cluster, as kubeadm's static pods are."""
    spec = {
        "nodeName": node,
        "hostNetwork": True,
        "priorityClassName": PRIORITY_CLASS,
        "tolerations": [{"operator": "Exists", "effect": "NoExecute"}],
        "enableServiceLinks": False,
        "containers": [container],
    }
    metadata = {"name": name, "namespace": NAMESPACE, "labels": dict(labels)}
    pod = {"metadata": metadata, "spec": spec}
    metadata["annotations"] = {
        HASH: config_hash(pod, node=node, source="file"),
        SOURCE: "file",
        SEEN: timestamp(time.time()),
    }
    return pod


def _observe(component: Component, running: Sequence[Object]) -> None:
    entry = next(
        (container for container in running if container["id"].rpartition(".")[0] == component.process), None
    )
    before = component.records.get(component.name)
    alive = entry if entry is not None and entry["status"] is None else None
    if alive and (before is None or before.container_id != alive["id"]):
        component.restarts += bool(before and before.container_id)  # else it has waited for its first start
        component.started = component.started or alive["started"]
    component.records[component.name] = ContainerRecord(
        component.name,
        "running" if alive else "waiting",
        reason="" if alive else "CrashLoopBackOff",
        started_at=alive["started"] if alive else None,
        restart_count=component.restarts,
        container_id=alive["id"] if alive else (before.container_id if before else ""),
        ready=bool(alive),
        started=bool(alive),
        image=component.pod["spec"]["containers"][0]["image"],
    )


def _restore_restart_count(component: Component, mirror: Object) -> None:
    """Count restarts from what an earlier kubelet has reported."""
    reported = ((mirror.get("status") or {}).get("containerStatuses") or [{}])[0]
    record = component.records[component.name]
    if component.counted or not reported.get("containerID") or not record.container_id:
        return
    component.counted = True
    again = not reported["containerID"].endswith(f"//{record.container_id}")
    component.restarts += reported.get("restartCount", 0) + again
    component.records[component.name] = replace(record, restart_count=component.restarts)


async def read_component_log(path: Path, options: LogOptions) -> AsyncGenerator[bytes]:
    """Yield a program's log; its lines have their own times, so that those of ``options`` say nothing."""
    remaining = options.limit_bytes
    with path.open("rb") as file:
        text = file.read()
        if options.tail_lines is not None:
            text = b"".join(text.splitlines(keepends=True)[-options.tail_lines or len(text) :])
        while True:
            if remaining is not None:
                text, remaining = text[:remaining], remaining - len(text[:remaining])
            if text:
                yield text
            if not options.follow or remaining == 0:
                return
            await asyncio.sleep(FOLLOW_SECONDS)
            if path.stat().st_size < file.tell():  # the supervisor has rotated it
                file.seek(0)
            text = file.read(BLOCK)
