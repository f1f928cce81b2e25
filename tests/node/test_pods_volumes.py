"""Volumes as containers see them: kinds, sharing, modes, and mount points that the host does not have."""

import base64
import json
import secrets
from pathlib import Path

import pytest

from .clusters import on_node, pod


@pytest.fixture(scope="module")
def files(cluster):
    """The name of a ConfigMap with files."""
    name = f"files-{secrets.token_hex(3)}"
    cluster.kubectl(
        "create", "configmap", name, "--from-literal=train.py=print(1)", "--from-literal=eval.py=print(2)"
    )
    return name


@pytest.fixture
def claim(cluster):
    """Make a claim of an access mode; it is deleted after the test."""
    names = []

    def make(mode):
        name = f"claim-{secrets.token_hex(3)}"
        spec = {"accessModes": [mode], "resources": {"requests": {"storage": "10Mi"}}}
        cluster.core.create_namespaced_persistent_volume_claim(
            "default", {"metadata": {"name": name}, "spec": spec}
        )
        names.append(name)
        return {"name": "data", "persistentVolumeClaim": {"claimName": name}}

    yield make
    for name in names:
        cluster.core.delete_namespaced_persistent_volume_claim(name, "default")


def at(path, **more):
    """Return the part of a container that mounts the volume ``data``."""
    return {"volumeMounts": [{"name": "data", "mountPath": path, **more}]}


@pytest.mark.parametrize(
    ("source", "kind"),
    [({}, ""), pytest.param({"medium": "Memory", "sizeLimit": "8Mi"}, "tmpfs", marks=pytest.mark.namespaces)],
)
def test_the_containers_of_a_pod_share_an_empty_directory(pods, source, kind):
    write = "echo 42 > /out/.new && mv /out/.new /out/answer"
    read = "until [ -e /in/answer ]; do sleep 0.05; done; cat /in/answer; stat -f -c %T /in"
    containers = [
        {"name": "writer", "image": "busybox", "command": ["sh", "-c", write], **at("/out")},
        {"name": "reader", "image": "busybox", "command": ["sh", "-c", read], **at("/in")},
    ]
    manifest = pod(containers=containers, volumes=[{"name": "data", "emptyDir": source}])
    lines = pods.output(manifest, "reader").split()
    assert lines[0] == "42"
    assert kind in lines[1]


def test_a_projected_volume_joins_a_token_files_and_fields(pods, files):
    sources = [
        {"serviceAccountToken": {"path": "token", "audience": "trainer", "expirationSeconds": 600}},
        {"configMap": {"name": files}},
        {"downwardAPI": {"items": [{"path": "labels", "fieldRef": {"fieldPath": "metadata.labels"}}]}},
    ]
    script = "cut -d. -f2 /data/token; grep app /data/labels; cat /data/eval.py; echo; "
    script += "touch /data/x 2>/dev/null || echo refused"
    volumes = [{"name": "data", "projected": {"sources": sources}}]
    finished = pods.finish(pod(script, main=at("/data"), volumes=volumes, labels={"app": "digits"}))
    token, labels, source, written = pods.logs(finished).splitlines()
    claims = json.loads(base64.urlsafe_b64decode(token + "=="))
    assert claims["aud"] == ["trainer"]
    assert claims["kubernetes.io"]["pod"]["name"] == finished["metadata"]["name"]
    assert (labels, source, written) == ('app="digits"', "print(2)", "refused")


def test_a_directory_of_the_host_can_be_mounted_and_protected(pods, cluster):
    place = cluster.home / "hostpath"
    place.mkdir(exist_ok=True)
    volumes = [{"name": "data", "hostPath": {"path": str(place), "type": "Directory"}}]
    pods.output(pod("echo from a pod > /data/file", main=at("/data"), volumes=volumes))
    assert (place / "file").read_text() == "from a pod\n"
    script = "cat /data/file; touch /data/file 2>/dev/null || echo refused"
    assert (
        pods.output(pod(script, main=at("/data", readOnly=True), volumes=volumes)) == "from a pod\nrefused\n"
    )
    assert (place / "file").read_text() == "from a pod\n"


def test_two_pods_on_two_nodes_share_a_claim(pods, claim):
    volumes = [claim("ReadWriteMany")]
    script = "touch /data/$ME; until [ -e /data/$YOU ]; do sleep 0.05; done; echo met $YOU"
    names = []
    for index, (me, you) in enumerate((("left", "right"), ("right", "left"))):
        env = [{"name": "ME", "value": me}, {"name": "YOU", "value": you}]
        names.append(
            pods.create(pod(script, main=at("/data") | {"env": env}, volumes=volumes, **on_node(index)))
        )
    finished = [pods.until(name, lambda pod: pod["status"]["phase"] == "Succeeded") for name in names]
    assert [item["spec"]["nodeName"] for item in finished] == ["node-0", "node-1"]
    assert [pods.logs(name) for name in names] == ["met right\n", "met left\n"]


def test_a_directory_or_a_file_of_a_volume_can_be_mounted_alone(pods, files):
    mounts = [
        {"name": "data", "mountPath": "/data", "subPath": "runs/7"},
        {"name": "code", "mountPath": "/opt/code/train.py", "subPath": "train.py"},
        {"name": "data", "mountPath": "/whole"},
    ]
    volumes = [{"name": "data", "emptyDir": {}}, {"name": "code", "configMap": {"name": files}}]
    script = "echo here > /data/file; find /whole -type f; cat /opt/code/train.py"
    assert (
        pods.output(pod(script, main={"volumeMounts": mounts}, volumes=volumes))
        == "/whole/runs/7/file\nprint(1)"
    )


def test_a_mount_point_that_the_host_lacks_is_made_for_the_pod_alone(pods):
    paths = ["/usr/share/trainyard-is-not-here/data", "/etc/trainyard/file.d", "/new/at/the/top"]
    script = "; ".join(f"echo written > {path}/file; cat {path}/file; ls {path}/.." for path in paths)
    mounts = {"volumeMounts": [{"name": "data", "mountPath": path} for path in paths]}
    manifest = pod(f"{script}; ls /usr/bin/env", main=mounts, volumes=[{"name": "data", "emptyDir": {}}])
    shown = [line for path in paths for line in ("written", Path(path).name)]
    assert pods.output(manifest).splitlines() == [*shown, "/usr/bin/env"]
