"""What a run of notebooks decides without a cluster: verdicts, thresholds, what is secret, when to stop."""

import json
import signal
from pathlib import Path
from types import SimpleNamespace

import jsonschema
import pytest
import smoke.clusters
import yaml
from smoke import bundle, plan, thresholds
from smoke.clusters import OwnCluster, RentedCluster
from smoke.plan import Planned
from smoke.result import EXIT_CODES, Outcome
from smoke.stopping import Stopping
from smoke.thresholds import Threshold, Verdict

import kitlib as kit
from kitlib import config
from kitlib.errors import BadInput

from .cloud_like import CloudLike

ROOT = Path(__file__).parents[2]
SCHEMA = json.loads((ROOT / "tools" / "smoke" / "result.schema.json").read_text())


def executed(name, verdict="passed", failure=None):
    return SimpleNamespace(
        name=name,
        verdict=verdict,
        failure=failure,
        seconds=1.0,
        figures={"accuracy": 0.5},
        synthetic=True,
        data={"cifar10": "synthetic"},
    )


FAILURE = SimpleNamespace(cell=4, source="boom()", error="NameError: boom")
HELD, MISSED = Verdict("accuracy", "05_x", 0.4, 0.5), Verdict("accuracy", "05_x", 0.9, 0.5)


@pytest.mark.parametrize(
    ("verdict", "expected"),
    [
        ("passed", {"notebooks": [executed("05_x")], "thresholds": [HELD]}),
        ("threshold missed", {"notebooks": [executed("05_x")], "thresholds": [HELD, MISSED]}),
        ("failed", {"notebooks": [executed("05_x", "failed", FAILURE)], "thresholds": [MISSED]}),
        ("failed", {"notebooks": []}),
        ("cluster", {"error": "no answer\n  about: it\n  try:   again"}),
        ("cluster", {"notebooks": [executed("05_x")], "error": "it cannot be deleted"}),
        ("failed", {"notebooks": [executed("05_x", "failed", FAILURE)], "error": "it cannot be deleted"}),
        ("time limit", {"notebooks": [executed("05_x", "failed", FAILURE)], "stopped": "time limit"}),
        ("interrupted", {"error": "it cannot be deleted", "stopped": "interrupted"}),
    ],
)
def test_the_first_thing_that_went_wrong_is_the_verdict_and_the_exit_code(verdict, expected, tmp_path):
    outcome = Outcome("run-1", "2030-01-02T03:04:05+00:00", ["05_x"], **expected)
    assert (outcome.verdict, outcome.exit_code) == (verdict, EXIT_CODES[verdict])
    outcome.write(tmp_path)
    result = json.loads((tmp_path / "result.json").read_text())
    jsonschema.validate(result, SCHEMA)
    assert result["verdict"] == verdict
    assert set(EXIT_CODES) == set(SCHEMA["properties"]["verdict"]["enum"])


def test_a_threshold_holds_for_all_notebooks_or_the_named_one():
    figures = {"05_x": {"accuracy": 0.98}, "06_y": {"accuracy": 0.6}, "01_z": {"allreduce_mb_per_s": 90.0}}
    judged = thresholds.evaluate(thresholds.parse("accuracy", "0.7"), figures)
    assert [(verdict.notebook, verdict.held) for verdict in judged] == [("05_x", True), ("06_y", False)]
    judged = thresholds.evaluate(thresholds.parse("accuracy", "05=0.97, 06=0.6"), figures)
    assert all(verdict.held for verdict in judged)


def test_a_figure_that_nobody_says_is_missed():
    (judged,) = thresholds.evaluate([Threshold("images_per_s", 10)], {"05_x": {"accuracy": 1.0}})
    assert not judged.held
    assert "not reported" in str(judged)


def test_a_bundle_leaves_out_what_sounds_secret_and_the_kubeconfigs_credentials(tmp_path):
    pod = {
        "env": [{"name": "HF_TOKEN", "value": "hf_1"}, {"name": "EPOCHS", "value": "3"}],
        "managedFields": 1,
    }
    cleaned = bundle.without_secrets({"spec": [pod], "data": {"password": "p", "page": "hello"}})
    assert cleaned["spec"][0]["env"] == [
        {"name": "HF_TOKEN", "value": "(left out)"},
        {"name": "EPOCHS", "value": "3"},
    ]
    assert "managedFields" not in cleaned["spec"][0]
    assert cleaned["data"] == {"password": "(left out)", "page": "hello"}
    path = tmp_path / "kubeconfig"
    users = [{"name": "a", "user": {"token": "abc", "client-key-data": "LS0t"}}, {"name": "b", "user": {}}]
    path.write_text(yaml.safe_dump({"users": users}))
    assert bundle.credentials(path) == ["LS0t", "abc"]
    assert bundle.credentials(tmp_path / "none") == []


