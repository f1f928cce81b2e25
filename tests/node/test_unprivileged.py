"""A cluster of a user who is not root, without control groups: first steps, limits, warm and cold starts.

When root runs the tests, the user nobody takes these steps, in a mount namespace in which the interpreter can
be read. When somebody else runs them, the whole suite is already without privileges.

What a container sees does not depend on which process built it: warm, cold, or torchrun's workers.
"""

import json
import os
import re
import sys
import tempfile
from contextlib import ExitStack
from pathlib import Path

import pytest
from soak.footprint import Footprint

from localkube.kubelet.resources.cgroups import RECORD

from ..rows import slow
from . import restrictions
from .clusters import (
    PATIENCE,
    Pods,
    Refused,
    eventually,
    localkube,
    pod,
    python,
    running_cluster,
    state,
    state_home,
)
from .terminals import Terminal
from .test_limits import GREEDY, limited, out_of_memory
from .test_network_policies import policy
from .test_pods_host_network import NODES, SERVE, ports_of, replies, service
from .test_pods_resize import resize
from .unprivileged import enter_as_nobody, nobodys
from .workloads import named

CORES = "import os; print(len(os.sched_getaffinity(0)), flush=True)"
SOURCE = (Path(__file__).parent / "programs" / "surroundings.py").read_text()
USERS = {
    "root": {},
    "1000": {"runAsUser": 1000, "runAsGroup": 1000, "runAsNonRoot": True},
    "any id": {"runAsUser": 54321},
    "fsGroup": {"runAsUser": 1001, "fsGroup": 2000, "supplementalGroups": [3000, 4000]},
}
COMMANDS = {
    "python": ["python", "/scripts/look.py"],
    "torchrun": ["torchrun", "--nproc-per-node=1", "/scripts/look.py"],
}
COLD = {"name": "PYTHONHASHSEED", "value": "1"}  # no fork can have it
# Of each run, or of the way to start.
CHANGES = {
    f"environment: {name}"
    for name in ("PYTHONHASHSEED", "TORCHELASTIC_RUN_ID", "MASTER_PORT", "TORCHELASTIC_ERROR_FILE")
}
if " " in sys.executable:  # a console script there begins with a shell, which sets it for a cold start
    CHANGES |= {"environment: PWD"}
PROCESS = {"status: NSpid", "status: NSpgid", "status: NSsid"}
if os.environ.get("TRAINYARD_MODE") == "plain":
    CHANGES |= {"environment: TRAINYARD_POD", *PROCESS}
# The cluster's own files are covered, and mounts there come and go; torchrun's files have random names; the
# machine's environment is mounted where it is, and others compile its modules meanwhile.
ELSEWHERE = re.compile(f"/trainyard/|/torchelastic_|{re.escape(sys.prefix)}/")


@pytest.fixture(scope="module", params=["unprivileged", *slow("this user")])
def cluster(request):
    """Yield a cluster, and whether it is another user's than this one's."""
    options = {"warm": True, "env": {"TRAINYARD_CGROUPS": "off"}}
    with ExitStack() as stack:
        if other := request.param == "unprivileged" and os.getuid() == 0:
            home = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="nobody-", dir="/tmp")))
            os.chown(home, restrictions.NOBODY, restrictions.NOBODY)
            user = nobodys(home)
            options |= user | {"enter": enter_as_nobody(home), "env": options["env"] | user["env"]}
        else:
            home = stack.enter_context(state_home(request.config.cache.mkdir("lab")))
            options["enter"] = restrictions.ignored_signals
        running = stack.enter_context(running_cluster("--nodes", "2", "--cpus", "2", home=home, **options))
        running.another_users = other
        assert not (running.root / RECORD).exists()
        yield running


@pytest.fixture
def unprivileged(cluster):
    if not cluster.another_users:
        pytest.skip("NOT LEFT OUT: every other test of a cluster is this user's")
    return cluster


@pytest.fixture
def warm(cluster, pods):
    """Pods whose Python is forked by the fork server."""
    forkserver = cluster.process("localkube.runtime.forkserver.server")
    assert forkserver.environ()["OMP_WAIT_POLICY"] == "PASSIVE"  # of warm containers, which have its OpenMP
    return pods


