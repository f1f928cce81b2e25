"""``trainyard``: the library's verbs for a terminal.

Results go to stdout, progress and errors to stderr, so a file to which ``trainyard cluster kubeconfig``
is redirected contains only a kubeconfig. An error is a few lines and exit status 1. Only the commands
print.
"""

import logging
import os
import sys
from dataclasses import replace
from importlib.metadata import EntryPoint
from typing import Any

import click
from click.shell_completion import get_completion_class

from kitlib import __version__, clusters, config, plugins
from kitlib.clusters import cleanup, kubeconfigs, machine
from kitlib.clusters.base import ScalableCluster
from kitlib.clusters.local import not_found
from kitlib.display.tables import Table
from kitlib.errors import BadInput, ClusterNotFound
from kitlib.k8s import terminating
from kitlib.k8s.client import allowed
from trainyard_kit.cli.advice import PROGRAM
from trainyard_kit.cli.course import course
from trainyard_kit.cli.current import read_current, write_current
from trainyard_kit.cli.kubectl import kubectl
from trainyard_kit.cli.lessons import dataset, operator
from trainyard_kit.cli.local_store import bundle, cache, image
from trainyard_kit.cli.options import (
    CLUSTER,
    CLUSTER_NAME,
    IGNORE_NOT_FOUND,
    NEW_CLUSTER_NAME,
    OPTION,
    OUTPUT,
    YES,
    ErrorGroup,
    complete_clusters,
    for_this_terminal,
    next_step,
    show,
)
from trainyard_kit.cli.quickstart import quickstart
from trainyard_kit.cli.run import launch, run, why
from trainyard_kit.cli.volume import volume

NAME = CLUSTER_NAME


COMMANDS = {
    "extend": "clouds.cli:extend",
    "reset": "workshop.cli:reset",
    "resources": "clouds.cli:resources",
    "workshop": "workshop.cli:workshop",
}


class Commands(ErrorGroup):
    """The commands; those that need extras or a slow import are imported when they are called."""

    group_class = ErrorGroup

    def list_commands(self, ctx: click.Context) -> list[str]:
        return sorted([*super().list_commands(ctx), *COMMANDS])

    def get_command(self, ctx: click.Context, name: str) -> click.Command | None:
        if name not in COMMANDS:
            return super().get_command(ctx, name) or super().get_command(ctx, name.removesuffix("s"))
        command: click.Command = plugins.load(EntryPoint(name, f"trainyard_kit.{COMMANDS[name]}", ""))
        return command


@click.group(cls=Commands, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="trainyard-kit", prog_name="trainyard")
@click.option("--verbose", "-v", is_flag=True, help="Log each step, and show the traceback of an error.")
@click.pass_context
def main(context: click.Context, verbose: bool) -> None:
    """Train on a real Kubernetes cluster, on this machine or an existing one."""
    ErrorGroup.root = main
    context.meta["verbose"] = verbose
    if os.environ.get("NO_COLOR"):  # https://no-color.org
        context.color = False
    if verbose or not sys.stderr.isatty():  # without a terminal, progress goes to the log
        level = logging.DEBUG if verbose else logging.INFO
        logging.basicConfig(level=level, format="%(asctime)s %(message)s", datefmt="%H:%M:%S")


@main.group()
def cluster() -> None:
    """Create, list and delete clusters."""


@cluster.command()
@NEW_CLUSTER_NAME
@click.option("--provider", default="local", show_default=True, help="The cluster's provider.")
@click.option("--nodes", default=4, show_default=True, help="Number of nodes.")
@click.option("--cpus", type=float, help="Cores of each node.")
@click.option("--memory", help="Memory of each node, such as 4Gi.")
@click.option("--gpus", help="GPUs that each node declares: 8, or H100,count=8,nvlink=node (local only).")
@click.option("--port", type=int, help="Port of the API on 127.0.0.1 (local only).")
@click.option("--recreate", is_flag=True, help="Delete a cluster of this name first.")
@OPTION
def create(
    name: str,
    provider: str,
    nodes: int,
    cpus: float | None,
    memory: str | None,
    gpus: str | None,
    port: int | None,
    recreate: bool,
    option: dict[str, Any],
) -> None:
    """Create the cluster NAME, or reuse it if it is running.

    Options of a single provider have the same names as in Python:
    trainyard cluster create lab --provider eks --set region=eu-central-1 --set hours=4
    """
    options = option | ({} if port is None else {"port": port})
    count = int(gpus) if gpus and gpus.lstrip("-").isdigit() else gpus
    created = clusters.create_cluster(
        provider, name=name, nodes=nodes, cpus=cpus, memory=memory, gpus=count, recreate=recreate, **options
    )
    table = allowed(created.nodes)  # users of a single namespace may not list them
    click.echo(created if table is None else table)
    workers = min(nodes, len(table)) if table else nodes
    next_step(f"trainyard launch trainers/digits_ddp.py --nodes {workers} -c {name}")
    click.echo("For kubectl, k9s and Lens:", err=True)
    click.echo(f"export KUBECONFIG=$(trainyard cluster kubeconfig --path {name})", err=True)


