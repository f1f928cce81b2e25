"""Build images with this machine's container engine: Docker, or Podman, which has the same commands.

The login to a cluster's registry is a temporary file that is deleted after the push: the user's
``~/.docker/config.json`` is not changed, and no command line contains a password.
"""

import json
import os
import platform
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kitlib.display.progress import progress
from kitlib.errors import CommandFailed, NoContainerEngine
from trainyard_kit.container_images.build_context import BuildContext
from trainyard_kit.container_images.registry import Login

PROGRAMS = ("docker", "podman")
PLATFORMS = {
    "x86_64": "linux/amd64",
    "AMD64": "linux/amd64",
    "aarch64": "linux/arm64",
    "arm64": "linux/arm64",
}


@dataclass(frozen=True)
class Engine:
    """A running container engine."""

    program: str

    def name(self, image: str) -> str:
        """Name an image as Kubernetes does: Podman would add ``localhost`` to ``trainyard/trainer``."""
        host, _, path = image.partition("/")
        if self.program == "docker" or path and (host == "localhost" or set(host) & set(".:")):
            return image
        return f"docker.io/{image if path else f'library/{image}'}"

    def build(self, image: str, context: BuildContext, *, target: str = "") -> float:
        """Build an image; return the duration in seconds."""
        values = [f"--build-arg={key}={value}" for key, value in context.arguments.items()]
        cross_build = target and PLATFORMS.get(platform.machine()) != target
        values += [f"--platform={target}"] if cross_build else []
        file, tag = f"--file={context.dockerfile}", f"--tag={self.name(image)}"
        return self._run(image, "built", "build", file, tag, *values, str(context.folder))

    def push(self, image: str, login: Login | None = None) -> tuple[float, str]:
        """Push an image; return the duration in seconds, and its digest."""
        with tempfile.TemporaryDirectory(prefix="trainyard-push-") as folder:
            digest = Path(folder, "digest")
            with self._logged_in(folder, login) as (global_options, options, environment):
                if self.program == "podman":
                    options.append(f"--digestfile={digest}")
                    if image.startswith(("127.0.0.1", "localhost")):
                        options.append("--tls-verify=false")  # Docker's default for them
                command = (*global_options, "push", *options, image)
                seconds = self._run(image, "pushed", *command, environment=environment)
            if digest.exists():
                return seconds, digest.read_text(encoding="utf-8").strip()
        pairs = [digest.partition("@") for digest in self.inspect(image)["RepoDigests"]]
        repository = image.rpartition(":")[0]
        return seconds, next((value for name, _, value in pairs if name == repository), "")

    def save(self, image: str, archive: Path) -> float:
        """Write an image to an archive; return the duration in seconds."""
        return self._run(image, "saved", "save", f"--output={archive}", self.name(image))

    def inspect(self, image: str) -> dict[str, Any]:
        """Inspect an image that the engine has."""
        (description,) = json.loads(self._output("image", "inspect", self.name(image)))
        return description

    @contextmanager
    def _logged_in(
        self, folder: str, login: Login | None
    ) -> Iterator[tuple[list[str], list[str], dict[str, Any]]]:
        """Yield the global options, the command's options and the environment for an authenticated push."""
        if login is None:
            yield [], [], {}
            return
        file = Path(folder, "config.json")
        file.touch(mode=0o600)
        file.write_text(login.docker_config(), encoding="utf-8")
        if self.program == "podman":
            yield [], [f"--authfile={file}"], {}
            return
        # --config hides the user's Docker context, which selects the engine.
        endpoint = self._output("context", "inspect", "--format", "{{.Endpoints.docker.Host}}").strip()
        yield ["--config", folder], [], {"DOCKER_HOST": os.environ.get("DOCKER_HOST") or endpoint}

    def _output(self, *arguments: str) -> str:
        return subprocess.run([self.program, *arguments], capture_output=True, text=True, check=True).stdout

    def _run(
        self, image: str, done: str, *arguments: str, environment: dict[str, Any] | None = None
    ) -> float:
        """Run a command, showing its last line; return the duration in seconds."""
        began, lines = time.monotonic(), []
        with (
            progress(f"image {image}") as line,
            subprocess.Popen(
                [self.program, *arguments],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                errors="replace",
                env=os.environ | (environment or {}),
            ) as process,
        ):
            assert process.stdout is not None
            for output in process.stdout:
                if output.strip():
                    lines.append(output.rstrip())
                    line.update(output.strip()[:120])
            if process.wait() == 0:
                line.done(done)
        if process.returncode:
            verb = "build" if done == "built" else "push"
            raise CommandFailed(
                "\n".join(lines[-15:]) or f"exit status {process.returncode}",
                about=f"{self.program} {verb}, image {image}",
                fix=f"fix what it reports; if the registry denies access, {self.program} login; a tag that "
                "exists may be immutable",
            )
        return time.monotonic() - began


def find(image: str, *, fix: str) -> Engine:
    """Find the first running engine on this machine; raise NoContainerEngine without one."""
    for program in PROGRAMS:
        if not _missing(program):
            return Engine(program)
    raise NoContainerEngine(missing(), about=f"image {image}", fix=fix)


def missing(programs: Sequence[str] = PROGRAMS) -> str:
    """Describe why none of ``programs`` can build an image on this machine; empty if one can."""
    reasons = [_missing(program) for program in programs]
    return "" if "" in reasons else "; ".join(reasons)


def _missing(program: str) -> str:
    if shutil.which(program) is None:
        return f"there is no {program} on PATH"
    info = subprocess.run([program, "info"], capture_output=True, text=True, check=False)
    last = (info.stderr.splitlines() or [""])[-1]
    return "" if info.returncode == 0 else f"{program} does not answer: {last}"
