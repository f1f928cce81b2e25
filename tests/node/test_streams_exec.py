"""``kubectl exec``, through the real API server, by WebSockets."""

import os
import signal
import subprocess
import sys

import pytest
from kubernetes.stream import stream

from .lab import PATIENCE, Lab, eventually, pod
from .rooms import REPOSITORY
from .terminals import Terminal


@pytest.fixture(scope="module")
def target(lab):
    """The name of a pod that runs, for commands."""
    main = {"env": [{"name": "WHO", "value": "me"}], "workingDir": "/var/tmp"}
    made = lab.core.create_namespaced_pod("default", pod("exec sleep 6000", name="exec-target", main=main))
    lab.kubectl("wait", "--for=condition=Ready", f"pod/{made.metadata.name}", f"--timeout={PATIENCE}s")
    yield made.metadata.name
    lab.kubectl("delete", "pod", made.metadata.name, "--now")


def run(lab: Lab, *words: str, **options) -> subprocess.CompletedProcess:
    return subprocess.run(
        lab.kubectl_command(*words), capture_output=True, timeout=PATIENCE, check=False, **options
    )


def processes(lab: Lab, mark: str) -> int:
    """Count the cluster's processes with a word of their command line that is ``mark``."""
    return len(lab.processes_with(mark))


def started(lab: Lab, mark: str) -> None:
    eventually(lambda: processes(lab, mark), wanted=1)


def test_a_command_has_the_containers_environment_directory_name_and_processes(lab, target):
    done = run(lab, "exec", target, "--", "sh", "-c", "echo $WHO; pwd; hostname")
    assert (done.stdout, done.stderr) == (f"me\n/var/tmp\n{target}\n".encode(), b"")
    assert done.returncode == 0
    if lab.status["mode"] == "namespaces":
        assert run(lab, "exec", target, "--", "cat", "/proc/1/comm").stdout == b"sleep\n"


def test_output_and_errors_come_apart_and_the_exit_code_comes_back(lab, target):
    done = run(lab, "exec", target, "--", "sh", "-c", "echo out; echo problem >&2; exit 7")
    assert done.stdout == b"out\n"
    assert done.stderr == b"problem\ncommand terminated with exit code 7\n"
    assert done.returncode == 7
    assert run(lab, "exec", target, "--", "sh", "-c", "kill -9 $$").returncode == 137


def test_a_command_that_is_not_there_is_named(lab, target):
    done = run(lab, "exec", target, "--", "nosuch")
    assert b'exec: "nosuch": executable file not found in $PATH' in done.stderr
    assert done.returncode == 1


def test_a_pod_that_is_not_there_and_a_container_that_has_ended_are_named(lab, pods, target):
    assert b'pods "nosuch" not found' in run(lab, "exec", "nosuch", "--", "true").stderr
    ended = pods.finish(pod("true"))["metadata"]["name"]
    done = run(lab, "exec", ended, "--", "true")
    assert b"cannot exec into a container in a completed pod" in done.stderr


def test_input_reaches_the_command_byte_for_byte_and_ends(lab, target):
    given = os.urandom(3_000_000)
    done = run(lab, "exec", "-i", target, "--", "cat", input=given)
    assert done.stdout == given
    assert run(lab, "exec", "-i", target, "--", "head", "-c", "3", input=given).stdout == given[:3]


def test_a_terminal_has_a_name_a_size_and_an_interrupt_key(lab, target):
    with Terminal(
        lab.kubectl_command("exec", "-it", target, "--", "sh", "-i"), columns=97, rows=31
    ) as terminal:
        terminal.type("tty; echo $TERM; stty size\r")
        terminal.until(r"/dev/pts/\d+\r\nxterm\r\n31 97\r\n")
        terminal.resize(60, 20)
        terminal.hear_of_size()
        eventually(lambda: _size(terminal), wanted="20 60")
        terminal.type("sleep 1000\r")
        started(lab, "1000")
        terminal.type("\x03")
        terminal.type("echo co''de $?\r")
        terminal.until(r"code 130\r\n")
        terminal.type("exit 5\r")
        assert terminal.wait() == 5


