"""Update Kubernetes in the modules that are compiled: ``tools/kubernetes_release.py v1.37.2``.

It writes the versions into go.mod files and tidies them, gives the operators the control plane's versions,
sets the release's date, and prints upstream's changes in files of the overlay and files with the old version.
The other steps are in docs/building.md.
"""

import argparse
import json
import re
import subprocess
from collections.abc import Iterable
from pathlib import Path

from localkube.controlplane import KUBERNETES, overlay

ROOT = Path(__file__).parents[1]
CONTROL_PLANE = ROOT / "localkube" / "controlplane"
MODULES = (CONTROL_PLANE, ROOT / "tests/kubelet/module", ROOT / "tests/conformance/module")
OPERATORS = tuple(
    CONTROL_PLANE / "modules" / name for name in ("jobset", "kueue", "trainer-controller-manager")
)
ETCD = "go.etcd.io/etcd/server/v3"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("version", help="the version of Kubernetes")
    parser.add_argument("--etcd", help="the version of etcd, if it changes")
    options = parser.parse_args()
    for module in MODULES:
        text = (module / "go.mod").read_text(encoding="utf-8").replace(KUBERNETES, options.version)
        text = text.replace(_library(KUBERNETES), _library(options.version))
        if options.etcd:
            text = re.sub(rf"{ETCD} v\S+", f"{ETCD} {options.etcd}", text)
        (module / "go.mod").write_text(text, encoding="utf-8")
        _go("mod", "tidy", at=module)
    for module in OPERATORS:
        _follow(module)
    _stamp(options.version)
    _report()


def _library(version: str) -> str:
    """Return the version of client-go and the other libraries: v0.37.2 with v1.37.2."""
    return version.replace("v1.", "v0.", 1)


def _go(*arguments: str, at: Path) -> str:
    return subprocess.run(["go", *arguments], cwd=at, check=True, stdout=subprocess.PIPE, text=True).stdout


def _edit(module: Path, arguments: Iterable[str]) -> None:
    _go("mod", "edit", "-fmt", *arguments, at=module)


def _versions(module: Path) -> tuple[dict[str, str], dict[str, str]]:
    """Return the versions of all modules of a go.mod, and of those that it replaces."""
    document = json.loads(_go("mod", "edit", "-json", at=module))
    replaced = {item["Old"]["Path"]: item["New"]["Version"] for item in document["Replace"] or ()}
    return {item["Path"]: item["Version"] for item in document["Require"]} | replaced, replaced


def _follow(module: Path) -> None:
    """Give an operator the control plane's versions: replaced where its own are newer, required elsewhere."""
    control_plane, _ = _versions(CONTROL_PLANE)
    versions, replaced = _versions(module)
    _edit(module, (f"-dropreplace={path}" for path in replaced))
    _edit(
        module, (f"-require={path}@{control_plane[path]}" for path in control_plane.keys() & versions.keys())
    )
    _go("mod", "tidy", at=module)
    versions, _ = _versions(module)
    newer = (
        path
        for path in sorted(control_plane.keys() & versions.keys())
        if control_plane[path] != versions[path]
    )
    _edit(module, [f"-replace={path}={path}@{control_plane[path]}" for path in newer])
    _go("mod", "tidy", at=module)


def _stamp(version: str) -> None:
    date = json.loads(_go("list", "-m", "-json", f"k8s.io/kubernetes@{version}", at=CONTROL_PLANE))["Time"]
    for name, pattern, value in (
        ("__init__.py", r'^(KUBERNETES = )".*"', version),
        ("build.py", r'("gitMinor": )".*"', version.split(".")[1]),
        ("build.py", r'("buildDate": )".*"', date),
    ):
        path = CONTROL_PLANE / name
        text = re.sub(pattern, rf'\1"{value}"', path.read_text(encoding="utf-8"), flags=re.MULTILINE)
        path.write_text(text, encoding="utf-8")


def _report() -> None:
    for module, files in overlay.EDITED.items():
        listed = subprocess.run(
            ["go", "list", "-m", "-f", "{{.Dir}}", module], cwd=CONTROL_PLANE, capture_output=True, text=True
        )
        for name, replacements in files.items() if listed.returncode == 0 else ():
            upstream = (Path(listed.stdout.strip()) / name).read_text(encoding="utf-8")
            for text in replacements:
                if upstream.count(text) != 1:
                    print(f"overlay: not once in {module}/{name}: {text}")
    old = KUBERNETES.removeprefix("v")
    subprocess.run(["git", "grep", "-nF", old, "--", ":!*.sum", ":!*.ipynb"], cwd=ROOT, check=False)


if __name__ == "__main__":
    main()
