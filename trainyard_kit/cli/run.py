"""``trainyard run`` and ``trainyard launch``: runs in a terminal."""

import json
from dataclasses import replace
from typing import TYPE_CHECKING

import click

from kitlib import clusters
from kitlib.errors import BadInput, RunNotFound
from kitlib.k8s.job_kinds import JOBS
from trainyard_kit.cli.current import default_cluster
from trainyard_kit.cli.options import (
    CLUSTER,
    IGNORE_NOT_FOUND,
    NAMED_CLUSTER,
    OUTPUT,
    RUN_NAME,
    ErrorGroup,
    for_this_terminal,
    next_step,
    options_of,
    show,
)

if TYPE_CHECKING:
    from kitlib.jobs.base import Job

LINES = click.option(
    "--output",
    "-o",
    type=click.Choice(["text", "json"]),
    default="text",
    show_default=True,
    help="json: only the JSON lines on stdout, as the pods wrote them.",
)


@click.group(cls=ErrorGroup)
def run() -> None:
    """List, change and delete runs."""


@run.command("list")
@CLUSTER
@OUTPUT
def list_runs(cluster: str, output: str | None) -> None:
    """List the runs in a cluster."""
    show(output, clusters.connect(cluster).runs())


@run.command("status")
@RUN_NAME
@CLUSTER
def run_status(name: str, cluster: str) -> None:
    """Show the status of the run NAME, with its pods."""
    existing = clusters.connect(cluster).run(name)
    click.echo(existing.status)
    click.echo(existing.pods())


def _rank_or_role(value: str) -> int | str:
    return int(value) if value.isdecimal() else value


@run.command()
@RUN_NAME
@CLUSTER
@click.option(
    "--rank",
    type=_rank_or_role,
    metavar="RANK",
    help="Show only one pod: 3, or worker-3 with parameter servers.",
)
@click.option("--follow", "-f", "following", is_flag=True, help="Follow until the run ends.")
@LINES
def logs(name: str, cluster: str, rank: int | str | None, following: bool, output: str) -> None:
    """Print the logs of the run NAME; with --follow until it ends, with exit status 1 if it failed."""
    from trainyard_kit.cli.follow import follow, show_log

    existing = clusters.connect(cluster).run(name)
    if following:
        follow(existing, rank=rank, output=output)
    else:
        show_log(existing.logs(rank=rank), output=output)


@run.command("wait")
@RUN_NAME
@CLUSTER
@click.option("--timeout", default=3600.0, show_default=True, help="Seconds.")
def wait_run(name: str, cluster: str, timeout: float) -> None:
    """Wait until the run NAME succeeds; exit status 1 and the first traceback if it fails."""
    clusters.connect(cluster).run(name).wait(timeout=timeout)
    next_step(f"trainyard run logs {name} -c {cluster}")


@click.command()
@RUN_NAME
@CLUSTER
@click.option("--output", "-o", type=click.Choice(["text", "json"]), default="text", show_default=True)
def why(name: str, cluster: str, output: str) -> None:
    """Diagnose why the run NAME failed, waits or hangs: cause, evidence and fix."""
    diagnosis = clusters.connect(cluster).run(name).why()
    causes = tuple(replace(cause, fix=for_this_terminal(cause.fix)) for cause in diagnosis.causes)
    diagnosis = replace(diagnosis, causes=causes)
    click.echo(json.dumps(diagnosis.json(), indent=2) if output == "json" else repr(diagnosis))


RANK = click.option("--rank", type=int, required=True, help="The rank in the newest rendezvous.")


def _add_signal(verb: str, description: str) -> None:
    @run.command(verb, help=description)
    @RUN_NAME
    @CLUSTER
    @RANK
    def send(name: str, cluster: str, rank: int) -> None:
        click.echo(getattr(clusters.connect(cluster).run(name), verb)(rank=rank))


_add_signal("kill", "Kill the process of a rank of the run NAME, as a crash would.")
_add_signal("pause", "Pause the process of a rank of the run NAME (SIGSTOP).")


