"""When a machine is short of something, which pods it refuses, and which it evicts first."""

import itertools

import pytest

from localkube.kubelet.pods.eviction import PodUsage, eviction_message, ranked, reclaimable
from localkube.kubelet.resources.pressure import (
    Observation,
    Pressure,
    Threshold,
    default_thresholds,
    observe,
    parse_thresholds,
)

MIB = 1 << 20
DISK = Threshold("nodefs.available", "10%")


def pod(name="p", *, priority=None, request=None, resource="memory", **status):
    requests = {"requests": {resource: request}} if request else {}
    spec = {"containers": [{"name": "main", "resources": requests}]}
    spec |= {} if priority is None else {"priority": priority}
    return {"metadata": {"name": name, "uid": name}, "spec": spec, "status": status}


def test_a_percentage_is_of_the_capacity():
    assert DISK.is_met(Observation(99, 1000))
    assert not DISK.is_met(Observation(100, 1000))
    assert Threshold("memory.available", "100Mi").is_met(Observation(99 * MIB, 1 << 40))


@pytest.mark.parametrize(
    "text", ["memory.available", "disk<10%", "nodefs.available<ten", "pid.available<5.%"]
)
def test_an_invalid_threshold_is_refused(text):
    with pytest.raises(ValueError, match=r"quantity|threshold"):
        parse_thresholds(text)


def test_a_large_disk_is_not_full_when_a_tenth_of_it_is_left():
    assert "nodefs.available<5Gi" in default_thresholds(1 << 40)
    assert "nodefs.available<10%" in default_thresholds(20 << 30)


def test_this_machine_has_all_that_is_measured(tmp_path):
    observations = observe(tmp_path, processes=1 << 20)
    assert {"memory.available", "nodefs.available", "pid.available"} <= observations.keys()
    assert all(0 < signal.available <= signal.capacity for signal in observations.values())


@pytest.fixture
def machine():
    """A machine whose disk and time a test sets."""
    state = {"nodefs.available": Observation(50, 1000), "now": 0.0}
    pressure = Pressure(
        (Threshold("memory.available", "1"), DISK),
        transition=300,
        observe=lambda: {"nodefs.available": state["nodefs.available"]},
        clock=lambda: state["now"],
    )
    return pressure, state


def test_a_condition_is_kept_for_the_transition_period(machine):
    pressure, state = machine
    assert [threshold for threshold, _ in pressure.measure()] == [DISK]
    state |= {"nodefs.available": Observation(500, 1000), "now": 299.0}
    assert not pressure.measure()
    assert pressure.conditions == {"DiskPressure"}
    state["now"] = 300.0
    pressure.measure()
    assert not pressure.conditions


def test_pods_are_refused_while_the_disk_is_short_unless_they_are_critical(machine):
    pressure, _ = machine
    assert pressure.refusal(pod()) is None
    pressure.measure()
    assert pressure.refusal(pod()) == "The node had condition: [DiskPressure]. "
    assert pressure.refusal(pod(priority=2_000_000_000)) is None


def test_short_memory_refuses_pods_of_best_effort_alone():
    pressure = Pressure(
        (Threshold("memory.available", "2"),), observe=lambda: {"memory.available": Observation(1, 9)}
    )
    pressure.measure()
    assert pressure.refusal(pod(qosClass="Burstable")) is None
    assert pressure.refusal(pod(qosClass="BestEffort")) == "The node had condition: [MemoryPressure]. "
    tolerant = pod(qosClass="BestEffort")
    tolerant["spec"]["tolerations"] = [{"key": "node.kubernetes.io/memory-pressure", "operator": "Exists"}]
    assert pressure.refusal(tolerant) is None


def names(usages):
    return [usage.pod["metadata"]["name"] for usage in usages]


RANKED = {  # by resource, whom to evict first: above the request, then the least priority, then the largest
    "memory": [
        PodUsage(pod("far-above"), 9),
        PodUsage(pod("above", request="5"), 9),
        PodUsage(pod("important", priority=7), 90),
        PodUsage(pod("within", request="10"), 9),
    ],
    "ephemeral-storage": [  # what a claim holds beyond its size counts, and what it may hold does not
        PodUsage(pod("overfull"), 0, claims={"data": (90 * MIB, MIB)}),
        PodUsage(pod("files", resource="ephemeral-storage"), 40 * MIB),
        PodUsage(pod("in-its-claim"), 52 << 10, claims={"data": (900 * MIB, 1000 * MIB)}),
    ],
    "pids": [
        PodUsage(pod("many"), 30),
        PodUsage(pod("few"), 3),
        PodUsage(pod("important", priority=7), 90),
    ],
}


@pytest.mark.parametrize("resource", RANKED)
def test_pods_above_their_requests_go_first_then_the_least_priority_then_the_largest(resource):
    for usages in itertools.permutations(RANKED[resource]):
        assert names(ranked(usages, resource)) == names(RANKED[resource])


@pytest.mark.parametrize("missing", [0, 50 * MIB, 10_000 * MIB])
def test_nobody_is_evicted_for_less_than_a_megabyte_or_what_would_not_help(missing):
    usages = [
        PodUsage(pod("small"), 52 << 10),
        PodUsage(pod("medium"), 20 * MIB),
        PodUsage(pod("large"), 200 * MIB),
        PodUsage(pod("overfull"), 0, claims={"data": (90 * MIB, MIB)}),
    ]
    expected = ["medium", "large", "overfull"] if missing < 2000 * MIB else ["large", "overfull"]
    assert names(reclaimable(usages, missing=missing)) == expected


def test_an_eviction_names_the_container_or_the_claim_that_takes_more_than_it_may():
    usage = PodUsage(pod(request="16Mi"), 64 * MIB, {"main": 64 * MIB})
    memory, disk = Threshold("memory.available", "100Mi"), Threshold("nodefs.available", "100Mi")
    assert eviction_message(usage, memory, Observation(50 * MIB, 1 << 30)) == (
        "The node was low on resource: memory. Threshold quantity: 100Mi, available: 50Mi. "
        "Container main was using 64Mi, request is 16Mi, has larger consumption of memory. "
    )
    message = eviction_message(
        PodUsage(pod(), 0, claims={"data": (64 * MIB, MIB)}), disk, Observation(50 * MIB, 1 << 30)
    )
    assert message.endswith("PersistentVolumeClaim data was holding 64Mi, its size is 1Mi. ")
