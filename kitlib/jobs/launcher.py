"""`launch`: check a job's objects against a cluster, then create them all, or none."""

import contextlib
import copy
import logging
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Unpack

from kitlib import config
from kitlib.clusters import Cluster, connect
from kitlib.clusters.trainer_image import missing_tag
from kitlib.display.signatures import checked
from kitlib.display.tables import parse_time
from kitlib.errors import BadInput, ClusterUnreachable, KitError, Rejected, RunExists, WaitTimeout, plain
from kitlib.jobs import checks
from kitlib.jobs.base import Job, JobArguments, TrainingJob
from kitlib.jobs.indexed_job import IndexedJob
from kitlib.jobs.rendezvous_check import find_missing_rendezvous
from kitlib.jobs.resources import IDLE_GPUS_VARIABLE, check_room
from kitlib.k8s import images, names, pods
from kitlib.k8s.client import Kube
from kitlib.k8s.manifests import Object, merge
from kitlib.k8s.priority import ensure_priority_class
from kitlib.k8s.wait import wait
from kitlib.k8s.watch import Snapshot, WatchSpec, watch_objects
from kitlib.plugins import load_all, require_extra
from kitlib.runs.run import Run
from kitlib.runs.status import RunObjects, find_main

log: logging.Logger = logging.getLogger(__name__)
NOTICED_SECONDS = 10
IDLE_GPUS = ("warn", "fail", "allow")
LAUNCH_SECONDS = 30  # from a launch's first object to its main object


class LaunchArguments(JobArguments, total=False):
    """The arguments of an `IndexedJob`."""

    nodes: int
    launcher: str


@checked(options=IndexedJob.__init__)
def launch(
    job: Job | str | Path | Callable[..., object] | None = None,
    *,
    cluster: Cluster | str = config.DEFAULT_CLUSTER,
    replace: bool = False,
    must_fit: bool = False,
    idle_gpus: str = "warn",
    **options: Unpack[LaunchArguments],
) -> Run:
    """Create a job's objects in a cluster and return the run.

    A program or a function is launched as an `IndexedJob`. `torchrun` runs one on this machine.

    Args:
        job: The job; or the path of a program, or a function, with the arguments of an `IndexedJob`.
        cluster: The cluster, or its name.
        replace: Delete an earlier run of this name first, and wait until its pods are gone. All checks come
            before that: what is refused leaves the earlier run as it is.
        must_fit: Refuse pods that are larger than every node of a local cluster; by default they are created,
            with a warning, and wait.
        idle_gpus: What to do if pods with GPUs train on the CPU: "warn", "fail" or "allow".
            It fails at the end of its ranks; elastic ones and other images, when `Run.wait` reads the logs.
        options: Arguments of an `IndexedJob`: ``nodes=4, args={"epochs": 2}``.

    Raises:
        BadInput: The cluster is at a cloud, and no image was built for it; or an argument is invalid.
        RunExists: A run of this name exists, and ``replace`` is False.
        LaunchRejected: The API server rejected an object; the others were deleted again.

    Example:
        >>> run = launch("train.py", nodes=4)
        >>> launch(train, nodes=4, args={"epochs": 2})
        >>> launch(module="engine.train", nodes=4)
    """
    _check_arguments(job, options)
    if idle_gpus not in IDLE_GPUS:
        fix = '`idle_gpus="warn"`, `"fail"` or `"allow"`'
        raise BadInput("idle_gpus has no such value", about=f"idle_gpus={idle_gpus!r}", fix=fix)
    if not isinstance(job, Job):
        job = IndexedJob(job, **options)
    target = connect(cluster) if isinstance(cluster, str) else cluster
    notes = {} if idle_gpus == "warn" else {names.IDLE_GPUS: idle_gpus}
    if idle_gpus == "fail" and isinstance(job, TrainingJob) and not getattr(job, "limits", None):
        job = copy.copy(job)
        job.env = [*job.env, {"name": IDLE_GPUS_VARIABLE, "value": idle_gpus}]
    return _launch_on(target, job, replace=replace, must_fit=must_fit, notes=notes)


