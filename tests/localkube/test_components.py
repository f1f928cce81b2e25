"""How the components are started: nothing secret in a command, nothing open to strangers."""

import json
import re

import pytest

from localkube.config import ClusterSpec
from localkube.controlplane import certificates, components
from localkube.controlplane.binaries import COMPONENTS, ControlPlaneBinaries
from localkube.errors import LocalClusterError
from localkube.paths import ClusterPaths

PROGRAM = "/opt/trainyard-kubernetes"


@pytest.fixture
def paths(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    paths = ClusterPaths("lab")
    certificates.issue(paths.pki, node_addresses=["10.244.254.1"])
    return paths


@pytest.fixture
def started(paths):
    return commands(paths, *COMPONENTS, "metrics-server")


def commands(paths, *programs):
    control_plane = ControlPlaneBinaries("v1.37.2", "cache", {name: (PROGRAM, name) for name in programs})
    return {component.name: component for component in components.commands(paths, control_plane)}


def flags(component):
    return dict(re.fullmatch(r"--([^=]+)=(.*)", text).groups() for text in component.argv[2:])


def test_only_an_etcd_that_elects_itself_has_a_long_election_timeout(started, paths):
    assert flags(started["etcd"])["election-timeout"] == "5000"
    released = ControlPlaneBinaries("v1.37.2", "path", {name: (f"/usr/bin/{name}",) for name in COMPONENTS})
    assert "--election-timeout" not in " ".join(components.commands(paths, released)[0].argv)


def test_every_file_that_is_named_is_there(started, paths):
    named = [
        text.partition("=")[2]
        for component in started.values()
        for text in component.argv
        if text.partition("=")[2].startswith("/") and "data-dir" not in text
    ]
    assert len(named) > 20
    assert [path for path in named if not paths.root.joinpath(path).exists()] == []


def test_tokens_are_judged_elsewhere_only_where_that_is_asked_for(started, paths):
    assert not [flag for flag in flags(started["kube-apiserver"]) if flag.startswith("authentication-token")]
    control_plane = ControlPlaneBinaries("v1.37.2", "cache", {name: (PROGRAM, name) for name in COMPONENTS})
    addresses = components.ListenAddresses(token_webhook="http://127.0.0.1:6444/judge")
    commands = components.commands(paths, control_plane, addresses=addresses)
    by_name = {command.name: command for command in commands}
    file = paths.root / flags(by_name["kube-apiserver"])["authentication-token-webhook-config-file"]
    assert json.loads(file.read_text())["clusters"][0]["cluster"] == {"server": "http://127.0.0.1:6444/judge"}


@pytest.mark.parametrize("url", ["https://127.0.0.1:1/", "http://elsewhere:1/", "http://127.0.0.1/", "judge"])
def test_tokens_are_judged_on_this_machine_alone(url):
    with pytest.raises(LocalClusterError, match="must be an http URL on 127.0.0.1"):
        ClusterSpec(token_webhook=url)


@pytest.mark.parametrize(
    "label", ["topology.kubernetes.io/rack", "node-restriction.kubernetes.io/a", "k8s.io/a"]
)
def test_a_label_that_no_kubelet_may_set_is_refused(label):
    """The kubelet asked to register its node for ever, and the cluster did not start."""
    ClusterSpec(labels={"topology.kubernetes.io/zone": "a", "node.kubernetes.io/pool": "b", "lab": "c"})
    with pytest.raises(LocalClusterError, match="may not set") as refused:
        ClusterSpec(labels={label: "a"})
    assert refused.value.about == label


def test_etcd_listens_in_the_directory_of_the_cluster_alone(started):
    listening = [value for flag, value in flags(started["etcd"]).items() if flag.startswith("listen-")]
    assert sorted(listening) == ["unix://etcd-peer.sock", "unix://etcd.sock"]
