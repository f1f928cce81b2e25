"""Processes that create and delete a cluster at the fake Google, and may die at any request.

No Kubernetes is behind it: what is done inside a cluster is in `test_gke_cluster`.
"""

import json
import random
import time
from collections.abc import Callable

from google.cloud.container_v1 import types

from kitlib.clusters.shape import Shape
from trainyard_kit.clouds import cluster as shared
from trainyard_kit.clouds.gke.cluster import GkeCluster
from trainyard_kit.clouds.gke.session import GcpSession

from .crash_injection import ProcessLife
from .google.api_errors import ApiError, OperationFailure
from .google.fake import PROJECT, FakeGoogle

NAME, ZONE = "lab", "us-central1-c"
OPTIONS = {"project": PROJECT, "zone": ZONE, "accelerator": "nvidia-tesla-t4", "confirm": True}
PLACE = f"projects/{PROJECT}/locations/{ZONE}"
READS = (":getIamPolicy", ":testIamPermissions")
MAKES = ("container.CreateCluster", "container.CreateNodePool", "compute.networks.insert")


def described(name: str = NAME) -> types.Cluster:
    """A cluster as Google's own message, which knows all of its fields."""
    shown = GcpSession(PROJECT).request("GET", "container", f"{PLACE}/clusters/{name}")
    return types.Cluster.from_json(json.dumps(shown))


class GkeProcesses:
    """A user whose processes may die; the present one counts its requests."""

    def __init__(self, google: FakeGoogle, patch: Callable) -> None:
        self.google, self.cloud, self.life = google, google, ProcessLife()
        attempt, processes = GcpSession._attempt, self

        def counted(session: GcpSession, call: Callable, about: str):
            def act():
                number = processes.life.begin(about)
                try:
                    return call()
                finally:
                    processes.life.end(number)

            return attempt(session, act, about)

        patch(GcpSession, "_attempt", counted)
        patch(time, "sleep", lambda seconds: None)  # between two attempts at one request
        patch(GkeCluster, "clock", google.clock)
        patch(GkeCluster, "_install_addons", lambda cluster, plan: None)
        patch(shared, "release", lambda kube, about: None)

    def create(self, life: ProcessLife | None = None, *, name: str = NAME, **options: object) -> GkeCluster:
        """Create a cluster with two T4, in a process with this life."""
        self.life = life or ProcessLife()
        return GkeCluster.create(name, Shape(2, options=OPTIONS | options))

    def delete(self, life: ProcessLife | None = None, *, name: str = NAME) -> None:
        """Delete a cluster from another machine, which knows its project alone."""
        self.life = life or ProcessLife()
        GkeCluster.delete_at(GcpSession(PROJECT), name)

    def trouble(self, choose: random.Random) -> None:
        """Let something go wrong at one of the next requests, until `clear_faults`."""
        nth, when = choose.randint(1, 120), choose.choice(["before", "after"])
        code = choose.choice(["UNAVAILABLE", "RESOURCE_EXHAUSTED", "INTERNAL", "PERMISSION_DENIED"])
        times, refusal = choose.choice([1, 5]), ApiError(code, "as the test says")
        failure = OperationFailure("RESOURCE_EXHAUSTED", "there are no such GPUs", "GCE_STOCKOUT")
        choose.choice(
            [
                lambda: self.google.fail("*", nth, refusal, times=times),
                lambda: self.google.fail(choose.choice(MAKES), 1, failure, times=times),
                lambda: self.google.fail("container.Delete*", 1, failure),
                lambda: self.google.cut(nth, when),
                lambda: self.google.clock.after(
                    choose.randint(1, 900), lambda: self.google.container.maintain(900)
                ),
            ]
        )()

    def clear_faults(self) -> None:
        """Let nothing go wrong any more."""
        self.google.clear_faults()

    def begin_again(self) -> None:
        """Go on with the same cloud: what was there is deleted."""
        assert self.google.left() == []

    @staticmethod
    def changes_something(request: str) -> bool:
        """Whether a request, as sessions name it, changes something."""
        return " GET " not in request and not request.endswith(READS)
