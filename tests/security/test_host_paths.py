"""Who may use hostPath tries to see the clusters' own directory: by links, and by other names of a parent."""

import pytest

from ..node.clusters import pod
from ..rows import slow

pytestmark = pytest.mark.namespaces
KUBELET = "/var/lib/kubelet"


def mounting(path, script, *, kind="", read_only=False):
    volumes = [{"name": "host", "hostPath": {"path": str(path), "type": kind}}]
    main = {"volumeMounts": [{"name": "host", "mountPath": "/host", "readOnly": read_only}]}
    return pod(script, main=main, volumes=volumes)


@pytest.mark.parametrize("target", ["../../pki", "/etc", *slow("{root}/volumes")])
def test_a_link_in_the_nodes_own_directory_does_not_lead_out_of_it(cluster, pods, target):
    target = target.format(root=cluster.root)
    assert (
        pods.output(mounting(KUBELET, f"rm -rf /host/way; ln -s {target} /host/way && echo made")) == "made\n"
    )
    for below in ("", "/made"):
        name = pods.create(mounting(f"{KUBELET}/way{below}", "find /host"))
        pods.wait_for_event(name, "FailedMount", "leads out of its directory")
    assert not (cluster.root / "pki" / "made").exists()
    # Those that the kubelet makes itself.
    go = f"cd /host && rm -rf plugins && ln -s {target} plugins && echo made"
    assert pods.output(mounting(KUBELET, go)) == "made\n"
    name = pods.create(mounting(f"{KUBELET}/device-plugins", "true"))
    pods.wait_for_event(name, "FailedMount", "leads out of its directory")
    next((cluster.root / "nodes").glob("*/plugins")).unlink()


def test_links_within_the_nodes_directory_can_be_mounted(cluster, pods):
    script = "mkdir -p /host/there && echo hello > /host/there/file && ln -sfn there /host/by && echo made"
    assert pods.output(mounting(KUBELET, script)) == "made\n"
    assert pods.output(mounting(f"{KUBELET}/by", "cat /host/file")) == "hello\n"
    assert pods.output(mounting(f"{KUBELET}/by/file", "cat /host", kind="File")) == "hello\n"


def test_a_parent_of_the_clusters_directory_is_renamed_by_no_pod(cluster, pods):
    """It would be found by the new name, and the cluster would find another by the old one."""
    home = cluster.home
    steps = cluster.root.relative_to(home.parent).parts[:3]  # the home, trainyard, clusters
    script = (
        f"cd /host; for place in {steps[0]} {'/'.join(steps[:2])}; do mv $place $place-2 && echo moved; done"
    )
    assert "moved" not in pods.output(mounting(home.parent, f"{script}; true"))
    script = "mv /host/trainyard /host/other 2>/dev/null && echo moved; ls -A /host/trainyard/ | wc -l"
    assert pods.output(mounting(home, script)) == "0\n"
    assert cluster.root.is_dir()


def test_the_clusters_directory_is_hidden_by_whatever_name_its_parent_has(cluster, pods):
    """As after a rename by somebody on the machine; the link keeps the cluster at work meanwhile."""
    state, second_link = cluster.home / "trainyard", cluster.home / "elsewhere"
    state.rename(second_link)
    state.symlink_to(second_link.name)
    try:
        name = pods.create(mounting(second_link / "clusters" / cluster.name / "pki", "find /host"))
        pods.wait_for_event(name, "FailedMount", "belongs to the local cluster itself")
        output = pods.output(mounting(cluster.home, "ls -A /host/elsewhere | wc -l", read_only=True))
        assert output == "0\n"
    finally:
        state.unlink()
        second_link.rename(state)
    assert pods.output(mounting(cluster.home, "ls -A /host/trainyard | wc -l")) == "0\n"


@pytest.mark.parametrize("path", ["/proc/self/root", "/proc/1/root"])
def test_a_path_through_proc_does_not_reach_the_clusters_directory(cluster, pods, path):
    name = pods.create(mounting(f"{path}{cluster.root}/pki", "find /host", kind="Directory"))
    pods.wait_for_event(name, "FailedMount", "belongs to the local cluster itself")
