"""03: add an instruction to the trainer's Dockerfile. A shell runs it with a fake pip."""

import itertools
import json
import re
import shlex
import subprocess
import tempfile
from pathlib import Path

from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import canonicalize_name

from kitlib import config
from trainyard_kit.exercises.checklist import UNTOUCHED, Exercise, NotYet, describe

PACKAGE, VERSION = "einops", "0.8.2"
CONSTRAINTS = "/opt/trainyard/constraints.txt"
SECONDS = 10
ELSEWHERE = {"--dry-run", "--target", "-t", "--root", "--prefix", "--user"}
RECORDER = """#!/bin/sh
for arg in "${0##*/}" "$@" ${PIP_CONSTRAINT:+"--constraint=$PIP_CONSTRAINT"} \\
    ${PIP_BREAK_SYSTEM_PACKAGES:+--break-system-packages} ${PIP_NO_CACHE_DIR:+--no-cache-dir}
do
    printf "%s\\0" "$arg" >> "$CALLS"
    case "$before" in -r | --requirement)
        [ -r "$arg" ] && while read -r line; do printf "%s\\0" "$line" >> "$CALLS"; done < "$arg" ;;
    esac
    before=$arg
done
printf "\\n" >> "$CALLS"
exit "$STATUS"
"""
# Other programs that an instruction may call: they record their arguments and succeed.
OTHERS = ("rm", "find", "mkdir", "rmdir", "ls", "cat", "chmod", "chown", "touch", "apt-get")
SYSTEM = re.compile(r"(?<![\w./=:-])(?:/usr|/usr/local|/opt/conda)?/s?bin/(?=\w)")  # system directories
CACHES = ("/root/.cache/pip", "/root/.cache", "/root/.cache/*", "/root/.cache/pip/*")
EXERCISE = Exercise("dockerfile")


def instructions(lines: list[str]) -> list[str]:
    """Join continued lines; drop comments and empty lines."""
    parsed: list[str] = []
    pending = ends = ""
    for line in lines:
        if ends:  # a here-document belongs to the instruction before it
            parsed[-1] += "" if line.strip() == ends else f"\n{line}"
            ends = "" if line.strip() == ends else ends
            continue
        if line.lstrip().startswith("#") or not (line.strip() or pending):
            continue
        pending += line.rstrip()
        if pending.endswith("\\"):
            pending = pending[:-1] + " "
            continue
        parsed.append(" ".join(pending.split()))
        pending = ""
        if here := re.search(r"<<-?[\"']?(\w+)[\"']?", parsed[-1]):
            ends = here[1]
    return [*parsed, pending] if pending else parsed


def parts(dockerfile: object) -> tuple[list[str], int]:
    """Return all instructions, and the index of the new one."""
    if not isinstance(dockerfile, list) or not all(isinstance(line, str) for line in dockerfile):
        raise NotYet(f"it is {describe(dockerfile)}: it should be a list of all lines")
    ours = instructions((config.DATA / "images" / "trainer" / "Dockerfile").read_text().splitlines())
    all_instructions = instructions(dockerfile)
    new = [index for index, line in enumerate(all_instructions) if line not in ours]
    if lost := [line for line in ours if line not in all_instructions]:
        raise NotYet(f"one of the course's instructions is missing: {lost[0]}")
    if len(new) != 1:
        raise NotYet(f"there are {len(new)} new instructions: write exactly one")
    return all_instructions, new[0]


def command_of(instruction: str) -> tuple[list[str], str]:
    """Split a RUN instruction into its options, ``--mount=…``, and its command as the shell gets it.

    Example:
        >>> command_of('RUN --network=none ["pip", "list"]')
        (['--network=none'], 'pip list')
    """
    options, command = [], instruction.partition(" ")[2]
    while command.startswith("--"):
        option, _, command = command.partition(" ")
        options.append(option)
    if command.startswith("["):
        try:
            words = json.loads(command)
        except ValueError:  # as Docker, which then passes it to the shell
            words = None
        if isinstance(words, list) and all(isinstance(word, str) for word in words):
            return options, shlex.join(words)
    if here := re.match(r"<<-?[\"']?\w+[\"']?\n", command):
        command = command[here.end() :]
    return options, command


