#!/usr/bin/env python3
"""Run a developer task: the targets of the Makefile, and less common ones.

    python3 tools/dev.py --help
    python3 tools/dev.py test-slow WORKERS=2

It needs Python 3.11 or later and no packages: tasks set up the environment first. Settings of a task are also
read from environment variables, as set by `make run PROVIDER=eks`. With ``DRY_RUN=1`` the commands are
printed and not run. Each command documents its own options.
"""

import signal

if __name__ == "__main__" and signal.getsignal(signal.SIGINT) is signal.default_int_handler:
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # an interrupt of the imports below shows no traceback

import os
import platform
import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from dev_commands import ROOT, Commands, TaskError, jupyter_options, run_each

COMMON = ("VENV", "BUNDLE", "WHEEL", "DRY_RUN")
PUBLISHED = ROOT / "images" / "trainer" / "published.toml"
PUBLISHED_HEADER = "# The trainers' image of the last release, as `tools/dev.py image-index` writes it.\n"
MARP = "@marp-team/marp-cli@4.5.1"
D2 = "@terrastruct/d2@0.1.33"
# Options of run_notebooks.py.
RUN = "PROFILE MIRROR NODES IMAGE LANES TIME_LIMIT MIN_ACCURACY MIN_IMAGES_PER_S MIN_ALLREDUCE"
RUN += " STORAGE_CLASS TOLERATIONS"
EXISTING = "KUBECONFIG CONTEXT NAMESPACE"
# Tests of pods in both modes; those that need namespaces have the marker "namespaces".
IN_BOTH_MODES = "pods_* streams_* lifecycle machines metrics probes"


@dataclass(frozen=True)
class Task:
    """A task: its function, whose docstring is the help text, and its settings."""

    function: Callable[[Commands], None]
    settings: tuple[str, ...]


TASKS: dict[str, Task] = {}


def task(settings: str = "") -> Callable[[Callable[[Commands], None]], Callable[[Commands], None]]:
    """Register a function as a task, named with hyphens."""

    def add(function: Callable[[Commands], None]) -> Callable[[Commands], None]:
        TASKS[function.__name__.replace("_", "-")] = Task(function, tuple(settings.split()))
        return function

    return add


def make_targets() -> list[str]:
    """Return the tasks that are also targets of the Makefile."""
    (targets,) = re.findall(r"^TARGETS = (.+)$", (ROOT / "Makefile").read_text(), re.MULTILINE)
    return targets.split()


@task()
def help(commands: Commands) -> None:
    """List the tasks."""
    targets = make_targets()
    for title, names in (
        ("make", targets),
        ("python3 tools/dev.py", [name for name in TASKS if name not in targets]),
    ):
        print(f"{title} ...")
        for name in names:
            summary = " ".join((TASKS[name].function.__doc__ or "").split())
            settings = "".join(f" {word}=" for word in TASKS[name].settings)
            print(f"  {name:<16} {summary}" + (f"\n{'':<19}{settings.strip()}" if settings else ""))
    print("VENV=FOLDER and DRY_RUN=1 apply to all tasks; BUNDLE=FILE and WHEEL=FILE to tasks that set up.")


@task()
def setup(commands: Commands) -> None:
    """Create the environment, get Kubernetes and operators; BUNDLE=FILE needs no network."""
    commands.setup()


@task(f"PROVIDER OPTIONS NOTEBOOKS {EXISTING} PARAMETERS {RUN}")
def run(commands: Commands) -> None:
    """Run the notebooks on a local cluster, or PROVIDER=existing, eks, gke; leaves reports/index.html."""
    provider = commands.setting("PROVIDER", "local")
    options = [f"--provider={provider}", *commands.flags(RUN)]
    options += [f"--parameter={parameter}" for parameter in commands.settings_list("PARAMETERS")]
    # A cloud cluster costs money, and its price must be confirmed, unless OPTIONS has confirm=true.
    options += [f"--option={option}" for option in commands.settings_list("OPTIONS")]
    options += commands.flags(EXISTING) if provider == "existing" else []
    program: list[str | Path] = [commands.python, "tools/run_notebooks.py", "--output=reports"]
    commands.setup(*program, *options, *commands.settings_list("NOTEBOOKS"))


