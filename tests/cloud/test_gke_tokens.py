"""A real API server takes the tokens of the provider gke, and a node pool's machines are its nodes."""

import subprocess

import pytest
import yaml
from google.cloud.container_v1 import types

from clouds.google.kubeconfig import kubeconfig

from .backing_cluster import BackingCluster
from .google.clients import Clients
from .google.fake import PROJECT, FakeGoogle
from .google.nodes import nodes_of

PLACE = f"projects/{PROJECT}/locations/us-central1-c"


@pytest.mark.slow
def test_a_google_token_opens_the_cluster_whose_nodes_are_those_of_its_pools(
    state_home, tmp_path, monkeypatch
):
    with FakeGoogle() as google, BackingCluster(google.token_webhook, nodes=2) as behind:
        google.backing(behind.endpoint, behind.ca, nodes_of(behind))
        clients = Clients(google.endpoints)
        lab = types.Cluster(name="lab", initial_node_count=1)
        clients.container.create_cluster(parent=PLACE, cluster=lab)
        google.clock.advance(300)
        config = types.NodeConfig(
            machine_type="n1-standard-4", labels={"trainyard/pool": "training"}, spot=True
        )
        pool = types.NodePool(name="training", initial_node_count=1, config=config)
        clients.container.create_node_pool(parent=f"{PLACE}/clusters/lab", node_pool=pool)
        google.clock.advance(120)
        behind.settled()
        file = tmp_path / "kubeconfig"
        described = clients.container.get_cluster(name=f"{PLACE}/clusters/lab")
        file.write_text(yaml.safe_dump(kubeconfig(described)))

        def kubectl(*words, token):
            monkeypatch.setenv("CLOUDSDK_AUTH_ACCESS_TOKEN", token)
            command = [*behind.program, "--kubeconfig", str(file), *words]
            return subprocess.run(command, capture_output=True, text=True, timeout=120)

        owner = google.identities.add("ya29.owner")
        ada = google.identities.add("ya29.ada", "ada@example.com", admin=False)
        labelled = kubectl("get", "nodes", "-l", "cloud.google.com/gke-spot=true", "-o", "name", token=owner)
        assert len(labelled.stdout.split()) == 1, labelled.stderr
        assert len(kubectl("get", "nodes", "-o", "name", token=owner).stdout.split()) == 2
        assert 'User "ada@example.com" cannot list' in kubectl("get", "nodes", token=ada).stderr
        assert "Unauthorized" in kubectl("get", "nodes", token="ya29.nobody").stderr
        clients.container.delete_cluster(name=f"{PLACE}/clusters/lab")
        google.clock.advance(240)
        behind.settled()
        assert behind.kubectl("get", "nodes", "-o", "name") == ""
        clients.close()
