"""Set up the kit in a hosted notebook (Colab, Kaggle, Studio Lab), and leave its Python and packages alone.

The third cell of each notebook calls `enter` there, after it has installed the kit's wheels of one
version; ``tools/addresses.py`` writes that cell.

What the environment lacks is installed; what it has is neither upgraded nor downgraded, above all not torch.
The library is `kitlib`; it cannot be imported before `prepare`, so this needs the standard library alone.
"""

import importlib
import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator, Mapping
from importlib import metadata
from pathlib import Path

DISTRIBUTION = "trainyard-kit"
DISTRIBUTIONS = (DISTRIBUTION, "trainyard-kit-localkube")
COURSE = "course"  # the folder that gets the notebooks where there are none
STEPS = ("Collecting", "Downloading", "Processing", "Building", "Installing")  # of what pip says
LIMITED = "pods see its files and its processes, images are not pulled, and nodes cannot be isolated"
# What does not work with releases below these; the rest of the kit does.
NEEDED_BY = {"protobuf": "10 (parameter servers)", "grpcio": "10 (parameter servers)"}
_VERSION = re.compile(r"[\d.]+((a|b|rc|\.post|\.dev)\d+)*(\+[a-z0-9.]+)?")  # PEP 440; Debian has others
_NAME = re.compile(r"[A-Za-z0-9._-]+")


def canonical(name: str) -> str:
    """Normalize a package's name as PEP 503 says."""
    return re.sub(r"[-_.]+", "-", name).lower()


def missing(requirements: Iterable[str], installed: Mapping[str, str]) -> list[str]:
    """List what to install: the packages that are not there, without lower bounds of their versions.

    The newest release is taken that accepts what is installed; upper bounds stay.

    Example:
        >>> missing(["torch>=2.15", "kopf>=1.45", "kubernetes>=36,<37"], {"torch": "2.8"})
        ['kopf', 'kubernetes<37']
    """
    wanted = []
    for requirement in requirements:
        text, _, marker = requirement.partition(";")
        name = _NAME.match(text)
        if name and "extra ==" not in marker and canonical(name[0]) not in installed:
            bounds = text[name.end() :].replace(" ", "").split(",")
            wanted.append(
                name[0] + ",".join(bound for bound in bounds if bound.startswith(("<", "!=", "==")))
            )
    return wanted


def enter() -> None:
    """Set the kit up, and change to the folder of the notebooks; do nothing where that was done before."""
    if missing(_declared(), _installed()) or not Path("..", "trainers").is_dir():
        os.chdir(prepare())


def prepare(folder: str = COURSE) -> Path:
    """Install what is missing, copy the course where it is missing, and say what can be done here.

    Args:
        folder: Gets the course, unless the working directory is its folder of notebooks already.

    Returns:
        The folder of the notebooks, for ``os.chdir``.

    Raises:
        RuntimeError: pip or the kit failed; the error has its last lines.
    """
    began = time.monotonic()
    installed = _installed()
    requirements = missing(_declared(), installed)
    if requirements:
        _install(requirements, installed)
    here = Path.cwd()
    if not (here.parent / "trainers").is_dir():
        here = here / folder / "notebooks"
        if not here.is_dir():
            _call("trainyard_kit.cli", "course", str(here.parent))
            print(f"Pictures load and links open in the copies of the notebooks: {folder}/notebooks.")
    seconds, torch = time.monotonic() - began, installed.get("torch")
    torch_note = f"torch {torch} and all other packages stay" if torch else "torch is new, all else stays"
    version = metadata.version(DISTRIBUTION)
    print(f"Trainyard {version}: {len(requirements)} packages installed in {seconds:.0f} s.")
    print(f"Python {sys.version.split()[0]}, {torch_note}; the kernel need not restart.")
    for line in [*_limits(installed), *_mode()]:
        print(line)
    return here


def _installed() -> dict[str, str]:
    distributions = metadata.distributions()
    return {canonical(item.name): item.version for item in distributions if item.name}


def _declared() -> dict[str, None]:
    """List what the kit and its local cluster require, each once."""
    return dict.fromkeys(line for name in DISTRIBUTIONS for line in metadata.requires(name) or ())


def _install(requirements: list[str], installed: Mapping[str, str]) -> None:
    """Install packages by pip, whose constraints are what is installed."""
    constraints = Path.cwd() / ".trainyard-constraints.txt"
    kept = {name: version for name, version in installed.items() if _VERSION.fullmatch(version)}
    constraints.write_text("".join(f"{name}=={version}\n" for name, version in kept.items()))
    try:
        for line in _lines(
            "pip", "install", "--disable-pip-version-check", "-c", str(constraints), *requirements
        ):
            if line.startswith(STEPS):
                print(f"\r{line[:100]:100}", end="", flush=True)
    finally:
        constraints.unlink()
        print(f"\r{'':100}\r", end="")
    importlib.invalidate_caches()


def _limits(installed: Mapping[str, str]) -> Iterator[str]:
    """Name the packages that were kept and are too old for a part of the course."""
    for require in _declared():
        name, _, least = require.partition(";")[0].partition(">=")
        has, least = installed.get(canonical(name)), least.partition(",")[0].strip()
        if has and name in NEEDED_BY and _numbers(has) < _numbers(least):
            yield f"Limited: {name} {has} stays, and notebook {NEEDED_BY[name]} needs {least}."


def _numbers(version: str) -> list[int]:
    return [int(digits) for digits in re.findall(r"\d+", version)[:2]]


def _mode() -> Iterator[str]:
    doctor = json.loads(_call("localkube", "doctor").splitlines()[-1])["result"]
    gpus = ", ".join(gpu["name"] for gpu in doctor["gpus"]) or "none"
    yield f"Cores: {doctor['cores']}. Memory: {doctor['memory'] / 2**30:.1f} GiB. GPUs: {gpus}."
    if doctor["mode"] == "namespaces":
        yield "Mode: namespaces. Each pod has a network, processes and a file tree of its own."
    else:
        yield f"Mode: plain. Pods are processes of this machine: {LIMITED}."
        yield f"Namespaces are refused: {doctor['namespaces']['reason']}"


def _call(*command: str) -> str:
    return "\n".join(_lines(*command))


def _lines(*command: str) -> Iterator[str]:
    words = [sys.executable, "-m", *command]
    output_lines = []
    with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as process:
        for line in process.stdout or ():
            output_lines.append(line.rstrip())
            yield output_lines[-1]
    if process.returncode:
        raise RuntimeError(f"python -m {' '.join(command[:2])} failed:\n" + "\n".join(output_lines[-15:]))