@task("PORT IP")
def lab(commands: Commands) -> None:
    """Open JupyterLab on the notebooks, even while Kubernetes is being built; PORT=8888, IP=127.0.0.1."""
    # JupyterLab's root is the clone, as notebooks link to files outside their folder.
    first = "--LabApp.default_url=/lab/tree/notebooks/00_start.ipynb"
    options = jupyter_options(commands, os.environ, root=os.getuid() == 0)
    commands.setup(commands.bin / "jupyter", "lab", "--ServerApp.root_dir=.", first, *options)


@task()
def browser(commands: Commands) -> None:
    """Install a browser for the tests: playwright's, or the system's on Debian as root."""
    commands.setup()
    commands.module("tools/browser.py", "--install")


@task()
def lint(commands: Commands) -> None:
    """Run the hooks of .pre-commit-config.yaml on all files: style, types, imports, notebooks, templates."""
    commands.setup(packages=True)
    commands.run(commands.bin / "pre-commit", "run", "--all-files")


@task("WORKERS TESTS RECHECK")
def test(commands: Commands) -> None:
    """Lint, then run the unit, node, cluster, notebook and browser tests, except slow ones."""
    browser(commands)
    if not commands.setting("TESTS"):
        commands.environment["SKIP"] = "notebooks,ceilings"  # the hooks that are tests, which follow
    run_each(commands, lint, test_quick)


@task("WORKERS TESTS RECHECK")
def test_quick(commands: Commands) -> None:
    """Run the tests of `make test` in the existing environment; TESTS="tests/unit tests/node"."""
    commands.side_by_side("not slow", *commands.settings_list("TESTS", "tests"))


@task("WORKERS TESTS")
def coverage(commands: Commands) -> None:
    """Measure which lines and branches the tests without a cluster run, or TESTS=: build/coverage."""
    program = (commands.python, "-m", "coverage")
    paths = commands.settings_list("TESTS", "tests/unit tests/localkube tests/programs")
    spread = ("--dist", "loadfile", "-n", commands.setting("WORKERS", "2"), "-m", "not slow")
    commands.run(*program, "erase")
    try:
        commands.run(*program, "run", "-m", "pytest", *spread, *paths)
    finally:
        commands.run(*program, "combine", "--quiet")
        commands.run(*program, "html", "--quiet", "--directory=build/coverage")
        commands.run(*program, "report", "--sort=miss")


@task("WORKERS")
def test_slow(commands: Commands) -> None:
    """Run the tests that `make test` leaves out, except those that take minutes."""
    browser(commands)
    commands.side_by_side("slow and not long", "tests")


@task("WORKERS")
def test_all(commands: Commands) -> None:
    """Run every test, including slow ones and those of pods in plain mode."""
    browser(commands)
    run_each(commands, lint, test_each, test_plain)


@task()
def test_each(commands: Commands) -> None:
    """Run every test, one after the other, in the existing environment."""
    commands.pytest("tests")


@task("WORKERS")
def test_plain(commands: Commands) -> None:
    """Run the tests of pods in plain mode in the existing environment."""
    paths = [
        path for name in IN_BOTH_MODES.split() for path in sorted(ROOT.glob(f"tests/node/test_{name}.py"))
    ]
    names = [str(path.relative_to(ROOT)) for path in paths]
    commands.side_by_side("not slow", *names, TRAINYARD_MODE="plain")


@task("WHEELS")
def test_wheel(commands: Commands) -> None:
    """Install the kit from a folder of wheels (3 GB, WHEELS=), offline; quickstart, course, notebooks."""
    commands.setup()
    wheels = commands.setting("WHEELS")
    commands.pytest("tests/cluster/test_wheels.py", **({"TRAINYARD_WHEELS": wheels} if wheels else {}))


@task()
def test_hosted(commands: Commands) -> None:
    """Run self-installing notebooks in an unprivileged container, with its packages (9 GB)."""
    commands.setup()
    commands.install("setuptools", "ziglang")
    commands.pytest("tests/cluster/test_hosted.py")


@task("COURSES")
def test_clouds(commands: Commands) -> None:
    """Run the clouds' tests that `make test` leaves out, and the whole course on each simulated cloud."""
    commands.setup()
    run_each(commands, lint, test_clouds_slow, test_courses)


