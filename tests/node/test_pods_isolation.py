"""What a pod cannot do: to the host, to the cluster's own files, to other pods."""

from pathlib import Path

import pytest

from localkube.controlplane.components import ETCD_SOCKET

from .clusters import pod, python

READ_ONLY = {"securityContext": {"readOnlyRootFilesystem": True}}
REACH = """
import socket, sys
try:
    socket.socket(socket.AF_UNIX).connect(sys.argv[1])
except OSError as error:
    print(type(error).__name__)
else:
    print("connected")
"""


@pytest.mark.namespaces
def test_the_hosts_files_cannot_be_written(pods):
    places = [Path(folder, "of-a-pod") for folder in ("/usr/local", "/etc", "/sys", Path.home())]
    script = "; ".join(f"touch {place} 2>/dev/null || echo refused" for place in places)
    assert pods.output(pod(script)) == "refused\n" * 4
    assert not any(place.exists() for place in places)


@pytest.mark.namespaces
def test_files_outside_volumes_stay_in_the_pod(pods):
    places = ["/of-a-pod", "/tmp/of-a-pod", "/run/of-a-pod", "/var/tmp/of-a-pod", "/dev/shm/of-a-pod"]
    script = f"touch {' '.join(places)} && ls {' '.join(places)} | wc -l"
    assert pods.output(pod(script)) == "5\n"
    assert not [place for place in places if Path(place).exists()]


def test_read_only_mounts_of_the_host_cannot_be_made_writable_again(pods):
    assert "refused" in pods.output(pod("mount -o remount,bind,rw /usr 2>&1 || echo refused"))


@pytest.mark.namespaces
def test_a_read_only_root_leaves_volumes_and_scratch_places_writable(pods):
    script = "touch /here 2>&1 || echo refused; touch /data/file /tmp/file && echo kept"
    mounts = {"volumeMounts": [{"name": "data", "mountPath": "/data"}]}
    manifest = pod(script, main=READ_ONLY | mounts, volumes=[{"name": "data", "emptyDir": {}}])
    lines = pods.output(manifest).splitlines()
    assert lines[-2:] == ["refused", "kept"]


@pytest.mark.namespaces
def test_the_clusters_own_files_are_hidden(pods, cluster):
    assert (cluster.root / "pki" / "ca.key").exists()
    # A home below a place that each container has for itself, such as /tmp, is not there at all.
    look = f"ls -A {cluster.home}/trainyard; test -e {cluster.root} || echo hidden; touch {cluster.home}/x"
    assert pods.output(pod(f"({look}) 2>/dev/null; true")).split() == ["hidden"]
    assert not (cluster.home / "x").exists()


@pytest.mark.namespaces
def test_a_pod_has_no_privileges_over_the_kernel(pods):
    script = "grep -E 'CapEff|NoNewPrivs' /proc/self/status"
    effective, no_new = pods.output(pod(script)).split("\n")[:2]
    capabilities = int(effective.split()[1], 16)
    system_admin, net_admin, ptrace, module = 21, 12, 19, 16
    assert not [
        number for number in (system_admin, net_admin, ptrace, module) if capabilities & (1 << number)
    ]
    assert no_new.split() == ["NoNewPrivs:", "1"]


@pytest.mark.namespaces
def test_a_pod_has_the_devices_of_a_container_and_no_disks(pods):
    listed = pods.output(pod("ls /dev; find /dev -type b")).split()
    assert {"null", "zero", "urandom", "shm", "pts"} <= set(listed)
    assert not [name for name in listed if name.startswith(("sd", "vd", "nvme", "/dev/", "kmsg", "mem"))]


@pytest.mark.namespaces
def test_etcd_cannot_be_reached_from_a_pod(cluster, pods):
    assert (cluster.root / ETCD_SOCKET).is_socket()
    main = python(REACH) | {"args": [str(cluster.root / ETCD_SOCKET)]}
    assert pods.output(pod(main=main)) in ("FileNotFoundError\n", "PermissionError\n")


def test_the_nodes_own_server_does_not_answer_a_pod(pods):
    source = """
import ssl, urllib.request
context = ssl.create_default_context()
context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
try:
    print(urllib.request.urlopen("https://10.244.254.1:10250/pods", context=context, timeout=5).status)
except OSError as error:
    print("refused", error)
"""
    assert pods.output(pod(main=python(source))).startswith("refused")
