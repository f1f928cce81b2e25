"""What the kit keeps on this machine, as a table; and removing what is not needed."""

from kitlib.clusters.local import ask
from kitlib.display.tables import Table
from kitlib.k8s.quantities import format_bytes


def contents() -> Table:
    """Return what there is: programs, prepared parts, clusters, the largest first."""
    return _table(ask("cache"), empty="nothing is kept")


def clear(what: str | None = None) -> Table:
    """Remove what neither a cluster nor this version of the kit uses, and return it.

    Args:
        what: A kind: all of it goes that no cluster uses.

    Raises:
        ProviderFailed: There is no such kind, or it cannot be removed.
    """
    return _table(
        ask("cache", "--clear", *([f"--what={what}"] if what else [])), empty="nothing was to be removed"
    )


def _table(entries: list[dict], *, empty: str) -> Table:
    rows = [
        (each["what"], format_bytes(each["size"]), each["used"] or "nobody", each["path"]) for each in entries
    ]
    return Table(("what", "size", "used by", "path"), rows, empty=empty)
