"""Whatever a pod's strings are, its node asks the API for objects of its namespace, and writes its own files.

The kubelet's volumes and environments run on a pod whose strings are exchanged, against an API that has an
object for every name.
"""

import asyncio
import base64
import json
import re
import tempfile
from pathlib import Path

import yarl
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as some

from localkube.errors import ApiError
from localkube.kubelet.containers.environment import ConfigError, container_environment, env_files, references
from localkube.kubelet.nodes.runtime_class import check_runtime_class
from localkube.kubelet.pods.admission import refusal
from localkube.kubelet.pods.network_files import HostnameError, hostname
from localkube.kubelet.pods.pod_files import check_file_names
from localkube.kubelet.volumes.volume_manager import VolumeError, VolumeManager, mounts
from localkube.runtime.client import RuntimeCallError

PIECES = [
    *("..", "/", ".", "%2e", "%2f", "%", "\0", "\n", "~", "$(A)", "$$", "\\", "?", "#", "ä", "x" * 300),
    *(
        "attendee-bob",
        "kube-system",
        "secrets",
        "persistentvolumes",
        "top",
        "own",
        "etc/passwd",
        "/proc/1/root",
    ),
]
HOSTILE = some.lists(some.sampled_from(PIECES), max_size=8).map("".join) | some.text(max_size=20)
OWN = re.compile(
    r"/api/v1/namespaces/mine/(configmaps|secrets|persistentvolumeclaims|serviceaccounts)/[^/]+(/token)?"
    r"|/api/v1/persistentvolumes/[^/]+|/apis/node\.k8s\.io/v1/runtimeclasses/[^/]+"
)
ITEMS = [{"key": "word", "path": "a/b"}]
FIELD = {"path": "c", "fieldRef": {"fieldPath": "metadata.labels['x']"}}
TEMPLATE = {
    "metadata": {"name": "pod", "namespace": "mine", "uid": "0-1", "labels": {"x": "y"}, "annotations": {}},
    "spec": {
        "nodeName": "node-0",
        "hostname": "here",
        "subdomain": "lab",
        "serviceAccountName": "own",
        "runtimeClassName": "own",
        "priorityClassName": "own",
        "nodeSelector": {"disk": "ssd"},
        "tolerations": [{"key": "a", "operator": "Equal", "value": "b", "effect": "NoExecute"}],
        "imagePullSecrets": [{"name": "own"}],
        "containers": [
            {
                "name": "main",
                "image": "busybox",
                "envFrom": [
                    {"secretRef": {"name": "own"}},
                    {"configMapRef": {"name": "own"}, "prefix": "P_"},
                ],
                "env": [
                    {"name": "A", "value": "../$(B)"},
                    {"name": "B", "valueFrom": {"secretKeyRef": {"name": "own", "key": "word"}}},
                    {"name": "C", "valueFrom": {"configMapKeyRef": {"name": "own", "key": "word"}}},
                    {"name": "D", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}},
                    {"name": "E", "valueFrom": {"resourceFieldRef": {"resource": "limits.cpu"}}},
                    {"name": "F", "valueFrom": {"fileKeyRef": {"volumeName": "e", "path": "f", "key": "k"}}},
                ],
                "volumeMounts": [
                    {"name": "s", "mountPath": "/s", "subPath": "word"},
                    {"name": "e", "mountPath": "/e", "subPath": "a/b"},
                    {"name": "e", "mountPath": "/x", "subPathExpr": "$(A)/b"},
                    {"name": "p", "mountPath": "/p", "subPath": "c"},
                ],
            }
        ],
        "volumes": [
            {"name": "s", "secret": {"secretName": "own", "items": ITEMS}},
            {"name": "m", "configMap": {"name": "own", "items": ITEMS}},
            {"name": "c", "persistentVolumeClaim": {"claimName": "own"}},
            {"name": "e", "emptyDir": {}},
            {"name": "g", "ephemeral": {"volumeClaimTemplate": {"spec": {"storageClassName": "own"}}}},
            {"name": "d", "downwardAPI": {"items": [FIELD]}},
            {"name": "i", "image": {"reference": "busybox"}},
            {
                "name": "p",
                "projected": {
                    "sources": [
                        {"secret": {"name": "own", "items": ITEMS}},
                        {"configMap": {"name": "own"}},
                        {"serviceAccountToken": {"path": "token", "audience": "vault"}},
                        {"downwardAPI": {"items": [FIELD]}},
                    ]
                },
            },
        ],
    },
}
EXPECTED = (VolumeError, ConfigError, ApiError, HostnameError, RuntimeCallError)


