"""Attendees who share a cluster: each has a namespace, a quota, and a kubeconfig for that namespace alone.

Their rights are in ``manifests/attendee``: roles, quotas, the Pod Security level, an admission policy. Each
is a ServiceAccount, because that works with every provider; its token comes from the TokenRequest API,
expires, and is stored in the kubeconfig alone. A person who has the kubeconfig needs no more than
``kit.connect("ada", kubeconfig="ada.kubeconfig")``. The handout is one file with the kubeconfigs of all, for
the instructor: whoever has a kubeconfig acts as that attendee.
"""

import json
import os
import zipfile
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import IO, Any

from kitlib import config
from kitlib.clusters.cleanup import attendees_folder
from kitlib.display.tables import Table, age
from kitlib.errors import BadInput, Rejected
from kitlib.k8s import manifests, names
from kitlib.k8s.client import Kube, allowed
from kitlib.k8s.job_kinds import JOBS
from kitlib.k8s.manifests import Object
from kitlib.k8s.quantities import check_count, check_quantity, parse_quantity
from kitlib.k8s.terminating import holders, remaining_conditions
from kitlib.k8s.wait import wait
from kitlib.k8s.watch import Snapshot, WatchSpec, watch_objects

LABEL = "trainyard/attendee"
ACCOUNT = "attendee"
# How many objects of each kind of job an attendee may have; the groups of the role follow from it.
JOB_QUOTA = {resource: count for kind in JOBS for resource, count in kind.quota.items()}
LONGEST_NAME = 40
LIMITS_OF_REQUESTS = 8  # what pods may use of memory for a moment, in all, for each byte that they request
ENDED_PODS = 10  # how many times as many pods may be kept after their end
MIN_HOURS, MAX_HOURS = 1 / 6, 24 * 14  # Kubernetes gives no token for less than ten minutes
COLUMNS = ("attendee", "namespace", "pods", "cpu", "memory", "kubeconfig", "expires", "age")
PAGE = """\
You are "{name}" in the workshop on the cluster "{cluster}".

The file kubeconfig beside this page is your key: whoever has it can do what you can. It leads to the
namespace {namespace}, and to nothing else, until {expires}.
{jupyter}
On a machine of your own, with kubectl and a clone of the kit:

    make setup
    export KUBECONFIG=/where/you/put/it/kubeconfig TRAINYARD_PROVIDER=existing
    make lab

The third cell of each notebook shows on which cluster you are.

While you work, your notebooks tell the instructor which cell runs, and the first line of an error; neither
your code nor its output. If you would rather not: kubectl delete configmap notebook-progress
"""


@dataclass(frozen=True)
class Attendee:
    """An attendee with a namespace of their own.

    Attributes:
        name: Of the attendee.
        namespace: The one that they may use.
        kubeconfig: A file with their token; whoever has it acts as them.
        expires: When the token expires, as the API server says.
    """

    name: str
    namespace: str
    kubeconfig: Path
    expires: str


@dataclass(frozen=True)
class Quota:
    """The quota of an attendee who runs one notebook at a time: requests, as Kubernetes writes them."""

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
            "limits.memory": str(int(LIMITS_OF_REQUESTS * parse_quantity(self.memory))),
            "pods": str(self.pods),
            "count/pods": str(ENDED_PODS * self.pods),
            "requests.nvidia.com/gpu": str(self.gpus),
        }


