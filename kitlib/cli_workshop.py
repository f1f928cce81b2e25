"""``kit workshop``: what an instructor does before the room is full, for a terminal."""

import sys
from pathlib import Path

import click

FOLDER = Path("reports", "rehearsal")


@click.group()
def workshop() -> None:
    """Prepare a workshop."""


@workshop.command()
@click.argument("notebooks", nargs=-1)
@click.option(
    "--provider", default="local", show_default=True, help="local, or existing: a cluster you have."
)
@click.option("--kubeconfig", type=click.Path(exists=True), help="existing: by default kubectl's own.")
@click.option("--nodes", type=int, help="How many nodes, or pods that train.")
@click.option("--output", type=click.Path(path_type=Path), default=FOLDER, show_default=True)
def rehearse(
    notebooks: tuple[str, ...], provider: str, kubeconfig: str | None, nodes: int | None, output: Path
) -> None:
    """Run NOTEBOOKS once, by default all, and print how long each took; exit status 1 if one did not pass."""
    from kitlib import rehearsal

    given = {"--provider": provider, "--kubeconfig": kubeconfig, "--nodes": nodes}
    options = [word for name, value in given.items() if value for word in (name, str(value))]
    found = rehearsal.rehearse(notebooks, folder=output.absolute(), options=options)
    click.echo(found.table)
    kept = f"; kept in {output / rehearsal.KEPT}" if found.whole else ""
    click.echo(f"\nCompare with docs/instructors-guide.md{kept}", err=True)
    sys.exit(0 if found.passed else 1)
