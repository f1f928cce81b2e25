"""What somebody who waits for a build is told: before it, while it runs, and how to be spared it."""

import json
import re
import subprocess
import sys

import pytest

from kitlib.clusters import machine
from localkube.controlplane import build, build_time


@pytest.mark.parametrize(
    ("speed", "text"), [(20.0, "about 5 min"), (10.0, "about 10 min"), (80.0, "about 80 s")]
)
def test_the_expected_time_follows_the_speed_of_this_machine(speed, text):
    assert build_time.expected(310, speed) == text


def test_the_speed_of_this_machine_is_measured_in_a_moment():
    assert build_time.measure_speed(seconds=0.01) > 0


@pytest.mark.parametrize(
    ("packages", "seconds", "text"),
    [
        (3, 1.0, "3 of about 2,673 packages compiled"),
        (1336, 150.0, "1,336 of about 2,673 packages compiled, about 3 min left at this machine's rate"),
        (1336, 300.0, "1,336 of about 2,673 packages compiled, about 6 min left at this machine's rate"),
        (2673, 300.0, "2,673 packages compiled, now linking"),
        (2680, 300.0, "2,680 packages compiled, now linking"),
    ],
)
def test_the_remaining_time_follows_the_rate_so_far(packages, seconds, text):
    assert build_time.progress(packages, 2673, seconds) == text


def test_a_build_reports_by_its_own_rate_and_names_no_other_machine(monkeypatch):
    monkeypatch.setattr(build, "REPORT_SECONDS", 0)
    lines = []
    script = "import sys; [print(f'k8s.io/package{n}', file=sys.stderr, flush=True) for n in range(30)]"
    with subprocess.Popen([sys.executable, "-c", script], stderr=subprocess.PIPE) as process:
        build._follow(process, "kubernetes", 25, lines.append)
    assert not any("elsewhere" in line for line in lines)
    for done, total in re.findall(r"([\d,]+) of about ([\d,]+)", "\n".join(lines)):
        assert int(done.replace(",", "")) <= int(total.replace(",", ""))


def test_the_wheel_and_a_bundle_are_offered_before_the_first_package():
    assert "trainyard-kit-controlplane" in build.SHORTCUT and "localkube bundle use" in build.SHORTCUT


def doctor(monkeypatch, **environment):
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    rows = {row["item"]: row for row in machine.doctor()}
    return rows["kubernetes"]


def test_doctor_says_that_kubernetes_must_be_compiled_how_long_and_what_spares_it(monkeypatch, tmp_path):
    row = doctor(monkeypatch, XDG_CACHE_HOME=str(tmp_path), PATH="/nowhere", TRAINYARD_CONTROLPLANE="cache")
    assert re.search(r"must be compiled: about \d+ (min|s)", row["value"])
    assert "wheel" in row["note"] and "trainyard bundle use FILE" in row["note"]


def test_doctor_says_where_kubernetes_is_when_it_is_there(monkeypatch):
    answer = {"version": "v1.37.2", "origin": "package"}
    assert machine._kubernetes(json.loads(json.dumps(answer)))[1] == "v1.37.2 from package"
