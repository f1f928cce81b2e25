"""``elasticdl``: the commands of ElasticDL's walk-through, for the kit's parameter server.

A module of a model zoo is trained, evaluated or used for predictions on a cluster of the kit
(``--cluster``), which ElasticDL's own command finds by the kubeconfig. ``docs/parameter-server.md`` says what
differs. What the flags mean is in `trainyard_kit.elasticdl.flags`.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from kitlib import clusters, config
from kitlib.clusters import Cluster
from kitlib.errors import BadInput, NoContainerEngine, RunExists
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
    """Train models of a model zoo with parameter servers, by the commands of ElasticDL."""
    ErrorGroup.root = trainyard


@main.command(cls=Command)
@COMMON
@click.option("--training_data", required=True, help="A part of a dataset: /data/mnist/train")
@text_flag("validation_data", "The part to evaluate with: /data/mnist/test")
@number_flag("num_epochs", 1, "How often each record is used.")
@number_flag("evaluation_steps", 0, "Minibatches between two evaluations; 0: one at the end.", least=0)
@number_flag("grads_to_wait", 1, "Gradients whose mean is applied; 1 applies each at once.")
@click.option("--use_async", type=bool, default=None, help="True is the same as --grads_to_wait=1.")
@number_flag("sync_version_tolerance", 0, "How stale a gradient may be; 0: 4 x the workers.", least=0)
@number_flag("log_loss_steps", 10, "Minibatches of a worker between two losses in its log.")
@text_flag("checkpoint_dir", "Folder of the servers' checkpoints, on a volume.")
@number_flag("checkpoint_steps", 0, "Updates between two checkpoints; 0: a hundred.", least=0)
@text_flag("checkpoint_dir_for_init", INIT)
@text_flag("output", "The model file, or a folder for model.pt; by default none is written.")
def train(use_async: bool | None, grads_to_wait: int, **options: object) -> None:
    """Train a model, and evaluate it meanwhile."""
    if use_async and grads_to_wait > 1:
        raise BadInput(
            "asynchronous training applies each gradient at once",
            about=f"--use_async=True --grads_to_wait={grads_to_wait}",
            fix="leave one of them out",
        )
    if options["evaluation_steps"] and not options["validation_data"]:
        raise BadInput(
            "there is nothing to evaluate with",
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
@click.option("--validation_data", required=True, help="The part to evaluate with: /data/mnist/test")
@click.option("--checkpoint_dir_for_init", required=True, help=INIT)
def evaluate(**options: object) -> None:
    """Evaluate a trained model."""
    _submit(
        options, mode="evaluation", data=options["validation_data"], init=options["checkpoint_dir_for_init"]
    )


@main.command(cls=Command)
@COMMON
@click.option("--prediction_data", required=True, help="The part to predict: /data/mnist/test")
@click.option("--checkpoint_dir_for_init", required=True, help=INIT)
@text_flag("prediction_outputs_processor", "Class of what happens then.", "PredictionOutputsProcessor")
def predict(**options: object) -> None:
    """Have a trained model predict."""
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
        raise RunExists(
            error.what, about=error.about, fix=f"trainyard run delete {name} -c {cluster.name}"
        ) from error
    click.echo(f"job {name} is submitted; its master is the pod elasticdl-{name}-master")
    click.echo(f"Try: trainyard kubectl -c {cluster.name} logs -f elasticdl-{name}-master", err=True)


def _make_job(options: Mapping[str, Any], cluster: Cluster, **job: Any) -> "ModelZooJob":
    from trainyard_kit.elasticdl.model_zoo import ModelZooJob, find_zoo

    names = ("loss", "optimizer", "feed", "eval_metrics_fn")
    functions = {name: options[name] for name in names}
    functions["prediction_outputs_processor"] = options.get("prediction_outputs_processor", "")
    # A local node may run a stand-in for the image: there, and without an image, the zoo travels from here.
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
@text_flag("base_image", "Image with Python and PyTorch that the zoo's is built on.", config.DEFAULT_IMAGE)
@text_flag("extra_pypi_index", "One more package index, for pip in the image.")
@text_flag("model_zoo", "The folder.", ".")
def init_zoo(base_image: str, extra_pypi_index: str, model_zoo: str) -> None:
    """Write a Dockerfile, requirements.txt and, into a folder without modules, an example.

    Existing files stay as they are.
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
@click.option("--image", required=True, help="Its name, with registry and tag.")
def build_zoo(path: Path, image: str) -> None:
    """Build the image of the model zoo in PATH."""
    from trainyard_kit.container_images.build_context import BuildContext

    file = path / "Dockerfile"
    if not file.is_file():
        raise BadInput(
            "there is no Dockerfile", about=str(path.resolve()), fix=f"cd {path}; elasticdl zoo init"
        )
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

    engine = engines.find()
    if engine is None:
        fix = "start Docker or Podman; local nodes need no image of a zoo: elasticdl train --model_zoo=FOLDER"
        raise NoContainerEngine(engines.missing(), about=f"image {image}", fix=fix)
    return engine


if __name__ == "__main__":
    main()
