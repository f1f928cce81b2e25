"""The controller of ElasticJobs: pods and Services for the workers, their rendezvous, and the job's status.

It runs in a pod, from a ConfigMap, by ``kopf run``; so it imports nothing of the kit. At each change of a job
or of one of its pods the job is looked at as a whole, and what is missing or too much is made or deleted: it
does not matter which change was seen, or whether one was missed.
"""

import logging
import threading
from collections import defaultdict
from collections.abc import Iterable
from datetime import UTC, datetime
from os import environ
from pathlib import Path

import kopf
import requests

GROUP, VERSION, PLURAL = "elastic.pytorch.org", "v1alpha1", "elasticjobs"
CONTAINER = "elasticjob-worker"
INDEX = "training.kubeflow.org/replica-index"
JOB = "training.kubeflow.org/job-name"
ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")
SECONDS = 30
RETRYABLE = 128  # exit codes from here on are signals: the pod was ended, and did not end itself

locks: dict[tuple[str, str], threading.Lock] = defaultdict(threading.Lock)


@kopf.on.startup()
def configure(settings: kopf.OperatorSettings, **_: object) -> None:
    """Keep kopf from writing Events of its own: the job's conditions say what there is to say."""
    settings.posting.enabled = False
    logging.getLogger("aiohttp.access").setLevel(logging.WARNING)  # a line for each probe


@kopf.on.login()
def login(**kwargs: object) -> kopf.ConnectionInfo | None:
    """Use the pod's ServiceAccount."""
    return kopf.login_with_service_account(**kwargs)


@kopf.on.event(GROUP, VERSION, PLURAL)
def job_changed(namespace: str, name: str, **_: object) -> None:
    """Look at a job that was made or changed."""
    reconcile(namespace, name)


@kopf.on.event("v1", "pods", labels={JOB: kopf.PRESENT, "group-name": GROUP})
def pod_changed(namespace: str, labels: kopf.Labels, **_: object) -> None:
    """Look at the job of a pod that changed."""
    reconcile(namespace, labels[JOB])


def reconcile(namespace: str, name: str) -> None:
    """Bring a job's pods to what it asks for, and its status to what they are."""
    with locks[namespace, name]:
        path = f"/apis/{GROUP}/{VERSION}/namespaces/{namespace}/{PLURAL}/{name}"
        job = request("GET", path)
        if job is None or job["metadata"].get("deletionTimestamp"):
            return  # Kubernetes deletes what it owns
        selector = {"labelSelector": f"{JOB}={name},group-name={GROUP}"}
        pods = request("GET", f"/api/v1/namespaces/{namespace}/pods", params=selector)["items"]
        phase = finished(job) or judge(job, pods)
        if phase in ("Succeeded", "Failed"):
            clean(job, pods)
        else:
            pods = adjust(job, pods)
        status = status_of(job, pods, phase)
        if status != job.get("status"):
            request("PATCH", f"{path}/status", body={"status": status})


def adjust(job: dict, pods: list[dict]) -> list[dict]:
    """Make the workers that are missing, and delete those that are too many or were ended by a signal."""
    namespace, wanted = job["metadata"]["namespace"], worker_of(job).get("replicas", 1)
    kept = []
    for pod in pods:
        if int(pod["metadata"]["labels"][INDEX]) >= wanted or lost(pod):
            delete(namespace, pod["metadata"]["name"])
        else:
            kept.append(pod)
    there = {int(pod["metadata"]["labels"][INDEX]) for pod in kept}
    for index in sorted(set(range(wanted)) - there):
        request("POST", f"/api/v1/namespaces/{namespace}/services", body=service(job, index))
        made = request("POST", f"/api/v1/namespaces/{namespace}/pods", body=worker_pod(job, index))
        kept += [made] if made else []
    return kept


def clean(job: dict, pods: Iterable[dict]) -> None:
    """Delete the pods of a job that is over, as its policy says: those that run, all, or none."""
    policy = job["spec"].get("cleanPodPolicy", "Running")
    for pod in pods:
        ended = pod["status"].get("phase") in ("Succeeded", "Failed")
        if policy == "All" or (policy == "Running" and not ended):
            delete(pod["metadata"]["namespace"], pod["metadata"]["name"])


def delete(namespace: str, name: str) -> None:
    """Delete a worker and its Service, which has the same name."""
    request("DELETE", f"/api/v1/namespaces/{namespace}/pods/{name}")
    request("DELETE", f"/api/v1/namespaces/{namespace}/services/{name}")


# What is made of a job


def worker_of(job: dict) -> dict:
    """Return what the job says of its workers."""
    return job["spec"]["replicaSpecs"]["Worker"]


def owned(job: dict, index: int) -> dict:
    """Return the metadata of what is made for a worker."""
    meta = job["metadata"]
    owner = {
        "apiVersion": f"{GROUP}/{VERSION}",
        "kind": "ElasticJob",
        "name": meta["name"],
        "uid": meta["uid"],
        "controller": True,
        "blockOwnerDeletion": True,
    }
    return {
        "name": f"{meta['name']}-worker-{index}",
        "namespace": meta["namespace"],
        "labels": {"group-name": GROUP, JOB: meta["name"], INDEX: str(index)},
        "ownerReferences": [owner],
    }


