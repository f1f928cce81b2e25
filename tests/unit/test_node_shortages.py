"""What is short, who uses most of it, and the command that ends that."""

import json

import pytest

from kitlib.clusters import nodes
from localkube.kubelet.pods.eviction import PodUsage
from localkube.kubelet.pods.shortages import (
    ANNOTATION,
    ShortageReporter,
    is_short,
    of_machine,
    of_secrets,
)
from localkube.kubelet.resources.pressure import Observation
from localkube.kubelet.volumes.volume_shares import DISK, MEMORY, VolumeShares

MIB = 1 << 20


def pod(name, namespace="attendee-ada"):
    return {"metadata": {"name": name, "namespace": namespace, "uid": name}, "spec": {"containers": []}}


@pytest.mark.parametrize(
    ("signal", "available", "short"),
    [("memory.available", 20, False), ("memory.available", 10, True), ("pid.available", 40, True)],
)
def test_it_is_said_before_pods_are_evicted(signal, available, short):
    assert is_short(signal, Observation(available, 100)) is short


def test_of_a_large_disk_ten_gigabytes_are_not_short():
    assert not is_short("nodefs.available", Observation(11 << 30, 1 << 40))
    assert is_short("nodefs.available", Observation(9 << 30, 1 << 40))


def test_the_largest_user_is_named_with_the_command_that_ends_it():
    usages = [PodUsage(pod("small"), 5 * MIB), PodUsage(pod("large", "attendee-bob"), 50 * MIB)]
    item = of_machine("memory.available", Observation(10 * MIB, 100 * MIB), usages)
    assert item["what"] == ("10Mi of 100Mi are left; pod large of namespace attendee-bob uses most, 50Mi")
    assert item["fix"] == "kubectl delete pod large -n attendee-bob"


def test_a_claim_that_holds_most_is_named_in_place_of_its_pod():
    usages = [PodUsage(pod("writes"), MIB, claims={"data": (90 * MIB, MIB)})]
    item = of_machine("nodefs.available", Observation(1, 100 * MIB), usages)
    assert item["fix"] == "kubectl delete pvc data -n attendee-ada"


def test_of_files_the_claim_with_most_is_named_by_their_number():
    usages = [PodUsage(pod("one"), 10), PodUsage(pod("writes"), 20, claims={"data": (700, 700)})]
    assert is_short("nodefs.inodesFree", Observation(100, 1000))
    item = of_machine("nodefs.inodesFree", Observation(100, 1000), usages)
    assert item["what"] == "100 of 1000 are left; pvc data of namespace attendee-ada uses most, 700"
    assert item["fix"] == "kubectl delete pvc data -n attendee-ada"


def test_a_namespace_that_has_most_of_its_memory_for_secrets_is_named():
    shares = VolumeShares({MEMORY: 80 * MIB, DISK: 80 * MIB})
    shares.reserve("one", {"v": (MEMORY, 6 * MIB)}, namespace="attendee-ada")
    shares.reserve("two", {"v": (MEMORY, 2 * MIB)}, namespace="attendee-ada")
    shares.reserve("other", {"v": (MEMORY, 2 * MIB)}, namespace="attendee-bob")
    (item,) = of_secrets(shares, [pod("one"), pod("two"), pod("other", "attendee-bob")])
    assert item["fix"] == "kubectl delete pod one -n attendee-ada"
    assert "8Mi of the 10Mi" in item["what"]


async def test_nodes_say_it_as_long_as_it_lasts_and_the_kit_shows_it():
    observations, written = {"memory.available": Observation(5, 100)}, []

    async def usages(resource):
        assert resource == "memory"
        return [PodUsage(pod("greedy"), 50 * MIB)]

    async def annotate(annotations):
        written.append(annotations[ANNOTATION])

    reporter = ShortageReporter(
        observe=lambda: observations, usages=usages, pods=list, shares=VolumeShares(), annotate=annotate
    )
    await reporter._report(await reporter.measure())
    await reporter._report(await reporter.measure())
    observations["memory.available"] = Observation(90, 100)
    await reporter._report(await reporter.measure())
    warning, ended = written
    assert json.loads(warning)[0]["fix"] == "kubectl delete pod greedy -n attendee-ada" and ended is None
    node = {"metadata": {"name": "node-0", "annotations": {ANNOTATION: warning}}}
    (line,) = nodes.shortages([node, node])
    assert line.startswith("memory: ") and line.endswith("; kubectl delete pod greedy -n attendee-ada")


def test_pressure_of_a_clouds_node_is_said_as_well():
    conditions = [{"type": "DiskPressure", "status": "True"}, {"type": "Ready", "status": "True"}]
    node = {"metadata": {"name": "ip-10-0-0-1"}, "status": {"conditions": conditions}}
    assert nodes.shortages([node]) == ("disk: node ip-10-0-0-1 reports DiskPressure; kubectl get pvc -A",)
