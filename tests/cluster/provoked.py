"""Causes that tests make happen: the rows of `causes/waits.yaml`, each in a namespace of its own."""

import json
from pathlib import Path

import yaml

import kitlib as kit
from kitlib.errors import Rejected, plain
from kitlib.k8s.manifests import merge

from ..patience import until

ROWS = yaml.safe_load(Path(__file__).with_name("causes").joinpath("waits.yaml").read_text())
LEARNER = {"kind": "ServiceAccount", "name": "learner", "namespace": "default"}


def provoke(kube, row, images):
    """Make a row's cause happen in a namespace of its own."""
    name, text = f"w-{row['name']}", json.dumps(row)
    for placeholder, address in images.items():
        text = text.replace(placeholder, address)
    row = json.loads(text)
    meta = {"name": name, "labels": row.get("namespace", {})}
    kube.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": meta})
    own_kube = kube.in_namespace(name)
    role = {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "edit"}
    binding = {"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "RoleBinding"}
    own_kube.apply(binding | {"metadata": {"name": "learner"}, "roleRef": role, "subjects": [LEARNER]})
    for item in row.get("objects", []):
        own_kube.apply(item)
    for claim in row.get("delete", []):
        own_kube.delete("PersistentVolumeClaim", claim)
    if row.get("until") == "denied":  # an API server learns of a policy within seconds
        until(lambda: not admits(own_kube, job(name, row)))
    own_kube.create(job(name, row))
    if row.get("then") == "delete-pods":
        (pod,) = until(
            lambda: [pod for pod in own_kube.get_all("Pod") if pod["status"]["phase"] == "Running"]
        )
        own_kube.delete("Pod", pod["metadata"]["name"])


def admits(kube, item):
    """Tell whether the pods of a Job would be admitted."""
    pod = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "trial"},
        "spec": item["spec"]["template"]["spec"],
    }
    try:
        return bool(kube.create(pod, dry_run=True))
    except Rejected:
        return False


def job(name, row):
    """Make the Job of a row."""
    labels = {"trainyard/run": name}
    spec = {
        "restartPolicy": "OnFailure" if row.get("restarts") else "Never",
        "terminationGracePeriodSeconds": 1,
        "containers": [{"name": "main", "image": "busybox", "command": ["sleep", "600"]}],
    }
    meta = {"labels": labels, "annotations": {"trainyard/images": "auto"}} | row.get("metadata", {})
    if "{" in json.dumps(row.get("pod", {}).get("image", "")) or "127.0.0.1" in json.dumps(
        row.get("pod", {})
    ):
        meta["annotations"] = {"trainyard/images": "pull"}
    template = {"metadata": meta, "spec": merge(spec, row.get("pod", {}))}
    counts = {"completions": 1, "parallelism": 1, "completionMode": "Indexed"}
    backoff = {"backoffLimit": 50 if row.get("restarts") else 0}
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": name, "labels": labels | row.get("labels", {})},
        "spec": counts | backoff | row.get("job", {}) | {"template": template},
    }


def first_cause(kube, row):
    """Ask why until the first cause is of the row's kind, and return it."""
    run = kit.Run(kube.in_namespace(f"w-{row['name']}"), f"w-{row['name']}")
    shown = {}

    def look():
        shown["why"] = run.why()
        cause = shown["why"].first
        return cause if cause and cause.kind == row["kind"] else None

    try:
        return until(look, row["kind"])
    except AssertionError as error:
        raise AssertionError(f"{error}\n{shown['why']!r}\n{shown['why'].status}") from error


def check(cause, row):
    assert cause.who.startswith(row["who"])
    assert row["says"] in cause.line
    assert row["do"] in plain(cause.fix)
