"""What published advisories of runc, crun, containerd, the kubelet and kubectl describe, tried on a cluster.

The table of all advisories, with the tests of mounts and of images, is in `docs/security.md`.
"""

import contextlib
import io
import re
import tarfile
from pathlib import Path
from types import SimpleNamespace

import pytest

from kitlib.storage import copy

from ..node.clusters import container, pod, python, state

pytestmark = pytest.mark.namespaces
CREDENTIALS = "grep -E '^(CapInh|CapAmb):' /proc/self/status"
NONE = "0000000000000000"
REWRITE = """
import os
held = os.open("/proc/self/exe", os.O_PATH)
for path in ("/proc/self/exe", f"/proc/self/fd/{held}", "/proc/1/exe"):
    try:
        os.close(os.open(path, os.O_WRONLY))
        print("opened")
    except OSError as error:
        print(type(error).__name__, error.errno)
"""
ESCAPES = """
import os
for path in ("release_agent", "cgroup.procs", "cgroup.subtree_control", "tasks"):
    for folder in ("/sys/fs/cgroup", "/sys/fs/cgroup/memory", "/sys/fs/cgroup/cpu"):
        try:
            os.close(os.open(f"{folder}/{path}", os.O_WRONLY))
            print("opened", folder, path)
        except OSError:
            pass
try:
    os.mkdir("/sys/fs/cgroup/own")
    print("made")
except OSError:
    print("over")
"""


def test_no_descriptor_of_the_machine_is_a_working_directory(pods):
    """CVE-2024-21626: a descriptor that leads out, named by WORKDIR."""
    places = [f"/proc/self/fd/{number}" for number in range(3, 14)]
    names = [pods.create(pod("echo began", main={"workingDir": place})) for place in places]
    for name in names:
        ended = pods.until(name, lambda pod: pod["status"]["phase"] == "Failed")
        assert state(ended)["terminated"]["reason"] == "StartError"


def test_no_command_begins_with_inheritable_or_ambient_capabilities(cluster, pods):
    """CVE-2022-24769, CVE-2022-29162, CVE-2022-27650: they gave programs with file capabilities more."""
    name = pods.create(pod(f"{CREDENTIALS}; echo up; sleep 600"))
    pods.wait_for_line(name, "up")
    output = pods.logs(name) + cluster.kubectl("exec", name, "--", "sh", "-c", CREDENTIALS)
    assert re.findall("Cap...:\\t([0-9a-f]+)", output) == [NONE] * 4


def test_a_process_cannot_rewrite_the_program_that_it_was_started_from(pods):
    """CVE-2019-5736: /proc/self/exe of a process that has entered led to the runtime itself."""
    assert "opened" not in pods.output(pod(main=python(REWRITE)))


def test_control_groups_are_read_only(pods):
    """CVE-2022-0492, CVE-2023-25809: release_agent, and a hierarchy that a container could write."""
    assert pods.output(pod(main=python(ESCAPES))) == "over\n"


@pytest.mark.parametrize("path", ["/../../../../../tmp/{}", "/dev/../../tmp/{}", "/proc/self/cwd/tmp/{}"])
def test_a_termination_message_is_written_in_its_container_alone(path, pods, request):
    name = f"trainyard-{abs(hash(request.node.name))}"
    manifest = pod(f"echo outside > {path.format(name)}; true")
    container_of = manifest["spec"]["containers"][0]
    container_of["terminationMessagePath"] = path.format(name)
    pod_name = pods.create(manifest)
    pods.until(pod_name, lambda pod: pod["status"]["phase"] in ("Failed", "Succeeded"))
    assert not Path("/tmp", name).exists()


@pytest.mark.parametrize(
    "env",
    [
        {"name": "LD_PRELOAD", "value": "/tmp/other.so"},  # CVE-2025-23266
        {"name": "LINES", "value": "one\nPATH=/tmp\nLD_PRELOAD=/tmp/x"},
        {"name": "PYTHONPATH", "value": "/tmp"},
        {"name": "PYTHONSTARTUP", "value": "/tmp/x.py"},
    ],
    ids=lambda env: env["name"],
)
def test_a_containers_environment_is_its_programs_alone(env, cluster, pods):
    name = pods.create(pod("echo up; sleep 600", main={"env": [env]}))
    pods.wait_for_line(name, "up")
    variables = cluster.kubectl("exec", name, "--", "sh", "-c", "cat /proc/self/environ").split("\0")
    assert f"{env['name']}={env['value']}" in variables


