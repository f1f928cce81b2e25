"""The engine of ``run.why()``: rules find causes in facts, ranked, consequences last."""

import json

from kitlib.causes import Cause, Diagnosis, Facts, causes

from . import objects


def cause(who="rank 1", what="was killed", **more):
    return Cause(**{"kind": "Signal", "who": who, "what": what, "fix": "launch it again"} | more)


def test_the_most_certain_cause_comes_first_and_of_those_the_earliest():
    late = cause(time="2026-01-01T00:00:02Z")
    early = cause("rank 0", time="2026-01-01T00:00:01Z")
    maybe = cause("rank 2", certainty=1, time="2026-01-01T00:00:00Z")
    assert [item.who for item in causes(Facts(), [lambda _: [late, maybe], lambda _: [early]])] == [
        "rank 0",
        "rank 1",
        "rank 2",
    ]


def test_a_cause_rules_out_its_consequences():
    lost = cause("rank 0", "lost its connection", certainty=0)
    (first,) = causes(Facts(), [lambda _: [lost, cause()]])
    assert (first.who, first.ruled_out) == ("rank 1", ("rank 0 lost its connection: a consequence",))
    assert causes(Facts(), [lambda _: [lost]]) == [lost]


def test_a_cause_that_two_rules_find_is_listed_once():
    assert len(causes(Facts(), [lambda _: [cause()], lambda _: [cause(evidence=("exit code 137",))]])) == 1


def test_a_diagnosis_shows_who_what_evidence_and_what_to_do_as_text_html_and_json():
    shown = Diagnosis('run "x"', "Failed: no", (cause(evidence=("exit code 137",), ruled_out=("the node",)),))
    assert repr(shown).splitlines() == [
        "Failed: rank 1 was killed",
        "  evidence: exit code 137",
        "  not:      the node",
        "  try:      launch it again",
    ]
    assert "<b>rank 1 was killed</b>" in shown._repr_html_()
    assert json.loads(json.dumps(shown.json()))["causes"][0]["who"] == "rank 1"


def test_a_diagnosis_without_a_cause_says_that_nothing_is_wrong():
    shown = Diagnosis('run "x"', "Running: 2 of 2 pods")
    assert not shown
    assert repr(shown) == "nothing is wrong: Running: 2 of 2 pods"


def test_events_are_found_by_uid_or_else_by_kind_and_name():
    pod = objects.pod("x-0", uid="one") | {"kind": "Pod"}
    about = {"kind": "Pod", "name": "x-0"}
    events = [{"involvedObject": about | {"uid": uid}, "reason": "Failed"} for uid in ("one", "two")]
    facts = Facts(events=[*events, {"involvedObject": about, "reason": "Failed"}])
    assert len(facts.events_of(pod)) == 2
    assert facts.events_of(pod | {"kind": "Job"}) == [facts.events[0]]
