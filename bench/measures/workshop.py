"""Create and delete a workshop for thirty: namespace, quota, roles and kubeconfig for each.

Bounded by the API server: about twenty requests per attendee, eight attendees at a time.
"""

import time

from bench.lab import Lab
from bench.results import Limit, Result
from trainyard_kit import workshop

ATTENDEES, QUICK_ATTENDEES = 30, 4


def measure(lab: Lab) -> list[Result]:
    """Create and delete workshops, one after the other."""
    count, seconds = QUICK_ATTENDEES if lab.quick else ATTENDEES, []
    cluster = lab.ours
    for number in range(lab.rounds):
        lab.report(f"a workshop for {count}, {number + 1} of {lab.rounds}")
        start = time.monotonic()
        try:
            workshop.create(attendees=count, cluster=cluster)
            seconds.append(time.monotonic() - start)
        finally:
            workshop.delete(cluster=cluster)
    what = f"workshop.create: {count} attendees are ready"
    return [Result(what, "s", tuple(seconds), limit=Limit(25, of="value", unit="s"))]
