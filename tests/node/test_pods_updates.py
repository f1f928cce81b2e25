"""Fields of a pod that may change while it runs: its containers' images, its deadline."""

import pytest

from .clusters import container, is_ready, pod, state

TWO_IMAGES = ("busybox:1.36", "busybox:1.37")


def running(pods, script="exec sleep 600", **spec):
    """Return the name of a running pod, whose main container is of the first image."""
    main = spec.pop("main", {}) | {"image": TWO_IMAGES[0]}
    return pods.running(pod(script, main=main, **spec))["metadata"]["name"]


def restarted(pods, name):
    """Wait for the second run of the main container, and return its status."""
    return container(pods.until(name, lambda pod: "running" in state(pod) and runs(pod) == 2))


def runs(pod):
    return container(pod)["restartCount"] + 1


def test_a_container_with_another_image_is_restarted_whatever_its_policy_says(cluster, pods):
    name = running(pods, "trap 'echo bye; exit 0' TERM; echo hello; while :; do sleep 0.1; done")
    cluster.kubectl("set", "image", f"pod/{name}", f"main={TWO_IMAGES[1]}")
    status = restarted(pods, name)
    assert status["image"] == TWO_IMAGES[1]
    assert status["lastState"]["terminated"]["exitCode"] == 0
    assert pods.logs(name, previous=True) == "hello\nbye\n"
    pods.wait_for_event(name, "Killing", "Container main definition changed, will be restarted")


def test_the_image_that_runs_is_reported_until_the_next_one_does(cluster, pods):
    name = running(
        pods, "trap 'sleep 2; exit 3' TERM; while :; do sleep 0.1; done", terminationGracePeriodSeconds=30
    )
    cluster.kubectl("set", "image", f"pod/{name}", f"main={TWO_IMAGES[1]}")
    images = []
    pods.until(name, lambda pod: images.append(container(pod)) or runs(pod) == 2)
    assert {status["image"] for status in images if status["restartCount"] == 0} == {TWO_IMAGES[0]}


@pytest.mark.parametrize("sidecar", [False, True], ids=["main", "sidecar"])
def test_a_pod_stays_ready_between_the_runs_of_two_images(cluster, pods, sidecar):
    beside = {"name": "beside", "image": TWO_IMAGES[0], "restartPolicy": "Always"}
    beside["command"] = ["sh", "-c", "exec sleep 600"]
    name = running(pods, initContainers=[beside])
    changed = "beside" if sidecar else "main"
    pods.until(name, is_ready)
    cluster.kubectl("set", "image", f"pod/{name}", f"{changed}={TWO_IMAGES[1]}")
    readiness = []
    pods.until(name, lambda pod: readiness.append(pod) or container(pod, changed)["restartCount"] == 1)
    assert all(is_ready(pod) for pod in readiness)
    assert sum(container(readiness[-1], name)["restartCount"] for name in ("main", "beside")) == 1
    assert container(readiness[-1], changed)["lastState"]["terminated"]["exitCode"] == 137


def test_a_replacement_that_cannot_start_is_reported_with_the_end_of_the_run_before(cluster, pods):
    config_map = {"name": "A", "valueFrom": {"configMapKeyRef": {"name": "for-a-while", "key": "k"}}}
    cluster.kubectl("create", "configmap", "for-a-while", "--from-literal=k=v")
    name = running(pods, main={"env": [config_map]})
    cluster.kubectl("delete", "configmap", "for-a-while")
    cluster.kubectl("set", "image", f"pod/{name}", f"main={TWO_IMAGES[1]}")
    waiting = pods.until(name, lambda pod: "waiting" in state(pod))
    assert not is_ready(waiting)
    assert state(waiting)["waiting"]["reason"] == "CreateContainerConfigError"
    assert container(waiting)["lastState"]["terminated"]["exitCode"] == 137


def test_a_container_that_backs_off_is_tried_at_once_with_another_image(cluster, pods):
    name = pods.create(pod("exit 1", main={"image": TWO_IMAGES[0]}, restartPolicy="Always"))
    pods.until(name, lambda pod: state(pod).get("waiting", {}).get("reason") == "CrashLoopBackOff")
    before = runs(pods.until(name, bool))
    cluster.kubectl("set", "image", f"pod/{name}", f"main={TWO_IMAGES[1]}")
    pods.until(name, lambda pod: runs(pod) > before)


def test_an_image_that_changes_while_the_kubelet_is_away_is_seen_by_the_next_one(cluster, pods):
    name = running(pods)
    kubelet = cluster.process("localkube.kubelet")
    kubelet.suspend()
    cluster.kubectl("set", "image", f"pod/{name}", f"main={TWO_IMAGES[1]}")
    kubelet.kill()
    restarted(pods, name)


def deadline(cluster, name, seconds):
    patch = f'{{"spec": {{"activeDeadlineSeconds": {seconds}}}}}'
    cluster.kubectl("patch", "pod", name, "--patch", patch)


def test_a_deadline_that_is_set_later_ends_the_pod(cluster, pods):
    name = running(pods, activeDeadlineSeconds=3600)
    deadline(cluster, name, 1)
    status = pods.until(name, lambda pod: pod["status"]["phase"] == "Failed")["status"]
    assert status["reason"] == "DeadlineExceeded"
