"""A notebook alone in a container that looks like Colab's: without privileges, with packages of its own.

Its third cell installs the kit from wheels, and nothing that was there may change. The environment's releases
are those that Colab had with torch 2.8; ``tools/dev.py test-hosted`` makes it once, in build/hosted.
"""

import json
import os
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import nbformat
import pytest

from localkube.paths import target
from trainyard_kit import hosted

from . import kit_wheel, machine_image

ROOT = Path(__file__).parents[2]
HOSTED = ROOT / "build" / "hosted"
RELEASES = {
    "torch": "2.8.0",
    "torchvision": "0.23.0",
    "numpy": "2.0.2",
    "pandas": "2.2.2",
    "scikit-learn": "1.6.1",
    "matplotlib": "3.10.0",
    "ipython": "7.34.0",
    "ipykernel": "6.17.1",
    "ipywidgets": "7.7.1",
    "notebook": "6.5.7",
    "protobuf": "5.29.5",
    "grpcio": "1.74.0",
    "requests": "2.32.4",
    "rich": "13.9.4",
    "click": "8.2.1",
    "psutil": "5.9.5",
    "traitlets": "5.7.1",
    "pillow": "11.3.0",
    "tensorboard": "2.19.0",
    "tornado": "6.4.2",
    "aiohttp": "3.12.15",
    "cryptography": "43.0.3",
    "websocket-client": "1.8.0",
    "pyyaml": "6.0.2",
    "setuptools": "75.2.0",
}
SMALL = ("--cpus", "2", "--memory", "12g", "--pids-limit", "4096")
LISTED = """import json, importlib.metadata as m
print(json.dumps({each.name: each.version for each in m.distributions()}))"""

pytestmark = [
    pytest.mark.slow,
    pytest.mark.long,
    pytest.mark.timeout(3000),
    pytest.mark.skipif(bool(machine_image.missing()), reason=f"NOT TESTED: {machine_image.missing()}"),
]


def call(*command, **options):
    done = subprocess.run([*map(str, command)], capture_output=True, text=True, check=False, **options)
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-4000:]
    return done.stdout


def installed(python):
    return json.loads(call(python, "-c", LISTED))


@pytest.fixture(scope="module")
def environment():
    """The hosted environment as it is before, with wheels of what it lacks and of the kit beside it."""
    folder, wheels = HOSTED / "environment", HOSTED / "wheels"
    python = folder / "bin" / "python"
    uv = [Path(sys.executable).with_name("uv")]
    if not (HOSTED / "complete").exists():
        call(*uv, "venv", "--seed", "--clear", folder, "--python", sys.executable)
        call(
            *uv,
            "pip",
            "install",
            "--python",
            python,
            *(f"{name}=={number}" for name, number in RELEASES.items()),
        )
        constraints = HOSTED / "constraints.txt"
        constraints.write_text("".join(f"{name}=={version}\n" for name, version in installed(python).items()))
        files = (ROOT / "pyproject.toml", ROOT / "localkube" / "pyproject.toml")
        projects = [tomllib.loads(file.read_text())["project"] for file in files]
        needed = sum((project["dependencies"] for project in projects), [])
        versions = {hosted.canonical(name): version for name, version in installed(python).items()}
        lacking = hosted.missing(needed, versions)
        call(python, "-m", "pip", "wheel", "-c", constraints, "-w", wheels, *lacking)
        (HOSTED / "complete").touch()
    for old in wheels.glob("trainyard*"):
        old.unlink()
    kit_wheel.build(wheels, release=True)
    call(sys.executable, ROOT / "tools" / "wheel.py", "--output", wheels, target()[1])
    return folder


@pytest.fixture
def execute(environment):
    """Execute a notebook by nbconvert in a new container; return it, and the packages that are there then."""
    copy, content = HOSTED / "copy", HOSTED / "content"
    image = machine_image.make_image()

    def run(name, **parameters):
        for folder in (copy, content):
            shutil.rmtree(folder, ignore_errors=True)
        shutil.copytree(environment, copy, copy_function=os.link, symlinks=True)
        content.mkdir()
        notebook = nbformat.read(ROOT / "notebooks" / f"{name}.ipynb", as_version=4)
        notebook.cells[1].source += "".join(f"\n{key} = {value!r}" for key, value in parameters.items())
        nbformat.write(notebook, content / f"{name}.ipynb")
        mounts = [f"{copy}:{environment}", f"{content}:/content", f"{HOSTED / 'wheels'}:/wheels:ro"]
        mounts += [f"{sys.base_prefix}:{sys.base_prefix}:ro"]
        environment_options = ["HOME=/root", f"PATH={environment}/bin:/usr/bin:/bin"]
        environment_options += ["PIP_NO_INDEX=1", "PIP_FIND_LINKS=/wheels", "COLAB_RELEASE_TAG=release-colab"]
        for wheel in (HOSTED / "wheels").glob("trainyard_kit*.whl"):
            shutil.copy(wheel, content)  # where the cell looks while no repository is set
        words = ["--user", "0", "--network", "none", "--workdir", "/content", *SMALL]
        words += [word for mount in mounts for word in ("--volume", mount)]
        words += [word for pair in environment_options for word in ("--env", pair)]
        jupyter = [environment / "bin/python", "-m", "jupyter", "nbconvert", "--execute", "--to", "notebook"]
        call("docker", "run", "--rm", *words, image, *jupyter, "--inplace", f"/content/{name}.ipynb")
        packages = {file.name for file in copy.glob("lib/python*/site-packages/*.dist-info")}
        return nbformat.read(content / f"{name}.ipynb", as_version=4), packages

    return run


def text_of(notebook):
    outputs = (output for cell in notebook.cells if cell.cell_type == "code" for output in cell.outputs)
    return "\n".join(output.get("text") or output.get("data", {}).get("text/plain", "") for output in outputs)


@pytest.mark.parametrize(
    ("name", "parameters", "shown"),
    [
        ("00_start", {}, "plain: pods are processes"),
        ("01_create_a_cluster", {}, "4 of 4 nodes Ready"),
        ("05_indexed_job", {"options": {"gpus": 1}}, "this pod has GPUs, but torch finds no CUDA device"),
    ],
)
def test_a_notebook_sets_itself_up_and_changes_nothing_that_was_there(
    environment, execute, name, parameters, shown
):
    before = {file.name for file in environment.glob("lib/python*/site-packages/*.dist-info")}
    notebook, after = execute(name, **parameters)
    output = text_of(notebook)
    assert before <= after, f"changed: {before - after}"
    assert any(name.startswith("trainyard_kit_controlplane-") for name in after)
    assert "torch 2.8.0" in output and "Mode: plain." in output and "Namespaces are not available" in output
    assert "Limited: notebook 10 (parameter servers) needs protobuf" in output
    assert shown in output
