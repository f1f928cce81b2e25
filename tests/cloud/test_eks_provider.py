"""The provider eks as notebooks meet it: a real API server stands behind it, and takes its tokens."""

import base64
import json
import stat
import subprocess

import pytest
import yaml

from kitlib import clusters
from kitlib.errors import BadInput, ClusterNotFound
from trainyard_kit import workshop
from trainyard_kit.clouds.eks.cluster import EksCluster
from trainyard_kit.clouds.eks.session import AwsSession
from trainyard_kit.clouds.eks.token import PREFIX, token

from .aws.machines import files_of, nodes_of
from .aws.server import Backing
from .backing_cluster import BackingCluster

KEY, INSTRUCTOR = "AKIATESTTESTTESTTEST", "arn:aws:iam::123456789012:user/instructor"
HERE = {"name": "yard", "nodes": 2, "region": "us-west-2", "instance_type": "m5.xlarge"}


@pytest.fixture
def backing(aws, state_home, monkeypatch):
    """The machines of a real cluster, which stands behind the one that is created."""
    aws.faults.identities[KEY], aws.faults.secrets[KEY] = INSTRUCTOR, "secret"
    monkeypatch.setattr(EksCluster, "clock", aws.clock)
    with BackingCluster(aws.token_webhook("yard"), nodes=3) as behind:
        aws.backings["yard"] = Backing(behind.endpoint, behind.ca, nodes_of(behind))
        with files_of(aws, behind, region="us-west-2") as files:
            yield behind
            assert files.refused == []


def changed(bearer, **change):
    """Return a token whose URL is another one."""
    text = bearer.removeprefix(PREFIX)
    url = base64.urlsafe_b64decode(text + "=" * (-len(text) % 4)).decode()
    for old, new in change.items():
        url = url.replace(old, new)
    return PREFIX + base64.urlsafe_b64encode(url.encode()).decode().rstrip("=")


def whoami(cluster, behind, folder, bearer):
    """Ask the API server with a token and nothing else."""
    bare = yaml.safe_load(cluster.kubeconfig.read_text())
    bare["users"][0]["user"] = {"token": bearer}
    (folder / "bearer").write_text(yaml.safe_dump(bare))
    program = [*behind.program, "--kubeconfig", str(folder / "bearer"), "auth", "whoami", "-o", "json"]
    return subprocess.run(program, capture_output=True, text=True, timeout=120)


@pytest.mark.slow
def test_a_cluster_is_created_reached_found_scaled_and_deleted(aws, backing, tmp_path):
    with pytest.raises(BadInput, match="needs confirmation"):
        clusters.create_cluster("eks", **HERE)
    assert aws.left() == []
    cluster = clusters.create_cluster("eks", confirm=True, **HERE)
    assert stat.S_IMODE(cluster.kubeconfig.stat().st_mode) == 0o600
    backing.settled()
    cluster.wait_ready(timeout=120)
    assert len(cluster.nodes()) == 3
    assert "efs (default)" in cluster.kubectl("get storageclass efs")
    program = cluster.kubectl("--namespace kube-system get deployment cluster-autoscaler --output yaml")
    assert "k8s.io/cluster-autoscaler/yard" in program and "us-west-2" in program
    assert clusters.connect("yard").kube.version() == cluster.kube.version()
    again = clusters.create_cluster("eks", **HERE)  # it is there: nobody has to agree
    assert again.status["expires"] == cluster.status["expires"]

    good = token(session := AwsSession("us-west-2"), "yard")
    user = json.loads(whoami(cluster, backing, tmp_path, good).stdout)["status"]["userInfo"]
    assert user["username"] == INSTRUCTOR and "system:masters" in user["groups"]
    for bad, why in (
        (token(session, "another"), "of another cluster"),
        (changed(good, GetCallerIdentity="GetAccessKeyInfo"), "asks for something else"),
        (changed(good, **{aws.endpoint: "http://127.0.0.1:1"}), "leads somewhere else"),
        (changed(good, **{"X-Amz-Date=20": "X-Amz-Date=19"}), "has expired"),
        (good[:-4] + "aaaa", "is damaged"),
        ("ya29.something", "is Google's"),
    ):
        assert "Unauthorized" in whoami(cluster, backing, tmp_path, bad).stderr, why

    with pytest.raises(BadInput, match="needs confirmation"):
        cluster.scale(3)
    cluster.scale(1)
    backing.settled()
    assert "expires at" in cluster.extend(hours=6, confirm=True)
    account = {"clusterName": "yard", "namespace": "attendee-ada"}
    for verb, there_are in ((workshop.add, 1), (workshop.remove, 0)):
        verb("ada", cluster=cluster)
        associations = cluster.session.call("eks", "list_pod_identity_associations", **account)
        assert len(associations["associations"]) == there_are  # the pods of their room read the bucket
    cluster.kubectl("create service loadbalancer web --tcp=80")
    cluster.delete()
    assert aws.left() == []
    with pytest.raises(ClusterNotFound):
        clusters.connect("yard", provider="eks", region="us-west-2")