@run.command("resume")
@RUN_NAME
@CLUSTER
@click.option("--rank", type=int, help="The rank when it was paused; by default all paused ranks.")
def resume_rank(name: str, cluster: str, rank: int | None) -> None:
    """Resume a paused process of the run NAME."""
    click.echo(clusters.connect(cluster).run(name).resume(rank=rank))


@run.command("scale")
@RUN_NAME
@click.argument("workers", type=int)
@CLUSTER
def scale_run(name: str, workers: int, cluster: str) -> None:
    """Change the number of WORKERS of the run NAME."""
    click.echo(clusters.connect(cluster).run(name).scale(workers))


@run.command("delete")
@RUN_NAME
@CLUSTER
@IGNORE_NOT_FOUND
def delete_run(name: str, cluster: str, ignore_not_found: bool) -> None:
    """Delete the run NAME."""
    from kitlib.runs.run import Run

    existing = clusters.connect(cluster)
    try:
        existing.run(name)
    except RunNotFound:
        Run(existing.kube, name).delete()  # objects of an interrupted launch
        if not ignore_not_found:
            raise
        return
    Run(existing.kube, name).delete()
    click.echo(f"run {name} is deleted")
    next_step(f"trainyard run list -c {cluster}")


KINDS = {kind.command: kind for kind in JOBS}


@click.command()
@click.argument("trainer")
@click.argument("args", nargs=-1, type=click.UNPROCESSED)
@NAMED_CLUSTER
@click.option(
    "--kind",
    type=click.Choice(list(KINDS)),
    default="indexed-job",
    metavar="KIND",
    help=f"The kind of job: {', '.join(KINDS)}.",
)
@click.option("--nodes", default=4, show_default=True, help="Number of pods.")
@click.option("--cpus", help="Cores of each pod.")
@click.option("--memory", help="Memory of each pod.")
@click.option("--gpus", type=int, help="GPUs of each pod; by default one if the nodes have GPUs.")
@click.option("--volume", "volumes", multiple=True, metavar="PATH=NAME", help="Mount a volume; repeatable.")
@click.option("--name", help="The run's name; by default the trainer's with a suffix.")
@click.option("--replace", is_flag=True, help="Delete an earlier run of this name first.")
@click.option("--dry-run", is_flag=True, help="Print the manifest and launch nothing.")
@click.option("--set", "option", multiple=True, metavar="KEY=VALUE", help="An argument of this kind of job.")
@LINES
def launch(
    trainer: str,
    args: tuple[str, ...],
    cluster: str | None,
    output: str,
    replace: bool,
    dry_run: bool,
    kind: str,
    nodes: int,
    cpus: str | None,
    memory: str | None,
    volumes: tuple[str, ...],
    option: tuple[str, ...],
    **arguments: object,
) -> None:
    """Train with TRAINER on several nodes and follow it; ARGS after -- are the trainer's.

    Exit status 1 and the first traceback if it fails. Arguments of one kind have the same names as in Python:
    trainyard launch trainers/digits_elastic.py --kind torch-elastic --set min_nodes=1 --set max_nodes=4
    """
    from kitlib import jobs
    from trainyard_kit.cli.follow import follow

    mounts = dict(volume.partition("=")[::2] for volume in volumes)
    arguments |= {"args": args, "volumes": mounts or None} | options_of(option) | {KINDS[kind].nodes: nodes}
    limits = {"cpu": cpus, "memory": memory}
    arguments |= {resource: limit for resource, limit in limits.items() if limit is not None}
    try:
        job: Job = KINDS[kind].entry.load()(trainer, **arguments)
    except TypeError as error:
        what = f"a {kind} has other arguments: {str(error).partition(') ')[2] or error}"
        raise BadInput(
            what, about=f"--kind {kind}", fix="docs/api.md lists the arguments of each kind"
        ) from error
    if dry_run:
        click.echo(job.manifest(), nl=False)
        return
    follow(
        jobs.launch(job, cluster=cluster or default_cluster(), replace=replace, must_fit=True), output=output
    )
