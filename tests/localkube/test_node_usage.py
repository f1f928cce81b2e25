"""What is read of processes: trees, ended children, shares of shared memory."""

import os
import subprocess
import sys

from localkube.kubelet.resources.proc_usage import (
    MIN_CPU_SECONDS,
    TICK_SECONDS,
    MonotonicCounter,
    ProcessTable,
)

STAT = "{pid} (a) b) ) S {parent} 0 0 0 0 0 0 0 0 0 {user} {system} {children} 0 0 0 1 0 0 0"


def processes(table, memory=0):
    """Return processes from ``{pid: (parent, user, system, of ended children)}``."""
    files = {f"/proc/{pid}/smaps_rollup": f"Rss: 9 kB\nPss_Anon: {memory} kB\n".encode() for pid in table}
    for pid, (parent, user, system, children) in table.items():
        text = STAT.format(pid=pid, parent=parent, user=user, system=system, children=children)
        files[f"/proc/{pid}/stat"] = text.encode()
    return ProcessTable(read=lambda path: files.get(path, b""), pids=[*map(str, table), "self", "77"])


def test_a_container_is_the_tree_of_its_first_process():
    process_table = processes(
        {5: (1, 10, 5, 0), 6: (5, 1, 0, 0), 7: (6, 2, 0, 3), 8: (1, 99, 0, 0)}, memory=100
    )
    assert sorted(process_table.tree(5)) == [5, 6, 7]
    usage = process_table.usage(5)
    assert round(usage.cpu / TICK_SECONDS) == 10 + 5 + 1 + 2 + 3
    assert usage.memory == 3 * 100 * 1024


def test_a_sleeping_container_has_usage_and_an_ended_one_none():
    usage = processes({5: (1, 0, 0, 0)}).usage(5)
    assert usage.cpu == MIN_CPU_SECONDS
    assert usage.memory > 0
    assert processes({5: (1, 10, 5, 0)}).usage(6) is None


def test_a_counter_goes_on_where_a_child_took_its_time_along():
    counter = MonotonicCounter()
    assert [counter.add(reading) for reading in (1.0, 4.0, 2.0, 3.0)] == [1.0, 4.0, 4.0, 5.0]


def test_the_real_figures_of_a_process_are_those_of_its_memory():
    source = "held = bytearray(b'x') * (40 << 20); print(flush=True); input()"
    with subprocess.Popen(
        [sys.executable, "-c", source], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as child:
        child.stdout.readline()
        usage = ProcessTable(pids=[str(child.pid)]).usage(child.pid)
        child.communicate(b"\n")
    assert 40 << 20 < usage.memory < 70 << 20
    assert ProcessTable().usage(os.getpid()).cpu > 0
