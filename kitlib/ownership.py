"""What the kit made in a cluster: all that carries its label, and nothing else; found, and deleted."""

from kitlib import names, workloads
from kitlib.kube import Kube
from kitlib.manifests import Object
from kitlib.progress import progress
from kitlib.runs import KINDS, Run, known
from kitlib.status import judge
from kitlib.storage import claims
from kitlib.tables import Table, age

OWNED = (*KINDS, "Pod", claims.CLAIM)


def owned(kube: Kube) -> Table:
    """Return every object in the cluster that is the kit's, with its run and its owner."""
    rows = []
    for kind in OWNED:
        for each in known(kube, kind, labels=names.KIT):
            meta = each["metadata"]
            rows.append(
                (
                    f"{kind}/{meta['name']}",
                    meta["labels"].get(names.RUN),
                    meta["labels"].get(names.OWNER),
                    meta["labels"].get(names.EXPIRES),
                    age(meta["creationTimestamp"]),
                )
            )
    return Table(("object", "run", "owner", "expires", "age"), rows, empty="nothing of the kit is left")


def delete_all(kube: Kube) -> Table:
    """Delete every run and every volume of the kit in a cluster, and return what is left: an empty table.

    Raises:
        VolumeInUse: Pods that are not the kit's use one of its volumes.
    """
    found = {str(each["run"]) for each in owned(kube) if each["run"]}
    runs = [Run(kube, name) for name in sorted(found)]
    kinds = {run.name: run.kind for run in runs}
    for name, kind in kinds.items():  # all get the signal at once; what takes long is waiting for the pods
        kube.delete(kind, name)
    for run in runs:
        run.delete()
    for claim in kube.get_all(claims.CLAIM, labels=names.KIT):
        name = claim["metadata"]["name"]
        with progress(f"volume {name}") as line:
            claims.remove(kube, name, report=line.update)
            line.done("deleted")
    return owned(kube)


def runs_table(kube: Kube) -> Table:
    """Return the kit's runs in a cluster, newest last."""
    every = [
        {"kind": kind, **each} for kind in workloads.KINDS for each in known(kube, kind, labels=names.RUN)
    ]
    jobs = sorted(every, key=lambda job: job["metadata"]["creationTimestamp"])
    by_run: dict[str | None, list[Object]] = {}
    for each in kube.get_all("Pod"):
        by_run.setdefault(workloads.run_of(each), []).append(each)
    rows = []
    for job in jobs:
        labels = job["metadata"]["labels"]
        status = judge(job, by_run.get(labels[names.RUN], []))
        rows.append(
            (
                labels[names.RUN],
                status.phase,
                status.wanted,
                labels.get(names.OWNER),
                age(job["metadata"]["creationTimestamp"]),
            )
        )
    return Table(("run", "status", "pods", "owner", "age"), rows, empty="no runs")
