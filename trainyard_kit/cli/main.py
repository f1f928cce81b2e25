"""``trainyard``: the library's verbs for a terminal.

Results go to stdout, progress and errors to stderr, so that a file to which ``trainyard cluster kubeconfig``
is sent holds a kubeconfig and nothing else. An error is a few lines and exit status 1. Only the commands
print.
"""

import logging
import os
import sys
from importlib.metadata import EntryPoint
from typing import Any

import click
from click.shell_completion import get_completion_class

from kitlib import __version__, clusters, config, plugins
from kitlib.clusters import cleanup, kubeconfigs, machine
from kitlib.clusters.trainer_image import TRAINER
from kitlib.display.tables import Table
from kitlib.errors import BadInput, ClusterNotFound
from trainyard_kit.cli import local_store
from trainyard_kit.cli.advice import PROGRAM, for_terminal
from trainyard_kit.cli.course import course
from trainyard_kit.cli.kubectl import kubectl
from trainyard_kit.cli.lessons import dataset, operator
from trainyard_kit.cli.options import (
    CLUSTER,
    CLUSTER_NAME,
    IGNORE_NOT_FOUND,
    OPTION,
    OUTPUT,
    YES,
    ErrorGroup,
    show,
)
from trainyard_kit.cli.quickstart import quickstart
from trainyard_kit.cli.run import launch, run
from trainyard_kit.cli.volume import volume

NAME = CLUSTER_NAME


COMMANDS = {
    "extend": "clouds.cli:extend",
    "reset": "workshop.cli:reset",
    "resources": "clouds.cli:resources",
    "workshop": "workshop.cli:workshop",
}


class Commands(ErrorGroup):
    """The commands, some of which are imported when they are called: they need extras, or time."""

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
def main() -> None:
    """Train on a real Kubernetes cluster: on this machine, or on any that you have."""
    ErrorGroup.root = main
    if os.environ.get("NO_COLOR"):  # https://no-color.org
        click.get_current_context().color = False
    if not sys.stderr.isatty():  # progress goes to the log where no line can be rewritten
        logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s", datefmt="%H:%M:%S")


@main.group()
def cluster() -> None:
    """Create, see and delete clusters."""


@cluster.command()
@NAME
@click.option("--provider", default="local", show_default=True, help="Of the cluster.")
@click.option("--nodes", default=4, show_default=True, help="How many nodes.")
@click.option("--cpus", type=float, help="Cores of each node.")
@click.option("--memory", help="Memory of each node, such as 4Gi.")
@click.option("--gpus", type=int, help="GPUs that each node declares.")
@click.option("--port", type=int, help="Port of the API on 127.0.0.1 (local only).")
@click.option("--recreate", is_flag=True, help="Delete a cluster of this name first.")
@OPTION
def create(
    name: str,
    provider: str,
    nodes: int,
    cpus: float | None,
    memory: str | None,
    gpus: int | None,
    port: int | None,
    recreate: bool,
    option: dict[str, Any],
) -> None:
    """Create the cluster NAME, or find it running.

    Options of one provider have their names in Python:
    trainyard cluster create lab --provider eks --set region=eu-central-1 --set hours=4
    """
    options = option | ({} if port is None else {"port": port})
    made = clusters.create_cluster(
        provider, name=name, nodes=nodes, cpus=cpus, memory=memory, gpus=gpus, recreate=recreate, **options
    )
    click.echo(made.nodes())
    click.echo(f"\nTry: trainyard kubectl -c {name} get pods -A", err=True)
    click.echo("For kubectl, k9s and Lens:", err=True)
    click.echo(f"export KUBECONFIG=$(trainyard cluster kubeconfig --path {name})", err=True)


@cluster.command("list")
@OUTPUT
def list_(output: str | None) -> None:
    """List the clusters."""
    show(output, clusters.list_clusters())


