"""Containers that run before others, and containers that run again."""

import secrets

import pytest

from .clusters import container, eventually, pod, state

COUNT = "n=$(cat /keep/n 2>/dev/null || echo 0); n=$((n+1)); echo $n > /keep/n; echo run $n; "
KEEP = {
    "volumes": [{"name": "keep", "emptyDir": {}}],
    "main": {"volumeMounts": [{"name": "keep", "mountPath": "/keep"}]},
}


def init(name, script, **more):
    mounts = [{"name": "keep", "mountPath": "/keep"}]
    return {"name": name, "image": "busybox", "command": ["sh", "-c", script], "volumeMounts": mounts, **more}


def waits_to_restart(pod, name="main"):
    return state(pod, name).get("waiting", {}).get("reason") == "CrashLoopBackOff"


def test_init_containers_run_one_after_the_other_before_the_rest(pods):
    inits = [init(name, f"sleep 0.2; echo {name} >> /keep/order") for name in ("first", "second")]
    made = pods.finish(pod("cat /keep/order", initContainers=inits, **KEEP))
    assert pods.logs(made) == "first\nsecond\n"
    assert [item["state"]["terminated"]["reason"] for item in made["status"]["initContainerStatuses"]] == [
        "Completed",
        "Completed",
    ]
    ended = state(made, "first")["terminated"]["finishedAt"]
    assert ended <= state(made, "second")["terminated"]["startedAt"]


def test_an_init_container_that_fails_for_good_fails_its_pod_and_nothing_else_runs(pods, cluster):
    place = cluster.home / f"init-{secrets.token_hex(3)}"
    place.mkdir()
    volumes = [{"name": "keep", "hostPath": {"path": str(place)}}]
    inits = [init("prepare", "touch /keep/prepare; exit 5"), init("after", "touch /keep/after")]
    made = pods.finish(pod("touch /keep/main", initContainers=inits, **KEEP | {"volumes": volumes}))
    assert made["status"]["phase"] == "Failed"
    assert state(made, "prepare")["terminated"]["exitCode"] == 5
    assert "waiting" in state(made, "after")
    assert "waiting" in state(made)
    cluster.kubectl("delete", "pod", made["metadata"]["name"])
    assert [path.name for path in place.iterdir()] == ["prepare"]


def test_an_init_container_is_tried_again_where_its_pod_restarts(pods):
    inits = [init("prepare", COUNT + "[ $n = 2 ]")]
    made = pods.finish(pod("echo prepared", initContainers=inits, restartPolicy="OnFailure", **KEEP))
    assert made["status"]["phase"] == "Succeeded"
    assert container(made, "prepare")["restartCount"] == 1


def test_on_failure_runs_again_until_it_succeeds(pods):
    made = pods.finish(pod(COUNT + "[ $n = 2 ]", restartPolicy="OnFailure", **KEEP))
    assert made["status"]["phase"] == "Succeeded"
    assert container(made)["restartCount"] == 1
    assert container(made)["lastState"]["terminated"]["exitCode"] == 1
    assert pods.logs(made) == "run 2\n"


@pytest.mark.parametrize("code", [0, 1])
def test_always_runs_again_whatever_the_end(pods, code):
    name = pods.create(pod(COUNT + f"[ $n = 2 ] && sleep 600; exit {code}", restartPolicy="Always", **KEEP))
    made = pods.until(name, lambda pod: container(pod)["restartCount"] == 1 and "running" in state(pod))
    assert container(made)["lastState"]["terminated"]["exitCode"] == code
    assert made["status"]["phase"] == "Running"


def test_a_container_that_fails_again_and_again_is_held_back_and_its_last_run_can_be_read(pods, cluster):
    name = pods.create(pod(COUNT + "exit 1", restartPolicy="Always", **KEEP))
    made = pods.until(name, waits_to_restart)
    assert made["status"]["phase"] == "Running"
    assert "back-off 10s restarting failed container=main" in state(made)["waiting"]["message"]
    ended = container(made)["lastState"]["terminated"]
    assert (ended["exitCode"], ended["reason"]) == (1, "Error")
    count = container(made)["restartCount"]
    assert pods.logs(name) == f"run {count + 1}\n"
    assert cluster.kubectl("logs", "--previous", name) in (f"run {count}\n", f"run {count + 1}\n")
    eventually(lambda: "BackOff" in cluster.kubectl("events", "--for", f"pod/{name}"))


def test_a_container_that_never_ran_before_has_no_previous_output(pods, cluster):
    name = pods.running(pod("sleep 600"))["metadata"]["name"]
    with pytest.raises(AssertionError, match="previous terminated container"):
        cluster.kubectl("logs", "--previous", name)


def rules(action, *codes):
    return {
        "restartPolicyRules": [{"action": action, "exitCodes": {"operator": "In", "values": list(codes)}}]
    }


def test_a_rule_restarts_all_containers_of_a_pod_in_place(pods):
    main = KEEP["main"] | {"restartPolicy": "Never"} | rules("RestartAllContainers", 42)
    inits = [
        init("prepare", "echo prepared >> /keep/log"),
        init("beside", "echo beside >> /keep/log; exec sleep 600", restartPolicy="Always"),
    ]
    script = COUNT + "sleep 1; [ $n = 2 ] || exit 42; cat /keep/log"
    asked = pod(script, volumes=KEEP["volumes"], main=main, initContainers=inits)
    other = init("other", "echo other >> /keep/log; sleep 3")
    asked["spec"]["containers"].append(other)
    name = pods.create(asked)
    restarting = pods.until(name, lambda pod: condition(pod, "AllContainersRestarting") == "True")
    assert restarting["status"]["phase"] == "Running"
    made = pods.until(name, lambda pod: pod["status"]["phase"] in ("Succeeded", "Failed"))
    assert sorted(pods.logs(made).split()[2:]) == sorted(2 * ["prepared", "beside", "other"])
    counts = {name: container(made, name)["restartCount"] for name in ("main", "other", "prepare", "beside")}
    assert set(counts.values()) == {1}, counts
    assert condition(made, "AllContainersRestarting") == "False"
    assert restarting["status"]["podIP"] == made["status"]["podIP"]


def condition(pod, kind):
    found = {row["type"]: row["status"] for row in pod["status"].get("conditions") or []}
    return found.get(kind)
