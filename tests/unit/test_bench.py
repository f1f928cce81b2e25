"""The pure parts of the benchmarks: order, percentiles, verdicts, the table; and the peer's absence."""

from pathlib import Path

import pytest

from bench import measures, publish, training
from bench.errors import MeasureFailed
from bench.lab import Lab
from bench.measures import FELT, MEASURES
from bench.results import MET, MISSED, UNJUDGED, Limit, Result


def result(**changes) -> Result:
    return Result(**{"what": "a thing", "unit": "s", "ours": (3.0, 1.0, 2.0), "peer": "a peer"} | changes)


def test_a_limit_is_held_against_the_ratio_or_the_value():
    limits = [None, Limit(0.5), Limit(0.49), *(Limit(seconds, of="value", unit="s") for seconds in (2, 1.9))]
    verdicts = [result(theirs=(4.0,), limit=limit).verdict for limit in limits]
    assert verdicts == ["", MET, MISSED, MET, MISSED]


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


def test_every_module_of_measures_is_taken_and_what_is_felt_by_default():
    modules = {path.stem for path in Path(measures.__file__).parent.glob("[!_]*.py")}
    assert modules == {measure.__module__.rpartition(".")[2] for measure in MEASURES.values()}
    assert {name for _, name, _ in publish.FELT} <= set(FELT)


def test_a_line_for_each_peer_says_why_one_is_absent():
    lab = Lab(rounds=1, report=print)
    lab.absent["kubelet"] = "runc needs root"
    samples = {"ours": [1.0], "kwok": [4.0]}
    real, fake = lab.compare(samples, what="", unit="s", limits={"kubelet": Limit(0.1), "kwok": Limit(0.1)})
    assert (real.absent, real.verdict) == ("runc needs root", UNJUDGED)
    assert (fake.ratio, fake.verdict) == (0.25, MISSED)