@cluster.command()
@NAME
def status(name: str) -> None:
    """Show the status of the cluster NAME; exit status 1 if it cannot be used."""
    found = clusters.connect(name)
    click.echo(found)
    click.echo(found.nodes())
    click.echo(found.runs())


@cluster.command()
@NAME
@click.option("--path", "only_path", is_flag=True, help="Print where it is.")
@click.option("--merge", is_flag=True, help="Add it to your own: KUBECONFIG, or ~/.kube/config.")
def kubeconfig(name: str, only_path: bool, merge: bool) -> None:
    """Print the kubeconfig of the cluster NAME."""
    found = clusters.connect(name)
    if merge:
        click.echo(f"{kubeconfigs.merge(found)} has the context {found.name}")
        click.echo(f"Try: kubectl --context {found.name} get nodes", err=True)
    elif only_path:
        click.echo(found.kubeconfig)
    else:
        click.echo(found.kubeconfig.read_text(), nl=False)


@cluster.command()
@NAME
def start(name: str) -> None:
    """Start the cluster NAME again, with the objects and volumes that it had."""
    click.echo(clusters.connect(name, start=True).nodes())


@cluster.command()
@NAME
def stop(name: str) -> None:
    """Stop the processes of the cluster NAME, and keep its objects and volumes."""
    clusters.LocalCluster(name).stop()


@cluster.command()
@NAME
@click.option("--provider", help="By default any that this machine has used.")
@IGNORE_NOT_FOUND
@OPTION
def delete(name: str, provider: str | None, ignore_not_found: bool, option: dict[str, Any]) -> None:
    """Delete the cluster NAME and all that is in it.

    A cluster at a cloud that another machine created is found with its location:
    trainyard cluster delete lab --provider eks --set region=eu-central-1
    """
    found = clusters.find(name, provider=provider, **option)
    if found is None:
        cleanup.delete_kubeconfigs(name)  # of one that has gone otherwise
        kubeconfigs.remove(name)
        if not ignore_not_found:
            fix = "trainyard cluster list; trainyard resources list has what is left at clouds"
            raise ClusterNotFound("there is no such cluster", about=f'cluster "{name}"', fix=fix)
    else:
        found.delete()


@cluster.command()
@click.argument("provider", type=click.Choice(["eks"]))
@click.argument("part", type=click.Choice(["cluster", "nodes"]), default="cluster")
def template(provider: str, part: str) -> None:
    """Print the CloudFormation template of a cluster, or of its nodes, to read or to deploy."""
    click.echo(
        plugins.load(EntryPoint("template", f"trainyard_kit.clouds.{provider}.stacks:template", ""))(part),
        nl=False,
    )


@cluster.command()
@click.argument("nodes", type=int)
@CLUSTER
@click.option("--provider", help="Whose; by default any that this machine used for this name.")
@YES
@click.option("--budget", type=float, help="Dollars for all clusters there; by default TRAINYARD_BUDGET.")
@OPTION
def scale(
    nodes: int,
    cluster: str,
    provider: str | None,
    confirm: bool,
    budget: float | None,
    option: dict[str, Any],
) -> None:
    """Change the number of training nodes to NODES; a local cluster restarts for it.

    What more nodes cost at a cloud is shown, and asked for; 0 costs nothing for them.
    """
    found = clusters.connect(cluster, provider=provider, **option)
    if not hasattr(found, "scale"):
        again = f'kit.create_cluster("{found.provider}", name="{cluster}", nodes={nodes})'
        raise BadInput(
            f"the nodes of a cluster of the provider {found.provider} cannot be scaled",
            about=f'cluster "{cluster}"',
            fix=f"create it with other nodes: {again}",
        )
    click.echo(found.scale(nodes, confirm=confirm, budget=budget))


@main.group()
def node() -> None:
    """Stop, start, isolate and simulate nodes, to see how Kubernetes reacts."""


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
    """Switch the node NAME off: its processes are killed at once, as in a power failure."""
    click.echo(clusters.connect(cluster).stop_node(name, graceful=graceful))


