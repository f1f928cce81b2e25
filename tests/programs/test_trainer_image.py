"""A program that runs here runs on a cloud: it declares what it imports, and the image has exactly that.

To run every trainer with its declared packages alone, nothing is installed: torch would be 5 GB. Instead a
new virtual environment gets links to the installed files of the declared distributions and of what these
need in turn, by their metadata. Whatever else this environment has cannot be imported in that one.
"""

import ast
import json
import os
import re
import subprocess
import sys
import venv
from importlib import metadata
from pathlib import Path

import pytest
import trainer_image
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from kitlib import config
from kitlib.clusters.trainer_image import OFFICIAL

from ..rows import slow
from .small_data import write_cifar10, write_folders

ROOT = Path(__file__).parents[2]
BIN = Path(sys.executable).parent  # of the environment, which need not be on PATH
DOCKERFILE = ROOT / "images" / "trainer" / "Dockerfile"
MEASURES = ("allreduce", "nccl_check")  # learn nothing, and so have neither epochs nor an accuracy
BY_TORCH = {"gpt": {"numpy"}}  # torch imports it to send objects between ranks, and does not require it
MODEL_FILES = ("mnist_parameter_server",)  # a program imports them
# What modules of torch import for themselves.
BEHIND = {
    "torch.distributed.elastic.rendezvous.etcd_rendezvous_backend": "etcd",
    "torch.utils.tensorboard": "tensorboard",
}


TRAINERS = trainer_image.trainers()
PROGRAMS = [*TRAINERS, *trainer_image.packages(), *trainer_image.OTHERS]
PINS = dict(re.findall(r"^(\S+)==(\S+)$", (ROOT / "constraints.txt").read_text(), re.MULTILINE))
# It stands for the others in make test: a process with torch for each takes minutes together.
QUICK = ROOT / "trainers" / "digits_ddp.py"


def imports(trainer):
    """Return the top-level names that a trainer or a sibling of it imports, or asks importlib to find."""
    names = set()
    for node in ast.walk(ast.parse(trainer.read_text())):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and not node.level:
            names.add(node.module)
        elif isinstance(node, ast.Call) and ast.unparse(node.func) == "importlib.util.find_spec":
            names |= {argument.value for argument in node.args if isinstance(argument, ast.Constant)}
    names |= {package for name, package in BEHIND.items() if name in names}
    names = {name.partition(".")[0] for name in names} - set(sys.stdlib_module_names)
    beside = {name: path for name in names if (path := trainer.with_name(f"{name}.py")).exists()}
    return (names - beside.keys()).union(*map(imports, beside.values()))


def only_declared(trainer, folder):
    """Make an environment with a trainer's packages; return its Python."""
    return link_packages(folder / "venv", trainer_image.closure(trainer_image.declared(trainer)))


def link_packages(target, names):
    """Make an environment that has these installed distributions and no others; return its Python."""
    venv.create(target, symlinks=True)
    site = next((target / "lib").glob("python3*")) / "site-packages"
    for name in names:
        distribution = metadata.distribution(name)
        for top in {file.parts[0] for file in distribution.files or []} - {"..", "__pycache__"}:
            if not (site / top).is_symlink():
                (site / top).symlink_to(distribution.locate_file(top))
    return target / "bin" / "python"


@pytest.fixture
def flags(tmp_path):
    """Return a function that makes what a trainer reads, and returns the flags that say where."""

    def make(trainer):
        if trainer.stem in (*MEASURES, *MODEL_FILES):
            return []
        if trainer.stem == "axes":
            return ["--steps=2"]
        if trainer.stem == "gpt":
            return ["--steps=2", "--sample=5", f"--checkpoint-dir={tmp_path / 'checkpoints'}"]
        if trainer.stem == "failing":
            return ["--case=a", "--steps=2"]  # before the step in which it fails
        if trainer.stem.startswith("digits"):
            return ["--epochs=1"]
        if trainer.stem.startswith("tiny_imagenet"):
            return ["--epochs=1", "--limit=20", f"--data-dir={write_folders(tmp_path / 'tiny')}"]
        data = f"--data-dir={write_cifar10(tmp_path / 'cifar10')}"
        if trainer.stem in ("cifar10_checkpoint", "cifar10_fsdp"):
            return ["--epochs=1", data, f"--checkpoint-dir={tmp_path / 'checkpoints'}"]
        if trainer.stem != "evaluate":
            return ["--epochs=1", data]
        model = f"--model-file={tmp_path / 'model.pt'}"
        program = str(ROOT / "trainers" / "cifar10_ddp.py")
        assert run(Path(sys.executable), program, "--epochs=1", data, model).returncode == 0
        return [data, model]

    return make


