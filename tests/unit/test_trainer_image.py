"""A trainer that runs here runs on a cloud: it declares what it imports, and the image has exactly that.

To run every trainer with its declared packages alone, nothing is installed: torch would be 5 GB. Instead a
new virtual environment gets links to the installed files of the declared distributions and of what these
need in turn, by their metadata. Whatever else this environment has cannot be imported in that one.
"""

import ast
import importlib.util
import json
import os
import re
import subprocess
import sys
import venv
from importlib import metadata
from pathlib import Path

import pytest
from packaging.utils import canonicalize_name

from .small_data import write_cifar10, write_folders

ROOT = Path(__file__).parents[2]
DOCKERFILE = ROOT / "images" / "trainer" / "Dockerfile"
MEASURES = ("allreduce",)  # learns nothing, and so has neither epochs nor an accuracy
MODEL_FILES = ("mnist_parameter_server",)  # a program imports them
# What torch imports for itself where it is asked for a rendezvous by etcd.
ETCD = "torch.distributed.elastic.rendezvous.etcd_rendezvous_backend"


def _tool(name):
    spec = importlib.util.spec_from_file_location(name, ROOT / "tools" / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


trainer_image = _tool("trainer_image")
TRAINERS = trainer_image.trainers()
# They stand for the others in make test: a process with torch for each takes minutes together.
QUICK = ("digits_ddp", "cifar10_ddp")
each_trainer = pytest.mark.parametrize("trainer", TRAINERS, ids=lambda path: path.stem)


def imports(trainer):
    """Return the top-level names that a trainer or a sibling of it imports, or asks importlib to find."""
    names = set()
    for node in ast.walk(ast.parse(trainer.read_text())):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and not node.level:
            names.add(node.module)
        elif isinstance(node, ast.Call) and ast.unparse(node.func) == "importlib.util.find_spec":
            names.add(node.args[0].value)
    names |= {"etcd"} if ETCD in names else set()
    names = {name.partition(".")[0] for name in names} - set(sys.stdlib_module_names)
    beside = {name: path for name in names if (path := trainer.with_name(f"{name}.py")).exists()}
    return (names - beside.keys()).union(*map(imports, beside.values()))


@pytest.fixture
def only_declared(tmp_path):
    """Return a function that makes an environment with a trainer's packages, and returns its Python."""

    def make(trainer):
        made = tmp_path / "venv"
        venv.create(made, symlinks=True)
        site = next((made / "lib").glob("python3*")) / "site-packages"
        for name in trainer_image.closure(trainer_image.declared(trainer)):
            distribution = metadata.distribution(name)
            tops = {
                file.parts[0]
                for file in distribution.files or []
                if file.parts[0] not in ("..", "__pycache__")
            }
            for top in tops:
                if not (site / top).is_symlink():
                    (site / top).symlink_to(distribution.locate_file(top))
        return made / "bin" / "python"

    return make


@pytest.fixture
def flags(tmp_path):
    """Return a function that makes what a trainer reads, and returns the flags that say where."""

    def make(trainer):
        if trainer.stem in (*MEASURES, *MODEL_FILES):
            return []
        if trainer.stem.startswith("digits"):
            return ["--epochs=1"]
        if trainer.stem.startswith("tiny_imagenet"):
            return ["--epochs=1", "--limit=20", f"--data-dir={write_folders(tmp_path / 'tiny')}"]
        data = f"--data-dir={write_cifar10(tmp_path / 'cifar10')}"
        if trainer.stem == "cifar10_checkpoint":
            return ["--epochs=1", data, f"--checkpoint-dir={tmp_path / 'checkpoints'}"]
        if trainer.stem != "evaluate":
            return ["--epochs=1", data]
        model = f"--model-file={tmp_path / 'model.pt'}"
        assert (
            run(
                Path(sys.executable), str(ROOT / "trainers" / "cifar10_ddp.py"), "--epochs=1", data, model
            ).returncode
            == 0
        )
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


@each_trainer
def test_a_trainer_declares_what_it_imports_and_nothing_else(trainer):
    brought = metadata.packages_distributions()
    imported = {canonicalize_name(brought[name][0]) for name in imports(trainer)}
    assert {canonicalize_name(each.name) for each in trainer_image.declared(trainer)} == imported


@each_trainer
def test_what_a_trainer_declares_is_what_this_project_pins(trainer):
    pins = dict(re.findall(r"^(\S+)==(\S+)$", (ROOT / "constraints.txt").read_text(), re.MULTILINE))
    for requirement in trainer_image.declared(trainer):
        assert pins[canonicalize_name(requirement.name)] in requirement.specifier


@pytest.mark.parametrize(
    "trainer",
    [
        pytest.param(path, id=path.stem, marks=[] if path.stem in QUICK else pytest.mark.slow)
        for path in TRAINERS
    ],
)
def test_a_trainer_runs_with_its_declared_packages_alone(trainer, only_declared, flags):
    done = run(only_declared(trainer), str(trainer), *flags(trainer))
    assert done.returncode == 0, done.stderr
    events = [json.loads(line)["event"] for line in done.stdout.splitlines()]
    if trainer.stem in MODEL_FILES:
        assert not events, "importing it does nothing"
        return
    assert events[-1] == "end"
    assert "eval" in events or trainer.stem in MEASURES


def test_what_is_not_declared_cannot_be_imported_there(only_declared):
    python = only_declared(ROOT / "trainers" / "digits_single.py")
    assert run(python, "-c", "import sklearn").returncode == 0
    for absent in ("kitlib", "matplotlib", "kubernetes"):
        assert f"No module named '{absent}'" in run(python, "-c", f"import {absent}").stderr


@pytest.mark.parametrize("package", trainer_image.packages(), ids=lambda path: path.parent.name)
def test_a_package_declares_what_its_modules_import(package):
    names = set().union(*map(imports, package.parent.glob("*.py"))) - {package.parent.name}
    brought = metadata.packages_distributions()
    needed = [{canonicalize_name(each) for each in brought[name]} for name in names]
    given = {canonicalize_name(each.name) for each in trainer_image.declared(package)}
    assert all(each & given for each in needed), names
    assert all(any(name in each for each in needed) for name in given), given


def test_the_image_has_what_the_trainers_declare():
    assert trainer_image.REQUIREMENTS.read_text() == trainer_image.render(), (
        "write it anew: .venv/bin/python tools/trainer_image.py"
    )


def test_the_image_is_built_on_the_torch_that_is_tested_here():
    pinned = metadata.version("torch").partition("+")[0]
    assert f"\nARG TORCH={pinned}\n" in DOCKERFILE.read_text()
    assert f"torch=={pinned}\n" in (ROOT / "constraints.txt").read_text()
