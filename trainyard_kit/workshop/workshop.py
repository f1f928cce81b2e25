"""The verbs of a workshop: create, add, remove, list, watch and delete attendees, in parallel.

Everything is found by its label, so a new kernel on another machine can list, add and delete. The objects
of one attendee are in `attendees`.
"""

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, as_completed
from dataclasses import dataclass, fields
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
MAX_ATTENDEES, AT_ONCE = 500, 8
log = logging.getLogger("trainyard")


@dataclass(frozen=True)
class Workshop:
    """A workshop that `create` made.

    Attributes:
        attendees: All attendees.
        handout: A zip file with a folder for each: a kubeconfig, and a page with instructions.
        facts: What was created, and what needs attention.
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

    Idempotent: called again, it continues where it stopped, and writes new kubeconfigs.

    Args:
        attendees: Their number, with the names ``01``, ``02`` …; or their names.
        cluster: The cluster, or its name.
        datasets: Datasets to provide, read-only, in every namespace; with options of
            `prepare_dataset`, as ``{"cifar10": {"limit": 2000}}``.
        jupyter: ``kit.workshop.Jupyter()`` runs a JupyterLab in a pod for each, behind a token; by default
            their notebooks run on machines of their own, with the kubeconfig.
        hours: How long the kubeconfigs are valid.
        scale: Add missing nodes, if the provider can, after a confirmation of their price.
        confirm: Accept that price without a prompt.
        quota: ``cpu="1"``, ``memory="4Gi"``, ``pods=20``, ``gpus=0`` for each attendee.

    Raises:
        BadInput: A name or a quantity is invalid, or the cluster lacks an image; nothing was created.
        NotConfirmed: The price of the nodes was not confirmed; nothing was created.
        Rejected: This user may not create namespaces or admission policies.

    Example:
        >>> kit.workshop.create(attendees=30, datasets=["mnist"], cluster="workshop")
    """
    people, each_may = _people(attendees), limits(quota)
    on = connect(cluster) if isinstance(cluster, str) else cluster
    if jupyter is not None:
        jupyter.check(on)
    on.trainer_image()  # else every attendee's first job would fail
    survey = capacity.survey(on, len(people), each_may)
    sentence = capacity.ensure(on, survey, scale=scale, confirm=confirm)
    by_dataset = datasets if isinstance(datasets, Mapping) else {dataset: {} for dataset in datasets}
    staged = staging.stage(on, by_dataset) if by_dataset else None
    created = _add_all(on, people, each_may, hours, staged, jupyter)
    path = _hand_out(on, created, jupyter)
    facts = [
        *_facts(created, each_may, path),
        ("capacity", *sentence),
        ("network", *capacity.network(on)),
        ("data", *((staged.said, "read-only") if staged else ("none", 'datasets=["mnist"] stages them'))),
        ("jupyter", *capacity.place_of_notebooks(on, jupyter)),
    ]
    return Workshop(tuple(created), path, Table(("what", "is", "note"), facts))


def _hand_out(on: Cluster, created: Sequence[Attendee], jupyter: Jupyter | None) -> Path:
    lines = {
        attendee.name: jupyter.lines(on.kube.within(attendee.namespace), attendee)
        for attendee in created
        if jupyter
    }
    return write_handout(on.name, created, jupyter=lines)


