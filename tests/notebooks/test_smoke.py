"""The smoke test on a cluster that somebody else looks after: what it finds, says, and leaves behind.

The cluster is the tests' shared one, reached by its kubeconfig as any other would be.
"""

import json
import os
import re
import shlex
import subprocess
import tarfile
from pathlib import Path

import jsonschema
import pytest
import yaml
from junitparser import JUnitXml

import kitlib as kit

ROOT = Path(__file__).parents[2]
SCHEMA = json.loads((ROOT / "tools" / "smoke" / "result.schema.json").read_text())
CONNECT = "import kitlib as kit\ncluster = kit.create_cluster(provider, name=cluster_name)"
LAUNCH = (  # a pod that says a secret, and runs until it is deleted
    "job = kit.IndexedJob('trainers/digits_ddp.py', nodes=1, name='endless')\n"
    "says = {'name': 'pytorch', 'command': ['sh', '-c', 'echo from the pod; exec sleep 600'],\n"
    "        'env': [{'name': 'HF_TOKEN', 'value': 'hf_do_not_tell'}]}\n"
    "run = kit.launch(job.patch({'spec': {'template': {'spec': {'containers': [says],\n"
    "                 'terminationGracePeriodSeconds': 0}}}}), cluster=cluster)\n"
    "next(iter(run.logs(rank=0, follow=True)))"
)
BY_HAND = "cluster.kubectl('create configmap by-hand --from-literal=a=b')"
OPERATOR = (  # as notebook 09 leaves it when it fails
    "label = 'trainyard/kit=true trainyard/operator=training-operator'\n"
    "cluster.kubectl('create namespace kubeflow')\n"
    "cluster.kubectl('-n kubeflow create deployment training-operator --image=none --replicas=0')\n"
    "cluster.kubectl(f'-n kubeflow label deployment/training-operator namespace/kubeflow {label}')"
)
LABEL = "cluster.kubectl('label configmap by-hand trainyard/notebook=07')"

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(900)]


@pytest.fixture
def smoke(local_cluster, runner, tmp_path, monkeypatch):
    """Return a function that gives the command line of a smoke test of the shared cluster."""
    program = tmp_path / "bin" / "kubectl"
    program.parent.mkdir()
    program.write_text(f'#!/bin/sh\nexec {shlex.join(local_cluster.kubectl_command())} "$@"\n')
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{program.parent}{os.pathsep}{os.environ['PATH']}")

    def command(*words, kubeconfig=local_cluster.kubeconfig):
        of_others = ["--provider", "existing", "--kubeconfig", str(kubeconfig)]
        return runner(*of_others, "--folder", str(tmp_path), *words)

    return command


@pytest.fixture
def read_report(tmp_path):
    """Return a function that reads what a run says for programs, in its documented shape."""

    def read():
        result = json.loads((tmp_path / "reports" / "result.json").read_text())
        jsonschema.validate(result, SCHEMA)
        (suite,) = JUnitXml.fromfile(str(tmp_path / "reports" / "junit.xml"))
        cases = {case.name: case for case in suite}
        assert set(cases) >= {notebook["name"] for notebook in result["notebooks"]}
        return result, cases

    return read


def namespaces(cluster):
    return set(cluster.kubectl("get namespaces -o name").split())


@pytest.mark.slow
def test_a_failed_notebook_of_an_administrator_leaves_a_bundle(
    make_notebook, smoke, finish, read_report, local_cluster, tmp_path
):
    make_notebook("07_fails", CONNECT, LAUNCH, "first = 1\nassert first == 2, 'one is not two'", "never = 1")
    make_notebook("08_passes", CONNECT, OPERATOR)
    before = namespaces(local_cluster)
    done = finish(smoke(), timeout=400)
    assert done.returncode == 1, done.stdout
    assert "07_fails: failed: cell 5 (`first = 1`): AssertionError: one is not two" in done.stdout
    assert "08_passes: passed" in done.stdout
    assert namespaces(local_cluster) == before, "the run's namespace is gone, and the operator's"

    result, cases = read_report()
    assert result["verdict"] == "failed"
    assert result["cluster"]["namespace"] == f"trainyard-{result['run']}"
    assert result["notebooks"][0]["failure"]["cell"] == 5
    assert "one is not two" in cases["07_fails"].result[0].message
    index = (tmp_path / "reports" / "index.html").read_text()
    assert "one is not two" in index
    assert result["run"] in index
    assert result["run"] not in repr(kit.list_clusters()), "the kit has forgotten it"
    check_bundle(tmp_path / "reports" / result["bundle"], local_cluster, result["run"])


