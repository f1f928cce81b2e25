"""The images of containers: found in the store, pulled, or replaced by a stand-in.

Reasons, Events and the back-off are the kubelet's. The kit's own image is pulled only on request; any other
image is pulled, and replaced by its stand-in where no registry answers.

Source: https://kubernetes.io/docs/concepts/containers/images/
"""

import asyncio
import base64
import contextlib
import fcntl
import json
import logging
import os
import shutil
import time
from collections.abc import Awaitable, Callable, Container, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from weakref import WeakValueDictionary

from localkube.api_path import Object
from localkube.errors import ApiError
from localkube.kubelet.containers.expansion import ConfigError
from localkube.kubelet.events import EventRecorder
from localkube.kubelet.images import store
from localkube.kubelet.images.container_image import ResolvedImage, from_record
from localkube.kubelet.images.image_programs import Program, ProgramNotFound, Programs
from localkube.kubelet.images.image_table import (
    AUTO,
    IMAGE_MODES,
    STAND_IN,
    StandIn,
    ignored_mounts,
    missing_tag,
    stand_in,
)
from localkube.kubelet.status.container_state import (
    IMAGE_BACK_OFF,
    IMAGE_FAILED,
    INVALID_NAME,
    NEVER_PULL,
    containers,
)
from localkube.paths import images_dir, private_dir
from localkube.runtime.client import short_name

log = logging.getLogger(__name__)

NO_PULL_SECRET = (
    "Unable to retrieve some image pull secrets ({}); attempting to pull the image may not succeed."
)
ANNOTATION = "trainyard/images"
FIRST_BACK_OFF_SECONDS, LONGEST_BACK_OFF_SECONDS = 10.0, 300.0
# How long a registry that did not answer is not contacted for images that have a stand-in; it doubles each
# time, because the next container waits for the connection's timeout.
UNREACHABLE_SECONDS, LONGEST_UNREACHABLE_SECONDS = 60.0, 1800.0
# Of a namespace, and of all: a pull from a slow registry occupies a slot for as long as it takes.
PULLS_OF_NAMESPACE, PULLS_AT_ONCE, PULL_SECONDS = 3, 24, 1800.0
REMEMBERED_REGISTRIES = 1024
# The kubelet's imageGCHighThresholdPercent and imageGCLowThresholdPercent, and the interval of its checks.
HIGH_SHARE, LOW_SHARE, GARBAGE_SECONDS = 0.85, 0.80, 300.0
LINE_BYTES = 16 << 20
# Why a stand-in is used: no registry answers; or any reason, for images that readers build themselves.
UNREACHABLE = ("unreachable",)
ANY_REASON = ("unreachable", "unauthorized", "notfound", "ratelimited", "registry", "deadline")


class PullError(Exception):
    """An image could not be pulled; ``reason`` is the image service's error code."""

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(message)
        self.reason = reason


@dataclass
class _BackOff:
    message: str
    seconds: float
    until: float

    @classmethod
    def after(cls, former: "_BackOff | None", message: str, first: float, longest: float) -> "_BackOff":
        """Wait for twice as long as before."""
        seconds = min(former.seconds * 2, longest) if former else first
        return cls(message, seconds, time.monotonic() + seconds)


