"""PriorityClasses: which pods give way to which. Those that the kit knows are made when a job asks for them.

Their values are in ``manifests/priority``. They belong to the whole cluster and are left when a run is
deleted: other people's pods may have them. Who gives way to whom is the scheduler's business.
"""

from kitlib import config
from kitlib.display.progress import progress
from kitlib.errors import BadInput, Rejected
from kitlib.k8s import manifests
from kitlib.k8s.client import Kube
from kitlib.k8s.manifests import Object

KIND = "PriorityClass"


def ensure(kube: Kube, name: str) -> None:
    """See that there is a PriorityClass of this name; make it if it is one of the kit's.

    One that is there already, perhaps with another value, is used as it is.

    Raises:
        BadInput: There is none, and the kit has none of this name or this user may not make it.
    """
    ours = _ours(name)
    try:
        found = kube.find(KIND, name)
        if found is None and ours is not None:
            kube.create(ours)
    except Rejected as error:
        if error.status == 409:  # somebody else was quicker
            return
        if error.status != 403:
            raise
        _check_by_a_pod(kube, name, ours, error)
        return
    if found is None and ours is None:
        raise _missing(kube, name, fix=f'take one of those of the kit, "high" or "low", or make "{name}"')
    with progress(f"priority class {name}") as line:
        if found is None:
            line.done(f"made, with the value {ours['value']:,}")
        elif ours is not None and found["value"] != ours["value"]:
            line.done(f"it is there with the value {found['value']:,}, and is used as it is")


def _ours(name: str) -> Object | None:
    path = config.manifests("priority") / f"{name}.yaml"
    return manifests.read(path)[0] if path.is_file() else None


def _check_by_a_pod(kube: Kube, name: str, ours: Object | None, refused: Rejected) -> None:
    """See by a pod that is not made whether a class is there: whoever has one namespace sees no classes."""
    pod = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"generateName": "priority-"},
        "spec": {"priorityClassName": name, "containers": [{"name": "none", "image": "none"}]},
    }
    try:
        kube.create(pod, dry_run=True)
    except Rejected as error:
        if "PriorityClass" not in error.what:
            return  # the quota, or another rule of the namespace: it stands in the way of the job as well
        file = f"kubectl apply -f manifests/priority/{name}.yaml" if ours else f'a PriorityClass "{name}"'
        fix = f"ask whoever runs the cluster for it ({file}), or leave out priority="
        raise _missing(kube, name, fix=fix) from refused


def _missing(kube: Kube, name: str, *, fix: str) -> BadInput:
    about = f'priority="{name}" in cluster "{kube.cluster}"'
    return BadInput(f'there is no PriorityClass "{name}"', about=about, fix=fix)