def _launch_on(cluster: Cluster, job: Job, *, replace: bool, must_fit: bool, notes: Mapping[str, str]) -> Run:
    kube, named, job = cluster.announce_end().kube, job.settings.image, job.bind(cluster)
    if problem := _warn_of_missing_rendezvous(job):
        notes = {**notes, names.RANKS_ALONE: problem}
    objects = job.objects
    if notes:
        objects[-1] = merge(objects[-1], {"metadata": {"annotations": dict(notes)}})
    cluster.show_packages()
    for image in dict.fromkeys(filter(None, (named, *images.named_in(job.patches)))):
        if notice := cluster.image_notice(image):
            log.warning("%s", notice)
    run = Run(kube, job.name, kind=objects[-1]["kind"], cluster=cluster)
    replaced = _earlier(kube, job.name, objects[-1], replace=replace, about=run.about)
    _check(cluster, job, objects, replaced=replaced, must_fit=must_fit, about=run.about)
    if replaced:  # only after all checks
        RunObjects(kube, job.name).delete(only=replaced)
    created: list[Object] = []
    try:
        _create_all(kube, job, objects, created, about=run.about)
    except (KitError, KeyboardInterrupt):
        run.objects.delete(only=created)
        raise
    return run


def _warn_of_missing_rendezvous(job: Job) -> str:
    """Log why the ranks will not meet, where the program's text shows it.

    Returns:
        What is wrong, for the run's main object; empty for nothing.
    """
    what, fix = find_missing_rendezvous(job)
    if not fix or not isinstance(job, TrainingJob) or job.layout is None:
        return what
    warning = f"{job.layout.name}: {what}; {plain(fix)}"
    log.warning("%s", warning)
    return warning


def _earlier(kube: Kube, name: str, main: Object, *, replace: bool, about: str) -> list[Object]:
    """List the objects of an earlier run of this name, which `launch` is to delete."""
    main_object = find_main(kube, name)
    if main_object is not None and not replace:
        raise _exists(about)
    if main_object is not None and (main_object["metadata"].get("labels") or {}).get(names.RUN) != name:
        raise RunExists("something else has the name of this run", about=about, fix="give it another `name=`")
    if not replace:
        return []
    objects = RunObjects(kube, name)
    owned = objects.owned()
    if owned and main_object is None and _await_launch(kube, owned[0], main, about=about):
        owned = objects.owned()
    return owned


def _check(
    cluster: Cluster,
    job: Job,
    objects: Sequence[Object],
    *,
    replaced: Sequence[Object],
    must_fit: bool,
    about: str,
) -> None:
    """Check everything that can be refused; only a PriorityClass is created, and nothing deleted."""
    kube = cluster.kube
    if cluster.provider == "local" and getattr(job, "rendezvous", "") == "etcd":
        require_extra("elastic", about=about)
    checks.check_references(kube, job, objects, about=about)
    checks.check_access_modes(kube, job, objects, about=about)
    if missing := missing_tag(job.image):
        log.warning("%s: %s", about, missing)
    if cluster.provider != "local":  # there the kit's environment stands in
        checks.warn_of_image(job, about=about)
    for warn in load_all("kitlib.launches"):
        for warning in warn(cluster, objects):
            log.warning("%s: %s", about, warning)
    try:
        check_room(objects, cluster, about=about)
    except BadInput as error:
        if must_fit and cluster.provider == "local":  # elsewhere an autoscaler may add such a node
            raise
        log.warning("%s, so it waits for a larger node. To start it now, %s", error.what, plain(error.fix))
    for priority in job.priorities:
        ensure_priority_class(kube, priority)
    checks.warn_of_policies(kube, job, objects, about=about)
    checks.check_admission(kube, job, objects, replaced=replaced, about=about)


