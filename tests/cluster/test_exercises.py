"""``kit.check`` of what a learner sends to a cluster: a Job, a PriorityClass, labels.

That of a PyTorchJob is in ``test_operators.py``, where the operator is installed.
"""

import copy
import importlib
from pathlib import Path

import numpy
import pandas
import pytest
import yaml

import kitlib as kit
from kitlib.k8s.priority import ensure_priority_class
from trainyard_kit.exercises.checks import autoscaler, gpu_job

from ..rows import slow

ROOT = Path(__file__).parents[2]
pytestmark = pytest.mark.cluster

POD = {
    "restartPolicy": "Never",
    "containers": [
        {
            "name": "c",
            "image": "busybox",
            "command": ["sh", "-c", "echo $JOB_COMPLETION_INDEX"],
            "resources": {"requests": {}},
        }
    ],
}
JOB = {
    "apiVersion": "batch/v1",
    "kind": "Job",
    "metadata": {"name": "numbered", "labels": {"trainyard/notebook": "01"}},
    "spec": {"completions": 3, "parallelism": 2, "completionMode": "Indexed", "template": {"spec": POD}},
}
ANSWERS = yaml.safe_load(Path(__file__).with_name("exercise_answers.yaml").read_text("utf-8"))
PRIORITY = {
    "apiVersion": "scheduling.k8s.io/v1",
    "kind": "PriorityClass",
    "metadata": {"name": "between"},
    "value": 5000,
    "preemptionPolicy": "Never",
}


def changed(manifest, path, value):
    """Return a copy with another value of a field; None removes it."""
    item = copy.deepcopy(manifest)
    *parents, last = path.split(".")
    place = item
    for parent in parents:
        place = place[int(parent)] if isinstance(place, list) else place[parent]
    last = int(last) if isinstance(place, list) else last
    if value is None:
        del place[last]
    else:
        place[last] = value
    return item


def advice(checklist, check):
    """Return the advice of the check whose name has these words; it must have failed."""
    (row,) = (row for row in checklist if check in row.name)
    assert row.right is False, checklist
    return row.advice


def test_a_job_is_run_and_its_pods_print_their_numbers(local_cluster):
    for job in (JOB, changed(JOB, "spec.ttlSecondsAfterFinished", 0)):
        checklist = kit.check("01", job=job, cluster=local_cluster)
        assert checklist, checklist
    assert "exercise-" not in local_cluster.kubectl("get jobs -o name")


@pytest.mark.parametrize(("path", "value", "check", "words"), ANSWERS["job"])
def test_a_wrong_job_is_told_what_to_do(path, value, check, words, local_cluster):
    checklist = kit.check("01", job=changed(JOB, path, value), cluster=local_cluster)
    assert words in advice(checklist, check), checklist


@pytest.mark.parametrize("nonsense", [None, [], "kind: Job", {"kind": "Job", "apiVersion": "batch/v1"}])
def test_an_answer_that_is_no_manifest_is_described(nonsense, local_cluster):
    for name, keyword in (("01", "job"), ("11", "priority_class")):
        checklist = kit.check(name, **{keyword: nonsense, "cluster": local_cluster})
        assert not any(row.right for row in list(checklist)[1:]), checklist
        assert not checklist


@pytest.mark.parametrize(("path", "value", "check", "words"), ANSWERS["priority_class"])
def test_a_priority_class_is_judged_by_a_dry_run(path, value, check, words, local_cluster):
    for name in ("low", "high"):
        ensure_priority_class(local_cluster.kube, name)
    written = changed(PRIORITY, path, value) if path else PRIORITY
    checklist = kit.check("11", priority_class=written, cluster=local_cluster)
    if path:
        assert words in advice(checklist, check), checklist
    else:
        assert checklist, checklist


@pytest.mark.parametrize(("path", "value", "check", "words"), ANSWERS["gpu_job"])
def test_a_job_for_gpus_is_repaired_for_two_pods_without(path, value, check, words, local_cluster):
    written = changed(gpu_job.STUB, "spec.template.spec.nodeSelector", None)
    written = changed(written, "spec.template.spec.containers.0.resources.limits", None)
    written = changed(written, "spec.template.spec.containers.0.command.1", "--nnodes=2")
    written["spec"] |= {"completions": 2, "parallelism": 2}
    checklist = kit.check("22", job=changed(written, path, value) if path else written, cluster=local_cluster)
    assert words in advice(checklist, check) if check else checklist, checklist


