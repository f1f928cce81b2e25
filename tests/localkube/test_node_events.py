"""At which pace events are told."""

import itertools
from dataclasses import replace

import pytest

from localkube.kubelet.events import COMBINED, EventCorrelator, RateLimiter


def test_a_burst_goes_at_once_and_the_rest_at_a_pace_also_after_a_rest():
    now = [0.0]
    pace = RateLimiter(3, 10, clock=lambda: now[0])
    waits = []
    for _ in range(6):
        waits.append(round(pace.wait(), 3))
        now[0] += waits[-1]
    assert waits == [0, 0, 0, 0.1, 0.1, 0.1]
    now[0] += 3600
    assert [round(pace.wait(), 3) for _ in range(4)] == [0, 0, 0, 0.1]


# Upstream's table: TestEventCorrelator of client-go's tools/record/events_cache_test.go, v0.37.2.


def event(reason, message, *, field="spec.containers{mycontainer}", name="my-pod", namespace="my-ns"):
    item = {"kind": "Pod", "name": name, "namespace": namespace, "uid": "C934D34AFB20242", "fieldPath": field}
    source = {"component": "kubelet", "host": "kublet.node1"}
    return {
        "involvedObject": item,
        "source": source,
        "type": "Normal",
        "reason": reason,
        "message": message,
        "metadata": {"name": f"{name}.1", "namespace": namespace},
    }


FIRST, DUPLICATE = event("first", "i am first"), event("duplicate", "me again")
UNIQUE = event("unique", "snowflake")
SIMILAR = event("similar", "similar message", field="spec.containers{container1}")
OTHER_CONTAINER = event("similar", "similar message", field="spec.containers{container2}")
UNIQUES = [event(f"reason-{n}", f"message-{n}", name=f"pod-{n}", namespace=f"ns-{n}") for n in range(30)]


def similar(number):
    return [SIMILAR | {"message": f"similar message-{n}-similar message"} for n in range(number)]


SCENARIOS = {
    "create-a-single-event": ([], FIRST, (FIRST["message"], 1), 5),
    "the-same-event-should-just-count": ([DUPLICATE], DUPLICATE, ("me again", 2), 5),
    "even-if-more-than-aggregate": ([DUPLICATE] * 10, DUPLICATE, ("me again", 11), 30),
    "is-spam-if-happens-too-frequently": ([DUPLICATE] * 26, DUPLICATE, None, 1),
    "create-many-unique-events": (UNIQUES, UNIQUE, ("snowflake", 1), 5),
    "similar-events-should-aggregate-event": (similar(9), SIMILAR, (COMBINED + "similar message", 1), 5),
    "many-times-should-count-the-aggregate": (similar(10), SIMILAR, (COMBINED + "similar message", 2), 5),
    "from-different-containers-do-not-aggregate": ([OTHER_CONTAINER], SIMILAR, ("similar message", 1), 5),
    "interval-is-greater-than-aggregate-interval": (similar(9), SIMILAR, ("similar message", 1), 600),
}


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_events_are_counted_combined_and_left_out_as_upstream_does(scenario):
    before, last, expected, interval = SCENARIOS[scenario]
    ticks = itertools.count(step=interval)  # upstream's clock moves with each look at it
    correlator = EventCorrelator(clock=lambda: float(next(ticks)))
    result = None
    for body in [*before, last]:
        result = None
        if correlator.admit(body):
            result = correlator.correlate(body)
            correlator.posted(replace(result, name=result.name or body["metadata"]["name"]))
    assert (result and (result.message, result.count)) == expected


@pytest.mark.parametrize(("reason", "interval"), [("Failed", 2), ("BackOff", 10), ("Unhealthy", 1)])
def test_an_object_has_25_events_and_then_one_in_five_minutes(reason, interval):
    now = [0.0]
    correlator, admitted = EventCorrelator(clock=lambda: now[0]), []
    while now[0] < 25 * interval + 900:
        if correlator.admit(event(reason, "again")):
            admitted.append(now[0])
        now[0] += interval
    assert admitted[:25] == [number * interval for number in range(25)]
    assert 3 <= len(admitted[25:]) <= 4
    assert correlator.admit(event(reason, "again") | {"type": "Warning"})


def test_an_object_that_is_gone_leaves_nothing_behind():
    correlator = EventCorrelator()
    correlator.admit(FIRST)
    correlator.posted(correlator.correlate(FIRST))
    correlator.forget(FIRST["involvedObject"]["uid"])
    assert correlator == EventCorrelator(clock=correlator.clock)
