"""The flags of ``elasticdl``, and their values."""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click

from kitlib.errors import BadInput
from trainyard_kit.cli.options import CLUSTER, Flag, combine

ROLES = ("master", "ps", "worker")
KINDS = {"cpu": "cpu", "memory": "memory", "disk": "ephemeral-storage", "gpu": "gpu"}
REQUESTS = {"master": "cpu=0.1,memory=1024Mi", "ps": "cpu=1,memory=4096Mi", "worker": "cpu=1,memory=4096Mi"}
LEVELS = ["DEBUG", "INFO", "WARNING", "ERROR", "CRITICAL"]
STRATEGY = "ParameterServerStrategy"


class Command(click.Command):
    """A command whose error about an unknown flag suggests similar ones."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        try:
            return super().parse_args(ctx, args)
        except click.NoSuchOption as error:
            about = f"{ctx.command_path} {error.option_name}"
            similar = f"did you mean {', '.join(error.possibilities)}? " if error.possibilities else ""
            fix = f"{similar}{ctx.command_path} --help lists the flags"
            raise BadInput("there is no such flag", about=about, fix=fix) from error


def number_flag(name: str, default: int, help: str, *, least: int = 1) -> Flag:
    return click.option(
        f"--{name}", type=click.IntRange(min=least), default=default, show_default=True, help=help
    )


def text_flag(name: str, help: str, default: str = "") -> Flag:
    return click.option(f"--{name}", default=default, show_default=bool(default), help=help)


def choice_flag(name: str, choices: list[str], default: str, help: str) -> Flag:
    kind = click.Choice(choices, case_sensitive=name != "log_level")
    return click.option(f"--{name}", type=kind, default=default, show_default=True, help=help)


COMMON = combine(
    click.option("--job_name", required=True, help="Name of the job; its pods are elasticdl-NAME-master, …"),
    click.option("--model_zoo", required=True, help="Folder of the model zoo, local or in the image."),
    click.option("--model_def", required=True, help="package.module.function of the model, in the zoo."),
    text_flag("image_name", "Image of all pods; by default the cluster's own."),
    text_flag("volume", 'Volumes: "mount_path=/data,claim_name=CLAIM", separated by ";".'),
    text_flag("loss", "Name of the loss function.", "loss"),
    text_flag("optimizer", "Name of the optimizer's function.", "optimizer"),
    text_flag("feed", "Name of the function that converts records to examples.", "feed"),
    text_flag("eval_metrics_fn", "Name of the function that returns the metrics.", "eval_metrics_fn"),
    number_flag("minibatch_size", 64, "Records in a minibatch."),
    number_flag("num_minibatches_per_task", 8, "Minibatches in a task, the unit of work of a worker."),
    number_flag("num_workers", 2, "Number of workers."),
    number_flag("num_ps_pods", 1, "Number of parameter servers."),
    *(
        text_flag(f"{role}_resource_request", "Requests of each, such as cpu=1,memory=1024Mi.", default)
        for role, default in REQUESTS.items()
    ),
    *(text_flag(f"{role}_resource_limit", "Limits of each; by default its requests.") for role in ROLES),
    *(text_flag(f"{role}_pod_priority", "PriorityClass: high, low, or your own.") for role in ROLES),
    choice_flag("image_pull_policy", ["Always", "IfNotPresent", "Never"], "Always", "Of the image."),
    choice_flag("restart_policy", ["Never", "OnFailure", "Always"], "Never", "Lost pods are replaced."),
    choice_flag("log_level", LEVELS, "INFO", "Of the log; INFO shows losses and evaluations."),
    choice_flag("distribution_strategy", [STRATEGY, "AllreduceStrategy", "Local"], STRATEGY, "How to train."),
    text_flag("envs", "Variables of all pods: KEY=VALUE,KEY=VALUE"),
    text_flag("yaml", "Write the manifest to this file, and submit nothing."),
    CLUSTER,
)
INIT = "A model file, or a folder with model.pt or checkpoints, to start from."


def check_strategy(options: Mapping[str, Any]) -> None:
    if options["distribution_strategy"] != STRATEGY:
        raise BadInput(
            "ElasticDL's other strategies are not supported",
            about=f"--distribution_strategy={options['distribution_strategy']}",
            fix=f"--distribution_strategy={STRATEGY}; trainyard launch TRAINER trains with all-reduce",
        )
    if options["restart_policy"] != "Never":
        raise BadInput(
            "containers are not restarted: the master replaces pods, and its Job replaces the master",
            about=f"--restart_policy={options['restart_policy']}",
            fix="leave it out",
        )


def _pairs(text: str, *, flag: str, example: str, known: Mapping[str, str]) -> dict[str, str]:
    """Parse ``key=value,key=value``."""
    pairs = {}
    for entry in filter(None, text.split(",")):
        key, equals, value = (part.strip() for part in entry.partition("="))
        if not equals or not value or key not in known:
            what = f"{key or entry} is not one of {', '.join(known)}" if equals else "this is not key=value"
            raise BadInput(what, about=f'--{flag}="{text}"', fix=f'--{flag}="{example}"')
        pairs[known[key]] = value
    return pairs


def parse_resources(options: Mapping[str, Any], flag: str) -> dict[str, str]:
    resources = _pairs(options[flag], flag=flag, example="cpu=1,memory=1024Mi", known=KINDS)
    gpu = resources.get("gpu", "0")
    if not gpu.isdigit() or ("gpu" in resources and not flag.startswith("worker")):
        about = f'--{flag}="{options[flag]}"'
        raise BadInput("only workers can have GPUs, an integer", about=about, fix="leave gpu out")
    return resources


def parse_volumes(text: str) -> dict[str, str]:
    example = "mount_path=/data,claim_name=fileserver-claim"
    if not text:
        fix = f'--volume="{example}"; trainyard volume list shows the claims'
        raise BadInput("the data and the job's state need a volume", about="--volume", fix=fix)
    known = {name: name for name in ("mount_path", "claim_name", "host_path", "type")}
    volumes = {}
    for part in filter(None, text.split(";")):
        mount = _pairs(part, flag="volume", example=example, known=known)
        if "host_path" in mount:
            fix = f'put the files on a volume (trainyard volume upload), and --volume="{example}"'
            raise BadInput("folders of nodes cannot be mounted", about=f'--volume="{text}"', fix=fix)
        if set(mount) != {"mount_path", "claim_name"}:
            fix = f'--volume="{example}"'
            raise BadInput("a volume has a mount_path and a claim_name", about=f'--volume="{part}"', fix=fix)
        volumes[mount["mount_path"]] = mount["claim_name"]
    return volumes


def check_path(flag: str, path: str, volumes: Mapping[str, str]) -> None:
    """Raise BadInput for a path outside the volumes: pods would not find it, or lose it."""
    parts = Path(path).parts
    if path and not any(parts[: len(Path(volume).parts)] == Path(volume).parts for volume in volumes):
        mounted = ", ".join(volumes)
        raise BadInput(
            "this path is on no volume",
            about=f"--{flag}={path}; volumes are mounted at {mounted}",
            fix=f"use a path below {mounted}, or mount another volume with --volume",
        )


def parse_priorities(options: Mapping[str, Any]) -> dict[str, str]:
    priorities = {role: options[f"{role}_pod_priority"] for role in ROLES if options[f"{role}_pod_priority"]}
    for role, name in priorities.items():
        if "=" in name:
            raise BadInput(
                "all workers have the same priority",
                about=f"--{role}_pod_priority={name}",
                fix=f"--{role}_pod_priority=low",
            )
    return priorities


def parse_environment(text: str) -> dict[str, str]:
    """Parse ``KEY=VALUE,KEY=VALUE``, whose values may contain commas."""
    variables = {}
    for setting in filter(None, re.split(r",(?=[A-Za-z_]\w*=)", text)):
        key, equals, value = setting.partition("=")
        if not equals or not key.isidentifier():
            raise BadInput(
                "this is not a variable", about=f'--envs="{text}"', fix='--envs="KEY=VALUE,KEY=VALUE"'
            )
        variables[key] = value
    return variables
