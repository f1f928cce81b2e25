# /// script
# requires-python = ">=3.11"
# dependencies = ["kopf>=1.45", "pyyaml", "urllib3>=2.8"]
# ///
"""The controller of ElasticJobs: pods and Services for the workers, their rendezvous, and the job's status.

It runs in a pod from a ConfigMap with ``kopf run``, so it imports nothing of the kit. At each change of a job
or one of its pods, and when a deadline passes, it reconciles the whole job: missing objects are created and
surplus ones deleted, whichever change was seen or missed.

A disrupted worker (preempted, evicted, deleted, or on a lost node) is always recreated, and stays pending
while there is no room; one that was killed by a signal is recreated until ``backoffLimit``; an error of the
program fails the job. Workers meet at the etcd that the job names, or at its own, as torch's rendezvous
supports no passwords; ``trainers/elastic.py`` has the rest of their communication.
"""

import logging
import threading
from collections import defaultdict
from collections.abc import Iterable
from datetime import UTC, datetime
from functools import cache
from itertools import islice
from os import environ
from pathlib import Path
from typing import Any
from urllib.parse import quote

import kopf
import urllib3
import yaml

GROUP, VERSION, PLURAL = "elastic.pytorch.org", "v1alpha1", "elasticjobs"
CONTAINER = "elasticjob-worker"
INDEX, JOB = "training.kubeflow.org/replica-index", "training.kubeflow.org/job-name"
RENDEZVOUS = f"{GROUP}/rendezvous-of"  # label of the etcd's pod
ETCD, ETCD_PORT = Path(__file__).with_name("etcd.yaml"), 2379
ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")
SECONDS, RETRY_SECONDS, CONNECTIONS = 30, 5, 16
RETRYABLE = 128  # exit codes from here on mean that a signal ended the process
MAX_AT_ONCE = 100  # workers created in one reconciliation; the first of them triggers the next
OVERDUE_SECONDS = 5  # after its grace period a remaining pod is on an unreachable node
ENDS = ("Succeeded", "Failed")

locks: dict[tuple[str, str], threading.Lock] = defaultdict(threading.Lock)
alarms: dict[tuple[str, str], threading.Timer] = {}


class RequestRejected(urllib3.exceptions.HTTPError):
    """The API server rejects a request; the message is its reason."""


@kopf.on.startup()
def configure(settings: kopf.OperatorSettings, **_: object) -> None:
    """Disable kopf's own Events, as the job has conditions."""
    settings.posting.enabled = False
    logging.getLogger("aiohttp.access").setLevel(logging.WARNING)  # it logs every probe


@kopf.on.login()
def login(settings: kopf.OperatorSettings, **_: object) -> kopf.ConnectionInfo | None:
    """Use the pod's ServiceAccount."""
    return kopf.login_with_service_account(settings=settings)


@kopf.on.event(GROUP, VERSION, PLURAL)
def job_changed(namespace: str | None, name: str, **_: object) -> None:
    """Reconcile a job that was created or changed."""
    reconcile_or_retry(namespace, name)


@kopf.on.event("v1", "pods", labels={JOB: kopf.PRESENT, "group-name": GROUP})
def pod_changed(namespace: str | None, labels: kopf.Labels, **_: object) -> None:
    """Reconcile the job of a changed pod."""
    reconcile_or_retry(namespace, labels[JOB])


@kopf.on.event("v1", "pods", labels={RENDEZVOUS: kopf.PRESENT})
def etcd_changed(namespace: str | None, labels: kopf.Labels, **_: object) -> None:
    """Reconcile the job of a changed etcd."""
    reconcile_or_retry(namespace, labels[RENDEZVOUS])


def reconcile_or_retry(namespace: str | None, name: str) -> None:
    """Reconcile a job, and again later if a request fails."""
    assert namespace, "it is None only for cluster-scoped objects"
    try:
        reconcile(namespace, name)
    except urllib3.exceptions.HTTPError as error:
        logging.getLogger(__name__).warning("%s/%s: %s", namespace, name, error)
        schedule(namespace, name, RETRY_SECONDS)


