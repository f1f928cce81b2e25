"""``kubectl exec``, through the real API server, by WebSockets."""

import os
import signal
import subprocess
import sys

import pytest

from .clusters import PATIENCE, RunningCluster, eventually, pod
from .restrictions import REPOSITORY
from .terminals import Terminal


@pytest.fixture(scope="module")
def target(cluster):
    """The name of a pod that runs, for commands."""
    main = {"env": [{"name": "WHO", "value": "me"}], "workingDir": "/var/tmp"}
    created = cluster.core.create_namespaced_pod(
        "default", pod("exec sleep 6000", name="exec-target", main=main)
    )
    cluster.kubectl("wait", "--for=condition=Ready", f"pod/{created.metadata.name}", f"--timeout={PATIENCE}s")
    yield created.metadata.name
    cluster.kubectl("delete", "pod", created.metadata.name, "--now")


def run(cluster: RunningCluster, *words: str, **options) -> subprocess.CompletedProcess:
    return subprocess.run(
        cluster.kubectl_command(*words), capture_output=True, timeout=PATIENCE, check=False, **options
    )


def processes(cluster: RunningCluster, mark: str) -> int:
    """Count the cluster's processes with a word of their command line that is ``mark``."""
    return len(cluster.processes_with(mark))


def started(cluster: RunningCluster, mark: str) -> None:
    eventually(lambda: processes(cluster, mark), expected=1)


def test_a_command_has_the_containers_environment_directory_name_and_processes(cluster, target):
    done = run(cluster, "exec", target, "--", "sh", "-c", "echo $WHO; pwd; hostname")
    assert (done.stdout, done.stderr) == (f"me\n/var/tmp\n{target}\n".encode(), b"")
    assert done.returncode == 0
    if cluster.status["mode"] == "namespaces":
        assert run(cluster, "exec", target, "--", "cat", "/proc/1/comm").stdout == b"sleep\n"


def test_output_and_errors_come_apart_and_the_exit_code_comes_back(cluster, target):
    done = run(cluster, "exec", target, "--", "sh", "-c", "echo out; echo problem >&2; exit 7")
    assert done.stdout == b"out\n"
    assert done.stderr == b"problem\ncommand terminated with exit code 7\n"
    assert done.returncode == 7
    assert run(cluster, "exec", target, "--", "sh", "-c", "kill -9 $$").returncode == 137


def test_a_command_that_is_not_there_is_named(cluster, target):
    done = run(cluster, "exec", target, "--", "nosuch")
    assert b'exec: "nosuch": executable file not found in $PATH' in done.stderr
    assert done.returncode == 1


def test_a_pod_that_is_not_there_and_a_container_that_has_ended_are_named(cluster, pods, target):
    assert b'pods "nosuch" not found' in run(cluster, "exec", "nosuch", "--", "true").stderr
    ended = pods.finish(pod("true"))["metadata"]["name"]
    done = run(cluster, "exec", ended, "--", "true")
    assert b"cannot exec into a container in a completed pod" in done.stderr


def test_input_reaches_the_command_byte_for_byte_and_ends(cluster, target):
    data = os.urandom(3_000_000)
    done = run(cluster, "exec", "-i", target, "--", "cat", input=data)
    assert done.stdout == data
    assert run(cluster, "exec", "-i", target, "--", "head", "-c", "3", input=data).stdout == data[:3]


def test_a_terminal_has_a_name_a_size_and_an_interrupt_key(cluster, target):
    with Terminal(
        cluster.kubectl_command("exec", "-it", target, "--", "sh", "-i"), columns=97, rows=31
    ) as terminal:
        terminal.type("tty; echo $TERM; stty size\r")
        terminal.until(r"/dev/pts/\d+\r\nxterm\r\n31 97\r\n")
        terminal.resize(60, 20)
        terminal.hear_of_size()
        eventually(lambda: _size(terminal), expected="20 60")
        terminal.type("sleep 1000\r")
        started(cluster, "1000")
        terminal.type("\x03")
        terminal.type("echo co''de $?\r")
        terminal.until(r"code 130\r\n")
        terminal.type("exit 5\r")
        assert terminal.wait() == 5