@dataclass(frozen=True)
class ImageService:
    """The service that pulls images, on the host (``controlplane/image_service.py``), by its socket."""

    socket: str

    async def pull(self, reference: str, auths: Sequence[Object]) -> dict[str, Any]:
        """Pull an image into the store; returns its record."""
        pulled = await self.run("pull", reference, content=json.dumps({"auths": auths}))
        return pulled["image"]

    async def copy(self, identifier: str, target: Path) -> None:
        """Copy an image's files to a directory."""
        target.mkdir(mode=0o755, exist_ok=True)
        await self.run("checkout", identifier, str(target))

    async def run(self, verb: str, *arguments: str, content: str = "") -> dict[str, Any]:
        """Run a verb; returns the last line of its output."""
        last, status = {}, None
        try:
            with short_name(Path(self.socket)) as name:
                reader, writer = await asyncio.open_unix_connection(name, limit=LINE_BYTES)
            with contextlib.closing(writer):
                argv = [verb, "--store", str(private_dir(images_dir())), *arguments]
                writer.write(json.dumps({"arguments": argv, "input": content}).encode() + b"\n")
                async for line in reader:
                    event = json.loads(line)
                    if event.get("event") == "exit":
                        status = event["status"]
                    else:
                        last = event
        except OSError as error:
            raise PullError("service", f"the image service does not answer: {error}") from error
        if status != 0:
            fallback = f"the image service ended with status {status}"
            raise PullError(last.get("reason", "registry"), last.get("message", fallback))
        return last


