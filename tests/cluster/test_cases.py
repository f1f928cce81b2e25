"""Programs, manifests and scripts of public reports, unedited, as their users start them (``cases.toml``)."""

import os
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

import kitlib as kit
from kitlib.errors import RunFailed

from ..patience import eventually

with (Path(__file__).parent / "cases.toml").open("rb") as file:
    CASES = tomllib.load(file)
RUNS = [
    pytest.param(case, run, id=case["start"], marks=[pytest.mark.slow] * run.get("slow", False))
    for case in CASES["program"]
    for run in case["runs"]
]
MANIFESTS = [
    pytest.param(case, id=case["file"], marks=[pytest.mark.slow] * case.get("slow", False))
    for case in CASES["manifest"]
]


@pytest.mark.parametrize(("case", "expected"), RUNS)
def test_a_program_runs_as_at_home(case, expected, local_cluster, tmp_path, monkeypatch):
    for name, text in case["files"].items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes(text.encode())
    monkeypatch.chdir(tmp_path)
    run = kit.launch(case["start"], cluster=local_cluster, **expected["options"])
    try:
        if error := expected.get("error"):
            with pytest.raises(RunFailed) as failure:
                run.wait(timeout=240)
            assert error in str(failure.value)
        else:
            run.wait(timeout=240)
        lines = [
            line for rank in range(expected["options"]["nodes"]) for line in run.logs(rank=rank).splitlines()
        ]
        assert set(expected.get("logs", ())) <= set(lines)
        if losses := expected.get("losses"):
            figures = run.metrics()
            assert list(figures[figures.event == "step"].loss) == pytest.approx(losses)
    finally:
        run.delete()


@pytest.mark.parametrize("case", MANIFESTS)
def test_a_manifest_s_pods_end_as_on_a_kubelet(case, local_cluster, tmp_path):
    path = tmp_path / case["file"]
    path.write_text(case["text"])
    kubectl = local_cluster.kubectl
    kubectl(f"apply -f {path}")
    try:
        for pod, text in case.get("logs", {}).items():
            kubectl(f"wait --for=jsonpath={{.status.phase}}=Succeeded --timeout=240s pod/{pod}")
            assert text in kubectl(f"logs {pod}").splitlines()
        for pod, text in case.get("events", {}).items():
            events = f"get events -o jsonpath={{..message}} --field-selector=involvedObject.name={pod}"
            eventually(lambda events=events, text=text: text in kubectl(events))
        if "client" in case:  # its placeholder is the cluster's name
            kubectl(f"wait --timeout=240s {case['ready']}")
            client = case["client"].replace("bugs", local_cluster.name)
            subprocess.run([sys.executable, "-c", client], check=True)
    finally:
        kubectl(f"delete -f {path} --grace-period=1")


@pytest.mark.parametrize("case", CASES["script"], ids=lambda case: case["file"])
def test_a_script_says_what_it_does_elsewhere(case, local_cluster, tmp_path):
    """Its placeholders are the cluster's name, the interpreter and the command."""
    text = case["text"].replace("bugs", local_cluster.name).replace("PYTHON", sys.executable)
    path = f"{tmp_path}:{Path(sys.executable).parent}:{os.environ['PATH']}"
    environment = os.environ | {"PATH": path, "SOME_FOLDER": str(tmp_path / "home")}
    (tmp_path / "kit").write_text(f'#!/bin/sh\nexec {sys.executable} -m trainyard_kit.cli "$@"\n')
    (tmp_path / "kit").chmod(0o755)
    try:
        done = subprocess.run(
            ["bash", "-e", "-c", text],
            cwd=tmp_path,
            env=environment,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0 and case["says"] in done.stdout, done
    finally:
        for volume in local_cluster.volumes():
            local_cluster.volume(volume["volume"]).delete()