def create(kube: Kube, name: str, *, quota: Quota, hours: float) -> Attendee:
    """Create an attendee, or update the quota of one and create a new token."""
    namespace = namespace_of(name)
    if not MIN_HOURS <= hours <= MAX_HOURS:
        raise BadInput(
            f"a kubeconfig works for {MIN_HOURS:.2g} to {MAX_HOURS} hours",
            about=f'hours={hours!r}, for attendee "{name}"',
            fix="`hours=12`, and again when it has expired",
        )
    _check_ours(kube, namespace)
    lifetime = timedelta(hours=hours)
    labels = names.labels(lifetime=lifetime) | {LABEL: name}
    files = sorted(config.manifests("attendee").glob("*.yaml"), key=lambda file: file.stem != "namespace")
    for file in files:
        (item,) = manifests.read(file)
        put(kube, _for(item, namespace, labels=labels, quota=quota))
    _wait_counted(kube.within(namespace), name)
    token, until = kube.token(ACCOUNT, namespace=namespace, seconds=int(lifetime.total_seconds()))
    path = kubeconfig(kube.cluster, name)
    with _private_file(path, "w") as secret:
        # JSON is YAML, and says what is text: in YAML, attendee 08 would be a number to kubectl.
        json.dump(kube.kubeconfig_for(token, user=name, namespace=namespace), secret, indent=2)
    return Attendee(name, namespace, path, until)


def put(kube: Kube, item: Object) -> None:
    """Create or update an object; replace one that the attendee has made, and that cannot be updated."""
    try:
        kube.apply(item)
    except Rejected as error:
        if error.status != 422:
            raise
        meta = item["metadata"]
        kube.within(meta.get("namespace", kube.namespace)).delete(item["kind"], meta["name"])
        kube.apply(item)


def apply_policy(kube: Kube) -> None:
    """Refuse what RBAC and quotas let pass in attendees' namespaces; idempotent."""
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
    """List the attendees of a cluster, with what each uses of their quota."""
    rows = []
    for namespace in kube.get_all("Namespace", labels=LABEL):
        meta = namespace["metadata"]
        name = meta["labels"][LABEL]
        quota = kube.within(meta["name"]).find("ResourceQuota", ACCOUNT) or {}
        path = kubeconfig(kube.cluster, name)
        rows.append(
            (
                name,
                meta["name"],
                *(_used(quota, what) for what in ("pods", "requests.cpu", "requests.memory")),
                str(path) if path.exists() else None,
                meta["labels"].get(names.EXPIRES),
                age(meta["creationTimestamp"]),
            )
        )
    return Table(COLUMNS, rows, empty="no attendees")


def delete(kube: Kube, name: str) -> None:
    """Delete an attendee's namespace with all that is in it; idempotent."""
    namespace = namespace_of(name)
    if _check_ours(kube, namespace):
        kube.delete("Namespace", namespace)
        scoped = kube.within(namespace)
        for pod in scoped.get_all("Pod"):  # whatever time they would take to end
            scoped.delete("Pod", pod["metadata"]["name"], grace=0)
        _wait_gone(kube, name)
    delete_volumes(kube, f"{LABEL}={name}")
    kubeconfig(kube.cluster, name).unlink(missing_ok=True)


def delete_volumes(kube: Kube, labels: str = LABEL) -> None:
    """Delete the PersistentVolumes of attendees, which outlive their namespaces; what they lead to stays."""
    volumes = allowed(lambda: kube.get_all("PersistentVolume", labels=labels))
    for volume in volumes or []:  # who may not see them has made none
        kube.delete("PersistentVolume", volume["metadata"]["name"])


def _wait_gone(kube: Kube, name: str) -> None:
    namespace = namespace_of(name)
    known: dict[str, str] = {}

    def describe(snapshot_now: Snapshot) -> str:
        """Describe what is left; its objects are listed once for each text."""
        (item,) = snapshot_now["Namespace"].values()
        text = remaining_conditions(item)
        if not text:  # pods go first
            left = holders(kube, item)
            return f"Kubernetes deletes what is in it{': ' * bool(left)}{left}"
        if text not in known:
            known[text] = holders(kube, item)
        return f"{text}: {known[text]}" if known[text] else text

    wait(
        watch_objects(kube, WatchSpec("Namespace", fields=f"metadata.name={namespace}")),
        until=lambda snapshot: not snapshot["Namespace"],
        what="the namespace to be gone",
        about=f'attendee "{name}" in cluster "{kube.cluster}"',
        resume=f'`kit.workshop.remove("{name}")` waits again',
        describe=describe,
    )


def namespace_of(name: str) -> str:
    """Validate the name of an attendee and name their namespace."""
    return f"attendee-{names.validate_name(name, kind='attendee', longest=LONGEST_NAME)}"


