"""Image pulls: the image's stand-in is looked up; where it is missing, the reasons are the kubelet's.

The lookup is cheap, so a container that waits for a program is tried again every two seconds, whatever its
reason says; once `kit images get` has obtained the program, the container starts.
"""

from collections.abc import Mapping
from typing import Any

from localkube.kubelet.containers.environment import ConfigError
from localkube.kubelet.images.image_programs import Program, ProgramNotFound
from localkube.kubelet.images.image_table import ignored_mounts, missing_tag, stand_in
from localkube.kubelet.pods.context import Runtime
from localkube.kubelet.status.container_state import ContainerRecord

IMAGE_FAILED, IMAGE_BACK_OFF = IMAGE_REASONS = ("ErrImagePull", "ImagePullBackOff")


def pull(
    runtime: Runtime,
    pod: Mapping[str, Any],
    container: Mapping[str, Any],
    previous: ContainerRecord | None,
) -> Program:
    """Find the program that stands in for a container's image; one without a command if none is needed.

    Raises:
        ConfigError: It is not on this machine, with the kubelet's reasons: ErrImagePull the first time, then
            ImagePullBackOff.
    """
    image = container["image"]
    entry = stand_in(image)
    events = runtime.events
    if missing := missing_tag(image):
        where = "on nodes that pull images, the pod would wait with ErrImagePull"
        events.record(pod, "MissingImage", f"{missing}: {where}", warning=True)
    said = f'Image "{image}" is not pulled: {entry.shown} stands in for it'
    if not entry.program:
        if not entry.known:
            events.record(pod, "Pulled", said)
        return Program(())
    try:
        program = runtime.programs.find(entry.program)
    except ProgramNotFound as missing:
        raise _failure(runtime, pod, container, previous, str(missing)) from missing
    if program.argv:
        events.record(pod, "Pulled", said)
    for place in ignored_mounts(container):
        message = f'{place} is not read: {entry.shown} stands in for image "{image}"'
        events.record(pod, "UnsupportedFields", message, warning=True)
    return program


def _failure(
    runtime: Runtime,
    pod: Mapping[str, Any],
    container: Mapping[str, Any],
    previous: ContainerRecord | None,
    why: str,
) -> ConfigError:
    image, events = container["image"], runtime.events
    if previous is None or previous.reason not in IMAGE_REASONS:
        events.record(pod, "Failed", f'Failed to pull image "{image}": {why}', warning=True)
        return ConfigError(f'failed to pull image "{image}": {why}', reason=IMAGE_FAILED)
    if previous.reason == IMAGE_FAILED:
        events.record(pod, "BackOff", f'Back-off pulling image "{image}"')
    return ConfigError(f'Back-off pulling image "{image}": ErrImagePull: {why}', reason=IMAGE_BACK_OFF)
