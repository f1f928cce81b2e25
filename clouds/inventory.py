"""What the kit has at the clouds: of every cluster, found by its tags, from any machine.

Each cloud brings `everything.discover`; here they are asked, side by side, and what they say is one table.
Deleting it is in `kitlib.cleanup`.
"""

from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from importlib import import_module

from clouds.prices import Estimate
from clouds.reconciler.resource import Resource, Seen, State
from kitlib.display.progress import progress, shown_elsewhere
from kitlib.display.tables import Table
from kitlib.errors import BadInput, KitError

PROVIDERS = ("eks", "gke")
COLUMNS = ("cluster", "what", "state", "where", "owner", "expires", "costs", "id")
WORKERS = 8
FIRST_REGION = "us-east-1"  # which every account has, and where one may ask for the others


@dataclass(frozen=True)
class Place:
    """Where a cloud is asked: a region, or a project.

    Attributes:
        provider: ``eks`` or ``gke``.
        name: Of the region or project.
        discover: Returns what is there of a cluster, or of all for None.
    """

    provider: str
    name: str
    discover: Callable[[str | None], list[Resource]]


@dataclass(frozen=True)
class Cloud:
    """A provider, and what leads to its places: a call, since already to sign in may fail.

    Attributes:
        provider: ``eks`` or ``gke``.
        places: Returns where it is asked.
        standing: Returns what each cluster of the account or project costs until its end.
    """

    provider: str
    places: Callable[[], list[Place]]
    standing: Callable[[], list[Estimate]] = list


@dataclass(frozen=True)
class Found:
    """One thing that is there."""

    place: Place
    resource: Resource
    seen: Seen

    @property
    def cluster(self) -> str:
        """The cluster it belongs to."""
        return self.resource.tags.cluster if self.resource.tags else ""

    def row(self) -> tuple[object, ...]:
        """Return it in the columns of :data:`COLUMNS`."""
        tags = self.resource.tags
        expires = tags.expires.strftime("%Y-%m-%d %H:%M UTC") if tags and tags.expires else None
        return (
            self.cluster,
            self.resource.name,
            self.seen.state.value,
            self.resource.where or self.place.name,
            tags.owner if tags else None,
            expires,
            self.resource.bills,
            self.seen.id or self.seen.words,
        )


@dataclass(frozen=True)
class Inventory:
    """What there is in the places that were asked, and which of them gave no answer."""

    found: tuple[Found, ...]
    unanswered: tuple[tuple[str, KitError], ...] = ()

    def table(self) -> Table:
        """Return it with a row for each thing, and one for each place that gave no answer."""
        rows = [each.row() for each in self.found]
        rows += [
            (None, f"{where} could not be asked", "unknown", where, None, None, None, error.what)
            for where, error in self.unanswered
        ]
        return Table(COLUMNS, rows, empty="nothing of the kit is at the clouds that were asked")

    def clusters(self) -> list[tuple[Place, str]]:
        """Return every cluster of which something is there, with its place."""
        return list(dict.fromkeys((each.place, each.cluster) for each in self.found))


def list_resources(
    provider: str | None = None,
    *,
    regions: str | Sequence[str] | None = None,
    profile: str | None = None,
    project: str | None = None,
    cluster: str | None = None,
) -> Table:
    """Return all that the kit has at the clouds, found by its tags, whoever made it and from wherever.

    Args:
        provider: ``eks`` or ``gke``; by default both.
        regions: Of AWS: names, or ``"all"``; by default the one that your AWS configuration names.
        profile: Of your AWS configuration.
        project: Of Google Cloud; by default that of your credentials.
        cluster: Only what belongs to the cluster of this name.

    Raises:
        BadInput: There is no such provider, region or profile.
        KitError: None of the clouds could be asked.

    Example:
        >>> list_resources("eks", regions=["eu-central-1", "us-east-1"])
        nothing of the kit is at the clouds that were asked
    """
    chosen = clouds(provider, regions=regions, profile=profile, project=project)
    return find(chosen, cluster=cluster).table()


def clouds(
    provider: str | None = None,
    *,
    regions: str | Sequence[str] | None = None,
    profile: str | None = None,
    project: str | None = None,
) -> list[Cloud]:
    """Return the clouds to ask; the arguments are those of `list_resources`."""
    if provider not in (None, *PROVIDERS):
        raise BadInput(
            f"there is no cloud {provider!r}",
            about=f"list_resources({provider!r})",
            fix=f"those that there are: {', '.join(PROVIDERS)}",
        )
    known = (
        Cloud("eks", lambda: _amazon(regions, profile), lambda: _amazons_costs(regions, profile)),
        Cloud("gke", lambda: _google(project), lambda: _googles_costs(project)),
    )
    return [each for each in known if provider in (None, each.provider)]


