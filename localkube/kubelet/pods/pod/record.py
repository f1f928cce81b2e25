"""The state of one pod: an immutable value.

``events.py`` has its changes; the workers wait, call the runtime and run the containers.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from localkube.api_path import Object
from localkube.kubelet.status.container_state import ContainerRecord

Outcome = tuple[str, str, str]  # phase, reason and message of a pod that does not end by itself


@dataclass(frozen=True)
class Container:
    """The state of one container.

    Attributes:
        spec: Its specification, with the resources that the node has allocated.
        kind: The list of the PodSpec that it is in.
        state: The state of its latest run; None before the first.
        reported: A replaced run, which is reported as running until the next one has started.
        process: The identity of its process, until the end is recorded; ``exited`` is set earlier.
        refusals: Starts that its configuration did not allow, which may be ``permanent``.
        replaced: Its run was ended to start it again, whatever its restart policy says.
        resizing: It is restarted to get other resources, and does not run yet.
        delay: Seconds until it starts again; None if it does not. ``is_due`` ends the wait.
    """

    spec: Object
    kind: str
    state: ContainerRecord | None = None
    reported: ContainerRecord | None = None
    process: str = ""
    exited: bool = False
    crashes: int = 0
    refusals: int = 0
    permanent: bool = False
    replaced: bool = False
    resizing: bool = False
    delay: float | None = None
    is_due: bool = False

    @property
    def is_running(self) -> bool:
        return bool(self.process) and not self.exited


@dataclass(frozen=True)
class PodRecord:
    """The state of a pod.

    Attributes:
        desired: The newest v1.Pod. ``pod`` is the same with the resources that the node has ``allocated``.
        start_time: When a kubelet first saw it; ``is_new`` if that is this one.
        volumes: The mounted volumes; None before they and the sandbox are created.
        early: Exits that came before the answer to the request that started the process, by its identity.
        clearing: How many ended containers' files are being removed.
        restarting: Its containers are killed because all of them restart.
        rejected: Its node does not admit it.
        finished: Its containers have ended, and its claims and devices are released.
        is_gone: The API has deleted it, and accepts no report any more.
        deletion_grace: The grace period of its deletion, once it is deleted.
        override: Replaces the computed outcome.
        resizes: The conditions of its resize, by type.
        devices: The statuses of its devices, which are released before its last report.
    """

    pod: Object
    desired: Object
    containers: Mapping[str, Container]
    allocated: Mapping[str, Object] = field(default_factory=dict)
    resizes: Mapping[str, Object] = field(default_factory=dict)
    start_time: float = 0.0
    is_new: bool = False
    address: str | None = None
    volumes: Mapping[str, Any] | None = None
    early: Mapping[str, dict[str, Any]] = field(default_factory=dict)
    clearing: int = 0
    stopping: bool = False
    restarting: bool = False
    rejected: bool = False
    finished: bool = False
    is_gone: bool = False
    deletion_grace: float | None = None
    override: Outcome | None = None
    devices: Mapping[str, Sequence[Object]] = field(default_factory=dict)

    @property
    def uid(self) -> str:
        return str(self.pod["metadata"]["uid"])

    @property
    def grace(self) -> float:
        """The termination grace period: that of the deletion, once there is one."""
        if self.deletion_grace is not None:
            return self.deletion_grace
        return self.pod["spec"].get("terminationGracePeriodSeconds", 30)

    @property
    def deadline(self) -> float | None:
        """The end of its ``activeDeadlineSeconds``, in seconds since the epoch; None if it has none."""
        seconds = self.pod["spec"].get("activeDeadlineSeconds")
        return None if seconds is None else self.start_time + seconds

    @property
    def is_active(self) -> bool:
        return not self.stopping and not self.restarting

    @property
    def is_quiet(self) -> bool:
        """Whether no container runs, and the files of ended ones have been removed."""
        return not self.clearing and not any(container.process for container in self.containers.values())

    @property
    def has_sandbox(self) -> bool:
        """Whether its namespaces exist: from before its containers start until all have ended."""
        return self.address is not None and not self.finished

    @property
    def states(self) -> dict[str, ContainerRecord]:
        return {name: known.state for name, known in self.containers.items() if known.state}

    @property
    def reported_states(self) -> dict[str, ContainerRecord]:
        return self.states | {name: run.reported for name, run in self.containers.items() if run.reported}

    def with_container(self, name: str, **changes: Any) -> "PodRecord":
        changed = replace(self.containers[name], **changes)
        return replace(self, containers={**self.containers, name: changed})
