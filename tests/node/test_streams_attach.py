"""``kubectl attach``, ``kubectl run -i`` and ``kubectl cp``, through the real API server, by WebSockets."""

import os
import select
import signal
import subprocess

from .clusters import PATIENCE, eventually, pod, state
from .terminals import Terminal

ECHO = (
    "echo ready; while read line; do echo got $line; test $line = stop && exit 3; done; echo end; sleep 600"
)


def attach(cluster, *words, **options):
    command = cluster.kubectl_command("attach", *words)
    return subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, **options
    )


def running(pods, script, **main):
    name = pods.create(pod(script, main=main))
    pods.wait_for_line(name, "ready\r" if main.get("tty") else "ready")
    return name


def test_input_reaches_a_container_and_its_output_everybody_and_the_log(cluster, pods):
    name = running(pods, ECHO, stdin=True)
    with attach(cluster, "-i", name) as first, attach(cluster, name) as second:
        # Who attaches hears what comes from then on.
        eventually(lambda: _is_heard(first, second))
        first.stdin.write("two\nstop\n")
        first.stdin.flush()
        assert first.stdout.read().endswith("got one\ngot two\ngot stop\n")
        assert second.stdout.read().endswith("got one\ngot two\ngot stop\n")
        assert (first.wait(PATIENCE), second.wait(PATIENCE)) == (0, 0)
    logged = pods.logs(name)
    assert logged.startswith("ready\ngot one\n") and logged.endswith("got one\ngot two\ngot stop\n")
    assert state(pods.until(name, lambda pod: "terminated" in state(pod)))["terminated"]["exitCode"] == 3


def _is_heard(speaker, listener):
    speaker.stdin.write("one\n")
    speaker.stdin.flush()
    return bool(select.select([listener.stdout], [], [], 0.1)[0])


def say(cluster, name, text):
    """Attach, give the input ``text`` and its end, and return what is still running."""
    attached = attach(cluster, "-i", name)
    attached.stdin.write(text)
    attached.stdin.close()
    return attached


def test_the_input_stays_open_for_the_next(cluster, pods):
    name = running(pods, ECHO, stdin=True)
    for number in (1, 2):
        with say(cluster, name, f"{number}\n") as attached:
            eventually(lambda text=f"got {number}\n": pods.logs(name).endswith(text))
            attached.kill()


def test_the_input_ends_with_the_first_where_it_is_for_once(cluster, pods):
    name = running(pods, ECHO, stdin=True, stdinOnce=True)
    with say(cluster, name, "1\n") as attached:
        eventually(lambda: pods.logs(name), expected="ready\ngot 1\nend\n")
        attached.kill()


def test_a_container_on_a_terminal_is_attached_to_and_left(cluster, pods):
    name = running(pods, "echo ready; exec sh -i", stdin=True, tty=True)
    with Terminal(cluster.kubectl_command("attach", "-it", name), columns=101, rows=33) as terminal:
        terminal.type("tty; echo $TERM\r")
        terminal.until(r"/dev/pts/0\r\nxterm\r\n")
        # kubectl first sends a size that is one too large each way, so that programs draw their screen anew.
        terminal.type("until [ \"$(stty size)\" = '33 101' ]; do sleep 0.1; done; echo the si''ze\r")
        terminal.until("the size\r\n")
    cluster.process("localkube.kubelet").kill()
    eventually(lambda: "ready" in _logs(cluster, name))
    with Terminal(cluster.kubectl_command("attach", "-it", name)) as terminal:
        terminal.type("echo still''here\r")
        terminal.until("stillhere")
        terminal.type("exit 4\r")
        assert terminal.wait() == 0
    assert "stillhere\r\n" in pods.logs(name)
    assert state(pods.until(name, lambda pod: "terminated" in state(pod)))["terminated"]["exitCode"] == 4


def _logs(cluster, name):
    done = subprocess.run(cluster.kubectl_command("logs", name), capture_output=True, text=True, check=False)
    return done.stdout


def test_a_slow_reader_loses_nothing(cluster, pods):
    # More than the buffers on the way hold, which are several megabytes.
    last = 4_000_000
    name = running(pods, f"echo ready; read go; seq {last}; read go", stdin=True)
    with attach(cluster, "-i", name) as attached:
        try:
            attached.stdin.write("go\n")
            attached.stdin.flush()
            assert attached.stdout.readline() == "1\n"
            os.kill(attached.pid, signal.SIGSTOP)
            eventually(lambda: 1000 < int(pods.logs(name, tail_lines=1)) < last)
            os.kill(attached.pid, signal.SIGCONT)
            for number in range(2, last + 1):
                assert attached.stdout.readline() == f"{number}\n"
        finally:
            attached.kill()


def test_kubectl_run_takes_input_and_cleans_up(cluster):
    words = ("run", "calculator", "--image=busybox", "--restart=Never", "-i", "--rm", "--quiet", "--", "sh")
    done = subprocess.run(
        cluster.kubectl_command(*words),
        input=b"echo $((6 * 7)); exit 9\n",
        capture_output=True,
        timeout=PATIENCE,
        check=False,
    )
    assert (done.stdout, done.returncode) == (b"42\n", 9), done.stderr
    assert "calculator" not in cluster.kubectl("get", "pods", "-o", "name")


def test_files_are_copied_both_ways(cluster, pods, tmp_path):
    name = running(pods, "echo ready; sleep 600")
    (tmp_path / "there" / "deep").mkdir(parents=True)
    data = os.urandom(2_000_000)
    (tmp_path / "there" / "deep" / "weights.pt").write_bytes(data)
    cluster.kubectl("cp", str(tmp_path / "there"), f"{name}:/tmp/there")
    assert (
        cluster.kubectl("exec", name, "--", "stat", "-c", "%s", "/tmp/there/deep/weights.pt") == "2000000\n"
    )
    cluster.kubectl("cp", f"{name}:/tmp/there", str(tmp_path / "back"))
    assert (tmp_path / "back" / "deep" / "weights.pt").read_bytes() == data
