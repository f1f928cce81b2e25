"""Nothing of an earlier run is lost by a launch that is refused, nor by another launch of its name."""

import threading

import pytest

import kitlib as kit
from kitlib.errors import BadInput, KitError, LaunchRejected, RunExists

from ..rows import slow

pytestmark = pytest.mark.cluster
WEBHOOK = """
apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingWebhookConfiguration
metadata: {name: refuses-one}
webhooks:
  - name: refuses-one.example.com
    admissionReviewVersions: [v1]
    sideEffects: None
    timeoutSeconds: 1
    clientConfig: {url: "https://127.0.0.1:1/none"}
    matchPolicy: Exact
    objectSelector: {matchLabels: {refused: by-webhook}}
    rules:
      - {apiGroups: [batch], apiVersions: [v1], operations: [CREATE], resources: [jobs]}
"""


def _spec(**spec):
    return {"spec": {"template": {"spec": spec}}}


def _container(**fields):
    return _spec(containers=[{"name": "pytorch", **fields}])


def _env(**source):
    return _container(env=[{"name": "A", "valueFrom": source}])


NOWHERE = {"name": "nowhere", "key": "a"}
REFUSED = {
    "a volume": ({"volumes": {"/data": "nowhere"}}, {}, BadInput, "no volume"),
    "a Secret": ({}, _container(envFrom=[{"secretRef": {"name": "nowhere"}}]), BadInput, "no Secret"),
    "a Secret's key": ({}, _env(secretKeyRef={"name": "here", "key": "b"}), BadInput, 'no key "b"'),
    "a ConfigMap": ({}, _env(configMapKeyRef=NOWHERE), BadInput, "no ConfigMap"),
    "a Secret of a volume": (
        {},
        _spec(volumes=[{"name": "x", "secret": {"secretName": "nowhere"}}]),
        BadInput,
        "no Secret",
    ),
    "a Secret for images": ({}, _spec(imagePullSecrets=[{"name": "nowhere"}]), BadInput, "no Secret"),
    "an unknown field": ({}, _spec(restartPolice="Never"), LaunchRejected, "restartPolice"),
    "an invalid value": ({}, {"spec": {"completions": -1}}, LaunchRejected, "spec.completions"),
    "a field of pods": ({}, _spec(restartPolicy="Always"), LaunchRejected, "restartPolicy"),
    "a ServiceAccount": ({}, _spec(serviceAccountName="nobody"), LaunchRejected, "nobody"),
    "a PriorityClass": ({"priority": "nowhere"}, {}, BadInput, "PriorityClass"),
    "a webhook": ({}, {"metadata": {"labels": {"refused": "by-webhook"}}}, LaunchRejected, "webhook"),
    "no room": ({"cpu": 1000}, {}, BadInput, "1000 cores"),
    "an image": ({"image": "two words"}, {}, BadInput, "image"),
}


@pytest.fixture(scope="module")
def earlier(local_cluster, tmp_path_factory):
    """A run that has written a line, which nobody may delete."""
    path = tmp_path_factory.mktemp("earlier") / "trainer.py"
    path.write_text("print('worth an hour')\n")
    local_cluster.kubectl("create secret generic here --from-literal=a=b")
    hook = path.with_name("hook.yaml")
    hook.write_text(WEBHOOK)
    local_cluster.kubectl(f"apply -f {hook}")
    job = kit.IndexedJob(path, nodes=1, name="earlier").patch(
        _container(command=["python", "/trainyard/trainer/trainer.py"])
    )
    run = kit.launch(job, cluster=local_cluster)
    run.wait(timeout=120)
    yield run, path
    local_cluster.kubectl(f"delete -f {hook}")
    local_cluster.kubectl("delete secret here")
    run.delete()


@pytest.mark.parametrize("row", REFUSED)
def test_a_refused_replacement_keeps_the_earlier_run_and_its_logs(row, earlier, local_cluster):
    run, path = earlier
    arguments, patch, error, words = REFUSED[row]
    before = {item["metadata"]["uid"] for item in run.objects.owned()}
    with pytest.raises(error, match=words):
        job = kit.IndexedJob(path, **{"nodes": 1, "name": "earlier"} | arguments).patch(patch)
        kit.launch(job, cluster=local_cluster, replace=True, must_fit=True)
    assert {item["metadata"]["uid"] for item in run.objects.owned()} == before
    assert run.logs(rank=0) == "worth an hour"


