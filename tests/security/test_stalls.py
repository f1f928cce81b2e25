"""On a real cluster: a pod whose work blocks the kubelet's loop is not started a third time.

No such work is known, so the kubelet of this cluster has some of its own for pods of one name.
"""

import pytest

from ..node.clusters import Pods, pod, running_cluster, state_home
from ..node.restrictions import REPOSITORY

pytestmark = pytest.mark.namespaces
STALL = """
import sys

if "localkube.kubelet" in sys.orig_argv:
    from localkube.kubelet.volumes.volume_manager import VolumeManager

    prepare = VolumeManager.prepare

    async def stand_still(self, pod):
        while pod["metadata"]["name"] == "guilty":
            pass
        return await prepare(self, pod)

    VolumeManager.prepare = stand_still
"""


@pytest.mark.slow
def test_a_pod_that_blocks_the_event_loop_twice_fails(request, tmp_path):
    tmp_path.joinpath("sitecustomize.py").write_text(STALL)
    with (
        state_home(request.config.cache.mkdir("security")) as home,
        running_cluster(
            "--nodes", "1", home=home, env={"PYTHONPATH": str(tmp_path) + ":" + str(REPOSITORY)}
        ) as cluster,
        Pods(cluster) as pods,
    ):
        kubelet = cluster.process("localkube.kubelet")
        innocent = pods.running(pod("sleep 600"))
        ended = pods.finish(pod("true", name="guilty"))["status"]
        assert (ended["phase"], ended["reason"]) == ("Failed", "KubeletStalled"), ended
        assert "blocked the kubelet 2 times" in ended["message"]
        assert cluster.process("localkube.kubelet") != kubelet
        log = cluster.root.joinpath("logs", "kubelet.log").read_text()
        assert log.count("in stand_still") == 2
        assert pods.output(pod("echo goes on")) == "goes on\n"
        known = cluster.core.read_namespaced_pod(innocent["metadata"]["name"], "default").status
        assert known.phase == "Running"
        assert not known.container_statuses[0].restart_count
