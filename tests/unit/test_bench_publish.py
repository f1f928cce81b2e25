"""The page of performance: a run writes its own measures into it, and nobody else writes."""

import json

import pytest

from bench import publish
from bench.results import Limit, Result
from bench.timelines import Timeline

MACHINE = {
    "cores": 2,
    "memory_gb": 25.0,
    "processor": "a processor",
    "system": "Linux 6.18",
    "python": "3.11.7",
    "torch": "2.15.0",
    "root": True,
}
MISSED = Result("pods that start", "ms", (30.0, 40.0, 50.0), "a peer", (20.0, 20.0, 20.0), limit=Limit(1.0))
MET = Result(
    "tasks",
    "tasks/s",
    (6000.0,),
    limit=Limit(5000, of="value", unit="tasks/s", at="least"),
    details={"raw": [1]},
)


def run(
    measure: str, *results: Result, load: float = 0.5, date: str = "2026-11-23", quick: bool = False
) -> dict:
    """Return the JSON of a run of one measure."""
    return {
        "began": f"{date}T10:00:00+00:00",
        "machine": MACHINE,
        "rounds": 3,
        "quick": quick,
        "machine_before": {measure: {"load": load}},
        "results": [{"measure": measure} | result.as_dict() for result in results],
    }


@pytest.fixture
def docs(tmp_path, monkeypatch):
    monkeypatch.setattr(publish, "DOCS", tmp_path)
    return tmp_path


def published(docs, **runs: dict) -> str:
    for name, results in runs.items():
        (docs / f"{name}.json").write_text(json.dumps(results))
    assert publish.main([str(docs / f"{name}.json") for name in runs]) == 0
    return (docs / "performance.md").read_text()


def test_a_later_run_replaces_its_own_measures_alone(docs):
    published(docs, one=run("pod_start", MISSED), two=run("task_service", MET))
    text = published(docs, three=run("pod_start", MET, date="2026-11-24"))
    assert "| [tasks](#pod_start) |" in text
    assert "| [tasks](#task_service) |" in text
    assert "pods that start" not in text
    assert (text.count("2026-11-24, 1 round,"), text.count("2026-11-23, 1 round,")) == (1, 1)
    assert "3 rounds" in published(docs, four=run("pod_start", MISSED))


def test_a_look_is_not_published(docs):
    with pytest.raises(SystemExit, match="without --quick"):
        published(docs, one=run("pod_start", MISSED, quick=True))


def test_a_busy_machine_is_not_published_and_a_peer_that_gave_up_has_no_number(docs, capsys):
    given_up = Result(
        what="killed", unit="s", ours=(0.3,), peer="a peer", theirs=(60.0,), timeout=60, limit=Limit(1)
    )
    text = published(docs, one=run("elastic_recovery", given_up), two=run("pod_start", MISSED, load=2.1))
    assert "| [killed](#elastic_recovery) | 0.30 s | gave up at 60.0 s | < 0.01 |" in text
    assert "pods that start" not in text
    assert "pod_start is left out: the load average was 2.1" in capsys.readouterr().out


def test_a_ratio_is_never_published_as_zero(docs):
    fast = Result(what="killed", unit="s", ours=(0.15,), peer="a peer", theirs=(34.2,), limit=Limit(1))
    assert "| [killed](#elastic_recovery) | 0.15 s | 34.2 s | < 0.01 |" in published(
        docs, one=run("elastic_recovery", fast)
    )


def test_the_page_is_what_the_results_say():
    stored = json.loads((publish.DOCS / "performance.json").read_text())
    page = publish.page(stored, profiles=publish.DOCS / "profiles")
    assert page == (publish.DOCS / "performance.md").read_text(), "python -m bench.publish writes it anew"
    text = (publish.DOCS / publish.TIMELINES).read_text()
    for name, measure in stored.items():
        assert not any("timelines" in result for result in measure["results"]) or (
            publish.with_timelines(text, name, measure) == text
        )
    for name in ("overview", *stored):
        assert (publish.DOCS / publish.FOLDER / f"{name}.svg").exists()


def timeline(*, end: float | None, failed: bool = False) -> dict:
    workers = [[-0.2, -0.1, *([end, end + 0.1] if end else [])], [-0.2, -0.1]]
    return Timeline.around_fault(workers, failed=failed, given_up=end is None).as_dict()


@pytest.mark.parametrize(
    ("end", "failed", "words", "seconds"),
    [(0.4, False, "0.5", 0.5), (None, False, "more than 60", 60), (None, True, "fails", 60)],
)
def test_a_pause_ends_with_the_next_step_of_any_worker_or_not_at_all(end, failed, words, seconds):
    read = Timeline.from_dict(timeline(end=end, failed=failed))
    assert (read.text, round(read.seconds, 3)) == (words, seconds)
    assert read.workers[1] == (-0.2, -0.1)


def test_pauses_before_the_fault_do_not_count():
    steps = Timeline.around_fault([[-9, -4, -0.1, 0.2, 0.3]])
    assert (steps.pause, steps.workers) == ((-0.1, 0.2), ((-4, -0.1, 0.2, 0.3),))


def test_the_document_of_elastic_training_gets_a_picture_and_a_table_of_all_ways(docs):
    (docs / "elastic.md").write_text(f"before\n{publish.BEGIN}\nold\n{publish.END}\nafter\n")
    sides = [("torchrun in pods", {"ours": timeline(end=0.4), "torchrun in pods": timeline(end=None)})]
    sides.append(("TrainJob", {"TrainJob": timeline(end=None, failed=True)}))
    results = [
        Result("killed → longest pause", "s", (0.5,), peer, (60.0,), timeout=60, details={"timelines": lines})
        for peer, lines in sides
    ]
    published(docs, one=run("faults", *results), two=run("pod_start", MISSED))
    text = (docs / "elastic.md").read_text()
    assert text.startswith(f"before\n{publish.BEGIN}\n<picture>") and text.endswith(f"{publish.END}\nafter\n")
    assert "| killed | 0.5 | more than 60 | fails |" in text
    assert "old" not in text
    for theme in ("", "-dark"):
        assert "more" not in (picture := (docs / publish.FOLDER / f"faults-timelines{theme}.svg").read_text())
        assert "&gt; 60 s" in picture and "0.5 s" in picture and "kit.TrainJob" in picture
