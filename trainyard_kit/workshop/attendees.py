"""Attendees who share a cluster: each has a namespace, a quota, and a kubeconfig for that namespace only.

Their rights are in ``manifests/attendee``: roles, quotas, the Pod Security level, an admission policy. Each
is a ServiceAccount, which works with every provider; its token is from the TokenRequest API, expires, and is
only stored in the kubeconfig, with which ``kit.connect("ada", kubeconfig="ada.kubeconfig")`` connects. The
handout is a file with all kubeconfigs for the instructor: anyone who has a kubeconfig acts as its attendee.
"""

import io
import json
import zipfile
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

from kitlib import config
from kitlib.clusters.cleanup import attendees_folder
from kitlib.display.tables import Table, age
from kitlib.errors import BadInput, Rejected
from kitlib.k8s import manifests, names
from kitlib.k8s.client import Kube, allowed
from kitlib.k8s.job_kinds import JOBS
from kitlib.k8s.kubeconfig import write_whole
from kitlib.k8s.manifests import Object
from kitlib.k8s.quantities import check_count, check_quantity, parse_quantity
from kitlib.k8s.terminating import holders, remaining_conditions
from kitlib.k8s.wait import wait
from kitlib.k8s.watch import Snapshot, WatchSpec, watch_objects

LABEL = "trainyard/attendee"
ACCOUNT = "attendee"
# Object quota of each kind of job, from which the API groups of the role are derived.
JOB_QUOTA = {resource: count for kind in JOBS for resource, count in kind.quota.items()}
LONGEST_NAME = 40
MEMORY_LIMIT_RATIO = 8  # of the sum of memory limits to that of memory requests
POD_OBJECTS_RATIO = 10  # of pod objects, with terminated ones, to running pods
MIN_HOURS, MAX_HOURS = 1 / 6, 24 * 14  # Kubernetes issues no token for less than ten minutes
COLUMNS = ("attendee", "namespace", "pods", "cpu", "memory", "kubeconfig", "expires", "age")
PAGE = """\
You are "{name}" in the workshop on the cluster "{cluster}".

The file kubeconfig in this folder is your key: anyone who has it can do what you can. It gives access to
the namespace {namespace} only, until {expires}.
{jupyter}
On your own machine, with kubectl and a clone of the kit:

    make setup
    export KUBECONFIG=/where/you/put/it/kubeconfig TRAINYARD_PROVIDER=existing
    make lab

The third cell of each notebook shows the cluster that you use.

Your notebooks report to the instructor which cell is running, and the first line of an error, but neither
your code nor its output. To opt out: kubectl delete configmap notebook-progress
"""


@dataclass(frozen=True)
class Attendee:
    """An attendee, with their namespace.

    Attributes:
        name: Of the attendee.
        namespace: The only namespace that they may use.
        kubeconfig: A file with their token, which is all that is needed to act as them.
        expires: When the token expires, as reported by the API server.
    """

    name: str
    namespace: str
    kubeconfig: Path
    expires: str


@dataclass(frozen=True)
class Quota:
    """The quota of an attendee, who runs one notebook at a time: quantities of Kubernetes requests."""

    cpu: str = "1"
    memory: str = "4Gi"
    pods: int = 20
    gpus: int = 0

    def __post_init__(self) -> None:
        check_quantity(self.cpu, what="cpu", example='"4"')
        check_quantity(self.memory, what="memory", example='"8Gi"')
        check_count(self.pods, what="pods", least=1, most=10_000)
        check_count(self.gpus, what="gpus", least=0, most=10_000)

    def hard(self) -> dict[str, str]:
        """Convert to the ``hard`` field of a ResourceQuota."""
        return {
            "requests.cpu": str(self.cpu),
            "requests.memory": str(self.memory),
            "limits.memory": str(int(MEMORY_LIMIT_RATIO * parse_quantity(self.memory))),
            "pods": str(self.pods),
            "count/pods": str(POD_OBJECTS_RATIO * self.pods),
            "requests.nvidia.com/gpu": str(self.gpus),
        }


