"""Create, delete and watch a job's pods. This is the only module here that uses the Kubernetes API.

The pod templates are in two files that the kit creates, ``ps.json`` and ``worker.json``. This module adds the
number and the owner reference: the owner is the job's main object and not the master's pod, so that the pods
outlive a master, and all are deleted with the job. An annotation of that object has the desired number of
workers. ``processes`` decides how to react to losses.
"""

import copy
import json
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kubernetes import client, config, watch
from kubernetes.client.exceptions import ApiException
from urllib3.exceptions import HTTPError

from .settings import ROLES

JOB, ROLE, INDEX = "elasticdl-job-name", "elasticdl-replica-type", "elasticdl-replica-index"
REPLICA = "trainyard/replica"  # role and index
REPLICAS = "trainyard/replicas"
REQUEST_SECONDS = 10
WATCH_SECONDS = 60  # before the next list
RETRY_SECONDS = 1.0
OWNER_SECONDS = 30
LIST_SECONDS = 120  # the API server may be unavailable for a while
API_ERRORS = (ApiException, HTTPError, OSError)
GONE = {  # the reasons of Kubernetes' pod condition DisruptionTarget
    "PreemptionByScheduler": "preempted",
    "DeletionByTaintManager": "node lost",
    "DeletionByPodGC": "node lost",
    "EvictionByEvictionAPI": "evicted",
    "TerminationByKubelet": "evicted",
}
ENDED = {"Evicted": "evicted", "Preempting": "preempted", "NodeLost": "node lost", "Shutdown": "node lost"}
NO_ROOM = "OutOf"  # OutOfcpu …: the scheduler saw the end of another pod before the node did


@dataclass(frozen=True)
class Member:
    """The status of a process in the cluster.

    Attributes:
        role: `WORKER` or `SERVER`.
        index: Its number.
        over: The kind of its termination, also while it is terminating; empty while pending or running.
        reason: The reason as readable text.
    """

    role: str
    index: int
    over: str = ""
    reason: str = ""


