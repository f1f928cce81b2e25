# /// script
# requires-python = ">=3.11"
# dependencies = ["kopf>=1.45", "pyyaml", "urllib3>=2.8"]
# ///
"""The controller of ElasticJobs: pods and Services for the workers, their rendezvous, and the job's status.

It runs in a pod, from a ConfigMap, by ``kopf run``; so it imports nothing of the kit. At each change of a job
or of one of its pods, and when one of its times is due, the job is looked at as a whole, and what is missing
or too much is made or deleted: it does not matter which change was seen, or whether one was missed.

A worker that somebody else ended (preempted, evicted, deleted, its node gone) is made again, as often as it
takes, and waits where there is no room; one that a signal ended is made again until ``backoffLimit``; one
that failed by itself fails the job. What the workers say to each other is not here: ``trainers/elastic.py``.

They meet at the etcd that the job names, or at one of its own: torch's rendezvous knows no password.
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
RENDEZVOUS = f"{GROUP}/rendezvous-of"  # of the etcd's pod
ETCD, ETCD_PORT = Path(__file__).with_name("etcd.yaml"), 2379
ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")
SECONDS, CONNECTIONS = 30, 16
RETRYABLE = 128  # exit codes from here on are signals: the pod was ended, and did not end itself
AGAIN_SECONDS = 5
MAX_AT_ONCE = 100  # workers that are made before the next look, which the first of them causes
OVERDUE_SECONDS = 5  # after its grace period: the node of a pod that is still there does not answer
ENDS = ("Succeeded", "Failed")

locks: dict[tuple[str, str], threading.Lock] = defaultdict(threading.Lock)
alarms: dict[tuple[str, str], threading.Timer] = {}


class RequestRejected(urllib3.exceptions.HTTPError):
    """The API server says no, and why."""


@kopf.on.startup()
def configure(settings: kopf.OperatorSettings, **_: object) -> None:
    """Keep kopf from writing Events of its own: the job's conditions say what there is to say."""
    settings.posting.enabled = False
    logging.getLogger("aiohttp.access").setLevel(logging.WARNING)  # a line for each probe


@kopf.on.login()
def login(settings: kopf.OperatorSettings, **_: object) -> kopf.ConnectionInfo | None:
    """Use the pod's ServiceAccount."""
    return kopf.login_with_service_account(settings=settings)


@kopf.on.event(GROUP, VERSION, PLURAL)
def job_changed(namespace: str | None, name: str, **_: object) -> None:
    """Look at a job that was made or changed."""
    look(namespace, name)


@kopf.on.event("v1", "pods", labels={JOB: kopf.PRESENT, "group-name": GROUP})
def pod_changed(namespace: str | None, labels: kopf.Labels, **_: object) -> None:
    """Look at the job of a pod that changed."""
    look(namespace, labels[JOB])


@kopf.on.event("v1", "pods", labels={RENDEZVOUS: kopf.PRESENT})
def etcd_changed(namespace: str | None, labels: kopf.Labels, **_: object) -> None:
    """Look at the job of an etcd that changed."""
    look(namespace, labels[RENDEZVOUS])


def look(namespace: str | None, name: str) -> None:
    """Reconcile, and once more a little later if the API server did not let us."""
    assert namespace, "kopf passes none for objects of the cluster alone"
    try:
        reconcile(namespace, name)
    except urllib3.exceptions.HTTPError as error:
        logging.getLogger(__name__).warning("%s/%s: %s", namespace, name, error)
        wake(namespace, name, AGAIN_SECONDS)


def reconcile(namespace: str, name: str) -> None:
    """Bring a job's pods to what it asks for, and its status to what they are."""
    with locks[namespace, name]:
        path = api_path(f"{GROUP}/{VERSION}", namespace, PLURAL, name)
        job = request("GET", path) if name else None
        if job is None or job["metadata"].get("deletionTimestamp"):
            return  # Kubernetes deletes what it owns
        selector = {"labelSelector": f"{JOB}={name},group-name={GROUP}"}
        answer = request("GET", api_path("v1", namespace, "pods"), params=selector)
        assert answer, "a list may be empty, and is never missing"
        pods = answer["items"]
        now = datetime.now(UTC)
        status = status_of(job, pods, now=now)
        if status != job.get("status"):  # before anything is deleted: what was counted is not seen again
            request("PATCH", f"{path}/status", body={"status": status})
        job["status"] = status
        if not finished(job):
            adjust(job, pods)
        elif (left := remaining(job, now)) is not None and left <= 0:
            request("DELETE", path, params={"propagationPolicy": "Background"})
            return
        else:
            clean(job, pods)
        wake(namespace, name, next_look(job, pods, now))


