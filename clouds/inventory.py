"""The kit's resources at the clouds: list and delete those of every cluster, found by tags from any machine.

`discover` in each cloud's `stack` finds them; here all clouds are asked in parallel.
"""

from collections.abc import Callable, Collection, Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial

from clouds import confirmation
from clouds.price_table import Estimate
from clouds.reconciler import reconcile
from clouds.reconciler.resource import Resource, ResourceState, ResourceStatus
from clouds.reconciler.steps_table import StepsTable
from kitlib.clusters.plugins import load
from kitlib.display.progress import progress, shown_elsewhere
from kitlib.display.tables import Table
from kitlib.errors import BadInput, KitError, ProviderFailed

PROVIDERS = ("eks", "gke")
COLUMNS = ("cluster", "what", "state", "where", "owner", "expires", "costs", "id")
WORKERS = 8
FIRST_REGION = "us-east-1"  # which every account has, and where one may ask for the others


@dataclass(frozen=True)
class CloudLocation:
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
        running_costs: Returns what each cluster of the account or project costs until its end.
    """

    provider: str
    places: Callable[[], list[CloudLocation]]
    running_costs: Callable[[], list[Estimate]] = list


@dataclass(frozen=True)
class FoundResource:
    """One thing that is there."""

    place: CloudLocation
    resource: Resource
    seen: ResourceStatus

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
            self.resource.hourly_cost,
            self.seen.id or self.seen.words,
        )


@dataclass(frozen=True)
class Inventory:
    """What there is in the places that were asked, and which of them gave no answer."""

    found: tuple[FoundResource, ...]
    unanswered: tuple[tuple[str, KitError], ...] = ()

    def table(self) -> Table:
        """Return it with a row for each thing, and one for each place that gave no answer."""
        rows = [each.row() for each in self.found]
        rows += [
            (None, f"{where} could not be asked", "unknown", where, None, None, None, error.what)
            for where, error in self.unanswered
        ]
        return Table(COLUMNS, rows, empty="nothing of the kit is at the clouds that were asked")

    def clusters(self) -> list[tuple[CloudLocation, str]]:
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
    """List the kit's resources at the clouds, found by their tags, whoever created them.

    Args:
        provider: ``eks`` or ``gke``; by default both.
        regions: Of AWS: names, or ``"all"``; by default the one that your AWS configuration names.
        profile: Of your AWS configuration.
        project: Of Google Cloud; by default that of your credentials.
        cluster: Only the resources of this cluster.

    Raises:
        BadInput: There is no such provider, region or profile.
        KitError: None of the clouds answered.

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
    found: list[FoundResource] = []
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
    """Tabulate the cost of each cluster of the kit, an hour and until its end.

    Whatever regions were asked: a budget counts all of an account.

    Args:
        asked: The clouds.
        budget: To be beside the sum, in dollars.
    """
    found: list[Estimate] = []
    unanswered: list[tuple[str, KitError]] = []
    for cloud in asked:
        try:
            found += cloud.running_costs()
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


def _seen(place: CloudLocation, cluster: str | None) -> list[FoundResource]:
    with shown_elsewhere():
        every = place.discover(cluster)
        with ThreadPoolExecutor(WORKERS, thread_name_prefix="describe") as pool:
            looks = list(pool.map(lambda each: each.describe(), every))
    return [
        FoundResource(place, each, seen)
        for each, seen in zip(every, looks, strict=True)
        if seen.state is not ResourceState.ABSENT
    ]


def _amazon(regions: str | Sequence[str] | None, profile: str | None) -> list[CloudLocation]:
    session, discover = _modules("aws")
    if regions == "all":
        try:
            anywhere = session.AwsSession(None, profile)
        except BadInput:  # the configuration names no region, and none is meant
            anywhere = session.AwsSession(FIRST_REGION, profile)
        known = anywhere.call("ec2", "describe_regions")["Regions"]
        sessions = [anywhere.within(each["RegionName"]) for each in known]
    else:
        wanted = [regions] if regions is None or isinstance(regions, str) else regions
        sessions = [session.AwsSession(each, profile) for each in wanted]
    return [CloudLocation("eks", each.region, partial(discover, each)) for each in sessions]


def _google(project: str | None) -> list[CloudLocation]:
    session, discover = _modules("google")
    into = session.GcpSession(project)
    return [CloudLocation("gke", into.project, partial(discover, into))]


def _amazons_costs(regions: str | Sequence[str] | None, profile: str | None) -> list[Estimate]:
    (into, *_), costs = _amazon(regions, profile), load("clouds.aws.running_costs:running_costs")
    session, _ = _modules("aws")
    return costs(session.AwsSession(into.name, profile))