_add_switch("start", "start_node", "Switch the node NAME on again.")
_add_switch(
    "isolate", "isolate", "Isolate the node NAME from the network: its pods run on, and nobody reaches them."
)
_add_switch("reconnect", "reconnect", "Bring the node NAME back to the network.")


@node.command()
@click.argument("count", type=int)
@CLUSTER
def simulate(count: int, cluster: str) -> None:
    """Simulate COUNT nodes whose pods only report that they run; 0 removes them."""
    clusters.connect(cluster).simulate_nodes(count)


main.add_command(course)
main.add_command(quickstart)
main.add_command(launch)
main.add_command(run)
main.add_command(volume)


main.add_command(kubectl)
main.add_command(operator)
main.add_command(dataset)


@main.command()
def version() -> None:
    """Print the version."""
    click.echo(f"trainyard {__version__}")


@main.command()
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
def completion(shell: str) -> None:
    """Print what lets SHELL complete commands, options, and names of clusters and runs.

    \b
    bash: source <(trainyard completion bash)
    zsh:  source <(trainyard completion zsh)
    fish: trainyard completion fish | source
    """
    made = get_completion_class(shell)
    assert made, "click has it"
    click.echo(made(main, {}, PROGRAM, "_TRAINYARD_COMPLETE").source())


@main.group()
def bundle() -> None:
    """Carry everything that is fetched or built to machines without a network."""


@bundle.command("create")
@click.argument("file", type=click.Path(dir_okay=False))
@click.option("--without-wheels", is_flag=True, help="Leave the Python packages out: a small file.")
@click.option("--image", "images", multiple=True, help="A container image to take along; may be repeated.")
def create_bundle(file: str, without_wheels: bool, images: tuple[str, ...]) -> None:
    """Create FILE from what this machine has, and from the Python packages that it fetches."""
    made = local_store.create_bundle(file, wheels=not without_wheels, images=images)
    click.echo(f"{made['file']}: {made['bytes'] / 1e6:,.0f} MB, {', '.join(made['holds'])}")


@bundle.command("use")
@click.argument("file", type=click.Path(exists=True, dir_okay=False))
def use_bundle(file: str) -> None:
    """Unpack FILE, so that this machine needs no network."""
    used = local_store.use_bundle(file)
    click.echo(f"{used['cache']} has {', '.join(used['holds'])}")


@main.group(invoke_without_command=True)
@click.option("--wide", is_flag=True, help="Show also what each stand-in cannot do.")
@OUTPUT
@click.pass_context
def image(context: click.Context, wide: bool, output: str | None) -> None:
    """Show, pull, load, save, build and remove images, and what stands in for some."""
    if context.invoked_subcommand is None:
        known, pulled = machine.images(wide=wide), local_store.pulled_images()
        if pulled.rows or output:
            show(output, known=known, pulled=pulled)
        else:
            show(output, known)


@image.command("list")
@OUTPUT
def list_images(output: str | None) -> None:
    """Show the images that were pulled or loaded."""
    show(output, local_store.pulled_images())


@image.command("build")
@click.argument("name", default=TRAINER)
@click.option("--tag", help="By default made from the content.")
@click.option("--dockerfile", default="images/trainer/Dockerfile", show_default=True)
@click.option("--registry", default="", help="To which it is pushed.")
@click.option("--here", is_flag=True, help="Only build it, for no cluster.")
@CLUSTER
def build_image(name: str, tag: str | None, dockerfile: str, registry: str, here: bool, cluster: str) -> None:
    """Build the image NAME, by default the trainer's, for the pods of a cluster."""
    from trainyard_kit.container_images import build_image as build

    place = None if here else clusters.connect(cluster)
    click.echo(build(name, tag=tag, dockerfile=dockerfile, registry=registry, cluster=place))