def wake(namespace: str, name: str, seconds: float | None) -> None:
    """Look at the job again after so many seconds: no event tells that a time is over."""
    if old := alarms.pop((namespace, name), None):
        old.cancel()
    if seconds is not None:
        alarm = threading.Timer(max(0.5, seconds), look, (namespace, name))
        alarm.daemon = True
        alarms[namespace, name] = alarm
        alarm.start()


def next_look(job: dict[str, Any], pods: Iterable[dict[str, Any]], now: datetime) -> float | None:
    """Return in how many seconds something of the job may be due, or None."""
    ends = [] if finished(job) else [end for pod in pods if (end := leaving(pod))]
    due = [(end - now).total_seconds() + OVERDUE_SECONDS for end in ends]
    left = remaining(job, now)
    return min([*due, *([] if left is None else [left])], default=None)


def remaining(job: dict[str, Any], now: datetime) -> float | None:
    """Return how many seconds the job may still run, or after its end be there; None for ever."""
    ended = finished(job)
    allowed = job["spec"].get("ttlSecondsAfterFinished" if ended else "activeDeadlineSeconds")
    since = job["status"].get("completionTime" if ended else "startTime")
    return None if allowed is None or since is None else allowed - (now - moment(since)).total_seconds()


def adjust(job: dict[str, Any], pods: Iterable[dict[str, Any]]) -> None:
    """Make the workers that are missing; delete those that are too many or were ended by somebody."""
    namespace, replicas = job["metadata"]["namespace"], worker_of(job).get("replicas", 1)
    there, now = set(), datetime.now(UTC)
    for pod in pods:
        index, end = int(pod["metadata"]["labels"][INDEX]), leaving(pod)
        overdue = end and (now - end).total_seconds() > OVERDUE_SECONDS
        if overdue or (not end and (index >= replicas or lost(job, pod))):
            delete(namespace, pod["metadata"]["name"], at_once=bool(overdue), with_service=index >= replicas)
        there.add(index)  # its name is taken until it is gone, which is another event
    if any(done(pod) for pod in pods):
        return  # the training has ended: a new worker would begin it again
    missing = list(islice((index for index in range(replicas) if index not in there), MAX_AT_ONCE))
    if missing and not etcd_ready(job, now):
        return  # its next change is another event
    for index in missing:
        try:
            request("POST", api_path("v1", namespace, "services"), body=service(job, index))
            request("POST", api_path("v1", namespace, "pods"), body=worker_pod(job, index))
        except RequestRejected as error:  # a quota, an unknown field, no such PriorityClass
            warn(job, str(error))
            raise


def etcd_ready(job: dict[str, Any], now: datetime) -> bool:
    """Return whether workers can meet; make the job's own etcd where it names none, or has lost it."""
    if not has_own_etcd(job):
        return True
    namespace, name = job["metadata"]["namespace"], etcd_name(job)
    pod = request("GET", api_path("v1", namespace, "pods", name))
    if pod is None:
        for item in etcd(job):
            request("POST", api_path("v1", namespace, item["kind"].lower() + "s"), body=item)
        return False
    end = leaving(pod)
    if phase_of(pod) in ENDS or (end and (now - end).total_seconds() > OVERDUE_SECONDS):
        delete(namespace, name, at_once=True, with_service=False)
    conditions = pod.get("status", {}).get("conditions") or []
    return end is None and ("Ready", "True") in {(item["type"], item["status"]) for item in conditions}


def clean(job: dict[str, Any], pods: Iterable[dict[str, Any]]) -> None:
    """Delete the pods of a job that is over, as its policy says: those that run, all, or none.

    Those that wait go in any case: they would begin when there is room.
    """
    if has_own_etcd(job):
        delete(job["metadata"]["namespace"], etcd_name(job))
    policy = job["spec"].get("cleanPodPolicy", "Running")
    for pod in pods:
        phase = phase_of(pod)
        if policy == "All" or phase == "Pending" or (policy == "Running" and phase not in ENDS):
            delete(pod["metadata"]["namespace"], pod["metadata"]["name"])


def delete(namespace: str, name: str, *, at_once: bool = False, with_service: bool = True) -> None:
    """Delete a worker, and its Service, which has the same name."""
    params = {"gracePeriodSeconds": 0} if at_once else None
    request("DELETE", api_path("v1", namespace, "pods", name), params=params)
    if with_service:
        request("DELETE", api_path("v1", namespace, "services", name))


def warn(job: dict[str, Any], message: str) -> None:
    """Say, by an Event about the job, why a worker cannot be made."""
    meta, now = job["metadata"], stamp(datetime.now(UTC))
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


# What is made of a job


def worker_of(job: dict[str, Any]) -> dict[str, Any]:
    """Return what the job says of its workers."""
    return job["spec"]["replicaSpecs"]["Worker"]


