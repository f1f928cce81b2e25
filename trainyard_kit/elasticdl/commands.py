"""``elasticdl``: the commands of ElasticDL's walk-through, for the kit's parameter server.

A module of a model zoo is trained, evaluated or used for predictions on a cluster of the kit (``--cluster``);
ElasticDL's own command uses the kubeconfig. ``docs/parameter-server.md`` lists the differences. The flags are
defined in `trainyard_kit.elasticdl.flags`.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from kitlib import clusters, config
from kitlib.clusters import Cluster
from kitlib.errors import BadInput, RunExists
from trainyard_kit.cli.main import main as trainyard
from trainyard_kit.cli.options import ErrorGroup
from trainyard_kit.elasticdl.flags import (
    COMMON,
    INIT,
    ROLES,
    Command,
    check_path,
    check_strategy,
    number_flag,
    parse_environment,
    parse_priorities,
    parse_resources,
    parse_volumes,
    text_flag,
)

if TYPE_CHECKING:
    from trainyard_kit.container_images.engines import Engine
    from trainyard_kit.elasticdl.model_zoo import ModelZooJob

PATHS = {
    "training_data",
    "validation_data",
    "prediction_data",
    "output",
    "checkpoint_dir",
    "checkpoint_dir_for_init",
}


@click.group(cls=ErrorGroup, context_settings={"help_option_names": ["-h", "--help"]})
def main() -> None:
    """Train models of a model zoo with parameter servers, by ElasticDL's commands."""
    ErrorGroup.root = trainyard


@main.command(cls=Command)
@COMMON
@click.option("--training_data", required=True, help="Dataset to train on: /data/mnist/train")
@text_flag("validation_data", "Dataset to evaluate on: /data/mnist/test")
@number_flag("num_epochs", 1, "Passes over the data.")
@number_flag("evaluation_steps", 0, "Minibatches between two evaluations; 0: one at the end.", least=0)
@number_flag("grads_to_wait", 1, "Gradients to average in an update; 1 applies each immediately.")
@click.option("--use_async", type=bool, default=None, help="True is the same as --grads_to_wait=1.")
@number_flag("sync_version_tolerance", 0, "Maximum staleness of a gradient; 0: 4 x workers.", least=0)
@number_flag("log_loss_steps", 10, "Minibatches between two losses in a worker's log.")
@text_flag("checkpoint_dir", "Folder of the servers' checkpoints, on a volume.")
@number_flag("checkpoint_steps", 0, "Updates between two checkpoints; 0: 100.", least=0)
@text_flag("checkpoint_dir_for_init", INIT)
@text_flag("output", "The model file, or a folder for model.pt; by default none is written.")
def train(use_async: bool | None, grads_to_wait: int, **options: object) -> None:
    """Train a model, with evaluations in between."""
    if use_async and grads_to_wait > 1:
        raise BadInput(
            "asynchronous training applies each gradient immediately",
            about=f"--use_async=True --grads_to_wait={grads_to_wait}",
            fix="leave one of them out",
        )
    if options["evaluation_steps"] and not options["validation_data"]:
        raise BadInput(
            "there is no data to evaluate on",
            about=f"--evaluation_steps={options['evaluation_steps']} without --validation_data",
            fix="--validation_data=/data/mnist/test",
        )
    args = {
        "log_every": options["log_loss_steps"],
        "max_staleness": options["sync_version_tolerance"],
        "checkpoint_steps": options["checkpoint_steps"] or 100,
    }
    _submit(
        options,
        mode="training",
        data=options["training_data"],
        validation=options["validation_data"],
        epochs=options["num_epochs"],
        evaluation_steps=options["evaluation_steps"],
        grads_to_wait=grads_to_wait,
        state_dir=options["checkpoint_dir"],
        init=options["checkpoint_dir_for_init"],
        output=options["output"],
        args=args,
    )


@main.command(cls=Command)
@COMMON
@click.option("--validation_data", required=True, help="Dataset to evaluate on: /data/mnist/test")
@click.option("--checkpoint_dir_for_init", required=True, help=INIT)
def evaluate(**options: object) -> None:
    """Evaluate a trained model."""
    _submit(
        options, mode="evaluation", data=options["validation_data"], init=options["checkpoint_dir_for_init"]
    )


@main.command(cls=Command)
@COMMON
@click.option("--prediction_data", required=True, help="Dataset to predict: /data/mnist/test")
@click.option("--checkpoint_dir_for_init", required=True, help=INIT)
@text_flag("prediction_outputs_processor", "Class that processes them.", "PredictionOutputsProcessor")
def predict(**options: object) -> None:
    """Predict with a trained model."""
    _submit(
        options, mode="prediction", data=options["prediction_data"], init=options["checkpoint_dir_for_init"]
    )