@pytest.mark.parametrize("kind", [kit.PyTorchJob, kit.TrainJob, kit.ElasticJob])
def test_an_earlier_run_stays_where_an_operator_is_missing(kind, earlier, local_cluster):
    run, path = earlier
    with pytest.raises(LaunchRejected, match=r"(?s)has no kind.*kit\.install"):
        kit.launch(kind(path, nodes=1, name="earlier"), cluster=local_cluster, replace=True)
    assert run.logs(rank=0) == "worth an hour"


def test_a_quota_that_an_earlier_run_fills_has_room_for_the_one_that_replaces_it(
    write_trainer, local_cluster
):
    path = write_trainer("import time; time.sleep(600)")
    local_cluster.kubectl("create namespace narrow")
    local_cluster.kubectl("create quota narrow -n narrow --hard=pods=3,requests.cpu=2,count/podtemplates=1")
    kube = local_cluster.kube.in_namespace("narrow")
    cluster = kit.clusters.LocalCluster(local_cluster.name)
    cluster.kube = kube
    try:

        def job(**more):
            return kit.TorchElastic(path, **{"nodes": 2, "cpu": 0.5, "name": "elastic"} | more)

        first = kit.launch(job(), cluster=cluster, replace=True)
        second = kit.launch(job(), cluster=cluster, replace=True)
        assert len(second.objects.pods()) == 2
        for wrong in ({"nodes": 3}, {"cpu": 1}):
            with pytest.raises(BadInput, match='quota "narrow" allows'):
                kit.launch(job(**wrong), cluster=cluster, replace=True)
            assert len(first.objects.pods()) == 2
        with pytest.raises(BadInput, match='quota "narrow" allows'):
            kit.launch(kit.IndexedJob(path, nodes=4, name="wide"), cluster=cluster)
        second.delete()
    finally:
        local_cluster.kubectl("delete namespace narrow --wait=false")


@pytest.mark.parametrize(
    ("kind", "replace"),
    [
        (kit.IndexedJob, False),
        (kit.TorchElastic, True),
        *slow((kit.IndexedJob, True), (kit.TorchElastic, False)),
    ],
)
def test_of_launches_of_one_name_at_once_one_runs_and_is_whole(kind, replace, write_trainer, local_cluster):
    path = write_trainer("import time; time.sleep(600)")
    barrier, runs, errors = threading.Barrier(3), [], []

    def start():
        job = kind(path, nodes=2, name="at-once")
        barrier.wait()
        try:
            runs.append(kit.launch(job, cluster=local_cluster, replace=replace))
        except KitError as error:
            errors.append(error)

    threads = [threading.Thread(target=start) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    try:
        assert runs and all(isinstance(error, RunExists) for error in errors), errors
        owned = runs[0].objects.owned()
        kinds = [item["kind"] for item in owned]
        assert kinds.count("ConfigMap") == kinds.count("Service") == 1
        assert all(item["metadata"].get("deletionTimestamp") is None for item in owned)
        assert len(runs[0].objects.pods()) == 2
    finally:
        local_cluster.delete_run("at-once")


def test_a_launch_that_fails_deletes_what_it_has_created_and_nothing_else(
    write_trainer, local_cluster, monkeypatch
):
    path = write_trainer("pass")
    kube, create = local_cluster.kube, type(local_cluster.kube).create

    def interrupted(self, item, *, dry_run=False):
        answer = create(self, item, dry_run=dry_run)
        if item["kind"] == "Service" and not dry_run:
            labels = {"trainyard/run": "stopped"}
            meta = {"name": "theirs", "labels": labels}
            create(self, {"apiVersion": "v1", "kind": "Secret", "metadata": meta})
            raise KeyboardInterrupt
        return answer

    monkeypatch.setattr(type(kube), "create", interrupted)
    with pytest.raises(KeyboardInterrupt):
        kit.launch(kit.IndexedJob(path, nodes=1, name="stopped"), cluster=local_cluster)
    monkeypatch.undo()
    assert "stopped" not in local_cluster.kubectl("get jobs,services,configmaps")
    assert "theirs" in local_cluster.kubectl("get secrets")
    local_cluster.kubectl("delete secret theirs")
