"""GitHub's workflows run what any machine runs, with pinned actions and no more rights than they need."""

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
import yaml

sys.path.append(str(Path(__file__).parents[2] / "tools"))  # as it is for a program that lies there
import dev
import run_notebooks

ROOT = Path(__file__).parents[2]
WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))
ACTION = ROOT / ".github" / "actions" / "environment" / "action.yml"
PARTS = ("environment", "tests", "run")


@pytest.fixture(params=WORKFLOWS, ids=lambda path: path.stem)
def workflow(request):
    """Each workflow in turn; ``on`` is True, as YAML 1.1 has it."""
    return yaml.safe_load(request.param.read_text())


def load(name):
    return yaml.safe_load((ROOT / ".github" / "workflows" / f"{name}.yml").read_text())


def steps(workflow):
    return [step for job in workflow["jobs"].values() for step in job["steps"]]


def commands(workflow):
    """Yield each command of a workflow, once for each target that its job's matrix names."""
    for job in workflow["jobs"].values():
        targets = job.get("strategy", {}).get("matrix", {}).get("target", [""])
        for step in job["steps"]:
            for line in step.get("run", "").splitlines():
                yield from {line.replace("${{ matrix.target }}", target) for target in targets}


def printed(*words):
    """Return the last command of what make would run."""
    make = ["make", "--no-print-directory", *words, "DRY_RUN=1"]
    done = subprocess.run(make, cwd=ROOT, capture_output=True, text=True, check=True)
    return shlex.split(done.stdout.splitlines()[-1])


def test_make_passes_on_options_that_somebody_has_set_and_none_of_its_own():
    conformance = [".venv/bin/python", "-m", "tests.conformance"]
    assert printed("conformance") == conformance  # make itself has AS, the assembler
    assert printed("conformance", "AS=learner", "FOCUS=a b's") == [
        *conformance,
        "--focus=a b's",
        "--as=learner",
    ]


def test_every_word_of_run_is_an_option_of_the_program_that_runs_notebooks():
    words = [f"{name}=1" for name in dev.RUN.split() if not name.startswith(("MIN", "PROFILE"))]
    printed_command = printed(
        "run", *words, "MIN_ALLREDUCE=100", "OPTIONS=region=a confirm=true", "NOTEBOOKS=01 02"
    )
    options = run_notebooks.read_arguments(printed_command[printed_command.index("--output=reports") :])
    assert (options.notebooks, options.option) == (["01", "02"], ["region=a", "confirm=true"])
    assert options.thresholds[0].minimum == 100
    documented = set(re.findall(r"`([A-Z_]{4,})`", (ROOT / "docs" / "smoke-test.md").read_text()))
    assert documented - {"PATH"} <= {*dev.TASKS["run"].settings, *dev.COMMON}


def test_the_makefile_names_tasks_and_decides_nothing():
    targets = dev.make_targets()
    assert len(targets) <= 15 and set(targets) <= set(dev.TASKS)
    macros = re.findall(r"\$\((?!PYTHON|TARGETS|shell for python)\w+", (ROOT / "Makefile").read_text())
    assert macros == []


