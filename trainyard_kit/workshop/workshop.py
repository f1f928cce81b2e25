"""The verbs of a workshop: create, add, remove, list, watch and delete attendees, in parallel.

Objects are found by label, so any machine can list, add and delete attendees. The objects of one attendee are
in `attendees`.
"""

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, as_completed
from dataclasses import dataclass, fields
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from kitlib import config
from kitlib.clusters import Cluster, connect
from kitlib.clusters.cleanup import delete_kubeconfigs
from kitlib.clusters.local import LocalCluster
from kitlib.display.progress import progress, shown_elsewhere
from kitlib.display.signatures import checked
from kitlib.display.tables import Table
from kitlib.errors import BadInput, Interrupted, Rejected
from kitlib.k8s import names
from kitlib.k8s.quantities import check_count
from trainyard_kit.workshop import attendee_status, attendees, capacity, staging
from trainyard_kit.workshop.attendees import LABEL, Attendee, Quota, write_handout
from trainyard_kit.workshop.jupyter import Jupyter
from trainyard_kit.workshop.progress_reporter import CONFIG_MAP
from trainyard_kit.workshop.staging import Staged

if TYPE_CHECKING:
    from trainyard_kit.workshop.widget import WorkshopWatch

Result = TypeVar("Result")
MAX_ATTENDEES, WORKERS = 500, 8
log = logging.getLogger("trainyard")


@dataclass(frozen=True)
class Workshop:
    """A created workshop.

    Attributes:
        attendees: All attendees.
        handout: A zip file with a folder for each attendee: a kubeconfig, and instructions.
        facts: A summary of what was created, and what needs attention.
    """

    attendees: tuple[Attendee, ...]
    handout: Path
    facts: Table

    def __repr__(self) -> str:
        return repr(self.facts)

    def _repr_html_(self) -> str:
        return self.facts._repr_html_()


@checked
def create(
    attendees: int | Sequence[str] = 10,
    *,
    cluster: Cluster | str = config.DEFAULT_CLUSTER,
    datasets: Sequence[str] | Mapping[str, Mapping[str, Any]] = (),
    jupyter: Jupyter | None = None,
    hours: float = 12,
    scale: bool = False,
    confirm: bool = False,
    **quota: object,
) -> Workshop:
    """Create a namespace with quota, role, kubeconfig and datasets for each attendee.

    Idempotent: a second call resumes an interrupted one, and writes new kubeconfigs.

    Args:
        attendees: Their number, which names them ``01``, ``02``, …; or their names.
        cluster: The cluster, or its name.
        datasets: Datasets to share read-only with all namespaces; with options of `prepare_dataset`, as
            ``{"cifar10": {"limit": 2000}}``.
        jupyter: ``kit.workshop.Jupyter()`` runs a JupyterLab pod for each attendee, protected by a token;
            by default notebooks run on attendees' own machines, with the kubeconfig.
        hours: How long the kubeconfigs are valid.
        scale: Add missing nodes, if the provider can, after confirmation of the cost.
        confirm: Accept that cost without a prompt.
        quota: ``cpu="1"``, ``memory="4Gi"``, ``pods=20``, ``gpus=0`` for each attendee.

    Raises:
        BadInput: A name or a quantity is invalid, or the cluster has no trainer image; nothing was created.
        NotConfirmed: The cost of the nodes was not confirmed; nothing was created.
        Rejected: This user may not create namespaces or admission policies.

    Example:
        >>> kit.workshop.create(attendees=30, datasets=["mnist"], cluster="workshop")
    """
    attendee_names, attendee_quota = _attendee_names(attendees), limits(quota)
    cluster = connect(cluster) if isinstance(cluster, str) else cluster
    if jupyter is not None:
        jupyter.check(cluster)
    cluster.trainer_image()  # raises if attendees' jobs would have no image
    survey = capacity.survey(cluster, len(attendee_names), attendee_quota)
    capacity_facts = capacity.ensure(cluster, survey, scale=scale, confirm=confirm)
    by_dataset = datasets if isinstance(datasets, Mapping) else {dataset: {} for dataset in datasets}
    staged = staging.stage(cluster, by_dataset) if by_dataset else None
    created = _add_all(cluster, attendee_names, attendee_quota, hours, staged, jupyter)
    path = _write_handout(cluster, created, jupyter)
    facts = [
        *_facts(created, attendee_quota, path),
        ("capacity", *capacity_facts),
        ("network", *capacity.network(cluster)),
        ("data", *((str(staged), "read-only") if staged else ("none", 'datasets=["mnist"] stages them'))),
        ("jupyter", *capacity.notebook_location(cluster, jupyter)),
    ]
    return Workshop(tuple(created), path, Table(("item", "value", "note"), facts))


