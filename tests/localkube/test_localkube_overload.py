"""Overload: the kernel's figures say of what a machine is short."""

from pathlib import Path

import pytest

from localkube.kubelet.resources import overload

QUIET = "some avg10=0.00 avg60=0.00 avg300=0.00 total=0\nfull avg10=0.00 avg60=0.00 avg300=0.00 total=0\n"


@pytest.fixture
def machine(tmp_path, monkeypatch):
    """Files as the kernel has them; what a kubelet measures is out of it."""
    (tmp_path / "pressure").mkdir()
    for name in ("cpu", "memory", "io"):
        (tmp_path / "pressure" / name).write_text(QUIET)
    monkeypatch.setattr(overload, "observe", lambda place, processes: {})
    return tmp_path


def overloads_of(machine):
    return overload.overloads(Path("/"), processes=1000, proc=machine, group=machine)


def test_a_quiet_machine_is_short_of_nothing(machine):
    assert overloads_of(machine) == []
    (machine / "pressure" / "cpu").unlink()  # a kernel without pressure stall information
    assert overloads_of(machine) == []


@pytest.mark.parametrize(
    ("file", "text", "resource", "words"),
    [
        (
            "pressure/cpu",
            QUIET.replace("some avg10=0.00 avg60=0.00", "some avg10=1.00 avg60=93.41"),
            "time",
            "93 %",
        ),
        (
            "pressure/memory",
            QUIET.replace("full avg10=0.00 avg60=0.00", "full avg10=0 avg60=12.00"),
            "memory",
            "12 %",
        ),
        (
            "pressure/io",
            QUIET.replace("full avg10=0.00 avg60=0.00", "full avg10=0 avg60=60.00"),
            "disk",
            "60 %",
        ),
        ("memory.events", "low 0\nhigh 0\nmax 7\noom 3\noom_kill 3\n", "memory", "3 processes were killed"),
        ("cpu.stat", "usage_usec 9\nnr_periods 100\nnr_throttled 80\n", "time", "80 % of the periods"),
        ("pids.events", "max 12\n", "processes", "12 processes could not be started"),
    ],
)
def test_stalls_and_counters_of_the_control_group_are_named(machine, file, text, resource, words):
    (machine / file).write_text(text)
    (item,) = overloads_of(machine)
    assert item["resource"] == resource
    assert words in item["what"]
    assert item["fix"]


@pytest.mark.parametrize(
    ("signal", "available", "capacity", "resource"),
    [
        ("memory.available", 100 << 20, 8 << 30, "memory"),
        ("nodefs.available", 1 << 30, 500 << 30, "disk"),
        ("nodefs.inodesFree", 10, 1000, "disk (inodes)"),
        ("pid.available", 50, 1000, "processes"),
    ],
)
def test_a_shortage_is_named_before_the_kubelet_evicts(
    machine, monkeypatch, signal, available, capacity, resource
):
    observations = {signal: overload.Observation(available, capacity)}
    monkeypatch.setattr(overload, "observe", lambda place, processes: observations)
    assert [item["resource"] for item in overloads_of(machine)] == [resource]
    observations[signal] = overload.Observation(capacity, capacity)
    assert overloads_of(machine) == []
