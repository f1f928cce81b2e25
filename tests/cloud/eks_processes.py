"""Processes that create and delete a cluster at the fake AWS, and may die at any request.

No Kubernetes is behind it: what is done inside a cluster is in `test_eks_provider`.
"""

import random
from collections.abc import Callable

from kitlib.clusters.shape import Shape
from trainyard_kit.clouds import cluster as shared
from trainyard_kit.clouds.eks import stacks
from trainyard_kit.clouds.eks.cluster import EksCluster
from trainyard_kit.clouds.eks.session import AwsSession

from .aws import FakeAws
from .crash_injection import ProcessLife

NAME, REGION = "lab", "us-west-2"
OPTIONS = {"region": REGION, "instance_type": "m5.xlarge", "confirm": True}
READS = ("Describe", "List", "Get", "Head", "BatchGet", "Simulate")
STOCKOUT = (
    "AsgInstanceLaunchFailures",
    "Could not launch On-Demand Instances. InsufficientInstanceCapacity - We currently do not have "
    "sufficient m5.xlarge capacity in the Availability Zone you requested (us-west-2a).",
)
_clients: dict[tuple[str, str, str], object] = {}  # it takes a second to make them


class EksProcesses:
    """A user whose processes may die; the present one counts its requests."""

    def __init__(self, aws: FakeAws, patch: Callable) -> None:
        self.aws, self.cloud, self.life = aws, aws, ProcessLife()
        self.client, self._number = AwsSession.client, -1
        patch(AwsSession, "client", lambda session, service: self._counted(session, service))
        patch(EksCluster, "clock", aws.clock)
        patch(stacks, "POLL_SECONDS", 60.0)  # a third of the requests, of which a cluster has hundreds
        patch(EksCluster, "_install_addons", lambda cluster, plan: None)
        patch(shared, "release", lambda kube, about: None)

    def _counted(self, session: AwsSession, service: str):
        key = (self.aws.endpoint, session.region, service)
        if key not in _clients:
            client = _clients[key] = self.client(session, service)
            client.meta.events.register("before-send", lambda **about: self.owner.before(**about))
            client.meta.events.register("response-received", lambda **_: self.owner.after())
        EksProcesses.owner = self
        return _clients[key]

    def before(self, event_name: str, **_: object) -> None:
        """Count a request that is about to be sent."""
        self._number = self.life.begin(event_name.removeprefix("before-send."))

    def after(self) -> None:
        """Note that it took effect."""
        self.life.end(self._number)

    def create(
        self, life: ProcessLife | None = None, *, name: str = NAME, nodes: int = 2, **options
    ) -> EksCluster:
        """Create a cluster, in a process with this life."""
        self.life = life or ProcessLife()
        return EksCluster.create(name, Shape(nodes, options=OPTIONS | options))

    def delete(self, life: ProcessLife | None = None, *, name: str = NAME) -> None:
        """Delete a cluster from another machine, which knows its region alone."""
        self.life = life or ProcessLife()
        EksCluster.delete_at(AwsSession(REGION), name)

    def changes(self) -> list[str]:
        """Return the requests so far that changed something."""
        writes = [call for call in self.aws.calls if not call.reads and call.outcome == "ok"]
        return [call.action for call in writes]

    def trouble(self, choose: random.Random) -> None:
        """Let something go wrong at one of the next requests, until `clear_faults`."""
        nth, times = choose.randint(1, 150), choose.choice([1, 1, 5])
        when = choose.choice(["before", "after"])
        error = choose.choice(["Throttling", "InternalFailure", "ServiceUnavailable"])
        inside = choose.choice(["ec2:CreateVpc", "eks:Create*", "iam:CreateRole", "*:Delete*", "ec2:*"])
        noun, name = choose.choice([("Nodegroup", "train"), ("Nodegroup", "system"), ("Cluster", NAME)])
        choose.choice(
            [
                lambda: self.aws.fail("*", nth, error, times=times, after=when == "after"),
                lambda: self.aws.fail(inside, choose.randint(1, 5), "AccessDenied", inside=True),
                lambda: self.aws.cut(nth, when),
                lambda: self.aws.break_(noun, name, *STOCKOUT),
            ]
        )()

    def clear_faults(self) -> None:
        """Let nothing go wrong any more."""
        self.aws.faults.reset()
        self.aws.eks.reset()

    def begin_again(self) -> None:
        """Empty the cloud; its time is now again."""
        self.aws.reset()

    @staticmethod
    def changes_something(request: str) -> bool:
        """Whether a request, ``cloudformation.CreateStack``, changes something."""
        return not request.partition(".")[2].startswith(READS)