def places(value, path=()):
    """List where a value has strings."""
    if isinstance(value, str):
        return [path]
    entries = (
        value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    )
    return [place for key, part in entries for place in places(part, (*path, key))]


# The API server makes these.
GIVEN = {("metadata", "uid"), ("metadata", "namespace"), ("metadata", "name"), ("spec", "nodeName")}
PLACES = [place for place in places(TEMPLATE) if place not in GIVEN]


@some.composite
def pods(draw):
    pod = json.loads(json.dumps(TEMPLATE))
    for place in draw(some.lists(some.sampled_from(PLACES), min_size=1, max_size=5, unique=True)):
        part = pod
        for key in place[:-1]:
            part = part[key]
        part[place[-1]] = draw(HOSTILE)
    return pod


class Everything:
    """An API that has an object of every name, and records what is asked for."""

    def __init__(self, directory):
        self.asked, self._directory = [], directory

    async def get(self, path):
        self.asked.append(path)
        word = base64.b64encode(b"own").decode()
        if "/secrets/" in path:
            return {"data": {"word": word, "A": word}}
        if "/configmaps/" in path:
            return {"data": {"word": "own", "token": "own"}}
        if "/runtimeclasses/" in path:
            return {"handler": "runc"}
        reference = {"namespace": "mine", "name": "claim", "uid": "1"}
        owner = {"ownerReferences": [{"uid": "0-1"}]}
        if "/persistentvolumeclaims/" in path:
            return {
                "metadata": reference | owner,
                "spec": {"volumeName": "volume"},
                "status": {"phase": "Bound"},
            }
        place = {"path": str(self._directory)}
        return {"metadata": {"name": "volume"}, "spec": {"claimRef": reference, "hostPath": place}}

    async def post(self, path, body):
        self.asked.append(path)
        return {"status": {"token": "own", "expirationTimestamp": "2099-01-01T00:00:00Z"}}


async def sync(pod, api, directory):
    """Do for a pod what the kubelet does with its strings; raise what it reports on the pod."""
    manager = VolumeManager(lambda _node: api, pods=directory / "pods", mount=None)
    steps = {"class": lambda: check_runtime_class(api, pod), "volumes": lambda: each_volume(manager, pod)}
    ready = {}
    for name, step in steps.items():
        try:
            ready[name] = await step()
        except EXPECTED:
            continue
    for step in (
        lambda: refusal(pod, other_pods=[pod], node={"metadata": {}}, shortage=None),
        lambda: hostname(pod, node="node-0"),
        lambda: variables(pod, ready.get("volumes") or {}),
    ):
        try:
            step()
        except EXPECTED:
            continue
    await manager.remove(pod["metadata"]["uid"])


async def each_volume(manager, pod):
    """Prepare the volumes one by one, so that a bad one does not hide the others."""
    ready = {}
    for volume in pod["spec"]["volumes"]:
        try:
            ready |= await manager.prepare({**pod, "spec": pod["spec"] | {"volumes": [volume]}})
        except EXPECTED:
            continue
    return ready


def variables(pod, ready):
    (main,) = pod["spec"]["containers"]
    configmaps, secrets = references(main)
    word = base64.b64encode(b"../..").decode()
    environment = container_environment(
        main,
        pod,
        node={"status": {"allocatable": {"cpu": "1"}}},
        configmaps={name: {"data": {"word": "../.."}} for name in configmaps},
        secrets={name: {"data": {"word": word}} for name in secrets},
        service_env={},
        files=dict.fromkeys(env_files(main), b"k=../.."),
    )
    for mount in main["volumeMounts"]:
        if mount["name"] in ready:
            mounts(main | {"volumeMounts": [mount]}, ready, environment=environment)


@settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(pod=pods())
def test_no_string_of_a_pod_leads_its_node_out_of_the_pods_namespace_and_files(pod):
    try:
        check_file_names(pod)
    except ValueError:
        return
    with tempfile.TemporaryDirectory() as name:
        root = Path(name)
        for part in ("pods", "claim", "bob"):
            (root / part).mkdir()
        (root / "bob" / "top").write_text("bob's")
        api = Everything(root / "claim")
        asyncio.run(sync(pod, api, root))
        for path in api.asked:
            url = yarl.URL("https://localhost" + path)
            assert url.raw_path == path, json.dumps(path)
            assert OWN.fullmatch(path), json.dumps(path)
        left = sorted(str(path.relative_to(root)) for path in root.rglob("*"))
        assert [path for path in left if path.split("/")[0] not in ("pods", "claim")] == ["bob", "bob/top"]
        assert (root / "bob" / "top").read_text() == "bob's"
        assert not [path for path in left if path.startswith("pods/") and not path.startswith("pods/0-1")]
