"""Several notebooks with one name for their cluster: each keeps to its own server, user and namespace."""

import json
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import yaml
from click.testing import CliRunner

import kitlib as kit
from kitlib.clusters import existing
from kitlib.clusters.existing import ExistingCluster
from trainyard_kit.cli import main

pytestmark = pytest.mark.cluster
# Before connections had files of their own, 16 of 25 calls crossed.
CALLS, PEOPLE = 3, ("ada", "bob", "cyd")
NOTEBOOK = """
import json, os, subprocess, sys
import kitlib as kit
kubeconfig, namespace, calls = sys.argv[1], sys.argv[2], int(sys.argv[3])
kit.create_cluster("existing", kubeconfig=kubeconfig, context=sys.argv[4] or None, namespace=namespace)
seen = []
for _ in range(calls):
    cluster = kit.connect()
    seen.append(cluster.kube.namespace)
    seen.append(cluster.kubectl("get configmap mine -o jsonpath={.data.of}"))
    variables = os.environ | {"KUBECONFIG": str(cluster.kubeconfig)}
    command = [*cluster.kubectl_command(), "get", "configmap", "mine", "-o", "jsonpath={.data.of}"]
    seen.append(subprocess.run(command, env=variables, capture_output=True, text=True, check=True).stdout)
print(json.dumps(seen))
"""


@pytest.fixture(scope="module")
def namespaces(local_cluster):
    """A namespace for each person, with a ConfigMap that says whose it is."""
    for person in PEOPLE:
        local_cluster.kubectl(f"create namespace {person}")
        local_cluster.kubectl(f"create configmap mine -n {person} --from-literal=of={person}")
    yield
    local_cluster.kubectl(f"delete namespace {' '.join(PEOPLE)} --wait=false")


@pytest.fixture(autouse=True)
def own_state(tmp_path, monkeypatch, local_cluster):
    """A home of the test's own, in which all of its notebooks are."""
    local_cluster.kubectl_command()
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setattr(existing, "_process", {})
    monkeypatch.setattr(existing, "_thread", type(existing._thread)())


@pytest.fixture
def kubeconfig(local_cluster, tmp_path):
    """Write a kubeconfig like a cloud's: contexts of several clusters, one of which is the current one."""

    def write(name="config", *, current="lab", more=()):
        content = yaml.safe_load(local_cluster.kubeconfig.read_text())
        server, user = content["clusters"][0]["cluster"], content["users"][0]["user"]
        path = tmp_path / name
        contexts = [("lab", "lab", None), *more]
        path.write_text(
            yaml.safe_dump(
                {
                    "clusters": [
                        {"name": "lab", "cluster": server},
                        {"name": "other", "cluster": {"server": "https://127.0.0.1:1"}},
                    ],
                    "users": [{"name": "admin", "user": user}],
                    "contexts": [
                        {
                            "name": name,
                            "context": {"cluster": to, "user": "admin", "namespace": of or "default"},
                        }
                        for name, to, of in contexts
                    ],
                    "current-context": current,
                }
            )
        )
        return path

    return write


def _notebooks(rows):
    """Run notebooks at once, each a process, and return what each has seen."""
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", NOTEBOOK, str(path), namespace, str(CALLS), context],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for path, namespace, context in rows
    ]
    outputs = []
    for process in processes:
        output, errors = process.communicate(timeout=300)
        assert process.returncode == 0, errors
        outputs.append(json.loads(output))
    return outputs


def test_notebooks_in_processes_with_two_kubeconfigs_at_once_keep_to_their_own(namespaces, kubeconfig):
    first = kubeconfig("first", more=[("a", "lab", "ada")], current="a")
    second = kubeconfig("second", more=[("a", "other", "bob"), ("b", "lab", "bob")], current="a")
    outputs = _notebooks([(first, "ada", ""), (second, "bob", "b"), (first, "cyd", "lab")])
    assert [set(names) for names in outputs] == [{"ada"}, {"bob"}, {"cyd"}]
    assert all(len(names) == 3 * CALLS for names in outputs)


def test_notebooks_in_threads_of_one_process_keep_to_their_own(namespaces, kubeconfig):
    path = kubeconfig()

    def notebook(person):
        kit.create_cluster("existing", kubeconfig=path, namespace=person)
        return {kit.connect().kubectl("get configmap mine -o jsonpath={.data.of}") for _ in range(CALLS)}

    with ThreadPoolExecutor(2) as pool:
        assert list(pool.map(notebook, ["ada", "bob"])) == [{"ada"}, {"bob"}]


def test_clean_up_by_the_default_name_deletes_ones_own_objects_alone(namespaces, kubeconfig, local_cluster):
    path = kubeconfig()
    ExistingCluster("trainyard", kubeconfig=path, namespace="ada").remembered()
    local_cluster.kube.in_namespace("bob").create(
        {
            "apiVersion": "v1",
            "kind": "ConfigMap",
            "metadata": {"name": "hers", "labels": {"trainyard/kit": "true", "trainyard/run": "hers"}},
        }
    )
    _notebooks([(path, "bob", "")])  # another kernel uses the name, from a process of its own
    kit.clean_up()
    assert "hers" in local_cluster.kubectl("get configmaps -n bob")


def test_a_cluster_stays_in_its_context_when_the_file_gets_another_one(namespaces, kubeconfig):
    path = kubeconfig(more=[("a", "lab", "ada"), ("away", "other", None)], current="a")
    cluster = kit.connect(kubeconfig=path)
    content = yaml.safe_load(path.read_text())
    path.write_text(yaml.safe_dump(content | {"current-context": "away"}))
    for again in (cluster, kit.connect()):
        assert again.kubectl("get configmap mine -o jsonpath={.data.of}") == "ada"
        assert again.kube.find("ConfigMap", "mine")["data"]["of"] == "ada"


def remember_elsewhere(path, namespace):
    """Remember a connection under the name lab, as a kernel of its own does."""
    existing._process.clear()
    existing._thread.options = {}
    ExistingCluster("lab", kubeconfig=path, namespace=namespace).remembered()


def test_the_command_uses_the_namespace_of_the_connection(namespaces, kubeconfig, caplog):
    remember_elsewhere(kubeconfig(), "ada")
    path = Path(CliRunner().invoke(main.main, ["cluster", "kubeconfig", "--path", "lab"]).stdout.strip())
    assert yaml.safe_load(path.read_text())["contexts"][0]["context"]["namespace"] == "ada"
    assert path.stat().st_mode & 0o777 == 0o600
    command = [sys.executable, "-m", "trainyard_kit.cli", "kubectl", "get", "configmaps", "-c", "lab"]
    assert "mine" in subprocess.run(command, capture_output=True, text=True, check=True).stdout
    remember_elsewhere(kubeconfig(), "bob")
    assert 'has led to namespace "ada"' in caplog.text
