"""What the soak does to an elastic run, and when: the same for a seed, and all undone at the end."""

import importlib.util
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

SPEC = importlib.util.spec_from_file_location(
    "soak_elastic", Path(__file__).parents[2] / "tools" / "soak_elastic.py"
)
soak = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(soak)


@settings(deadline=None)
@given(seed=st.integers(0, 10**6), events=st.integers(1, 200))
def test_as_many_things_are_done_as_asked_in_time_and_each_is_undone(seed, events):
    made = soak.plan(seed, events=events, seconds=60)
    assert made == soak.plan(seed, events=events, seconds=60)
    assert len(made) == events
    assert [each.at for each in made] == sorted(each.at for each in made)
    assert made[-1].at <= 60
    assert all(0 <= each.pick < 1 for each in made)
    out = {"process": None, "node": None}
    for each in made:
        which = "process" if each.what in ("pause", "resume") else "node"
        if each.what in soak.UNDO:
            assert out[which] is None, "one at a time"
            out[which] = each
        elif each.what in soak.UNDO.values():
            assert soak.UNDO[out[which].what] == each.what
            assert out[which].pick == each.pick, "the same node"
            out[which] = None
    assert out == {"process": None, "node": None}


def test_two_hundred_have_every_kind():
    kinds = {each.what for each in soak.plan(1, events=200, seconds=600)}
    assert kinds == soak.WEIGHTS.keys() | set(soak.UNDO.values())


@pytest.mark.parametrize("seconds", [60, 600])
def test_the_run_lasts_as_long_as_the_soak(seconds):
    one = soak.Soak(None, seconds=seconds, say=print)
    assert one.epochs * soak.PER_EPOCH * soak.STEP_SECONDS == pytest.approx(seconds, rel=0.1)