def reconcile(namespace: str, name: str) -> None:
    """Reconcile a job's pods with its spec, and its status with the pods."""
    with locks[namespace, name]:
        path = api_path(f"{GROUP}/{VERSION}", namespace, PLURAL, name)
        job = request("GET", path) if name else None
        if job is None or job["metadata"].get("deletionTimestamp"):
            return  # the garbage collector deletes its objects
        selector = {"labelSelector": f"{JOB}={name},group-name={GROUP}"}
        pod_list = request("GET", api_path("v1", namespace, "pods"), params=selector)
        assert pod_list, "a list always exists"
        pods = pod_list["items"]
        now = datetime.now(UTC)
        status = status_of(job, pods, now=now)
        if status != job.get("status"):  # before pods are deleted, as they are counted only once
            request("PATCH", f"{path}/status", body={"status": status})
        job["status"] = status
        if not finished(job):
            adjust(job, pods)
        elif (left := remaining(job, now)) is not None and left <= 0:
            request("DELETE", path, params={"propagationPolicy": "Background"})
            return
        else:
            clean_up(job, pods)
        schedule(namespace, name, next_due(job, pods, now))


def schedule(namespace: str, name: str, seconds: float | None) -> None:
    """Reconcile the job again after some seconds, as no event reports a passed deadline."""
    if old := alarms.pop((namespace, name), None):
        old.cancel()
    if seconds is not None:
        alarm = threading.Timer(max(0.5, seconds), reconcile_or_retry, (namespace, name))
        alarm.daemon = True
        alarms[namespace, name] = alarm
        alarm.start()


def next_due(job: dict[str, Any], pods: Iterable[dict[str, Any]], now: datetime) -> float | None:
    """Return the seconds until the job's next deadline, or None."""
    ends = [] if finished(job) else [end for pod in pods if (end := deletion_time(pod))]
    due = [(end - now).total_seconds() + OVERDUE_SECONDS for end in ends]
    left = remaining(job, now)
    return min([*due, *([] if left is None else [left])], default=None)


def remaining(job: dict[str, Any], now: datetime) -> float | None:
    """Return the seconds until the job's deadline or, after its end, its deletion; None if unlimited."""
    ended = finished(job)
    allowed = job["spec"].get("ttlSecondsAfterFinished" if ended else "activeDeadlineSeconds")
    since = job["status"].get("completionTime" if ended else "startTime")
    return None if allowed is None or since is None else allowed - (now - parse_time(since)).total_seconds()


def adjust(job: dict[str, Any], pods: Iterable[dict[str, Any]]) -> None:
    """Create missing workers; delete surplus, disrupted and killed ones."""
    namespace, replicas = job["metadata"]["namespace"], worker_of(job).get("replicas", 1)
    existing, now = set(), datetime.now(UTC)
    for pod in pods:
        index, end = int(pod["metadata"]["labels"][INDEX]), deletion_time(pod)
        overdue = end and (now - end).total_seconds() > OVERDUE_SECONDS
        if overdue or (not end and (index >= replicas or lost(job, pod))):
            delete(namespace, pod["metadata"]["name"], at_once=bool(overdue), with_service=index >= replicas)
        existing.add(index)  # its name is in use until it is deleted, which triggers another event
    if any(done(pod) for pod in pods):
        return  # training has ended: a new worker would start again
    missing = list(islice((index for index in range(replicas) if index not in existing), MAX_AT_ONCE))
    if missing and not etcd_ready(job, now):
        return  # its next change triggers another event
    for index in missing:
        try:
            request("POST", api_path("v1", namespace, "services"), body=service(job, index))
            request("POST", api_path("v1", namespace, "pods"), body=worker_pod(job, index))
        except RequestRejected as error:  # a quota, an unknown field, no such PriorityClass
            emit_warning(job, str(error))
            raise


def etcd_ready(job: dict[str, Any], now: datetime) -> bool:
    """Return whether etcd is ready; create the job's own etcd if it is missing."""
    if not has_own_etcd(job):
        return True
    namespace, name = job["metadata"]["namespace"], etcd_name(job)
    pod = request("GET", api_path("v1", namespace, "pods", name))
    if pod is None:
        for item in etcd(job):
            request("POST", api_path("v1", namespace, item["kind"].lower() + "s"), body=item)
        return False
    end = deletion_time(pod)
    if phase_of(pod) in ENDS or (end and (now - end).total_seconds() > OVERDUE_SECONDS):
        delete(namespace, name, at_once=True, with_service=False)
    conditions = pod.get("status", {}).get("conditions") or []
    return end is None and ("Ready", "True") in {(item["type"], item["status"]) for item in conditions}


def clean_up(job: dict[str, Any], pods: Iterable[dict[str, Any]]) -> None:
    """Delete the pods of a finished job according to its policy: running ones, all, or none.

    Pending pods are always deleted, as they would start later.
    """
    if has_own_etcd(job):
        delete(job["metadata"]["namespace"], etcd_name(job))
    policy = job["spec"].get("cleanPodPolicy", "Running")
    for pod in pods:
        phase = phase_of(pod)
        if policy == "All" or phase == "Pending" or (policy == "Running" and phase not in ENDS):
            delete(pod["metadata"]["namespace"], pod["metadata"]["name"])