def test_each_task_is_in_the_help_with_its_words():
    help_text = subprocess.run(["make"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    listed = set(re.findall(r"^  ([a-z-]+) ", help_text, flags=re.MULTILINE))
    assert listed == set(dev.TASKS)


def folders_of_tests():
    return {path.parent.name for path in (ROOT / "tests").glob("*/test_*.py")}


def test_a_workflow_runs_targets_of_make_and_parts_of_ci_run_that_exist(workflow):
    for command in commands(workflow):
        program, name, *arguments = command.removeprefix("sudo -E ").split()
        if program == ".ci/run":
            assert name in PARTS, command
            assert name != "tests" or set(arguments) <= folders_of_tests(), command
        else:
            known = {"make": dev.make_targets(), "tools/dev.py": dev.TASKS, "gh": ["release"]}
            assert name in known[program], f"neither a task nor a part of .ci/run: {command}"


def test_the_jobs_of_ci_run_every_folder_of_tests_once():
    all_commands = [*commands(load("ci")), *commands(load("localkube"))]
    folders = [command.split()[2:] for command in all_commands if command.startswith(".ci/run tests ")]
    assert sorted(sum(folders, [])) == sorted(folders_of_tests())


def test_ci_runs_on_both_architectures_and_on_every_python_that_is_promised():
    assert set(load("ci")["jobs"]) == {"lint", "unit", "notebooks", "clouds"}
    matrix = load("ci")["jobs"]["unit"]["strategy"]["matrix"]
    assert load("localkube")["jobs"]["node"]["strategy"]["matrix"] == matrix
    nightly = {
        key: [json.loads(values) for values in re.findall(r"'(\[.*?\])'", text)]
        for key, text in matrix.items()
    }
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    promised = [line.rpartition(" ")[2] for line in project["classifiers"] if ":: Python :: 3." in line]
    events = ["schedule", "workflow_dispatch"]
    assert promised == ["3.11", "3.12", "3.13", "3.14"]
    assert nightly["python"] == [events, promised, promised[:1]], "a pull request runs one of them"
    assert nightly["runner"] == [events, ["ubuntu-24.04", "ubuntu-24.04-arm"], ["ubuntu-24.04"]]


def test_actions_are_pinned_to_a_version(workflow):
    all_steps = [*steps(workflow), *yaml.safe_load(ACTION.read_text())["runs"]["steps"]]
    for used in (step["uses"] for step in all_steps if "uses" in step):
        assert used.startswith("./") or re.search(r"@v\d+\.\d+\.\d+$", used), used


def test_workflows_have_read_permissions_unless_a_job_declares_more(workflow):
    assert workflow["permissions"] == {"contents": "read"}
    for name, job in workflow["jobs"].items():
        writes = [scope for scope, right in job.get("permissions", {}).items() if right == "write"]
        assert not writes or name.startswith("publish") or (name, writes) == ("image", ["packages"])
    for step in steps(workflow):
        if step.get("uses", "").startswith("actions/checkout@"):
            assert step["with"]["persist-credentials"] is False


def test_every_job_ends_in_time_and_a_branch_has_one_run_of_a_workflow(workflow):
    assert {"group", "cancel-in-progress"} <= set(workflow["concurrency"])
    assert all(job["timeout-minutes"] <= 240 for job in workflow["jobs"].values())


def test_a_release_uses_nothing_that_another_run_left_behind():
    for step in steps(load("release")):
        if step.get("uses", "").startswith("./"):
            assert step["with"]["caches"] == "false"
        assert not step.get("uses", "").startswith("actions/cache")


def test_published_files_were_built_twice_and_compared():
    jobs = load("release")["jobs"]
    for name in (name for name in jobs if name.startswith("publish")):
        assert "reproduce" in jobs[name]["needs"]
        assert "github.ref_type == 'tag'" in jobs[name]["if"]


@pytest.fixture
def ci_run(tmp_path):
    """Return a function that runs the script where programs only say how they were called."""
    programs = tmp_path / "bin"
    for path in (programs, tmp_path / ".ci", tmp_path / ".venv" / "bin"):
        path.mkdir(parents=True)
    (tmp_path / ".ci" / "run").write_bytes((ROOT / ".ci" / "run").read_bytes())
    shell = "#!/bin/sh\n"
    make = shell + 'test -z "$GOCACHE" || : >"$GOCACHE"\n'
    make += 'echo "make: $*, browser: $TRAINYARD_NEEDS_BROWSER"\ntest "$1" != "$FAILING"\n'
    called = {"make": make} | dict.fromkeys(("docker", "dockerd", "docker-registry", "newuidmap"), shell)
    called |= dict.fromkeys(("apt-get", "sysctl", "sudo"), shell)
    called["df"] = shell + 'case "$*" in */dev/shm*) echo 24 ;; *) echo " $FREE" ;; esac\n'
    (tmp_path / "tools").mkdir()
    for path, text in {programs / name: text for name, text in called.items()}.items():
        path.write_text(text)
        path.chmod(0o755)
    shutil.copy(programs / "make", tmp_path / "tools" / "dev.py")
    python = tmp_path / ".venv" / "bin" / "python"
    python.write_text(shell + "echo looking for a browser\necho /usr/bin/browser\n")
    python.chmod(0o755)

    def run(*arguments, failing="", free=80):
        environment = {"PATH": f"{programs}:{os.defpath}", "FAILING": failing, "FREE": str(free)}
        command = ["bash", str(tmp_path / ".ci" / "run"), *arguments]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
        targets = re.findall(r"^make: (.+), browser: (.*)$", done.stdout, flags=re.MULTILINE)
        return done, [f"{call} with a browser" if browser else call for call, browser in targets]

    return run


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ([], ["test with a browser", "run with a browser"]),
        (["environment"], []),
        (["tests"], ["test with a browser"]),
        (["tests", "unit", "node"], ["test-quick TESTS=tests/unit tests/node with a browser"]),
        (["run"], ["run with a browser"]),
        (["run", "05", "06"], ["run NOTEBOOKS=05 06 with a browser"]),
    ],
)
def test_the_script_runs_its_parts_after_the_environment(ci_run, arguments, expected):
    done, targets = ci_run(*arguments)
    assert done.returncode == 0, done.stdout + done.stderr
    assert targets == ["setup", *expected]


def test_the_script_goes_on_after_a_failed_step_and_fails_at_the_end(ci_run):
    done, targets = ci_run(failing="test")
    assert done.returncode == 1
    assert targets[-1].startswith("run")
    assert done.stdout.splitlines()[-1] == "FAILED: make test"
