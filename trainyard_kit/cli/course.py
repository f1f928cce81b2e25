"""``trainyard course DIR``: the notebooks, and all files that they show, in a folder of the learner's own.

Notebooks link to files beside their folder, as ``../trainers/digits_ddp.py``; so the folder has the same tree
as the repository. What the learner has changed there is never overwritten.
"""

import filecmp
import os
import re
import shlex
import shutil
from pathlib import Path

import click

from kitlib import config
from kitlib.errors import BadInput
from trainyard_kit.cli.options import next_step

FOLDERS = ("notebooks", "docs", "trainers", "programs", "manifests", "images")
TEMPLATE = "trainyard_kit/clouds/eks/cluster.yaml"  # of the packages, where a notebook shows it
IGNORED = {"__pycache__", ".ipynb_checkpoints"}
# Of the notebooks' folder: what learners made beside them, as my_digits.py or a notebook's copy, is theirs.
COURSE = re.compile(r"notebooks/(\d\d_\w+\.ipynb|sanitize\.cfg|\w+/.*)|(?!notebooks/).*")
MAX_NAMED = 5
ROOM_MB = 20


def copy_course(folder: Path) -> list[Path]:
    """Copy the course into a folder, which may have a part of it already.

    Returns:
        The files that were written, relative to the folder; none if all were there.
    """
    sources = {
        path.relative_to(config.DATA): path
        for name in FOLDERS
        for path in sorted((config.DATA / name).rglob("*"))
        if path.is_file()
        and not IGNORED & set(path.parts)
        and COURSE.fullmatch(path.relative_to(config.DATA).as_posix())
    }
    sources[Path(TEMPLATE)] = config.ROOT / TEMPLATE
    existing = {name for name in sources if (folder / name).exists()}
    changed = [name for name in existing if not filecmp.cmp(sources[name], folder / name, shallow=False)]
    if changed:
        named = ", ".join(map(str, sorted(changed)[:MAX_NAMED]))
        more = f" and {len(changed) - MAX_NAMED} more" if len(changed) > MAX_NAMED else ""
        raise BadInput(
            f"these files differ from the course's, and would be overwritten: {named}{more}",
            about=str(folder),
            fix="choose another folder, or move them away; nothing was written",
        )
    missing = sorted(sources.keys() - existing)
    try:
        for name in missing:
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(sources[name], folder / name)
    except OSError as error:
        what = f"the course cannot be written: {error.strerror}"
        fix = f"choose a folder that you can write, with {ROOM_MB} MB free; copied files are kept"
        raise BadInput(what, about=str(error.filename2 or error.filename), fix=fix) from error
    return missing


@click.command()
@click.argument("folder", type=click.Path(file_okay=False, path_type=Path))
def course(folder: Path) -> None:
    """Copy the notebooks, and the files that they show, into FOLDER.

    Files that you changed there are never overwritten.
    """
    written = copy_course(folder)
    click.echo(f"{len(written)} files were copied to {folder}" if written else f"{folder} is complete")
    # JupyterLab's folder is the course's, not that of the notebooks: they show pictures beside theirs.
    lab = shlex.join(["jupyter", "lab", *(["--allow-root"] if os.getuid() == 0 else []), str(folder)])
    next_step(f"{lab}, and open notebooks/00_start.ipynb")
