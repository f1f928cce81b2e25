"""The parts of the kubelet that every container uses."""

from dataclasses import dataclass

from localkube.api_client import Informer
from localkube.kubelet.containers.pod_ids import PodIds
from localkube.kubelet.images.image_manager import ImageManager
from localkube.kubelet.kubelet_config import KubeletConfig
from localkube.kubelet.logs.log_reader import LogFiles
from localkube.kubelet.pods.plain_mode import PlainPods
from localkube.kubelet.pods.pod_files import PodFiles
from localkube.kubelet.probes.handlers import Handlers
from localkube.kubelet.resources.limits import Limits
from localkube.kubelet.volumes.host_path import HiddenDirectories
from localkube.kubelet.volumes.object_cache import ObjectCache
from localkube.runtime.client import RuntimeClient


@dataclass
class HostView:
    """What containers see of this machine; ``config`` is replaced when a package is installed.

    Attributes:
        plain: Adapts containers to plain mode; None outside of it.
    """

    config: KubeletConfig
    hide: HiddenDirectories
    plain: PlainPods | None


@dataclass(frozen=True)
class ContainerRuntime:
    """The parts that ``ContainerWorker`` and ``ContainerStart`` use for every container.

    Attributes:
        files: What pods keep on the disk.
        services: Those that a container finds in its environment.
    """

    client: RuntimeClient
    host: HostView
    files: PodFiles
    ids: PodIds
    images: ImageManager
    limits: Limits
    logs: LogFiles
    handlers: Handlers
    objects: ObjectCache
    services: Informer
