"""The program on this machine that builds images: Docker, or else Podman, which has the same commands.

The login to a cluster's registry is a file of the kit's own that lives as long as the push: nobody's
``~/.docker/config.json`` is written, and no password stands in a command line.
"""

import base64
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
from kitlib.errors import CommandFailed
from trainyard_kit.container_images.build_context import BuildContext
from trainyard_kit.container_images.registry import Login

PROGRAMS = ("docker", "podman")
SAME = {"x86_64": "linux/amd64", "AMD64": "linux/amd64", "aarch64": "linux/arm64", "arm64": "linux/arm64"}


@dataclass(frozen=True)
class Engine:
    """A container engine that answers."""

    program: str

    def name(self, image: str) -> str:
        """Name an image as Kubernetes does: Podman reads ``trainyard/trainer`` as one of ``localhost``."""
        host, _, path = image.partition("/")
        if self.program == "docker" or path and (host == "localhost" or set(host) & set(".:")):
            return image
        return f"docker.io/{image if path else f'library/{image}'}"

    def build(self, image: str, context: BuildContext, *, target: str = "") -> float:
        """Build an image and return the seconds that it took."""
        values = [f"--build-arg={key}={value}" for key, value in context.arguments.items()]
        platform_option = (
            [f"--platform={target}"] if target and SAME.get(platform.machine()) != target else []
        )
        file = f"--file={context.dockerfile}"
        words = ("build", file, f"--tag={self.name(image)}", *values, *platform_option, str(context.folder))
        return self._run(image, "built", *words)

    def push(self, image: str, login: Login | None = None) -> tuple[float, str]:
        """Push an image; return the seconds that it took, and its digest."""
        with tempfile.TemporaryDirectory(prefix="trainyard-push-") as folder:
            digest = Path(folder, "digest")
            with self._logged_in(folder, login) as (first, last, environment):
                digest_option = [f"--digestfile={digest}"] if self.program == "podman" else []
                if self.program == "podman" and image.startswith(("127.0.0.1", "localhost")):
                    digest_option.append("--tls-verify=false")  # as Docker does by itself
                words = (*first, "push", *digest_option, *last, image)
                took = self._run(image, "pushed", *words, environment=environment)
            if digest.exists():
                return took, digest.read_text(encoding="utf-8").strip()
        pairs = [digest.partition("@") for digest in self.inspect(image)["RepoDigests"]]
        repository = image.rpartition(":")[0]
        return took, next((value for name, _, value in pairs if name == repository), "")

    def save(self, image: str, archive: Path) -> float:
        """Write an image to an archive; return the seconds that it took."""
        return self._run(image, "saved", "save", f"--output={archive}", self.name(image))

    def inspect(self, image: str) -> dict[str, Any]:
        """Inspect an image that the engine has."""
        shown = self._output("image", "inspect", self.name(image))
        (description,) = json.loads(shown)
        return description

    @contextmanager
    def _logged_in(
        self, folder: str, login: Login | None
    ) -> Iterator[tuple[list[str], list[str], dict[str, Any]]]:
        """Yield the options before and after the command, and the environment, for an authorised push."""
        if login is None:
            yield [], [], {}
            return
        word = base64.b64encode(f"{login.user}:{login.password}".encode()).decode()
        file = Path(folder, "config.json")
        file.touch(mode=0o600)
        file.write_text(json.dumps({"auths": {login.host: {"auth": word}}}), encoding="utf-8")
        if self.program == "podman":
            yield [], [f"--authfile={file}"], {}
            return
        # Which engine is meant stands in the user's own configuration, which is not read with another one.
        shown = self._output("context", "inspect", "--format", "{{.Endpoints.docker.Host}}")
        host = os.environ.get("DOCKER_HOST") or shown.strip()
        yield ["--config", folder], [], {"DOCKER_HOST": host}

    def _output(self, *words: str) -> str:
        done = subprocess.run([self.program, *words], capture_output=True, text=True, check=True)
        return done.stdout

    def _run(self, image: str, done: str, *words: str, environment: dict[str, Any] | None = None) -> float:
        """Run a command, showing its last line; return its seconds."""
        began, lines = time.monotonic(), []
        with (
            progress(f"image {image}") as line,
            subprocess.Popen(
                [self.program, *words],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                errors="replace",
                env=os.environ | (environment or {}),
            ) as process,
        ):
            assert process.stdout is not None, "it is a pipe"
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
                fix=f"read what it says; for a registry that refuses, {self.program} login comes first; a "
                "tag that is taken may not be moved",
            )
        return time.monotonic() - began


def find() -> Engine | None:
    """Find the first engine on this machine that answers."""
    return next((Engine(program) for program in PROGRAMS if not _missing(program)), None)


def missing(programs: Sequence[str] = PROGRAMS) -> str:
    """Explain why none of ``programs`` can build an image on this machine; empty if one can."""
    reasons = [_missing(program) for program in programs]
    return "" if "" in reasons else "; ".join(reasons)


def _missing(program: str) -> str:
    if shutil.which(program) is None:
        return f"there is no {program} on PATH"
    done = subprocess.run([program, "info"], capture_output=True, text=True, check=False)
    return (
        "" if done.returncode == 0 else f"{program} does not answer: {(done.stderr.splitlines() or [''])[-1]}"
    )
