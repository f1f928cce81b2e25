"""What `launch` checks before it deletes or creates anything: references, templates, quotas. Pure."""

import json
from pathlib import Path

import pytest

from kitlib.errors import BadInput, Rejected
from kitlib.jobs import checks
from kitlib.k8s.priority import ensure_priority_class

from . import objects

SOURCES = [
    ({"volumes": [{"persistentVolumeClaim": {"claimName": "data"}}]}, ("PersistentVolumeClaim", "data", "")),
    ({"volumes": [{"secret": {"secretName": "key"}}]}, ("Secret", "key", "")),
    ({"volumes": [{"configMap": {"name": "settings"}}]}, ("ConfigMap", "settings", "")),
    ({"volumes": [{"projected": {"sources": [{"secret": {"name": "key"}}]}}]}, ("Secret", "key", "")),
    ({"containers": [{"envFrom": [{"secretRef": {"name": "key"}}]}]}, ("Secret", "key", "")),
    ({"initContainers": [{"envFrom": [{"configMapRef": {"name": "c"}}]}]}, ("ConfigMap", "c", "")),
    (
        {"containers": [{"env": [{"valueFrom": {"secretKeyRef": {"name": "key", "key": "token"}}}]}]},
        ("Secret", "key", "token"),
    ),
    (
        {"containers": [{"env": [{"valueFrom": {"configMapKeyRef": {"name": "c", "key": "a"}}}]}]},
        ("ConfigMap", "c", "a"),
    ),
]


@pytest.mark.parametrize("kind", ["Job", "PyTorchJob", "ElasticJob", "TrainJob", "PodTemplate", "ps.json"])
@pytest.mark.parametrize(("spec", "reference"), SOURCES, ids=str)
def test_references_of_pods_are_found_in_every_kind_of_job(kind, spec, reference):
    template = {"spec": {"containers": [], **spec}}
    item = {
        "Job": {"spec": {"template": template}},
        "PyTorchJob": {"spec": {"pytorchReplicaSpecs": {"Worker": {"template": template}}}},
        "ElasticJob": {"spec": {"replicaSpecs": {"Worker": {"template": template}}}},
        "TrainJob": {"spec": {"podSpecOverrides": [spec]}},
        "PodTemplate": {"template": template},
        "ps.json": {"kind": "ConfigMap", "data": {"ps.json": json.dumps(template)}},
    }[kind]
    assert list(checks.references([item])) == [reference]


def test_pods_of_a_kind_that_is_not_known_yet_are_sampled():
    template = {"spec": {"containers": [{"name": "main"}]}}
    roles = {"launcher": {"template": template}, "worker": {"replicas": 3, "template": template}}
    item = {"kind": "Sweep", "metadata": {"name": "x"}, "spec": {"roles": roles}}
    assert [sample.count for sample in checks.pod_samples(item)] == [1, 3]


def test_optional_sources_and_contents_are_no_references():
    optional = {"secretRef": {"name": "key", "optional": True}}
    program = {"kind": "ConfigMap", "data": {"train.py": '{"secretRef": {"name": "key"}}'}}
    assert not list(checks.references([{"envFrom": [optional]}, program]))


def _pod(name="p", **resources):
    return objects.pod(name, containers=[{"resources": resources}])


def _quota(hard, used, **spec):
    return {"metadata": {"name": "q"}, "spec": {"hard": hard, **spec}, "status": {"used": used}}


@pytest.mark.parametrize(
    ("resource", "resources", "used"),
    [
        ("requests.cpu", {"requests": {"cpu": "500m"}}, 0.5),
        ("cpu", {"limits": {"cpu": "2"}}, 2),
        ("limits.memory", {"limits": {"memory": "1Ki"}}, 1024),
        ("limits.memory", {"requests": {"memory": "1Ki"}}, 0),
        ("requests.nvidia.com/gpu", {"limits": {"nvidia.com/gpu": "4"}}, 4),
        ("pods", {}, 1),
        ("count/pods", {}, 1),
        ("count/jobs.batch", {}, 0),
        ("requests.storage", {}, 0),
    ],
)
def test_a_pods_quota_usage_is_that_of_the_api_server(resource, resources, used):
    assert checks.usage(_pod(**resources), resource) == used


def test_the_quota_of_a_replaced_run_is_free_for_the_next():
    quota = _quota({"pods": "4", "requests.cpu": "2"}, {"pods": "4", "requests.cpu": "2"})
    assert checks.quota_room(quota, []) == {"pods": (4, 0), "requests.cpu": (2, 0)}
    before = [_pod(requests={"cpu": "500m"})] * 2
    assert checks.quota_room(quota, before) == {"pods": (4, 2), "requests.cpu": (2, 1)}
    assert not checks.quota_room(_quota({"pods": "1"}, {}, scopes=["Terminating"]), [])


class Classes:
    """A cluster as somebody sees it who may not read PriorityClasses, or who may do all."""

    cluster = "lab"

    def __init__(self, classes=(), *, allowed=True):
        self.classes, self.allowed, self.created = dict(classes), allowed, []

    def find(self, kind, name):
        if not self.allowed:
            raise Rejected("forbidden", about=name, fix="", status=403, reason="Forbidden")
        return {"value": self.classes[name]} if name in self.classes else None

    def create(self, item, *, dry_run=False):
        if not dry_run:
            self.created.append(item["metadata"]["name"])
        elif item["spec"]["priorityClassName"] not in self.classes:
            what = f"no PriorityClass with name {item['spec']['priorityClassName']} was found"
            raise Rejected(what, about="pod", fix="", status=403, reason="Forbidden")


@pytest.mark.parametrize(
    ("name", "classes", "allowed", "created", "said"),
    [
        ("high", {}, True, ["high"], "created, with the value"),
        ("high", {"high": 3}, True, [], "it exists with the value 3"),
        ("theirs", {"theirs": 3}, True, [], ""),
        ("theirs", {"theirs": 3}, False, [], ""),
    ],
)
def test_a_priority_class_of_the_kit_is_created_and_others_are_used(
    name, classes, allowed, created, said, caplog
):
    kube = Classes(classes, allowed=allowed)
    with caplog.at_level("INFO"):
        ensure_priority_class(kube, name)
    assert kube.created == created and said in caplog.text


@pytest.mark.parametrize(
    ("name", "allowed", "fix"),
    [
        ("mine", True, '"high" or "low"'),
        ("mine", False, 'a PriorityClass "mine"'),
        ("low", False, ""),
    ],
)
def test_a_priority_class_that_there_is_not_is_refused(name, allowed, fix):
    with pytest.raises(BadInput, match=f'there is no PriorityClass "{name}"') as error:
        ensure_priority_class(Classes(allowed=allowed), name)
    assert fix in error.value.fix
    if name == "low":
        file = error.value.fix.partition("kubectl apply -f ")[2].partition(")")[0]
        assert Path(file).is_file()
