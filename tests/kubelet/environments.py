"""The Python environments of the images: the distributions that an image has, and no others.

They are not in the images' layers, because torch has several gigabytes. Files are hard links to those of this
machine's environment, below one folder for each image, which the runtime mounts in all containers.
"""

import os
import shutil
import sys
import venv
from collections.abc import Iterable
from importlib import metadata
from pathlib import Path

from packaging.requirements import Requirement

sys.path.insert(0, str(Path(__file__).parents[2] / "tools"))
import trainer_image  # noqa: E402

PLACE = "/opt/{}"  # in containers
REQUIREMENTS = {
    "pytorch": trainer_image.BASE,  # https://github.com/pytorch/pytorch/blob/main/Dockerfile
    "trainer": (*trainer_image.BASE, *trainer_image.REQUIREMENTS.read_text("utf-8").splitlines()[1:]),
    "moto": ("moto[s3]", "flask", "flask-cors"),
    "controller": ("kopf", "requests"),  # what its container installs, as there is no network
}
SCRIPT = """#!{}/bin/python
import sys
from {} import {}
sys.exit({}())
"""


def make(folder: Path) -> dict[str, Path]:
    """Make the environments and their Python; return what to mount, by the path in containers."""
    base = folder / "base"
    _link(Path(sys.base_prefix), base, skipped=("site-packages", "test", "__pycache__"))
    mounts = {sys.base_prefix: base}
    for name, requirements in REQUIREMENTS.items():
        mounts[PLACE.format(name)] = folder / name
        _make(folder / name, PLACE.format(name), trainer_image.closure(map(Requirement, requirements)))
    return mounts


def _make(target: Path, place: str, distributions: Iterable[str]) -> None:
    venv.create(target, symlinks=True)
    packages = next((target / "lib").glob("python3*")) / "site-packages"
    for name in distributions:
        distribution = metadata.distribution(name)
        for top in {file.parts[0] for file in distribution.files or ()} - {"..", "__pycache__"}:
            _link(Path(str(distribution.locate_file(top))), packages / top)
        for script in distribution.entry_points.select(group="console_scripts"):
            path = target / "bin" / script.name
            path.write_text(SCRIPT.format(place, script.module, script.attr, script.attr))
            path.chmod(0o755)


def _link(source: Path, goal: Path, *, skipped: Iterable[str] = ()) -> None:
    if source.is_dir():
        ignore = shutil.ignore_patterns(*skipped)
        shutil.copytree(
            source, goal, symlinks=True, ignore=ignore, copy_function=_link_file, dirs_exist_ok=True
        )
    elif not goal.exists():
        _link_file(str(source), str(goal))


def _link_file(source: str, goal: str) -> None:
    try:
        os.link(source, goal, follow_symlinks=False)
    except FileExistsError:
        return  # distributions share folders: nvidia
    except OSError:  # another file system
        shutil.copy2(source, goal, follow_symlinks=False)