def service(job: dict, index: int) -> dict:
    """Return the headless Service by which the others find a worker: its hostname is a name in DNS."""
    meta = owned(job, index)
    ports = [{"name": "elasticjob-port", "port": 10291}]
    spec = {"clusterIP": "None", "selector": meta["labels"], "publishNotReadyAddresses": True, "ports": ports}
    return {"apiVersion": "v1", "kind": "Service", "metadata": meta, "spec": spec}


def worker_pod(job: dict, index: int) -> dict:
    """Return a worker's pod: the template, with the rendezvous before the container's own arguments."""
    template = worker_of(job)["template"]
    given, meta = template.get("metadata") or {}, owned(job, index)
    meta["labels"] = (given.get("labels") or {}) | meta["labels"]
    meta["annotations"] = given.get("annotations") or {}
    containers = [
        each | {"args": [*rendezvous(job), *each.get("args", [])]} if each["name"] == CONTAINER else each
        for each in template["spec"]["containers"]
    ]
    policy = worker_of(job).get("restartPolicy", "ExitCode")
    spec = template["spec"] | {
        "containers": containers,
        "restartPolicy": "Never" if policy == "ExitCode" else policy,  # a new pod, not the same again
    }
    return {"apiVersion": "v1", "kind": "Pod", "metadata": meta, "spec": spec}


def rendezvous(job: dict) -> list[str]:
    """Return torchrun's flags. The id is of this job alone: etcd remembers those of earlier ones."""
    spec, meta = job["spec"], job["metadata"]
    replicas = worker_of(job).get("replicas", 1)
    fewest, most = spec.get("minReplicas") or replicas, spec.get("maxReplicas") or replicas
    return [
        "--rdzv_backend=etcd",
        f"--rdzv_endpoint={spec['rdzvEndpoint']}",
        f"--rdzv_id={meta['name']}-{meta['uid'][:8]}",
        f"--nnodes={fewest}:{most}",
    ]


# What a job is doing


def lost(pod: dict) -> bool:
    """Return whether a pod was ended by a signal, so that another one takes its place."""
    codes = exit_codes(pod)
    return pod["status"].get("phase") == "Failed" and (not codes or min(codes) >= RETRYABLE)


def exit_codes(pod: dict) -> list[int]:
    """Return how the pod's containers failed."""
    states = [each.get("state", {}) for each in pod["status"].get("containerStatuses", [])]
    codes = [each["terminated"]["exitCode"] for each in states if "terminated" in each]
    return [code for code in codes if code]


def finished(job: dict) -> str:
    """Return how the job ended, or an empty text: it ends once."""
    every = (job.get("status") or {}).get("conditions", [])
    ends = [each["type"] for each in every if each["status"] == "True"]
    return next((each for each in ends if each in ("Succeeded", "Failed")), "")


def judge(job: dict, pods: Iterable[dict]) -> str:
    """Return Created, Running, Succeeded or Failed."""
    pods = list(pods)
    phases = [pod["status"].get("phase") for pod in pods]
    if any(phase == "Failed" and not lost(pod) for phase, pod in zip(phases, pods, strict=True)):
        return "Failed"
    if "Succeeded" in phases and not {"Running", "Pending"} & set(phases):
        return "Succeeded"
    return "Running" if "Running" in phases else "Created"


def status_of(job: dict, pods: Iterable[dict], phase: str) -> dict:
    """Return the job's status; a condition keeps the time at which it came."""
    phases = [pod.get("status", {}).get("phase") for pod in pods]
    counts = {
        "active": sum(each in ("Pending", "Running") for each in phases),
        "succeeded": phases.count("Succeeded"),
        "failed": phases.count("Failed"),
    }
    now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    conditions = [dict(each) for each in (job.get("status") or {}).get("conditions", [])]
    for each in conditions:
        if each["type"] == "Running" and phase != "Running":
            each["status"] = "False"
    if phase not in [each["type"] for each in conditions if each["status"] == "True"]:
        kept = [each for each in conditions if each["type"] != phase]
        message = f"ElasticJob {job['metadata']['name']}: {phase.lower()}"
        new = {"type": phase, "status": "True", "lastTransitionTime": now, "message": message}
        conditions = [*kept, new | {"reason": f"ElasticJob{phase}"}]
    return {"conditions": conditions, "replicaStatuses": {"Worker": counts}}


# Kubernetes


def request(method: str, path: str, *, body: dict | None = None, params: dict | None = None) -> dict | None:
    """Send a request as the pod's ServiceAccount; None if the object is gone, or there already."""
    host, port = environ["KUBERNETES_SERVICE_HOST"], environ["KUBERNETES_SERVICE_PORT"]
    token = (ACCOUNT / "token").read_text()  # it is renewed in its file
    kind = "application/merge-patch+json" if method == "PATCH" else "application/json"
    answer = requests.request(
        method,
        f"https://{host}:{port}{path}",
        json=body,
        params=params,
        headers={"Authorization": f"Bearer {token}", "Content-Type": kind},
        verify=str(ACCOUNT / "ca.crt"),
        timeout=SECONDS,
    )
    if answer.status_code in (404, 409):
        return None
    answer.raise_for_status()
    return answer.json()