def _check_ours(kube: Kube, namespace: str) -> bool:
    """Check for the namespace; raise BadInput for one that the kit did not create."""
    existing = kube.find("Namespace", namespace)
    if existing is not None and LABEL not in (existing["metadata"].get("labels") or {}):
        raise BadInput(
            "a namespace of this name exists, and is not the kit's",
            about=f'namespace "{namespace}" in cluster "{kube.cluster}"',
            fix="choose another name for the attendee",
        )
    return existing is not None


def _for(item: Object, namespace: str, *, labels: dict[str, str], quota: Quota) -> Object:
    """Fill in an object of ``manifests/attendee`` for one attendee."""
    item = manifests.merge(item, {"metadata": {"labels": labels}})
    if item["kind"] == "Namespace":
        item["metadata"]["name"] = namespace
        return item
    item["metadata"]["namespace"] = namespace
    if item["kind"] == "RoleBinding":
        item["subjects"][0]["namespace"] = namespace
    if item["kind"] == "LimitRange" and quota.gpus:  # CUDA alone takes gigabytes of a process
        item["spec"]["limits"][0]["default"]["memory"] = str(quota.memory)
    if item["kind"] == "ResourceQuota" and item["metadata"]["name"] == ACCOUNT:
        item["spec"]["hard"] |= {f"count/{resource}": str(count) for resource, count in JOB_QUOTA.items()}
        item["spec"]["hard"] |= quota.hard()
    if item["kind"] == "Role" and item["metadata"]["name"] == ACCOUNT:
        groups = sorted({resource.partition(".")[2] for resource in JOB_QUOTA})
        item["rules"].append({"apiGroups": groups, "resources": ["*"], "verbs": ["*"]})
    return item


def _wait_counted(kube: Kube, name: str) -> None:
    """Wait until the quota controller has counted the quota: pods are refused before."""
    wait(
        watch_objects(kube, WatchSpec("ResourceQuota")),
        until=lambda snapshot: all(
            (resource_quota.get("status") or {}).get("hard")
            for resource_quota in snapshot["ResourceQuota"].values()
        ),
        what="the quota to be counted",
        about=f'attendee "{name}" in cluster "{kube.cluster}"',
        resume=f'`kit.workshop.add("{name}")` goes on',
        describe=lambda snapshot: "Kubernetes has not counted it yet",
    )


def _used(quota: Object, what: str) -> str | None:
    status = quota.get("status") or {}
    hard = (status.get("hard") or {}).get(what)
    return f"{(status.get('used') or {}).get(what, '0')} of {hard}" if hard else None


def kubeconfig(cluster: str, name: str) -> Path:
    """Path of an attendee's kubeconfig."""
    return attendees_folder(cluster) / f"{name}.kubeconfig"


def handout(cluster: str) -> Path:
    """Path of the handout."""
    return attendees_folder(cluster) / "handout.zip"


def write_handout(cluster: str, attendees: Iterable[Attendee], *, jupyter: Mapping[str, str]) -> Path:
    """Write a folder for each attendee, with kubeconfig and instructions, to one zip file of mode 0600."""
    path = handout(cluster)
    with _private_file(path, "wb") as file, zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as packed:
        for attendee in attendees:
            page = PAGE.format(**vars(attendee), cluster=cluster, jupyter=jupyter.get(attendee.name, ""))
            for name, text in (("kubeconfig", attendee.kubeconfig.read_text()), ("start.txt", page)):
                entry = zipfile.ZipInfo(f"{attendee.name}/{name}")
                entry.external_attr = 0o600 << 16  # unpacked, it stays private
                packed.writestr(entry, text)
    return path


@contextmanager
def _private_file(path: Path, mode: str) -> Iterator[IO[Any]]:
    """Replace a file, atomically, by one that this user alone can read."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    aside = path.with_suffix(".new")
    aside.unlink(missing_ok=True)
    with os.fdopen(os.open(aside, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), mode) as file:
        yield file
    aside.replace(path)
