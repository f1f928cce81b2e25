"""The tables of `cluster.top()`, from what metrics-server answers."""

from kitlib.metrics.node_usage import node_usage, pod_usage


def figures(name, *usages):
    containers = [{"name": f"c{number}", "usage": usage} for number, usage in enumerate(usages)]
    return {"metadata": {"name": name}, "containers": containers, "usage": usages[0] if usages else {}}


def node(name, **allocatable):
    return {"metadata": {"name": name}, "status": {"allocatable": allocatable}}


def test_nodes_have_what_they_use_and_its_share():
    table = node_usage(
        [figures("node-0", {"cpu": "250123456n", "memory": "512Mi"})],
        [node("node-1", cpu="1", memory="2Gi"), node("node-0", cpu="500m", memory="2Gi")],
    )
    assert [tuple(row.values()) for row in table] == [
        ("node-0", "0.25", "50%", "512 MiB", "25%"),
        ("node-1", "-", "-", "-", "-"),
    ]


def test_a_pod_has_the_sum_of_its_containers_and_the_busiest_comes_first():
    small, large = {"cpu": "1m", "memory": "1Mi"}, {"cpu": "1500m", "memory": "1Gi"}
    table = pod_usage([figures("idle", small), figures("busy", large, small)])
    assert [tuple(row.values()) for row in table] == [("busy", "1.501", "1 GiB"), ("idle", "0.001", "1 MiB")]
    assert "no metrics yet" in repr(pod_usage([]))
