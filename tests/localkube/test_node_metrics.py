"""What a node says of its containers: Prometheus's text, from given figures."""

import asyncio
import threading

import pytest

from localkube.kubelet.resources.node_settings import NodeSettings
from localkube.kubelet.resources.proc_usage import Usage
from localkube.kubelet.resources.stats import RunningContainer, StatsProvider


class Clock:
    now = 1000.0

    def __call__(self):
        return self.now


@pytest.fixture
def metered():
    """Return a meter of two nodes, its clock, what runs where, and what each container uses."""
    nodes = [NodeSettings(name=f"node-{n}", index=n, cpus=1, memory=1 << 30, storage=1) for n in (0, 1)]
    running = {"node-0": [container("one"), container("one", name="side"), container("two")], "node-1": []}
    use = {container.identity: Usage(2.0, 1 << 20) for container in running["node-0"]}
    clock = Clock()
    meter = StatsProvider(nodes, running=running.__getitem__, control_groups=use.get, clock=clock)
    return meter, clock, running, use


def container(pod, name="main"):
    meta = {"name": pod, "namespace": "lab", "uid": pod}
    return RunningContainer(f"{pod}.{name}.0", name, {"metadata": meta}, pid=1, started=900.5)


async def series(meter, address="10.244.254.1"):
    lines = (await meter.resource(meter.node(address))).splitlines()
    return {line.split(" ")[0]: line.split(" ")[1:] for line in lines if not line.startswith("#")}


async def test_a_node_without_pods_uses_its_share_of_the_kubelet(metered):
    samples = await series(metered[0], "10.244.254.2")
    assert float(samples["node_cpu_usage_seconds_total"][0]) > 0
    assert float(samples["node_memory_working_set_bytes"][0]) > 1 << 20
    assert not any(key.startswith("container") for key in samples)


async def test_a_node_keeps_the_time_of_containers_that_have_gone(metered):
    meter, clock, running, _ = metered
    before = float((await series(meter))["node_cpu_usage_seconds_total"][0])
    running["node-0"].clear()
    clock.now += 10
    assert float((await series(meter))["node_cpu_usage_seconds_total"][0]) >= before >= 6.0


async def test_one_look_serves_all_nodes_for_a_second(metered):
    meter, clock, _, use = metered
    await meter.measure()
    use["two.main.0"] = Usage(9.0, 1)
    clock.now += 0.5
    assert (await meter.measure()).usage["two.main.0"].cpu == 2.0
    clock.now += 0.6
    assert (await meter.measure()).usage["two.main.0"].cpu == 9.0


async def test_processes_are_looked_at_beside_the_event_loop(metered):
    meter, _, running, use = metered
    threads = []
    meter._control_groups = lambda identity: threads.append(threading.current_thread()) or use[identity]
    await asyncio.gather(*(meter.measure() for _ in range(8)))
    assert len(threads) == len(running["node-0"])
    assert threading.main_thread() not in threads
