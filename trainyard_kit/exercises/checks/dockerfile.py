"""03: one more instruction in the trainer's Dockerfile. A shell runs it, and a pip that notes its words."""

import shlex
import subprocess
import tempfile
from pathlib import Path

from kitlib import config
from trainyard_kit.exercises.checklist import Exercise, NotYet, describe

PACKAGE = "einops"
CONSTRAINTS = "/opt/trainyard/constraints.txt"
SECONDS = 10
NOTING = """#!/bin/sh
for word in "${0##*/}" "$@"; do printf "%s\\0" "$word" >> "$NOTES"; done
printf "\\n" >> "$NOTES"
"""
EXERCISE = Exercise("dockerfile")


def instructions(lines: list[str]) -> list[str]:
    """Join continued lines, and drop comments and empty ones."""
    found, pending = [], ""
    for line in lines:
        if line.lstrip().startswith("#") or not (line.strip() or pending):
            continue
        pending += line.rstrip()
        if pending.endswith("\\"):
            pending = pending[:-1] + " "
            continue
        found.append(" ".join(pending.split()))
        pending = ""
    return [*found, pending] if pending else found


def parts(dockerfile: object) -> tuple[list[str], int]:
    """Return all instructions, and the place of the new one.

    Raises:
        NotYet: It is no list of lines, or there is not exactly one new instruction.
    """
    if not isinstance(dockerfile, list) or not all(isinstance(line, str) for line in dockerfile):
        raise NotYet(f"it is {describe(dockerfile)}: it should be the list of all lines")
    ours = instructions((config.DATA / "images" / "trainer" / "Dockerfile").read_text().splitlines())
    every = instructions(dockerfile)
    new = [place for place, each in enumerate(every) if each not in ours]
    if lost := [each for each in ours if each not in every]:
        raise NotYet(f"an instruction of the course is gone: {lost[0]}")
    if len(new) != 1:
        raise NotYet(f"there are {len(new)} new instructions: write one")
    return every, new[0]


def pip_install(dockerfile: list[str]) -> list[str]:
    """Run the new instruction's shell command, with programs that note their arguments; return pip's.

    Raises:
        NotYet: The shell fails, or does not call ``pip install``.
    """
    every, place = parts(dockerfile)
    command = every[place].partition(" ")[2]
    with tempfile.TemporaryDirectory(prefix="exercise-") as folder:
        notes = Path(folder, "notes")
        notes.touch()
        for name in ("pip", "pip3", "python", "python3"):
            Path(folder, name).write_text(NOTING)
            Path(folder, name).chmod(0o755)
        try:
            done = subprocess.run(
                ["/bin/sh", "-ec", command], cwd=folder, env={"PATH": folder, "NOTES": str(notes)},
                capture_output=True, text=True, timeout=SECONDS, check=False,
            )  # fmt: skip
        except subprocess.TimeoutExpired:
            raise NotYet(f"the command does not end within {SECONDS} s") from None
        calls = [line.split("\0")[:-1] for line in notes.read_text().splitlines()]
    if done.returncode:
        raise NotYet(f"the shell fails: {done.stderr.strip().partition(': ')[2] or done.returncode}")
    pips = [
        call[3:] if call[1:3] == ["-m", "pip"] else call[1:] for call in calls if "pip" in " ".join(call[:3])
    ]
    installs = [call for call in pips if call[:1] == ["install"]]
    if not installs:
        raise NotYet(f"it does not run pip install: it runs {shlex.join(calls[0]) if calls else 'nothing'}")
    return installs[0][1:]


def after(words: list[str], *options: str) -> str:
    """Return the word after an option, or after its equals sign."""
    for number, word in enumerate(words):
        name, equals, value = word.partition("=")
        if name in options:
            return value if equals else (words[number + 1 :] or [""])[0]
    return ""


@EXERCISE.check("one instruction is new, and it runs a command", essential=True)
def instruction(dockerfile):
    every, place = parts(dockerfile)
    word = every[place].partition(" ")[0].upper()
    if word != "RUN":
        raise NotYet(f"{word} runs no command while the image is built: which instruction does?")


@EXERCISE.check("the shell runs it, and pip installs the package", essential=True)
def installs(dockerfile):
    if not any(word.partition("=")[0] == PACKAGE for word in pip_install(dockerfile)):
        raise NotYet(
            f"pip install does not install {PACKAGE}: its words are {shlex.join(pip_install(dockerfile))}"
        )


@EXERCISE.check("always the same version")
def pinned(dockerfile):
    if not any(word.startswith(f"{PACKAGE}==") for word in pip_install(dockerfile)):
        raise NotYet(f"a build next month would install another version: pin it, {PACKAGE}==0.8.2")


@EXERCISE.check("the base image keeps its torch")
def constrained(dockerfile):
    if after(pip_install(dockerfile), "--constraint", "-c") != CONSTRAINTS:
        raise NotYet(f"a requirement of {PACKAGE} could replace torch: pass --constraint {CONSTRAINTS}")
    every, place = parts(dockerfile)
    if place < next(number for number, each in enumerate(every) if f"> {CONSTRAINTS}" in each):
        raise NotYet(
            f"{CONSTRAINTS} does not exist yet at this place: put it after the instruction that writes it"
        )


@EXERCISE.check("pip may install into the system's Python")
def allowed(dockerfile):
    if "--break-system-packages" not in pip_install(dockerfile):
        raise NotYet(
            "the base image's Python refuses pip: pass --break-system-packages, as the instruction above it"
        )


@EXERCISE.check("pip's downloads do not stay in the layer")
def no_cache(dockerfile):
    if "--no-cache-dir" not in pip_install(dockerfile):
        raise NotYet("pip keeps what it downloaded, in this layer: pass --no-cache-dir")


@EXERCISE.check("a change to a trainer does not install it again")
def cached(dockerfile):
    every, place = parts(dockerfile)
    if place > next(number for number, each in enumerate(every) if each.startswith("COPY trainers/")):
        raise NotYet(
            "a layer is built again when one before it changed: put the instruction before COPY trainers/"
        )
