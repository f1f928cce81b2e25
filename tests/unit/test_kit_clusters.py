"""Clusters, as far as they can be judged before anything is started."""

import json
import os
import re
import socket
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import pytest
from click.testing import CliRunner

import kitlib as kit
from kitlib import clusters, config
from kitlib.clusters import ExistingCluster, LocalCluster, cleanup, existing, local, machine
from kitlib.clusters.kubectl import forward_port
from kitlib.errors import BadInput, ClusterUnreachable, CommandFailed, ProviderFailed
from kitlib.k8s.client import Kube
from localkube.cluster import removal
from trainyard_kit.cli import main

KUBECONFIG = """
apiVersion: v1
kind: Config
clusters: [{name: c, cluster: {server: "http://127.0.0.1:9"}}]
users: [{name: u, user: {}}]
contexts: [{name: x, context: {cluster: c, user: u, namespace: mine}}]
current-context: x
"""


@pytest.fixture
def no_process(monkeypatch):
    """Let a test fail that starts a process."""

    def refuse(*command, **options):
        raise AssertionError(f"started {command}")

    monkeypatch.setattr(machine.subprocess, "Popen", refuse)


@pytest.fixture
def kubeconfig(tmp_path):
    path = tmp_path / "kubeconfig"
    path.write_text(KUBECONFIG)
    return path