def owned(job: dict[str, Any], name: str, labels: dict[str, str]) -> dict[str, Any]:
    """Return the metadata of what is made for a job."""
    meta = job["metadata"]
    owner = {"apiVersion": f"{GROUP}/{VERSION}", "kind": "ElasticJob", "name": meta["name"]}
    owner |= {"uid": meta["uid"], "controller": True, "blockOwnerDeletion": True}
    return {"name": name, "namespace": meta["namespace"], "labels": labels, "ownerReferences": [owner]}


def of_worker(job: dict[str, Any], index: int) -> dict[str, Any]:
    """Return the metadata of what is made for a worker."""
    name = job["metadata"]["name"]
    labels = {"group-name": GROUP, JOB: name, INDEX: str(index)}
    return owned(job, f"{name}-worker-{index}", labels)


def has_own_etcd(job: dict[str, Any]) -> bool:
    """Return whether the job's etcd is made for it: it names none, or a Service that does not exist."""
    endpoint = job["spec"].get("rdzvEndpoint") or ""
    if not endpoint or "." in endpoint:
        return not endpoint
    existing = request("GET", api_path("v1", job["metadata"]["namespace"], "services", etcd_name(job)))
    return (
        existing is None
        or (existing["metadata"].get("labels") or {}).get(RENDEZVOUS) == (job["metadata"]["name"])
    )


def etcd_name(job: dict[str, Any]) -> str:
    """Return the name of the job's own etcd, and of its Service."""
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
    """Return the headless Service by which the others find a worker: its hostname is a name in DNS."""
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
        "restartPolicy": "Never" if policy == "ExitCode" else policy,  # a new pod, not the same again
    }
    return {"apiVersion": "v1", "kind": "Pod", "metadata": meta, "spec": spec}


def rendezvous(job: dict[str, Any]) -> list[str]:
    """Return torchrun's flags. The id is of this job alone: etcd remembers those of earlier ones."""
    spec, meta, replicas = job["spec"], job["metadata"], worker_of(job).get("replicas", 1)
    fewest, most = spec.get("minReplicas") or replicas, spec.get("maxReplicas") or replicas
    return [
        "--rdzv_backend=etcd",
        f"--rdzv_endpoint={spec.get('rdzvEndpoint') or f'{etcd_name(job)}:{ETCD_PORT}'}",
        f"--rdzv_id={meta['name']}-{meta['uid'][:8]}",
        f"--nnodes={fewest}:{most}",
    ]


# What a job is doing


def phase_of(pod: dict[str, Any]) -> str:
    """Return Pending, Running, Succeeded, Failed or Unknown."""
    return (pod.get("status") or {}).get("phase", "Pending")


def leaving(pod: dict[str, Any]) -> datetime | None:
    """Return until when a pod that is being deleted may take, or None."""
    until = pod["metadata"].get("deletionTimestamp")
    return moment(until) if until else None


def disrupted(pod: dict[str, Any]) -> bool:
    """Return whether somebody else ended the pod: how its program then ended says nothing about the job."""
    conditions = (pod.get("status") or {}).get("conditions") or []
    marked = any(
        condition["type"] == "DisruptionTarget" and condition["status"] == "True" for condition in conditions
    )
    return marked or leaving(pod) is not None


def done(pod: dict[str, Any]) -> bool:
    """Return whether a worker has come to the end of the training."""
    return phase_of(pod) == "Succeeded" and not disrupted(pod)


def killed(job: dict[str, Any], pod: dict[str, Any]) -> bool:
    """Return whether a signal ended the pod, so that another one takes its place."""
    codes = exit_codes(pod)
    by_code = worker_of(job).get("restartPolicy", "ExitCode") == "ExitCode"
    retryable = not codes or (by_code and min(codes) >= RETRYABLE)
    return phase_of(pod) == "Failed" and not disrupted(pod) and retryable


def lost(job: dict[str, Any], pod: dict[str, Any]) -> bool:
    """Return whether the pod has ended, and not because the training has."""
    return killed(job, pod) or (phase_of(pod) in ENDS and disrupted(pod))


def exit_codes(pod: dict[str, Any]) -> list[int]:
    """Return how the pod's containers failed."""
    states = [container.get("state", {}) for container in pod["status"].get("containerStatuses", [])]
    codes = [state["terminated"]["exitCode"] for state in states if "terminated" in state]
    return [code for code in codes if code]


def restarts_of(job: dict[str, Any], pods: Iterable[dict[str, Any]]) -> int:
    """Return how often workers were begun again: pods replaced so far, and containers of those there are."""
    before = (job.get("status") or {}).get("replaced", 0)
    return before + sum(
        container.get("restartCount", 0)
        for pod in pods
        for container in (pod.get("status") or {}).get("containerStatuses") or []
    )