def test_labels_are_looked_up_in_the_cluster(local_cluster):
    def checklist():
        return kit.check("13", cluster=local_cluster)

    kubectl = local_cluster.kubectl
    kubectl("delete configmap adopted mine --ignore-not-found")
    try:
        assert "there is no ConfigMap" in advice(checklist(), "exists")
        kubectl("create configmap adopted")
        assert "no label yet" in advice(checklist(), "exists")
        kubectl("label configmap adopted team=a")
        assert "kubectl label" in advice(checklist(), "notebook's label")
        kubectl("label configmap adopted trainyard/notebook=13 trainyard/run=forgoten")
        assert "'forgoten'" in advice(checklist(), "belongs to the run")
        kubectl("create configmap mine")
        kubectl("label configmap mine adopted --overwrite trainyard/run=forgotten")
        assert "mine has the label" in advice(checklist(), "not the ConfigMap mine")
        kubectl("label configmap mine trainyard/run-")
        assert checklist(), checklist()
    finally:
        kubectl("delete configmap adopted mine --ignore-not-found")


CLAIM_OF_DEVICE = importlib.import_module("trainyard_kit.exercises.checks.device_claim").STUB
OF_GPU = 'device.attributes["gpu.nvidia.com"].'
ENOUGH = 'device.capacity["gpu.nvidia.com"].memory.compareTo(quantity("40Gi")) >= 0'


@pytest.fixture(scope="module")
def gpus(state_home):
    """A cluster with one declared A100, on a node with the taint of nodes with GPUs."""
    with kit.create_cluster("local", name="claims", nodes=1, gpus=kit.GPU("A100"), warm=False) as cluster:
        cluster.kubectl("taint nodes --all nvidia.com/gpu=present:NoSchedule")
        yield cluster


@pytest.mark.parametrize(
    ("condition", "more", "words"),
    [
        (f'{ENOUGH} && {OF_GPU}profile != "7g.80gb"', {}, ""),
        *slow(
            (f'{OF_GPU}profile in ["3g.40gb", "4g.40gb"]', {}, ""),
            (ENOUGH.replace(">=", "=="), {}, ""),
            (f'{ENOUGH} && {OF_GPU}type == "mig" && !{OF_GPU}profile.startsWith("7g")', {}, ""),
            ("false", {}, "it does not match 3g.40gb"),
        ),
        (ENOUGH, {}, "it matches 7g.80gb"),
        (ENOUGH.replace(">=", ">"), {}, "it does not match 3g.40gb, which has 40 GiB"),
        (ENOUGH, {"deviceClassName": "gpu.nvidia.com"}, "it matches a whole GPU"),
        (f'{OF_GPU}profil == "3g.40gb"', {}, "CEL runtime error: no such key: profil"),
        ("device.memory > 40", {}, "undefined field 'memory'"),
        (ENOUGH, {"count": 2}, "several devices"),
        (ENOUGH, {"deviceClassName": "h100.nvidia.com"}, "device class h100.nvidia.com does not exist"),
    ],
)
def test_a_request_for_a_device_is_judged_by_what_the_scheduler_gives_it(condition, more, words, gpus):
    exactly = {"deviceClassName": "mig.nvidia.com", "selectors": [{"cel": {"expression": condition}}]}
    template = changed(CLAIM_OF_DEVICE, "spec.spec.devices.requests.0.exactly", exactly | more)
    checklist = kit.check("17", template=template, cluster=gpus)
    assert bool(checklist) is not bool(words) and words in " ".join(row.advice for row in checklist), (
        checklist
    )
    assert gpus.kubectl("get pods,resourceclaims -o name") == ""


KIND_OF_19 = {"apiVersion": "autoscaling/v2", **autoscaler.KIND}
HALF = {"type": "Utilization", "averageUtilization": 50}
OF_CPU = {"name": "cpu", "target": HALF}
PER_POD = {"type": "AverageValue", "averageValue": "100m"}
SCALED = {"minReplicas": 1, "maxReplicas": 8, "metrics": [{"type": "Resource", "resource": OF_CPU}]}
MEMORY = {"type": "Resource", "resource": {"name": "memory", "target": HALF}}