def _facts(created: Sequence[Attendee], each_may: Quota, path: Path) -> list[tuple[str, str, str]]:
    """Describe the attendees, their kubeconfigs and what each may use."""
    first, last = created[0].name, created[-1].name
    return [
        ("attendees", f"{len(created)}: {first} to {last}" if created[1:] else first, ""),
        ("kubeconfigs", str(path), f"a key for each, until {min(attendee.expires for attendee in created)}"),
        ("quota of each", ", ".join(f"{key} {value}" for key, value in vars(each_may).items()), ""),
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
    """Create a namespace, a quota and a kubeconfig for one attendee, with the datasets that the others have.

    Idempotent: called again, it creates a new token and updates the quota.

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
    on = connect(cluster) if isinstance(cluster, str) else cluster
    (attendee,) = _add_all(on, [name], limits(quota), hours, staging.staged(on), jupyter)
    return attendee


@checked
def remove(name: str, *, cluster: Cluster | str = config.DEFAULT_CLUSTER) -> None:
    """Delete the namespace of an attendee with all that is in it; idempotent."""
    _remove(connect(cluster) if isinstance(cluster, str) else cluster, name)


@checked
def list_attendees(*, cluster: Cluster | str = config.DEFAULT_CLUSTER) -> Table:
    """List the attendees of a cluster, with what each uses of their quota."""
    return attendees.table((connect(cluster) if isinstance(cluster, str) else cluster).kube)


@checked
def status(*, cluster: Cluster | str = config.DEFAULT_CLUSTER) -> Table:
    """List the attendees with the notebook and cell that each is at, and pods that fail and why.

    The kernel of an attendee's notebook reports its progress to a ConfigMap of their namespace.

    Example:
        >>> kit.workshop.status()
    """
    on = connect(cluster) if isinstance(cluster, str) else cluster
    everywhere = on.kube.within("")
    statuses = attendee_status.statuses(
        everywhere.get_all("Namespace", labels=LABEL),
        everywhere.get_all("ConfigMap", labels=LABEL, fields=f"metadata.name={CONFIG_MAP}"),
        everywhere.get_all("Pod"),
        label=LABEL,
    )
    return attendee_status.table(statuses)


@checked
def watch(*, cluster: Cluster | str = config.DEFAULT_CLUSTER, minutes: float = 600) -> "WorkshopWatch":
    """Show the table of `status` live, with a picture of all attendees' progress.

    Returns:
        A watch, which displays itself; ``stop()`` ends it, ``save("workshop.png")`` writes its picture.
    """
    from trainyard_kit.workshop.widget import WorkshopWatch  # numpy and matplotlib take half a second

    on = connect(cluster) if isinstance(cluster, str) else cluster
    return WorkshopWatch(on.kube, label=LABEL, minutes=minutes).start()


@checked
def delete(*, cluster: Cluster | str = config.DEFAULT_CLUSTER) -> Table:
    """Delete every attendee's namespace with all that is in it, their kubeconfigs, and the staged datasets.

    Idempotent. The cluster stays, and so do all other objects.

    Returns:
        The remaining attendees: an empty table.
    """
    on = connect(cluster) if isinstance(cluster, str) else cluster
    kube = on.kube
    names = [namespace["metadata"]["labels"][LABEL] for namespace in kube.get_all("Namespace", labels=LABEL)]
    for attendee in names:  # all end at the same time; waiting takes longest
        kube.delete("Namespace", attendees.namespace_of(attendee))
    _at_once(lambda name: _remove(on, name), names, title="workshop", verb="left")
    attendees.delete_volumes(kube)  # of those whose namespace was gone before
    staging.delete(on)
    attendees.delete_policy(on.kube)
    delete_kubeconfigs(on.name)
    return attendees.table(kube)


def _people(requested: int | Sequence[str]) -> list[str]:
    if isinstance(requested, int) or not isinstance(requested, Iterable) or isinstance(requested, str):
        count = check_count(requested, what="attendees", least=1, most=MAX_ATTENDEES)
        return [f"{number:02}" for number in range(1, count + 1)]
    people = list(dict.fromkeys(requested))
    if not people:
        raise BadInput(
            "no attendee is named", about="attendees=[]", fix='`attendees=["ada", "bob"]`, or `attendees=30`'
        )
    for attendee in people:
        names.validate_name(attendee, kind="attendee", longest=attendees.LONGEST_NAME)
    return people


def limits(options: Mapping[str, Any]) -> Quota:
    """Validate the keyword arguments of a quota."""
    known = [field.name for field in fields(Quota)]
    if unknown := sorted(set(options) - set(known)):
        raise BadInput(
            f"a workshop has no {', '.join(unknown)}",
            about=f"{unknown[0]}=…",
            fix=f"a quota has {', '.join(known)}",
        )
    return Quota(**options)


def _remove(on: Cluster, name: str) -> None:
    on.revoke_pod_access(attendees.namespace_of(name))
    attendees.delete(on.kube, name)


def _add_all(
    on: Cluster,
    people: Sequence[str],
    quota: Quota,
    hours: float,
    staged: Staged | None,
    jupyter: Jupyter | None,
) -> list[Attendee]:
    if isinstance(on, LocalCluster) and on.is_plain:
        log.warning('cluster "%s": %s', on.name, capacity.PLAIN)
    attendees.apply_policy(on.kube)

    def make(name: str) -> Attendee:
        attendee = attendees.create(on.kube, name, quota=quota, hours=hours)
        on.grant_pod_access(attendee.namespace)
        if staged is not None:
            staged.share(on.kube.within(attendee.namespace), labels={LABEL: name})
        if jupyter is not None:
            jupyter.apply(on.kube.within(attendee.namespace), attendee)
        return attendee

    return _at_once(make, people, title="workshop", verb="are ready")


def _at_once(work: Callable[[str], Result], people: Sequence[str], *, title: str, verb: str) -> list[Result]:
    """Call ``work`` for each name in a thread pool; results in the order of the names."""

    def quietly(name: str) -> Result:
        with shown_elsewhere():  # a thread's output would appear in another cell
            return work(name)

    with progress(title) as line, ThreadPoolExecutor(AT_ONCE, thread_name_prefix=title) as threads:
        pending, refusals = [threads.submit(quietly, attendee) for attendee in people], list[Rejected]()
        try:
            for done, future in enumerate(as_completed(pending), 1):
                if refusal := _refusal(
                    future
                ):  # of one attendee's objects, which need not hold up the others'
                    refusals.append(refusal)
                line.update(f"{done - len(refusals)} of {len(people)} {verb}")
        except BaseException as error:
            threads.shutdown(cancel_futures=True)
            if isinstance(error, KeyboardInterrupt):
                raise Interrupted(
                    "stopped; created objects are kept", about=title, fix="call it again to continue"
                ) from error
            raise
        if refusals:
            raise refusals[0]
        line.done(f"{len(people)} of {len(people)} {verb}")
    return [future.result() for future in pending]


def _refusal(ended: Future[Any]) -> Rejected | None:
    """Get the API server's refusal with which it ended; raise any other error."""
    try:
        ended.result()
    except Rejected as error:
        return error
    return None
