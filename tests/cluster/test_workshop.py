"""A workshop on a real cluster: rooms for all, data that nobody spoils, a table of who is where, no trace."""

import json
import re
import stat
import subprocess
from contextlib import contextmanager

import nbformat
import pytest
import requests
from click.testing import CliRunner
from nbclient import NotebookClient
from nbformat.v4 import new_code_cell, new_notebook

import kitlib as kit
from trainyard_kit.cli import main
from trainyard_kit.workshop.jupyter import token_of

from ..patience import until

pytestmark = pytest.mark.cluster
SERVICE = {"name": "jupyter", "port": {"name": "http"}}
CONTAINER = {"name": "main", "image": "busybox"}
NOTEBOOK = [
    "import kitlib as kit",
    'cluster = kit.create_cluster("existing", name="mine")',
    "cluster.pods()",
    'raise ValueError("my own mistake\\nand more of it")',
]


@pytest.fixture(scope="module")
def workshop(local_cluster):
    """A workshop of two, with data; deleted after the tests of this file."""
    yield kit.workshop.create(["ada", "bob"], cluster=local_cluster, datasets=["digits"], cpu="2", pods=8)
    kit.workshop.delete(cluster=local_cluster)


def connect(workshop, name):
    (attendee_of_name,) = [attendee for attendee in workshop.attendees if attendee.name == name]
    return kit.connect(f"room-of-{name}", kubeconfig=attendee_of_name.kubeconfig)


def row_of(name, cluster):
    (row,) = [attendee for attendee in kit.workshop.status(cluster=cluster) if attendee["attendee"] == name]
    return row


def test_everybody_has_a_room_with_what_belongs_into_it_and_it_is_said_what_does_not(workshop, local_cluster):
    facts = {fact["item"]: f"{fact['value']} {fact['note']}" for fact in workshop.facts}
    assert "isolated by the local cluster" in facts["network"]
    assert "127.0.0.1" in facts["jupyter"]
    assert "digits" in facts["data"]
    assert stat.S_IMODE(workshop.handout.stat().st_mode) == 0o600
    for attendee in workshop.attendees:
        kinds = local_cluster.kubectl(
            f"get networkpolicy,resourcequota,limitrange,role,pvc,configmap -n {attendee.namespace} -o name"
        )
        for kind in ("networkpolicy", "resourcequota", "limitrange", "role", "datasets", "notebook-progress"):
            assert kind in kinds
    late = CliRunner().invoke(main.main, ["workshop", "add", "late-lena", "-c", local_cluster.name])
    assert late.exit_code == 0, late.output
    assert late.stdout.strip().endswith("late-lena.kubeconfig")
    shown = CliRunner().invoke(main.main, ["workshop", "status", "-c", local_cluster.name])
    assert [line.split()[0] for line in shown.stdout.splitlines()[1:]] == ["ada", "bob", "late-lena"]


def test_data_are_staged_once_and_read_by_all_and_nobody_spoils_them(workshop, plain):
    source = """
        import json, pathlib
        print(json.loads(pathlib.Path("/datasets/digits/dataset.json").read_text())["name"])
        try:
            pathlib.Path("/datasets/mine").write_text("spoilt")
        except OSError as error:
            print("read-only:", error.strerror)
    """
    runs = []
    for name in ("ada", "bob"):
        theirs = connect(workshop, name)
        data = kit.prepare_dataset("digits", volume=theirs.create_volume("shared", size="10Mi"))
        assert data.path == "/datasets/digits"
        assert len(theirs.runs()) == 0, "nothing was started to find them"
        runs.append(kit.launch(plain(source, nodes=1, name="reads", volumes=data.volumes), cluster=theirs))
    for run in runs:
        run.wait(timeout=120)
        logs = repr(run.logs(rank=0))
        assert "digits" in logs
        assert "read-only: Read-only file system" in logs
        run.delete()