def delete(namespace: str, name: str, *, at_once: bool = False, with_service: bool = True) -> None:
    """Delete a worker and the Service of the same name."""
    params = {"gracePeriodSeconds": 0} if at_once else None
    request("DELETE", api_path("v1", namespace, "pods", name), params=params)
    if with_service:
        request("DELETE", api_path("v1", namespace, "services", name))


def emit_warning(job: dict[str, Any], message: str) -> None:
    """Create an Event about the job: a worker cannot be created."""
    meta, now = job["metadata"], format_time(datetime.now(UTC))
    about = {"apiVersion": f"{GROUP}/{VERSION}", "kind": "ElasticJob", "namespace": meta["namespace"]}
    event = {
        "metadata": {"generateName": f"{meta['name']}-", "namespace": meta["namespace"]},
        "involvedObject": about | {"name": meta["name"], "uid": meta["uid"]},
        "type": "Warning",
        "reason": "FailedCreate",
        "message": message,
        "source": {"component": "elastic-job-controller"},
        "firstTimestamp": now,
        "lastTimestamp": now,
        "count": 1,
    }
    request("POST", api_path("v1", meta["namespace"], "events"), body=event)


# Objects of a job


def worker_of(job: dict[str, Any]) -> dict[str, Any]:
    """Return the job's worker spec."""
    return job["spec"]["replicaSpecs"]["Worker"]


def owned(job: dict[str, Any], name: str, labels: dict[str, str]) -> dict[str, Any]:
    """Return the metadata of an object of a job."""
    meta = job["metadata"]
    owner = {"apiVersion": f"{GROUP}/{VERSION}", "kind": "ElasticJob", "name": meta["name"]}
    owner |= {"uid": meta["uid"], "controller": True, "blockOwnerDeletion": True}
    return {"name": name, "namespace": meta["namespace"], "labels": labels, "ownerReferences": [owner]}


def of_worker(job: dict[str, Any], index: int) -> dict[str, Any]:
    """Return the metadata of an object of a worker."""
    name = job["metadata"]["name"]
    labels = {"group-name": GROUP, JOB: name, INDEX: str(index)}
    return owned(job, f"{name}-worker-{index}", labels)


def has_own_etcd(job: dict[str, Any]) -> bool:
    """Return whether the job has its own etcd: it names none, or a Service that does not exist."""
    endpoint = job["spec"].get("rdzvEndpoint") or ""
    if not endpoint or "." in endpoint:
        return not endpoint
    existing = request("GET", api_path("v1", job["metadata"]["namespace"], "services", etcd_name(job)))
    return (
        existing is None
        or (existing["metadata"].get("labels") or {}).get(RENDEZVOUS) == (job["metadata"]["name"])
    )


def etcd_name(job: dict[str, Any]) -> str:
    """Return the name of the job's own etcd and its Service."""
    return (job["spec"].get("rdzvEndpoint") or f"{job['metadata']['name']}-etcd").partition(":")[0]


