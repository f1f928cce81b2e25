"""What a node hands out: addresses, each to one pod at a time."""

import pytest

from localkube.kubelet.nodes.node import NodePool
from localkube.kubelet.resources.node_settings import NodeSettings
from localkube.runtime.client import RuntimeCallError


def pool():
    return NodePool(NodeSettings(name="node-0", index=0, cpus=1, memory=2**30, storage=2**30))


def test_each_pod_keeps_an_own_address_until_its_release():
    node = pool()
    addresses = {uid: node.address(uid) for uid in map(str, range(253))}
    assert len(set(addresses.values())) == 253
    assert {uid: node.address(uid) for uid in addresses} == addresses
    with pytest.raises(RuntimeCallError, match=r"no IP addresses available.*10\.244\.1\."):
        node.address("one too many")
    node.release("7")
    assert node.address("one too many")
    assert pool().address("pod", requested="10.244.1.77") == "10.244.1.77"  # that it had before a restart


def test_an_address_is_given_again_as_late_as_possible():
    node = pool()
    first = node.address("first")
    node.release("first")
    later = [node.address(str(number)) for number in range(252)]
    assert first not in later
    assert node.address("last") == first