@cluster.command("list")
@OUTPUT
def list_(output: str | None) -> None:
    """List the clusters."""
    show(output, clusters.list_clusters())
    if output is None and (name := read_current()):
        click.echo(f"Commands without -c use {name}.", err=True)


@cluster.command()
@click.argument("name", shell_complete=complete_clusters)
def use(name: str) -> None:
    """Make NAME the current cluster, used by commands without -c."""
    if clusters.find(name) is None:
        raise not_found(name)
    write_current(name)
    click.echo(f"commands without -c use cluster {name}")


@cluster.command()
@NAME
def status(name: str) -> None:
    """Show the status of the cluster NAME; exit status 1 if it cannot be used."""
    existing = clusters.connect(name)
    click.echo(existing)
    for line in existing.overload():
        click.echo(f"the machine is overloaded: {line}")
    for line in terminating.held_namespaces(existing.kube):
        click.echo(line)
    if (table := allowed(existing.nodes)) is not None:
        click.echo(table)
    click.echo(existing.runs())


@cluster.command()
@NAME
@click.option("--path", "only_path", is_flag=True, help="Print the path of its file.")
@click.option("--merge", is_flag=True, help="Merge it into your own: KUBECONFIG, or ~/.kube/config.")
def kubeconfig(name: str, only_path: bool, merge: bool) -> None:
    """Print the kubeconfig of the cluster NAME."""
    existing = clusters.connect(name)
    if merge:
        click.echo(f"{kubeconfigs.merge(existing)} has the context {existing.name}")
        next_step(f"kubectl --context {existing.name} get nodes")
    elif only_path:
        click.echo(existing.kubeconfig)
    else:
        click.echo(existing.kubeconfig.read_text(), nl=False)


@cluster.command()
@NAME
def start(name: str) -> None:
    """Start the cluster NAME again, with its objects and volumes."""
    click.echo(clusters.connect(name, start=True).nodes())
    next_step(f"trainyard run list -c {name}")


@cluster.command()
@NAME
def stop(name: str) -> None:
    """Stop the processes of the cluster NAME, and keep its objects and volumes."""
    local = clusters.find(name, provider="local")
    if not isinstance(local, clusters.LocalCluster):
        raise not_found(name)
    local.stop()
    next_step(f"trainyard cluster start {name}")


@cluster.command()
@NEW_CLUSTER_NAME
@click.option("--provider", help="The provider; by default any that this machine used.")
@IGNORE_NOT_FOUND
@OPTION
def delete(name: str, provider: str | None, ignore_not_found: bool, option: dict[str, Any]) -> None:
    """Delete the cluster NAME and its contents.

    A cluster at a cloud that another machine created is found with its location:
    trainyard cluster delete lab --provider eks --set region=eu-central-1
    """
    existing = clusters.find(name, provider=provider, **option)
    if existing is None:
        cleanup.delete_kubeconfigs(name)  # of a cluster that was deleted in another way
        kubeconfigs.remove(name)
        if not ignore_not_found:
            fix = "trainyard cluster list; trainyard resources list shows what remains at clouds"
            raise ClusterNotFound("there is no such cluster", about=f'cluster "{name}"', fix=fix)
    else:
        existing.delete()
        next_step("trainyard cluster list shows the remaining clusters")
    if read_current() == name:
        write_current("")


@cluster.command()
@click.argument("provider", type=click.Choice(["eks"]))
@click.argument("part", type=click.Choice(["cluster", "nodes", "end"]), default="cluster")
def template(provider: str, part: str) -> None:
    """Print the CloudFormation template of a cluster, its nodes or its scheduled deletion (end)."""
    click.echo(
        plugins.load(EntryPoint("template", f"trainyard_kit.clouds.{provider}.templates:template", ""))(part),
        nl=False,
    )


