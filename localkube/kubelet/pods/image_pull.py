"""What pulling an image becomes here: looking for its stand-in, and the kubelet's words where there is none.

The look is cheap, so a container that waits for a program is tried again every two seconds, whatever its
reason says; once `kit images get` has obtained the program, the container starts.
"""

from collections.abc import Mapping
from typing import Any, Protocol

from localkube.kubelet.containers.container_spec import SCRATCH
from localkube.kubelet.containers.environment import ConfigError
from localkube.kubelet.images.image_programs import STAND_INS, Missing, Program
from localkube.kubelet.images.image_table import ignored_mounts, stand_in
from localkube.kubelet.pods.context import Runtime
from localkube.kubelet.status.container_state import ContainerRecord

IMAGE_FAILED, IMAGE_BACK_OFF = IMAGE_REASONS = ("ErrImagePull", "ImagePullBackOff")


class PullingPod(Protocol):
    """What of a pod is needed to see whether its images are there."""

    pod: Mapping[str, Any]
    runtime: Runtime
    records: Mapping[str, ContainerRecord]


def pull(worker: PullingPod, container: Mapping[str, Any]) -> Program:
    """Return the program that stands in for a container's image; one without a command where none is needed.

    Raises:
        ConfigError: It is not on this machine, with the kubelet's reasons: ErrImagePull the first time, then
            ImagePullBackOff.
    """
    image = container["image"]
    entry = stand_in(image)
    events = worker.runtime.events
    said = f'Image "{image}" is not pulled: {entry.shown} stands in for it'
    if not entry.program:
        if not entry.known:
            events.record(worker.pod, "Pulled", said)
        return Program(())
    try:
        program = worker.runtime.programs.find(entry.program)
    except Missing as missing:
        raise _failure(worker, container, str(missing)) from missing
    if program.argv:
        events.record(worker.pod, "Pulled", said)
    for place in ignored_mounts(container):
        message = f'{place} is not read: {entry.shown} stands in for image "{image}"'
        events.record(worker.pod, "UnsupportedFields", message, warning=True)
    return program


def program_mounts(program: Program) -> list[dict[str, Any]]:
    """Return the mounts that show a program's folder where one of the container's own would hide it."""
    folders = {program.directory} | ({str(STAND_INS)} if str(STAND_INS) in " ".join(program.argv) else set())
    return [
        {"kind": "bind", "source": folder, "target": folder, "read_only": True}
        for folder in sorted(folders - {""})
        if any(folder.startswith(place + "/") for place in SCRATCH)
    ]


def _failure(worker: PullingPod, container: Mapping[str, Any], why: str) -> ConfigError:
    image, before = container["image"], worker.records.get(container["name"])
    events = worker.runtime.events
    if before is None or before.reason not in IMAGE_REASONS:
        events.record(worker.pod, "Failed", f'Failed to pull image "{image}": {why}', warning=True)
        return ConfigError(f'failed to pull image "{image}": {why}', reason=IMAGE_FAILED)
    if before.reason == IMAGE_FAILED:
        events.record(worker.pod, "BackOff", f'Back-off pulling image "{image}"')
    return ConfigError(f'Back-off pulling image "{image}": ErrImagePull: {why}', reason=IMAGE_BACK_OFF)