def check_bundle(path, cluster, run):
    with tarfile.open(path) as archive:
        files = {
            member.name: archive.extractfile(member).read().decode() for member in archive if member.isfile()
        }
    inside = f"bundle/07_fails/trainyard-{run}"
    (log,) = [text for name, text in files.items() if name.startswith(f"{inside}/logs/endless-0")]
    assert "from the pod" in log
    assert "Scheduled" in files[f"{inside}/Event.yaml"]
    assert f"trainyard/workshop: {run}" in files[f"{inside}/Job.yaml"], "the run's id is on what it made"
    assert files["bundle/07_fails/cluster/Node.yaml"].count("kind: Node") <= 4
    assert "node-3" in files["bundle/07_fails/nodes.txt"]
    (user,) = yaml.safe_load(cluster.kubeconfig.read_text())["users"]
    for name, text in files.items():
        assert "hf_do_not_tell" not in text, name
        for secret in user["user"].values():
            assert secret not in text, name


@pytest.mark.slow
def test_an_attendee_works_in_their_namespace_and_only_what_the_run_made_is_deleted(
    make_notebook, smoke, finish, read_report, local_cluster, tmp_path
):
    make_notebook(
        "07_leaves", CONNECT, LAUNCH, BY_HAND, LABEL, "cluster.kube.get('ConfigMap', 'trainyard-run')"
    )
    scored = make_notebook("08_scores", CONNECT, "0.5", tags={4: "result-accuracy"})
    attendee = kit.workshop.add("smoke", cluster=local_cluster, cpu="4", memory="8Gi")
    theirs = kit.connect("theirs", kubeconfig=attendee.kubeconfig)

    def objects():
        names = local_cluster.kubectl(f"-n {attendee.namespace} get configmap,job,pod -o name").split()
        return set(names) - {"configmap/kube-root-ca.crt"}  # which Kubernetes adds in its own time

    try:
        local_cluster.kubectl(f"-n {attendee.namespace} create configmap kept --from-literal=a=b")
        before = objects()
        words = ("--min-accuracy", "08=0.9", "--context", "smoke")
        done = finish(smoke(*words, kubeconfig=attendee.kubeconfig), timeout=400)
        assert done.returncode == 3, done.stdout
        assert "threshold missed: accuracy in 08_scores: 0.5, expected at least 0.9" in done.stdout
        result, cases = read_report()
        assert result["verdict"] == "threshold missed"
        assert result["cluster"]["namespace"] == attendee.namespace
        assert result["cluster"]["nodes"] is None
        assert result["thresholds"][0] | {"held": False, "measured": 0.5} == result["thresholds"][0]
        assert cases["accuracy is at least 0.9 in 08_scores"].result
        assert "configmap/kept" in before
        assert objects() == before

        theirs.kubectl("create configmap trainyard-run")
        theirs.kubectl("label configmap trainyard-run trainyard/workshop=run-other")
        scored.unlink()
        done = finish(smoke(kubeconfig=attendee.kubeconfig), timeout=400)
        assert done.returncode == 4, done.stdout
        assert "run-other has used it since" in read_report()[0]["error"]
        assert theirs.kube.find("ConfigMap", "trainyard-run"), "another run's mark stays"
    finally:
        theirs.delete()
        kit.workshop.remove("smoke", cluster=local_cluster)


@pytest.mark.slow
def test_a_terminated_run_deletes_its_namespace(make_notebook, smoke, read_report, local_cluster):
    make_notebook("07_waits", CONNECT, LAUNCH, "import threading\nthreading.Event().wait()")
    before = namespaces(local_cluster)
    with subprocess.Popen(
        smoke(), cwd=ROOT, env=os.environ, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    ) as process:
        lines = []
        for line in process.stdout:
            lines.append(line)
            if re.search(r"cell 5/\d", line):
                process.terminate()
    assert process.returncode == 130, "".join(lines)
    assert namespaces(local_cluster) == before
    assert read_report()[0]["verdict"] == "interrupted"


def test_a_kubeconfig_that_leads_nowhere_is_told_in_the_report(
    make_notebook, smoke, finish, read_report, tmp_path
):
    make_notebook("07_never", "never = 1")
    lost = tmp_path / "lost.kubeconfig"
    done = finish(smoke(kubeconfig=lost), timeout=120)
    assert done.returncode == 4, done.stdout
    result, cases = read_report()
    assert "there is no such kubeconfig" in result["error"]
    assert cases["made, reached and cleaned up"].is_error
    assert result["error"].splitlines()[0] in (tmp_path / "reports" / "index.html").read_text()
