"""``trainyard course DIR``: copy the notebooks, and all files that they show, to a learner's folder.

Notebooks link to files such as ``../trainers/digits_ddp.py``, so the folder has the repository's layout. The
learner's changes are never overwritten.
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
TEMPLATE = "trainyard_kit/clouds/eks/cluster.yaml"  # shown by a notebook
IGNORED = {"__pycache__", ".ipynb_checkpoints"}
# Other files in the folder of notebooks, such as my_digits.py or a copied notebook, belong to the learner.
COURSE = re.compile(r"notebooks/(\d\d_\w+\.ipynb|sanitize\.cfg|\w+/.*)|(?!notebooks/).*")
MAX_NAMED = 5
NEEDED_MB = 20


def copy_course(folder: Path) -> list[Path]:
    """Copy the course to a folder that may already contain a part of it.

    Returns:
        The files that were copied, relative to the folder; empty if all existed.
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
            f"these files differ from the course's and would be overwritten: {named}{more}",
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
        fix = f"choose a folder that you can write, with {NEEDED_MB} MB free; copied files are kept"
        raise BadInput(what, about=str(error.filename2 or error.filename), fix=fix) from error
    return missing


@click.command()
@click.argument("folder", type=click.Path(file_okay=False, path_type=Path))
def course(folder: Path) -> None:
    """Copy the notebooks, and the files that they show, to FOLDER.

    Files that you changed there are never overwritten.
    """
    copied = copy_course(folder)
    click.echo(f"{len(copied)} files were copied to {folder}" if copied else f"{folder} is complete")
    # JupyterLab starts in the course's folder, as notebooks show pictures outside their own.
    lab = shlex.join(["jupyter", "lab", *(["--allow-root"] if os.getuid() == 0 else []), str(folder)])
    next_step(f"{lab}, and open notebooks/00_start.ipynb")