@pytest.fixture
def stop():
    """Make a `Stopping`; the handlers of these tests' own process come back, its timeout's among them."""
    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGALRM)
    handlers, left = (
        {number: signal.getsignal(number) for number in numbers},
        signal.getitimer(signal.ITIMER_REAL),
    )
    yield Stopping
    signal.setitimer(signal.ITIMER_REAL, *left)
    for number, handler in handlers.items():
        signal.signal(number, handler)


def test_a_signal_waits_until_what_is_held_is_done(stop):
    stopping, done = stop(), []
    with pytest.raises(KeyboardInterrupt), stopping.held():
        signal.raise_signal(signal.SIGTERM)
        done.append("all of it")
    assert (done, stopping.reason) == (["all of it"], "interrupted")
    signal.raise_signal(signal.SIGTERM)  # it is cleaning up already


def test_the_time_limit_interrupts_and_is_told_from_a_signal(stop):
    stopping = stop(seconds=0.05)
    with pytest.raises(KeyboardInterrupt):
        signal.pause()
    assert stopping.reason == "time limit"


def planned(name, **metadata):
    return Planned(Path(f"{name}.ipynb"), **metadata)


COURSE = [
    planned("00_start", needs=()),
    planned("04_data", seconds=30),
    planned("05_job", seconds=40),
    planned("06_train", after=("04_data",), seconds=50),
    planned("08_operators", needs=("cluster", "jobset"), seconds=70),
    planned("11_evaluate", after=("06_train",), seconds=10),
    planned("12_clean_up", last=True, seconds=500),
]


def labels(chains):
    return [[notebook.label for notebook in chain] for chain in chains]


def test_a_notebook_follows_the_one_whose_work_it_uses():
    lanes = labels(plan.chains(COURSE, lanes=2))
    assert lanes == [["00"], ["04", "06", "11"], ["08"], ["05"], ["12"]]


def test_the_notebooks_of_the_course_say_what_they_need_in_names_that_exist():
    from localkube.controlplane.recipes import RECIPES

    plans = {path.name: path for path in map(plan.read, (ROOT / "notebooks").glob("[0-9]*.ipynb"))}
    assert not plans["00_start"].needs_cluster
    assert plans["13_clean_up"].last
    for notebook in plans.values():
        assert set(notebook.programs) <= set(RECIPES)
        assert set(notebook.after) <= set(plans)
        assert notebook.seconds > 0


@pytest.mark.parametrize(
    ("taint", "toleration"),
    [
        ("gpu", {"key": "gpu", "operator": "Exists"}),
        ("gpu:NoSchedule", {"key": "gpu", "operator": "Exists", "effect": "NoSchedule"}),
        ("for=us", {"key": "for", "operator": "Equal", "value": "us"}),
        ("a.b/c=d:NoExecute", {"key": "a.b/c", "operator": "Equal", "value": "d", "effect": "NoExecute"}),
    ],
)
def test_taints_are_tolerated_as_kubectl_writes_them(taint, toleration):
    read = config.read({"TRAINYARD_TOLERATIONS": f"{taint}, other"})
    assert read.tolerations == (toleration, {"key": "other", "operator": "Exists"})


@pytest.mark.parametrize(
    ("setting", "text"),
    [
        *(("TOLERATIONS", text) for text in (":NoSchedule", "a:Never", "=b")),
        *(("LABELS", text) for text in ("team", "=b", "a=b=c", "a=ü")),
    ],
)
def test_an_invalid_taint_or_label_is_named(setting, text):
    with pytest.raises(BadInput, match=text):
        config.read({f"TRAINYARD_{setting}": text})


@pytest.mark.parametrize(("image", "built"), [("", True), ("registry.example/mine:1", False)])
def test_a_cluster_at_a_cloud_has_its_image_built_before_the_first_notebook(image, built, monkeypatch):
    lab = CloudLike()
    monkeypatch.setattr(lab, "wait_ready", lambda: lab)
    monkeypatch.setattr(kit, "create_cluster", lambda provider, **options: lab)
    pulled = []
    monkeypatch.setattr(smoke.clusters, "pull", lambda cluster, images: pulled.extend(images))
    assert RentedCluster("eks", "lab", 2, {"region": "us-west-2"}, image).open() is lab
    assert pulled == [image or lab.trainer_image()]
    assert ("ConfigMap" in {kind for kind, *_ in lab.kube.objects}) is built


def test_a_second_run_of_the_same_name_is_refused_and_deletes_nothing_of_the_first(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    monkeypatch.setattr(kit, "create_cluster", lambda provider, **options: options["name"])
    deleted = []
    monkeypatch.setattr(smoke.clusters, "LocalCluster", CloudLike)
    monkeypatch.setattr(CloudLike, "delete", lambda self: deleted.append(self.name), raising=False)
    first, second = OwnCluster("run", 4), OwnCluster("run", 4)
    assert first.open() == "run"
    with pytest.raises(BadInput, match="another run"):
        second.open()
    second.close()
    assert deleted == []
    first.close()
    assert deleted == ["run", "run-gpus", "run-racks"]
    assert second.open() == "run"
