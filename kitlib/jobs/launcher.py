"""`launch`: check a job's objects against a cluster, then create them all, or none."""

import contextlib
import logging
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from kitlib import config
from kitlib.clusters import Cluster, connect
from kitlib.clusters.trainer_image import missing_tag
from kitlib.errors import BadInput, KitError, LaunchRejected, Rejected, RunExists, WaitTimeout
from kitlib.jobs.base import Job
from kitlib.jobs.indexed_job import IndexedJob
from kitlib.jobs.resources import check_room
from kitlib.k8s import names, pods
from kitlib.k8s.api_errors import launch_rejected
from kitlib.k8s.client import Kube
from kitlib.k8s.job_kinds import KINDS
from kitlib.k8s.manifests import Object, title
from kitlib.k8s.priority import ensure_priority_class
from kitlib.k8s.wait import wait
from kitlib.k8s.watch import Snapshot, WatchSpec, watch_objects
from kitlib.plugins import require_extra
from kitlib.runs.run import Run
from kitlib.runs.status import find_main

log: logging.Logger = logging.getLogger(__name__)
NOTICED_SECONDS = 10


def launch(
    job: Job | str | Path | Callable[..., object],
    *,
    cluster: Cluster | str = config.DEFAULT_CLUSTER,
    replace: bool = False,
    must_fit: bool = False,
    **options: Any,
) -> Run:
    """Create a job's objects in a cluster and return the run.

    A program or a function is launched as an `IndexedJob`. `torchrun` runs one on this machine.

    Args:
        job: The job; or the path of a program, or a function, with the arguments of an `IndexedJob`.
        cluster: The cluster, or its name.
        replace: Delete an earlier run of this name first, and wait until its pods are gone.
        must_fit: Refuse pods that are larger than every node of a local cluster; by default they are created,
            with a warning, and wait.
        options: Arguments of an `IndexedJob`: ``nodes=4, args={"epochs": 2}``.

    Raises:
        BadInput: The cluster is at a cloud, and no image was built for it; or an argument is invalid.
        RunExists: A run of this name exists, and ``replace`` is not given.
        LaunchRejected: The API server rejected an object; nothing was left behind.

    Example:
        >>> run = launch("train.py", nodes=4)
        >>> launch(train, nodes=4, args={"epochs": 2})
    """
    _check_arguments(job, options)
    if not isinstance(job, Job):
        job = IndexedJob(job, **options)
    on = connect(cluster) if isinstance(cluster, str) else cluster
    return _launch_on(on, job, replace=replace, must_fit=must_fit)


def _launch_on(cluster: Cluster, job: Job, *, replace: bool, must_fit: bool) -> Run:
    kube, job = cluster.announce_end().kube, job.on(cluster)
    objects = job.objects
    run = Run(kube, job.name, kind=objects[-1]["kind"], cluster=cluster)
    if cluster.provider == "local" and getattr(job, "rendezvous", "") == "etcd":
        require_extra("elastic", about=run.about)
    if replace:
        Run(kube, job.name).delete()
    elif find_main(kube, job.name) is not None:
        raise RunExists(
            "a run of this name exists",
            about=run.about,
            fix="kit.launch(job, replace=True) deletes it first; or give this one another name=",
        )
    _check_claims_and_secrets(kube, job, about=run.about)
    if missing := missing_tag(job.image):
        log.warning("%s: %s", run.about, missing)
    try:
        check_room(objects, cluster, about=run.about)
    except BadInput as error:
        if must_fit and cluster.provider == "local":  # elsewhere an autoscaler may add such a node
            raise
        log.warning("%s; its pods wait until there is such a node. %s", error.what, error.fix)
    for priority in job.priorities:
        ensure_priority_class(kube, priority)
    try:
        for dry_run in (True, False):  # all are checked before the first is created
            _create_all(kube, job, objects, about=run.about, dry_run=dry_run)
    except (KitError, KeyboardInterrupt):
        run.delete()
        raise
    return run


def _check_arguments(job: object, options: Mapping[str, Any]) -> None:
    if not (isinstance(job, Job | str | Path) or callable(job)):
        example = 'kit.launch("train.py", nodes=4), or kit.launch(kit.IndexedJob("train.py"))'
        raise BadInput("this is neither a job, nor a program, nor a function", about=repr(job), fix=example)
    if isinstance(job, Job) and options:
        about, fix = f"{job!r}, {', '.join(options)}", "give them to the job: kit.IndexedJob(…, nodes=4)"
        raise BadInput("a job has its arguments already", about=about, fix=fix)


