"""Pods of files: run by the kubelet, shown by mirrors."""

import json
import secrets

import pytest

from .clusters import container, eventually, is_ready

POD = '{"kind": "Pod", "metadata": {"name": "a"}, "spec": {"containers": [%s]}}'
FOREVER = "trap exit TERM; echo begun; while true; do sleep 0.1; done"


@pytest.fixture
def place(cluster):
    """Write manifests of static pods of node-1; those that are left are removed."""
    folder = cluster.root / "static-pods" / "node-1"
    folder.mkdir(parents=True, exist_ok=True)
    files = []

    class Place:
        name = f"static-{secrets.token_hex(3)}"
        shown = f"{name}-node-1"
        path = folder / f"{name}.json"

        def write(self, script=FOREVER, **spec):
            main = {"name": "main", "image": "busybox", "command": ["sh", "-c", script]}
            spec = {"containers": [main], "terminationGracePeriodSeconds": 5} | spec
            body = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": self.name}, "spec": spec}
            aside = self.path.with_name(".aside")
            aside.write_text(json.dumps(body))
            aside.rename(self.path)

        def seen(self):
            output = cluster.kubectl(
                "get", "pods", "-o", "json", f"--field-selector=metadata.name={self.shown}"
            )
            items = json.loads(output)["items"]
            return items[0] if items else None

        def ready(self, *, besides=None):
            eventually(
                lambda: bool((pod := self.seen()) and is_ready(pod) and pod["metadata"]["uid"] != besides)
            )
            return self.seen()

    files.append(Place())
    yield files[0]
    files[0].path.unlink(missing_ok=True)
    eventually(files[0].seen, expected=None)


def process(cluster):
    return cluster.process("sh", FOREVER).pid


def test_a_file_is_a_pod_with_a_mirror_until_it_is_removed(cluster, place):
    place.write()
    pod = place.ready()
    annotations = pod["metadata"]["annotations"]
    assert annotations["kubernetes.io/config.source"] == "file"
    assert annotations["kubernetes.io/config.mirror"] == annotations["kubernetes.io/config.hash"]
    assert len(annotations["kubernetes.io/config.hash"]) == 32
    assert pod["spec"]["nodeName"] == "node-1"
    assert pod["metadata"]["ownerReferences"][0]["name"] == "node-1"
    assert cluster.kubectl("logs", place.shown) == "begun\n"
    assert cluster.kubectl("exec", place.shown, "--", "echo", "within") == "within\n"
    place.path.unlink()
    eventually(place.seen, expected=None)
    eventually(lambda: cluster.processes_with("sh", FOREVER), expected=[])


def test_deleting_the_mirror_ends_nothing_and_makes_another(cluster, place):
    place.write()
    before, runs = place.ready(), process(cluster)
    cluster.kubectl("delete", "pod", place.shown)
    after = place.ready(besides=before["metadata"]["uid"])
    assert container(after)["restartCount"] == 0
    assert container(after)["containerID"] == container(before)["containerID"]
    assert process(cluster) == runs


def test_a_file_that_changes_is_another_pod(cluster, place):
    place.write()
    before = place.ready()
    place.write("echo changed; exec sleep 600")
    after = place.ready(besides=before["metadata"]["uid"])
    digest = "kubernetes.io/config.hash"
    assert after["metadata"]["annotations"][digest] != before["metadata"]["annotations"][digest]
    assert cluster.kubectl("logs", place.shown) == "changed\n"
    assert not cluster.processes_with("sh", FOREVER)


def test_the_next_kubelet_goes_on_with_it(cluster, place):
    place.write()
    before, runs = place.ready(), process(cluster)
    cluster.restart_kubelet()
    assert process(cluster) == runs
    assert place.ready()["metadata"]["uid"] == before["metadata"]["uid"]
    place.path.unlink()
    eventually(lambda: cluster.processes_with("sh", FOREVER), expected=[])


NO_PODS = {
    "{}": "it has no pod",
    "{": "Expecting property name",
    "[]": "'list' object has no attribute",
    POD % '{"name": "a"}': "a container has an image",
    POD % '{"image": "a"}': "a pod and its containers have names",
    POD % '"a"': "'str' object has no attribute",
}


def test_files_that_are_no_pods_are_named_in_the_log_and_one_that_becomes_a_pod_runs(cluster, place):
    paths = [
        place.path,
        *(place.path.with_name(f"no-pod-{number}.json") for number in range(1, len(NO_PODS))),
    ]
    log = cluster.root / "logs" / "kubelet.log"
    try:
        for path, text in zip(paths, NO_PODS, strict=True):
            path.write_text(text)
        for path, why in zip(paths, NO_PODS.values(), strict=True):
            eventually(lambda words=f"static pod {path}: {why}": words in log.read_text())
        place.write()
        place.ready()
    finally:
        for path in paths[1:]:
            path.unlink()
