"""The course on a cluster at a simulated cloud: what ``make run`` runs, and the verdict on each notebook."""

import hashlib
import io
import json
import os
import shutil
import subprocess
import sys
import tarfile
from contextlib import AbstractContextManager
from pathlib import Path

import yaml

ROOT = Path(__file__).resolve().parents[2]
SECONDS = 3600
PUSHED = """#!/bin/sh
for word; do case $word in --metadata-file=*) file=${word#*=};; esac; done
echo '{"containerimage.digest": "sha256:%s"}' > "$file"
""" % ("ab" * 32)


def run_course(folder: Path, behind: AbstractContextManager, *words: str) -> None:
    """Run the notebooks that ``TRAINYARD_CLOUD_NOTEBOOKS`` names, or all; each has to pass.

    Args:
        folder: For the executed notebooks.
        behind: Has a real cluster behind the one that is made.
        words: For ``tools/run_notebooks.py``: which cluster.
    """
    named = os.environ.get("TRAINYARD_CLOUD_NOTEBOOKS", "").split()
    command = [sys.executable, "tools/run_notebooks.py", *named, *words, "--output", str(folder)]
    with behind:
        done = subprocess.run(command, cwd=ROOT, timeout=SECONDS, check=False)
        result = json.loads((folder / "result.json").read_text())
        seconds = {notebook["name"]: notebook["seconds"] for notebook in result["notebooks"]}
        print(", ".join(f"{name} {duration:.0f} s" for name, duration in seconds.items()), flush=True)
        verdicts = {notebook["name"]: notebook["verdict"] for notebook in result["notebooks"]}
        assert set(verdicts.values()) == {"passed"}, result["error"] or verdicts
        assert done.returncode == 0, result["error"] or result["verdict"]


def stand_in_for_buildkit(folder: Path) -> None:
    """Give local nodes an image in BuildKit's place, which says that it has pushed, and builds nothing.

    Theirs is on Docker Hub, and the base of the trainer image has gigabytes.
    """
    (job,) = yaml.safe_load_all((ROOT / "manifests" / "trainer-image" / "build.yaml").read_text())
    (container,) = job["spec"]["template"]["spec"]["containers"]
    layer, programs = io.BytesIO(), {"bin/busybox": Path(shutil.which("busybox")).read_bytes()}
    programs["bin/buildctl-daemonless.sh"] = PUSHED.encode()
    with tarfile.open(fileobj=layer, mode="w") as files:
        for name, content in programs.items():
            _add(files, name, content)
        place = tarfile.TarInfo("tmp")
        place.type, place.mode = tarfile.DIRTYPE, 0o1777
        files.addfile(place)
        for applet in ("sh", "unzip", "tr", "sed", "mkdir"):
            link = tarfile.TarInfo(f"bin/{applet}")
            link.type, link.linkname = tarfile.SYMTYPE, "busybox"
            files.addfile(link)
    content = {"diff_ids": [f"sha256:{hashlib.sha256(layer.getvalue()).hexdigest()}"], "type": "layers"}
    configuration = {
        "architecture": "amd64",
        "os": "linux",
        "config": {"Env": ["PATH=/bin"]},
        "rootfs": content,
    }
    manifest = [{"Config": "c.json", "RepoTags": [container["image"]], "Layers": ["layer.tar"]}]
    with tarfile.open(archive := folder / "buildkit.tar", "w") as files:
        _add(files, "c.json", json.dumps(configuration).encode())
        _add(files, "manifest.json", json.dumps(manifest).encode())
        _add(files, "layer.tar", layer.getvalue())
    subprocess.run(
        [sys.executable, "-m", "trainyard_kit.cli", "images", "load", archive], cwd=ROOT, check=True
    )


def _add(files: tarfile.TarFile, name: str, content: bytes) -> None:
    member = tarfile.TarInfo(name)
    member.size, member.mode = len(content), 0o755
    files.addfile(member, io.BytesIO(content))


def printed(folder: Path, notebook: str, cell: str) -> str:
    """Return what the cell that contains some words printed."""
    (path,) = folder.glob(f"{notebook}_*.ipynb")
    cells = json.loads(path.read_text())["cells"]
    (code_cell,) = [item for item in cells if item["cell_type"] == "code" and cell in "".join(item["source"])]
    return "".join("".join(output.get("text", "")) for output in code_cell["outputs"])
