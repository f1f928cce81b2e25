#!/usr/bin/env python3
"""Build operators from source, start them from their published manifests, and run their quick starts.

    python tools/operators.py --sources DIR kube-state-metrics

``operators.toml`` lists them. Each runs on a separate local cluster, with images built from its programs and
loaded into the image store, without stand-ins. The results are in ``docs/operators.md``. Entries without
images are tools (helm, k9s, kustomize, stern), which are built first and used in steps. It needs Go, git, and
a network or folders with the repositories; a build takes minutes.
"""

import argparse
import hashlib
import io
import json
import os
import platform
import pty
import re
import select
import shlex
import shutil
import signal
import subprocess
import sys
import tarfile
import tempfile
import termios
import time
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
CATALOG, TABLE = Path(__file__).with_suffix(".toml"), ROOT / "docs" / "operators.md"
CLUSTER, WAIT = "operators", "--timeout=300s"
WEBHOOK_SECONDS = SCREEN_SECONDS = 60
CERTIFICATES = Path("/etc/ssl/certs/ca-certificates.crt")
BEGIN, END = "<!-- table: tools/operators.py -->\n", "<!-- end -->\n"
COLUMNS = ("Operator", "Version", "Built from", "Images", "Started by", "Quick start", "Result", "Changed")
HEAD = f"| {' | '.join(COLUMNS)} |\n{'| --- ' * len(COLUMNS)}|\n"


class StepError(Exception):
    """A command failed; the message is the end of its output."""


@dataclass(frozen=True)
class Operator:
    """An entry of ``operators.toml``, which documents the fields."""

    name: str
    repository: str
    tag: str
    build: Mapping[str, str]
    images: Mapping[str, Sequence[str]] = field(default_factory=dict)
    ready: Sequence[str] = ()
    proxy: str = ""
    namespace: str = ""
    debian: Sequence[str] = ()
    python: Sequence[str] = ()
    files: Mapping[str, str] = field(default_factory=dict)
    apply: Sequence[str] = ()
    module: str = "."
    modules: Sequence[str] = ()
    joined: bool = False
    libraries: Sequence[str] = ()
    empty: Sequence[str] = ()
    user: str = ""
    charts: Sequence[str] = ()
    example: Sequence[str] = ()
    ends: Sequence[str] = ()
    prints: Mapping[str, str] = field(default_factory=dict)
    refuses: Mapping[str, str] = field(default_factory=dict)
    shows: Mapping[str, str] = field(default_factory=dict)
    changed: str = ""


def catalog() -> list[Operator]:
    """Read the operators."""
    entries = tomllib.loads(CATALOG.read_text(encoding="utf-8"))
    return [Operator(name, **entry) for name, entry in entries.items()]


def run(*command: str | Path, cwd: Path = ROOT, env: Mapping[str, str] | None = None) -> str:
    """Run a command and return its output; a StepError has the end of it."""
    process = subprocess.run(
        command, cwd=cwd, env=env, capture_output=True, text=True, errors="replace", check=False
    )
    if process.returncode:
        raise StepError(
            f"{shlex.join(map(str, command))}: {(process.stderr or process.stdout).strip()[-600:]}"
        )
    return process.stdout


def kubectl(message: str, *, cwd: Path = ROOT) -> str:
    """Run kubectl on the cluster of this run."""
    command = (sys.executable, "-m", "trainyard_kit.cli", "kubectl", "-c", CLUSTER)
    return run(*command, *shlex.split(message), cwd=cwd)


def step(command: str, *, cwd: Path = ROOT) -> str:
    """Run a tool of the catalog, or kubectl, on the cluster of this run."""
    command = blocks(command, cwd)
    program, *arguments = shlex.split(command)
    if tool := shutil.which(program, path=os.environ["TOOLS"]):
        return run(tool, *arguments, cwd=cwd)
    return kubectl(command, cwd=cwd)


def screen(message: str, text: str) -> str:
    """Run a tool in a pseudo-terminal until it shows a text, and return its output."""
    program, *arguments = shlex.split(message)
    child, terminal = pty.fork()
    if not child:
        os.environ["TERM"] = "xterm-256color"
        os.execvp(program, [program, *arguments])
    written, end = "", time.monotonic() + SCREEN_SECONDS
    termios.tcsetwinsize(terminal, (40, 160))
    while text not in written and select.select([terminal], [], [], max(0, end - time.monotonic()))[0]:
        try:
            written += os.read(terminal, 65536).decode(errors="replace")
        except OSError:  # it has ended
            break
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    os.close(terminal)
    return written


