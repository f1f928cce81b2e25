"""The first steps of a user who is not root: the same cluster, in a user namespace.

When root runs the tests, the user nobody takes these steps, in a mount namespace in which the interpreter can
be read. When somebody else runs them, the whole suite is already without privileges.
"""

import os
import tempfile
from pathlib import Path

import pytest
from soak.footprint import Footprint

from . import restrictions
from .clusters import PATIENCE, Refused, localkube, pod, python, running_cluster, state
from .terminals import Terminal
from .test_network_policies import policy
from .test_pods_host_network import NODES, SERVE, ports_of, replies, service
from .unprivileged import enter_as_nobody, nobodys

pytestmark = pytest.mark.skipif(
    os.getuid() != 0,
    reason="NOT LEFT OUT: this user is not root, so every other test of a cluster is without privileges",
)


@pytest.fixture(scope="module")
def home():
    """A home of the user nobody."""
    with tempfile.TemporaryDirectory(prefix="nobody-") as path:
        os.chown(path, restrictions.NOBODY, restrictions.NOBODY)
        yield Path(path)


@pytest.fixture(scope="module")
def enter(home):
    return enter_as_nobody(home)


@pytest.fixture(scope="module")
def cluster(home, enter):
    with running_cluster("--nodes", "2", home=home, enter=enter, **nobodys(home)) as running:
        yield running


def test_every_process_of_the_cluster_is_the_users(cluster):
    owners = {process.uids().real for process in cluster.processes()}
    assert owners == {restrictions.NOBODY}
    assert cluster.status["mode"] == "namespaces"


def test_a_job_completes_and_its_output_can_be_read(cluster):
    cluster.kubectl("create", "job", "first", "--image=busybox", "--", "sh", "-c", "echo done by $(id -u)")
    cluster.kubectl("wait", "--for=condition=Complete", "job/first", f"--timeout={PATIENCE}s")
    assert cluster.kubectl("logs", "job/first") == "done by 0\n"


def test_commands_run_in_pods_with_and_without_a_terminal_and_files_are_copied(cluster, pods, home):
    name = pods.running(pod("echo up; exec sleep 600"))["metadata"]["name"]
    assert cluster.kubectl("exec", name, "--", "sh", "-c", "hostname; cat /proc/1/comm") == f"{name}\nsleep\n"
    with Terminal(cluster.kubectl_command("exec", "-it", name, "--", "sh"), enter=cluster.enter) as terminal:
        terminal.type("tty; exit 3\r")
        terminal.until(r"/dev/pts/\d+\r\n")
        assert terminal.wait() == 3
    (home / "sent").write_text("copied\n")
    cluster.kubectl("cp", str(home / "sent"), f"{name}:/tmp/sent")
    assert cluster.kubectl("exec", name, "--", "cat", "/tmp/sent") == "copied\n"
    assert cluster.kubectl("logs", name) == "up\n"


def test_a_pod_cannot_write_on_the_host_and_is_held_to_its_memory(pods):
    assert pods.output(pod("touch /usr/of-a-pod 2>/dev/null || echo refused")) == "refused\n"
    hog = "held = bytearray(200 << 20); held[::4096] = b'x' * len(held[::4096]); import time; time.sleep(600)"
    finished = pods.finish(pod(main=python(hog) | {"resources": {"limits": {"memory": "64Mi"}}}))
    assert state(finished)["terminated"]["reason"] == "OOMKilled"


def test_the_users_home_without_rights_is_named(home, enter):
    place = home / "closed"
    place.mkdir(mode=0o500, exist_ok=True)
    with pytest.raises(Refused) as caught:
        localkube("create", "lab", "--nodes", "1", home=place, preexec_fn=enter, cwd="/")
    assert "Permission denied" in caught.value.error["what"]
    assert str(place) in caught.value.error["about"]


def test_networks_of_nodes_and_policies_are_the_users_own(cluster, pods):
    with service(cluster, type="NodePort") as name:
        main = python(SERVE) | {
            "args": ["8080", "web"],
            "readinessProbe": {"tcpSocket": {"port": 8080}, "periodSeconds": 1},
        }
        running = pods.running(pod(main=main, labels={"app": name}))
        at = f"tcp:{running['status']['podIP']}:8080"
        words = [at, f"tcp:{name}:80", f"tcp:{NODES[1]}:{ports_of(cluster, name)['tcp'].node_port}"]
        assert replies(pods, *words) == ["web"] * 3
        assert replies(pods, at, hostNetwork=True) == ["web"]
        with policy(cluster, podSelector={"matchLabels": {"app": name}}):
            assert replies(pods, *(f"!{word}" for word in words)) == ["nothing"] * 3


def test_deleting_leaves_nothing_even_after_the_supervisor_was_killed(home, cluster):
    traces = Footprint.of(cluster.root)
    cluster.processes()[0].kill()
    localkube("delete", cluster.name, home=home, preexec_fn=cluster.enter, cwd="/")
    assert traces.leftovers() == []