@cluster.command()
@click.argument("nodes", type=int)
@CLUSTER
@click.option("--provider", help="The provider; by default any that this machine used for this name.")
@YES
@click.option(
    "--budget", type=float, help="Budget in dollars for all clusters there; by default TRAINYARD_BUDGET."
)
@OPTION
def scale(
    nodes: int,
    cluster: str,
    provider: str | None,
    confirm: bool,
    budget: float | None,
    option: dict[str, Any],
) -> None:
    """Change the number of training nodes to NODES; this restarts a local cluster.

    At a cloud, the price of added nodes is shown and must be confirmed; 0 nodes cost nothing.
    """
    existing = clusters.connect(cluster, provider=provider, **option)
    if not isinstance(existing, ScalableCluster):
        again = f'`kit.create_cluster("{existing.provider}", name="{cluster}", nodes={nodes})`'
        raise BadInput(
            f"the nodes of a cluster of the provider {existing.provider} cannot be scaled",
            about=f'cluster "{cluster}"',
            fix=f"create it with another number of nodes: {again}",
        )
    click.echo(existing.scale(nodes, confirm=confirm, budget=budget))


@main.group()
def node() -> None:
    """Stop, start and isolate nodes to see how Kubernetes reacts."""


def _add_switch(verb: str, method: str, description: str) -> None:
    @node.command(verb, help=description)
    @click.argument("name")
    @CLUSTER
    def switch(name: str, cluster: str) -> None:
        click.echo(getattr(clusters.connect(cluster), method)(name))


@node.command("stop")
@click.argument("name")
@click.option("--graceful", is_flag=True, help="End its pods first, within their grace periods.")
@CLUSTER
def stop_node(name: str, graceful: bool, cluster: str) -> None:
    """Switch off the node NAME: its processes are killed immediately, as in a power failure."""
    click.echo(clusters.connect(cluster).stop_node(name, graceful=graceful))


_add_switch("start", "start_node", "Switch on the node NAME.")
_add_switch(
    "isolate", "isolate", "Isolate the node NAME from the network: its pods keep running but are unreachable."
)
_add_switch("reconnect", "reconnect", "Reconnect the node NAME to the network.")


for _command in (
    course,
    quickstart,
    launch,
    run,
    why,
    volume,
    kubectl,
    operator,
    dataset,
    bundle,
    cache,
    image,
):
    main.add_command(_command)


@main.command("help", context_settings={"ignore_unknown_options": True})
@click.argument("words", nargs=-1, metavar="[COMMAND]...")
@click.pass_context
def help_(context: click.Context, words: tuple[str, ...]) -> None:
    """Show the help of a command: trainyard help cluster create."""
    command: click.Command = main
    context = click.Context(main, info_name=PROGRAM)
    for word in words:
        inner = command.get_command(context, word) if isinstance(command, click.Group) else None
        if inner is None:
            raise click.UsageError(f"No such command {' '.join(words)!r}.", context)
        context, command = click.Context(inner, info_name=word, parent=context), inner
    click.echo(command.get_help(context))


@main.command()
def version() -> None:
    """Print the version."""
    click.echo(f"trainyard {__version__}")


@main.command()
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
def completion(shell: str) -> None:
    """Print the completion script for SHELL: commands, options, names of clusters and runs.

    \b
    bash: source <(trainyard completion bash)
    zsh:  source <(trainyard completion zsh)
    fish: trainyard completion fish | source
    """
    completion_class = get_completion_class(shell)
    assert completion_class, "click has it"
    click.echo(completion_class(main, {}, PROGRAM, "_TRAINYARD_COMPLETE").source())


@main.command()
@click.option("--provider", help="Check the requirements of a cluster at this provider.")
@click.option("--cluster", help="Check what this cluster and its namespace allow.")
@click.option("--nodes", default=4, show_default=True, help="Nodes of that cluster.")
@click.option("--name", default=config.DEFAULT_CLUSTER, show_default=True, help="Name of that cluster.")
@OUTPUT
@OPTION
@click.pass_context
def doctor(
    context: click.Context,
    provider: str | None,
    cluster: str | None,
    nodes: int,
    name: str,
    output: str | None,
    option: dict[str, Any],
) -> None:
    """Show this machine's capabilities and the credentials that each provider would use."""
    if cluster is not None or provider is not None:
        preflight = plugins.find("kitlib.names", "preflight")
        about = provider if cluster is None else clusters.connect(cluster)
        report = preflight(about, name=name, nodes=nodes, **option)
        checks = tuple(replace(check, fix=for_this_terminal(check.fix)) for check in report.checks)
        report = replace(report, checks=checks)
        show(output, report.table()) if output else click.echo(report)
        context.exit(0 if report.ok else 1)
    rows = [(*row, for_this_terminal(fix)) for *row, fix in clusters.credential_rows()]
    columns = ("provider", "would use", "next")
    show(output, machine=machine.doctor(), credentials=Table(columns, rows))
    if output is None:
        next_step("trainyard quickstart")