def join(operators: Sequence[Operator], cache: Path) -> None:
    """Write a Go workspace of the sources, so that all use the newest libraries, each compiled once."""
    (cache / "sources" / "go.work").unlink(missing_ok=True)
    folders = [
        str(Path(f"{operator.name}-{operator.tag}", module))
        for operator in operators
        for module in (operator.module, *operator.modules)
    ]
    libraries = {library.replace("/", "-") for operator in operators for library in operator.libraries}
    run("go", "work", "init", *folders, *sorted(libraries), cwd=cache / "sources")


def clone(repository: str, tag: str, folder: Path, sources: Path | None) -> None:
    """Clone a release, from ``OWNER+NAME/repo`` of ``sources`` or from GitHub, unless it exists."""
    if folder.exists():
        return
    local = sources and sources / repository.replace("/", "+") / "repo"
    origin = f"file://{local}" if local and local.exists() else f"https://github.com/{repository}"
    run("git", "clone", "-q", "--depth=1", "--branch", tag, origin, folder)


def blocks(message: str, source: Path) -> str:
    """Write code blocks that a command names as ``PAGE.md#NAME`` to files, and insert their names."""

    def write(match: re.Match[str]) -> str:
        page, title = match.groups()
        text = (source / page).read_text(encoding="utf-8")
        block = text.partition(f"# {title}\n")[2].partition("```")[0]
        if not block:
            raise StepError(f"{page} has no block that begins with # {title}")
        (source / title).write_text(block, encoding="utf-8")
        return title

    return re.sub(r"(\S+\.md)#(\S+)", write, message)


def checkout(operator: Operator, sources: Path | None, cache: Path) -> Path:
    """Fetch an operator's release from the module proxy or its repository, and libraries that it needs."""
    folder = cache / "sources" / f"{operator.name}-{operator.tag}"
    for library in operator.libraries:
        repository, _, tag = library.partition("@")
        clone(repository, tag, cache / "sources" / library.replace("/", "-"), sources)
    if not operator.proxy:
        clone(operator.repository, operator.tag, folder, sources)
    elif not folder.exists():
        module = json.loads(run("go", "mod", "download", "-json", f"{operator.proxy}@{operator.tag}"))
        shutil.copytree(module["Dir"], folder, copy_function=shutil.copyfile)
        run("chmod", "-R", "u+w", folder)
    for path in operator.empty:
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).touch()
    return folder


def build(operator: Operator, source: Path, cache: Path) -> dict[str, Path]:
    """Build the static programs of an operator, or get them from the cache; by path in the image."""
    programs = {}
    for path_in_image, package in operator.build.items():
        goal = cache / "programs" / f"{operator.name}-{operator.tag}" / Path(path_in_image).name
        if not operator.images:
            goal = cache / "tools" / path_in_image
        if not goal.exists():
            flags = ["-trimpath", "-buildvcs=false", "-ldflags=-s -w", "-o", str(goal)]
            work = cache / "sources" / "go.work" if operator.joined else "off"
            if not operator.joined:
                flags.append("-mod=mod")
            folder = source / operator.module
            if package.startswith("../"):
                folder, package = folder / package, "."
            env = os.environ | {"CGO_ENABLED": "0", "GOWORK": str(work)}
            run("go", "build", *flags, package, cwd=folder, env=env)
        programs[path_in_image] = goal
    return programs


