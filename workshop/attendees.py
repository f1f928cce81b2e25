"""A room for each attendee of a workshop, all at once: made, looked at, and deleted.

Everything is found again by its label, so that a fresh kernel on another machine can look, add and delete.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from pathlib import Path

from kitlib import config
from kitlib.clusters import Cluster, connect
from kitlib.display.progress import progress, shown_elsewhere
from kitlib.display.tables import Table
from kitlib.errors import BadInput, Interrupted
from kitlib.k8s import names
from kitlib.k8s.quantities import check_count
from workshop import attendee_status, capacity, handout, staging
from workshop import namespaces as attendees
from workshop.jupyter import Jupyter
from workshop.namespaces import LABEL, Attendee, Quota
from workshop.progress_reporter import PLACE
from workshop.staging import Staged

QUOTA = {"cpu": "1", "memory": "4Gi", "pods": 20, "gpus": 0}  # of one, who runs one notebook at a time
MOST, AT_ONCE = 500, 8


@dataclass(frozen=True)
class Workshop:
    """What `create` made.

    Attributes:
        attendees: Everybody.
        handout: A zip file with a folder for each: a kubeconfig, and a page that says what to do with it.
        facts: What was made, and what is not as it should be.
    """

    attendees: tuple[Attendee, ...]
    handout: Path
    facts: Table

    def __repr__(self) -> str:
        return repr(self.facts)

    def _repr_html_(self) -> str:
        return self.facts._repr_html_()


def create(
    attendees: int | Sequence[str] = 10,
    *,
    cluster: Cluster | str = config.DEFAULT_CLUSTER,
    datasets: Sequence[str] | Mapping[str, Mapping] = (),
    jupyter: Jupyter | None = None,
    hours: float = 12,
    scale: bool = False,
    confirm: bool = False,
    **quota: object,
) -> Workshop:
    """Make a room for each attendee: a namespace with quota and role, a kubeconfig, the data of the course.

    Repeated, it goes on where it stopped, and gives everybody a new kubeconfig.

    Args:
        attendees: How many, who are then called ``01``, ``02`` …; or their names.
        cluster: The cluster, or its name.
        datasets: Which to have ready, read-only, in every namespace; with options of
            `prepare_dataset`, as ``{"cifar10": {"limit": 2000}}``.
        jupyter: ``kit.workshop.Jupyter()`` runs a JupyterLab in a pod for each, behind a token; by default
            their notebooks run on machines of their own, with the kubeconfig.
        hours: How long the kubeconfigs work.
        scale: Add the nodes that are missing, where the provider can: it shows their price, and asks.
        confirm: That price is agreed to; nobody is asked.
        quota: ``cpu="1"``, ``memory="4Gi"``, ``pods=20``, ``gpus=0`` of each.

    Raises:
        BadInput: A name or a quantity cannot be used; nothing was made.
        NotConfirmed: The price of the nodes was not agreed to; nothing was made.
        Rejected: This user may not make namespaces.

    Example:
        >>> kit.workshop.create(attendees=30, datasets=["mnist"], cluster="workshop")
    """
    people, each_may = _people(attendees), limits(quota)
    on = connect(cluster) if isinstance(cluster, str) else cluster
    if jupyter is not None:
        jupyter.check(on)
    found = capacity.survey(on, len(people), each_may)
    said = capacity.room_for_all(on, found, scale=scale, confirm=confirm)
    wanted = datasets if isinstance(datasets, Mapping) else {each: {} for each in datasets}
    staged = staging.stage(on, wanted) if wanted else None
    made = _add_all(on, people, each_may, hours, staged, jupyter)
    lines = {each.name: jupyter.lines(on.kube.within(each.namespace), each) for each in made if jupyter}
    path = handout.write(on.name, made, jupyter=lines)
    facts = [
        (
            "attendees",
            f"{len(made)}: {made[0].name} to {made[-1].name}" if len(made) > 1 else made[0].name,
            "",
        ),
        ("kubeconfigs", str(path), f"a key for each, until {min(each.expires for each in made)}"),
        ("quota of each", ", ".join(f"{key} {value}" for key, value in vars(each_may).items()), ""),
        ("room", *said),
        ("network", *capacity.network(on)),
        ("data", *((staged.said, "read-only") if staged else ("none", 'datasets=["mnist"] stages them'))),
        ("jupyter", *capacity.place_of_notebooks(on, jupyter)),
    ]
    return Workshop(tuple(made), path, Table(("what", "is", "note"), facts))


def add(
    name: str,
    *,
    cluster: Cluster | str = config.DEFAULT_CLUSTER,
    jupyter: Jupyter | None = None,
    hours: float = 12,
    **quota: object,
) -> Attendee:
    """Make a room for somebody who comes late, with the data that the others have.

    Example:
        >>> kit.workshop.add("late-lena").kubeconfig
    """
    on = connect(cluster) if isinstance(cluster, str) else cluster
    (made,) = _add_all(on, [name], limits(quota), hours, staging.staged(on), jupyter)
    return made


def status(*, cluster: Cluster | str = config.DEFAULT_CLUSTER) -> Table:
    """Return who is at which notebook, and whose pods fail and why: a row for each attendee.

    Where a notebook is, its kernel writes into the namespace of its attendee, by itself.

    Example:
        >>> kit.workshop.status()
    """
    on = connect(cluster) if isinstance(cluster, str) else cluster
    everywhere = on.kube.within("")
    found = attendee_status.seats(
        everywhere.get_all("Namespace", labels=LABEL),
        everywhere.get_all("ConfigMap", labels=LABEL, fields=f"metadata.name={PLACE}"),
        everywhere.get_all("Pod"),
        label=LABEL,
    )
    return attendee_status.table(found)


def watch(*, cluster: Cluster | str = config.DEFAULT_CLUSTER, minutes: float = 600):
    """Return the table of `status` as it changes, and a picture of how far everybody is.

    Returns:
        A watch, which shows itself; ``stop()`` ends it, ``save("workshop.png")`` writes its picture.
    """
    from workshop.widget import WorkshopWatch  # numpy and matplotlib take half a second

    on = connect(cluster) if isinstance(cluster, str) else cluster
    return WorkshopWatch(on.kube, label=LABEL, minutes=minutes).start()


def delete(*, cluster: Cluster | str = config.DEFAULT_CLUSTER) -> Table:
    """Delete every attendee's namespace with all that is in it, their kubeconfigs, and the staged data.

    Safe to call again. The cluster stays, and what is not the workshop's.

    Returns:
        The attendees that are left: none.
    """
    on = connect(cluster) if isinstance(cluster, str) else cluster
    kube = on.kube
    every = [each["metadata"]["labels"][LABEL] for each in kube.get_all("Namespace", labels=LABEL)]
    for each in every:  # all get the signal at once; what takes long is waiting
        kube.delete("Namespace", attendees.namespace_of(each))
    _at_once(on.remove_attendee, every, title="workshop", said="left")
    attendees.delete_volumes(kube)  # of those whose namespace was gone before
    staging.delete(on)
    attendees.kubeconfig(on.name, "any").with_name(handout.FILE).unlink(missing_ok=True)
    return attendees.table(kube)


def _people(given: int | Sequence[str]) -> list[str]:
    if isinstance(given, int) or not isinstance(given, Iterable) or isinstance(given, str):
        count = check_count(given, what="attendees", least=1, most=MOST)
        return [f"{number:02}" for number in range(1, count + 1)]
    people = list(dict.fromkeys(given))
    if not people:
        raise BadInput(
            "nobody is named", about="attendees=[]", fix='attendees=["ada", "bob"], or attendees=30'
        )
    for each in people:
        names.check(each, kind="attendee", longest=attendees.LONGEST_NAME)
    return people


def limits(given: Mapping[str, object]) -> Quota:
    unknown = set(given) - set(QUOTA)
    if unknown:
        raise BadInput(
            f"a workshop has no {', '.join(sorted(unknown))}",
            about=f"{sorted(unknown)[0]}=…",
            fix=f"a quota has {', '.join(QUOTA)}",
        )
    return Quota(**(QUOTA | dict(given)))


def _add_all(
    on: Cluster,
    people: Sequence[str],
    quota: Quota,
    hours: float,
    staged: Staged | None,
    jupyter: Jupyter | None,
) -> list[Attendee]:
    def make(name: str) -> Attendee:
        made = attendees.add(on.kube, name, quota=quota, hours=hours)
        on.open_room(made.namespace)
        if staged is not None:
            staged.share(on.kube.within(made.namespace), labels={LABEL: name})
        if jupyter is not None:
            jupyter.apply(on.kube.within(made.namespace), made)
        return made

    return _at_once(make, people, title="workshop", said="have a room")


def _at_once(work: Callable, people: Sequence[str], *, title: str, said: str) -> list:
    """Do something for everybody, several at a time, and return what came of it in their order."""

    def quietly(name: str):
        with shown_elsewhere():  # a thread's output would land in somebody's cell
            return work(name)

    with progress(title) as line, ThreadPoolExecutor(AT_ONCE, thread_name_prefix=title) as threads:
        begun = [threads.submit(quietly, each) for each in people]
        try:
            for done, each in enumerate(as_completed(begun), 1):
                each.result()
                line.update(f"{done} of {len(people)} {said}")
        except BaseException as error:
            threads.shutdown(cancel_futures=True)
            if isinstance(error, KeyboardInterrupt):
                raise Interrupted(
                    "stopped; what is made stays", about=title, fix="the same call goes on where it was"
                ) from error
            raise
        line.done(f"{len(people)} of {len(people)} {said}")
    return [each.result() for each in begun]
