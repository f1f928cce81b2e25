"""Delete what the kit has at the clouds, whether its cluster is still there or not."""

from collections.abc import Callable, Collection, Sequence

from clouds import consent, inventory
from clouds.inventory import Cloud, Inventory, Place
from clouds.reconciler import reconcile
from clouds.steps_table import StepsTable
from kitlib.display.tables import Table
from kitlib.errors import BadInput, KitError, ProviderFailed


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
    """Delete what the kit has at the clouds, and return what is left: an empty table.

    It is found by its tags, so it needs neither the cluster nor the machine that made it; what is not the
    kit's is never touched.

    Args:
        provider: ``eks`` or ``gke``; by default both.
        clusters: The name of a cluster, or several; by default all that are found.
        regions: Of AWS: names, or ``"all"``; by default the one that your AWS configuration names.
        profile: Of your AWS configuration.
        project: Of Google Cloud; by default that of your credentials.
        dry_run: Only return what would be deleted. To delete, say ``dry_run=False``.
        confirm: More than one cluster is meant; else that is asked.

    Raises:
        NotConfirmed: It was asked, and the answer was not yes; nothing was deleted.
        ProviderFailed: Something is left; the error names it, and what it costs.

    Example:
        >>> delete_resources("eks", regions="all")
        >>> delete_resources("eks", regions="all", clusters="lab", dry_run=False)
    """
    asked = inventory.clouds(provider, regions=regions, profile=profile, project=project)
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
    found = _chosen(inventory.find(asked), clusters)
    meant = found.clusters()
    if dry_run or not meant:
        return found.table()
    if len(meant) > 1 and confirm is not True:
        listed = "\n".join(f"  {name} ({place.provider}, {place.name})" for place, name in meant)
        consent.typed(
            "delete",
            f"{len(meant)} clusters and all that belongs to them:\n{listed}\nThey are deleted for good.",
            about=", ".join(name for _, name in meant),
            fix="confirm=True",
            ask=ask,
        )
    errors = [error for place, name in meant if (error := _take_down(place, name, how))]
    left = _chosen(inventory.find(asked), clusters)
    if left.found:
        said = "; ".join(
            f"{each.resource.name} {each.seen.id} {each.resource.bills}".strip() for each in left.found
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


def _take_down(place: Place, cluster: str, how: dict[str, object]) -> KitError | None:
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
    """Return what belongs to the clusters that are meant."""
    if clusters is None:
        return found
    names = {clusters} if isinstance(clusters, str) else set(clusters)
    if not names:
        raise BadInput(
            "no cluster is named", about="clusters=[]", fix='clusters=["lab"], or leave it out for all'
        )
    return Inventory(tuple(each for each in found.found if each.cluster in names), found.unanswered)
