"""A real API server takes the tokens of the provider eks: they lead to STS, and to the access entries."""

import base64
import json
import subprocess

import pytest
import yaml

from clouds.aws.kubeconfig import kubeconfig
from clouds.aws.session import AwsSession
from clouds.aws.token import PREFIX, token

from .aws.machines import nodes_of
from .backing_cluster import BackingCluster
from .test_fake_aws import client, cluster, network, nodes

KEY = "AKIATESTTESTTESTTEST"
INSTRUCTOR = "arn:aws:iam::123456789012:user/instructor"


@pytest.fixture(scope="module")
def behind(state_home, one_amazon):
    with BackingCluster(one_amazon.token_webhook("yard"), nodes=2) as backing:
        yield backing


@pytest.fixture
def kubectl(amazon, behind, tmp_path, monkeypatch):
    """Return kubectl as the instructor has it, on a cluster of the fake's that a real one stands behind."""
    amazon.delay("*", 0)
    amazon.identities.add(KEY, INSTRUCTOR, secret="secret")
    amazon.backing("yard", endpoint=behind.endpoint, ca=behind.ca, on_nodes=nodes_of(behind))
    cluster(network()["subnets"])
    described = client("eks").describe_cluster(name="yard")["cluster"]
    file = tmp_path / "kubeconfig"
    file.write_text(yaml.safe_dump(kubeconfig(AwsSession("us-west-2"), described)))

    def run(*words, bearer=None):
        program = [*behind.program, "--kubeconfig", str(file)]
        if bearer is not None:
            # Given a token, kubectl still runs the plugin: so a file without one.
            bare = yaml.safe_load(file.read_text())
            bare["users"][0]["user"] = {"token": bearer}
            other = tmp_path / "bearer"
            other.write_text(yaml.safe_dump(bare))
            program = [*behind.program, "--kubeconfig", str(other)]
        return subprocess.run([*program, *words], capture_output=True, text=True, timeout=120)

    return run


def changed(bearer, **change):
    """Return a token whose URL is another one."""
    text = bearer.removeprefix(PREFIX)
    url = base64.urlsafe_b64decode(text + "=" * (-len(text) % 4)).decode()
    for old, new in change.items():
        url = url.replace(old, new)
    return PREFIX + base64.urlsafe_b64encode(url.encode()).decode().rstrip("=")


def test_a_token_lets_in_whom_the_access_entries_name_and_nobody_else(amazon, behind, kubectl):
    eks = client("eks")
    mine = kubectl("auth", "whoami", "-o", "json")
    assert mine.returncode == 0, mine.stderr
    told = json.loads(mine.stdout)["status"]["userInfo"]
    assert told["username"] == INSTRUCTOR
    assert "system:masters" in told["groups"]
    assert "yes" in kubectl("auth", "can-i", "*", "*").stdout

    session = AwsSession("us-west-2")
    good = token(session, "yard")
    assert kubectl("get", "namespaces", bearer=good).returncode == 0
    for bad, why in (
        (token(session, "another"), "of another cluster"),
        (changed(good, GetCallerIdentity="GetAccessKeyInfo"), "asks for something else"),
        (changed(good, **{amazon.endpoint: "http://127.0.0.1:1"}), "leads somewhere else"),
        (changed(good, **{"X-Amz-Date=20": "X-Amz-Date=19"}), "has expired"),
        (good[:-4] + "aaaa", "is damaged"),
        ("ya29.something", "is Google's"),
    ):
        assert "Unauthorized" in kubectl("get", "namespaces", bearer=bad).stderr, why

    eks.delete_access_entry(clusterName="yard", principalArn=INSTRUCTOR)
    assert "Unauthorized" in kubectl("get", "namespaces", bearer=token(session, "yard")).stderr


def test_the_machines_of_a_node_group_are_nodes_of_the_cluster(amazon, behind, kubectl):
    client("eks").create_addon(clusterName="yard", addonName="vpc-cni")
    assert kubectl("get", "nodes", "-o", "name").stdout == ""
    nodes(
        network()["subnets"],
        labels={"trainyard/pool": "train"},
        instanceTypes=["g4dn.xlarge"],
        scalingConfig={"minSize": 0, "maxSize": 2, "desiredSize": 2},
    )
    behind.settled()
    wanted = "trainyard/pool=train,node.kubernetes.io/instance-type=g4dn.xlarge"
    assert len(kubectl("get", "nodes", "-l", wanted, "-o", "name").stdout.split()) == 2
    client("eks").delete_nodegroup(clusterName="yard", nodegroupName="train")
    behind.settled()
    assert kubectl("get", "nodes", "-o", "name").stdout == ""