def etcd(job: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the Service and the pod of the job's own etcd, which has the priority of its workers."""
    name, labels = etcd_name(job), {RENDEZVOUS: job["metadata"]["name"]}
    service, pod = yaml.safe_load_all(ETCD.read_text())
    service["metadata"] = pod["metadata"] = owned(job, name, labels)
    service["spec"]["selector"] = labels
    pod["spec"]["priorityClassName"] = worker_of(job)["template"]["spec"].get("priorityClassName")
    pod["spec"]["containers"][0]["command"].append(f"--advertise-client-urls=http://{name}:{ETCD_PORT}")
    return [service, pod]


def service(job: dict[str, Any], index: int) -> dict[str, Any]:
    """Return the headless Service that gives a worker's hostname a DNS name."""
    meta = of_worker(job, index)
    ports = [{"name": "elasticjob-port", "port": 10291}]
    spec = {"clusterIP": "None", "selector": meta["labels"], "publishNotReadyAddresses": True, "ports": ports}
    return {"apiVersion": "v1", "kind": "Service", "metadata": meta, "spec": spec}


def worker_pod(job: dict[str, Any], index: int) -> dict[str, Any]:
    """Return a worker's pod: the template, with the rendezvous before the container's own arguments."""
    template = worker_of(job)["template"]
    metadata, meta = template.get("metadata") or {}, of_worker(job, index)
    meta["labels"] = (metadata.get("labels") or {}) | meta["labels"]
    meta["annotations"] = metadata.get("annotations") or {}
    containers = [
        container | {"args": [*rendezvous(job), *container.get("args", [])]}
        if container["name"] == CONTAINER
        else container
        for container in template["spec"]["containers"]
    ]
    policy = worker_of(job).get("restartPolicy", "ExitCode")
    spec = template["spec"] | {
        "containers": containers,
        "restartPolicy": "Never" if policy == "ExitCode" else policy,  # it is replaced, not restarted
    }
    return {"apiVersion": "v1", "kind": "Pod", "metadata": meta, "spec": spec}


def rendezvous(job: dict[str, Any]) -> list[str]:
    """Return torchrun's flags; the id is unique, as etcd remembers earlier jobs."""
    spec, meta, replicas = job["spec"], job["metadata"], worker_of(job).get("replicas", 1)
    minimum, maximum = spec.get("minReplicas") or replicas, spec.get("maxReplicas") or replicas
    return [
        "--rdzv_backend=etcd",
        f"--rdzv_endpoint={spec.get('rdzvEndpoint') or f'{etcd_name(job)}:{ETCD_PORT}'}",
        f"--rdzv_id={meta['name']}-{meta['uid'][:8]}",
        f"--nnodes={minimum}:{maximum}",
    ]


# State of a job


def phase_of(pod: dict[str, Any]) -> str:
    """Return Pending, Running, Succeeded, Failed or Unknown."""
    return (pod.get("status") or {}).get("phase", "Pending")


def deletion_time(pod: dict[str, Any]) -> datetime | None:
    """Return the end of the grace period of a terminating pod, or None."""
    until = pod["metadata"].get("deletionTimestamp")
    return parse_time(until) if until else None


def disrupted(pod: dict[str, Any]) -> bool:
    """Return whether the pod was disrupted, so that its exit code does not count for the job."""
    conditions = (pod.get("status") or {}).get("conditions") or []
    marked = any(
        condition["type"] == "DisruptionTarget" and condition["status"] == "True" for condition in conditions
    )
    return marked or deletion_time(pod) is not None


def done(pod: dict[str, Any]) -> bool:
    """Return whether a worker has completed the training."""
    return phase_of(pod) == "Succeeded" and not disrupted(pod)


def killed(job: dict[str, Any], pod: dict[str, Any]) -> bool:
    """Return whether a signal ended the pod, so that it is replaced."""
    codes = exit_codes(pod)
    by_code = worker_of(job).get("restartPolicy", "ExitCode") == "ExitCode"
    retryable = not codes or (by_code and min(codes) >= RETRYABLE)
    return phase_of(pod) == "Failed" and not disrupted(pod) and retryable


def lost(job: dict[str, Any], pod: dict[str, Any]) -> bool:
    """Return whether the pod has ended before the end of the training."""
    return killed(job, pod) or (phase_of(pod) in ENDS and disrupted(pod))


def exit_codes(pod: dict[str, Any]) -> list[int]:
    """Return the non-zero exit codes of the pod's containers."""
    states = [container.get("state", {}) for container in pod["status"].get("containerStatuses", [])]
    codes = [state["terminated"]["exitCode"] for state in states if "terminated" in state]
    return [code for code in codes if code]


def restarts_of(job: dict[str, Any], pods: Iterable[dict[str, Any]]) -> int:
    """Return the number of restarts: replaced pods, and container restarts of existing pods."""
    before = (job.get("status") or {}).get("replaced", 0)
    return before + sum(
        container.get("restartCount", 0)
        for pod in pods
        for container in (pod.get("status") or {}).get("containerStatuses") or []
    )


def finished(job: dict[str, Any]) -> str:
    """Return the job's final condition, or an empty string."""
    conditions = (job.get("status") or {}).get("conditions", [])
    return next(
        (
            condition["type"]
            for condition in conditions
            if condition["type"] in ENDS and condition["status"] == "True"
        ),
        "",
    )


def compute_phase(job: dict[str, Any], pods: Iterable[dict[str, Any]], *, now: datetime) -> tuple[str, str]:
    """Return Created, Running, Restarting, Succeeded or Failed, and the reason."""
    pods, spec, status = list(pods), job["spec"], job.get("status") or {}
    for pod in pods:
        if phase_of(pod) == "Failed" and not lost(job, pod):
            codes = ", ".join(map(str, exit_codes(pod)))
            return "Failed", f"{pod['metadata']['name']} failed with exit code {codes}"
    running = sum(phase_of(pod) == "Running" for pod in pods)
    if any(map(done, pods)) and not running:
        return "Succeeded", "the workers have completed the training"
    limit, restarts = spec.get("backoffLimit"), restarts_of(job, pods)
    if limit is not None and restarts > limit:
        return "Failed", f"the backoff limit is exceeded: signals ended workers more than {limit} times"
    if "startTime" in status and (left := remaining(job | {"status": status}, now)) is not None and left <= 0:
        return "Failed", f"it exceeded its deadline of {spec['activeDeadlineSeconds']} s"
    replicas = worker_of(job).get("replicas", 1)
    if running:
        return "Running", f"{running} of {replicas} workers are running"
    ran = any(condition["type"] == "Running" for condition in status.get("conditions", []))
    created = ("Created", "its workers are being created")
    return ("Restarting", f"none of {replicas} workers is running") if ran else created


def status_of(job: dict[str, Any], pods: Iterable[dict[str, Any]], *, now: datetime) -> dict[str, Any]:
    """Return the job's status; an unchanged condition keeps its transition time."""
    old, pods = job.get("status") or {}, list(pods)
    replaced = old.get("replaced", 0) + sum(killed(job, pod) and not finished(job) for pod in pods)
    status = {"startTime": format_time(now)} | old | {"replaced": replaced}
    staying = [phase_of(pod) for pod in pods if not deletion_time(pod)]
    status["replicaStatuses"] = {
        "Worker": {
            "active": sum(phase in ("Pending", "Running") for phase in staying),
            "running": staying.count("Running"),
            "succeeded": staying.count("Succeeded"),
            "failed": staying.count("Failed"),
        }
    }
    status["selector"] = f"{JOB}={job['metadata']['name']},group-name={GROUP}"  # for the scale subresource
    if finished(job):
        return status
    phase, why = compute_phase(job | {"status": status}, pods, now=now)
    if phase in ENDS:
        status["completionTime"] = format_time(now)
    conditions = [dict(condition) for condition in old.get("conditions", [])]
    for condition in conditions:
        if condition["type"] != "Created" and condition["type"] != phase:
            condition["status"] = "False"
    same = next((item for item in conditions if (item["type"], item["status"]) == (phase, "True")), None)
    if same is None:
        conditions = [condition for condition in conditions if condition["type"] != phase]
        same = {"type": phase, "status": "True", "lastTransitionTime": format_time(now)}
        conditions.append(same)
    same |= {"reason": f"ElasticJob{phase}", "message": f"ElasticJob {job['metadata']['name']}: {why}"}
    return status | {"conditions": conditions}


def parse_time(text: str) -> datetime:
    """Parse a time of Kubernetes."""
    return datetime.fromisoformat(text)


def format_time(time: datetime) -> str:
    """Format a time for Kubernetes."""
    return time.strftime("%Y-%m-%dT%H:%M:%SZ")


# Kubernetes


def api_path(api_version: str, namespace: str, plural: str, name: str | None = None) -> str:
    """Build the path of a collection or an object, whose name may come from an arbitrary label."""
    group = "apis" if "/" in api_version else "api"
    path = f"/{group}/{api_version}/namespaces/{namespace}/{plural}"
    return f"{path}/{quote(name, safe='')}" if name else path


def request(
    method: str, path: str, *, body: dict[str, Any] | None = None, params: dict[str, Any] | None = None
) -> dict[str, Any] | None:
    """Send a request as the pod's ServiceAccount; None if the object does not exist, or already exists."""
    host, port = environ["KUBERNETES_SERVICE_HOST"], environ["KUBERNETES_SERVICE_PORT"]
    token = (ACCOUNT / "token").read_text()  # the file is updated when the token is renewed
    kind = "application/merge-patch+json" if method == "PATCH" else "application/json"
    response = connections().request(
        method,
        f"https://{host}:{port}{path}",
        json=body,
        fields=params,
        headers={"Authorization": f"Bearer {token}", "Content-Type": kind},
    )
    if response.status in (404, 409):
        return None
    if response.status >= 400:
        is_json = response.data[:1] == b"{"
        raise RequestRejected(response.json().get("message") if is_json else response.reason)
    return response.json()


@cache
def connections() -> urllib3.PoolManager:
    """Return a connection pool, as new connections are slow on a busy machine."""
    return urllib3.PoolManager(
        maxsize=CONNECTIONS, timeout=SECONDS, retries=False, ca_certs=str(ACCOUNT / "ca.crt")
    )