def of_cpu(**target):
    return {"metrics": [{"type": "Resource", "resource": {"name": "cpu", "target": target}}]}


def of_container(name):
    return {"metrics": [{"type": "ContainerResource", "containerResource": {"container": name} | OF_CPU}]}


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({}, ""),
        ({"minReplicas": None}, ""),
        (of_cpu(**PER_POD), ""),
        (of_cpu(**PER_POD | {"averageValue": 0.1}), ""),
        (of_container("server"), ""),
        ({"behavior": {"scaleDown": {"stabilizationWindowSeconds": 0}}}, ""),
        (of_container("main"), "container is 'main'"),
        (of_cpu(type="Utilization", averageUtilization=0.5), "averageUtilization is a number, and should be"),
        (of_cpu(type="Utilization", averageUtilization=5), "(per cent of the request) is 5"),
        (of_cpu(**PER_POD | {"averageValue": "50m"}), "half of the 200m"),
        (of_cpu(type="Value", value="100m"), "the API server rejects it"),
        ({"metrics": [*SCALED["metrics"], MEMORY]}, "largest result decides"),
        ({"metrics": [MEMORY]}, "resource.name is 'memory'"),
        ({"metrics": []}, "has 0 entries"),
        ({"minReplicas": 2}, "spec.minReplicas is 2"),
        ({"minReplicas": 0}, "the API server rejects it"),
        ({"maxReplicas": 4}, "spec.maxReplicas is 4"),
        ({"maxReplicas": "8"}, "maxReplicas is text, and should be a whole number"),
        ({"behavior": {"scaleDown": {"selectPolicy": "Disabled"}}}, "remove it"),
        ({"scaleTargetRef": autoscaler.TARGET | {"kind": "StatefulSet"}}, "scaleTargetRef.kind"),
        ({"scaleTargetRef": {"kind": "Deployment", "name": "my-model"}}, "scaleTargetRef.apiVersion"),
    ],
)
def test_an_autoscaler_is_judged_by_what_it_scales_and_by_what(change, words, local_cluster):
    spec = {"scaleTargetRef": autoscaler.TARGET} | SCALED | change
    written = {"apiVersion": "autoscaling/v2", **autoscaler.KIND, "spec": spec}
    checklist = kit.check("19", autoscaler=written, cluster=local_cluster)
    advice = " ".join(row.advice for row in checklist)
    assert bool(checklist) is not bool(words) and words in advice, checklist


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (numpy.array([1, 2]), "write the manifest as a dict"),
        (pandas.DataFrame({"a": [1]}), "write the manifest as a dict"),
        (KIND_OF_19 | {"spec": None}, "spec.maxReplicas: Required value"),
        (KIND_OF_19 | {"spec": "TODO"}, "spec is text, and should be a dict"),
        (KIND_OF_19 | {"metadata": None}, "metadata is None, and should be a dict"),
        (changed(KIND_OF_19, "metadata.name", 5), "metadata.name is a number, and should be text"),
        (KIND_OF_19 | {"apiVersion": "autoscaling/v2beta2"}, "and should be 'autoscaling/v2'"),
        (KIND_OF_19 | {"kind": "HPA"}, "and should be 'HorizontalPodAutoscaler'"),
    ],
)
def test_a_wrong_autoscaler_gets_advice(answer, words, local_cluster):
    checklist = kit.check("19", autoscaler=answer, cluster=local_cluster)
    assert any(words in row.advice for row in checklist if row.right is False), checklist


@pytest.mark.parametrize("percent", [50, 80, None])
def test_an_autoscaler_may_be_of_the_older_version_which_has_cpu_alone(percent, local_cluster):
    spec = {"scaleTargetRef": autoscaler.TARGET, "maxReplicas": 8, "targetCPUUtilizationPercentage": percent}
    written = {"apiVersion": "autoscaling/v1", **autoscaler.KIND, "spec": spec}
    assert bool(kit.check("19", autoscaler=written, cluster=local_cluster)) is (percent == 50)


def test_the_notebook_of_gpus_ends_politely_where_nodes_publish_none(local_cluster, monkeypatch, capsys):
    monkeypatch.syspath_prepend(ROOT / "notebooks" / "scripts")
    with pytest.raises(SystemExit, match=r"^0$"):
        importlib.import_module("device_map").check(local_cluster)
    assert "local provider" in capsys.readouterr().out