@task()
def test_clouds_slow(commands: Commands) -> None:
    """Run the clouds' slow tests in the existing environment."""
    commands.side_by_side("slow and not long", "tests/cloud", workers="2")


@task("COURSES")
def test_courses(commands: Commands) -> None:
    """Run the course on each simulated cloud, one after the other; or COURSES=FILES."""
    commands.setup()
    files = sorted(path.relative_to(ROOT) for path in ROOT.glob("tests/cloud/test_notebooks_on_*.py"))
    courses = commands.settings_list("COURSES") or [str(path) for path in files]
    commands.pytest("-m", "slow", "-s", *courses)


@task("HOURS SEED CREATE")
def soak(commands: Commands) -> None:
    """Disturb a cluster of thirty attendees for an hour; SEED=N repeats a run; CREATE=200 clusters."""
    commands.setup()
    commands.module("tools/soak_cluster.py", *commands.flags("HOURS SEED CREATE"))


@task("SEED")
def soak_elastic(commands: Commands) -> None:
    """Disturb an elastic run at random for ten minutes; SEED=N repeats it."""
    commands.setup()
    commands.module("tools/soak_elastic.py", *commands.flags("SEED"))


@task("TARGET SECONDS")
def fuzz(commands: Commands) -> None:
    """Fuzz the parsers of untrusted input: TARGET= of tests/fuzz, or all; SECONDS= each, or 60."""
    commands.setup()
    commands.install("--target", "build/fuzz", "atheris")
    program: list[str | Path] = [commands.python, "-m", "tests.fuzz", commands.setting("SECONDS", "60")]
    commands.run("nice", "-n", "19", *program, *commands.settings_list("TARGET"), PYTHONPATH="build/fuzz")


@task("FOCUS SUITE AS PROCESSES")
def conformance(commands: Commands) -> None:
    """Run Kubernetes' conformance suite on a local cluster.

    FOCUS=REGEX, SUITE=NodeConformance or sigs, AS=USER, PROCESSES=N.
    """
    commands.setup()
    commands.module("-m", "tests.conformance", *commands.flags("FOCUS SUITE AS PROCESSES"))


@task("NOTEBOOKS")
def test_kubelet(commands: Commands) -> None:
    """Run notebooks on a node of containerd, runc and Kubernetes' own kubelet, as root; NOTEBOOKS="01 05"."""
    commands.setup()
    commands.module("-m", "tests.kubelet", *commands.settings_list("NOTEBOOKS"))


@task("SOURCES NAMES")
def operators(commands: Commands) -> None:
    """Build public operators, start them from manifests, run their quick starts; SOURCES=DIR, NAMES=."""
    commands.setup()
    commands.module("tools/operators.py", *commands.flags("SOURCES"), *commands.settings_list("NAMES"))


@task("PROGRAMS NAMES SOURCES")
def test_programs(commands: Commands) -> None:
    """Run unmodified public programs and manifests from PROGRAMS=FOLDER.

    NAMES="mnist dask"; missing repositories are cloned; SOURCES=FOLDER has mirrors.
    """
    commands.setup()
    folder = commands.setting("PROGRAMS", "build/programs")
    sources = commands.setting("SOURCES", "https://github.com")
    commands.module("-m", "tests.programs", f"--sources={sources}", folder, *commands.settings_list("NAMES"))


@task("DATA")
def figures(commands: Commands) -> None:
    """Measure the published accuracies on real data in DATA=DIR: MNIST/raw, cifar-10-batches-py."""
    commands.setup()
    data = commands.setting("DATA", "data")
    ranks, trainers = ("-m", "torch.distributed.run", "--standalone"), "trainers/cifar10-model"
    model, batches = "build/cifar10-model.pth", f"{data}/cifar-10-batches-py"
    if Path(data, "MNIST", "raw").is_dir():
        mnist = ("trainers/mnist.py", "--epochs=1", "--log-interval=100", f"--data-dir={data}")
        commands.module(*ranks, "--nproc-per-node=4", *mnist)
    if Path(batches).is_dir():
        training = (f"{trainers}-train.py", f"--model-file={model}", batches)
        commands.module(*ranks, "--nproc-per-node=2", *training)
        commands.module(f"{trainers}-test.py", f"--model-file={model}", batches)