@pytest.fixture
def keys(monkeypatch, tmp_path):
    """The folder with kubeconfigs of attendees of the cluster lab."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    folder = cleanup.attendees_folder("lab")
    folder.mkdir(parents=True)
    return folder


@pytest.mark.usefixtures("no_process")
@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"nodes": 0}, "1 to 100"),
        ({"nodes": "four"}, "whole number"),
        ({"cpus": -1}, "above 0"),
        ({"memory": "lots"}, "above 0"),
        ({"gpus": -1}, "whole number"),
        ({"name": "Not A Name"}, "a-z, 0-9"),
        ({"name": "x" * 50}, "at most 40"),
        ({"port": 99999}, "1 to 65535"),
        ({"labels": "zone=a"}, "dict"),
        ({"zone": "a"}, "no option zone"),
    ],
    ids=str,
)
def test_invalid_arguments_are_refused_before_anything_is_started(arguments, words):
    with pytest.raises(BadInput, match=words):
        kit.create_cluster("local", **arguments)


@pytest.mark.usefixtures("no_process")
@pytest.mark.parametrize(
    "ends",
    [
        {},
        {"between": "rack-a"},
        {"between": ("rack-a",)},
        {"between": ("rack-a", "rack-b", "rack-c")},
        {"between": ("rack-a", "rack-b"), "node": "node-1"},
    ],
    ids=str,
)
def test_a_link_has_a_node_or_two_ends(ends):
    with pytest.raises(BadInput, match="(?s)of a node, or between two.*between="):
        LocalCluster("lab").link(bandwidth="1Gbit", **ends)


def test_a_cluster_that_is_not_there_is_refused_with_the_way_to_make_it(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    with pytest.raises(kit.ClusterNotFound, match='create_cluster."local", name="lab"'):
        kit.connect("lab")
    assert repr(kit.list_clusters()) == "no clusters"
    kit.clusters.LocalCluster("lab").delete()


def test_the_words_of_the_local_clusters_program_are_kept(monkeypatch):
    monkeypatch.setattr(machine.sys, "executable", "/bin/false")
    with pytest.raises(ProviderFailed, match="ended with status 1"):
        machine.call("list")


def test_a_cluster_that_does_not_answer_is_named(kubeconfig):
    kube = Kube(kubeconfig, cluster="lab")
    assert kube.namespace == "mine"
    with pytest.raises(ClusterUnreachable, match='(?s)Connection refused.*cluster "lab".*127.0.0.1:9'):
        kube.version()
    with pytest.raises(ClusterUnreachable):
        kit.create_cluster("existing", name="lab", kubeconfig=kubeconfig)


@pytest.mark.parametrize("text", ["", "a: [", "apiVersion: v1\nkind: Config\n", "{}", "just words"])
def test_a_kubeconfig_that_cannot_be_used_is_refused(text, tmp_path):
    path = tmp_path / "kubeconfig"
    path.write_text(text)
    with pytest.raises(BadInput, match="kubeconfig"):
        kit.connect("lab", kubeconfig=path)


def test_a_kubeconfig_or_context_that_is_not_there_is_named(kubeconfig, tmp_path):
    with pytest.raises(BadInput, match="nowhere"):
        kit.connect("lab", kubeconfig=tmp_path / "nowhere")
    with pytest.raises(BadInput, match='(?s)no context "other".*set context= to one of: '):
        kit.connect("lab", kubeconfig=kubeconfig, context="other")


def test_threads_of_one_kernel_may_ask_for_kubectl_at_the_same_moment(kubeconfig, monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    monkeypatch.setattr(existing, "find_kubectl", lambda: ["kubectl"])
    cluster = existing.ExistingCluster("lab", kubeconfig=kubeconfig)
    with ThreadPoolExecutor(8) as pool:
        commands = list(pool.map(lambda _: cluster.kubectl_command(), range(100)))
    assert {row[-1] for row in commands} == {"kubectl"}


def test_an_error_in_a_terminal_is_a_few_lines_and_exit_status_1(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    for words in (
        ["cluster", "status", "lab"],
        ["cluster", "create", "lab", "--nodes", "500"],
        ["run", "list", "-c", "lab"],
    ):
        result = CliRunner().invoke(main.main, words)
        assert result.exit_code == 1
        assert result.stdout == ""
        assert "Traceback" not in result.stderr
        assert "  try:   " in result.stderr


def test_a_manifest_can_be_printed_from_a_terminal_without_a_cluster():
    words = ["launch", "trainers/digits_ddp.py", "--nodes", "2", "--dry-run", "--", "--epochs", "3"]
    result = CliRunner().invoke(main.main, words)
    assert result.exit_code == 0
    assert "completions: 2" in result.stdout
    assert "- --epochs\n" in result.stdout
    words = (
        "launch trainers/mnist_parameter_server.py --kind parameter-server --name ps --volume /data=shared"
    )
    result = CliRunner().invoke(
        main.main, [*words.split(), "--set=data=/data/m", "--memory=1Gi", "--dry-run"]
    )
    assert '"memory": "1Gi"' in result.stdout


def test_importing_the_kit_starts_nothing_and_brings_no_heavy_library():
    heavy = ["torch", "kubernetes", "pandas", "matplotlib", "localkube"]
    script = f"import kitlib, sys; print([each for each in {heavy} if each in sys.modules])"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


@pytest.mark.parametrize("interrupt", [None, KeyboardInterrupt])
@pytest.mark.parametrize("how", ["deleted", "recreated"])
def test_kubeconfigs_of_attendees_go_before_their_cluster_does(how, interrupt, monkeypatch, keys):
    (keys / "ada.kubeconfig").touch()
    second_folder = cleanup.attendees_folder("lab-2")
    second_folder.mkdir()

    def answer(*words, **more):
        if interrupt or words[0] != "delete":
            raise interrupt or ProviderFailed("enough", about="", fix="")

    monkeypatch.setattr(local, "call", answer)
    with suppress(KeyboardInterrupt, ProviderFailed):
        if how == "deleted":
            LocalCluster("lab").delete()
        else:
            kit.create_cluster("local", name="lab", recreate=True)
    assert not keys.exists()
    assert second_folder.exists()


def test_a_cluster_whose_kubeconfig_is_gone_names_the_file_that_is_to_be_removed(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    kubeconfig = tmp_path / "config"
    kubeconfig.write_text(KUBECONFIG)
    ExistingCluster("lab", kubeconfig=kubeconfig).remembered()
    existing._forget_here("lab")  # another kernel has connected to it
    kubeconfig.unlink()
    with pytest.raises(BadInput, match='"rm (.*lab.json)" lets the kit forget') as refused:
        clusters.find("lab", provider="existing")
    Path(re.search('"rm (.*)"', str(refused.value))[1]).unlink()
    assert clusters.find("lab", provider="existing") is None


def test_kubeconfigs_of_attendees_go_with_any_cluster_that_is_deleted_or_forgotten(
    kubeconfig, keys, monkeypatch
):
    ExistingCluster("lab", kubeconfig=kubeconfig).forget()
    assert not keys.exists()
    keys.mkdir(parents=True)
    assert removal.delete("lab")["state"] == "absent"  # localkube's own
    assert not keys.exists()
    keys.mkdir(parents=True)
    monkeypatch.setattr(clusters, "find", lambda name, **more: None)  # it has gone otherwise
    assert CliRunner().invoke(main.main, ["cluster", "delete", "lab"]).exit_code == 1
    assert not keys.exists()


FORWARD = """
import socket, sys
with socket.create_server(("127.0.0.1", 0)) as server:
    print(f"Forwarding from 127.0.0.1:{server.getsockname()[1]} -> 80", flush=True)
    for stream in (sys.stdout, sys.stderr):
        stream.write("Handling connection\\n" * 50_000)
        stream.flush()
    client, _ = server.accept()
    client.sendall(b"served")
    client.close()
    sys.stdin.read(), sys.stdout.write("lost"), sys.exit(1)