def base_layer(operator: Operator, cache: Path) -> Path:
    """Build the layer of a small Debian with packages, or get it from the cache."""
    layer = cache / "bases" / f"{operator.name}-{operator.tag}.tar"
    if not layer.exists():
        with tempfile.TemporaryDirectory(dir=cache) as root:
            release = platform.freedesktop_os_release()["VERSION_CODENAME"]
            packages = f"--include={','.join(operator.debian)}"
            apart = ("unshare", "--mount")  # debootstrap leaves /proc mounted
            run(*apart, "debootstrap", "--variant=minbase", packages, release, root)
            if operator.python:
                if CERTIFICATES.exists():
                    shutil.copy(CERTIFICATES, Path(root, *CERTIFICATES.parts[1:]))
                pip = ("python3", "-m", "pip", "install", "--no-cache-dir", "--break-system-packages")
                run("chroot", root, *pip, *operator.python)
            layer.parent.mkdir(exist_ok=True)
            unfinished = layer.with_suffix(".part")
            run("tar", "--numeric-owner", "--exclude=./dev/*", "-C", root, "-cf", unfinished, ".")
            unfinished.rename(layer)
    return layer


def program_layer(goal: Path, files: Mapping[str, Path]) -> Path:
    """Write the layer of programs and a directory /tmp."""
    with tarfile.open(goal, "w") as tar:
        folder = tarfile.TarInfo("tmp")
        folder.type, folder.mode = tarfile.DIRTYPE, 0o1777
        tar.addfile(folder)
        for path_in_image, path in files.items():
            member = tarfile.TarInfo(path_in_image)
            member.size, member.mode = path.stat().st_size, 0o755
            with path.open("rb") as program:
                tar.addfile(member, program)
    return goal


def sha256(path: Path) -> str:
    """Compute the digest of a file, in hexadecimal digits."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def write_image(goal: Path, name: str, layers: Sequence[Path], command: Sequence[str], user: str) -> None:
    """Write an image as ``docker save`` does, of layers that are tar archives."""
    settings = {
        "Entrypoint": list(command),
        "WorkingDir": "/",
        "User": user,
        "Env": ["PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"],
    }
    config = json.dumps(
        {
            "architecture": "amd64",
            "os": "linux",
            "config": settings,
            "rootfs": {"type": "layers", "diff_ids": [f"sha256:{sha256(layer)}" for layer in layers]},
        }
    ).encode()
    title = f"{hashlib.sha256(config).hexdigest()}.json"
    names = [f"{number}/layer.tar" for number, _ in enumerate(layers)]
    manifest = json.dumps([{"Config": title, "RepoTags": [name], "Layers": names}]).encode()
    with tarfile.open(goal, "w") as tar:
        for entry, layer in zip(names, layers, strict=True):
            tar.add(layer, entry)
        for entry, content in ((title, config), ("manifest.json", manifest)):
            member = tarfile.TarInfo(entry)
            member.size = len(content)
            tar.addfile(member, io.BytesIO(content))


def load_images(operator: Operator, source: Path, programs: Mapping[str, Path], cache: Path) -> None:
    """Build the images of the manifests, and load them into the store."""
    certificates = {str(CERTIFICATES).lstrip("/"): CERTIFICATES} if CERTIFICATES.exists() else {}
    common = {
        **certificates,
        **{path_in_image: source / path for path_in_image, path in operator.files.items()},
    }
    started = {command[0].lstrip("/") for command in operator.images.values()}
    with tempfile.TemporaryDirectory(dir=cache) as folder:
        layers = [base_layer(operator, cache)] if operator.debian else []
        layer, archive = Path(folder, "layer.tar"), Path(folder, "image.tar")
        for name, command in operator.images.items():
            unexpected = started - {command[0].lstrip("/")}
            program_layer(layer, {**{k: v for k, v in programs.items() if k not in unexpected}, **common})
            write_image(archive, name, [*layers, layer], command, operator.user)
            run(sys.executable, "-m", "trainyard_kit.cli", "image", "load", archive)


def once_webhooks_answer(message: str, source: Path) -> None:
    """Run a step; retry while a webhook does not listen yet."""
    end = time.monotonic() + WEBHOOK_SECONDS
    while True:
        try:
            step(message, cwd=source)
        except StepError as error:
            if "call webhook" not in str(error) or time.monotonic() > end:
                raise
            time.sleep(1)
        else:
            return


def try_operator(operator: Operator, source: Path) -> None:
    """Start an operator from its manifests, run its quick start, and compare the output."""
    if operator.namespace:
        kubectl(f"create namespace {operator.namespace}")
    for command in operator.apply:
        kubectl(f"apply {command}", cwd=source)
    for command in operator.charts:
        step(f"helm {command}", cwd=source)
    for command in operator.ready:
        kubectl(f"{command} {WAIT}")
    for command in operator.example:
        once_webhooks_answer(command, source)
    for command in operator.ends:
        kubectl(f"{command} {WAIT}")
    for command, text in operator.prints.items():
        output = step(command, cwd=source)
        for line in text.splitlines():
            if line not in output:
                raise StepError(f"{command}: no {line!r} in {output[-300:]!r}")
    for command, text in operator.refuses.items():
        try:
            step(command, cwd=source)
        except StepError as error:
            if text not in str(error):
                raise
        else:
            raise StepError(f"{command}: was not rejected")
    for command, text in operator.shows.items():
        if text not in (output := screen(command, text)):
            raise StepError(f"{command}: no {text!r} in {output[-300:]!r}")


def row(operator: Operator, result: str) -> str:
    """Write an operator's row of the table."""
    link = f"[{operator.name}](https://github.com/{operator.repository})"
    source = "module proxy" if operator.proxy else "repository"
    started = ", ".join(f"`{command.split()[-1]}`" for command in (*operator.apply, *operator.charts))
    if operator.images:
        example = ", ".join(f"`{command.split()[-1]}`" for command in operator.example) or "its endpoints"
    else:
        steps = (*operator.example, *operator.prints, *operator.shows)
        example = ", ".join(f"`{command}`" for command in steps if command.startswith(operator.name))
    changed = operator.changed or "nothing"
    cells = (link, operator.tag, source, len(operator.images), started, example, result, changed)
    return f"| {' | '.join(map(str, cells))} |\n"


