"""``trainyard kubectl``: run kubectl on a cluster, which may also be named after kubectl's arguments."""

import os

import click

from kitlib import clusters
from kitlib.clusters.kubectl import find_kubectl
from trainyard_kit.cli.current import default_cluster
from trainyard_kit.cli.options import NAMED_CLUSTER

# Subcommands of kubectl whose -c names a container.
WITH_CONTAINER = ("attach", "cp", "debug", "exec", "logs", "set")


@click.command(context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False})
@click.argument("words", nargs=-1, type=click.UNPROCESSED)
@NAMED_CLUSTER
def kubectl(words: tuple[str, ...], cluster: str | None) -> None:
    """Run kubectl on a cluster: trainyard kubectl get pods -A.

    The cluster may also be given last: trainyard kubectl get pods -c lab. For subcommands whose -c names a
    container, use --cluster lab.
    """
    if not words:  # kubectl's help needs no cluster
        program = find_kubectl()
        os.execvp(program[0], program)
    rest, named = split_cluster(words)
    current = clusters.connect(named or cluster or default_cluster())
    command = current.kubectl_command()
    os.execvpe(command[0], [*command, *rest], os.environ | {"KUBECONFIG": str(current.kubeconfig)})


def split_cluster(words: tuple[str, ...]) -> tuple[list[str], str | None]:
    """Separate the name of a cluster from kubectl's arguments; those after ``--`` are a container's.

    Example:
        >>> split_cluster(("get", "nodes", "-c", "lab"))
        (['get', 'nodes'], 'lab')
    """
    end = words.index("--") if "--" in words else len(words)
    ours, rest, name = list(words[:end]), list[str](), None
    short = not set(ours) & set(WITH_CONTAINER)
    while ours:
        word = ours.pop(0)
        if word == "--cluster" or (short and word == "-c"):
            if not ours:
                raise click.UsageError(f"Option {word!r} requires an argument.")
            name = ours.pop(0)
        elif word.startswith("--cluster="):
            name = word.removeprefix("--cluster=")
        elif short and word.startswith("-c") and len(word) > 2:
            name = word[2:].removeprefix("=")
        else:
            rest.append(word)
    return [*rest, *words[end:]], name
