"""Obtain the programs of known images.

They come from the control plane's Python package or are built from their Go modules. Each has a module here,
``modules/NAME``, whose go.sum pins all sources; versions of operators are those of the control plane's go.mod
where possible, so that Go's cache is shared. An operator's manifests (CRDs, RBAC, webhooks) are kept beside
the program.
"""

import shutil
import subprocess
import tempfile
from collections.abc import Iterable, Mapping
from pathlib import Path

from localkube.controlplane import build
from localkube.controlplane.lock import Report, cache_lock
from localkube.controlplane.recipes import FLAGS, MODULES, RECIPES, Recipe
from localkube.errors import LocalClusterError, Skipped
from localkube.paths import OPERATORS_PACKAGE, cache_dir, packaged_program, private_dir, writing

FREE_BYTES = 2 << 30


def cached(names: Iterable[str]) -> list[Recipe]:
    """List the recipes among these whose programs are in the cache."""
    return [recipe for recipe in (RECIPES.get(name) for name in names) if recipe and recipe.ready]


def obtain(names: Iterable[str], *, report: Report) -> list[Recipe]:
    programs = []
    for name in names:
        if name not in RECIPES:
            raise LocalClusterError(
                "there is no such program", about=name, fix=f"choose one of {', '.join(sorted(RECIPES))}"
            )
        programs.append(RECIPES[name])
    for recipe in programs:
        if not recipe.ready:
            with cache_lock(report, making="programs of images") as publish:
                if not recipe.ready:  # another process may have been obtaining it
                    _obtain(recipe, publish)
        report(f"{recipe.name}: {recipe.version} is in {recipe.folder}")
    return programs


def build_for(architecture: str, *, report: Report) -> dict[str, Path]:
    """Build them all for Linux on ``amd64`` or ``arm64``, unless cached; return each one's folder."""
    folders = {}
    for recipe in RECIPES.values():
        folder = folders[recipe.name] = recipe.folder_for("linux", architecture)
        with cache_lock(report, making="programs of images") as publish:
            if not folder.is_dir():
                try:
                    _from_module(recipe, folder, publish, {"GOOS": "linux", "GOARCH": architecture})
                except Skipped as reason:
                    about, fix = f"{recipe.name} for {architecture}", "install Go, then try again"
                    raise LocalClusterError(str(reason), about=about, fix=fix) from reason
    return folders


def _obtain(recipe: Recipe, report: Report) -> None:
    try:
        try:
            _from_package(recipe, report)
        except Skipped:
            _from_module(recipe, recipe.folder, report, {})
    except Skipped as reason:
        raise LocalClusterError(
            f"the program cannot be obtained: {reason}",
            about=f"{recipe.name} {recipe.version}",
            fix=f"run `{recipe.command}` where there is a network, and `python -m localkube bundle create`",
        ) from reason


def _from_package(recipe: Recipe, report: Report) -> None:
    name, digest = f"{recipe.name}.tar", recipe.fingerprint
    archive = packaged_program(name, digest, package=OPERATORS_PACKAGE)
    report(f"{recipe.name}: from the Python package {OPERATORS_PACKAGE}")
    parent = private_dir(cache_dir() / "programs")
    with writing(recipe.folder), tempfile.TemporaryDirectory(prefix=".unpacking-", dir=parent) as scratch:
        shutil.unpack_archive(archive, scratch)  # as trusted as the package that has brought it
        shutil.rmtree(recipe.folder, ignore_errors=True)
        (Path(scratch) / recipe.name).rename(recipe.folder)


def _from_module(recipe: Recipe, folder: Path, report: Report, environment: Mapping[str, str]) -> None:
    sources = MODULES / recipe.name

    def add_manifests(go: str, staging: Path) -> None:
        if not recipe.manifests:
            return
        module = recipe.package.partition("/cmd/")[0]
        command = [go, "list", "-mod=readonly", "-m", "-f", "{{.Dir}}", module]
        done = subprocess.run(command, cwd=sources, capture_output=True, text=True, check=False)
        if done.returncode:
            raise Skipped(f"go does not say where {module} lies: {done.stderr.strip()}")
        shutil.copytree(Path(done.stdout.strip()) / recipe.manifests, staging / "manifests")
        for path in (staging / "manifests").rglob("*"):
            path.chmod(0o700 if path.is_dir() else 0o600)  # the module cache is read-only
        (staging / "manifests").chmod(0o700)

    module = build.GoModule(
        sources, recipe.packages, recipe.seconds, FREE_BYTES, FLAGS, environment, overlay=recipe.overlay
    )
    build.build(
        folder,
        cache=private_dir(cache_dir() / "programs"),
        package=recipe.package,
        program=recipe.path.name,
        report=report,
        module=module,
        complete=add_manifests,
    )