def calls_of(
    dockerfile: list[str], *, status: int = 0
) -> tuple[subprocess.CompletedProcess[str], list[list[str]]]:
    """Run the new instruction's shell command with programs that record their arguments and return a status.

    Returns:
        The result of the shell, and the arguments of each call.

    Raises:
        NotYet: The command does not end.
    """
    all_instructions, index = parts(dockerfile)
    command = SYSTEM.sub("", command_of(all_instructions[index])[1])  # runs no program of this machine
    with tempfile.TemporaryDirectory(prefix="exercise-") as folder:
        calls = Path(folder, "calls")
        calls.touch()
        for name in ("pip", "pip3", "python", "python3"):
            Path(folder, name).write_text(RECORDER)
            Path(folder, name).chmod(0o755)
        for name in ("sh", "bash"):
            Path(folder, name).write_text('#!/bin/sh\nexec /bin/sh "$@"\n')
            Path(folder, name).chmod(0o755)
        for name in OTHERS:
            Path(folder, name).write_text(RECORDER.replace('"$STATUS"', "0"))
            Path(folder, name).chmod(0o755)
        try:
            done = subprocess.run(
                ["/bin/sh", "-fc" if status else "-fec", command], cwd=folder,
                env={"PATH": folder, "HOME": "/root", "CALLS": str(calls), "STATUS": str(status)},
                capture_output=True, text=True, timeout=SECONDS, check=False,
            )  # fmt: skip
        except subprocess.TimeoutExpired:
            raise NotYet(f"the command does not end within {SECONDS} s") from None
        return done, [line.split("\0")[:-1] for line in calls.read_text().splitlines()]


def pips_of(calls: list[list[str]]) -> list[list[str]]:
    """Return the arguments of each call of pip, with global options moved behind the subcommand."""
    pips = [
        call[3:] if call[1:3] == ["-m", "pip"] else call[1:] for call in calls if "pip" in " ".join(call[:3])
    ]
    counts = [len([*itertools.takewhile(lambda word: word.startswith("-"), words)]) for words in pips]
    ends = zip(pips, counts, strict=True)
    return [[*words[count : count + 1], *words[:count], *words[count + 1 :]] for words, count in ends]


def removes_cache(words: list[str]) -> bool:
    """Check whether a call removes pip's cache directory."""
    folders = {word.rstrip("/") for word in words[1:]}
    recursive = any(word in ("-r", "-R", "--recursive") or re.match(r"-\w*[rR]", word) for word in words)
    return words[0] == "rm" and recursive and not folders.isdisjoint(CACHES)


def installs_of(dockerfile: list[str]) -> list[list[str]]:
    """Return the arguments of each ``pip install`` of the new instruction."""
    done, calls = calls_of(dockerfile)
    if done.returncode:
        raise NotYet(f"the shell fails: {done.stderr.strip().partition(': ')[2] or done.returncode}")
    installs = [call for call in pips_of(calls) if call[:1] == ["install"]]
    if not installs:
        raise NotYet(f"it does not run pip install; it runs {shlex.join(calls[0]) if calls else 'nothing'}")
    return [install[1:] for install in installs]


def requirements(dockerfile: list[str]) -> list[Requirement]:
    """Parse the requirements of the package from pip's arguments."""
    pins = []
    for word in (word for install in installs_of(dockerfile) for word in install):
        try:
            requirement = Requirement(word)
        except InvalidRequirement:
            if re.match(rf"{PACKAGE}\b", word, re.IGNORECASE) is None:
                continue
            raise NotYet(f"pip cannot parse the requirement {word!r}: write {PACKAGE}=={VERSION}") from None
        pins += [requirement] if canonicalize_name(requirement.name) == PACKAGE else []
    return pins


def has(words: list[str], option: str, *, shortest: str) -> bool:
    """Check whether pip gets an option; pip accepts unambiguous prefixes."""
    return any(word.startswith(shortest) and option.startswith(word) for word in words)


def constraint(words: list[str]) -> str:
    """Return the value of pip's option ``--constraint`` or ``-c``."""
    for number, word in enumerate(words):
        name, equals, value = word.partition("=")
        if name == "-c" or (name.startswith("--cons") and "--constraint".startswith(name)):
            return value if equals else (words[number + 1 :] or [""])[0]
        if word.startswith("-c"):
            return word[2:]
    return ""


