"""What pods do to their cluster, when it is this user's, and when it is an unprivileged user's."""

from contextlib import chdir
from pathlib import Path

import pytest
import websocket

from localkube.kubelet.resources.cgroups import PIDS_LIMIT, RECORD

from ..node.clusters import eventually, pod, python
from ..node.workloads import claim
from .users import as_user

ETCD_PORT = "2379"

DIG = """
import os
here = os.open({place!r}, os.O_RDONLY)
for _ in range(1200):
    os.mkdir("d" * 40, dir_fd=here)
    below = os.open("d" * 40, os.O_RDONLY, dir_fd=here)
    os.close(here)
    here = below
os.close(os.open("file", os.O_CREAT | os.O_WRONLY, dir_fd=here))
"""


def digging(kind, **volume):
    """Return a pod that leaves a deep directory in a volume."""
    main = python(DIG.format(place="/deep")) | {"volumeMounts": [{"name": kind, "mountPath": "/deep"}]}
    return pod(main=main, volumes=[{"name": kind, **volume}])


def test_a_deep_directory_in_an_emptydir_goes_with_its_pod(cluster, pods):
    finished = pods.finish(digging("scratch", emptyDir={}))
    assert finished["status"]["phase"] == "Succeeded"
    uid, name = finished["metadata"]["uid"], finished["metadata"]["name"]
    assert (cluster.root / "pods" / uid / "volumes" / "scratch").is_dir()
    cluster.core.delete_namespaced_pod(name, "default", grace_period_seconds=0)
    eventually((cluster.root / "pods" / uid).exists, expected=False)


def test_a_claim_with_a_deep_directory_is_reclaimed_and_the_next_one_is_bound(cluster, pods):
    claim(cluster, "deep")
    finished = pods.finish(digging("claimed", persistentVolumeClaim={"claimName": "deep"}))
    assert finished["status"]["phase"] == "Succeeded"
    cluster.core.delete_namespaced_pod(finished["metadata"]["name"], "default", grace_period_seconds=0)
    volume = cluster.core.read_namespaced_persistent_volume_claim("deep", "default").spec.volume_name
    cluster.core.delete_namespaced_persistent_volume_claim("deep", "default")
    eventually((cluster.root / "volumes" / volume).exists, expected=False)
    claim(cluster, "next")
    volumes = [{"name": "claimed", "persistentVolumeClaim": {"claimName": "next"}}]
    assert pods.output(pod("echo bound", volumes=volumes)) == "bound\n"


def test_a_kubelet_starts_beside_deep_directories_that_nobody_owns(cluster, pods):
    left = Path("pods", "00000000-0000-0000-0000-000000000000", "volumes", "scratch")
    code, owner = DIG.format(place=str(left)), cluster.root.stat().st_uid
    with chdir(cluster.root):  # to which its owner may have no path, below root's home
        as_user(owner, lambda: (left.mkdir(parents=True), exec(code, {})))
    before = cluster.process("localkube.kubelet")
    before.kill()
    assert pods.output(pod("echo works")) == "works\n"
    assert cluster.process("localkube.kubelet").pid != before.pid
    eventually((cluster.root / left.parents[1]).exists, expected=False)


def test_a_port_of_a_pod_that_has_ended_is_not_the_clusters_own(cluster, pods):
    ended = pods.finish(pod("true"))["metadata"]["name"]
    api = cluster.core.api_client.configuration
    server = api.host.replace("https", "wss", 1)
    with pytest.raises(websocket.WebSocketBadStatusException) as refused:
        websocket.create_connection(
            f"{server}/api/v1/namespaces/default/pods/{ended}/portforward?ports={ETCD_PORT}",
            subprotocols=["v4.channel.k8s.io"],
            sslopt={"certfile": api.cert_file, "keyfile": api.key_file, "ca_certs": api.ssl_ca_cert},
        )
    answer = f'pod not found ("{ended}_default")'.encode()
    assert (refused.value.status_code, refused.value.resp_body) == (500, answer)


WITHOUT_A_CERTIFICATE = """
import socket, ssl
context = ssl._create_unverified_context()
for port in (2379, 6443, 10250):
    try:
        with socket.create_connection(("127.0.0.1", port), 3) as plain, context.wrap_socket(plain) as server:
            server.sendall(b"GET /pods HTTP/1.1\\r\\nHost: localhost\\r\\n\\r\\n")
            print(port, (server.recv(100).split() or ["", b"closed"])[1].decode())
    except OSError as error:
        print(port, getattr(error, "reason", None) or error.strerror or error)
"""


def test_the_kubelet_requires_a_certificate_in_the_nodes_network(pods):
    lines = pods.output(pod(main=python(WITHOUT_A_CERTIFICATE), hostNetwork=True)).splitlines()
    etcd, api, kubelet = (line.split(maxsplit=1)[1] for line in lines)
    assert (etcd, api) == ("Connection refused", "Connection refused")
    assert kubelet in ("closed", "timed out")  # by its check of addresses, or by the packet filter


FORK = """
import os, time
made = 0
try:
    while made < 20000:
        if not os.fork():
            time.sleep(600)
        made += 1
except OSError as error:
    print(made, error.strerror, flush=True)
time.sleep(600)
"""


def test_a_pod_that_asks_for_nothing_cannot_fork_without_end(cluster, pods):
    if not (cluster.root / RECORD).exists():
        pytest.skip("no control groups can be written here: the number of processes is NOT limited")
    name = pods.running(pod(main=python(FORK)))["metadata"]["name"]
    eventually(lambda: pods.logs(name).endswith("Resource temporarily unavailable\n"))
    assert int(pods.logs(name).split()[0]) < PIDS_LIMIT
    assert pods.output(pod("echo works")) == "works\n"


def test_a_pod_that_fills_its_scratch_directory_takes_disk_and_not_memory(cluster, pods):
    name = pods.running(pod("dd if=/dev/zero of=/tmp/full bs=1M count=64 2>/dev/null; sleep 600"))
    written = cluster.root / "pods" / name["metadata"]["uid"] / "writable" / "main.0" / "tmp" / "full"
    eventually(lambda: written.exists() and written.stat().st_size, expected=64 << 20)
    cluster.core.delete_namespaced_pod(name["metadata"]["name"], "default", grace_period_seconds=0)
    eventually(written.exists, expected=False)


def test_leftovers_of_the_last_pods_do_not_prevent_deletion(cluster, pods):
    """The cluster is deleted after this test, the last one."""
    claim(cluster, "left")
    pods.finish(digging("claimed", persistentVolumeClaim={"claimName": "left"}))


UNCOVER = """
mkdir /tmp/own && mount -t tmpfs none /tmp/own && echo mounted
for place in /proc/kcore /proc/sys /sys/firmware; do umount $place && echo uncovered $place; done
mount -o remount,rw,bind /proc/sys && echo writable
unshare -U true; cat /proc/self/uid_map
"""


def test_a_privileged_container_mounts_for_itself_and_uncovers_nothing(pods):
    main = {"securityContext": {"privileged": True}}
    lines = pods.output(pod(f"{UNCOVER} true", main=main)).splitlines()
    assert "mounted" in lines
    assert not [line for line in lines if line.startswith(("uncovered", "writable"))]


def test_a_container_with_ordinary_privileges_mounts_nothing(pods):
    assert "mounted" not in pods.output(pod(f"{UNCOVER} true")).splitlines()
