"""Keys, tokens and the words of Secrets: in no log, command line, notebook, report or output of the kit.

A cluster of its own, whose kubelet logs at the level DEBUG, with a pod that has all of them.
"""

import base64
import os
import secrets
import subprocess
import sys
from pathlib import Path

import nbformat
import psutil
import pytest
import yaml
from click.testing import CliRunner
from nbformat.v4 import new_code_cell, new_notebook

import kitlib as kit
from kitlib.k8s import pods
from trainyard_kit.cli.main import main

from ..patience import until

pytestmark = pytest.mark.cluster

ROOT = Path(__file__).parents[2]
WORD = f"swordfish-{secrets.token_hex(8)}"
SCRIPT = "test $WORD = $(cat /fish/word) && cat /var/run/secrets/kubernetes.io/serviceaccount/token; exit 3"
VERBS = (
    ["cluster", "list"],
    ["cluster", "status"],
    ["run", "list"],
    ["workshop", "list"],
    ["doctor"],
    ["cache"],
    ["kubectl", "describe", "pods,secrets,serviceaccounts"],
    ["kubectl", "get", "events", "-o", "json"],
    ["kubectl", "config", "view"],
)
CELL = """import kitlib as kit
cluster = kit.connect(cluster_name)
display(cluster, cluster.nodes(), cluster.pods(), cluster.events(), cluster.runs())
display(kit.workshop.list_attendees(cluster=cluster))
print(vars(cluster), vars(cluster.kube), cluster.kube.kubeconfig)
try:
    cluster.kubectl("logs no-such-pod -v=6")
except kit.errors.KitError as error:
    print(error, repr(error), vars(error))"""
REPORT = """
import sys
from pathlib import Path
sys.path.insert(0, sys.argv[1])
import report
from smoke.result import Outcome
results = [report.read(Path(sys.argv[3]), original=Path(sys.argv[2]))]
outcome = Outcome("run-1", "2030-01-02T03:04:05+00:00", ["07_shows"], notebooks=results)
report.write(outcome, folder=Path(sys.argv[3]).parent)
"""


@pytest.fixture(scope="module")
def cluster(state_home):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TRAINYARD_LOG_LEVEL", "DEBUG")
        with kit.create_cluster("local", name="secretive", nodes=1, warm=False) as cluster:
            yield cluster


@pytest.fixture(scope="module")
def hidden(cluster, state_home):
    """What must be nowhere, by what it is; the pod and the attendee who have it are there."""
    token = token_of(cluster)
    ada = kit.workshop.add("ada", cluster=cluster)
    attendee = yaml.safe_load(ada.kubeconfig.read_text())["users"][0]["user"]["token"]
    user = yaml.safe_load(cluster.kubeconfig.read_text())["users"][0]["user"]
    words = {
        "the Secret": WORD,
        "the Secret in base 64": base64.b64encode(WORD.encode()).decode(),
        "the pod's token": token.rsplit(".", 1)[1],
        "the attendee's token": attendee.rsplit(".", 1)[1],
        "the user's key": user["client-key-data"],
        "a private key": "PRIVATE KEY-----",
    }
    keys = list(folder(state_home, cluster).glob("pki/*.key"))
    assert len(keys) > 5
    return words | {path.name: path.read_text().splitlines()[1] for path in keys}


def token_of(cluster):
    """Run a pod with a Secret and its account, and one that cannot start; return the token of the first."""
    kube = cluster.kube
    kube.create(
        {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "fish"}, "stringData": {"word": WORD}}
    )
    container = {
        "name": "main",
        "image": "busybox",
        "command": ["sh", "-c", SCRIPT],
        "env": [{"name": "WORD", "valueFrom": {"secretKeyRef": {"name": "fish", "key": "word"}}}],
        "volumeMounts": [{"name": "fish", "mountPath": "/fish"}],
    }
    broken = container | {"volumeMounts": [{"name": "fish", "mountPath": "/fish", "subPath": "no/such"}]}
    for name, container_name in (("whole", container), ("broken", broken)):
        spec = {"restartPolicy": "Never", "containers": [container_name]}
        spec["volumes"] = [{"name": "fish", "secret": {"secretName": "fish"}}]
        kube.create({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": spec})
    until(
        lambda: pods.status_word(kube.get("Pod", "broken")) == "CreateContainerConfigError",
        "the pod to be refused",
    )
    until(lambda: pods.finished(kube.get("Pod", "whole")), "the pod to end")
    token = cluster.kubectl("logs whole").strip()
    assert token.startswith("ey"), token
    return token


def folder(state_home, cluster):
    return state_home / "trainyard" / "clusters" / cluster.name


def shown(texts, hidden):
    return [(what, where) for what, text in hidden.items() for where, all_ in texts.items() if text in all_]


def test_no_secret_is_in_the_logs_of_the_kubelet_and_the_components(cluster, hidden, state_home):
    logs = {
        path.name: path.read_text(errors="replace")
        for path in (folder(state_home, cluster) / "logs").glob("*.log")
    }
    assert {"kubelet.log", "kube-apiserver.log", "etcd.log", "supervisor.log"} <= set(logs)
    assert " DEBUG " in logs["kubelet.log"]
    assert shown(logs, hidden) == []


def test_no_secret_is_in_the_command_line_of_any_process(cluster, hidden):
    command_lines = {}
    for process in psutil.process_iter(["pid", "cmdline"]):
        command_lines[process.info["pid"]] = " ".join(process.info["cmdline"] or [])
    assert any(cluster.name in words for words in command_lines.values())
    assert shown(command_lines, hidden) == []


@pytest.mark.parametrize("verb", VERBS, ids=" ".join)
def test_no_secret_is_in_what_the_kit_prints(cluster, hidden, verb):
    option = ["--cluster", cluster.name]
    words = [verb[0], *option, *verb[1:]] if verb[0] == "kubectl" else verb
    if verb[0] in ("run", "workshop"):
        words = [*verb, *option]
    if verb[1:] == ["status"]:
        words = [*verb, cluster.name]
    if verb[0] == "kubectl":  # becomes kubectl
        command = [sys.executable, "-m", "trainyard_kit.cli", *words]
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    else:
        done = CliRunner().invoke(main, words)
    assert done.stdout, done.stderr
    assert shown({"out": done.stdout, "err": done.stderr}, hidden) == []


def test_no_secret_is_in_an_executed_notebook_and_its_report(cluster, hidden, tmp_path):
    cells = [new_code_cell('cluster_name = ""'), new_code_cell(CELL)]
    cells[0].metadata["tags"] = ["parameters"]
    kernel = {"name": "python3", "language": "python", "display_name": "Python 3"}
    original, executed = tmp_path / "07_shows.ipynb", tmp_path / "reports" / "07_shows.ipynb"
    executed.parent.mkdir()
    nbformat.write(new_notebook(cells=cells, metadata={"kernelspec": kernel}), original)
    tool = str(ROOT / "tools" / "execute_notebook.py")
    for command in (
        [tool, str(original), str(executed), f'cluster_name="{cluster.name}"'],
        ["-c", REPORT, str(ROOT / "tools"), str(original), str(executed)],
    ):
        subprocess.run([sys.executable, *command], cwd=ROOT, env=os.environ, check=True, timeout=120)
    files = {path.name: path.read_text() for path in executed.parent.iterdir() if path.is_file()}
    assert {"07_shows.ipynb", "07_shows.html", "index.html"} <= set(files)
    assert "whole" in files["07_shows.html"]
    assert shown(files, hidden) == []