class Pods(AbstractContextManager[Any]):
    """Watch, create and delete a job's pods.

    Args:
        templates: The folder with ``ps.json`` and ``worker.json``.
        job: The job's name.
        owner: The name of the Job that owns them.
        namespace: The namespace.
    """

    def __init__(self, templates: Path, *, job: str, owner: str, namespace: str) -> None:
        try:
            config.load_incluster_config()
        except config.ConfigException:
            config.load_kube_config()
        self._templates = {role: json.loads((templates / f"{role}.json").read_text()) for role in ROLES}
        self._job, self._namespace, self._owner_name = job, namespace, owner
        self._core, self._batch = client.CoreV1Api(), client.BatchV1Api()
        self._lock = threading.Lock()
        self._pods: dict[str, dict[str, Any]] = {}
        self._owner = self._plain(self._find_owner())
        self._closed = threading.Event()
        self._listed = threading.Event()
        self._threads = [
            threading.Thread(target=self._follow, args=(follow,), name=follow.__name__, daemon=True)
            for follow in (self._follow_pods, self._follow_owner)
        ]

    def __enter__(self) -> "Pods":
        for thread in self._threads:
            thread.start()
        if not self._listed.wait(LIST_SECONDS):
            raise SystemExit(
                f"the pods in {self._namespace} cannot be listed; does the service account have permission?"
            )
        return self

    def __exit__(self, *exception: object) -> None:
        self._closed.set()  # the threads end with their watch, or with the process

    @property
    def owner_uid(self) -> str:
        """The uid of the Job, which differs in each launch."""
        return self._owner["metadata"]["uid"]

    def _find_owner(self) -> client.V1Job:
        """Read the Job, which may be created shortly after its first pod and then adopts it."""
        deadline = time.monotonic() + OWNER_SECONDS
        while True:
            try:
                return self._batch.read_namespaced_job(
                    self._owner_name, self._namespace, _request_timeout=REQUEST_SECONDS
                )
            except ApiException as error:
                if error.status != 404 or time.monotonic() > deadline:
                    raise
            time.sleep(RETRY_SECONDS / 4)

    # The processes

    def members(self) -> list[Member]:
        """Return the known servers and workers of the job."""
        with self._lock:
            pods = list(self._pods.values())
        members = []
        for pod in pods:
            labels = pod["metadata"].get("labels") or {}
            if labels.get(ROLE) in ROLES and labels.get(INDEX, "").isdigit():
                members.append(Member(labels[ROLE], int(labels[INDEX]), *termination(pod)))
        return members

    def desired_workers(self) -> int | None:
        """Return the desired number of workers in the job's annotation; None if it has none."""
        annotation = (self._owner["metadata"].get("annotations") or {}).get(REPLICAS, "")
        return int(annotation) if annotation.isdigit() else None

    def launch(self, role: str, index: int) -> bool:
        """Create a pod; return True if it exists now."""
        pod = self.pod(role, index)
        name = pod["metadata"]["name"]
        with self._lock:
            if name in self._pods and not termination(self._pods[name])[0]:
                return True
            try:
                created = self._core.create_namespaced_pod(
                    self._namespace, pod, _request_timeout=REQUEST_SECONDS
                )
            except API_ERRORS as error:
                _log_error(f"pod {name} cannot be created", error)
                return False
            self._pods[name] = self._plain(created)
        return True

    def remove(self, role: str, index: int, *, now: bool = False) -> None:
        """Delete a pod; with ``now`` do not wait for its node, which may be lost."""
        name = self._name(role, index)
        grace = {"grace_period_seconds": 0} if now else {}
        try:
            self._core.delete_namespaced_pod(name, self._namespace, _request_timeout=REQUEST_SECONDS, **grace)
        except API_ERRORS as error:
            if not (isinstance(error, ApiException) and error.status == 404):
                _log_error(f"pod {name} cannot be deleted", error)

    def pod(self, role: str, index: int) -> dict[str, Any]:
        """Return a pod's manifest: the template with the number and the owner reference."""
        pod = copy.deepcopy(self._templates[role])
        metadata = pod["metadata"]
        metadata["name"] = self._name(role, index)
        labels = {JOB: self._job, ROLE: role, INDEX: str(index), REPLICA: f"{role}-{index}"}
        metadata["labels"] = (metadata.get("labels") or {}) | labels
        owner = {"apiVersion": "batch/v1", "kind": "Job", "name": self._owner_name}
        metadata["ownerReferences"] = [owner | {"uid": self.owner_uid}]
        container = pod["spec"]["containers"][0]
        container["args"] = [*(container.get("args") or []), f"--index={index}"]
        address = {"name": "POD_IP", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}}
        number = {"name": f"{role.upper()}_ID", "value": str(index)}
        container["env"] = [*(container.get("env") or []), number, address]
        return pod

    def _name(self, role: str, index: int) -> str:
        return f"elasticdl-{self._job}-{role}-{index}"

    # Watches

    def _follow(self, once: Callable[[], None]) -> None:
        """Watch until closed; when a watch ends, for any reason, list and watch again."""
        while not self._closed.is_set():
            try:
                once()
            except API_ERRORS as error:
                if not (isinstance(error, ApiException) and error.status == 410):
                    _log_error("the API server does not answer", error)
                self._closed.wait(RETRY_SECONDS)

    def _follow_pods(self) -> None:
        where = {"namespace": self._namespace, "label_selector": f"{JOB}={self._job}"}
        with self._lock:  # a pod that is created meanwhile would be missing from the list
            listed = self._core.list_namespaced_pod(**where, _request_timeout=REQUEST_SECONDS)
            self._pods = {pod.metadata.name: self._plain(pod) for pod in listed.items}
        self._listed.set()
        for event in self._stream(self._core.list_namespaced_pod, where, listed.metadata.resource_version):
            pod = event["raw_object"]
            name, uid = pod["metadata"]["name"], pod["metadata"]["uid"]
            with self._lock:
                known = self._pods.get(name)
                if event["type"] == "DELETED":
                    if known is not None and known["metadata"]["uid"] == uid:
                        del self._pods[name]
                elif known is None or known["metadata"]["uid"] == uid or _newer(pod, known):
                    self._pods[name] = pod

    def _follow_owner(self) -> None:
        where = {"namespace": self._namespace, "field_selector": f"metadata.name={self._owner_name}"}
        listed = self._batch.list_namespaced_job(**where, _request_timeout=REQUEST_SECONDS)
        for job in listed.items:
            self._owner = self._plain(job)
        for event in self._stream(self._batch.list_namespaced_job, where, listed.metadata.resource_version):
            if event["type"] != "DELETED":
                self._owner = event["raw_object"]

    def _stream(
        self, what: Callable[..., object], where: dict[str, Any], version: str
    ) -> Iterator[dict[str, Any]]:
        limits = {"timeout_seconds": WATCH_SECONDS, "_request_timeout": WATCH_SECONDS + REQUEST_SECONDS}
        for event in watch.Watch().stream(what, **where, resource_version=version, **limits):
            if self._closed.is_set():
                return
            if event["type"] != "BOOKMARK":
                yield event

    def _plain(self, item: object) -> dict[str, Any]:
        return self._core.api_client.sanitize_for_serialization(item)


