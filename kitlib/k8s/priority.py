"""PriorityClasses, by which pods preempt others: those of the kit are created when a job requests them."""

from kitlib import config
from kitlib.display.progress import progress
from kitlib.errors import BadInput, Rejected
from kitlib.k8s import manifests
from kitlib.k8s.client import Kube


def ensure_priority_class(kube: Kube, name: str) -> None:
    """Create a PriorityClass if the kit defines it (``manifests/priority``) and the cluster lacks it.

    One that exists, perhaps with another value, is used as it is. The kit leaves them when a run is deleted:
    they belong to the whole cluster, and other people's pods may use them.
    """
    path = config.manifests("priority") / f"{name}.yaml"
    definition = manifests.read(path)[0] if path.is_file() else None
    about = f'priority="{name}" in cluster "{kube.cluster}"'
    try:
        existing = kube.find("PriorityClass", name)
        if existing is None and definition is not None:
            kube.create(definition)
    except Rejected as error:
        if error.status == 409:  # created by somebody else meanwhile
            return
        if error.status != 403:
            raise
        if _pods_may_have(kube, name):
            return
        file = f"kubectl apply -f {path}" if definition else f'a PriorityClass "{name}"'
        fix = f"ask the cluster's administrator for it ({file}), or leave out `priority=`"
        raise BadInput(f'there is no PriorityClass "{name}"', about=about, fix=fix) from error
    if existing is None and definition is None:
        fix = f'use one that the kit defines, "high" or "low", or create "{name}"'
        raise BadInput(f'there is no PriorityClass "{name}"', about=about, fix=fix)
    with progress(f"priority class {name}") as line:
        if definition is None:  # another owner's, which exists
            return
        if existing is None:
            line.done(f"created, with the value {definition['value']:,}")
        elif existing["value"] != definition["value"]:
            line.done(f"it exists with the value {existing['value']:,}, and is used as it is")


def _pods_may_have(kube: Kube, name: str) -> bool:
    """Test by a dry run whether a class exists: a user of one namespace may not read classes."""
    pod = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"generateName": "priority-"},
        "spec": {"priorityClassName": name, "containers": [{"name": "none", "image": "none"}]},
    }
    try:
        kube.create(pod, dry_run=True)
    except Rejected as error:  # a quota, say, rejects the job as well, and then says why
        return "PriorityClass" not in error.what
    return True
