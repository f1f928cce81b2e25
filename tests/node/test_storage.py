"""What containers write outside of volumes, and the disk that nodes offer."""

import pytest

from .clusters import container, eventually, pod


def test_the_places_that_a_container_writes_to_are_on_disk_and_new_for_each_run(cluster, pods):
    places = "/tmp /run /var/tmp"
    script = (
        f"cd /; stat -f -c %T {places}; ls -A /tmp /var/tmp; touch /tmp/left /run/left /var/tmp/left; exit 1"
    )
    name = pods.create(pod(script, restartPolicy="OnFailure"))
    restarted = pods.until(name, lambda pod: container(pod)["restartCount"] > 0)
    first = pods.logs(name, previous=True)
    assert "tmpfs" not in first
    eventually(lambda: pods.logs(name), expected=first)  # else something is left of the first run
    written = cluster.root / "pods" / restarted["metadata"]["uid"] / "writable"
    eventually(lambda: len(list(written.iterdir())), expected=0)


@pytest.mark.namespaces
def test_everybody_in_a_container_may_write_to_them(pods):
    assert pods.output(pod("stat -c %a /tmp /run /var/tmp")).split() == ["1777"] * 3


def test_nodes_offer_their_disk(cluster):
    for node in cluster.core.list_node().items:
        assert node.status.allocatable["ephemeral-storage"].endswith("Ki")
