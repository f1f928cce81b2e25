"""The store of images for people: pull, load, save, list, remove and prune by our own program.

The program does the work (`images` of the Go module) and answers in JSON lines; here are the calls, progress
in bytes, and for each reason of a failure the next thing to try. Containers' images are pulled by
`image_service`.
"""

import contextlib
import json
import subprocess
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from localkube.controlplane import binaries
from localkube.controlplane.lock import Report, no_progress
from localkube.errors import LocalClusterError
from localkube.paths import images_dir, private_dir

FIXES = {
    "invalid": "write it as REGISTRY/REPOSITORY:TAG, such as docker.io/library/busybox:1.36",
    "unreachable": "check the network, name a mirror in ~/.config/trainyard/certs.d/HOST/hosts.toml, or "
    "carry the image here: `python -m localkube image-store load FILE`",
    "unauthorized": "check the name; if the image is private, log in: docker login REGISTRY",
    "notfound": "check its name and tag; `python -m localkube image-store list` shows what is here",
    "ratelimited": "log in (docker login), or try again later",
    "digest": "try again; if it fails again, the registry or a proxy changes what it serves",
    "disk": "free space there, or run `python -m localkube image-store prune --all`",
    "platform": "choose a tag of this machine's architecture",
    "inuse": "delete the pods that use it, or their clusters",
    "busy": "try again when no image is being pulled",
    "archive": "give an OCI layout, or what `docker save` or `python -m localkube image-store save` wrote",
    "interrupted": "try again; the download continues where it stopped",
}
REST = "try again; if it fails again, the message says what the registry or the disk refused"
Event = Mapping[str, Any]


def pull(reference: str, *, platform: str = "", report: Report) -> dict[str, Any]:
    """Pull an image with the user's own Docker credentials, also from a registry on this machine.

    Args:
        platform: Such as ``linux/arm64``; by default this machine's.

    Returns:
        Its record, and ``new``, whether it was fetched.
    """
    options = ["--loopback", *(["--platform", platform] if platform else [])]
    progress = PullProgress(reference, report)
    (done,) = _run("pull", *options, reference, about=reference, progress=progress, report=report)
    return done["image"] | {"new": done["new"]}


def load(file: Path, *, report: Report) -> list[dict[str, Any]]:
    """Load the images of an archive: of docker save, or an OCI layout, as a tar or as a folder."""
    report(f"reading {file}")
    return [event["image"] for event in _run("load", str(file), about=str(file), report=report)]


def save(references: Sequence[str], file: Path) -> int:
    """Write images to an archive that Docker, Podman and `load` read, and return its size in bytes."""
    (done,) = _run("save", "-o", str(file), *references, about=", ".join(references))
    return done["bytes"]


def contents() -> list[dict[str, Any]]:
    """List the records of all images, each with ``users``, the number of containers that run from it."""
    if not images_dir().exists():  # as on a machine on which the program would have to be compiled first
        return []
    return [event["image"] | {"users": event["users"]} for event in _run("list", about=str(images_dir()))]


def remove(references: Sequence[str]) -> dict[str, Any]:
    """Remove images, or one of their names; return ``untagged``, ``images`` and the bytes ``freed``."""
    (done,) = _run("remove", *references, about=", ".join(references))
    return dict(done)


def prune(*, everything: bool) -> dict[str, Any]:
    """Remove what no image needs, or also the images that no container uses; return as `remove` does."""
    options = ["--all", "--min-age", "0s"] if everything else []
    (done,) = _run("prune", *options, about=str(images_dir()))
    return dict(done)


class PullProgress:
    """Bytes of all layers together, as a line of progress."""

    def __init__(self, title: str, report: Report) -> None:
        self._title, self._report = title, report
        self._layers: dict[str, tuple[int, int]] = {}

    def __call__(self, event: Event) -> None:
        """Handle an event of a layer."""
        self._layers[event["digest"]] = (event["bytes"], event["size"])
        done, size = (sum(column) for column in zip(*self._layers.values(), strict=True))
        if done < size:
            self._report(f"{self._title}: {done / 1e6:,.1f} of {size / 1e6:,.1f} MB")
        else:
            self._report(f"{self._title}: unpacking {size / 1e6:,.1f} MB")


def _run(
    verb: str,
    *arguments: str,
    about: str,
    progress: Callable[[Event], None] | None = None,
    report: Report = no_progress,
) -> list[dict[str, Any]]:
    """Run a command of the program and return its events, those of layers excepted."""
    obtained = _control_plane(report)
    if not obtained.has("images"):
        raise LocalClusterError(
            "this control plane has no store of images",
            about=obtained.origin,
            fix=f"try again with {binaries.FORCE}=build",
        )
    command = obtained.argv("images", verb, "--store", str(private_dir(images_dir())), *arguments)
    events = []
    with (
        tempfile.TemporaryFile("w+", errors="replace") as errors,  # a pipe fills up, and stops the program
        subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=errors, text=True
        ) as process,
    ):
        assert process.stdout is not None, "it is a pipe"
        for line in process.stdout:
            event = json.loads(line)
            if event["event"] != "layer":
                events.append(event)
            elif progress:
                progress(event)
        process.wait()
        errors.seek(0)
        output = errors.read().strip()
    if process.returncode == 0:
        return events
    if events and events[-1]["event"] == "failed":
        failed = events[-1]
        raise LocalClusterError(failed["message"], about=about, fix=FIXES.get(failed["reason"], REST))
    raise LocalClusterError(
        f"the store's program ended with status {process.returncode}: {output[-2000:]}", about=about, fix=REST
    )


def _control_plane(report: Report) -> binaries.ControlPlaneBinaries:
    """Get the control plane of this machine; its programs are obtained where they are missing."""
    with contextlib.suppress(LocalClusterError):
        if (control_plane := binaries.present()).has("images"):
            return control_plane
    return binaries.obtain(report=report)
