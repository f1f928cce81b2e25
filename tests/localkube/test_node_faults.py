"""Nodes that are stopped and isolated while nothing can be written: what was refused is not half done."""

import pytest

from localkube.errors import LocalClusterError
from localkube.kubelet.nodes.virtual_node import ISOLATED, RUNNING, STOPPED, NodeStates
from localkube.kubelet.pods.node_faults import NodeFaults


class Recorded:
    """A node, the runtime's client and the pods of a node; ``calls`` has what was asked of them."""

    def __init__(self):
        self.name, self.state, self.calls = "node-0", RUNNING, []

    @property
    def is_reachable(self):
        return self.state == RUNNING

    def network_place(self):
        return {}

    def disconnect(self, state):
        self.state = state

    def connect(self):
        self.state = RUNNING

    def start_heartbeat(self):
        self.calls.append("heartbeat")

    async def register(self):
        self.calls.append("register")

    async def call(self, verb, **request):
        self.calls.append(verb)

    async def kill_all(self, node):
        self.calls.append("kill")

    async def reconcile(self, node):
        self.calls.append("reconcile")


@pytest.fixture
def node():
    return Recorded()


@pytest.fixture
def folder(tmp_path):
    path = tmp_path / "states"
    path.mkdir()
    return path


@pytest.fixture
def faults(node, folder):
    return NodeFaults({node.name: node}, states=NodeStates(folder / "states.json"), client=node, pods=node)


@pytest.mark.parametrize("verb", ["stop", "isolate"])
async def test_a_node_that_cannot_be_written_down_goes_on(faults, node, folder, verb):
    folder.rmdir()
    with pytest.raises(LocalClusterError, match="cannot write"):
        await faults.switch(verb, node.name)
    assert (node.state, node.calls) == (RUNNING, [])


@pytest.mark.parametrize(
    ("verb", "back", "state"), [("stop", "start", STOPPED), ("isolate", "reconnect", ISOLATED)]
)
async def test_a_node_whose_return_was_refused_returns_when_it_is_asked_again(
    faults, node, folder, verb, back, state
):
    await faults.switch(verb, node.name)
    away = folder.rename(folder.with_name("away"))
    with pytest.raises(LocalClusterError, match="cannot write"):
        await faults.switch(back, node.name)
    assert node.state == state
    away.rename(folder)
    await faults.switch(back, node.name)
    assert node.state == RUNNING
    assert node.calls[-3:] == ["register", "heartbeat", "reconcile"]