def _write_handout(cluster: Cluster, created: Sequence[Attendee], jupyter: Jupyter | None) -> Path:
    instructions = {
        attendee.name: jupyter.instructions(cluster.kube.in_namespace(attendee.namespace), attendee)
        for attendee in created
        if jupyter
    }
    return write_handout(cluster.name, created, jupyter=instructions)


def _facts(created: Sequence[Attendee], quota: Quota, path: Path) -> list[tuple[str, str, str]]:
    """Describe the attendees, their kubeconfigs and their quota."""
    first, last = created[0].name, created[-1].name
    return [
        ("attendees", f"{len(created)}: {first} to {last}" if created[1:] else first, ""),
        ("kubeconfigs", str(path), f"one for each, valid until {min(item.expires for item in created)}"),
        ("quota of each", ", ".join(f"{key} {value}" for key, value in vars(quota).items()), ""),
    ]


@checked
def add(
    name: str,
    *,
    cluster: Cluster | str = config.DEFAULT_CLUSTER,
    jupyter: Jupyter | None = None,
    hours: float = 12,
    **quota: object,
) -> Attendee:
    """Create a namespace, a quota and a kubeconfig for one attendee, with the workshop's datasets.

    Idempotent: a second call creates a new token and updates the quota.

    Args:
        name: Name of the attendee: a-z, 0-9 and -.
        cluster: The cluster, or its name.
        jupyter: As for `create`.
        hours: How long the kubeconfig is valid.
        quota: ``cpu="1"``, ``memory="4Gi"``, ``pods=20``, ``gpus=0``.

    Example:
        >>> ada = kit.workshop.add("ada", cpu="2")
        >>> kit.connect("ada", kubeconfig=ada.kubeconfig)
    """
    cluster = connect(cluster) if isinstance(cluster, str) else cluster
    (attendee,) = _add_all(cluster, [name], limits(quota), hours, staging.staged(cluster), jupyter)
    return attendee


@checked
def remove(name: str, *, cluster: Cluster | str = config.DEFAULT_CLUSTER) -> None:
    """Delete the namespace of an attendee and its contents; idempotent."""
    _remove(connect(cluster) if isinstance(cluster, str) else cluster, name)


@checked
def list_attendees(*, cluster: Cluster | str = config.DEFAULT_CLUSTER) -> Table:
    """List the attendees of a cluster, with the usage of their quotas."""
    return attendees.table((connect(cluster) if isinstance(cluster, str) else cluster).kube)


@checked
def status(*, cluster: Cluster | str = config.DEFAULT_CLUSTER) -> Table:
    """List the attendees with their current notebook and cell, and failing pods with the reason.

    The kernel of an attendee's notebook reports its progress to a ConfigMap in their namespace.

    Example:
        >>> kit.workshop.status()
    """
    cluster = connect(cluster) if isinstance(cluster, str) else cluster
    all_namespaces = cluster.kube.in_namespace("")
    statuses = attendee_status.statuses(
        all_namespaces.get_all("Namespace", labels=LABEL),
        all_namespaces.get_all("ConfigMap", labels=LABEL, fields=f"metadata.name={CONFIG_MAP}"),
        all_namespaces.get_all("Pod"),
    )
    return attendee_status.table(statuses)


@checked
def watch(*, cluster: Cluster | str = config.DEFAULT_CLUSTER, minutes: float = 600) -> "WorkshopWatch":
    """Show `status` live, with a picture of all attendees' progress.

    Returns:
        A watch, which displays itself; ``stop()`` stops it, ``save("workshop.png")`` saves its picture.
    """
    from trainyard_kit.workshop.widget import WorkshopWatch  # numpy and matplotlib take half a second

    cluster = connect(cluster) if isinstance(cluster, str) else cluster
    return WorkshopWatch(cluster.kube, minutes=minutes).start()


