"""A pod that mounts a volume while files are copied, and shell scripts that run in it.

kubectl exec carries the bytes: it closes one direction and keeps the other, notices a dead connection, and
speaks to every server's version, which the client library's streams do not. The scripts are in `copy`.
"""

import contextlib
import logging
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import IO, Protocol

from kitlib import config
from kitlib.causes.cause import Cause
from kitlib.causes.collect import collect
from kitlib.causes.engine import causes
from kitlib.errors import (
    BadInput,
    ClusterUnreachable,
    FileMissing,
    Interrupted,
    KitError,
    TransferFailed,
    VolumeFull,
    WaitTimeout,
    plain,
)
from kitlib.k8s import images, limit_ranges, manifests, names, pods
from kitlib.k8s.api_errors import rbac_hint
from kitlib.k8s.client import Kube, allowed
from kitlib.k8s.manifests import Object, merge
from kitlib.k8s.pod_security import PodSecurity
from kitlib.k8s.wait import wait
from kitlib.k8s.watch import WatchSpec, watch_objects

if sys.version_info >= (3, 11, 4):
    import tarfile
else:  # without the filters of PEP 706
    from backports import tarfile  # type: ignore[no-redef]

log: logging.Logger = logging.getLogger(__name__)
LOOK_SECONDS = 10.0  # between diagnoses of a pod that does not start
OWN = ".trainyard"  # the prefix of unfinished files, which are not listed
MISSING, TAKEN = 44, 45  # exit statuses of a script that found nothing, or something in its way
# The last is what GNU tar says of a write that was cut short by a full disk.
_FULL = ("No space left on device", "Disk quota exceeded", "Wrote only")


class PodHost(Protocol):
    """The part of `kitlib.Cluster` that a volume uses: the layer of clusters is above that of storage."""

    @property
    def name(self) -> str: ...

    @property
    def kube(self) -> Kube: ...

    @property
    def kubeconfig(self) -> Path: ...

    def kubectl_command(self) -> Sequence[str]: ...

    def pod_annotations(self, mounted: Iterable[str], /) -> Mapping[str, str]: ...

    def pod_security(self, user: int | None = None, /) -> PodSecurity: ...


