"""Compile upstream modules without the files that a control plane does not need: Go's ``-overlay``.

A few files of upstream bring hundreds of packages into the build: helpers of tests that are compiled into
the programs, and a function of the kubelet's that a controller borrows. `build` passes over them. What takes
their place, or adapts an operator's library to the Kubernetes libraries of the control plane, is in the
folder ``overlay``, by the path that it has upstream. Operators look for their certificates in TMPDIR and not
in ``/tmp``: in plain mode a statically linked program sees no other. No further file differs from what go.sum
pins.
"""

import json
import shutil
import subprocess
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from localkube.errors import LocalClusterError

ADDED = Path(__file__).parent / "overlay"
# By module, the files to pass over. Why each may go, and what it saves, is in docs/building.md.
OMITTED: Mapping[str, Sequence[str]] = {
    "k8s.io/kubernetes": (
        "pkg/kubelet/eviction/*.go",
        "pkg/kubelet/util/util_linux.go",
        "pkg/scheduler/backend/queue/testing.go",
    ),
    "k8s.io/apiserver": ("pkg/admission/plugin/policy/generic/policy_test_context.go",),
    "sigs.k8s.io/controller-runtime": (),
}
# By module, the file with the directory of its webhook's certificates.
CERTIFICATES: Mapping[str, str] = {
    "github.com/kubeflow/training-operator": "pkg/cert/cert.go",
    "github.com/kubeflow/trainer/v2": "pkg/util/cert/cert.go",
    "sigs.k8s.io/jobset": "pkg/util/cert/cert.go",
}
BEFORE, AFTER = "CertDir:        certDir,", 'CertDir: os.TempDir() + certDir[len("/tmp"):],'


def digest_parts(modules: Iterable[str]) -> list[bytes]:
    """The inputs of an overlay, for fingerprints."""
    parts = [json.dumps([module, OMITTED.get(module, AFTER)]).encode() for module in modules]
    for module in modules:
        for path in sorted((ADDED / module).rglob("*.go")):
            parts.append(f"{path.relative_to(ADDED)}\0".encode() + path.read_bytes())
    return parts


def flags(
    go: str, sources: Path, modules: Sequence[str], *, aside: Path, environment: Mapping[str, str]
) -> list[str]:
    """Fetch these modules, and return the flags of ``go build`` that overlay them.

    Go overlays no file of its module cache. So each module is replaced by a link to its folder there, after
    go has checked the module against go.sum.

    Raises:
        LocalClusterError: A module cannot be fetched.
    """
    if not modules:
        return []
    folders = _fetch(go, sources, modules, environment)
    links, work = aside / "upstream", aside / "module"
    work.mkdir()
    for name in ("go.mod", "go.sum"):
        shutil.copyfile(sources / name, work / name)
    replaced: dict[str, str] = {}
    edits = []
    for module in modules:
        link = links / module
        link.parent.mkdir(parents=True, exist_ok=True)
        link.symlink_to(folders[module])
        edits.append(f"-replace={module}={link}")
        for pattern in OMITTED.get(module, ()):
            replaced |= {str(link / path.relative_to(link)): "" for path in link.glob(pattern)}
        for path in (ADDED / module).rglob("*.go"):
            replaced[str(link / path.relative_to(ADDED / module))] = str(path)
        if module in CERTIFICATES:
            upstream = link / CERTIFICATES[module]
            edited = work / f"{module.replace('/', '-')}.go"
            edited.write_text(_replace(upstream.read_text(encoding="utf-8"), BEFORE, AFTER), encoding="utf-8")
            replaced[str(upstream)] = str(edited)
    _go([go, "mod", "edit", *edits, str(work / "go.mod")], sources, environment)
    overlay = aside / "overlay.json"
    overlay.write_text(json.dumps({"Replace": replaced}), encoding="utf-8")
    return [f"-overlay={overlay}", f"-modfile={work / 'go.mod'}"]


def _replace(text: str, before: str, after: str) -> str:
    assert text.count(before) == 1, f"not once in the file: {before}"
    return text.replace(before, after)


def clean(aside: Path) -> None:
    for name in ("upstream", "module"):
        shutil.rmtree(aside / name, ignore_errors=True)
    (aside / "overlay.json").unlink(missing_ok=True)


def _fetch(go: str, sources: Path, modules: Sequence[str], environment: Mapping[str, str]) -> dict[str, Path]:
    text = _go([go, "mod", "download", "-json", *modules], sources, environment)
    decoder, found = json.JSONDecoder(), {}
    while text := text.lstrip():
        module, end = decoder.raw_decode(text)
        found[module["Path"]] = Path(module["Dir"])
        text = text[end:]
    # A module that replaces another of a different name would be listed under its own.
    missing = [module for module in modules if module not in found]
    assert not missing, f"go downloaded {sorted(found)}, and not {missing}"
    return found


def _go(command: list[str], sources: Path, environment: Mapping[str, str]) -> str:
    done = subprocess.run(
        command,
        cwd=sources,
        env=dict(environment),
        capture_output=True,
        text=True,
        stdin=subprocess.DEVNULL,
        check=False,
    )
    if done.returncode:
        raise LocalClusterError(
            f"the modules cannot be fetched: {done.stderr.strip() or done.stdout.strip()}",
            about=" ".join(command[:3]),
            fix="set GOPROXY to a server that you can reach, and try again",
        )
    return done.stdout
