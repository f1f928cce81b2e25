"""The pure parts of the benchmarks: order, percentiles, verdicts, the table; and the peer's absence."""

import io
import itertools
import json
from pathlib import Path

import numpy as np
import psutil
import pytest
from rich.console import Console

from bench import cifar10, kwok, measures, publish, table, torchrun, training
from bench.__main__ import Report, _take
from bench.errors import MeasureFailed, NotHere, PeerAbsent
from bench.lab import Lab
from bench.machine import State
from bench.measures import FELT, MEASURES, first_step, idle, to_97_percent
from bench.peers.cifar10_plain import Cifar10
from bench.results import MET, MISSED, UNJUDGED, Limit, Result
from bench.sampling import alternate, percentile
from bench.watching import has_started, is_complete
from localkube.controlplane.binaries import COMPONENTS, ControlPlaneBinaries

from .small_data import load_trainer


def result(**changes) -> Result:
    return Result(**{"what": "a thing", "unit": "s", "ours": (3.0, 1.0, 2.0), "peer": "a peer"} | changes)


def drawn(*results: Result, states=None, failures=None) -> str:
    console = Console(file=io.StringIO(), width=160)
    table.draw(results, states=states or {}, failures=failures or {}, console=console)
    return console.file.getvalue()


def test_alternating_calls_every_side_once_a_round_and_keeps_the_answers_apart():
    clock = itertools.count()
    answers = alternate({"ours": lambda: next(clock), "theirs": lambda: next(clock)}, 3)
    assert answers == {"ours": [0, 3, 4], "theirs": [1, 2, 5]}


@pytest.mark.parametrize(("share", "expected"), [(50, 50), (99, 99), (100, 100), (0, 1)])
def test_a_percentile_is_a_sample_by_nearest_rank(share, expected):
    assert percentile(range(1, 101), share) == expected


@pytest.mark.parametrize(
    ("limit", "verdict"),
    [
        (None, ""),
        (Limit(0.5), MET),
        (Limit(0.49), MISSED),
        (Limit(2, of="value", unit="s"), MET),
        (Limit(1.9, of="value", unit="s"), MISSED),
    ],
)
def test_a_limit_is_held_against_the_ratio_or_the_value(limit, verdict):
    assert result(theirs=(4.0,), limit=limit).verdict == verdict


def test_a_ratio_without_a_peer_is_not_judged_but_a_value_is():
    assert result(limit=Limit(1)).verdict == UNJUDGED
    assert result(limit=Limit(5, of="value")).verdict == MET


def test_the_table_says_that_a_peer_is_absent_and_why():
    text = drawn(result(absent="there is no Go to build it with", limit=Limit(0.8)))
    assert "absent" in text
    assert "there is no Go" in text
    assert "not judged" in text


def test_the_table_tells_of_a_busy_machine_and_of_what_could_not_be_measured():
    states = {"creation": State(7.5, 60.0, 0.1), "idle": State(0.4, 1.0, 0.1)}
    text = drawn(result(), states=states, failures={"idle": "no such file"})
    assert "7.5 before creation (60% busy)" in text
    assert "0.4" not in text
    assert "idle: not measured: no such file" in text