def _create_all(kube: Kube, job: Job, objects: Sequence[Object], *, about: str, dry_run: bool) -> None:
    for index, item in enumerate(objects):
        if dry_run and item.get("spec", {}).get("serviceAccountName"):
            continue  # no pod is accepted before its ServiceAccount exists; its Job is checked
        if dry_run and index and _are_alike(objects[index - 1], item):
            continue  # thirty workers are checked by the first
        try:
            _create(kube, item, job.name, main=item is objects[-1], dry_run=dry_run)
            if not dry_run and _adopts(objects[-1], item):
                _wait_until_noticed(kube, item, about=about)
        except Rejected as error:
            raise _launch_error(error, job, objects, index, cluster=kube.cluster) from error


def _are_alike(one: Object, other: Object) -> bool:
    """Tell whether two pods differ in their names alone."""
    specs = [{**pod["spec"], "hostname": ""} for pod in (one, other) if pod["kind"] == "Pod"]
    return len(specs) == 2 and specs[0] == specs[1]


def _adopts(main: Object, item: Object) -> bool:
    """Tell whether the main object's controller adopts an object that exists before it."""
    selector: Object = (main.get("spec", {}).get("selector") or {}).get("matchLabels") or {}
    labels: Object = item["metadata"].get("labels") or {}
    return item["kind"] == "Pod" and bool(selector) and selector.items() <= labels.items()


def _launch_error(
    error: Rejected, job: Job, objects: Sequence[Object], document: int, *, cluster: str
) -> LaunchRejected:
    main = objects[-1]
    operator = KINDS[main["kind"]].operator
    install = f'kit.install("{operator}", cluster="{cluster}")'
    if objects[document] is main and error.status == 404:
        what = f"the cluster has no kind {main['kind']} in {main['apiVersion']}"
        return LaunchRejected(what, about=f'{title(main)} in cluster "{cluster}"', fix=f"{install} brings it")
    fix = "fix what is named, in job.patch(…) or in the arguments; job.manifest() shows it all"
    if operator and "failed calling webhook" in error.what:
        fix = f"its operator does not answer: {install} repairs it"
    return launch_rejected(error, job.manifest(), document=document, fix=fix)


def _create(kube: Kube, item: Object, run: str, *, main: bool, dry_run: bool) -> None:
    """Create an object; one that is not the main object may replace what an earlier run left behind."""
    try:
        kube.create(item, dry_run=dry_run)
        return
    except Rejected as error:
        if main or error.status != 409:
            raise
    old = kube.find(item["kind"], item["metadata"]["name"]) or {"metadata": {}}
    if (old["metadata"].get("labels") or {}).get(names.RUN) != run:
        about = f'{title(item)} in cluster "{kube.cluster}"'
        raise RunExists("something else has the name of this run", about=about, fix="give it another name=")
    if not dry_run:
        kube.delete(item["kind"], item["metadata"]["name"])
        kube.create(item)


def _wait_until_noticed(kube: Kube, pod: Object, *, about: str) -> None:
    """Wait until a pod's node has reported it, or no node has room: the Job that adopts it comes next.

    A Job whose controller does not know the pod yet creates another one, and deletes one of the two.
    """
    name = pod["metadata"]["name"]

    def noticed(seen: Snapshot) -> bool:
        return any(
            pod["status"].get("containerStatuses")
            or pods.condition(pod, "PodScheduled").get("status") == "False"
            for pod in seen["Pod"].values()
        )

    with contextlib.suppress(WaitTimeout):  # its controllers have had their time
        wait(
            watch_objects(kube, WatchSpec("Pod", fields=f"metadata.name={name}")),
            until=noticed,
            timeout=NOTICED_SECONDS,
            what=f'the node to report pod "{name}"',
            about=about,
            resume="launch it again",
        )


def _check_claims_and_secrets(kube: Kube, job: Job, *, about: str) -> None:
    """Raise BadInput for a missing volume or Secret: pods would wait for it forever."""
    for claim in job.claims:
        if kube.find("PersistentVolumeClaim", claim) is None:
            fix = f'cluster.create_volume("{claim}"); cluster.volumes() lists the existing ones'
            raise BadInput(f'there is no volume "{claim}"', about=about, fix=fix)
    for secret in job.secrets:
        if kube.find("Secret", secret) is None:
            raise BadInput(
                f'there is no Secret "{secret}"',
                about=about,
                fix=f"kubectl create secret generic {secret} --from-literal=AWS_ACCESS_KEY_ID=…\n"
                f"or, for an image: kubectl create secret docker-registry {secret} --docker-server=… "
                "--docker-username=… --docker-password=…",
            )