def _size(terminal: Terminal) -> str:
    terminal.type("stty size\r")
    return terminal.until(r"(\d+ \d+)\r\n")[1]


def test_kit_kubectl_passes_a_terminal_on(cluster, target):
    kit = [sys.executable, "-m", "trainyard_kit.cli", "kubectl", "-c", cluster.name]
    environment = {"XDG_STATE_HOME": str(cluster.home), "PYTHONPATH": str(REPOSITORY)}
    settings = [f"{name}={value}" for name, value in environment.items()]
    with Terminal(["env", *settings, *kit, "exec", "-it", target, "--", "sh"]) as terminal:
        terminal.type("test -t 0 && echo yes''terminal\r")
        terminal.until("yesterminal")
        terminal.type("exit\r")  # an end of file is lost where a shell makes the terminal raw just then
        assert terminal.wait() == 0


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_a_command_ends_with_kubectl_and_all_that_it_started_too(cluster, target, number):
    mark = f"70{int(number)}1"
    command = cluster.kubectl_command("exec", target, "--", "sh", "-c", f"sleep {mark} & sleep {mark}; true")
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as kubectl:
        eventually(lambda: processes(cluster, mark), expected=2)
        kubectl.send_signal(number)
    eventually(lambda: processes(cluster, mark), expected=0)


def test_a_command_on_a_terminal_ends_with_kubectl(cluster, target):
    with Terminal(cluster.kubectl_command("exec", "-it", target, "--", "sh", "-c", "sleep 7071; true")):
        started(cluster, "7071")
    eventually(lambda: processes(cluster, "7071"), expected=0)


def test_a_command_ends_with_its_container_and_kubectl_hears_of_it(cluster, pods):
    name = pods.running(pod("sleep 600"))["metadata"]["name"]
    command = cluster.kubectl_command("exec", name, "--", "sleep", "7081")
    with subprocess.Popen(command, stderr=subprocess.PIPE) as kubectl:
        started(cluster, "7081")
        cluster.kubectl("delete", "pod", name, "--now")
        assert kubectl.wait(PATIENCE) == 137
    assert processes(cluster, "7081") == 0


def test_commands_end_with_the_kubelet_and_containers_do_not(cluster, target):
    command = cluster.kubectl_command("exec", target, "--", "sleep", "7091")
    with subprocess.Popen(command, stderr=subprocess.DEVNULL) as kubectl:
        started(cluster, "7091")
        cluster.process("localkube.kubelet").kill()
        assert kubectl.wait(PATIENCE) != 0
    eventually(lambda: processes(cluster, "7091"), expected=0)
    eventually(lambda: run(cluster, "exec", target, "--", "echo", "again").stdout, expected=b"again\n")


def test_background_processes_of_a_command_do_not_keep_kubectl(cluster, target):
    done = run(cluster, "exec", target, "--", "sh", "-c", "sleep 7101 & echo left")
    assert (done.stdout, done.returncode) == (b"left\n", 0)
    if cluster.status["mode"] == "plain":  # where nobody could tell whose it is
        assert processes(cluster, "7101") == 0
        return
    assert processes(cluster, "7101") == 1
    assert run(cluster, "exec", target, "--", "pkill", "-f", "sleep 7101").returncode == 0


def test_a_client_that_insists_on_spdy_gets_an_error(cluster, target):
    environment = os.environ | {"KUBECTL_REMOTE_COMMAND_WEBSOCKETS": "false"}
    done = run(cluster, "exec", target, "--", "true", env=environment)
    assert b"this node has exec and attach by WebSocket and not by SPDY" in done.stderr