def _googles_costs(project: str | None) -> list[Estimate]:
    session, _ = _modules("google")
    return load("clouds.google.running_costs:running_costs")(session.GcpSession(project))


def _modules(cloud: str) -> tuple:
    """Import what speaks to a cloud, which takes a second."""
    session, stack = (load(f"clouds.{cloud}.{each}:") for each in ("session", "stack"))
    return session, stack.discover


def delete_resources(
    provider: str | None = None,
    *,
    clusters: str | Collection[str] | None = None,
    regions: str | Sequence[str] | None = None,
    profile: str | None = None,
    project: str | None = None,
    dry_run: bool = True,
    confirm: bool = False,
) -> Table:
    """Delete the kit's resources at the clouds; return what is left: an empty table.

    They are found by their tags, so neither the cluster nor the machine that created it is needed; what is
    not the kit's is never touched.

    Args:
        provider: ``eks`` or ``gke``; by default both.
        clusters: The name of a cluster, or several; by default all that are found.
        regions: Of AWS: names, or ``"all"``; by default the one that your AWS configuration names.
        profile: Of your AWS configuration.
        project: Of Google Cloud; by default that of your credentials.
        dry_run: Only list what would be deleted. To delete, pass ``dry_run=False``.
        confirm: Agree beforehand to delete more than one cluster.

    Raises:
        NotConfirmed: The answer was not yes; nothing was deleted.
        ProviderFailed: Something is left; the error names it, and its cost.

    Example:
        >>> delete_resources("eks", regions="all")
        >>> delete_resources("eks", regions="all", clusters="lab", dry_run=False)
    """
    asked = clouds(provider, regions=regions, profile=profile, project=project)
    return delete_found(asked, clusters=clusters, dry_run=dry_run, confirm=confirm)


def delete_found(
    asked: Sequence[Cloud],
    *,
    clusters: str | Collection[str] | None = None,
    dry_run: bool,
    confirm: bool = False,
    ask: Callable[[str], str] = input,
    **how: object,
) -> Table:
    """Delete what is found at these clouds; the arguments are those of `delete_resources`.

    Args:
        asked: Which clouds.
        clusters: Which clusters; None for all.
        dry_run: Only return what would be deleted.
        confirm: More than one cluster is meant.
        ask: Puts a question at the keyboard, and returns the answer.
        how: For `steps.take_down`: the clock of tests.
    """
    found = _chosen(find(asked), clusters)
    meant = found.clusters()
    if dry_run or not meant:
        return found.table()
    if len(meant) > 1 and confirm is not True:
        listed = "\n".join(f"  {name} ({place.provider}, {place.name})" for place, name in meant)
        confirmation.confirm_typed(
            "delete",
            f"{len(meant)} clusters and all that belongs to them:\n{listed}\nThey are deleted for good.",
            about=", ".join(name for _, name in meant),
            fix="confirm=True",
            ask=ask,
        )
    errors = [error for place, name in meant if (error := _take_down(place, name, how))]
    left = _chosen(find(asked), clusters)
    if left.found:
        said = "; ".join(
            f"{each.resource.name} {each.seen.id} {each.resource.hourly_cost}".strip() for each in left.found
        )
        raise ProviderFailed(
            f"something is left, and may cost: {said}",
            about=", ".join(name for _, name in left.clusters()),
            fix="the same call again; if it stays, docs/clouds.md says how by hand",
            detail="\n".join(map(str, errors)),
        ) from (errors[0] if errors else None)
    if left.unanswered:
        raise left.unanswered[0][1]
    return left.table()


def _take_down(place: CloudLocation, cluster: str, how: dict[str, object]) -> KitError | None:
    """Delete what is there of one cluster; one that cannot be deleted does not keep the others."""
    title = f'cluster "{cluster}" in {place.name}'
    try:
        with StepsTable(title) as report:
            reconcile.take_down(
                place.discover(cluster),
                title=title,
                resume=f'kit.delete_resources("{place.provider}", clusters="{cluster}", dry_run=False)',
                report=report,
                **how,
            )
    except KeyboardInterrupt:
        raise
    except KitError as error:
        return error
    return None


def _chosen(found: Inventory, clusters: str | Collection[str] | None) -> Inventory:
    if clusters is None:
        return found
    names = {clusters} if isinstance(clusters, str) else set(clusters)
    if not names:
        raise BadInput(
            "no cluster is named", about="clusters=[]", fix='clusters=["lab"], or leave it out for all'
        )
    return Inventory(tuple(each for each in found.found if each.cluster in names), found.unanswered)