@EXERCISE.check("there is one new instruction, and it runs a command", essential=True)
def run_instruction(dockerfile: list[str]) -> None:
    all_instructions, place = parts(dockerfile)
    word = all_instructions[place].partition(" ")[0].upper()
    if word != "RUN":
        raise NotYet(f"{word} does not run a command when the image is built: which instruction does?")
    if all_instructions[place] == "RUN TODO":
        raise NotYet(UNTOUCHED)


@EXERCISE.check("the shell runs it, and pip installs the package", essential=True)
def installs_package(dockerfile: list[str]) -> None:
    if not requirements(dockerfile):
        message = "; ".join(shlex.join(install) for install in installs_of(dockerfile))
        raise NotYet(f"pip install does not install {PACKAGE}: its arguments are {message}")
    names = {word.partition("=")[0] for install in installs_of(dockerfile) for word in install}
    if elsewhere := sorted(names & ELSEWHERE):
        raise NotYet(
            f"with {elsewhere[0]}, pip does not install it where the image's Python finds it: leave it out"
        )
    if any(words[:1] == ["uninstall"] and PACKAGE in words for words in pips_of(calls_of(dockerfile)[1])):
        raise NotYet(f"pip uninstall removes {PACKAGE} again: leave it out")
    if calls_of(dockerfile, status=1)[0].returncode == 0:
        raise NotYet("if pip fails, the image is built without the package: the command has to fail as well")


@EXERCISE.check("the version is pinned")
def pinned_version(dockerfile: list[str]) -> None:
    requirement_list = requirements(dockerfile)
    versions = [str(requirement.specifier).lstrip("=") for requirement in requirement_list]
    for requirement in requirement_list:
        pins = [part for part in requirement.specifier if part.operator in ("==", "===")]
        if len(requirement.specifier) != 1 or not pins or "*" in pins[0].version:
            raise NotYet(
                f"{str(requirement)!r} could install another version later: pin it, {PACKAGE}=={VERSION}"
            )
    if set(versions) != {VERSION}:
        raise NotYet(f"it pins {' and '.join(versions)}, and should pin only {VERSION}")


@EXERCISE.check("the base image keeps its torch")
def torch_constraint(dockerfile: list[str]) -> None:
    bare = [words for words in installs_of(dockerfile) if "--no-deps" not in words]
    if any(constraint(words) != CONSTRAINTS for words in bare):
        raise NotYet(f"a dependency of {PACKAGE} could replace torch: pass --constraint {CONSTRAINTS}")
    all_instructions, place = parts(dockerfile)
    if bare and place < next(
        number for number, line in enumerate(all_instructions) if f"> {CONSTRAINTS}" in line
    ):
        raise NotYet(
            f"{CONSTRAINTS} does not exist yet at this point: move it after the instruction that writes it"
        )


@EXERCISE.check("pip may install into the system's Python")
def system_packages(dockerfile: list[str]) -> None:
    option = "--break-system-packages"
    if not all(has(words, option, shortest="--b") for words in installs_of(dockerfile)):
        raise NotYet(
            "the base image's Python refuses pip: pass --break-system-packages, as the instruction above does"
        )


@EXERCISE.check("pip's cache is not stored in the layer")
def no_cache(dockerfile: list[str]) -> None:
    all_instructions, place = parts(dockerfile)
    options, _ = command_of(all_instructions[place])
    if any(option.startswith("--mount=type=cache") for option in options):
        return  # the cache mount belongs to the builder
    calls = calls_of(dockerfile)[1]
    if pips_of(calls)[-1][:2] == ["cache", "purge"] or removes_cache(calls[-1]):
        return
    if not all(has(words, "--no-cache-dir", shortest="--no-c") for words in installs_of(dockerfile)):
        raise NotYet("pip stores its downloads in this layer: pass --no-cache-dir")


@EXERCISE.check("a change to a trainer does not reinstall it")
def layer_order(dockerfile: list[str]) -> None:
    all_instructions, place = parts(dockerfile)
    if place > next(
        number for number, line in enumerate(all_instructions) if line.startswith("COPY trainers/")
    ):
        raise NotYet(
            "a layer is rebuilt when an earlier one changes: move the instruction before COPY trainers/"
        )
