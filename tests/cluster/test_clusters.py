"""Clusters, as a user has them: made, found, broken, deleted."""

import contextlib
import os
import secrets
import signal
import subprocess
import sys
import threading

import pytest
import yaml
from click.testing import CliRunner

import kitlib as kit
from kitlib.errors import BadInput, ClusterBroken, CommandFailed, ProviderFailed
from trainyard_kit.cli import main as cli

from ..patience import PATIENCE, eventually, until

SMALL = {"nodes": 1, "warm": False}

pytestmark = pytest.mark.cluster


@pytest.fixture
def spare(state_home):
    """The name of a cluster that a test may break; deleted afterwards."""
    name = f"spare-{secrets.token_hex(3)}"
    yield name
    kit.clusters.LocalCluster(name).delete()


def test_an_existing_healthy_cluster_is_returned_as_it_is(local_cluster):
    uid = local_cluster.kube.get("Node", "node-0")["metadata"]["uid"]
    again = kit.create_cluster("local", name=local_cluster.name, nodes=4)
    assert again.kube.get("Node", "node-0")["metadata"]["uid"] == uid


def test_a_second_cluster_of_the_same_name_and_another_size_is_refused(local_cluster):
    with pytest.raises(ProviderFailed, match="runs already"):
        kit.create_cluster("local", name=local_cluster.name, nodes=2)


def test_the_nodes_are_ready_and_show_themselves_as_a_table(local_cluster):
    nodes = local_cluster.wait_ready(timeout=120).nodes()
    assert [node["node"] for node in nodes] == [f"node-{index}" for index in range(4)]
    assert {node["status"] for node in nodes} == {"Ready"}
    assert repr(nodes).startswith("NODE ")
    assert "<table>" in nodes._repr_html_()
    assert "4 of 4 nodes Ready, Kubernetes v1.37" in repr(local_cluster)


def test_kubectl_answers_in_a_cell_and_its_errors_are_shown(local_cluster):
    assert "node-3" in local_cluster.kubectl("get nodes")
    assert "node-3" in repr(local_cluster.kubectl("kubectl get nodes -o 'name'"))
    with pytest.raises(CommandFailed, match='the server doesn\'t have a resource type "podz"'):
        local_cluster.kubectl("get podz")
    with pytest.raises(BadInput, match="quot"):
        local_cluster.kubectl("get pods 'unclosed")


def test_the_same_verbs_work_in_a_terminal(local_cluster):
    name = local_cluster.name
    for words, expected in [
        (["cluster", "list"], name),
        (["cluster", "status", name], "4 of 4 nodes Ready"),
        (["cluster", "kubeconfig", name], "https://127.0.0.1"),
        (["run", "list", "-c", name, "-o", "json"], "["),
        (["doctor"], "namespaces"),
    ]:
        result = CliRunner().invoke(cli.main, words)
        assert result.exit_code == 0, result.output
        assert expected in result.stdout


def test_a_broken_cluster_is_explained_and_recreated(spare, state_home, plain):
    record = state_home / "trainyard" / "clusters" / spare / "cluster.json"
    record.parent.mkdir(parents=True)
    record.write_text("{torn")
    with pytest.raises(ClusterBroken, match="(?s)record.*recreate=True"):
        kit.connect(spare)
    with pytest.raises(ClusterBroken, match="(?s)record.*recreate=True"):
        kit.create_cluster("local", name=spare, **SMALL)
    with kit.create_cluster("local", name=spare, **SMALL | {"nodes": 2}, recreate=True) as cluster:
        run = kit.launch(plain("while True: pass", nodes=1), cluster=cluster)
        watch = cluster.watch()

        def busy():
            """Return the nodes that have something to do; on a busy machine it is not much that they get."""
            now = watch.history.percent("cpu")[:, -1]
            return {node for node, share in zip(watch.history.nodes, now, strict=True) if share > 5}

        until(
            lambda: watch.history.count >= 3 and busy() and busy() == {row[2] for row in watch.pods},
            "samples by which the pod's node works, and no other",
        )
        assert watch.source == "the kubelets"
        assert "nodes Ready: 2 of 2" in repr(watch)
        assert watch.picture()._repr_png_()
        run.delete()
    watch.join(PATIENCE)
    assert watch.finished and watch.error
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("watch-")]
    with pytest.raises(kit.ClusterNotFound, match="no such cluster"):
        kit.connect(spare)
    cluster.delete()  # again is fine