def test_the_instructor_sees_a_notebooks_cell_its_error_and_pending_pods(
    workshop, local_cluster, tmp_path, monkeypatch
):
    ada = next(attendee for attendee in workshop.attendees if attendee.name == "ada")
    monkeypatch.setenv("KUBECONFIG", str(ada.kubeconfig))
    container = {"name": "main", "image": "busybox", "command": ["true"]}
    stuck = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "stuck"}}
    spec = {"containers": [container], "nodeSelector": {"no": "such-node"}}
    local_cluster.kube.in_namespace(ada.namespace).create(stuck | {"spec": spec})
    notebook = new_notebook(cells=[new_code_cell(source) for source in NOTEBOOK])
    path = tmp_path / "05_indexed_job.ipynb"
    nbformat.write(notebook, path)
    client = NotebookClient(
        notebook, timeout=120, allow_errors=True, resources={"metadata": {"path": tmp_path}}
    )
    with kit.workshop.watch(cluster=local_cluster) as watch, client.setup_kernel():
        for index, cell in enumerate(notebook.cells):
            client.execute_cell(cell, index)
        # The kernel tells it in its own time, and the watch hears of it.
        until(
            lambda: any(row[0] == "ada" and "my own mistake" in row[-1] for row in watch.table().rows),
            "the notebook to tell",
        )
    row = row_of("ada", local_cluster)
    assert "ValueError: my own mistake" in row["trouble"]
    assert "and more of it" not in row["trouble"]
    assert "stuck: 0/4 nodes are available" in row["trouble"]
    assert row["doing"].startswith("failed")
    assert row_of("bob", local_cluster)["doing"] == "not reported"
    assert "ada" in watch.static_view()[1]["text/html"]
    assert watch.picture().save(tmp_path / "workshop.png").stat().st_size > 1000


def test_a_jupyterlab_for_one_without_a_machine_opens_by_its_token_alone(workshop, local_cluster):
    attendee = kit.workshop.add("no-laptop", cluster=local_cluster, jupyter=kit.workshop.Jupyter())
    local_cluster.kubectl(f"rollout status deployment/jupyter -n {attendee.namespace} --timeout=180s")
    token = token_of(local_cluster.kube.in_namespace(attendee.namespace))
    with forwarded(local_cluster, attendee) as here:
        url = f"http://{here}/api/contents/notebooks"
        until(
            lambda: "05_indexed_job.ipynb" in requests.get(url, params={"token": token}, timeout=60).text,
            "JupyterLab to list the notebooks",
        )
        assert requests.get(url, timeout=60).status_code == 403
    program = "import kitlib as kit; print(repr(kit.create_cluster('existing')))"
    output = local_cluster.kubectl(
        f'exec deploy/jupyter -n {attendee.namespace} -- sh -c "cd notebooks && python -c \\"{program}\\""'
    )
    assert f'namespace "{attendee.namespace}"' in output
    inside = f"exec deployment/jupyter -n {attendee.namespace} -- sh -c"
    local_cluster.kubectl(f'{inside} "echo mine > notebooks/05_indexed_job.ipynb && kill 1"')
    again = "jsonpath={.status.containerStatuses[0].restartCount}=1"
    local_cluster.kubectl(f"wait pod --all -n {attendee.namespace} --for={again} --timeout=60s")
    local_cluster.kubectl(f"rollout status deployment/jupyter -n {attendee.namespace} --timeout=180s")
    assert local_cluster.kubectl(f'{inside} "cat notebooks/05_indexed_job.ipynb"').strip() == "mine"


@pytest.mark.slow
def test_the_next_call_repairs_what_an_attendee_has_changed(workshop, local_cluster):
    """They may delete what is in their namespace, and create other objects of these names."""
    attendee = kit.workshop.add("vandal", cluster=local_cluster, jupyter=kit.workshop.Jupyter())
    kube = local_cluster.kube.in_namespace(attendee.namespace)
    template = {"metadata": {"labels": {"app": "own"}}, "spec": {"containers": [CONTAINER]}}
    rest = {
        ("Secret", "jupyter"): {"immutable": True, "type": "own"},
        ("Deployment", "jupyter"): {
            "spec": {"replicas": 0, "selector": {"matchLabels": {"app": "own"}}, "template": template}
        },
        ("ConfigMap", "notebook-progress"): {"immutable": True, "data": {"05_indexed_job": "{}"}},
        ("RoleBinding", "attendee"): {
            "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": "other"}
        },
    }
    for (kind, name), fields in rest.items():
        spoiled = kube.get(kind, name)
        kube.delete(kind, name)
        metadata = {"name": name, "namespace": attendee.namespace}
        kube.create({key: spoiled[key] for key in ("apiVersion", "kind")} | {"metadata": metadata} | fields)
    again = kit.workshop.add("vandal", cluster=local_cluster, jupyter=kit.workshop.Jupyter())
    assert len(token_of(kube)) > 16
    assert "jupyter" in repr(kit.connect("vandals", kubeconfig=again.kubeconfig).kube.get_all("Deployment"))
    local_cluster.kubectl(f"rollout status deployment/jupyter -n {attendee.namespace} --timeout=180s")
    kit.workshop.remove("vandal", cluster=local_cluster)


