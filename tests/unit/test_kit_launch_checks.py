"""What `launch` checks before it deletes or creates anything: references, templates, quotas. Pure."""

import json

import pytest

from kitlib.jobs import checks

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
def test_what_pods_refer_to_is_found_in_every_kind_of_job(kind, spec, reference):
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


def test_what_is_optional_or_only_carried_is_no_reference():
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
def test_what_a_pod_uses_of_a_quota_is_counted_as_the_api_server_does(resource, resources, used):
    assert checks.usage(_pod(**resources), resource) == used


def test_what_an_earlier_run_uses_of_a_quota_is_free_for_the_one_that_replaces_it():
    quota = _quota({"pods": "4", "requests.cpu": "2"}, {"pods": "4", "requests.cpu": "2"})
    assert checks.quota_room(quota, []) == {"pods": (4, 0), "requests.cpu": (2, 0)}
    before = [_pod(requests={"cpu": "500m"})] * 2
    assert checks.quota_room(quota, before) == {"pods": (4, 2), "requests.cpu": (2, 1)}
    assert not checks.quota_room(_quota({"pods": "1"}, {}, scopes=["Terminating"]), [])
