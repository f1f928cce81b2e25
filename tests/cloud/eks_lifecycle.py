"""What the tests of EKS clusters share: a plan, and its life in simulated time."""

from collections import Counter
from datetime import timedelta
from functools import cache

from clouds.aws.plan import EksPlan
from clouds.aws.session import AwsSession
from clouds.aws.stack import all_resources, resources
from clouds.reconciler import reconcile
from clouds.tags import Tags

from .simulated_clock import SimulatedClock

REGION = "us-west-2"
READING = ("Describe", "List", "Get", "BatchGet", "Head")


@cache
def session(endpoint):
    """Return the way to a fake Amazon; making its clients takes longer than a cluster."""
    return AwsSession(REGION)


class EksLifecycle:
    """A cluster that is made and deleted on a fake Amazon, whose time passes as the kit waits."""

    def __init__(self, amazon, name="lab", **more):
        self.amazon, self.clock = amazon, SimulatedClock(amazon.clock.advance)
        tags = Tags(name, "ada", "class", amazon.clock.date() + timedelta(hours=4))
        self.plan = EksPlan(session(amazon.endpoint), tags, zones=(f"{REGION}a", f"{REGION}b"), **more)

    def create(self, resources_=None):
        parts = resources(self.plan) if resources_ is None else resources_
        reconcile.bring_up(parts, title="cluster lab", resume="create it again", clock=self.clock)

    def delete(self):
        reconcile.take_down(
            all_resources(self.plan), title="cluster lab", resume="delete again", clock=self.clock
        )

    def kinds(self):
        """Return how many there are of each kind."""
        return Counter(each.kind for each in self.amazon.left())

    def written(self):
        """Return the calls so far that changed something."""
        return [
            call.action
            for call in self.amazon.calls
            if call.outcome == "ok" and not call.operation.startswith(READING)
        ]