@task("PACK")
def gpu(commands: Commands) -> None:
    """Test the GPU features on this machine in eight minutes; PACK=FILE without a network: tools/gpu.py."""
    pack = commands.setting("PACK")
    if pack:
        commands.run(sys.executable, "tools/gpu.py", "--use", pack)
    else:
        commands.setup()
        commands.module("tools/gpu.py")


@task("MEASURES")
def bench(commands: Commands) -> None:
    """Benchmark this kit against its peers in twenty minutes; MEASURES="pod_start idle"."""
    commands.setup()
    names = commands.settings_list("MEASURES")
    commands.module("-m", "bench", *(["--only", *names] if names else []))


@task("BASE")
def site(commands: Commands) -> None:
    """Build this version's web site from README, executed notebooks and docs in build/site; BASE=/path/."""
    commands.setup()
    commands.install("myst-nb", "sphinx", "sphinx-book-theme", to="build/site-environment")
    commands.run("build/site-environment/bin/python", "tools/build_site.py", *commands.flags("BASE"))


@task("WORKERS")
def newest(commands: Commands) -> None:
    """Try the newest releases of all dependencies: unit tests, a cluster; leaves reports/newest.txt."""
    commands.setup()
    uv, python = commands.bin / "uv", "build/newest/bin/python"
    commands.run(uv, "venv", "--quiet", "--clear", "--seed", "--python", commands.python, "build/newest")
    commands.run(uv, "pip", "install", "--quiet", "--python", python, "uv")
    commands.run(python, "tools/install_packages.py", "--newest")
    commands.module("tools/pin.py", "--compare", python)
    # Without the tests that compare with pinned versions and declared packages.
    tests = [
        "tests/unit",
        "tests/programs",
        "tests/cluster/test_runs.py",
        "--ignore=tests/unit/test_environment.py",
    ]
    deselect = "tests/programs/test_trainer_image.py::test_the_image_has_what_the_programs_declare"
    spread = ["-n", commands.setting("WORKERS", "4"), "--dist", "loadfile", "-m", "not slow"]
    commands.run(python, "-m", "pytest", *spread, *tests, f"--deselect={deselect}")


@task()
def types(commands: Commands) -> None:
    """Measure with pyright how much of kitlib's public API is typed."""
    commands.install("pyright[nodejs]", to="build/types-environment")
    pyright: list[str | Path] = ["build/types-environment/bin/pyright", "--pythonpath", commands.python]
    try:
        commands.run(*pyright, "--verifytypes", "kitlib", "--ignoreexternal", PYTHONPATH=".")
    except TaskError as error:  # a measurement; an incomplete result is no failure
        print(error)


def _npm(commands: Commands, package: str) -> None:
    options = ["--silent", "--no-save", "--no-package-lock", "--prefix", "build"]
    commands.run("npm", "install", *options, package)


@task()
def slides(commands: Commands) -> None:
    """Build build/slides.html from docs/slides.md; needs Node.js."""
    _npm(commands, MARP)
    shutil.copytree(ROOT / "docs" / "images", ROOT / "build" / "images", dirs_exist_ok=True)
    commands.run("build/node_modules/.bin/marp", "docs/slides.md", "--output", "build/slides.html")


@task()
def diagrams(commands: Commands) -> None:
    """Render docs/diagrams as images; needs Node.js."""
    _npm(commands, D2)
    commands.run("cp", "tools/diagrams.mjs", "build/")
    commands.run("node", "build/diagrams.mjs")


@task("ARCH")
def wheel(commands: Commands) -> None:
    """Build wheels of the control plane for machines without Go in dist/; ARCH="amd64 arm64"."""
    commands.setup()
    commands.install("setuptools", "ziglang")
    commands.module("tools/wheel.py", "--output=dist", *commands.settings_list("ARCH"))


@task("PARTS NEED TAG")
def release(commands: Commands) -> None:
    """Build the artifacts of a release in dist/, and name missing ones; PARTS=, NEED=, TAG=."""
    commands.setup(packages=True)
    commands.install("setuptools", "ziglang")
    parts = [f"--part={part}" for part in commands.settings_list("PARTS")]
    needs = [f"--need={part}" for part in commands.settings_list("NEED")]
    commands.module("tools/release.py", *commands.flags("TAG"), *parts, *needs)