def termination(pod: dict[str, Any]) -> tuple[str, str]:
    """Return why a pod ended, as a reason and a message; both are empty while it is pending or running.

    Example:
        >>> termination({"metadata": {}, "status": {"phase": "Failed", "reason": "Evicted", "message": "?"}})
        ('evicted', 'Evicted: ?')
    """
    status = pod.get("status") or {}
    ends = bool(pod["metadata"].get("deletionTimestamp"))
    phase = status.get("phase", "Pending")
    if not ends and phase in ("Pending", "Running", "Unknown"):
        return "", ""
    if phase == "Succeeded":
        return "finished", "it has exited"
    for condition in status.get("conditions") or []:
        if condition["type"] == "DisruptionTarget" and condition["status"] == "True":
            text = condition.get("message") or condition["reason"]
            return GONE.get(condition.get("reason", ""), "deleted"), text
    if ends:
        return "deleted", "its pod was deleted"
    if status.get("reason") in ENDED:
        return ENDED[status["reason"]], f"{status['reason']}: {status.get('message', '')}"
    if status.get("reason", "").startswith(NO_ROOM):
        return "rejected", status.get("message") or status["reason"]
    for container in status.get("containerStatuses") or []:
        ended = (container.get("state") or {}).get("terminated")
        if ended is None:
            continue
        if ended.get("reason") == "OOMKilled":
            return "out of memory", "it exceeded its memory limit (OOMKilled)"
        if ended["exitCode"] > 128:
            return "killed", f"it was killed by signal {ended['exitCode'] - 128}"
        return "error", f"it ended with exit code {ended['exitCode']}"
    return "error", status.get("message") or "it failed"


def in_this_pod(templates: Path, job: str) -> Pods:
    """Return the pods of the job whose master is this process."""
    owner, namespace = os.environ.get("JOB_NAME"), os.environ.get("NAMESPACE")
    if not owner or not namespace:
        raise SystemExit("--pods needs JOB_NAME and NAMESPACE, the owner of the pods, in the environment")
    try:
        return Pods(templates, job=job, owner=owner, namespace=namespace)
    except API_ERRORS as error:
        raise SystemExit(
            f"the Job {owner} cannot be read ({error}); does the service account have the permission?"
        ) from error


def _newer(pod: dict[str, Any], known: dict[str, Any]) -> bool:
    ends = bool(pod["metadata"].get("deletionTimestamp"))
    return not ends and pod["metadata"]["creationTimestamp"] >= known["metadata"]["creationTimestamp"]


def _log_error(what: str, error: Exception) -> None:
    reason = error.reason if isinstance(error, ApiException) else error
    sys.stderr.write(f"{what}: {reason}\n")