@pytest.fixture(scope="module")
def script(cluster):
    name = named("look")
    config = {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": name},
        "data": {"look.py": SOURCE},
    }
    cluster.kubectl("create", "-f", "-", stdin=config)
    volume = {"name": "scripts", "configMap": {"name": name}}
    with Pods(cluster) as pods:
        eventually(lambda: surroundings(pods, volume, "python")["start: warm"])
    return volume


def surroundings(pods, script, command, *, env=(), user="root", readonly=False):
    """Return what a container finds that mounts volumes at places which the host does not have."""
    mounts = [("scripts", "/scripts"), ("scratch", "/new/place"), ("scratch", "/usr/share/is-not-here/data")]
    mounts += [("memory", "/tmp/deep/down/memory")]
    main = {
        "image": "pytorch/pytorch",
        "command": COMMANDS[command],
        "env": list(env),
        "volumeMounts": [{"name": name, "mountPath": place} for name, place in mounts],
        "securityContext": {"readOnlyRootFilesystem": readonly},
        "workingDir": "/new/where" if readonly else "/",
    }
    volumes = [
        script,
        {"name": "scratch", "emptyDir": {}},
        {"name": "memory", "emptyDir": {"medium": "Memory"}},
    ]
    output = pods.output(pod(main=main, volumes=volumes, hostname="rank-0", securityContext=USERS[user]))
    output = re.sub(r"/pods/[0-9a-f-]{36}/", "/pods/this/", output)
    facts_by_kind = json.loads(re.sub(r"\.\.20\d\d_[\d_]+\.\w+", "..data of now", output.splitlines()[-1]))
    facts_by_kind = {
        f"{kind}: {name}": fact for kind, facts in facts_by_kind.items() for name, fact in facts.items()
    }
    # A warm torchrun's worker has a lower pid than a cold one's: the interpreter starts programs before it.
    changes = CHANGES | (PROCESS if command == "torchrun" else set())
    return {
        name: fact
        for name, fact in facts_by_kind.items()
        if name not in changes and not ELSEWHERE.search(name)
    }


def different(warm, cold):
    """List the facts that are not the same."""
    return [
        f"{name}: warm {warm.get(name)}, cold {cold.get(name)}"
        for name in sorted(warm.keys() | cold.keys())
        if warm.get(name) != cold.get(name)
    ]


@pytest.mark.parametrize(
    ("user", "command"),
    [
        ("root", "python"),
        ("any id", "torchrun"),
        *slow(("root", "torchrun"), ("any id", "python")),
        *slow(*((user, command) for user in ("1000", "fsGroup") for command in COMMANDS)),
    ],
)
def test_a_warm_container_finds_what_a_cold_one_does(pods, script, command, user):
    readonly = command == "torchrun"
    cold = surroundings(pods, script, command, env=[COLD], user=user, readonly=readonly)
    warm = surroundings(pods, script, command, user=user, readonly=readonly)
    assert (cold.pop("start: warm"), warm.pop("start: warm")) == (False, True)
    assert not (differences := different(warm, cold)), "\n".join(differences)


def test_without_groups_a_container_runs_on_as_many_cores_as_its_limit(warm):
    if len(os.sched_getaffinity(0)) < 2:
        pytest.skip("one core is all that this machine has")
    assert warm.output(limited(CORES, cpu="700m")) == "1\n"
    assert int(warm.output(pod(main=python(CORES)))) == len(os.sched_getaffinity(0))


def test_without_groups_the_kubelet_ends_a_container_that_takes_too_much_memory(warm):
    assert out_of_memory(warm, limited(GREEDY, memory="64Mi"))["exitCode"] == 137


def test_memory_of_the_fork_server_does_not_count_for_a_container(warm):
    source = "import time; time.sleep(1.5); print('stays')"
    finished = warm.finish(limited(source, memory="64Mi"))
    assert "terminated" in state(finished), finished
    assert state(finished)["terminated"]["reason"] == "Completed"


