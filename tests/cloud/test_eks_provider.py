"""The provider eks as notebooks meet it: a real API server stands behind the fake Amazon's cluster."""

import stat

import pytest

import workshop
from clouds.reconciler import reconcile
from kitlib import clusters
from kitlib.errors import BadInput, ClusterNotFound

from .aws.machines import nodes_of
from .backing_cluster import BackingCluster
from .simulated_clock import SimulatedClock

KEY, INSTRUCTOR = "AKIATESTTESTTESTTEST", "arn:aws:iam::123456789012:user/instructor"
HERE = {"name": "yard", "nodes": 2, "region": "us-west-2", "instance_type": "m5.xlarge"}


@pytest.fixture(scope="module")
def behind(state_home, one_amazon):
    with BackingCluster(one_amazon.token_webhook("yard"), nodes=3) as backing:
        yield backing


@pytest.fixture
def there(amazon, behind, monkeypatch):
    """Return the fake Amazon, with a real cluster behind the one that is made."""
    amazon.identities.add(KEY, INSTRUCTOR, secret="secret")
    amazon.backing("yard", endpoint=behind.endpoint, ca=behind.ca, on_nodes=nodes_of(behind))
    monkeypatch.setattr(reconcile, "Clock", lambda: SimulatedClock(amazon.clock.advance))
    return amazon


@pytest.mark.slow
def test_a_cluster_is_made_reached_found_scaled_and_deleted(there, behind):
    with pytest.raises(BadInput, match="agreed to"):
        clusters.create_cluster("eks", **HERE)
    assert there.left() == []

    cluster = clusters.create_cluster("eks", confirm=True, **HERE)
    assert stat.S_IMODE(cluster.kubeconfig.stat().st_mode) == 0o600
    behind.settled()
    cluster.wait_ready(timeout=120)
    assert len(cluster.nodes()) == 3
    assert "efs (default)" in cluster.kubectl("get storageclass efs")
    assert clusters.connect("yard").kube.version() == cluster.kube.version()
    again = clusters.create_cluster("eks", **HERE)  # it is there: nobody has to agree
    assert again.status["expires"] == cluster.status["expires"]
    with pytest.raises(BadInput, match='other machines: instance_type="m5.xlarge"'):
        clusters.create_cluster("eks", **HERE | {"instance_type": "g4dn.xlarge"})

    with pytest.raises(BadInput, match="agreed to"):
        cluster.scale(3)
    cluster.scale(1)
    assert "ends at" in cluster.extend(hours=6, confirm=True)
    whose = {"clusterName": "yard", "namespace": "attendee-ada"}
    for verb, there_are in ((workshop.add, 1), (workshop.remove, 0)):
        verb("ada", cluster=cluster)
        found = cluster.session.call("eks", "list_pod_identity_associations", **whose)
        assert len(found["associations"]) == there_are  # the pods of their room read the bucket
    cluster.kubectl("create service loadbalancer web --tcp=80")
    cluster.delete()
    assert there.left() == []
    with pytest.raises(ClusterNotFound):
        clusters.connect("yard", provider="eks", region="us-west-2")