class ImageManager:
    """The images of all containers of a node.

    Args:
        secret: Reads a Secret of a pod's namespace, by the pod and its name; None if it does not exist.
        programs: The programs of stand-ins, for images that are not pulled.
        service: Pulls images; without it, all images have stand-ins.
        mode: The mode of pods that do not choose one by the annotation ``trainyard/images``: ``stand-in``,
            ``pull``, or ``auto``, which pulls all but the kit's own image, where a registry answers.
        overlay: Layers can be mounted; otherwise a container gets a copy of its image.
    """

    def __init__(
        self,
        *,
        secret: Callable[[Object, str], Awaitable[Object | None]],
        programs: Programs | None = None,
        service: ImageService | None = None,
        mode: str = STAND_IN,
        overlay: bool = True,
    ) -> None:
        # By node: each node writes its own Events, with its own credentials.
        self.recorders: dict[str, EventRecorder] = {}
        self._secret = secret
        self._programs, self._service = programs or Programs(), service
        self._mode = mode if service else STAND_IN
        self.overlay = overlay
        self._back_offs: dict[tuple[str, str], _BackOff] = {}
        self._unreachable: dict[str, _BackOff] = {}
        self._pulling: WeakValueDictionary[tuple[str, str, str], asyncio.Lock] = WeakValueDictionary()
        self._namespace_slots: WeakValueDictionary[str, asyncio.Semaphore] = WeakValueDictionary()
        self._slots = asyncio.Semaphore(PULLS_AT_ONCE)

    async def get(self, pod: Object, container: Object, *, used_by: Path) -> ResolvedImage:
        """Get the image of a container that is about to start.

        Args:
            used_by: A path that exists as long as the container needs the image's layers.

        Raises:
            ConfigError: It is not available yet; with the kubelet's reason: ErrImagePull, ImagePullBackOff.
        """
        reference = container["image"]
        entry = stand_in(reference)
        mode = self._chosen_mode(pod)
        if mode == STAND_IN or (mode == AUTO and entry.replaces(reference) and not _stored(reference)):
            return self._stand_in(pod, container, entry)
        try:
            name = store.normalize(reference)
        except store.InvalidReference as error:
            message = f'Failed to apply default image tag "{reference}": {error}'
            self._record(pod, container, "InspectFailed", message, warning=True)
            raise ConfigError(message, reason=INVALID_NAME) from error
        fall_back = (ANY_REASON if entry.is_preferred_to(reference) else UNREACHABLE) if mode == AUTO else ()
        try:
            record = await self._present_or_pulled(pod, container, name, fall_back=fall_back)
        except PullError as error:
            if error.reason not in fall_back:
                raise
            return self._stand_in(pod, container, entry, cause=f" ({error})")
        await self._use(record, used_by)
        image = from_record(record, name, images_dir())
        if self.overlay:
            return image
        copy = used_by / "root"
        try:
            assert self._service is not None
            await self._service.copy(record["id"], copy)
        except PullError as error:
            raise ConfigError(f"failed to copy the image: {error}", reason="CreateContainerError") from error
        return replace(image, copy=copy)

    def stop_signal(self, reference: str) -> str:
        """Find the signal that ends a container of a pulled image; empty for SIGTERM."""
        with contextlib.suppress(store.InvalidReference):
            if record := store.find(reference):
                return record["config"].get("StopSignal") or ""
        return ""

    def forget(self, uid: str) -> None:
        """Forget the back-offs of a deleted pod."""
        for key in [key for key in self._back_offs if key[0] == uid]:
            del self._back_offs[key]

    async def collect_garbage(self) -> None:
        """Remove images that no container uses, whenever the disk is too full."""
        while True:
            await asyncio.sleep(GARBAGE_SECONDS)
            if self._service is None or not images_dir().is_dir():
                continue
            disk = shutil.disk_usage(images_dir())
            if disk.free < disk.total * (1 - HIGH_SHARE):
                missing = int(disk.total * (1 - LOW_SHARE)) - disk.free
                try:
                    await self._service.run(
                        "prune", "--all", "--target-bytes", str(missing), "--min-age", "2m"
                    )
                except PullError as error:
                    log.warning("images are not removed: %s", error)

    # Pulled images.

    async def _present_or_pulled(
        self, pod: Object, container: Object, name: str, *, fall_back: Container[str]
    ) -> dict[str, Any]:
        """Find the image in the store or pull it, as its pull policy says.

        Args:
            fall_back: The reasons for which PullError is raised.
        """
        reference, policy = container["image"], container.get("imagePullPolicy") or "IfNotPresent"
        record = store.find(reference)
        if record and policy != "Always":
            return self._present(pod, container, record)
        if policy == "Never":
            message = f'Container image "{reference}" is not present with pull policy of Never'
            self._record(pod, container, NEVER_PULL, message, warning=True)
            raise ConfigError(message, reason=NEVER_PULL)
        host = name.partition("/")[0]
        silence = self._unreachable.get(host)
        if fall_back and silence and time.monotonic() < silence.until:
            if record:
                return self._present(pod, container, record, f": {silence.message}")
            raise PullError("unreachable", silence.message)
        key = (pod["metadata"]["uid"], reference)
        back_off = self._back_offs.get(key)
        if back_off and time.monotonic() < back_off.until:
            self._record(pod, container, "BackOff", f'Back-off pulling image "{reference}"')
            raise ConfigError(
                f'Back-off pulling image "{reference}": ErrImagePull: {back_off.message}',
                reason=IMAGE_BACK_OFF,
            )
        try:
            record = await self._pull(pod, container, name)
        except PullError as error:
            if error.reason in fall_back and error.reason != "unreachable":
                raise
            if error.reason in fall_back:
                while len(self._unreachable) >= REMEMBERED_REGISTRIES:
                    del self._unreachable[next(iter(self._unreachable))]
                self._unreachable[host] = _BackOff.after(
                    silence, f"{host} does not answer", UNREACHABLE_SECONDS, LONGEST_UNREACHABLE_SECONDS
                )
                if record:
                    return self._present(pod, container, record, f": {host} does not answer")
                raise
            self._back_offs[key] = _BackOff.after(
                back_off, str(error), FIRST_BACK_OFF_SECONDS, LONGEST_BACK_OFF_SECONDS
            )
            message = f'Failed to pull image "{reference}": {error}'
            self._record(pod, container, "Failed", message, warning=True)
            message = f'failed to pull image "{reference}": {error}'
            raise ConfigError(message, reason=IMAGE_FAILED) from error
        self._back_offs.pop(key, None)
        self._unreachable.pop(host, None)
        return record

    def _present(
        self, pod: Object, container: Object, record: dict[str, Any], cause: str = ""
    ) -> dict[str, Any]:
        message = f'Container image "{container["image"]}" already present on machine{cause}'
        self._record(pod, container, "Pulled", message)
        return record

    async def _pull(self, pod: Object, container: Object, name: str) -> dict[str, Any]:
        auths, namespace = await self._credentials(pod), pod["metadata"]["namespace"]
        queued = time.monotonic()
        lock = self._pulling.setdefault((namespace, name, json.dumps(auths)), asyncio.Lock())
        slots = self._namespace_slots.setdefault(namespace, asyncio.Semaphore(PULLS_OF_NAMESPACE))
        self._record(pod, container, "Pulling", f'Pulling image "{container["image"]}"')
        async with lock, slots, self._slots:
            started = time.monotonic()
            record = await self._pull_in_time(name, auths)
        now = time.monotonic()
        took = f"in {_seconds(now - started)} ({_seconds(now - queued)} including waiting)"
        size = f"Image size: {record['size']} bytes."
        message = f'Successfully pulled image "{container["image"]}" {took}. {size}'
        self._record(pod, container, "Pulled", message)
        return record

    async def _pull_in_time(self, name: str, auths: Sequence[Object]) -> dict[str, Any]:
        try:
            assert self._service is not None
            async with asyncio.timeout(PULL_SECONDS):
                return await self._service.pull(name, auths)
        except TimeoutError as error:
            message = (
                f"not pulled within {PULL_SECONDS / 60:.0f} minutes; another attempt continues from there"
            )
            raise PullError("deadline", message) from error

    async def _credentials(self, pod: Object) -> list[dict[str, Any]]:
        """Read the pod's ``imagePullSecrets``, as contents of ``.docker/config.json``."""
        auths = []
        for reference in pod["spec"].get("imagePullSecrets") or []:
            name, problem = reference.get("name", ""), ""
            try:
                secret = await self._secret(pod, name)
                data = (secret or {}).get("data") or {}
                if ".dockerconfigjson" in data:
                    auths.append(json.loads(base64.b64decode(data[".dockerconfigjson"])))
                elif ".dockercfg" in data:
                    auths.append({"auths": json.loads(base64.b64decode(data[".dockercfg"]))})
                else:
                    problem = NO_PULL_SECRET.format(name)
            except ValueError:
                problem = f"The image pull secret {name} is not valid JSON"
            except ApiError as error:
                if error.status not in (400, 403):
                    raise
                problem = NO_PULL_SECRET.format(name)
            if problem:
                self._events(pod).record(pod, "FailedToRetrieveImagePullSecret", problem, warning=True)
        return auths

    async def _use(self, record: Mapping[str, Any], used_by: Path) -> None:
        """Keep the image from being pruned as long as ``used_by`` exists."""
        try:
            await asyncio.to_thread(_keep, record["id"].partition(":")[2], used_by)
        except FileNotFoundError as error:
            raise ConfigError("the image has been removed meanwhile", reason=IMAGE_FAILED) from error

    # Stand-ins.

    def _stand_in(self, pod: Object, container: Object, entry: StandIn, cause: str = "") -> ResolvedImage:
        program = self._program(pod, container, entry, cause)
        arguments = entry.arguments
        if not entry.known and not container.get("command"):
            raise ConfigError(
                f'image "{container["image"]}" is not known here, nor what it runs: '
                "give the container a command",
                reason="CreateContainerError",
            )
        return ResolvedImage(
            name=container["image"],
            id="trainyard://the-host's-file-system",
            entrypoint=entry.entrypoint,
            command=arguments,
            env=entry.env,
            directory=entry.directory,
            user=entry.user,
            files=entry.files,
            provides=entry.provides,
            program=program.argv,
            program_directory=program.directory,
        )

    def _program(self, pod: Object, container: Object, entry: StandIn, cause: str) -> Program:
        image = container["image"]
        if missing := missing_tag(image):
            where = "on nodes that pull images, the pod would wait with ErrImagePull"
            self._events(pod).record(pod, "MissingImage", f"{missing}: {where}", warning=True)
        replaced = f'Image "{image}" is not pulled{cause}: {entry.shown} stands in for it'
        if not entry.program:
            self._record(pod, container, "Pulled", replaced)
            return Program(())
        try:
            program = self._programs.find(entry.program)
        except ProgramNotFound as missing:
            raise self._not_found(pod, container, str(missing)) from missing
        self._record(pod, container, "Pulled", replaced)
        if entry.program == "applets" and (absent := self._programs.missing_applets(container)):
            message = f"{', '.join(absent)}: not on this machine, whose programs stand in for BusyBox's; "
            packages = "packages are not installed in stand-ins: load an image that has them (docs/images.md)"
            message += packages if absent == ["apk"] else "apt-get install busybox-static brings them"
            self._events(pod).record(pod, "UnsupportedFields", message, warning=True)
        for place in ignored_mounts(container):
            message = f'{place} is not read: {entry.shown} stands in for image "{image}"'
            self._events(pod).record(pod, "UnsupportedFields", message, warning=True)
        return program

    def _not_found(self, pod: Object, container: Object, reason: str) -> ConfigError:
        """Report it as a failed pull; the lookup is cheap, so it is repeated at each attempt."""
        image, key = container["image"], (pod["metadata"]["uid"], container["image"])
        if key not in self._back_offs:
            self._back_offs[key] = _BackOff(reason, 0.0, 0.0)
            self._events(pod).record(pod, "Failed", f'Failed to pull image "{image}": {reason}', warning=True)
            return ConfigError(f'failed to pull image "{image}": {reason}', reason=IMAGE_FAILED)
        back_off = self._back_offs[key]
        if not back_off.seconds:
            back_off.seconds = FIRST_BACK_OFF_SECONDS
            self._events(pod).record(pod, "BackOff", f'Back-off pulling image "{image}"')
        return ConfigError(f'Back-off pulling image "{image}": ErrImagePull: {reason}', reason=IMAGE_BACK_OFF)

    def _chosen_mode(self, pod: Object) -> str:
        mode = (pod["metadata"].get("annotations") or {}).get(ANNOTATION, self._mode)
        if mode in IMAGE_MODES and (mode == STAND_IN or self._service):
            return mode
        reason = (
            f"it is one of {', '.join(IMAGE_MODES)}"
            if mode not in IMAGE_MODES
            else "this cluster pulls no images, as in plain mode"
        )
        message = f"the annotation {ANNOTATION}: {mode} has no effect: {reason}"
        self._events(pod).record(pod, "UnsupportedFields", message, warning=True)
        return self._mode

    def _events(self, pod: Object) -> EventRecorder:
        return self.recorders[pod["spec"]["nodeName"]]

    def _record(
        self, pod: Object, container: Object, reason: str, message: str, *, warning: bool = False
    ) -> None:
        kinds = (kind for kind, listed in containers(pod) if listed["name"] == container["name"])
        field = f"spec.{next(kinds)}{{{container['name']}}}" if container["name"] else ""
        self._events(pod).record(pod, reason, message, warning=warning, field=field)


def _stored(reference: str) -> bool:
    with contextlib.suppress(store.InvalidReference):
        return store.find(reference) is not None
    return False


def _keep(digest: str, used_by: Path) -> None:
    """Create a container's link to an image of the store, while pruning is locked out."""
    used_by.mkdir(mode=0o700, parents=True, exist_ok=True)
    images, users = images_dir() / "images", images_dir() / "users"
    with (images_dir() / "lock").open("a") as lock:
        fcntl.flock(lock, fcntl.LOCK_SH)
        os.stat(images / f"{digest}.json")
        users.mkdir(mode=0o700, exist_ok=True)
        with contextlib.suppress(FileExistsError):
            (users / f"{digest}.{used_by.parent.parent.name}.{used_by.name}").symlink_to(used_by)


def _seconds(duration: float) -> str:
    return f"{duration:.3f}s" if duration >= 1 else f"{duration * 1000:.0f}ms"
