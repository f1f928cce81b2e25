"""A GKE cluster as notebooks have it: made, found by its name in a fresh kernel, used, and deleted."""

import stat
from datetime import UTC, datetime, timedelta
from inspect import signature

import pytest

from clouds.google.gke import GkeCluster
from clouds.google.session import GcpSession
from kitlib import config
from kitlib.clusters.base import Cluster, Shape
from kitlib.errors import BadInput, ClusterNotFound

from .backing_cluster import BackingCluster
from .google.fake import PROJECT
from .google.nodes import nodes_of

ZONE = "us-central1-c"
OPTIONS = {"zone": ZONE, "accelerator": "nvidia-tesla-t4", "confirm": True}


@pytest.mark.slow
def test_a_cluster_is_made_used_found_again_extended_and_leaves_nothing(
    google, clock, state_home, monkeypatch
):
    monkeypatch.setenv("CLOUDSDK_AUTH_ACCESS_TOKEN", "ya29.owner")
    google.identities.add("ya29.owner")
    with BackingCluster(google.token_webhook, nodes=2) as behind:
        google.backing(behind.endpoint, behind.ca, nodes_of(behind))
        GkeCluster.create("lab", Shape(1, options=OPTIONS))
        file = config.state_folder() / "gke" / "lab.kubeconfig"
        assert stat.S_IMODE(file.stat().st_mode) == 0o600
        assert "ya29" not in file.read_text()

        lab = GkeCluster.find("lab")
        behind.settled()
        lab.wait_ready(timeout=120)
        assert len(lab.nodes()) == 2
        parameters = lab.kube.find("StorageClass", "filestore")["parameters"]
        assert parameters["network"] == "trainyard-lab"
        assert "trainyard-cluster=lab" in parameters["labels"]
        added = lab.pod_additions(gpus=1)
        assert added["nodeSelector"] == {"cloud.google.com/gke-accelerator": "nvidia-tesla-t4"}
        assert lab.bucket.startswith("gs://trainyard-lab-")

        again = GkeCluster.create("lab", Shape(1))  # as a notebook asks: by its name alone
        assert (again.session.zone, again.accelerator) == (ZONE, "nvidia-tesla-t4")
        with pytest.raises(BadInput, match="other machines"):
            GkeCluster.create("lab", Shape(1, options=OPTIONS | {"spot": True}))
        said = lab.add_admin("user:ada@example.org")
        assert "--member=user:ada@example.org --role=roles/container.clusterViewer" in said
        bound = lab.kubectl("get clusterrolebinding trainyard-admin-ada-example-org -o wide")
        assert "ClusterRole/cluster-admin" in bound and "ada@example.org" in bound
        assert "ends at" in lab.extend(hours=8, confirm=True)
        ends = lab.status["expires"] - datetime.now(UTC)
        assert timedelta(hours=7) < ends < timedelta(hours=9)
        GkeCluster.create("lab", Shape(1))  # and the next notebook; its volumes end later as well
        labels = lab.kube.find("StorageClass", "filestore")["parameters"]["labels"]
        assert labels != parameters["labels"]

        lab.delete()
        assert google.left() == []
        assert not file.exists() and GkeCluster.find("lab") is None
        GkeCluster("lab", lab.session).delete()  # once more is fine


def test_a_name_that_no_cluster_has_is_told_with_how_to_make_it(google, state_home):
    assert GkeCluster.find("lab") is None
    assert GkeCluster.find("lab", project=PROJECT) is None
    with pytest.raises(ClusterNotFound, match="no such cluster"):
        _ = GkeCluster("lab", GcpSession(PROJECT, ZONE)).kubeconfig


def test_a_volume_of_no_stated_size_is_asked_for_as_on_other_clusters():
    """The course makes one with a size and asks for it again without: what is larger would be refused."""
    sizes = {signature(each.create_volume).parameters["size"].default for each in (GkeCluster, Cluster)}
    assert len(sizes) == 1
