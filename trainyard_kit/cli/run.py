"""``trainyard run`` and ``trainyard launch``: runs in a terminal."""

import click

from kitlib import clusters
from trainyard_kit.cli.options import CLUSTER

OUTPUT = click.option(
    "--output",
    type=click.Choice(["text", "json"]),
    default="text",
    show_default=True,
    help="json: the JSON lines as the pods wrote them, and nothing else on stdout.",
)


@click.group()
def run() -> None:
    """See, change and delete runs."""


@run.command("list")
@CLUSTER
def list_runs(cluster: str) -> None:
    """List the runs in a cluster."""
    click.echo(clusters.connect(cluster).runs())


@run.command("status")
@click.argument("name")
@CLUSTER
def run_status(name: str, cluster: str) -> None:
    """Show the status of the run NAME, with its pods."""
    found = clusters.connect(cluster).run(name)
    click.echo(found.status)
    click.echo(found.pods())


def _rank_or_role(value: str) -> int | str:
    return int(value) if value.isdecimal() else value


@run.command()
@click.argument("name")
@CLUSTER
@click.option(
    "--rank", type=_rank_or_role, metavar="RANK", help="Of one pod only: 3, or worker-3 of parameter servers."
)
@click.option("--follow", "-f", "following", is_flag=True, help="Continue until it ends.")
@OUTPUT
def logs(name: str, cluster: str, rank: int | str | None, following: bool, output: str) -> None:
    """Print the logs of the run NAME; with --follow until it ends, with exit status 1 if it failed."""
    from trainyard_kit.cli.follow import follow, show_log

    found = clusters.connect(cluster).run(name)
    if following:
        follow(found, rank=rank, output=output)
    else:
        show_log(found.logs(rank=rank), output=output)


@run.command("wait")
@click.argument("name")
@CLUSTER
@click.option("--timeout", default=3600.0, show_default=True, help="Seconds.")
def wait_run(name: str, cluster: str, timeout: float) -> None:
    """Wait until the run NAME has succeeded; exit status 1 and the first traceback if it fails."""
    clusters.connect(cluster).run(name).wait(timeout=timeout)


RANK = click.option("--rank", type=int, required=True, help="As it is in the newest rendezvous.")


@run.command("kill")
@click.argument("name")
@CLUSTER
@RANK
def kill_rank(name: str, cluster: str, rank: int) -> None:
    """Kill the process of a rank of the run NAME, as a crash would."""
    click.echo(clusters.connect(cluster).run(name).kill(rank=rank))


@run.command("pause")
@click.argument("name")
@CLUSTER
@RANK
def pause_rank(name: str, cluster: str, rank: int) -> None:
    """Pause the process of a rank of the run NAME (SIGSTOP)."""
    click.echo(clusters.connect(cluster).run(name).pause(rank=rank))


@run.command("resume")
@click.argument("name")
@CLUSTER
@click.option("--rank", type=int, help="Its rank when it was paused; by default all paused ones.")
def resume_rank(name: str, cluster: str, rank: int | None) -> None:
    """Resume a paused process of the run NAME."""
    click.echo(clusters.connect(cluster).run(name).resume(rank=rank))


@run.command("scale")
@click.argument("name")
@click.argument("workers", type=int)
@CLUSTER
def scale_run(name: str, workers: int, cluster: str) -> None:
    """Change the number of WORKERS of the run NAME."""
    click.echo(clusters.connect(cluster).run(name).scale(workers))


@run.command("delete")
@click.argument("name")
@CLUSTER
def delete_run(name: str, cluster: str) -> None:
    """Delete the run NAME; harmless when there is none."""
    from kitlib.runs.run import Run

    Run(clusters.connect(cluster).kube, name).delete()
    click.echo(f"run {name} is deleted")


@click.command()
@click.argument("trainer")
@click.argument("args", nargs=-1, type=click.UNPROCESSED)
@CLUSTER
@click.option("--nodes", default=4, show_default=True, help="How many pods.")
@click.option("--cpu", help="Cores of each pod.")
@click.option("--memory", help="Memory of each pod.")
@click.option("--gpus", type=int, help="GPUs of each pod; by default one where nodes have any.")
@click.option("--name", help="Of the run; by default the trainer's and a suffix.")
@click.option("--dry-run", is_flag=True, help="Print the manifest and launch nothing.")
@OUTPUT
def launch(
    trainer: str,
    args: tuple[str, ...],
    cluster: str,
    nodes: int,
    cpu: str | None,
    memory: str | None,
    gpus: int | None,
    name: str | None,
    dry_run: bool,
    output: str,
) -> None:
    """Train with TRAINER on several nodes and follow it; ARGS after -- are the trainer's.

    Exit status 1 and the first traceback if it fails.
    """
    from kitlib import jobs
    from trainyard_kit.cli.follow import follow

    made = jobs.IndexedJob(trainer, args=args, nodes=nodes, cpu=cpu, memory=memory, gpus=gpus, name=name)
    if dry_run:
        click.echo(made.manifest(), nl=False)
        return
    follow(jobs.launch(made, cluster=cluster), output=output)