@task()
def reproduce(commands: Commands) -> None:
    """Build the wheels of dist/ again, compiling everything, and compare: ten minutes on two cores."""
    commands.setup(packages=True)
    commands.install("setuptools", "ziglang")
    commands.module("tools/release.py", "--compare=dist")


def _architecture() -> str:
    return {"aarch64": "arm64", "x86_64": "amd64"}.get(platform.machine(), platform.machine())


def _tag(commands: Commands, architecture: str = "") -> str:
    version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    name = commands.setting("IMAGE").lower()
    if not name:
        raise TaskError("which image? IMAGE=registry/owner/name")
    return f"{name}:{version}" + (f"-{architecture}" if architecture else "")


@task()
def image(commands: Commands) -> None:
    """Build the trainers' image for this architecture; needs Docker."""
    base = []
    if _architecture() == "arm64":  # PyTorch publishes none
        commands.run("docker", "build", "--tag", "trainyard/torch:arm64", "images/torch-arm64")
        base = ["--build-arg", "BASE=trainyard/torch:arm64"]
    tag = f"trainyard/trainer:{_architecture()}"
    commands.run("docker", "build", "--file", "images/trainer/Dockerfile", *base, "--tag", tag, ".")


@task("IMAGE")
def image_push(commands: Commands) -> None:
    """Push the image of this architecture as IMAGE=registry/owner/name."""
    tag = _tag(commands, _architecture())
    commands.run("docker", "tag", f"trainyard/trainer:{_architecture()}", tag)
    commands.run("docker", "push", tag)


@task("IMAGE")
def image_index(commands: Commands) -> None:
    """Combine the pushed images of both architectures, and write the result to published.toml: IMAGE=…"""
    images, name = [_tag(commands, architecture) for architecture in ("amd64", "arm64")], _tag(commands)
    tools = ("docker", "buildx", "imagetools")
    commands.run(*tools, "create", "--tag", name, *images)
    inspect = (*tools, "inspect", "--format", "{{.Manifest.Digest}}", name)
    if commands.setting("DRY_RUN"):
        commands.run(*inspect)
        return
    digest = subprocess.run(inspect, capture_output=True, text=True, check=True).stdout.strip()
    text = f'{PUBLISHED_HEADER}name = "{name.rpartition(":")[0]}"\ndigest = "{digest}"\n'
    PUBLISHED.write_text(text, encoding="utf-8")
    print("".join(f"    {line}\n" for line in text.splitlines()), end="")


@task()
def pins(commands: Commands) -> None:
    """Rewrite constraints.txt from the environment."""
    commands.setup()
    commands.module("tools/pin.py")


@task()
def clean(commands: Commands) -> None:
    """Delete the environment, reports and tool caches; keep clusters and the control plane."""
    names = ("reports", "build", "dist", ".pytest_cache", ".ruff_cache", ".import_linter_cache")
    commands.run("rm", "-rf", commands.bin.parent, *names, *(path.name for path in ROOT.glob("*.egg-info")))


def main(arguments: list[str]) -> int:
    """Run the requested task with its settings."""
    name, *tasks = arguments or ["help"]
    name = "help" if name in ("-h", "--help") else name
    if name not in TASKS:
        print(f"There is no task {name!r}: {' '.join(TASKS)}", file=sys.stderr)
        return 2
    allowed = (*TASKS[name].settings, *COMMON)
    settings = {key: os.environ[key] for key in allowed if key in os.environ}
    for argument in tasks:
        key, equals, value = argument.partition("=")
        if not equals or key not in allowed:
            print(f"{name} has no setting {argument!r}; its settings: {' '.join(allowed)}", file=sys.stderr)
            return 2
        settings[key] = value
    try:
        if signal.getsignal(signal.SIGINT) is signal.SIG_DFL:
            signal.signal(signal.SIGINT, signal.default_int_handler)  # commands clean up
        TASKS[name].function(Commands(settings))
    except TaskError as error:
        print(f"{name}: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