def _submit(options: Mapping[str, Any], **job: Any) -> None:
    """Launch a job, or write its manifest."""
    from kitlib.jobs import launch

    name = options["job_name"]
    cluster = clusters.connect(options["cluster"])
    zoo_job = _make_job(options, cluster, **job)
    if options["yaml"]:
        click.echo(f"the manifest of job {name} is in {zoo_job.bind(cluster).save(options['yaml'])}")
        return
    try:
        launch(zoo_job, cluster=cluster)
    except RunExists as error:
        fix = f"trainyard run delete {name} -c {cluster.name}"
        raise RunExists(error.what, about=error.about, fix=fix) from error
    click.echo(f"job {name} is submitted; its master is the pod elasticdl-{name}-master")
    click.echo(f"Try: trainyard kubectl -c {cluster.name} logs -f elasticdl-{name}-master", err=True)


def _make_job(options: Mapping[str, Any], cluster: Cluster, **job: Any) -> "ModelZooJob":
    from trainyard_kit.elasticdl.model_zoo import ModelZooJob, find_zoo

    names = ("loss", "optimizer", "feed", "eval_metrics_fn")
    functions = {name: options[name] for name in names}
    functions["prediction_outputs_processor"] = options.get("prediction_outputs_processor", "")
    # Local nodes may substitute the image, so there, and without an image, the zoo is sent in a ConfigMap.
    in_image = bool(options["image_name"]) and cluster.provider != "local"
    check_strategy(options)
    requests = {role: parse_resources(options, f"{role}_resource_request") for role in ROLES}
    limits = {role: parse_resources(options, f"{role}_resource_limit") for role in ROLES}
    gpus = int(limits["worker"].pop("gpu", requests["worker"].pop("gpu", 0)))
    volumes = parse_volumes(options["volume"])
    for flag in PATHS & options.keys():
        check_path(flag, options[flag], volumes)
    return ModelZooJob(
        find_zoo(options["model_zoo"], options["model_def"], functions, in_image=in_image),
        name=options["job_name"],
        workers=options["num_workers"],
        servers=options["num_ps_pods"],
        minibatch_size=options["minibatch_size"],
        minibatches_per_task=options["num_minibatches_per_task"],
        image=options["image_name"] or None,
        volumes=volumes,
        requests=requests,
        limits=limits,
        gpus=gpus,
        priority=parse_priorities(options),
        pull_policy=options["image_pull_policy"],
        environment=parse_environment(options["envs"]),
        log_level=options["log_level"],
        **job,
    )


@main.group()
def zoo() -> None:
    """Write, build and push a model zoo: a folder of models, and its image."""


@zoo.command("init", cls=Command)
@text_flag("base_image", "Base image, with Python and PyTorch.", config.DEFAULT_IMAGE)
@text_flag("extra_pypi_index", "An additional package index for pip.")
@text_flag("model_zoo", "The folder.", ".")
def init_zoo(base_image: str, extra_pypi_index: str, model_zoo: str) -> None:
    """Write a Dockerfile, requirements.txt and, into a folder without modules, an example.

    Existing files are not changed.
    """
    folder = Path(model_zoo)
    template = (config.DATA / "images" / "model-zoo" / "Dockerfile").read_text("utf-8")
    text = template.replace(config.DEFAULT_IMAGE, base_image)
    if extra_pypi_index:
        text = text.replace(" --requirement", f" --extra-index-url={extra_pypi_index} --requirement")
    files = {
        "Dockerfile": text,
        "requirements.txt": (config.DATA / "images/model-zoo/requirements.txt").read_text("utf-8"),
    }
    if not any(folder.rglob("*.py")):
        example = config.DATA / "trainers" / "model_zoo"
        files |= {str(path.relative_to(example)): path.read_text("utf-8") for path in example.rglob("*.py")}
    for name, content in files.items():
        path = folder / name
        if path.exists():
            click.echo(f"{path} exists and is not changed")
            continue
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content, encoding="utf-8")
        click.echo(f"{path} is written")


@zoo.command("build", cls=Command)
@click.argument("path", type=click.Path(exists=True, file_okay=False, path_type=Path))
@click.option("--image", required=True, help="Name of the image, with registry and tag.")
def build_zoo(path: Path, image: str) -> None:
    """Build the image of the model zoo in PATH."""
    from trainyard_kit.container_images.build_context import BuildContext

    file = path / "Dockerfile"
    if not file.is_file():
        fix = f"cd {path}; elasticdl zoo init"
        raise BadInput("there is no Dockerfile", about=str(path.resolve()), fix=fix)
    seconds = _engine(image).build(image, BuildContext(path, file))
    click.echo(f"{image} is built, in {seconds:.1f} s")


@zoo.command("push", cls=Command)
@click.argument("image")
def push_zoo(image: str) -> None:
    """Push IMAGE to its registry."""
    _, digest = _engine(image).push(image)
    click.echo(f"{image} is pushed: {digest}")


def _engine(image: str) -> "Engine":
    from trainyard_kit.container_images import engines

    fix = "start Docker or Podman; local nodes need no image of a zoo: elasticdl train --model_zoo=FOLDER"
    return engines.find(image, fix=fix)


if __name__ == "__main__":
    main()