def _exists(about: str) -> RunExists:
    fix = "`kit.launch(job, replace=True)` deletes it first; or give this one another `name=`"
    return RunExists("a run of this name exists", about=about, fix=fix)


def _check_arguments(job: object, options: Mapping[str, object]) -> None:
    if not (isinstance(job, Job | str | Path) or callable(job) or (job is None and "module" in options)):
        example = '`kit.launch("train.py", nodes=4)`, or `kit.launch(kit.IndexedJob("train.py"))`'
        raise BadInput("this is not a job, a program or a function", about=repr(job), fix=example)
    if isinstance(job, Job) and options:
        about, fix = f"{job!r}, {', '.join(options)}", "pass them to the job: `kit.IndexedJob(…, nodes=4)`"
        raise BadInput("a job has its arguments already", about=about, fix=fix)


def _create_all(
    kube: Kube, job: Job, objects: Sequence[Object], created: list[Object], *, about: str
) -> None:
    """Create the objects, and add each to ``created`` as the API server has it."""
    for index, item in enumerate(objects):
        try:
            _create(kube, item, objects[-1], created, about=about)
            if checks.adopts(objects[-1], item):
                _wait_until_noticed(kube, item, about=about)
        except Rejected as error:
            raise checks.launch_error(error, job, objects, index, cluster=kube.cluster) from error


def _create(kube: Kube, item: Object, main: Object, created: list[Object], *, about: str) -> None:
    """Create an object; one that is not the main object may replace one of an earlier run."""
    name = item["metadata"]["name"]
    while True:
        try:
            created.append({"kind": item["kind"], **kube.create(item)})
            return
        except Rejected as error:
            if error.reason != checks.ALREADY_EXISTS:
                raise
        except (KeyboardInterrupt, ClusterUnreachable):  # it may have been created before the answer was lost
            existing = kube.find(item["kind"], name)
            if existing and existing["metadata"].get("labels") == item["metadata"].get("labels"):
                created.append({"kind": item["kind"], **existing})
            raise
        old = checks.check_owner(kube, item, main["metadata"]["labels"][names.RUN])
        if old is None:
            continue
        if item is main or _await_launch(kube, {"kind": item["kind"], **old}, main, about=about):
            raise _exists(about)
        kube.delete(item["kind"], name, uid=old["metadata"]["uid"])


def _await_launch(kube: Kube, item: Object, main: Object, *, about: str) -> bool:
    """Wait while another launch of this name runs; return True if it has created its main object.

    An object of a run without a main object belongs to it, or was left behind, which its age shows.
    """
    kind, name, uid = item["kind"], item["metadata"]["name"], item["metadata"]["uid"]
    age = datetime.now(UTC) - parse_time(item["metadata"]["creationTimestamp"])
    if abs(age.total_seconds()) > LAUNCH_SECONDS:
        return False

    def settled(snapshot: Snapshot) -> bool:
        uids = {item["metadata"]["uid"] for item in snapshot[kind].values()}
        return bool(snapshot[main["kind"]]) or uid not in uids

    main_name = f"metadata.name={main['metadata']['name']}"
    try:
        snapshot = wait(
            watch_objects(
                kube,
                WatchSpec(main["kind"], fields=main_name),
                WatchSpec(kind, fields=f"metadata.name={name}"),
            ),
            until=settled,
            timeout=LAUNCH_SECONDS,
            what="another launch of this name to end",
            about=about,
            resume="launch it again",
        )
    except WaitTimeout:
        return False
    return bool(snapshot[main["kind"]])


def _wait_until_noticed(kube: Kube, pod: Object, *, about: str) -> None:
    """Wait until a pod's node has reported it, or no node has room: the Job that adopts it comes next.

    A Job whose controller does not know the pod yet creates another one, and deletes one of the two.
    """
    name = pod["metadata"]["name"]

    def noticed(snapshot: Snapshot) -> bool:
        return any(
            pod["status"].get("containerStatuses")
            or pods.condition(pod, "PodScheduled").get("status") == "False"
            for pod in snapshot["Pod"].values()
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
