"""Which cores a container gets, and what is written into control groups."""

import json
from pathlib import Path

import pytest

from localkube.kubelet.resources.cgroup_hierarchy import Bounds
from localkube.kubelet.resources.cgroups import PIDS_LIMIT, RECORD, ControlGroups, Resources, remove_recorded
from localkube.kubelet.resources.limits import CoreAllocator, Limits, resources


def container(**found):
    return {"name": "main", "resources": found}


def test_a_limit_is_also_a_request():
    assert resources(container(limits={"cpu": "500m", "memory": "64Mi"})) == Resources(0.5, 0.5, 64 << 20)
    assert resources(container(requests={"cpu": "2"})) == Resources(2.0, None, None)
    assert resources({"name": "main"}) == Resources()


def test_cores_go_to_those_who_ask_for_fewer_than_there_are():
    limits = Limits(cores=[4, 5, 6, 7])
    two = limits.apply(container(limits={"cpu": "1500m"}), identity="a")
    assert two == ([], [4, 5])
    assert limits.apply(container(limits={"cpu": "1"}), identity="b") == ([], [6])
    assert limits.apply(container(limits={"cpu": "4"}), identity="c") == ([], [])
    assert limits.apply(container(requests={"cpu": "1"}), identity="d") == ([], [])


def test_cores_of_an_ended_container_are_assigned_again():
    cores = CoreAllocator([0, 1])
    assert cores.allocate("a", 1) == [0]
    cores.free("a")
    assert [cores.allocate(name, 1) for name in "bc"] == [[0], [1]]
    cores = CoreAllocator([0, 1, 2, 3])
    assert cores.allocate("a", 2, first=2) == [2, 3]
    assert cores.allocate("b", 1, first=6) == [0]


@pytest.fixture
def second(tmp_path):
    """Groups of version 2 in a plain directory: this machine may not have them, their files are known."""
    group = tmp_path / "group"
    group.mkdir()
    groups = ControlGroups(2, dict.fromkeys(("cpu", "memory", "pids"), group))
    groups.open()
    return groups, group


def test_in_version_2_a_group_gets_its_limits_in_that_versions_words(second):
    groups, root = second
    (entrance,) = groups.make("uid.main.0", Resources(0.25, 0.5, 64 << 20))
    group = root / "default" / "uid" / "uid.main.0"
    assert entrance == str(group / "cgroup.procs")
    texts = {name: (group / name).read_text() for name in ("cpu.max", "memory.max", "memory.swap.max")}
    assert texts == {"cpu.max": "50000 100000", "memory.max": str(64 << 20), "memory.swap.max": "0"}
    assert int((group / "cpu.weight").read_text()) == 1 + 254 * 9999 // 262142
    assert (group / "memory.oom.group").read_text() == "1"
    for above in (root, root / "default", root / "default" / "uid"):
        controllers = set((above / "cgroup.subtree_control").read_text().split())
        assert controllers == {"+cpu", "+memory", "+pids"}


def test_a_pod_that_asks_for_nothing_has_a_group_that_counts_its_processes(second):
    groups, root = second
    entrances = groups.make("uid.main.0", Resources())
    assert entrances == groups.make("uid.other.0", Resources())
    assert entrances == [str(root / "default" / "best-effort" / "uid" / "cgroup.procs")]
    assert (root / "default" / "best-effort" / "uid" / "pids.max").read_text() == str(PIDS_LIMIT)
    assert (root / "default" / "best-effort" / "cgroup.subtree_control").read_text() == "+pids"
    assert groups.usage("uid.main.0") is None
    assert (root / "default" / "best-effort" / "cpu.weight").read_text() == "1"


def test_with_cgroups_v2_the_process_limit_is_the_pods(second):
    groups, root = second
    groups.make("uid.main.0", Resources(cpu_request=0.5))
    group = root / "default" / "uid" / "uid.main.0"
    assert (group / "cpu.max").read_text() == "max 100000"
    assert (group / "memory.max").read_text() == "max"
    assert (group.parent / "pids.max").read_text() == str(PIDS_LIMIT)
    assert not (group / "pids.max").exists()


BOUNDS = Bounds(processes=900, processes_of_namespace=300, memory=900 << 20, memory_of_namespace=600 << 20)


