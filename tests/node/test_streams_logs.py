"""``kubectl logs``, through the real API server: runs, rotation, what cannot be kept."""

import contextlib
import itertools
import subprocess

from .clusters import PATIENCE, eventually, pod, state

MEGABYTE = 1_000_000


@contextlib.contextmanager
def kubectl(cluster, *words):
    """Yield a kubectl that runs; it is killed at the end."""
    pipe = subprocess.PIPE
    command = cluster.kubectl_command(*words)
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=subprocess.DEVNULL, text=True) as process:
        try:
            yield process
        finally:
            process.kill()


def say(cluster, name, text):
    """Give a container a line of input."""
    with kubectl(cluster, "attach", "-i", name) as attached:
        attached.stdin.write(text + "\n")
        attached.stdin.close()
        attached.stdout.read()


def test_following_ends_with_a_run_and_begins_anew_with_the_next(cluster, pods):
    script = "echo begin; read line; echo $line; exit 1"
    name = pods.create(pod(script, restartPolicy="Always", main={"stdin": True}))
    for run in range(2):
        pods.until(name, lambda pod, run=run: "running" in state(pod) and _restarts(pod) == run)
        with kubectl(cluster, "logs", "-f", name) as following:
            assert following.stdout.readline() == "begin\n"
            say(cluster, name, f"run {run}")
            assert following.stdout.read() == f"run {run}\n"
            assert following.wait(PATIENCE) == 0
    assert cluster.kubectl("logs", name, "--previous").startswith("begin\nrun ")


def _restarts(pod):
    return pod["status"]["containerStatuses"][0]["restartCount"]


def test_a_log_is_read_and_followed_across_rotation_and_its_size_is_bounded(cluster, pods):
    name = pods.create(pod("read go; seq 1000000; seq 500000", main={"stdin": True}))
    running = pods.until(name, lambda pod: "running" in state(pod))
    place = cluster.root / "pods" / running["metadata"]["uid"] / "logs" / "main"
    with kubectl(cluster, "logs", "-f", name) as following:
        say(cluster, name, "go")
        expected = itertools.chain(range(1, 1_000_001), range(1, 500_001))
        assert all(following.stdout.readline() == f"{number}\n" for number in expected)
        assert (following.stdout.read(), following.wait(PATIENCE)) == ("", 0)
    names = {path.name for path in place.iterdir()}
    assert 4 <= len(names) <= 5 and "0.log.1" not in names
    assert sum(path.stat().st_size for path in place.iterdir()) < 5 * 12.5 * MEGABYTE
    assert cluster.kubectl("logs", name, "--tail=2") == "499999\n500000\n"
    assert cluster.kubectl("logs", name, "--tail=300000").startswith("200001\n")
    log = cluster.kubectl("logs", name)
    assert log.endswith("999999\n1000000\n" + "".join(f"{number}\n" for number in range(1, 500_001)))


def test_output_that_cannot_be_kept_is_said_in_an_event_and_the_container_goes_on(cluster, pods):
    name = pods.create(pod("read go; seq 100000; seq 100000 >&2; exit 3", main={"stdin": True}))
    running = pods.until(name, lambda pod: "running" in state(pod))
    place = cluster.root / "pods" / running["metadata"]["uid"]
    place.mkdir(exist_ok=True)
    (place / "logs").write_text("in the way")
    say(cluster, name, "go")
    ended = pods.until(name, lambda pod: "terminated" in state(pod))
    assert state(ended)["terminated"]["exitCode"] == 3
    message = "Output of container main is lost until there is room for it: Not a directory"
    eventually(lambda: cluster.kubectl("events", "--for", f"pod/{name}").count(message), expected=1)


def test_every_flag_of_kubectl_logs_is_honoured(cluster, pods):
    script = "for i in 1 2 3; do echo line $i; done; sleep 2; echo late; printf half; echo problem >&2"
    name = pods.finish(pod(script))["metadata"]["name"]
    assert cluster.kubectl("logs", name, "--tail=2") == "late\nhalfproblem\n"
    assert cluster.kubectl("logs", name, "--tail=0") == ""
    assert cluster.kubectl("logs", name, "--limit-bytes=9") == "line 1\nli"
    stamped = cluster.kubectl("logs", name, "--timestamps").splitlines()
    assert [line.split(" ", 1)[1] for line in stamped[:4]] == ["line 1", "line 2", "line 3", "late"]
    late = stamped[3].split(" ")[0]
    assert cluster.kubectl("logs", name, f"--since-time={late}") == "late\nhalfproblem\n"
    assert cluster.kubectl("logs", name, "--since=1h") == "line 1\nline 2\nline 3\nlate\nhalfproblem\n"
    assert cluster.kubectl("logs", name, "--since=1h", "--tail=3", "--limit-bytes=8") == "line 3\nl"
    assert cluster.kubectl("logs", name, "--prefix").startswith(f"[pod/{name}/main] line 1\n")
