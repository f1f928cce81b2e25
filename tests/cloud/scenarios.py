"""The two clouds and the made-up one, as the tests of crashes and of random histories need them: a process
that makes a default cluster, another one that finds what there is, and a look at what is left.
"""

import copy
import hashlib
import random
import threading
import time
from abc import ABC, abstractmethod
from datetime import UTC, datetime, timedelta
from importlib import import_module

from clouds.reconciler.reconcile import bring_up, take_down
from clouds.reconciler.resource import Resource
from clouds.tags import Tags

from .aws.services import LOOKS
from .crash_injection import ProcessLife
from .eks_lifecycle import READING
from .google.api_errors import ApiError, OperationFailure
from .simulated_clock import SimulatedClock
from .simulated_cloud import Plan, SimulatedCloud, plans

CLUSTER = "lab"
WHEN = ("before", "after")


class CloudScenario(ABC):
    """A cloud with one user, whose processes may die.

    Attributes:
        clock: The time there.
        life: Of the process that asks at the moment.
        few: After how many changes a process dies, in the quick tests.
        samples: Changes after which the quick tests delete what stands.
    """

    few = 4
    samples = (4, 10)

    def __init__(self) -> None:
        self.clock = SimulatedClock(self.passed)
        self.life = ProcessLife()

    @abstractmethod
    def passed(self, seconds: float) -> None:
        """Let time pass at the cloud."""

    @abstractmethod
    def parts(self) -> list[Resource]:
        """Return a default cluster, as a fresh process has it."""

    @abstractmethod
    def found(self) -> list[Resource]:
        """Return what there is of it, as a fresh process finds it."""

    @abstractmethod
    def left(self) -> list[str]:
        """Return what exists, whoever made it."""

    @abstractmethod
    def changes(self, request: str) -> bool:
        """Return whether a request changes something."""

    @abstractmethod
    def trouble(self, choose: random.Random) -> None:
        """Let something go wrong at one of the next requests, or from it on, until `clear_faults`."""

    @abstractmethod
    def clear_faults(self) -> None:
        """Let nothing go wrong any more."""

    def create(self, life: ProcessLife | None = None, *, workers: int = 1, **how: object) -> ProcessLife:
        """Bring a default cluster up, in a process with this life; return the life."""
        self.life = life or ProcessLife()
        bring_up(self.parts(), title="it", resume="again", clock=self.clock, workers=workers, **how)
        return self.life

    def delete(self, life: ProcessLife | None = None, *, workers: int = 1, **how: object) -> ProcessLife:
        """Delete all that is found, in a process with this life; return the life."""
        self.life = life or ProcessLife()
        take_down(self.found(), title="it", resume="again", clock=self.clock, workers=workers, **how)
        return self.life

    def tags(self) -> Tags:
        """Return whose the cluster is."""
        return Tags(CLUSTER, "ada", "course", datetime(2036, 1, 1, tzinfo=UTC) + timedelta(hours=4))


class SimulatedScenario(CloudScenario):
    """The cloud of made-up things."""

    samples = (1, 6)
    PLANS = plans(
        Plan("role"),
        Plan("network", parts=2),
        Plan("disk", depends_on=("network",), seconds=120, seconds_gone=60),
        Plan("cluster", depends_on=("network", "role"), seconds=540, seconds_gone=300, parts=2),
        Plan("nodes", depends_on=("cluster", "role"), seconds=180, seconds_gone=240, lag=10),
        Plan("add-on", depends_on=("nodes",), seconds=30),
    )

    def __init__(self) -> None:
        super().__init__()
        self.cloud = SimulatedCloud(self.PLANS, clock=self.clock)
        self.cloud.around = self._around

    def _around(self, verb: str, name: str, effect):
        number = self.life.begin(f"{verb} {name}")
        result = effect()
        self.life.end(number)
        return result

    def passed(self, seconds: float) -> None:
        """Its clock is ours."""

    def parts(self) -> list[Resource]:
        return self.cloud.process()

    found = parts

    def left(self) -> list[str]:
        return self.cloud.left()

    def changes(self, request: str) -> bool:
        return not request.startswith("describe")

    def trouble(self, choose: random.Random) -> None:
        number = len(self.cloud.log) + choose.randint(1, 40)
        self.cloud.faults[number] = choose.choice(["busy", "refused", "gives up", "lost"])

    def clear_faults(self) -> None:
        self.cloud.faults.clear()


