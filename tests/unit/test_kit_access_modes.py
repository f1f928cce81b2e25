"""Access modes of volumes, by what their StorageClass can."""

import pytest

from kitlib.errors import BadInput
from kitlib.storage import storage_class

ONE_NODE = {
    "gp3": "ebs.csi.aws.com", "standard-rwo": "pd.csi.storage.gke.io", "default": "disk.csi.azure.com",
    "local-path": "rancher.io/local-path", "hostpath": "docker.io/hostpath", "gp2": "kubernetes.io/aws-ebs",
    "standard": "k8s.io/minikube-hostpath", "rbd": "rook-ceph.rbd.csi.ceph.com",
}  # fmt: skip
MANY_NODES = {
    "efs": "efs.csi.aws.com", "filestore": "filestore.csi.storage.gke.io", "azurefile": "file.csi.azure.com",
    "nfs": "nfs.csi.k8s.io", "cephfs": "rook-ceph.cephfs.csi.ceph.com", "ours": "trainyard.local/directory",
    "nfs-client": "cluster.local/nfs-subdir-external-provisioner", "lab": "k8s-sigs.io/nfs-subdir",
}  # fmt: skip


def make_class(name, provisioner, *, created="2026-01-01T00:00:00Z", default=False):
    notes = {storage_class.DEFAULT_CLASS: str(default).lower()}
    meta = {"name": name, "annotations": notes, "creationTimestamp": created}
    return {"metadata": meta, "provisioner": provisioner}


def choose(mode, name, *classes, nodes=4):
    listed = [make_class(*item) for item in classes] or None
    return storage_class.choose_access_mode(mode, name, listed, nodes=nodes, about='volume "v"')


@pytest.mark.parametrize(("name", "provisioner"), ONE_NODE.items())
def test_a_class_for_one_node_is_refused_for_many_with_the_class_to_take_instead(name, provisioner):
    for mode in (None, "ReadWriteMany", "ReadOnlyMany"):
        with pytest.raises(BadInput, match=r'(?s)one node at a time.*storage_class="shared".*ReadWriteOnce'):
            choose(mode, name, (name, provisioner), ("shared", "nfs.csi.k8s.io"))
    for mode in ("ReadWriteOnce", "ReadWriteOncePod"):
        assert choose(mode, name, (name, provisioner)) == mode


@pytest.mark.parametrize(("name", "provisioner"), MANY_NODES.items())
def test_a_class_for_many_nodes_is_for_many_by_default(name, provisioner):
    assert choose(None, name, (name, provisioner)) == "ReadWriteMany"
    assert choose("ReadWriteOnce", name, (name, provisioner)) == "ReadWriteOnce"


@pytest.mark.parametrize(
    "name", ["gp2", "gp3", "ebs", "standard-rwo", "local-path", "managed-csi", "default"]
)
def test_where_classes_cannot_be_read_their_usual_names_decide(name):
    with pytest.raises(BadInput, match="one node at a time"):
        choose(None, name, nodes=None)
    assert choose(None, "team-shared", nodes=None) == "ReadWriteMany"


def test_a_class_that_nobody_knows_gets_what_is_asked_of_it():
    assert choose(None, "fast", ("fast", "storage.example.com")) == "ReadWriteMany"
    # Its name is that of others, but it is readable and another's.
    assert choose(None, "gp3", ("gp3", "storage.example.com")) == "ReadWriteMany"


def test_a_cluster_of_one_node_takes_what_its_class_can():
    assert choose(None, "local-path", ("local-path", "rancher.io/local-path"), nodes=1) == "ReadWriteOnce"
    with pytest.raises(BadInput):
        choose("ReadWriteMany", "local-path", ("local-path", "rancher.io/local-path"), nodes=1)


@pytest.mark.parametrize("mode", ["RWX", "readwritemany", "", "ReadWrite"])
def test_an_unknown_access_mode_is_refused_with_the_valid_ones(mode):
    with pytest.raises(BadInput, match=r"(?s)access_mode=.*ReadWriteMany"):
        storage_class.check_access_mode(mode)


def test_of_two_default_classes_the_newest_counts_as_for_the_api_server():
    old = make_class("old", "a", default=True)
    new = make_class("new", "b", created="2026-02-01T00:00:00Z", default=True)
    newer = make_class("other", "c", created="2026-03-01T00:00:00Z")
    assert storage_class.default_of([new, old, newer]) is new
    assert storage_class.default_of([newer]) is None
