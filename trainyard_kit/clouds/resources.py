"""The kit's resources at the clouds: list and delete those of every cluster, found by tags."""

from collections.abc import Callable, Collection, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple, Unpack

from kitlib import plugins
from kitlib.display.progress import progress, shown_elsewhere
from kitlib.display.signatures import checked
from kitlib.display.tables import Table
from kitlib.errors import BadInput, KitError, ProviderFailed
from trainyard_kit.clouds import confirmation
from trainyard_kit.clouds.cluster import CloudCluster
from trainyard_kit.clouds.price_table import Estimate
from trainyard_kit.clouds.provider import Places
from trainyard_kit.clouds.spec import CloudResource

CLOUDS = ("eks", "gke")
COLUMNS = ("cluster", "what", "state", "where", "owner", "expires", "costs", "id")
WORKERS = 8


class Place(NamedTuple):
    """Where a cloud is asked: the class of its clusters, and the session in a region or project."""

    provider: type[CloudCluster[Any, Any, Any]]
    session: Any

    def __str__(self) -> str:
        return self.provider.where(self.session)


Found = tuple[Place, CloudResource]
Unanswered = tuple[str, KitError]


@checked
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
    all_places, errors = places(provider, regions=regions, profile=profile, project=project)
    return table(*find(all_places, errors, cluster=cluster))


def places(provider: str | None, **where: Unpack[Places]) -> tuple[list[Place], list[Unanswered]]:
    """List the places to ask, and the clouds that cannot be; arguments as in `list_resources`."""
    if provider not in (None, *CLOUDS):
        raise BadInput(f"there is no cloud {provider!r}", about="the provider", fix=", ".join(CLOUDS))
    all_places, unanswered = [], []
    for cloud in CLOUDS if provider is None else (provider,):
        kind = plugins.load(plugins.entries("kitlib.providers")[cloud])
        try:
            all_places += [Place(kind, session) for session in kind.sessions(**where)]
        except KitError as error:
            unanswered.append((cloud, error))
    return all_places, unanswered


def find(
    all_places: Iterable[Place], unanswered: Iterable[Unanswered] = (), *, cluster: str | None = None
) -> tuple[list[Found], list[Unanswered]]:
    """Ask all places at the same time what exists there; raise the first one's error if none answers."""

    def ask(place: Place) -> list[CloudResource]:
        with shown_elsewhere():
            return place.provider.find_resources(place.session, cluster)

    resources, errors, answered = [], list(unanswered), 0
    with progress("clouds") as line, ThreadPoolExecutor(WORKERS, thread_name_prefix="list") as pool:
        line.update("listing the kit's resources")
        for place, answer in [(place, pool.submit(ask, place)) for place in all_places]:
            try:
                resources += [(place, resource) for resource in answer.result()]
                answered += 1
            except KitError as error:
                errors.append((str(place), error))
        if errors and not answered:
            raise errors[0][1]
        line.done(f"{len(resources)} resources of the kit")
    return resources, errors


def table(resources: Iterable[Found], unanswered: Iterable[Unanswered] = ()) -> Table:
    """Tabulate resources, with a row for each place that gave no answer."""
    rows: list[tuple[object, ...]] = []
    for _, resource in resources:
        owner, end = (resource.tags.owner, resource.tags.expires) if resource.tags else (None, None)
        until = end and end.strftime("%Y-%m-%d %H:%M UTC")
        rows.append(
            (
                resource.cluster,
                resource.name,
                resource.state,
                resource.where,
                owner,
                until,
                resource.costs,
                resource.id,
            )
        )
    for where, error in unanswered:
        rows.append((None, f"{where} could not be queried", "unknown", where, None, None, None, error.what))
    return Table(COLUMNS, rows, empty="nothing of the kit is at the clouds that were asked")


def costs(all_places: Iterable[Place], *, budget: float | None = None) -> Table:
    """Tabulate the cost of each cluster in all regions, an hour and until its end, beside the budget."""
    estimates: list[Estimate] = []
    rows: list[tuple[object, ...]] = []
    for place in {place.provider: place for place in reversed(list(all_places))}.values():
        try:
            estimates += place.provider.running_costs(place.session)
        except KitError as error:
            rows.append((f"{place} could not be queried: {error.what}", None, None, None))
    rows = [*((resource.about, *_figures([resource]), resource.hours) for resource in estimates), *rows]
    if estimates:
        rows.append(("together", *_figures(estimates), None))
    if rows and budget is not None:
        rows.append(("budget", None, f"{budget:.2f}", None))
    return Table(("what", "dollars an hour", "to its end", "hours"), rows, empty="nothing costs by the hour")


def _figures(estimates: Sequence[Estimate]) -> tuple[str, str]:
    least = "at least " if any(estimate.unknown for estimate in estimates) else ""
    an_hour, total = (sum(getattr(estimate, what) for estimate in estimates) for what in ("an_hour", "total"))
    return f"{least}{an_hour:.2f}", f"{least}{total:.2f}"


@checked
def delete_resources(
    provider: str | None = None,
    *,
    clusters: str | Collection[str] | None = None,
    regions: str | Sequence[str] | None = None,
    profile: str | None = None,
    project: str | None = None,
    dry_run: bool = True,
    confirm: bool = False,
    ask: Callable[[str], str] = input,
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
        ask: Puts a question at the keyboard, and returns the answer.

    Raises:
        NotConfirmed: The answer was not yes; nothing was deleted.
        ProviderFailed: Something is left; the error names it, and its cost.

    Example:
        >>> delete_resources("eks", regions="all")
        >>> delete_resources("eks", regions="all", clusters="lab", dry_run=False)
    """
    selected = {clusters} if isinstance(clusters, str) else None if clusters is None else set(clusters)
    if selected is not None and not selected:
        fix = '`clusters=["lab"]`, or leave it out for all'
        raise BadInput("no cluster is named", about="clusters=[]", fix=fix)
    all_places, errors = places(provider, regions=regions, profile=profile, project=project)
    resources, unanswered = find(all_places, errors)
    resources = [
        (place, resource) for place, resource in resources if selected is None or resource.cluster in selected
    ]
    meant = list(dict.fromkeys((place, resource.cluster) for place, resource in resources))
    if dry_run or not meant:
        return table(resources, unanswered)
    if len(meant) > 1 and confirm is not True:
        listed = "\n".join(f"  {name} ({place.provider.provider}, {place})" for place, name in meant)
        message = f"{len(meant)} clusters and all that belongs to them:\n{listed}\nThey are deleted for good."
        names = ", ".join(name for _, name in meant)
        confirmation.confirm_typed("delete", message, about=names, fix="`confirm=True`", ask=ask)
    _delete(meant)
    if unanswered:
        raise unanswered[0][1]
    return table(())


def _delete(meant: Iterable[tuple[Place, str]]) -> None:
    """Delete clusters; one that cannot be deleted does not keep the others."""
    failures = []
    for place, name in meant:
        try:
            place.provider.delete_at(place.session, name)
        except KitError as error:
            failures.append(error)
    if failures:
        raise ProviderFailed(
            "; ".join(error.what for error in failures),
            about=", ".join(error.about for error in failures),
            fix="the same call again; if that fails too, docs/clouds.md says how to do it by hand",
            detail="\n".join(map(str, failures)),
        ) from failures[0]
