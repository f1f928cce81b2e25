"""How containers end, and what is reported of it."""

from .clusters import container, eventually, on_node, pod, state

# The first process ends at once when it is asked to; its child, in a session of its own, is deaf.
DEAF_CHILD = """
setsid sh -c 'trap "" TERM; echo deaf; sleep 98765' &
trap 'exit 0' TERM
wait
"""


def terminated(pod, name="main"):
    return state(pod, name)["terminated"]


def test_a_line_that_was_written_in_parts_is_one_line_of_that_message(pods):
    fallback = {"terminationMessagePolicy": "FallbackToLogsOnError"}
    parts = "printf '    '; sleep 0.5; printf 'sys.exit'; sleep 0.5; echo '(main())'; exit 1"
    finished = pods.finish(pod(parts, main=fallback))
    assert terminated(finished)["message"].strip("\n") == "    sys.exit(main())"


def test_a_container_that_exceeds_its_grace_period_is_killed_entirely(pods, cluster):
    name = pods.create(pod(DEAF_CHILD))
    pods.wait_for_line(name, "deaf")
    sleeper = cluster.process("sleep", "98765")
    cluster.kubectl("delete", "pod", name)
    eventually(sleeper.is_running, expected=False)


def test_the_image_that_does_nothing_ends_when_it_is_asked_to(pods):
    main = {"image": "registry.example/pause:3.10"}
    finished = pods.finish(pod(main=main, activeDeadlineSeconds=1, terminationGracePeriodSeconds=30))
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


def test_a_forced_deletion_cuts_a_graceful_one_short(pods, cluster):
    name = pods.create(pod("trap '' TERM; echo deaf; sleep 87654", terminationGracePeriodSeconds=600))
    pods.wait_for_line(name, "deaf")
    sleeper = cluster.process("sleep", "87654")
    cluster.kubectl("delete", "pod", name, "--wait=false")
    pods.until(name, lambda pod: "deletionTimestamp" in pod["metadata"])
    cluster.kubectl("delete", "pod", name, "--force", "--grace-period=0", "--timeout=120s")
    eventually(sleeper.is_running, expected=False)
