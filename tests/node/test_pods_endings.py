"""How containers end, and what is reported of it."""

import pytest

from .clusters import container, eventually, on_node, pod, state

# The first process ends at once when it is asked to; its child, in a session of its own, is deaf.
DEAF_CHILD = """
setsid sh -c 'trap "" TERM; echo deaf; sleep 98765' &
trap 'exit 0' TERM
wait
"""
TIDY = """
trap 'sleep 1; echo tidied > /gate/note; exit 0' TERM
echo ready
sleep infinity & wait
"""
PATIENT = {"terminationGracePeriodSeconds": 30}


def terminated(pod, name="main"):
    return state(pod, name)["terminated"]


@pytest.mark.parametrize(
    ("script", "code", "reason", "phase"),
    [
        ("true", 0, "Completed", "Succeeded"),
        ("exit 3", 3, "Error", "Failed"),
        ("sleep 600 & kill -9 $!; wait $!", 137, "Error", "Failed"),
        ("exit 255", 255, "Error", "Failed"),
    ],
)
def test_an_exit_code_has_its_reason_and_its_phase(pods, script, code, reason, phase):
    finished = pods.finish(pod(script))
    assert (terminated(finished)["exitCode"], terminated(finished)["reason"]) == (code, reason)
    assert finished["status"]["phase"] == phase
    assert terminated(finished)["startedAt"] <= terminated(finished)["finishedAt"]


def test_a_pod_ends_with_the_last_of_its_containers_and_fails_with_any(pods):
    containers = [
        {"name": name, "image": "busybox", "command": ["sh", "-c", script]}
        for name, script in (("first", "exit 0"), ("second", "exit 4"))
    ]
    finished = pods.finish(pod(containers=containers))
    assert finished["status"]["phase"] == "Failed"
    assert terminated(finished, "first")["reason"] == "Completed"
    assert terminated(finished, "second")["exitCode"] == 4


def test_what_a_container_leaves_in_its_termination_file_is_its_message(pods):
    finished = pods.finish(pod("echo -n best accuracy 0.98 > /dev/termination-log"))
    assert terminated(finished)["message"] == "best accuracy 0.98"
    finished = pods.finish(pod("echo -n elsewhere > /tmp/word", main={"terminationMessagePath": "/tmp/word"}))
    assert terminated(finished)["message"] == "elsewhere"


def test_the_last_lines_of_a_failed_container_stand_in_for_a_message_where_it_is_asked_for(pods):
    fallback = {"terminationMessagePolicy": "FallbackToLogsOnError"}
    finished = pods.finish(pod("echo the loss is not a number; exit 1", main=fallback))
    assert terminated(finished)["message"].strip() == "the loss is not a number"
    assert not terminated(pods.finish(pod("echo all is well", main=fallback))).get("message")
    assert not terminated(pods.finish(pod("echo nobody asked; exit 1"))).get("message")


def test_a_line_that_was_written_in_parts_is_one_line_of_that_message(pods):
    fallback = {"terminationMessagePolicy": "FallbackToLogsOnError"}
    parts = "printf '    '; sleep 0.5; printf 'sys.exit'; sleep 0.5; echo '(main())'; exit 1"
    finished = pods.finish(pod(parts, main=fallback))
    assert terminated(finished)["message"].strip("\n") == "    sys.exit(main())"


def test_deleting_asks_first_and_gives_the_time_that_was_promised(pods, cluster):
    gate = {"name": "gate", "hostPath": {"path": str(shared(cluster))}}
    mounts = {"volumeMounts": [{"name": "gate", "mountPath": "/gate"}]}
    name = pods.create(pod(TIDY, main=mounts, volumes=[gate], terminationGracePeriodSeconds=30))
    pods.wait_for_line(name, "ready")
    cluster.kubectl("delete", "pod", name)
    assert (shared(cluster) / "note").read_text() == "tidied\n"


def test_what_does_not_end_in_time_is_killed_with_all_that_descends_from_it(pods, cluster):
    name = pods.create(pod(DEAF_CHILD))
    pods.wait_for_line(name, "deaf")
    sleeper = cluster.process("sleep", "98765")
    cluster.kubectl("delete", "pod", name)
    eventually(sleeper.is_running, expected=False)


def test_a_pod_that_is_forced_away_leaves_no_process(pods, cluster):
    name = pods.create(pod("trap '' TERM; echo deaf; sleep 87654", **PATIENT))
    pods.wait_for_line(name, "deaf")
    sleeper = cluster.process("sleep", "87654")
    cluster.kubectl("delete", "pod", name, "--force", "--grace-period=0")
    eventually(sleeper.is_running, expected=False)


def test_the_image_that_does_nothing_ends_when_it_is_asked_to(pods):
    finished = pods.finish(
        pod(main={"image": "registry.example/pause:3.10"}, activeDeadlineSeconds=1, **PATIENT)
    )
    assert terminated(finished)["exitCode"] == 0


def test_a_pod_deleted_before_it_could_start_is_gone_as_well(pods, cluster):
    volumes = [{"name": "never", "configMap": {"name": "there-is-none"}}]
    mounts = {"volumeMounts": [{"name": "never", "mountPath": "/never"}]}
    name = pods.create(pod("true", main=mounts, volumes=volumes, **on_node(0)))
    cluster.kubectl("wait", "--for=condition=PodScheduled", f"pod/{name}", "--timeout=120s")
    cluster.kubectl("delete", "pod", name, "--timeout=120s")


def test_output_is_complete_when_the_end_is_reported(pods):
    finished = pods.finish(
        pod("i=0; while [ $i -lt 2000 ]; do echo line $i; i=$((i+1)); done; printf unfinished")
    )
    assert pods.logs(finished).splitlines() == [*(f"line {i}" for i in range(2000)), "unfinished"]
    assert container(finished)["restartCount"] == 0


def shared(cluster):
    """Return a directory of the host that pods may write in through a hostPath volume."""
    place = cluster.home / "shared"
    place.mkdir(exist_ok=True)
    return place