def test_without_groups_memory_that_forks_share_counts_once(warm):
    source = "import os, time\nheld = b'x' * (500 << 20)\nos.fork(); os.fork()\ntime.sleep(1.5)"
    assert state(warm.finish(limited(source, memory="700Mi")))["terminated"]["reason"] == "Completed"
    assert out_of_memory(warm, limited(source, memory="100Mi"))["exitCode"] == 137


def test_without_groups_a_container_moves_to_more_cores_when_it_is_resized(cluster, warm):
    if len(os.sched_getaffinity(0)) < 2:
        pytest.skip("one core is all that this machine has")
    source = f"import time\nwhile True:\n  {CORES}\n  time.sleep(0.2)"
    name = warm.running(limited(source, cpu="500m", memory="64Mi"))["metadata"]["name"]
    resize(cluster, name, {"limits": {"cpu": "1500m"}, "requests": {"cpu": "1500m"}})
    eventually(lambda: warm.logs(name, tail_lines=1), expected="2\n")


def test_every_process_of_the_cluster_is_the_users(unprivileged):
    owners = {process.uids().real for process in unprivileged.processes()}
    assert owners == {restrictions.NOBODY}
    assert unprivileged.status["mode"] == "namespaces"


def test_a_job_completes_and_its_output_can_be_read(unprivileged):
    unprivileged.kubectl(
        "create", "job", "first", "--image=busybox", "--", "sh", "-c", "echo done by $(id -u)"
    )
    unprivileged.kubectl("wait", "--for=condition=Complete", "job/first", f"--timeout={PATIENCE}s")
    assert unprivileged.kubectl("logs", "job/first") == "done by 0\n"


def test_commands_run_in_pods_with_and_without_a_terminal_and_files_are_copied(unprivileged, pods):
    name = pods.running(pod("echo up; exec sleep 600"))["metadata"]["name"]
    assert (
        unprivileged.kubectl("exec", name, "--", "sh", "-c", "hostname; cat /proc/1/comm")
        == f"{name}\nsleep\n"
    )
    with Terminal(
        unprivileged.kubectl_command("exec", "-it", name, "--", "sh"), enter=unprivileged.enter
    ) as terminal:
        terminal.type("tty; exit 3\r")
        terminal.until(r"/dev/pts/\d+\r\n")
        assert terminal.wait() == 3
    sent = unprivileged.home / "sent"
    sent.write_text("copied\n")
    unprivileged.kubectl("cp", str(sent), f"{name}:/tmp/sent")
    assert unprivileged.kubectl("exec", name, "--", "cat", "/tmp/sent") == "copied\n"
    assert unprivileged.kubectl("logs", name) == "up\n"


def test_the_users_home_without_rights_is_named(unprivileged):
    place = unprivileged.home / "closed"
    place.mkdir(mode=0o500, exist_ok=True)
    with pytest.raises(Refused) as caught:
        localkube("create", "lab", "--nodes", "1", home=place, preexec_fn=unprivileged.enter, cwd="/")
    assert "Permission denied" in caught.value.error["what"]
    assert str(place) in caught.value.error["about"]


def test_networks_of_nodes_and_policies_are_the_users_own(unprivileged, pods):
    with service(unprivileged, type="NodePort") as name:
        main = python(SERVE) | {
            "args": ["8080", "web"],
            "readinessProbe": {"tcpSocket": {"port": 8080}, "periodSeconds": 1},
        }
        running = pods.running(pod(main=main, labels={"app": name}))
        at = f"tcp:{running['status']['podIP']}:8080"
        words = [at, f"tcp:{name}:80", f"tcp:{NODES[1]}:{ports_of(unprivileged, name)['tcp'].node_port}"]
        assert replies(pods, *words) == ["web"] * 3
        assert replies(pods, at, hostNetwork=True) == ["web"]
        with policy(unprivileged, podSelector={"matchLabels": {"app": name}}):
            assert replies(pods, *(f"!{word}" for word in words)) == ["nothing"] * 3


def test_deleting_leaves_nothing_even_after_the_supervisor_was_killed(unprivileged):
    traces = Footprint.of(unprivileged.root)
    unprivileged.processes()[0].kill()
    localkube("delete", unprivileged.name, home=unprivileged.home, preexec_fn=unprivileged.enter, cwd="/")
    assert traces.leftovers() == []