def test_without_go_kwok_is_absent(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    programs = {name: (str(tmp_path / name),) for name in COMPONENTS}
    control_plane = ControlPlaneBinaries("v1.36.3", "cache", programs)
    with pytest.raises(PeerAbsent, match="no Go"):
        kwok.obtain(control_plane, folder=tmp_path / "links", report=lambda text: None)


def test_kwokctl_is_given_our_programs_and_a_folder_of_its_own(tmp_path):
    peer = kwok.Kwok(tmp_path / "kwok", tmp_path / "kubernetes", "v1.36.3")
    command = peer.create_command("b", tmp_path / "config", ["--disable-qps-limits"])
    environment = peer.environment(tmp_path / "work")
    assert f"--kube-apiserver-binary={tmp_path}/kubernetes/kube-apiserver" in command
    assert f"--kubeconfig={tmp_path}/config" in command
    assert command[-1] == "--disable-qps-limits"
    assert environment["KWOK_WORKDIR"] == str(tmp_path / "work")
    assert environment["PATH"].startswith(f"{tmp_path}/kubernetes:")  # kwokctl prefers the kubectl on PATH


def test_a_run_is_timed_by_what_its_ranks_say():
    lines = [
        '{"event":"start","time":5,"rank":0,"world_size":2,"threads":1}',
        "a line for people",
        '{"event":"step","time":11,"rank":1,"world_size":2}',
        '{"event":"step","time":10,"rank":0,"world_size":2}',
        '{"event":"end","time":40,"rank":0,"world_size":2}',
        '{"event":"end","time":41,"rank":1,"world_size":2}',
    ]
    times = training.read(lines, submitted=1.0, finished=50.0, ranks=2)
    assert (times.to_first_step, times.training, times.total) == (9.0, 31.0, 40.0)
    assert times.threads == (1,)
    with pytest.raises(MeasureFailed, match="1 of 2 ranks"):
        training.read(lines[:-1], submitted=1.0, finished=50.0, ranks=2)


def test_a_line_says_when_pods_did_not_start_as_it_claims():
    def times(warm: int) -> training.Times:
        return training.Times(0, 1, 2, 3, (1,), warm)

    samples = {"warm-python": [times(3)], "bare": [times(0)]}
    found = first_step._result(
        Lab(rounds=1, report=print), samples, "warm", "warm-python", "bare", Limit(0.3)
    )
    assert found.notes == "3 pods came from the forkserver, not 4"


def test_pods_have_started_when_all_their_containers_run_or_have_run():
    def pod(*states: str) -> dict:
        return {"status": {"containerStatuses": [{"state": {state: {}}} for state in states]}}

    assert has_started(pod("running", "terminated"))
    assert not has_started(pod("running", "waiting"))
    assert not has_started({"status": {}})


def test_a_failed_job_ends_the_wait_for_it():
    def job(kind: str) -> dict:
        return {"metadata": {"name": "j"}, "status": {"conditions": [{"type": kind, "status": "True"}]}}

    assert is_complete(job("Complete"))
    assert not is_complete(job("SuccessCriteriaMet"))
    with pytest.raises(MeasureFailed, match="Job j failed"):
        is_complete(job("Failed"))


def test_usage_is_summed_from_the_kernels_figures():
    found = idle.usage([psutil.Process()], seconds=0.01)
    assert 1 < sum(found.megabytes.values()) < 10_000
    assert sum(found.percent.values()) >= 0


def test_every_module_of_measures_is_taken_and_what_is_felt_by_default():
    modules = {path.stem for path in Path(measures.__file__).parent.glob("[!_]*.py")}
    assert modules == {measure.__module__.rpartition(".")[2] for measure in MEASURES.values()}
    assert {name for _, name, _ in publish.FELT} <= set(FELT)


def test_a_line_for_each_peer_says_why_one_is_absent():
    lab = Lab(rounds=1, report=print)
    lab.absent["kubelet"] = "runc needs root"
    samples = {"ours": [1.0], "kwok": [4.0]}
    real, fake = lab.compare(samples, what="", unit="s", limits={"kubelet": Limit(0.1), "kwok": Limit(0.1)})
    assert (real.absent, real.verdict, fake.ratio, fake.verdict) == (
        "runc needs root",
        UNJUDGED,
        0.25,
        MISSED,
    )


def epoch(rank: int, rate: float) -> str:
    return json.dumps({"event": "epoch", "time": 1, "rank": rank, "world_size": 2, "images_per_s": rate})


def test_images_a_second_are_those_of_all_ranks_in_the_last_epoch():
    lines = [epoch(0, 1), epoch(1, 1), epoch(0, 20), epoch(1, 30)]
    assert torchrun.images_per_s(lines, ranks=2) == 50
    with pytest.raises(MeasureFailed, match="two epochs are needed"):
        torchrun.images_per_s(lines[:3], ranks=2)
    with pytest.raises(MeasureFailed, match="of 3 ranks, 2 spoke"):
        torchrun.images_per_s(lines, ranks=3)


def test_a_program_that_fails_under_torchrun_is_quoted(tmp_path):
    program = tmp_path / "program.py"
    program.write_text("raise ValueError('no such thing')")
    with pytest.raises(MeasureFailed, match="ValueError: no such thing"):
        torchrun.run(program, folder=tmp_path, flags={})


def test_drawn_images_are_read_by_the_peer_as_by_the_trainer(tmp_path):
    place = cifar10.make(tmp_path, images=100)
    images = Cifar10(place)
    assert len(images) == 100
    assert images[0][0].size == (32, 32)
    pixels, labels = load_trainer("cifar10_ddp").read_images(place, train=True)
    assert (pixels[7].numpy() == np.asarray(images[7][0])).all()
    assert int(labels[7]) == images[7][1]


def test_a_measure_that_needs_what_is_not_here_says_so_and_does_not_fail_the_run(
    capsys, monkeypatch, tmp_path
):
    def absent(lab):
        raise NotHere("there is no GPU")

    monkeypatch.setitem(MEASURES, "cifar10_gpu", absent)
    report = Report(tmp_path / "latest.json", rounds=1, quick=True)
    _take("cifar10_gpu", None, report, Console(width=140))
    assert "NOT MEASURED HERE: there is no GPU" in capsys.readouterr().out
    assert not report.failures
    assert json.loads((tmp_path / "latest.json").read_text())["not_measurable_here"]


def test_a_goal_for_a_speed_is_the_least_that_it_may_be():
    least = Limit(1.5, at="least")
    assert str(least) == "≥ 1.5 × peer"
    assert result(theirs=(1.0,), limit=least).verdict == MET
    assert result(theirs=(2.0,), limit=least).verdict == MISSED


def test_an_accuracy_below_the_goal_is_no_sample():
    with pytest.raises(MeasureFailed, match=r"0\.9 and not 0\.97"):
        to_97_percent._reaching(training.Times(0, 1, 2, 3, (1,), 0, 0.9))
