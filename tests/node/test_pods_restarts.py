"""Containers that run before others, and containers that run again."""

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
    created = pods.finish(pod("cat /keep/order", initContainers=inits, **KEEP))
    assert pods.logs(created) == "first\nsecond\n"
    assert [item["state"]["terminated"]["reason"] for item in created["status"]["initContainerStatuses"]] == [
        "Completed",
        "Completed",
    ]
    ended = state(created, "first")["terminated"]["finishedAt"]
    assert ended <= state(created, "second")["terminated"]["startedAt"]


def test_on_failure_runs_again_until_it_succeeds(pods):
    created = pods.finish(pod(COUNT + "[ $n = 2 ]", restartPolicy="OnFailure", **KEEP))
    assert created["status"]["phase"] == "Succeeded"
    assert container(created)["restartCount"] == 1
    assert container(created)["lastState"]["terminated"]["exitCode"] == 1
    assert pods.logs(created) == "run 2\n"


def test_always_runs_again_after_a_good_end(pods):
    name = pods.create(pod(COUNT + "[ $n = 2 ] && sleep 600; exit 0", restartPolicy="Always", **KEEP))
    created = pods.until(name, lambda pod: container(pod)["restartCount"] == 1 and "running" in state(pod))
    assert container(created)["lastState"]["terminated"]["exitCode"] == 0
    assert created["status"]["phase"] == "Running"


def test_a_crashing_container_is_backed_off_and_its_last_log_is_readable(pods, cluster):
    name = pods.create(pod(COUNT + "exit 1", restartPolicy="Always", **KEEP))
    created = pods.until(name, waits_to_restart)
    assert created["status"]["phase"] == "Running"
    assert "back-off 10s restarting failed container=main" in state(created)["waiting"]["message"]
    ended = container(created)["lastState"]["terminated"]
    assert (ended["exitCode"], ended["reason"]) == (1, "Error")
    count = container(created)["restartCount"]
    assert pods.logs(name) == f"run {count + 1}\n"
    assert cluster.kubectl("logs", "--previous", name) in (f"run {count}\n", f"run {count + 1}\n")
    eventually(lambda: "BackOff" in cluster.kubectl("events", "--for", f"pod/{name}"))


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
    manifest = pod(script, volumes=KEEP["volumes"], main=main, initContainers=inits)
    other_init = init("other", "echo other >> /keep/log; sleep 3")
    manifest["spec"]["containers"].append(other_init)
    name = pods.create(manifest)
    restarting = pods.until(name, lambda pod: condition(pod, "AllContainersRestarting") == "True")
    assert restarting["status"]["phase"] == "Running"
    created = pods.until(name, lambda pod: pod["status"]["phase"] in ("Succeeded", "Failed"))
    assert sorted(pods.logs(created).split()[2:]) == sorted(2 * ["prepared", "beside", "other"])
    counts = {
        name: container(created, name)["restartCount"] for name in ("main", "other", "prepare", "beside")
    }
    assert set(counts.values()) == {1}, counts
    assert condition(created, "AllContainersRestarting") == "False"
    assert restarting["status"]["podIP"] == created["status"]["podIP"]


def condition(pod, kind):
    statuses = {row["type"]: row["status"] for row in pod["status"].get("conditions") or []}
    return statuses.get(kind)
