"""A GKE cluster with a real API server: its nodes, tokens, StorageClasses, administrators, kubeconfig."""

import stat
import subprocess
from inspect import signature

import pytest

from kitlib import config
from kitlib.clusters.base import Cluster
from kitlib.clusters.shape import Shape
from kitlib.errors import ClusterNotFound
from trainyard_kit.clouds.gke.cluster import GkeCluster
from trainyard_kit.clouds.gke.session import GcpSession

from .backing_cluster import BackingCluster
from .gke_lifecycle import OPTIONS, ZONE
from .google.fake import PROJECT
from .google.nodes import nodes_of


@pytest.mark.slow
def test_a_cluster_is_used_found_again_by_its_name_and_opened_by_googles_tokens(
    google, clock, state_home, monkeypatch
):
    monkeypatch.setenv("CLOUDSDK_AUTH_ACCESS_TOKEN", google.identities.add("ya29.owner"))
    with BackingCluster(google.token_webhook, nodes=2) as behind:
        google.backing(behind.endpoint, behind.ca, nodes_of(behind))
        GkeCluster.create("lab", Shape(1, options=OPTIONS | {"spot": True}))
        file = config.state_folder() / "gke" / f"lab.{PROJECT}.{ZONE}.kubeconfig"
        assert stat.S_IMODE(file.stat().st_mode) == 0o600
        assert "ya29" not in file.read_text()

        lab = GkeCluster.find("lab")
        behind.settled()
        lab.wait_ready(timeout=120)
        assert len(lab.nodes()) == 2
        parameters = lab.kube.find("StorageClass", "filestore")["parameters"]
        assert parameters["network"] == "trainyard-lab"
        assert "trainyard-cluster=lab" in parameters["labels"]
        again = GkeCluster.create("lab", Shape(1))  # as a notebook asks: by its name alone
        assert again.session.zone == ZONE and again._describe().machines.spot
        message = lab.add_admin("user:ada@example.org")
        assert "--member=user:ada@example.org --role=roles/container.clusterViewer" in message
        bound = lab.kubectl("get clusterrolebinding trainyard-admin-ada-example-org -o wide")
        assert "ClusterRole/cluster-admin" in bound and "ada@example.org" in bound
        lab.extend(hours=8, confirm=True)
        GkeCluster.create("lab", Shape(1))  # and the next notebook; its volumes end later as well
        assert lab.kube.find("StorageClass", "filestore")["parameters"]["labels"] != parameters["labels"]

        def kubectl(token, *words):
            monkeypatch.setenv("CLOUDSDK_AUTH_ACCESS_TOKEN", token)
            command = [*behind.program, "--kubeconfig", str(file), *words]
            return subprocess.run(command, capture_output=True, text=True, timeout=120)

        google.identities.add("ya29.bob", "bob@example.com", admin=False)
        spot = kubectl("ya29.owner", "get", "nodes", "-l", "cloud.google.com/gke-spot=true", "-o", "name")
        assert len(spot.stdout.split()) == 1, spot.stderr
        assert 'User "bob@example.com" cannot list' in kubectl("ya29.bob", "get", "nodes").stderr
        assert "Unauthorized" in kubectl("ya29.nobody", "get", "nodes").stderr

        monkeypatch.setenv("CLOUDSDK_AUTH_ACCESS_TOKEN", "ya29.owner")
        lab.delete()
        behind.settled()
        assert google.left() == [] and behind.kubectl("get", "nodes", "-o", "name") == ""
        assert not file.exists() and GkeCluster.find("lab") is None


def test_a_name_that_no_cluster_has_is_told_with_how_to_make_it(google, state_home):
    assert GkeCluster.find("no-such-cluster") is None
    assert GkeCluster.find("no-such-cluster", project=PROJECT) is None
    with pytest.raises(ClusterNotFound, match="no such cluster"):
        _ = GkeCluster("no-such-cluster", GcpSession(PROJECT, ZONE)).kubeconfig


def test_a_volume_of_no_stated_size_is_asked_for_as_on_other_clusters():
    """The course makes one with a size and asks for it again without: what is larger would be refused."""
    sizes = {signature(kind.create_volume).parameters["size"].default for kind in (GkeCluster, Cluster)}
    assert len(sizes) == 1
