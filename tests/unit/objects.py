"""Objects of a cluster, in dicts, as far as functions read them; a cluster as far as a launch needs one."""

from pathlib import Path
from types import SimpleNamespace

from kitlib.k8s.pod_security import PodSecurity

TRAINER = str(Path(__file__).with_name("smallest_trainer.py"))
SINCE = "2026-01-01T00:00:00Z"


def condition(kind, status="True", **more):
    return {"type": kind, "status": status, **more}


def pod(name="p", *, phase="Running", node="", conditions=(), state=None, leaving=False, **more):
    """Make a pod with one container.

    Args:
        node: That it is bound to.
        state: Of its container, such as ``terminated(1)``; without it no container has a status.
        leaving: Whether it was told to end.
        more: ``labels``, ``containers``, and what else is in its metadata; ``status`` is added to its status.
    """
    status = {"phase": phase, "conditions": list(conditions)} | more.pop("status", {})
    if state is not None:
        status["containerStatuses"] = [{"name": "main", "restartCount": 0, "state": state}]
    spec = {"containers": more.pop("containers", [])} | ({"nodeName": node} if node else {})
    meta = {"name": name, "labels": {}} | more | ({"deletionTimestamp": SINCE} if leaving else {})
    return {"metadata": meta, "spec": spec, "status": status}


def terminated(code, at=SINCE, **more):
    return {"terminated": {"exitCode": code, "reason": "Error", "finishedAt": at, **more}}


def node(cpu="4", gpus="0", memory="16Gi", *, taints=(), ready="True", labels=None, **spec):
    """Make a node with its allocatable resources."""
    return {
        "metadata": {"name": "n", "labels": labels or {}},
        "spec": {"taints": list(taints), **spec},
        "status": {
            "allocatable": {"cpu": cpu, "memory": memory, "nvidia.com/gpu": gpus},
            "conditions": [condition("Ready", ready)],
        },
    }


def cluster(kube, *, provider="existing", training_gpus=()):
    """Make a cluster that adds nothing to pods, with the API of a test."""
    stand_in = SimpleNamespace(
        name="lab",
        provider=provider,
        kube=kube,
        announce_end=lambda: stand_in,
        show_packages=lambda: None,
        image_notice=lambda image: "",
        share_files=lambda files, modes: None,
        pod_additions=lambda *, gpus=0: {},
        pod_annotations=lambda claims: {},
        pod_security=PodSecurity.of,
        trainer_image=lambda: "registry.example/trainer@sha256:0",
        training_gpus=lambda: training_gpus,
    )
    return stand_in
