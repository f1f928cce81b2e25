"""List and delete the kit's cloud resources, of all clusters, identified by their tags."""

from collections.abc import Collection, Iterable, Sequence
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
from trainyard_kit.clouds.provider import SearchScope
from trainyard_kit.clouds.spec import CloudResource

COLUMNS = ("cluster", "resource", "state", "where", "owner", "expires", "costs", "id")
WORKERS = 8


class Place(NamedTuple):
    """A region or project to search: the provider's class, and a session there."""

    provider: type[CloudCluster[Any, Any, Any]]
    session: Any

    def __str__(self) -> str:
        return self.provider.where(self.session)


PlacedResource = tuple[Place, CloudResource]
Failure = tuple[str, KitError]


@checked
def list_resources(
    provider: str | None = None,
    *,
    regions: str | Sequence[str] | None = None,
    profile: str | None = None,
    project: str | None = None,
    cluster: str | None = None,
) -> Table:
    """List the kit's cloud resources, identified by their tags, whoever created them.

    Args:
        provider: A cloud, such as ``eks``; by default all.
        regions: AWS regions, or ``"all"``; by default the one of your AWS configuration.
        profile: A profile of your AWS configuration.
        project: A Google Cloud project; by default that of your credentials.
        cluster: Only the resources of this cluster.

    Raises:
        BadInput: There is no such provider, region or profile.
        KitError: No cloud could be queried.

    Example:
        >>> list_resources("eks", regions=["eu-central-1", "us-east-1"])
        no resources of the kit were found
    """
    places, failures = resolve_places(provider, regions=regions, profile=profile, project=project)
    return table(*find(places, failures, cluster=cluster))


def resolve_places(provider: str | None, **scope: Unpack[SearchScope]) -> tuple[list[Place], list[Failure]]:
    """List the places to search, and the clouds that cannot be; arguments as for `list_resources`."""
    clouds = plugins.entries("kitlib.providers")
    if provider not in (None, *clouds):
        raise BadInput(f"there is no cloud {provider!r}", about="the provider", fix=", ".join(clouds))
    places, failures = [], []
    for cloud in sorted(clouds) if provider is None else (provider,):
        kind = plugins.load(clouds[cloud])
        if not issubclass(kind, CloudCluster):
            continue
        try:
            places += [Place(kind, session) for session in kind.sessions(**scope)]
        except KitError as error:
            failures.append((cloud, error))
    return places, failures


def find(
    places: Iterable[Place], failures: Iterable[Failure] = (), *, cluster: str | None = None
) -> tuple[list[PlacedResource], list[Failure]]:
    """Search all places concurrently; raise the first error if every one fails."""

    def search(place: Place) -> list[CloudResource]:
        with shown_elsewhere():
            return place.provider.find_resources(place.session, cluster)

    resources, all_failures, succeeded = [], list(failures), 0
    with progress("clouds") as line, ThreadPoolExecutor(WORKERS, thread_name_prefix="list") as pool:
        line.update("listing the kit's resources")
        for place, future in [(place, pool.submit(search, place)) for place in places]:
            try:
                resources += [(place, resource) for resource in future.result()]
                succeeded += 1
            except KitError as error:
                all_failures.append((str(place), error))
        if all_failures and not succeeded:
            raise all_failures[0][1]
        line.done(f"{len(resources)} resources of the kit")
    return resources, all_failures


def table(resources: Iterable[PlacedResource], failures: Iterable[Failure] = ()) -> Table:
    """Tabulate resources, with a row for each place that could not be queried."""
    rows: list[tuple[object, ...]] = []
    for _, resource in resources:
        owner, expires = (resource.tags.owner, resource.tags.expires) if resource.tags else (None, None)
        expiry = expires and expires.strftime("%Y-%m-%d %H:%M UTC")
        row = (resource.cluster, resource.name, resource.state, resource.where, owner, expiry)
        rows.append((*row, resource.costs, resource.id))
    for where, error in failures:
        rows.append((None, f"{where} could not be queried", "unknown", where, None, None, None, error.what))
    return Table(COLUMNS, rows, empty="no resources of the kit were found")


def costs(places: Iterable[Place], *, budget: float | None = None) -> Table:
    """Tabulate what each cluster costs an hour and until it expires, in all regions, with the budget."""
    estimates: list[Estimate] = []
    rows: list[tuple[object, ...]] = []
    for place in {place.provider: place for place in reversed(list(places))}.values():
        try:
            estimates += place.provider.running_costs(place.session)
        except KitError as error:
            rows.append((f"{place} could not be queried: {error.what}", None, None, None))
    rows = [*((estimate.about, *_figures([estimate]), estimate.hours) for estimate in estimates), *rows]
    if estimates:
        rows.append(("total", *_figures(estimates), None))
    if rows and budget is not None:
        rows.append(("budget", None, f"{budget:.2f}", None))
    columns = ("item", "dollars an hour", "until it expires", "hours")
    return Table(columns, rows, empty="nothing is billed by the hour")


def _figures(estimates: Sequence[Estimate]) -> tuple[str, str]:
    least = "at least " if any(estimate.unknown for estimate in estimates) else ""
    hourly, total = (
        sum(estimate.hourly for estimate in estimates),
        sum(estimate.total for estimate in estimates),
    )
    return f"{least}{hourly:.2f}", f"{least}{total:.2f}"


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
) -> Table:
    """Delete the kit's cloud resources; return those that remain: an empty table.

    They are identified by their tags, so neither the cluster nor the machine that created it is needed;
    other resources are never touched.

    Args:
        provider: A cloud, such as ``eks``; by default all.
        clusters: The name of a cluster, or several; by default all.
        regions: AWS regions, or ``"all"``; by default the one of your AWS configuration.
        profile: A profile of your AWS configuration.
        project: A Google Cloud project; by default that of your credentials.
        dry_run: Only list what would be deleted. To delete, pass ``dry_run=False``.
        confirm: Agree beforehand to delete more than one cluster.

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
    places, errors = resolve_places(provider, regions=regions, profile=profile, project=project)
    resources, failures = find(places, errors)
    resources = [
        (place, resource) for place, resource in resources if selected is None or resource.cluster in selected
    ]
    targets = list(dict.fromkeys((place, resource.cluster) for place, resource in resources))
    if dry_run or not targets:
        return table(resources, failures)
    if len(targets) > 1 and confirm is not True:
        listed = "\n".join(f"  {name} ({place.provider.provider}, {place})" for place, name in targets)
        message = f"{len(targets)} clusters and all their resources:\n{listed}\nDeletion cannot be undone."
        names = ", ".join(name for _, name in targets)
        confirmation.confirm_typed("delete", message, about=names)
    _delete(targets)
    if failures:
        raise failures[0][1]
    return table(())


def _delete(targets: Iterable[tuple[Place, str]]) -> None:
    """Delete clusters; continue with the others if one fails."""
    failures = []
    for place, name in targets:
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
