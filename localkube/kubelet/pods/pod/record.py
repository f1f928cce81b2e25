"""What is known of one pod: an immutable value.

How it changes is in ``events.py``; what waits, calls and runs is in the drivers.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from localkube.kubelet.status.container_state import ContainerRecord

Object = Mapping[str, Any]
Outcome = tuple[str, str, str]  # phase, reason and message of a pod that does not end by itself


@dataclass(frozen=True)
class Container:
    """What is known of one container.

    Attributes:
        spec: With the resources that the node has allocated.
        kind: The list of the PodSpec that it is in.
        state: Of its latest run; None before the first.
        reported: A run that was ended to start it again: reported as it was until the next one is known.
        process: The identity of its process, until that one's end is recorded; ``exited`` comes earlier.
        refusals: Starts that its configuration did not allow, which may be ``permanent``.
        replaced: Its run was ended in order to start it again, whatever its restart policy says.
        resizing: It is started again to get other resources, and does not run yet.
        delay: Seconds until it starts again; None when it does not. ``is_due`` ends the wait.
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
    """What is known of a pod.

    Attributes:
        desired: The newest v1.Pod. ``pod`` is the same with the resources that the node has ``allocated``.
        start_time: When a kubelet first saw it; ``is_new`` where that is this one.
        volumes: The mounted ones; None before they and the sandbox are made.
        early: Exits that overtook the answer to the request that started their process, by its identity.
        clearing: How many ended containers' files are being removed.
        restarting: Its containers end because all of them start again.
        rejected: Its node does not admit it.
        finished: All has ended, and its claims and devices are given back.
        is_gone: The API forgets it, and takes no report any more.
        deletion_grace: The grace period of its deletion, once there is one.
        override: In place of the computed outcome.
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
        """When it has been active for too long, in seconds since the epoch."""
        seconds = self.pod["spec"].get("activeDeadlineSeconds")
        return None if seconds is None else self.start_time + seconds

    @property
    def is_active(self) -> bool:
        return not self.stopping and not self.restarting

    @property
    def is_quiet(self) -> bool:
        """No container runs, and what those wrote that did is gone."""
        return not self.clearing and not any(container.process for container in self.containers.values())

    @property
    def has_sandbox(self) -> bool:
        """Its namespaces exist: they come before its containers, and go when all have ended."""
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