def _size(terminal: Terminal) -> str:
    terminal.type("stty size\r")
    return terminal.until(r"(\d+ \d+)\r\n")[1]


def test_kit_kubectl_passes_a_terminal_on(lab, target):
    kit = [sys.executable, "-m", "kitlib.cli", "kubectl", "-c", lab.name]
    environment = {"XDG_STATE_HOME": str(lab.home), "PYTHONPATH": str(REPOSITORY)}
    settings = [f"{name}={value}" for name, value in environment.items()]
    with Terminal(["env", *settings, *kit, "exec", "-it", target, "--", "sh"]) as terminal:
        terminal.type("test -t 0 && echo yes''terminal\r")
        terminal.until("yesterminal")
        terminal.type("\x04")
        assert terminal.wait() == 0


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_a_command_ends_with_kubectl_and_all_that_it_started_too(lab, target, number):
    mark = f"70{int(number)}1"
    command = lab.kubectl_command("exec", target, "--", "sh", "-c", f"sleep {mark} & sleep {mark}; true")
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as kubectl:
        eventually(lambda: processes(lab, mark), wanted=2)
        kubectl.send_signal(number)
    eventually(lambda: processes(lab, mark), wanted=0)


def test_a_command_on_a_terminal_ends_with_kubectl(lab, target):
    with Terminal(lab.kubectl_command("exec", "-it", target, "--", "sh", "-c", "sleep 7071; true")):
        started(lab, "7071")
    eventually(lambda: processes(lab, "7071"), wanted=0)


def test_a_command_ends_with_its_container_and_kubectl_hears_of_it(lab, pods):
    name = pods.running(pod("sleep 600"))["metadata"]["name"]
    command = lab.kubectl_command("exec", name, "--", "sleep", "7081")
    with subprocess.Popen(command, stderr=subprocess.PIPE) as kubectl:
        started(lab, "7081")
        lab.kubectl("delete", "pod", name, "--now")
        assert kubectl.wait(PATIENCE) == 137
    assert processes(lab, "7081") == 0


def test_commands_end_with_the_agent_and_containers_do_not(lab, target):
    command = lab.kubectl_command("exec", target, "--", "sleep", "7091")
    with subprocess.Popen(command, stderr=subprocess.DEVNULL) as kubectl:
        started(lab, "7091")
        lab.process("localkube.kubelet").kill()
        assert kubectl.wait(PATIENCE) != 0
    eventually(lambda: processes(lab, "7091"), wanted=0)
    eventually(lambda: run(lab, "exec", target, "--", "echo", "again").stdout, wanted=b"again\n")


def test_what_a_command_leaves_behind_does_not_keep_kubectl(lab, target):
    done = run(lab, "exec", target, "--", "sh", "-c", "sleep 7101 & echo left")
    assert (done.stdout, done.returncode) == (b"left\n", 0)
    if lab.status["mode"] == "plain":  # where nobody could tell whose it is
        assert processes(lab, "7101") == 0
        return
    assert processes(lab, "7101") == 1
    assert run(lab, "exec", target, "--", "pkill", "-f", "sleep 7101").returncode == 0


def test_a_client_library_with_the_older_protocol_is_served(lab, target):
    answer = stream(
        lab.core.connect_get_namespaced_pod_exec,
        target,
        "default",
        command=["sh", "-c", "echo out; echo problem >&2; exit 3"],
        stdout=True,
        stderr=True,
        _preload_content=False,
    )
    answer.run_forever(timeout=PATIENCE)
    assert (answer.read_stdout(), answer.read_stderr(), answer.returncode) == ("out\n", "problem\n", 3)


def test_who_insists_on_spdy_is_told(lab, target):
    environment = os.environ | {"KUBECTL_REMOTE_COMMAND_WEBSOCKETS": "false"}
    done = run(lab, "exec", target, "--", "true", env=environment)
    assert b"this node speaks WebSockets and not SPDY" in done.stderr