def test_any_cluster_with_a_kubeconfig_can_be_used(local_cluster):
    connected = kit.connect("mine", kubeconfig=local_cluster.kubeconfig)
    assert len(connected.nodes()) == 4
    assert kit.create_cluster("existing", name="mine", kubeconfig=local_cluster.kubeconfig).nodes()
    again = kit.connect("mine")
    paths = (again.kubeconfig, local_cluster.kubeconfig)
    servers = {yaml.safe_load(path.read_text())["clusters"][0]["cluster"]["server"] for path in paths}
    assert len(servers) == 1, "the kit remembers where it lies"
    assert ("mine", "existing") in [(row["cluster"], row["provider"]) for row in kit.list_clusters()]
    with pytest.raises(BadInput, match="the kit cannot stop nodes"):
        again.stop_node("node-3")
    again.delete()
    assert len(local_cluster.nodes()) == 4
    with pytest.raises(kit.ClusterNotFound):
        kit.connect("mine")


def test_a_node_is_switched_off_comes_back_with_its_cluster_and_others_are_pretended(local_cluster):
    main = ["-c", local_cluster.name]
    try:
        off = CliRunner().invoke(cli.main, ["node", "stop", "node-3", *main])
        assert off.exit_code == 0, off.output
        assert "node-3" in off.stdout
        for verb in (local_cluster.isolate, local_cluster.reconnect):
            with pytest.raises(ProviderFailed, match="the node is stopped"):
                verb("node-3")
    finally:
        again = kit.create_cluster("local", name=local_cluster.name, nodes=4)
    assert {row["status"] for row in again.reconnect("node-3")} == {"Ready"}
    with pytest.raises(ProviderFailed, match="no such node"):
        local_cluster.reconnect("node-7")


@pytest.mark.slow
def test_a_local_cluster_is_scaled_up_and_down_and_keeps_its_objects(spare):
    cluster = kit.create_cluster("local", name=spare, **SMALL)
    cluster.kubectl("create configmap kept")
    for count in (3, 2):
        assert {row["node"]: row["status"] for row in cluster.scale(count)} == {
            f"node-{number}": "Ready" for number in range(count)
        }
    pod = '{"spec": {"nodeName": "node-1"}}'
    cluster.kubectl(f"run hello --image=busybox --overrides='{pod}' -- sleep 60")
    cluster.kubectl("wait pod/hello --for=condition=Ready --timeout=60s")
    assert "kept" in cluster.kubectl("get configmaps")
    again = kit.create_cluster("local", name=spare, **SMALL | {"nodes": 2})
    assert len(again.nodes()) == 2, "it has the new shape"
    with pytest.raises(ProviderFailed, match="1 to 100 nodes"):
        cluster.scale(0)


def test_top_tells_what_nodes_and_pods_use(local_cluster):
    def cpu_usage():
        try:
            return [row["cpu"] for row in local_cluster.top() if row["cpu"] != "-"]
        except kit.errors.Rejected as error:
            assert "try again" in error.fix
            return []

    eventually(lambda: len(cpu_usage()), expected=len(local_cluster.nodes()))
    assert local_cluster.top()[0]["of memory"].endswith("%")
    assert local_cluster.top("pods").columns == ("pod", "cpu", "memory")
    with pytest.raises(kit.errors.BadInput, match="top is for nodes and for pods"):
        local_cluster.top("jobs")


def test_repeated_interrupts_of_a_creation_name_the_cluster_to_delete(tmp_path):
    environment = os.environ | {"XDG_STATE_HOME": str(tmp_path)}
    command = [sys.executable, "-m", "trainyard_kit.cli", "cluster"]
    with subprocess.Popen(
        [*command, "create", "cut", "--nodes", "1"], env=environment, stderr=subprocess.PIPE, text=True
    ) as process:
        output = ""
        while "starting the control plane" not in output:
            output += process.stderr.readline()
        for _ in range(3):
            process.send_signal(signal.SIGINT)
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(0.1)
        output = process.communicate(timeout=60)[1]
    assert process.returncode == 130
    assert 'about: cluster "cut"' in output
    assert "Aborted" not in output
    if "the unfinished cluster is removed" in output:  # no signal came while it was
        assert not (tmp_path / "trainyard" / "clusters" / "cut").exists()
    else:
        assert "trainyard cluster delete cut" in output
    subprocess.run([*command, "delete", "cut", "--ignore-not-found"], env=environment, check=True)
    assert not (tmp_path / "trainyard" / "clusters" / "cut").exists()
