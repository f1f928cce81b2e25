"""Building a container image with this machine's Docker engine, and pushing it to a registry.

For clouds alone: local nodes pull no images, `docs/images.md` says what stands in for them. Logging in to a
registry is left to ``docker login`` and its helpers, so that no password passes through here.
"""

import json
import shutil
import subprocess
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from kitlib import settings
from kitlib.errors import BadInput, CommandFailed, NoContainerEngine
from kitlib.progress import progress
from kitlib.quantities import readable


@dataclass(frozen=True)
class ContainerImage:
    """An image that was built, and perhaps pushed.

    Attributes:
        name: With registry and tag.
        bytes: Of its layers, unpacked.
        layers: How many.
        build_seconds: What building it took; next to nothing when all layers were cached.
        push_seconds: What pushing it took.
        digest: What its content is called in the registry, ``sha256:…``; empty if it was not pushed.
    """

    name: str
    bytes: int
    layers: int
    build_seconds: float
    push_seconds: float = 0.0
    digest: str = ""

    @property
    def reference(self) -> str:
        """The name to put into manifests: by digest if it was pushed, because a tag can be moved."""
        return f"{self.name.rpartition(':')[0]}@{self.digest}" if self.digest else self.name

    def __repr__(self) -> str:
        size = f"{readable(self.bytes)} in {self.layers} layer{'s' * (self.layers != 1)}"
        return f"{self.name}: {size}, {self.digest or 'not pushed'}"


def build_image(
    name: str,
    *,
    tag: str,
    dockerfile: str | Path = "images/trainer/Dockerfile",
    registry: str = "",
    arguments: Mapping[str, str] | None = None,
) -> ContainerImage:
    """Build an image, and push it if a registry is named.

    Args:
        name: Without registry and tag: ``trainyard/trainer``.
        tag: Its version; ``latest`` is none.
        dockerfile: As seen from here or from the root of the repository, which is then what it can copy from.
        registry: Host and path, such as ``us-central1-docker.pkg.dev/PROJECT/REPOSITORY``.
        arguments: Values of the Dockerfile's ``ARG``.

    Raises:
        BadInput: The tag says nothing, or there is no such Dockerfile.
        NoContainerEngine: No Docker engine answers on this machine.
        CommandFailed: Building or pushing failed; the error has the engine's words.

    Example:
        >>> build_image("trainyard/trainer", tag="0.1.0", registry="127.0.0.1:5000").reference
        '127.0.0.1:5000/trainyard/trainer@sha256:…'
    """
    if tag in ("", "latest"):
        raise BadInput(
            "this tag does not say which version it is: a node that has it already may run an old one",
            about=f"image {name}, tag={tag!r}",
            fix='tag="0.1.0", or the commit',
        )
    file = settings.find(dockerfile)
    if why := engine_missing():
        raise NoContainerEngine(why, about=f"image {name}", fix="start Docker here, or build elsewhere")
    full = "/".join(filter(None, (registry.rstrip("/"), f"{name}:{tag}")))
    context = settings.REPOSITORY if file.is_relative_to(settings.REPOSITORY) else file.parent
    values = [f"--build-arg={key}={value}" for key, value in (arguments or {}).items()]
    built = _run(full, "build", f"--file={file}", f"--tag={full}", *values, str(context))
    pushed = _run(full, "push", full) if registry else 0.0
    return _inspect(full, built, pushed)


def engine_missing() -> str:
    """Return why no image can be built on this machine, or nothing."""
    if shutil.which("docker") is None:
        return "there is no docker on PATH"
    done = subprocess.run(["docker", "info"], capture_output=True, text=True, check=False)
    return "" if done.returncode == 0 else f"docker does not answer: {(done.stderr.splitlines() or [''])[-1]}"


def _run(image: str, *words: str) -> float:
    """Run a command of the engine, showing its last line; return its seconds."""
    began, lines = time.monotonic(), []
    with (
        progress(f"image {image}") as line,
        subprocess.Popen(
            ["docker", *words],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
        ) as process,
    ):
        for each in process.stdout:
            if each.strip():
                lines.append(each.rstrip())
                line.update(each.strip()[:120])
        if process.wait() == 0:
            line.done({"build": "built", "push": "pushed"}[words[0]])
    if process.returncode:
        raise CommandFailed(
            "\n".join(lines[-15:]) or f"exit status {process.returncode}",
            about=f"docker {words[0]}, image {image}",
            fix="read what it says; for a registry that refuses, docker login comes first",
        )
    return time.monotonic() - began


def _inspect(image: str, built: float, pushed: float) -> ContainerImage:
    shown = subprocess.run(["docker", "image", "inspect", image], capture_output=True, text=True, check=True)
    (found,) = json.loads(shown.stdout)
    repository = image.rpartition(":")[0]
    digests = [each.partition("@") for each in found["RepoDigests"]]
    digest = next((digest for name, _, digest in digests if name == repository), "") if pushed else ""
    return ContainerImage(image, found["Size"], len(found["RootFS"]["Layers"]), built, pushed, digest)