class AwsScenario(CloudScenario):
    """The fake Amazon: a cluster of EKS with all that the kit makes for it.

    Args:
        amazon: Emptied before, and led to by boto3's variables.
        clients: boto3's, from one world to the next: it takes a second to make them.
    """

    few = 9
    samples = (12, 38)

    def __init__(self, amazon, clients: dict) -> None:
        self.amazon = amazon
        super().__init__()
        self.modules = {name: import_module(f"clouds.aws.{name}") for name in ("stack", "plan", "session")}
        self.sessions = clients
        self.sent = threading.local()
        clients["world"] = self

    def passed(self, seconds: float) -> None:
        self.amazon.clock.advance(seconds)

    def session(self):
        """Return a way to AWS that nobody has used; its clients are old ones."""
        first = self.sessions.get("first")
        if first is None:
            first = self.sessions["first"] = self.modules["session"].AwsSession("us-west-2")
            first._boto.events.register("before-send", self._before)
            first._boto.events.register("response-received", self._after)
        session = copy.copy(first)
        vars(session).pop("identity", None)  # which a fresh process asks for
        return session

    def _before(self, request, event_name: str, **_: object) -> None:
        world = self.sessions["world"]
        asked = hashlib.sha256(f"{request.url} {request.body!r}".encode()).hexdigest()[:8]
        world.sent.number = world.life.begin(f"{event_name.removeprefix('before-send.')} {asked}")

    def _after(self, **_: object) -> None:
        world = self.sessions["world"]
        world.life.end(world.sent.number)

    def parts(self) -> list[Resource]:
        plan = self.modules["plan"].EksPlan(self.session(), self.tags(), zones=("us-west-2a", "us-west-2b"))
        return self.modules["stack"].resources(plan)

    def found(self) -> list[Resource]:
        return self.modules["stack"].discover(self.session(), CLUSTER)

    def left(self) -> list[str]:
        return [str(each) for each in self.amazon.left()]

    def changes(self, request: str) -> bool:
        return not request.partition(".")[2].startswith(READING)

    def trouble(self, choose: random.Random) -> None:
        nth, times = choose.randint(1, 200), choose.choice([1, 1, 5, None])
        error, when = choose.choice(["ThrottlingException", "InternalFailure"]), choose.choice(WHEN)
        action = choose.choice(["eks:CreateCluster", "eks:CreateNodegroup", "ec2:Create*", "*:Delete*"])
        said = ("AsgInstanceLaunchFailures", "We currently do not have sufficient capacity")
        choose.choice(
            [
                lambda: self.amazon.fail("*", nth, error, times=times, after=when == "after"),
                lambda: self.amazon.cut(nth, when, times=times),
                lambda: self.amazon.deny(action),
                lambda: self.amazon.break_("node group", choose.choice(["system", "train"]), *said),
                lambda: self.amazon.break_("cluster", CLUSTER, "InternalFailure", "it went wrong"),
                lambda: self.amazon.lag(choose.choice(sorted(LOOKS)), choose.randint(1, 3)),
            ]
        )()

    def clear_faults(self) -> None:
        self.amazon.faults.reset()
        self.amazon.services.catch_up()


class GcpScenario(CloudScenario):
    """The fake Google: a cluster of GKE with all that the kit makes for it.

    Args:
        google: Empty, and led to by gcloud's variables.
        patch: Sets an attribute until the test ends.
    """

    ZONE = "us-central1-c"

    def __init__(self, google, patch) -> None:
        self.google = google
        super().__init__()
        self.modules = {
            name: import_module(f"clouds.google.{name}") for name in ("stack", "machines", "session")
        }
        attempt = self.modules["session"].GcpSession._attempt
        life = self  # the process that asks may be another one at each request

        def counted(session, call, about: str):
            def act():
                number = life.life.begin(about)
                try:
                    return call()
                finally:
                    life.life.end(number)

            return attempt(session, act, about)

        patch(self.modules["session"].GcpSession, "_attempt", counted)
        patch(time, "sleep", lambda seconds: None)  # between two attempts at one request

    def passed(self, seconds: float) -> None:
        self.google.clock.advance(seconds)

    def parts(self) -> list[Resource]:
        stack, machines = self.modules["stack"], self.modules["machines"].MachinePool
        session = self.modules["session"].GcpSession(zone=self.ZONE)
        wanted = machines.of(nodes=2, accelerator="nvidia-tesla-t4")
        return stack.resources(stack.GkePlan(session, self.tags(), wanted))

    def found(self) -> list[Resource]:
        session = self.modules["session"].GcpSession(zone=self.ZONE)
        return self.modules["stack"].discover(session, CLUSTER)

    def left(self) -> list[str]:
        return self.google.left()

    def changes(self, request: str) -> bool:
        method = request.partition(": ")[2].partition(" ")[0].rpartition(".")[2]
        return not method.startswith(("get", "list", "test", "aggregated"))

    def trouble(self, choose: random.Random) -> None:
        nth, when = choose.randint(1, 120), choose.choice(WHEN)
        refusal = ApiError(
            choose.choice(["UNAVAILABLE", "RESOURCE_EXHAUSTED", "INTERNAL"]), "as the test says"
        )
        spoilt = OperationFailure("RESOURCE_EXHAUSTED", "there are no such GPUs", "GCE_STOCKOUT")
        makes = choose.choice(["container.CreateCluster", "container.CreateNodePool"])
        choose.choice(
            [
                lambda: self.google.fail("*", nth, refusal, times=choose.choice([1, 5])),
                lambda: self.google.fail(makes, 1, spoilt),
                lambda: self.google.cut(nth, when),
            ]
        )()

    def clear_faults(self) -> None:
        self.google.clear_faults()