def finished(job: dict[str, Any]) -> str:
    """Return how the job ended, or an empty text: it ends once."""
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
    """Return Created, Running, Restarting, Succeeded or Failed, and why."""
    pods, spec, status = list(pods), job["spec"], job.get("status") or {}
    for pod in pods:
        if phase_of(pod) == "Failed" and not lost(job, pod):
            codes = ", ".join(map(str, exit_codes(pod)))
            return "Failed", f"{pod['metadata']['name']} failed with exit code {codes}"
    running = sum(phase_of(pod) == "Running" for pod in pods)
    if any(map(done, pods)) and not running:
        return "Succeeded", "the workers have come to the end of the training"
    limit, restarts = spec.get("backoffLimit"), restarts_of(job, pods)
    if limit is not None and restarts > limit:
        return "Failed", f"the backoff limit is reached: a signal ended workers more than {limit} times"
    if "startTime" in status and (left := remaining(job | {"status": status}, now)) is not None and left <= 0:
        return "Failed", f"it ran longer than its deadline of {spec['activeDeadlineSeconds']} s"
    replicas = worker_of(job).get("replicas", 1)
    if running:
        return "Running", f"{running} of {replicas} workers run"
    ran = any(condition["type"] == "Running" for condition in status.get("conditions", []))
    return ("Restarting", f"none of {replicas} workers runs") if ran else ("Created", "its workers are made")


def status_of(job: dict[str, Any], pods: Iterable[dict[str, Any]], *, now: datetime) -> dict[str, Any]:
    """Return the job's status; a condition keeps the time at which it came."""
    old, pods = job.get("status") or {}, list(pods)
    replaced = old.get("replaced", 0) + sum(killed(job, pod) and not finished(job) for pod in pods)
    status = {"startTime": stamp(now)} | old | {"replaced": replaced}
    staying = [phase_of(pod) for pod in pods if not leaving(pod)]
    status["replicaStatuses"] = {
        "Worker": {
            "active": sum(phase in ("Pending", "Running") for phase in staying),
            "running": staying.count("Running"),
            "succeeded": staying.count("Succeeded"),
            "failed": staying.count("Failed"),
        }
    }
    status["selector"] = f"{JOB}={job['metadata']['name']},group-name={GROUP}"  # what scale and HPA count by
    if finished(job):
        return status
    phase, why = compute_phase(job | {"status": status}, pods, now=now)
    if phase in ENDS:
        status["completionTime"] = stamp(now)
    conditions = [dict(condition) for condition in old.get("conditions", [])]
    for condition in conditions:
        if condition["type"] != "Created" and condition["type"] != phase:
            condition["status"] = "False"
    same = next(
        (
            condition
            for condition in conditions
            if condition["type"] == phase and condition["status"] == "True"
        ),
        None,
    )
    if same is None:
        conditions = [condition for condition in conditions if condition["type"] != phase]
        same = {"type": phase, "status": "True", "lastTransitionTime": stamp(now)}
        conditions.append(same)
    same |= {"reason": f"ElasticJob{phase}", "message": f"ElasticJob {job['metadata']['name']}: {why}"}
    return status | {"conditions": conditions}


def moment(text: str) -> datetime:
    """Return the time that Kubernetes has written."""
    return datetime.fromisoformat(text)


def stamp(time: datetime) -> str:
    """Return a time as Kubernetes writes it."""
    return time.strftime("%Y-%m-%dT%H:%M:%SZ")


# Kubernetes


def api_path(api_version: str, namespace: str, plural: str, name: str | None = None) -> str:
    """Build the path of a collection, or of an object, whose name may be anybody's label."""
    group = "apis" if "/" in api_version else "api"
    path = f"/{group}/{api_version}/namespaces/{namespace}/{plural}"
    return f"{path}/{quote(name, safe='')}" if name else path


def request(
    method: str, path: str, *, body: dict[str, Any] | None = None, params: dict[str, Any] | None = None
) -> dict[str, Any] | None:
    """Send a request as the pod's ServiceAccount; None if the object is gone, or there already."""
    host, port = environ["KUBERNETES_SERVICE_HOST"], environ["KUBERNETES_SERVICE_PORT"]
    token = (ACCOUNT / "token").read_text()  # it is renewed in its file
    kind = "application/merge-patch+json" if method == "PATCH" else "application/json"
    answer = connections().request(
        method,
        f"https://{host}:{port}{path}",
        json=body,
        fields=params,
        headers={"Authorization": f"Bearer {token}", "Content-Type": kind},
    )
    if answer.status in (404, 409):
        return None
    if answer.status >= 400:
        raise RequestRejected(answer.json().get("message") if answer.data[:1] == b"{" else answer.reason)
    return answer.json()


@cache
def connections() -> urllib3.PoolManager:
    """Return connections to keep: on a busy machine a new one takes longer than all else."""
    return urllib3.PoolManager(
        maxsize=CONNECTIONS, timeout=SECONDS, retries=False, ca_certs=str(ACCOUNT / "ca.crt")
    )