class HelperPod(AbstractContextManager["HelperPod"]):
    """A pod with the volume at ``/volume``, its working directory; deleted at the end in any case."""

    def __init__(self, cluster: PodHost, claim: str) -> None:
        self.cluster, self.claim = cluster, claim
        self.about: str = f'volume "{claim}" in cluster "{cluster.name}"'
        self.pod: str = names.unique(f"volume-{claim}")
        self._cause: Cause | None = None
        self._look = time.monotonic() + LOOK_SECONDS

    def manifest(self) -> Object:
        (pod,) = manifests.read(config.manifests("volume", "helper.yaml"))
        (container,) = pod["spec"]["containers"]
        staging = {"name": "STAGING", "value": f"{OWN}-upload-{self.pod}"}
        overrides = {
            "metadata": {
                "name": self.pod,
                "labels": names.labels(volume=self.claim),
                "annotations": dict(self.cluster.pod_annotations([self.claim])) or None,
            },
            "spec": {
                "containers": [merge(container, {"env": [staging]})],
                "volumes": [{"name": "volume", "persistentVolumeClaim": {"claimName": self.claim}}],
                "tolerations": list(config.read().tolerations) or None,
            },
        }
        settings = config.read()
        security: PodSecurity = self.cluster.pod_security(settings.run_as_user)
        ranges = allowed(lambda: self.cluster.kube.get_all("LimitRange")) or []
        pulled = images.pull_from(merge(pod, overrides), settings.registry, settings.pull_secrets)
        return limit_ranges.fit(security.apply(pulled), ranges)

    def __enter__(self) -> "HelperPod":
        kube = self.cluster.kube
        kube.create(self.manifest())
        try:
            snapshot = wait(
                watch_objects(kube, WatchSpec("Pod", fields=f"metadata.name={self.pod}")),
                until=lambda state: any(
                    pods.started(pod) or pods.finished(pod) for pod in state["Pod"].values()
                ),
                what="the pod that mounts the volume to start",
                about=f"{self.about}, pod {self.pod}",
                resume="check why it waits, fix that, and try again",
                describe=lambda state: "; ".join(map(self._waiting, state["Pod"].values())),
            )
        except BaseException as error:
            self.__exit__()
            if isinstance(error, WaitTimeout) and (cause := self._cause):
                raise WaitTimeout(f"{error.what}: {cause.line}", about=error.about, fix=cause.fix) from error
            raise
        if pods.finished(snapshot["Pod"][self.pod]):
            self.__exit__()
            raise self.failed(pods.why(snapshot["Pod"][self.pod]) or "the pod that mounts the volume ended")
        return self

    def _waiting(self, pod: Object) -> str:
        """Describe a pod that does not start; a while later, log why, from its events and its volume."""
        if time.monotonic() > self._look:
            self._look = time.monotonic() + LOOK_SECONDS
            facts = collect(
                self.cluster.kube, run=self.pod, main=None, pods_of_run=[pod], logs={}, phase="Pending"
            )
            cause = next(iter(causes(facts)), None)
            if cause and (self._cause is None or cause.kind != self._cause.kind):
                log.warning("%s waits for its pod: %s; %s", self.about, cause.line, plain(cause.fix))
            self._cause = cause
        return pods.why(pod) or pods.status_word(pod)

    def __exit__(self, *exception: object) -> None:
        with contextlib.suppress(ClusterUnreachable):  # its deadline ends it
            self.cluster.kube.delete("Pod", self.pod)

    def output(self, script: str, *arguments: str) -> str:
        """Run a shell script to its end, and return its stdout."""
        with self.running(script, *arguments) as (stdin, stdout):
            stdin.close()
            return stdout.read().decode("utf-8", "replace")

    @contextlib.contextmanager
    def running(self, script: str, *arguments: str) -> Iterator[tuple[IO[bytes], IO[bytes]]]:
        """Run a shell script with its stdin and stdout open to the caller; wait for its end."""
        command = [*self.cluster.kubectl_command(), "exec", "-i", "-q", self.pod, "--"]
        process = subprocess.Popen(
            [*command, "sh", "-c", script, "sh", *arguments],
            env=os.environ | {"KUBECONFIG": str(self.cluster.kubeconfig)},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        assert process.stdin and process.stdout and process.stderr, "they are pipes"
        words: list[bytes] = []
        errors = process.stderr
        reader = threading.Thread(target=lambda: words.append(errors.read()), name="volume-stderr")
        reader.start()
        broken: Exception | None = None
        try:
            try:
                yield process.stdin, process.stdout
            except BrokenPipeError as error:  # it hung up; its own words say why
                broken = error
            except tarfile.TarError as error:  # its output is read no further: it would wait for that
                broken = error
                process.kill()
            except KeyboardInterrupt as error:
                raise Interrupted(
                    "stopped copying; the partial copy was removed", about=self.about, fix="copy it again"
                ) from error
            with contextlib.suppress(OSError):
                process.stdin.close()
            process.wait()
        finally:
            process.kill()  # an interrupted transfer; harmless after its end
            process.wait()
            reader.join()
            for pipe in (process.stdin, process.stdout, process.stderr):
                with contextlib.suppress(OSError):
                    pipe.close()
        if process.returncode or broken:
            output = b"".join(words).decode("utf-8", "replace").strip()
            raise self._explained(process.returncode, arguments, output or str(broken or "")) from broken

    def _explained(self, status: int, arguments: Sequence[str], output: str) -> KitError:
        """Build the error for a script's exit status and stderr."""
        if status == MISSING:
            return FileMissing(
                "there is no such file or folder on the volume",
                about=f"{'/'.join(filter(None, arguments)) or '/'} on {self.about}",
                fix="`volume.ls()` lists the files",
            )
        if status == TAKEN:
            return BadInput(
                "a folder of that name exists",
                about=f"{arguments[1]} on {self.about}",
                fix="give another `to=`, or `replace=True`, which deletes what is in that folder",
            )
        return self.failed(output or f"exit status {status}")

    def failed(self, message: str) -> TransferFailed:
        """Build the error for a message of a script, kubectl or the cluster."""
        if any(full in message for full in _FULL):
            return VolumeFull(
                "the volume is full; the partial copy was removed",
                about=self.about,
                fix="remove files from it, or make a larger one",
            )
        message = "\n".join(line for line in message.splitlines() if "command terminated with" not in line)
        return TransferFailed(
            f"the files could not be copied: {message or 'the connection was lost'}",
            about=self.about,
            fix=rbac_hint(message) if "Forbidden" in message else "try again; no partial copy remains",
        )