def create(kube: Kube, name: str, *, quota: Quota, hours: float) -> Attendee:
    """Create an attendee, or update the quota and token of an existing one."""
    namespace = namespace_of(name)
    if not MIN_HOURS <= hours <= MAX_HOURS:
        raise BadInput(
            f"a kubeconfig is valid for {MIN_HOURS:.2g} to {MAX_HOURS} hours",
            about=f'hours={hours!r}, for attendee "{name}"',
            fix="`hours=12`; call it again after it has expired",
        )
    _check_ours(kube, namespace)
    lifetime = timedelta(hours=hours)
    labels = names.labels(lifetime=lifetime) | {LABEL: name}
    files = sorted(config.manifests("attendee").glob("*.yaml"), key=lambda file: file.stem != "namespace")
    for file in files:
        (item,) = manifests.read(file)
        put(kube, _fill_in(item, namespace, labels=labels, quota=quota))
    _wait_for_quota(kube.in_namespace(namespace), name)
    token, expires = kube.token(ACCOUNT, namespace=namespace, seconds=int(lifetime.total_seconds()))
    path = kubeconfig(kube.cluster, name)
    # JSON is YAML with quoted strings: without quotes, kubectl would read attendee 08 as a number.
    write_whole(path, json.dumps(kube.kubeconfig_for(token, user=name, namespace=namespace), indent=2))
    return Attendee(name, namespace, path, expires)


def put(kube: Kube, item: Object) -> None:
    """Create or update an object; replace one of the attendee's that cannot be updated."""
    try:
        kube.apply(item)
    except Rejected as error:
        if error.status != 422:
            raise
        meta = item["metadata"]
        kube.in_namespace(meta.get("namespace", kube.namespace)).delete(item["kind"], meta["name"])
        kube.apply(item)


def apply_policy(kube: Kube) -> None:
    """Apply the admission policy for what RBAC and quotas cannot restrict; idempotent."""
    for item in _policy():
        kube.apply(manifests.merge(item, {"metadata": {"labels": {names.KIT: "true"}}}))


def delete_policy(kube: Kube) -> None:
    """Delete what `apply_policy` created; idempotent."""
    for item in _policy():
        kube.delete(item["kind"], item["metadata"]["name"])


def _policy() -> list[Object]:
    files = sorted(config.manifests("attendee", "policy").glob("*.yaml"))
    return [item for file in files for item in manifests.read(file)]


def table(kube: Kube) -> Table:
    """List the attendees of a cluster, with the usage of their quotas."""
    rows = []
    for namespace in kube.get_all("Namespace", labels=LABEL):
        meta = namespace["metadata"]
        name = meta["labels"][LABEL]
        quota = kube.in_namespace(meta["name"]).find("ResourceQuota", ACCOUNT) or {}
        path = kubeconfig(kube.cluster, name)
        usage = (_used(quota, resource) for resource in ("pods", "requests.cpu", "requests.memory"))
        file, expires = str(path) if path.exists() else None, meta["labels"].get(names.EXPIRES)
        rows.append((name, meta["name"], *usage, file, expires, age(meta["creationTimestamp"])))
    return Table(COLUMNS, rows, empty="no attendees")


def delete(kube: Kube, name: str) -> None:
    """Delete an attendee's namespace and its contents; idempotent."""
    namespace = namespace_of(name)
    if _check_ours(kube, namespace):
        kube.delete("Namespace", namespace)
        scoped = kube.in_namespace(namespace)
        for pod in scoped.get_all("Pod"):  # without their grace period
            scoped.delete("Pod", pod["metadata"]["name"], grace=0)
        _wait_gone(kube, name)
    delete_volumes(kube, f"{LABEL}={name}")
    kubeconfig(kube.cluster, name).unlink(missing_ok=True)


def delete_volumes(kube: Kube, labels: str = LABEL) -> None:
    """Delete attendees' PersistentVolumes, which are not namespaced; the storage behind them is kept."""
    volumes = allowed(lambda: kube.get_all("PersistentVolume", labels=labels))
    for volume in volumes or []:  # None: a user who may not list them has created none
        kube.delete("PersistentVolume", volume["metadata"]["name"])


def _wait_gone(kube: Kube, name: str) -> None:
    namespace = namespace_of(name)
    remaining: dict[str, str] = {}  # by condition

    def describe(snapshot: Snapshot) -> str:
        """Describe what remains; objects are listed once for each condition."""
        (item,) = snapshot["Namespace"].values()
        condition = remaining_conditions(item)
        if not condition:  # pods are deleted first
            objects = holders(kube, item)
            return f"Kubernetes is deleting its contents{': ' * bool(objects)}{objects}"
        if condition not in remaining:
            remaining[condition] = holders(kube, item)
        return f"{condition}: {remaining[condition]}" if remaining[condition] else condition

    wait(
        watch_objects(kube, WatchSpec("Namespace", fields=f"metadata.name={namespace}")),
        until=lambda snapshot: not snapshot["Namespace"],
        what="the namespace to be deleted",
        about=f'attendee "{name}" in cluster "{kube.cluster}"',
        resume=f'`kit.workshop.remove("{name}")` waits again',
        describe=describe,
    )


