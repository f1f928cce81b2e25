"""A cloud of made-up things, for the tests of what brings things up and takes them down.

It takes time over what it is asked for, shows it a little later, refuses what comes in the wrong order, and
does what the tests tell it at the n-th request: refuse it, be busy, give up on it later, or have the asking
process die before or after the request took effect.
"""

import threading
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial

from clouds.reconciler.resource import ABSENT, Resource, ResourceState, ResourceStatus
from kitlib.errors import ProviderFailed, Rejected

from .crash_injection import ProcessKilled
from .simulated_clock import SimulatedClock


@dataclass(frozen=True)
class Plan:
    """What a thing is like, whether it exists or not."""

    name: str
    depends_on: tuple[str, ...] = ()
    seconds: float = 0.0
    seconds_gone: float = 0.0
    parts: int = 1  # requests that make it
    poll: float = 15.0
    again: bool = False
    lag: float = 0.0  # seconds until others see what was done


@dataclass
class Thing:
    parts: int
    since: float
    ready: float
    broken: str = ""
    gone: float | None = None


@dataclass
class SimulatedCloud:
    """What exists, and every request that was made."""

    plans: dict[str, Plan]
    clock: SimulatedClock = field(default_factory=SimulatedClock)
    things: dict[str, Thing] = field(default_factory=dict)
    log: list[tuple[float, str, str]] = field(default_factory=list)  # when, verb, name
    faults: dict[int, str] = field(default_factory=dict)  # by the number of a request
    breaches: list[str] = field(default_factory=list)  # what was asked for in the wrong order
    on_call: Callable[[int], None] = lambda number: None
    around: Callable[[str, str, Callable], object] | None = (
        None  # is given the effect of a request, to let happen
    )
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def process(self) -> list["SimulatedResource"]:
        """Return the resources as another process has them."""
        died = threading.Event()
        return [SimulatedResource(plan, self, died) for plan in self.plans.values()]

    def left(self) -> list[str]:
        """Return what exists, in whatever state."""
        return sorted(name for name in self.things if self._now(name) is not None)

    def counts(self) -> Counter:
        """Return how often each verb was asked of each thing."""
        return Counter((verb, name) for _, verb, name in self.log)

    # Requests

    def request(self, died: threading.Event, verb: str, plan: Plan, effect: Callable[[], object]) -> object:
        """Carry out one request, with the fault that the tests want at its number."""
        with self._lock:
            if died.is_set():
                raise ProcessKilled
            if self.around is not None:
                effect = partial(self.around, verb, plan.name, effect)
            number = len(self.log)
            self.log.append((self.clock.now(), verb, plan.name))
            self.on_call(number)
            fault = self.faults.get(number, "")
            if fault == "killed before":
                died.set()
                raise ProcessKilled
            if fault == "busy":
                raise _Busy("the cloud is busy", about=plan.name, fix="wait")
            if fault == "refused":
                raise ProviderFailed("not allowed", about=plan.name, fix="ask for the right")
            result = effect()
            if fault == "gives up" and verb == "create":
                self.things[plan.name].broken = "the cloud had no room"
            if fault == "killed after":
                died.set()
                raise ProcessKilled
            if fault == "lost":  # it took effect, and the answer never came
                raise _Busy("the connection was lost", about=plan.name, fix="wait")
            return result

    def see(self, plan: Plan) -> ResourceStatus:
        thing = self._now(plan.name)
        now = self.clock.now()
        if thing is None or now < thing.since + plan.lag:
            return ABSENT
        if thing.gone is not None:
            return ResourceStatus(ResourceState.DELETING, plan.name)
        if thing.parts < plan.parts:
            return ResourceStatus(ResourceState.PARTIAL, plan.name)
        if now < thing.ready:
            return ResourceStatus(ResourceState.PENDING, plan.name)
        return ResourceStatus(
            ResourceState.FAILED if thing.broken else ResourceState.READY, plan.name, thing.broken
        )

    def create(self, plan: Plan, part: int) -> None:
        """Make one part of a thing; a second time it changes nothing."""
        now = self.clock.now()
        missing = [each for each in plan.depends_on if not self._ready(each)]
        if missing:
            self.breaches.append(f"{plan.name} was made before {missing}")
        thing = self._now(plan.name)
        if thing is None:
            thing = self.things[plan.name] = Thing(0, now, now + plan.seconds)
        if thing.gone is not None:
            raise _Busy("it is being deleted", about=plan.name, fix="wait")
        thing.parts = max(thing.parts, part + 1)

    def delete(self, plan: Plan) -> None:
        thing = self._now(plan.name)
        if thing is None or thing.gone is not None:
            return
        users = [
            each.name for each in self.plans.values() if plan.name in each.depends_on and self._now(each.name)
        ]
        if users:
            self.breaches.append(f"{plan.name} was deleted before {users}")
            raise _Busy(f"{users} need it", about=plan.name, fix="wait")
        thing.gone = self.clock.now() + plan.seconds_gone

    def _now(self, name: str) -> Thing | None:
        thing = self.things.get(name)
        if thing is not None and thing.gone is not None and thing.gone <= self.clock.now():
            del self.things[name]
            return None
        return thing

    def _ready(self, name: str) -> bool:
        thing = self._now(name)
        return (
            thing is not None
            and thing.gone is None
            and not thing.broken
            and thing.parts == self.plans[name].parts
            and thing.ready <= self.clock.now()
        )


class _Busy(Rejected):
    def __init__(self, what: str, *, about: str, fix: str) -> None:
        super().__init__(what, about=about, fix=fix, status=429)


class SimulatedResource(Resource):
    """A thing of the simulated cloud, as one process sees it."""

    kind = "Simulated"

    def __init__(self, plan: Plan, cloud: SimulatedCloud, died: threading.Event) -> None:
        self.plan, self.cloud, self.died = plan, cloud, died
        self.name, self.depends_on, self.poll, self.again = plan.name, plan.depends_on, plan.poll, plan.again
        self.expected, self.expected_gone = plan.seconds, plan.seconds_gone

    def describe(self) -> ResourceStatus:
        return self.cloud.request(self.died, "describe", self.plan, lambda: self.cloud.see(self.plan))

    def create(self) -> None:
        for part in range(self.plan.parts):
            self.cloud.request(
                self.died, "create", self.plan, lambda part=part: self.cloud.create(self.plan, part)
            )

    def delete(self) -> None:
        self.cloud.request(self.died, "delete", self.plan, lambda: self.cloud.delete(self.plan))


def plans(*every: Plan) -> dict[str, Plan]:
    """Return them by name."""
    return {each.name: each for each in every}
