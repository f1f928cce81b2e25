"""The kit's runs in a cluster, as a table."""

from kitlib.display.tables import Table, age
from kitlib.k8s import job_kinds, names
from kitlib.k8s.client import Kube
from kitlib.k8s.job_status import judge
from kitlib.k8s.manifests import Object
from kitlib.runs.run import known


def runs_table(kube: Kube) -> Table:
    """Return the kit's runs in a cluster, newest last."""
    every = [
        {"kind": kind, **each} for kind in job_kinds.KINDS for each in known(kube, kind, labels=names.RUN)
    ]
    jobs = sorted(every, key=lambda job: job["metadata"]["creationTimestamp"])
    by_run: dict[str | None, list[Object]] = {}
    for each in kube.get_all("Pod"):
        by_run.setdefault(job_kinds.run_of(each), []).append(each)
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