def namespace_of(name: str) -> str:
    """Return the namespace of an attendee; raise BadInput for an invalid name."""
    return f"attendee-{names.validate_name(name, kind='attendee', longest=LONGEST_NAME)}"


def _check_ours(kube: Kube, namespace: str) -> bool:
    """Return whether the namespace exists; raise BadInput for one that the kit did not create."""
    existing = kube.find("Namespace", namespace)
    if existing is not None and LABEL not in (existing["metadata"].get("labels") or {}):
        raise BadInput(
            "a namespace of this name exists, and is not the kit's",
            about=f'namespace "{namespace}" in cluster "{kube.cluster}"',
            fix="choose another name for the attendee",
        )
    return existing is not None


def _fill_in(item: Object, namespace: str, *, labels: dict[str, str], quota: Quota) -> Object:
    """Fill in an object of ``manifests/attendee`` for one attendee."""
    item = manifests.merge(item, {"metadata": {"labels": labels}})
    if item["kind"] == "Namespace":
        item["metadata"]["name"] = namespace
        return item
    item["metadata"]["namespace"] = namespace
    if item["kind"] == "RoleBinding":
        item["subjects"][0]["namespace"] = namespace
    if item["kind"] == "LimitRange" and quota.gpus:  # CUDA alone uses gigabytes per process
        item["spec"]["limits"][0]["default"]["memory"] = str(quota.memory)
    if item["kind"] == "ResourceQuota" and item["metadata"]["name"] == ACCOUNT:
        item["spec"]["hard"] |= {f"count/{resource}": str(count) for resource, count in JOB_QUOTA.items()}
        item["spec"]["hard"] |= quota.hard()
    if item["kind"] == "Role" and item["metadata"]["name"] == ACCOUNT:
        groups = sorted({resource.partition(".")[2] for resource in JOB_QUOTA})
        item["rules"].append({"apiGroups": groups, "resources": ["*"], "verbs": ["*"]})
    return item


def _wait_for_quota(kube: Kube, name: str) -> None:
    """Wait until the quota controller has processed the quota, before which pods are rejected."""
    wait(
        watch_objects(kube, WatchSpec("ResourceQuota")),
        until=lambda snapshot: all(
            (quota.get("status") or {}).get("hard") for quota in snapshot["ResourceQuota"].values()
        ),
        what="the quota to take effect",
        about=f'attendee "{name}" in cluster "{kube.cluster}"',
        resume=f'`kit.workshop.add("{name}")` continues',
        describe=lambda snapshot: "it has no status yet",
    )


def _used(quota: Object, resource: str) -> str | None:
    status = quota.get("status") or {}
    hard = (status.get("hard") or {}).get(resource)
    return f"{(status.get('used') or {}).get(resource, '0')} of {hard}" if hard else None


def kubeconfig(cluster: str, name: str) -> Path:
    """Path of an attendee's kubeconfig."""
    return attendees_folder(cluster) / f"{name}.kubeconfig"


def handout(cluster: str) -> Path:
    """Path of the handout."""
    return attendees_folder(cluster) / "handout.zip"


def write_handout(cluster: str, attendees: Iterable[Attendee], *, jupyter: Mapping[str, str]) -> Path:
    """Write a folder for each attendee, with kubeconfig and instructions, to one zip file of mode 0600."""
    path, content = handout(cluster), io.BytesIO()
    with zipfile.ZipFile(content, "w", zipfile.ZIP_DEFLATED) as archive:
        for attendee in attendees:
            page = PAGE.format(**vars(attendee), cluster=cluster, jupyter=jupyter.get(attendee.name, ""))
            for name, text in (("kubeconfig", attendee.kubeconfig.read_text()), ("start.txt", page)):
                entry = zipfile.ZipInfo(f"{attendee.name}/{name}")
                entry.external_attr = 0o600 << 16  # private after unpacking
                archive.writestr(entry, text)
    write_whole(path, content.getvalue())
    return path
