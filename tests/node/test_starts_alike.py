"""What a container sees does not depend on which process built it: warm, cold, or torchrun's workers."""

import json
import os
import re
import sys
import tempfile
from pathlib import Path

import pytest

from ..rows import slow
from . import restrictions
from .clusters import Pods, eventually, pod, running_cluster, state_home
from .unprivileged import enter_as_nobody, nobodys
from .workloads import named

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


@pytest.fixture(scope="module", params=["nobody", *slow("this user")])
def cluster(request):
    if request.param == "this user":
        with (
            state_home(request.config.cache.mkdir("lab")) as home,
            running_cluster(
                "--nodes", "1", home=home, enter=restrictions.ignored_signals, warm=True
            ) as running,
        ):
            yield running
        return
    if os.getuid():
        pytest.skip("this user is not root: all clusters are without privileges")
    with tempfile.TemporaryDirectory(prefix="nobody-", dir="/tmp") as path:
        home = Path(path)
        os.chown(home, restrictions.NOBODY, restrictions.NOBODY)
        enter = enter_as_nobody(home)
        with running_cluster("--nodes", "1", home=home, enter=enter, warm=True, **nobodys(home)) as running:
            yield running


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


@pytest.mark.parametrize("user", ["root", "any id", *slow("1000", "fsGroup")])
@pytest.mark.parametrize(("command", "readonly"), [("python", False), ("torchrun", True)])
def test_a_warm_container_finds_what_a_cold_one_does(pods, script, command, user, readonly):
    cold = surroundings(pods, script, command, env=[COLD], user=user, readonly=readonly)
    warm = surroundings(pods, script, command, user=user, readonly=readonly)
    assert (cold.pop("start: warm"), warm.pop("start: warm")) == (False, True)
    assert not (differences := different(warm, cold)), "\n".join(differences)
