"""Write the images' requirements.txt: packages of programs in pods that the official image lacks.

Each program declares its packages in inline script metadata (PEP 723). The file has their closure, pinned as
in constraints.txt, so that clouds run the tested versions.
Run: ``.venv/bin/python tools/trainer_image.py``.
"""

import re
import sys
import tomllib
from collections.abc import Iterable
from pathlib import Path

from packaging.requirements import Requirement

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tools"))
from pin import closure  # noqa: E402

TRAINERS = ROOT / "trainers"
FETCH = TRAINERS / "fetch_trainer.py"  # downloads a trainer
# Other programs that can run in pods of this image.
OTHERS = (
    FETCH,
    ROOT / "programs" / "dataset" / "prepare_dataset.py",
    ROOT / "programs" / "elastic_job" / "controller.py",
    ROOT / "notebooks" / "scripts" / "finetune.py",
    ROOT / "notebooks" / "scripts" / "train.py",
)
REQUIREMENTS = ROOT / "images" / "trainer" / "requirements.txt"
ZOO_REQUIREMENTS = ROOT / "images" / "model-zoo" / "requirements.txt"  # only of the parameter server
# Packages of the official image; their requirements are left out as well.
BASE = ("torch", "torchvision")
PYTHON = {
    "python_version": "3.12",
    "python_full_version": "3.12.3",
}  # the official image's: Ubuntu 24.04's own
HEADER = "# Written by tools/trainer_image.py from what the programs in pods declare.\n"
# https://packaging.python.org/en/latest/specifications/inline-script-metadata/#reference-implementation
_BLOCK = re.compile(r"(?m)^# /// script$\s(?P<content>(^#(| .*)$\s)+)^# ///$")


def trainers() -> list[Path]:
    """Return the trainers; modules that they import declare no packages."""
    programs = (path for path in sorted(TRAINERS.glob("*.py")) if path != FETCH)
    return [path for path in programs if _BLOCK.search(path.read_text(encoding="utf-8"))]


def packages() -> list[Path]:
    """Return the file of each package of programs that declares its requirements."""
    return sorted(TRAINERS.glob("*/__init__.py"))


def declared(trainer: Path) -> list[Requirement]:
    """Return the packages that a trainer declares.

    Raises:
        ValueError: It declares none, or twice.
    """
    blocks = list(_BLOCK.finditer(trainer.read_text(encoding="utf-8")))
    if len(blocks) != 1:
        raise ValueError(f"{trainer} has {len(blocks)} blocks of inline script metadata, not one")
    text = "".join(line.removeprefix("#").removeprefix(" ") for line in blocks[0]["content"].splitlines(True))
    return [Requirement(line) for line in tomllib.loads(text)["dependencies"]]


def requirements(files: Iterable[Path]) -> dict[str, str]:
    """Return names and versions of the packages that trainers need in addition to the official image."""
    declared_requirements = [requirement for trainer in files for requirement in declared(trainer)]
    needed = [
        requirement
        for requirement in declared_requirements
        if requirement.marker is None or requirement.marker.evaluate(PYTHON)
    ]
    return closure(needed, without=BASE)


def render(files: Iterable[Path] | None = None) -> str:
    """Return the text of the requirements file."""
    lines = requirements(files or [*trainers(), *packages(), *OTHERS])
    return HEADER + "".join(f"{name}=={version}\n" for name, version in sorted(lines.items()))


if __name__ == "__main__":
    for path, text in ((REQUIREMENTS, render()), (ZOO_REQUIREMENTS, render(packages()))):
        path.write_text(text, encoding="utf-8")
        sys.stdout.write(f"{path.relative_to(ROOT)}: {len(text.splitlines()) - 1} packages\n")
