"""Take another release of Kubernetes into the modules that are compiled: ``tools/kubernetes_release.py v1.37.2``.

It writes the versions into go.mod files, tidies them, gives the operators the control plane's versions, stamps
the release's date, and prints what is left for a person: expressions of the overlay that upstream has changed,
feature gates of the kubelet, fields of objects, and files that name the old version. The steps that follow
are in docs/building.md.
"""

import argparse
import json
import re
import subprocess
import urllib.request
from pathlib import Path

from localkube.controlplane import KUBERNETES, overlay

ROOT = Path(__file__).parents[1]
CONTROL_PLANE = ROOT / "localkube" / "controlplane"
OF_KUBERNETES = (CONTROL_PLANE, ROOT / "tests/kubelet/module", ROOT / "tests/conformance/module")
OPERATORS = tuple(CONTROL_PLANE / "modules" / name for name in ("jobset", "trainer-controller-manager"))
ETCD = "go.etcd.io/etcd/server/v3"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("version", help="of Kubernetes: v1.37.2")
    parser.add_argument("--etcd", help="of etcd, if it changes: v3.7.3")
    options = parser.parse_args()
    new = options.version
    for module in OF_KUBERNETES:
        text = (module / "go.mod").read_text(encoding="utf-8")
        text = text.replace(KUBERNETES, new).replace(library(KUBERNETES), library(new))
        if options.etcd:
            text = re.sub(rf"{ETCD} v\S+", f"{ETCD} {options.etcd}", text)
        (module / "go.mod").write_text(text, encoding="utf-8")
        go("mod", "tidy", at=module)
    for module in OPERATORS:
        follow(module)
    stamp(new)
    report(new)


def library(version: str) -> str:
    """The version of client-go and the other libraries that goes with it: v0.37.2 with v1.37.2."""
    return version.replace("v1.", "v0.", 1)


def go(*words: str, at: Path) -> str:
    done = subprocess.run(["go", *words], cwd=at, check=True, stdout=subprocess.PIPE, text=True)
    return done.stdout


def required(module: Path) -> dict[str, str]:
    document = json.loads(go("mod", "edit", "-json", at=module))
    versions = {item["Path"]: item["Version"] for item in document["Require"]}
    return versions | {item["Old"]["Path"]: item["New"]["Version"] for item in document["Replace"] or ()}


def follow(module: Path) -> None:
    """Give an operator the control plane's versions: by a requirement, or where its own is newer by a replacement."""
    document = json.loads(go("mod", "edit", "-json", at=module))
    drop = [f"-dropreplace={item['Old']['Path']}" for item in document["Replace"] or ()]
    ours, theirs = required(CONTROL_PLANE), required(module)
    go("mod", "edit", "-fmt", *drop, *(f"-require={path}@{ours[path]}" for path in ours.keys() & theirs.keys()), at=module)
    go("mod", "tidy", at=module)
    theirs = required(module)
    newer = {path: ours[path] for path in ours.keys() & theirs.keys() if ours[path] != theirs[path]}
    go("mod", "edit", "-fmt", *(f"-replace={path}={path}@{version}" for path, version in newer.items()), at=module)
    go("mod", "tidy", at=module)


def stamp(new: str) -> None:
    with urllib.request.urlopen(f"https://proxy.golang.org/k8s.io/kubernetes/@v/{new}.info", timeout=60) as answer:
        date = json.load(answer)["Time"]
    for name, pattern, text in (
        ("__init__.py", r'^KUBERNETES = ".*"', f'KUBERNETES = "{new}"'),
        ("build.py", r'"gitMinor": ".*"', f'"gitMinor": "{new.split(".")[1]}"'),
        ("build.py", r'"buildDate": ".*"', f'"buildDate": "{date}"'),
    ):
        path = CONTROL_PLANE / name
        path.write_text(re.sub(pattern, text, path.read_text(encoding="utf-8"), flags=re.MULTILINE), encoding="utf-8")


def report(new: str) -> None:
    for module, files in overlay.EDITED.items():
        folder = go("list", "-m", "-f", "{{.Dir}}", module, at=CONTROL_PLANE).strip()
        for name, (before, _) in files.items():
            if folder and (Path(folder) / name).read_text(encoding="utf-8").count(before) != 1:
                print(f"overlay: not once in {module}/{name}: {before}")
    subprocess.run(["git", "grep", "-nF", KUBERNETES.rpartition(".")[0], "--", ":!*.sum", ":!*.ipynb"], cwd=ROOT, check=False)


if __name__ == "__main__":
    main()
