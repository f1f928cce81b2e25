"""Any cluster that a kubeconfig leads to: what one may do in it, and what is wrong with kubeconfigs."""

import base64
import json
import socket

import pytest
import yaml

import kitlib as kit
from kitlib.clusters.existing import ExistingCluster
from kitlib.errors import ClusterUnreachable, Rejected
from kitlib.k8s.client import allowed

from ..patience import until

pytestmark = pytest.mark.cluster


@pytest.fixture(autouse=True)
def forget(state_home):
    """Forget the clusters that a test connected to: their names would lead others there."""
    yield
    for context in ExistingCluster.list():
        ExistingCluster.find(context["cluster"]).forget()


@pytest.fixture(scope="module")
def attendee(local_cluster):
    """Somebody with a namespace and nothing else."""
    yield kit.workshop.add("guest", cluster=local_cluster, cpu="4", memory="8Gi")
    kit.workshop.remove("guest", cluster=local_cluster)


@pytest.fixture
def spoil(attendee, tmp_path):
    """Return a function that writes the attendee's kubeconfig anew, with another server or another user."""

    def write(*, server=None, user=None):
        config = yaml.safe_load(attendee.kubeconfig.read_text())
        config["clusters"][0]["cluster"] |= server or {}
        config["users"][0]["user"] |= user or {}
        path = tmp_path / "kubeconfig"
        path.write_text(yaml.safe_dump(config))
        return path

    return write


def test_a_right_that_is_granted_as_the_error_says_is_there(attendee, local_cluster):
    theirs = kit.connect("existing", kubeconfig=attendee.kubeconfig)
    with pytest.raises(Rejected) as refused:
        theirs.kube.get_all("StorageClass")
    commands = [line for line in refused.value.fix.splitlines() if line.startswith("kubectl")]
    try:
        for command in commands:
            local_cluster.kubectl(command)
        # the API server hears of a right a moment later
        until(lambda: allowed(lambda: theirs.kube.get_all("StorageClass")), "the right")
    finally:
        local_cluster.kubectl("delete clusterrole,clusterrolebinding list-storageclasses --ignore-not-found")


def test_a_token_that_has_expired_and_one_that_is_not_accepted_are_said(spoil):
    payload = base64.urlsafe_b64encode(json.dumps({"exp": 1_700_000_000}).encode()).decode().rstrip("=")
    old = kit.connect("old", kubeconfig=spoil(user={"token": f"e30.{payload}.x"}))
    with pytest.raises(
        Rejected, match=r"expired, at 2023-11-14T22:13(?s:.*)ask the instructor for a new kubeconfig"
    ):
        old.kube.version()
        old.pods()
    strange = kit.connect("strange", kubeconfig=spoil(user={"token": "nobody's"}))
    with pytest.raises(Rejected, match=r"(?s)Unauthorized.*get a new kubeconfig"):
        strange.pods()


def test_a_server_that_cannot_be_reached_or_trusted_is_said(spoil, local_cluster):
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    unreachable = kit.connect("gone", kubeconfig=spoil(server={"server": f"https://127.0.0.1:{port}"}))
    with pytest.raises(ClusterUnreachable, match=r"(?s)Connection refused.*the port is right"):
        unreachable.kube.version()
    nowhere = kit.connect("nowhere", kubeconfig=spoil(server={"server": "https://no-such-host.invalid:6443"}))
    with pytest.raises(ClusterUnreachable, match=r'"nowhere", as .*kubeconfig'):
        nowhere.kube.version()
    (user,) = yaml.safe_load(local_cluster.kubeconfig.read_text())["users"]
    authority = {
        "certificate-authority-data": user["user"]["client-certificate-data"]
    }  # it has signed nothing
    strange = kit.connect("strange", kubeconfig=spoil(server=authority))
    with pytest.raises(ClusterUnreachable, match=r"(?s)does not trust.*this very cluster"):
        strange.kube.version()