@checked
def delete(*, cluster: Cluster | str = config.DEFAULT_CLUSTER) -> Table:
    """Delete all attendees' namespaces, their kubeconfigs, and the staged datasets.

    Idempotent. The cluster and all other objects are kept.

    Returns:
        The remaining attendees: an empty table.
    """
    cluster = connect(cluster) if isinstance(cluster, str) else cluster
    kube = cluster.kube
    names = [namespace["metadata"]["labels"][LABEL] for namespace in kube.get_all("Namespace", labels=LABEL)]
    for attendee in names:  # start all deletions before waiting for each
        kube.delete("Namespace", attendees.namespace_of(attendee))
    _for_each(partial(_remove, cluster), names, verb="are removed")
    attendees.delete_volumes(kube)  # also those of namespaces that were deleted before
    staging.delete(cluster)
    attendees.delete_policy(cluster.kube)
    delete_kubeconfigs(cluster.name)
    return attendees.table(kube)


def _attendee_names(requested: int | Sequence[str]) -> list[str]:
    if isinstance(requested, int) or not isinstance(requested, Iterable) or isinstance(requested, str):
        count = check_count(requested, what="attendees", least=1, most=MAX_ATTENDEES)
        return [f"{number:02}" for number in range(1, count + 1)]
    attendee_names = list(dict.fromkeys(requested))
    if not attendee_names:
        fix = '`attendees=["ada", "bob"]`, or `attendees=30`'
        raise BadInput("no attendee is named", about="attendees=[]", fix=fix)
    for name in attendee_names:
        names.validate_name(name, kind="attendee", longest=attendees.LONGEST_NAME)
    return attendee_names


def limits(options: Mapping[str, Any]) -> Quota:
    """Validate the keyword arguments of a quota."""
    known = [field.name for field in fields(Quota)]
    if unknown := sorted(set(options) - set(known)):
        fix = f"a quota has {', '.join(known)}"
        raise BadInput(f"a workshop has no {', '.join(unknown)}", about=f"{unknown[0]}=…", fix=fix)
    return Quota(**options)


def _remove(cluster: Cluster, name: str) -> None:
    cluster.revoke_pod_access(attendees.namespace_of(name))
    attendees.delete(cluster.kube, name)


def _add_all(
    cluster: Cluster,
    attendee_names: Sequence[str],
    quota: Quota,
    hours: float,
    staged: Staged | None,
    jupyter: Jupyter | None,
) -> list[Attendee]:
    if isinstance(cluster, LocalCluster) and cluster.is_plain:
        log.warning('cluster "%s": %s', cluster.name, capacity.PLAIN)
    attendees.apply_policy(cluster.kube)

    def create_attendee(name: str) -> Attendee:
        attendee = attendees.create(cluster.kube, name, quota=quota, hours=hours)
        cluster.grant_pod_access(attendee.namespace)
        if staged is not None:
            staged.share(cluster.kube.in_namespace(attendee.namespace), labels={LABEL: name})
        if jupyter is not None:
            jupyter.apply(cluster.kube.in_namespace(attendee.namespace), attendee)
        return attendee

    return _for_each(create_attendee, attendee_names, verb="are ready")


def _for_each(function: Callable[[str], Result], attendee_names: Sequence[str], *, verb: str) -> list[Result]:
    """Call ``function`` for each name in a thread pool; return the results in the order of the names."""

    def call(name: str) -> Result:
        with shown_elsewhere():  # a thread's output would appear in another cell
            return function(name)

    total = len(attendee_names)
    with progress("workshop") as line, ThreadPoolExecutor(WORKERS, thread_name_prefix="workshop") as pool:
        futures, rejections = [pool.submit(call, name) for name in attendee_names], list[Rejected]()
        try:
            for done, future in enumerate(as_completed(futures), 1):
                if rejection := _rejection(future):  # continue with the other attendees
                    rejections.append(rejection)
                line.update(f"{done - len(rejections)} of {total} {verb}")
        except BaseException as error:
            pool.shutdown(cancel_futures=True)
            if isinstance(error, KeyboardInterrupt):
                what, fix = "stopped; created objects are kept", "call it again to continue"
                raise Interrupted(what, about="workshop", fix=fix) from error
            raise
        if rejections:
            raise rejections[0]
        line.done(f"{total} of {total} {verb}")
    return [future.result() for future in futures]


def _rejection(future: Future[Any]) -> Rejected | None:
    """Return the API server's rejection, if any; raise other errors."""
    try:
        future.result()
    except Rejected as error:
        return error
    return None