def write_table(results: Mapping[str, str]) -> None:
    """Write the rows of this run to the document, and keep the others."""
    head, _, rest = TABLE.read_text(encoding="utf-8").partition(BEGIN)
    table, _, tail = rest.partition(END)
    rows = {line.partition("](")[0]: f"{line}\n" for line in table.splitlines() if line.startswith("| [")}
    rows |= {f"| [{item.name}": row(item, results[item.name]) for item in catalog() if item.name in results}
    content = "".join(rows[key] for key in sorted(rows))
    TABLE.write_text(f"{head}{BEGIN}{HEAD}{content}{END}{tail}", encoding="utf-8")


def main() -> int:
    """Test all operators, or some; the exit status is the number of failures."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--sources", type=Path, help="folders OWNER+NAME/repo with git repositories")
    parser.add_argument("--cache", type=Path, default=Path.home() / ".cache" / "trainyard-operators")
    parser.add_argument("names", nargs="*", help="names in the catalog; by default all")
    options = parser.parse_args()
    operators = [item for item in catalog() if not options.names or item.name in options.names]
    (options.cache / "sources").mkdir(parents=True, exist_ok=True)
    os.environ["TOOLS"] = str(options.cache / "tools")
    os.environ["PATH"] = os.pathsep.join((os.environ["TOOLS"], os.environ["PATH"]))
    trainyard = (sys.executable, "-m", "trainyard_kit.cli")
    results: dict[str, str] = {}
    joined = [operator for operator in operators if operator.joined]
    for operator in joined:
        checkout(operator, options.sources, options.cache)
    if joined:
        join(joined, options.cache)
    for operator in operators:
        start = time.monotonic()
        try:
            source = checkout(operator, options.sources, options.cache)
            programs = build(operator, source, options.cache)
            load_images(operator, source, programs, options.cache)
            run(*trainyard, "cluster", "create", CLUSTER, "--nodes", "2", "--cpus", "4")
            kubeconfig = run(*trainyard, "cluster", "kubeconfig", "--path", CLUSTER)
            os.environ["KUBECONFIG"] = kubeconfig.strip()
            try_operator(operator, source)
            results[operator.name] = "runs"
        except StepError as error:
            results[operator.name] = "fails: " + " ".join(str(error).split())[-200:].replace("|", "/")
        finally:
            run(*trainyard, "cluster", "delete", CLUSTER)
        print(
            f"{operator.name} {operator.tag}: {results[operator.name]} ({time.monotonic() - start:.0f} s)",
            flush=True,
        )
    write_table(results)
    return sum(result != "runs" for result in results.values())


if __name__ == "__main__":
    sys.exit(main())