@image.command("pull")
@click.argument("references", nargs=-1, required=True)
@click.option("--platform", help="Such as linux/arm64, in place of this machine's.")
def pull_images(references: tuple[str, ...], platform: str | None) -> None:
    """Pull REFERENCES, with your own Docker credentials."""
    for reference in references:
        found = local_store.pull_image(reference, platform=platform)
        click.echo(f"{', '.join(found['names'] or found['digests'])} is {found['id']}")


@image.command("load")
@click.argument("file", type=click.Path(exists=True))
def load_images(file: str) -> None:
    """Load the images in FILE: of docker save, or an OCI layout."""
    for loaded in machine.load_images(file):
        click.echo(f"{', '.join(loaded['names']) or 'an image without a name'} is {loaded['id']}")


@image.command("save")
@click.argument("references", nargs=-1, required=True)
@click.option("--file", required=True, type=click.Path(dir_okay=False), help="The archive.")
def save_images(references: tuple[str, ...], file: str) -> None:
    """Write REFERENCES to one archive, which Docker and Podman load as well."""
    click.echo(f"{file}: {local_store.save_images(*references, file=file) / 1e6:,.1f} MB")


@image.command("remove")
@click.argument("references", nargs=-1, required=True)
def remove_images(references: tuple[str, ...]) -> None:
    """Remove REFERENCES: names, or ids."""
    _echo_removed(local_store.remove_images(*references))


@image.command("prune")
@click.option("--all", "everything", is_flag=True, help="Also the images that no container uses.")
def prune_images(everything: bool) -> None:
    """Remove the layers and half downloads that no image needs."""
    _echo_removed(local_store.prune_images(all=everything))


def _echo_removed(found: dict[str, Any]) -> None:
    for name in found["untagged"]:
        click.echo(f"{name} is removed")
    click.echo(f"{len(found['images'])} images removed, {found['freed'] / 1e6:,.1f} MB freed")


@image.command("get")
@click.argument("names", nargs=-1, required=True)
def get_images(names: tuple[str, ...]) -> None:
    """Obtain the programs NAMES that images run: operators are built, which takes a minute or two each."""
    for program in machine.get_images(*names):
        click.echo(f"{program['name']} {program['version']} is in {program['folder']}")


@main.group(invoke_without_command=True)
@OUTPUT
@click.pass_context
def cache(context: click.Context, output: str | None) -> None:
    """Show what the kit keeps on this machine, and how large it is."""
    if context.invoked_subcommand is None:
        show(output, local_store.cache_contents())


@cache.command("clear")
@click.option("--what", help="All of one kind that no cluster uses, such as bench.")
def clear_cache(what: str | None) -> None:
    """Remove what neither a cluster nor this version of the kit uses."""
    click.echo(local_store.clear_cache(what))


@main.command()
@click.option("--provider", help="Check instead what may prevent a cluster there.")
@click.option("--nodes", default=4, show_default=True, help="Number of its nodes.")
@click.option("--name", default=config.DEFAULT_CLUSTER, show_default=True, help="Its name.")
@OUTPUT
@OPTION
@click.pass_context
def doctor(
    context: click.Context,
    provider: str | None,
    nodes: int,
    name: str,
    output: str | None,
    option: dict[str, Any],
) -> None:
    """Show what this machine can do, and the credentials that each provider would use."""
    if provider is not None:
        preflight = plugins.find("kitlib.names", "preflight")
        report = preflight(provider, name=name, nodes=nodes, **option)
        show(output, report.table()) if output else click.echo(report)
        context.exit(0 if report.ok else 1)
    credentials = clusters.credentials()
    rows = [
        (*row[:-1], for_terminal(str(row[-1]), command=None, root=main, known={})) for row in credentials.rows
    ]
    show(output, machine=machine.doctor(), credentials=Table(credentials.columns, rows))