@pytest.mark.slow
@pytest.mark.long
def test_an_ingress_leads_to_a_host_of_each_and_past_the_rooms_policy(local_cluster):
    host = "workshop.example.org"
    jupyter = kit.workshop.Jupyter(host=host)
    attendee = kit.workshop.add("by-name", cluster=local_cluster, jupyter=jupyter)
    theirs = local_cluster.kube.in_namespace(attendee.namespace)
    spec = json.loads(local_cluster.kubectl(f"get ingress jupyter -n {attendee.namespace} -o json"))["spec"]
    (rule,) = spec["rules"]
    (path,) = rule["http"]["paths"]
    assert (rule["host"], spec["tls"]) == (f"by-name.{host}", [{"hosts": [f"by-name.{host}"]}])
    assert (path["path"], path["pathType"], path["backend"]["service"]) == ("/", "Prefix", SERVICE)
    assert f"https://by-name.{host}/lab?token=" in jupyter.instructions(theirs, attendee)
    port = theirs.get("Service", "jupyter")["spec"]["ports"][0]
    assert (port["name"], port["targetPort"]) == ("http", "http")
    allowed = theirs.get("NetworkPolicy", "jupyter")["spec"]
    assert [port["port"] for port in allowed["ingress"][0]["ports"]] == [8888]
    local_cluster.kubectl(f"rollout status deployment/jupyter -n {attendee.namespace} --timeout=180s")
    with forwarded(local_cluster, attendee) as here, requests.Session() as browser:
        browser.headers["Host"] = rule["host"]
        lab = browser.get(f"http://{here}/lab", params={"token": token_of(theirs)}, timeout=120)
        assert lab.ok and '"baseUrl": "/"' in lab.text
        # What the browser has by now lets pages of its own origin act, and those of others not.
        own_url, foreign_url = (f"https://{name}.{host}" for name in ("by-name", "bob"))
        headers = {"X-XSRFToken": browser.cookies.get("_xsrf", "")}
        terminals = f"http://{here}/api/sessions"
        assert browser.get(terminals, headers=headers | {"Origin": own_url}, timeout=60).ok
        answer = browser.get(terminals, headers=headers | {"Origin": foreign_url}, timeout=60)
        assert "Access-Control-Allow-Origin" not in answer.headers
        started = browser.post(
            f"http://{here}/api/kernels", headers=headers | {"Origin": foreign_url}, timeout=60
        )
        assert started.status_code in (403, 404)
    kit.workshop.remove("by-name", cluster=local_cluster)


@contextmanager
def forwarded(cluster, attendee):
    """Forward a port to an attendee's JupyterLab with their kubeconfig; the address here."""
    command = [*cluster.kubectl_command(), f"--kubeconfig={attendee.kubeconfig}", "port-forward"]
    with subprocess.Popen(
        [*command, "service/jupyter", ":8888"], stdout=subprocess.PIPE, text=True
    ) as forwards:
        try:
            yield re.search(r"127\.0\.0\.1:\d+", forwards.stdout.readline())[0]
        finally:
            forwards.terminate()


def test_a_rehearsal_says_whether_the_cluster_is_ready_for_so_many(local_cluster):
    report = kit.workshop.rehearse(1, cluster=local_cluster, images=["busybox"], cpu="1", memory="1Gi")
    assert {row["verdict"] for row in report} == {"ready"}, report
    assert len(report) == 4
    assert "busybox: on 4 nodes" in repr(report)
    assert "rehearsal" not in local_cluster.kubectl("get namespaces,daemonsets -o name")


def test_nothing_of_a_workshop_is_left_and_what_is_the_instructors_stays(workshop, local_cluster):
    local_cluster.create_volume("mine", size="10Mi")
    try:
        for _ in range(2):
            done = CliRunner().invoke(main.main, ["workshop", "delete", "-c", local_cluster.name])
            assert done.exit_code == 0, done.output
        assert len(kit.workshop.list_attendees(cluster=local_cluster)) == 0
        left = local_cluster.kubectl("get namespaces,persistentvolumes,persistentvolumeclaims -o name")
        assert "attendee" not in left
        assert "datasets" not in left
        assert "persistentvolumeclaim/mine" in left
    finally:
        local_cluster.volume("mine").delete()