def run(python, *arguments):
    clean = {
        key: value for key, value in os.environ.items() if not key.startswith(("PYTHON", "RANK", "WORLD_"))
    }
    command = [str(python), *arguments]
    return subprocess.run(
        command, capture_output=True, text=True, env=clean, cwd=python.parent, timeout=800, check=False
    )


@pytest.mark.parametrize(
    "trainer", [QUICK, *slow(*(path for path in TRAINERS if path != QUICK))], ids=lambda path: path.stem
)
def test_a_trainer_runs_with_its_declared_packages_alone(trainer, flags, tmp_path):
    ranks = trainer.stem in ("axes", "failing")  # which want a launcher
    torchrun = ["-m", "torch.distributed.run", "--standalone"] if ranks else []
    done = run(only_declared(trainer, tmp_path), *torchrun, str(trainer), *flags(trainer))
    assert done.returncode == 0, done.stderr
    lines = [line for line in done.stdout.splitlines() if line.startswith("{")]  # others are for people
    events = [json.loads(line)["event"] for line in lines]
    if trainer.stem in MODEL_FILES:
        assert not events, "importing it does nothing"
        return
    assert events[-1] == ("step" if trainer.stem == "failing" else "end")
    assert "eval" in events or trainer.stem in (*MEASURES, "axes", "gpt", "failing")


def test_undeclared_packages_cannot_be_imported_in_the_image(tmp_path):
    python = only_declared(QUICK, tmp_path)
    assert run(python, "-c", "import numpy").returncode == 0
    for absent in ("kitlib", "matplotlib", "kubernetes", "sklearn"):
        assert f"No module named '{absent}'" in run(python, "-c", f"import {absent}").stderr


def declared_for_the_image(program):
    everything = trainer_image.declared(program)
    return [item for item in everything if item.marker is None or item.marker.evaluate(trainer_image.PYTHON)]


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda path: f"{path.parent.name}/{path.stem}")
def test_a_program_in_pods_declares_exactly_its_imports(program):
    package = program.name == "__init__.py"
    names = set().union(*map(imports, program.parent.glob("*.py") if package else [program]))
    names |= BY_TORCH.get(program.stem, set())
    names -= {program.parent.name, "backports"}  # the second is for Pythons older than the image's
    brought = metadata.packages_distributions()
    needed = [{canonicalize_name(item) for item in brought[name]} for name in names]
    declared = {canonicalize_name(item.name) for item in declared_for_the_image(program)}
    assert all(modules & declared for modules in needed), names
    assert all(any(name in group for group in needed) for name in declared), declared


def test_the_image_has_what_the_programs_declare():
    assert trainer_image.REQUIREMENTS.read_text() == trainer_image.render(), (
        "write it anew: .venv/bin/python tools/trainer_image.py"
    )
    assert trainer_image.ZOO_REQUIREMENTS.read_text() == trainer_image.render(trainer_image.packages())
    pins = dict(line.split("==") for line in trainer_image.REQUIREMENTS.read_text().splitlines()[1:])
    for program in PROGRAMS:
        for requirement in declared_for_the_image(program):
            name = canonicalize_name(requirement.name)
            assert PINS[name] in requirement.specifier, (program, name)
            assert name in trainer_image.BASE or pins[name] == PINS[name], (program, name)


def uv(*words, cwd):
    command = [BIN / "uv", "--no-python-downloads", "pip", *words]
    done = subprocess.run(command, capture_output=True, text=True, cwd=cwd, check=False)
    if done.returncode and re.search("error sending request|dns error|timed out", done.stderr):
        pytest.skip(f"the image's packages are NOT TESTED: no package index: {done.stderr[-200:]}")
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_packages_of_the_image_can_be_installed_beside_the_torch_of_its_base(tmp_path):
    expected = [f"{name}=={PINS[name]}" for name in trainer_image.BASE]
    listed = trainer_image.REQUIREMENTS.read_text().splitlines()[1:]
    (tmp_path / "wanted.in").write_text("\n".join([*expected, *listed]))
    version, platform = trainer_image.PYTHON["python_version"], "x86_64-manylinux_2_39"
    options = ["--python-version", version, "--python-platform", platform, "--no-header", "--no-annotate"]
    resolved = set(uv("compile", *options, "wanted.in", cwd=tmp_path).splitlines())
    assert {*expected, *listed} <= resolved
    # Whatever else is needed, torch and torchvision need, and the base has it.
    (tmp_path / "base.in").write_text("\n".join(expected))
    base = {line.split("==")[0] for line in uv("compile", *options, "base.in", cwd=tmp_path).splitlines()}
    assert {line.split("==")[0] for line in resolved - {*expected, *listed}} <= base