"""


def test_a_forwarded_port_serves_after_any_number_of_connections(tmp_path):
    """kubectl writes a line for each, and one for each error: it stopped for good where nobody read them."""
    (tmp_path / "kubectl").write_text(FORWARD)
    kubectl = [sys.executable, str(tmp_path / "kubectl")]
    with forward_port(kubectl, "pod/x", 80, kubeconfig=tmp_path / "none") as address:
        host, port = address.split(":")
        with socket.create_connection((host, int(port)), 60) as client:
            assert client.recv(6, socket.MSG_WAITALL) == b"served"


@pytest.mark.parametrize(
    ("message", "fix"),
    [
        ('error: pods "x" not found', "kubectl get pod/x shows"),
        (
            'error: error upgrading connection: pods "x" is forbidden: User "a" cannot create resource '
            '"pods/portforward" in API group "" in the namespace "lab"',
            "--resource=pods/portforward",
        ),
    ],
)
def test_a_port_that_cannot_be_forwarded_says_why(tmp_path, message, fix):
    (tmp_path / "kubectl").write_text(f"import sys\nprint('first'), sys.exit({message!r})")
    kubectl = [sys.executable, str(tmp_path / "kubectl")]
    with (
        pytest.raises(CommandFailed, match=f"(?s)first.*{message}.*{fix}"),
        forward_port(kubectl, "pod/x", 80, kubeconfig=tmp_path / "none"),
    ):
        pass


def test_a_program_may_write_any_number_of_warnings_before_it_answers(tmp_path, monkeypatch):
    (tmp_path / "localkube").mkdir()
    program = "import sys\nsys.stderr.write('warning\\n' * 50_000)\nprint('{\"result\": 7, \"verbs\": 1}')"
    (tmp_path / "localkube" / "__main__.py").write_text(program)
    monkeypatch.setattr(machine, "ROOT", tmp_path)
    assert machine.call("list") == 7


def test_a_fix_of_the_local_cluster_names_its_verbs_and_the_kit_its_own_calls(tmp_path, monkeypatch):
    verbs = subprocess.run(
        [sys.executable, "-m", "localkube", "--help"], capture_output=True, text=True
    ).stdout
    sources = "".join(path.read_text() for path in (config.ROOT / "localkube").rglob("*.py"))
    named = set(re.findall(r"python -m localkube ([a-z][\w-]+)", sources))
    assert len(named) >= 8 and {name for name in named if f"    {name}" not in verbs} == set()
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    with pytest.raises(ProviderFailed) as refused:
        machine.call("start", "absent")
    assert refused.value.fix == '`kit.create_cluster("local", name="absent")`'
    text = json.dumps({"progress": "`python -m localkube image-store load FILE`"})
    assert machine._message(text) == {"progress": "`trainyard images load FILE`"}


@pytest.mark.parametrize(
    ("variables", "provider", "words"),
    [
        ({"TRAINYARD_PROVIDER": "aks"}, None, "provider='aks'"),
        ({"TRAINYARD_PROVIDER": "existing"}, "gcp", "provider='gcp'"),
    ],
)
def test_the_provider_is_that_of_the_handout_unless_a_call_names_one(variables, provider, words, monkeypatch):
    monkeypatch.setattr("os.environ", os.environ | variables)
    with pytest.raises(BadInput, match=words):
        kit.create_cluster(provider)
    assert config.read({}).provider == "local"


@pytest.mark.parametrize(("kit_speaks", "answer"), [(2, {}), (1, {"verbs": 2}), (1, {})])
def test_a_kit_and_a_local_cluster_of_different_verbs_do_not_work_together(
    kit_speaks, answer, tmp_path, monkeypatch
):
    """The program refuses before it does anything; of an older or newer one the kit refuses the answer."""
    monkeypatch.setattr(machine, "VERBS", kit_speaks)
    if kit_speaks == 1:
        (tmp_path / "localkube").mkdir()
        program = f"print({json.dumps(json.dumps({'result': 7} | answer))})"
        (tmp_path / "localkube" / "__main__.py").write_text(program)
        monkeypatch.setattr(machine, "ROOT", tmp_path)
    with pytest.raises(ProviderFailed, match="speaks version .*") as refused:
        machine.call("list")
    assert "trainyard-kit-localkube of the same release" in refused.value.fix


WITHOUT_LOCAL = """
import sys

LACKING = {"localkube", "aiohttp", "cryptography", "dnslib", "grpc_health", "pynvml", "yarl", "jupyterlab"}

class Lacking:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in LACKING:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Lacking())
import kitlib as kit
from kitlib.clusters import machine
import trainyard_kit.cli.main
machine.is_installed = kit.clusters.is_installed = lambda: False  # the files of a checkout are there
cluster = kit.connect("there", kubeconfig=sys.argv[1])
print([row["cluster"] for row in kit.list_clusters()], kit.IndexedJob("trainers/digits_ddp.py", nodes=2))
try:
    kit.create_cluster("local")
except kit.KitError as error:
    print(error)
"""


def test_an_existing_cluster_needs_no_local_one(kubeconfig, tmp_path):
    environment = os.environ | {"XDG_STATE_HOME": str(tmp_path)}
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT_LOCAL, kubeconfig], env=environment, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    assert "['there']" in done.stdout
    assert "install trainyard-kit with its extra [local]" in done.stdout