def find(asked: Iterable[Cloud], *, cluster: str | None = None) -> Inventory:
    """Ask every place, at the same time, what there is.

    Raises:
        KitError: None could be asked; the error is the first one's.
    """
    found: list[Found] = []
    unanswered: list[tuple[str, KitError]] = []
    answers: list[tuple[str, Future]] = []
    answered = 0
    with progress("clouds") as line, ThreadPoolExecutor(WORKERS, thread_name_prefix="list") as pool:
        line.update("looking for what the kit has")
        for cloud in asked:
            try:
                answers += [(each.name, pool.submit(_seen, each, cluster)) for each in cloud.places()]
            except KitError as error:
                unanswered.append((cloud.provider, error))
        for name, answer in answers:
            try:
                found += answer.result()
                answered += 1
            except KitError as error:
                unanswered.append((name, error))
        if unanswered and not answered:
            raise unanswered[0][1]
        line.done(f"{len(found)} things of the kit")
    return Inventory(tuple(found), tuple(unanswered))


def costs(asked: Iterable[Cloud], *, budget: float | None = None) -> Table:
    """Return what each cluster of the kit costs an hour and until its end, and what they cost together.

    Whatever regions were asked: a budget counts all of an account.

    Args:
        asked: The clouds.
        budget: To be beside the sum, in dollars.
    """
    found: list[Estimate] = []
    unanswered: list[tuple[str, KitError]] = []
    for cloud in asked:
        try:
            found += cloud.standing()
        except KitError as error:
            unanswered.append((cloud.provider, error))
    rows = [(each.about, *_figures(each.an_hour, each.total, each.unknown), each.hours) for each in found]
    rows += [(f"{name} could not be asked", None, None, None) for name, _ in unanswered]
    if found:
        sums = (sum(each.an_hour for each in found), sum(each.total for each in found))
        rows.append(("together", *_figures(*sums, any(each.unknown for each in found)), None))
    if rows and budget is not None:
        rows.append(("budget", None, f"{budget:.2f}", None))
    return Table(("what", "dollars an hour", "to its end", "hours"), rows, empty="nothing costs by the hour")


def _figures(an_hour: float, total: float, unknown: object) -> tuple[str, str]:
    least = "at least " if unknown else ""
    return f"{least}{an_hour:.2f}", f"{least}{total:.2f}"


def _seen(place: Place, cluster: str | None) -> list[Found]:
    """Return what a place has, and how each is; what is only remembered by an index is not there."""
    with shown_elsewhere():
        every = place.discover(cluster)
        with ThreadPoolExecutor(WORKERS, thread_name_prefix="look") as pool:
            looks = list(pool.map(lambda each: each.look(), every))
    return [
        Found(place, each, seen)
        for each, seen in zip(every, looks, strict=True)
        if seen.state is not State.ABSENT
    ]


def _amazon(regions: str | Sequence[str] | None, profile: str | None) -> list[Place]:
    session, discover = _modules("aws")
    if regions == "all":
        try:
            anywhere = session.Session(None, profile)
        except BadInput:  # the configuration names no region, and none is meant
            anywhere = session.Session(FIRST_REGION, profile)
        known = anywhere.call("ec2", "describe_regions")["Regions"]
        sessions = [anywhere.within(each["RegionName"]) for each in known]
    else:
        wanted = [regions] if regions is None or isinstance(regions, str) else regions
        sessions = [session.Session(each, profile) for each in wanted]
    return [Place("eks", each.region, partial(discover, each)) for each in sessions]


def _google(project: str | None) -> list[Place]:
    session, discover = _modules("google")
    into = session.Session(project)
    return [Place("gke", into.project, partial(discover, into))]


def _amazons_costs(regions: str | Sequence[str] | None, profile: str | None) -> list[Estimate]:
    (into, *_), standing = _amazon(regions, profile), import_module("clouds.aws.standing").standing
    session, _ = _modules("aws")
    return standing(session.Session(into.name, profile))


def _googles_costs(project: str | None) -> list[Estimate]:
    session, _ = _modules("google")
    return import_module("clouds.google.standing").standing(session.Session(project))


def _modules(cloud: str) -> tuple:
    """Import what speaks to a cloud, which takes a second."""
    session, everything = (import_module(f"clouds.{cloud}.{each}") for each in ("session", "everything"))
    return session, everything.discover