@pytest.fixture
def bounded(tmp_path):
    group = tmp_path / "bounded"
    group.mkdir()
    groups = ControlGroups(2, dict.fromkeys(("cpu", "memory", "pids"), group), bounds=BOUNDS)
    groups.open()
    return groups, group


def test_all_pods_and_those_of_a_namespace_have_bounds_of_their_own(bounded):
    groups, root = bounded
    groups.make("a.main.0", Resources(), namespace="ada")
    groups.make("b.main.0", Resources(memory_limit=1 << 40), namespace="bob")
    for group, processes, memory in ((root, 900, 900), (root / "ada", 300, 600), (root / "bob", 300, 600)):
        assert (group / "pids.max").read_text() == str(processes)
        assert (group / "memory.max").read_text() == str(memory << 20)
        assert (group / "memory.oom.group").read_text() == "0"  # one process ends, and not all pods
    assert (root / "ada" / "best-effort" / "a" / "pids.max").read_text() == "150"


def test_a_namespace_weighs_as_much_as_its_pods(bounded):
    groups, root = bounded

    def weight():
        return int((root / "ada" / "cpu.weight").read_text())

    groups.make("a.main.0", Resources(cpu_request=0.5), namespace="ada")
    groups.make("b.main.0", Resources(cpu_request=1.5), namespace="ada")
    assert weight() == 1 + 2046 * 9999 // 262142
    groups.resize_pod("b.main.0", Resources(cpu_request=0.5))
    assert weight() == 1 + 1022 * 9999 // 262142


def test_a_kubelet_that_starts_again_knows_the_namespaces_of_pods(bounded):
    groups, root = bounded
    groups.make("a.main.0", Resources(cpu_request=2.0), namespace="ada")
    groups.make("b.main.0", Resources(), namespace="bob")
    for group in (root / "ada" / "a", root / "bob" / "best-effort" / "b"):
        (group / "pids.current").write_text("7")
    later = ControlGroups(2, dict.fromkeys(("cpu", "memory", "pids"), root), bounds=BOUNDS)
    later.keep_only({"a.main.0", "b.main.0"})
    assert later.processes("a") == later.processes("b") == 7
    later.make("c.main.0", Resources(cpu_request=2.0), namespace="ada")
    assert int((root / "ada" / "cpu.weight").read_text()) > 1 + 4000 * 9999 // 262142


def test_bounds_leave_some_of_the_machine_to_all_else_and_to_other_namespaces():
    bounds = Bounds.of_machine(processes=32768, memory=24 << 30)
    assert bounds.processes == 24576 and bounds.processes_of_namespace == 8192
    assert bounds.memory == 23 << 30 and bounds.memory_of_namespace == (23 << 30) * 3 // 4
    assert Bounds.of_machine(processes=32768, memory=1 << 30).memory == 7 << 27


def test_a_pods_weight_is_the_sum_of_its_containers(second):
    groups, root = second
    groups.make("uid.main.0", Resources(cpu_request=0.5), pod=Resources(cpu_request=2.0))
    assert int((root / "default" / "uid" / "cpu.weight").read_text()) == 1 + 2046 * 9999 // 262142


def test_in_version_2_usage_and_the_kernels_kills_are_read(second):
    groups, root = second
    group = root / "default" / "uid" / "uid.main.0"
    group.mkdir(parents=True)
    (group / "cpu.stat").write_text("usage_usec 1500000\nuser_usec 1\n")
    (group / "memory.current").write_text("9000000\n")
    (group / "memory.stat").write_text("anon 1\ninactive_file 1000000\n")
    (group / "memory.events").write_text("low 0\noom 1\noom_kill 0\n")
    assert groups.usage("uid.main.0").cpu == 1.5
    assert groups.usage("uid.main.0").memory == 8_000_000
    assert not groups.ran_out_of_memory("uid.main.0")
    (group / "memory.events").write_text("low 0\noom 1\noom_kill 2\n")
    assert groups.ran_out_of_memory("uid.main.0")
    assert groups.usage("another") is None


def test_groups_that_were_written_down_are_removed(tmp_path):
    group = tmp_path / "group"
    (group / "a").mkdir(parents=True)
    (tmp_path / RECORD).write_text(json.dumps([str(group), str(tmp_path / "gone")]))
    remove_recorded(tmp_path)
    assert not group.exists()
    remove_recorded(Path(tmp_path / "nothing"))