def test_the_base_image_has_the_pinned_torch_and_cuda():
    torch, cuda = PINS["torch"], ".".join(PINS["cuda-toolkit"].split(".")[:2])
    text = DOCKERFILE.read_text()
    assert f"\nARG TORCH={torch}\nARG CUDA={cuda}\n" in text
    assert "\nARG BASE=pytorch/pytorch:${TORCH}-cuda${CUDA}-cudnn9-runtime\n" in text
    assert f"pytorch/pytorch:{torch}-cuda{cuda}-cudnn9-runtime" == config.DEFAULT_IMAGE
    assert metadata.version("torch").partition("+")[0] == torch
    zoo, arm64 = (
        (ROOT / "images" / name / "Dockerfile").read_text() for name in ("model-zoo", "torch-arm64")
    )
    assert f"\nARG BASE={config.DEFAULT_IMAGE}\n" in zoo
    assert f"\nARG TORCH={torch}\nARG TORCHVISION={PINS['torchvision']}\n" in arm64


def test_a_launch_expects_exactly_the_packages_of_the_official_image():
    official = {canonicalize_name(name) for name in image_packages(config.DEFAULT_IMAGE)}
    brought = metadata.packages_distributions().items()
    names = {module for module, items in brought if {canonicalize_name(item) for item in items} & official}
    assert {name for name in names if name.isidentifier() and name[0] != "_"} == OFFICIAL


def test_every_manifest_that_names_the_official_image_names_that_one():
    texts = [path.read_text() for path in ROOT.glob("manifests/**/*.yaml")]
    assert set(re.findall(r"image: (pytorch/pytorch\S*)$", "\n".join(texts), re.M)) == {config.DEFAULT_IMAGE}


def image_packages(image):
    """Return the distributions of an image: the official one's torch and what it needs, or the trainers'."""
    official = trainer_image.closure(Requirement(name) for name in trainer_image.BASE)
    assert image in (config.DEFAULT_IMAGE, "<IMAGE>")
    listed = trainer_image.REQUIREMENTS.read_text().splitlines()[1:] if image == "<IMAGE>" else []
    return {*official, *(line.split("==")[0] for line in listed)}


def programs_of(text):
    """Return the programs of the ConfigMaps that a manifest's header creates from files or a folder."""
    named = [ROOT / path.rpartition("=")[2] for path in re.findall(r"--from-file=(\S+)", text)]
    files = (file for path in named for file in (sorted(path.glob("*.py")) if path.is_dir() else [path]))
    return [file for file in files if file.suffix == ".py"]  # data travel with them


BY_KUBECTL = [path for path in sorted(ROOT.glob("manifests/**/*.yaml")) if programs_of(path.read_text())]


def needed_by(manifest):
    """Return the names that the programs of a manifest import when they are run as it says."""
    text, files = manifest.read_text(), programs_of(manifest.read_text())
    names = set().union(*map(imports, files)) - {file.stem for file in files}
    if "kind: ElasticJob" in text:  # its controller has torchrun use --rdzv_backend=etcd
        names |= {"etcd"}
    without = {"backports", "pynvml"}  # for older Pythons; for a GPU's use, whose lack is caught
    return names - without


@pytest.mark.parametrize("image", [config.DEFAULT_IMAGE, *slow("<IMAGE>")])
def test_the_programs_of_manifests_import_where_only_the_packages_of_their_image_are(image, tmp_path):
    """Locally another environment stands in for every image, so a package that is missing shows elsewhere."""
    of_image = [
        path for path in BY_KUBECTL if re.findall(r"image: (\S+)$", path.read_text(), re.M)[0] == image
    ]
    names = {name: path for path in of_image for name in needed_by(path)}
    python = link_packages(tmp_path / "venv", image_packages(image))
    done = run(python, "-c", "\n".join(f"import {name}  # {names[name]}" for name in sorted(names)))
    assert done.returncode == 0, done.stderr[-300:]


def test_the_programs_of_manifests_that_kubectl_applies_are_found():
    names = {f"{path.parent.name}/{path.stem}" for path in BY_KUBECTL}
    assert {"pytorch-job/cpu", "pytorch-job/whole-node", "dataset/job", "torch-elastic-eks/workers"} <= names
