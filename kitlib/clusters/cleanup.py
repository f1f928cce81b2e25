"""Clean-up of a cluster: delete everything with the kit's label, and nothing else."""

import shutil
from pathlib import Path

from kitlib import config
from kitlib.display.progress import progress
from kitlib.display.tables import Table, age
from kitlib.k8s import names
from kitlib.k8s.client import Kube
from kitlib.runs.run import Run
from kitlib.runs.status import KINDS, list_known
from kitlib.storage import pvc

OWNED = (*KINDS, "Pod", pvc.CLAIM)


def attendees_folder(cluster: str) -> Path:
    """Locate the kubeconfigs of a cluster's attendees on this machine."""
    return config.state_folder() / "attendees" / cluster


def delete_kubeconfigs(cluster: str) -> None:
    """Delete the kubeconfigs of a cluster's attendees, and their handout; idempotent.

    Called before the cluster is deleted, so that none remains if that is interrupted.
    """
    folder = attendees_folder(cluster)
    if folder.exists():
        shutil.rmtree(folder)


def owned(kube: Kube) -> Table:
    """List the kit's objects in a cluster, with run and owner."""
    rows = []
    for kind in OWNED:
        for item in list_known(kube, kind, labels=names.KIT):
            meta = item["metadata"]
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
    """Delete the kit's runs and volumes in a cluster; return what remains, normally an empty table."""
    run_names = {str(row["run"]) for row in owned(kube) if row["run"]}
    runs = [Run(kube, name) for name in sorted(run_names)]
    kinds = {run.name: run.objects.kind for run in runs}
    for name, kind in kinds.items():  # all pods end at the same time; waiting for them takes longest
        kube.delete(kind, name)
    for run in runs:
        run.delete()
    for claim in kube.get_all(pvc.CLAIM, labels=names.KIT):
        name = claim["metadata"]["name"]
        with progress(f"volume {name}") as line:
            pvc.delete(kube, name, report=line.update)
            line.done("deleted")
    return owned(kube)