def test_an_environment_that_no_program_can_have_is_an_error_of_its_container(pods):
    name = pods.create(pod("true", main={"env": [{"name": "NUL", "value": "a\0b"}]}))
    pods.wait_for_event(name, "Failed", "cannot be passed to a process")
    assert pods.output(pod("echo well")) == "well\n"


def test_a_probe_that_says_a_lot_takes_none_of_the_kubelets_memory(cluster, pods):
    """CVE-2022-1708, CVE-2022-31030: the output of ExecSync was kept as a whole."""
    kubelet = cluster.process("localkube.kubelet")
    script = "head -c 400000000 /dev/zero"
    probe = {"exec": {"command": ["sh", "-c", script]}, "periodSeconds": 1, "timeoutSeconds": 60}
    before = kubelet.memory_info().rss
    name = pods.create(pod("sleep 600", main={"readinessProbe": probe}))
    pods.until(name, lambda pod: container(pod).get("ready"))
    assert kubelet.memory_info().rss - before < 100 << 20


@pytest.mark.parametrize(
    "path", ["logs/", "checkpoint/default/x/main", "debug/pprof/heap", "configz", "run/x/y/z"]
)
def test_the_kubelet_has_no_interface_that_nobody_needs(path, cluster):
    """CVE-2025-0426 (checkpoints without end), CVE-2024-9042 and the symlinks of /var/log."""
    with pytest.raises(AssertionError, match="does not offer|could not find"):
        cluster.kubectl("get", "--raw", f"/api/v1/nodes/node-0/proxy/{path}")


def test_a_pod_in_the_nodes_network_finds_no_abstract_socket_of_the_cluster(pods):
    """CVE-2020-15257: containerd's shim listened on one, which has no permissions."""
    output = pods.output(pod("grep -c ' @' /proc/net/unix || true", hostNetwork=True))
    assert output == "0\n"


def entry(name, kind=tarfile.REGTYPE, link=""):
    member = tarfile.TarInfo(name)
    member.type, member.linkname, member.size = kind, link, 1 if kind == tarfile.REGTYPE else 0
    return member


@pytest.mark.parametrize(
    "members",
    [
        [entry("../outside")],
        [entry("/outside")],
        [entry("data/../../outside")],
        [entry("data", tarfile.SYMTYPE, "/"), entry("data/outside")],
        [entry("data", tarfile.SYMTYPE, ".."), entry("data/outside")],
        [entry("data", tarfile.LNKTYPE, "../secret")],
        [entry("data/disk", tarfile.BLKTYPE)],
        [entry("data/pipe", tarfile.FIFOTYPE)],
    ],
    ids=lambda members: " ".join(f"{member.name}:{member.linkname}" for member in members),
)
def test_an_archive_from_a_pod_is_extracted_only_below_its_folder(members, tmp_path):
    """CVE-2018-1002100, CVE-2019-1002101, CVE-2019-11246, CVE-2019-11249, CVE-2019-11251 of kubectl cp."""
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as archive:
        for member in members:
            archive.addfile(member, io.BytesIO(b"x"))
    packed.seek(0)

    @contextlib.contextmanager
    def running(*_):
        yield io.BytesIO(), packed

    (tmp_path / "secret").write_text("kept")
    folder = tmp_path / "folder"
    folder.mkdir()
    helper = SimpleNamespace(running=running, failed=OSError)
    with contextlib.suppress(tarfile.TarError, OSError):
        copy.fetch(helper, "data", folder / "data", line=SimpleNamespace(update=print))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["folder", "secret"]
    assert (tmp_path / "secret").read_text() == "kept"
    for path in folder.rglob("*"):
        assert path.resolve().is_relative_to(folder)
        assert path.stat().st_nlink == 1 or path.is_dir()


def test_the_tests_that_the_table_of_advisories_names_are_there():
    tests = Path(__file__).parents[1]
    text = (tests.parent / "docs" / "security.md").read_text(encoding="utf-8")
    table = text.partition("## Published advisories")[2].partition("\n## ")[0]
    references = re.findall(r"`(?:tests/)?([\w/]*test_\w+\.py)(?:::(\w+))?`", table)
    assert len(references) > 20
    for path, name in references:
        sources = [file.read_text(encoding="utf-8") for file in tests.rglob(Path(path).name)]
        assert any(f"def {name}" in source for source in sources), f"{path}::{name}"
