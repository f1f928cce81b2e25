"""The command as users of kubectl expect it: help, completion, formats, consent, and what errors advise."""

import ast
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import click
import pytest
import yaml
from click.testing import CliRunner

from kitlib import config
from kitlib.causes import Cause, Diagnosis
from kitlib.display.tables import Table
from kitlib.errors import CODE, KitError
from trainyard_kit.checks import Check, Level, Report
from trainyard_kit.cli import advice, options
from trainyard_kit.cli.course import copy_course
from trainyard_kit.cli.kubectl import WITH_CONTAINER, split_cluster
from trainyard_kit.cli.main import main

ROOT = Path(advice.__file__).resolve().parents[2]
PACKAGES = ("kitlib", "trainyard_kit", "localkube")


def commands(group=main, words=()):
    """Yield every command with its words."""
    yield words, group
    if isinstance(group, click.Group):
        context = click.Context(group)
        for name in group.list_commands(context):
            yield from commands(group.get_command(context, name), (*words, name))


EVERY = dict(commands())


def run(*words, **options):
    return CliRunner().invoke(main, words, **options)


@pytest.mark.parametrize("words", EVERY, ids=" ".join)
def test_the_help_of_every_command_fits_a_terminal_and_is_not_cut(words):
    done = run(*words, "--help", env={"COLUMNS": "80"}, terminal_width=80)
    assert done.exit_code == 0, done.output
    described = done.output.partition("\n\n")[2]  # a usage line has CLUSTER... for several
    assert "..." not in described.replace("[CLUSTER]...", "")
    assert max(map(len, done.output.splitlines())) <= 80


def test_an_o_is_the_format_of_output_and_nothing_else_and_every_list_has_it():
    short = {
        words: param for words, command in EVERY.items() for param in command.params if "-o" in param.opts
    }
    assert {param.name for param in short.values()} == {"output"}
    lists = {words for words in EVERY if words[-1:] in (("list",), ("ls",), ("doctor",))}
    assert len(lists) >= 8
    assert lists <= short.keys()
    assert {("cache",), ("image",), ("workshop", "status")} <= short.keys()


def test_consent_is_yes_and_cores_are_cpus_in_every_command():
    flags = {flag for command in EVERY.values() for param in command.params for flag in param.opts}
    assert not flags & {"--confirm", "--really", "--cpu", "--option", "--force"}
    assert {"--yes", "--cpus", "--set"} <= flags


TABLE = Table(("node", "used by"), [("node-0", 2), ("node-1", None)])


def test_a_list_is_written_as_json_yaml_and_names(capsys):
    rows = [{"node": "node-0", "used_by": 2}, {"node": "node-1", "used_by": None}]
    for output, read in (("json", json.loads), ("yaml", yaml.safe_load), ("name", str.split)):
        options.show(output, TABLE)
        assert read(capsys.readouterr().out) == (["node-0", "node-1"] if output == "name" else rows)
    options.show("json", nodes=TABLE, more=Table(("a",), []))
    assert json.loads(capsys.readouterr().out) == {"nodes": rows, "more": []}


def test_the_version_is_printed_and_groups_have_their_plural_too():
    assert run("version").output.startswith("trainyard ")
    assert run("clusters", "--help").output == run("cluster", "--help").output.replace(
        "main cluster", "main clusters"
    )


# Completion


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_the_completion_of_a_shell_is_what_that_shell_accepts(shell):
    script = run("completion", shell).stdout
    assert "_TRAINYARD_COMPLETE" in script
    if shutil.which(shell) is None:
        pytest.skip(f"no {shell} here")
    check = "--no-execute" if shell == "fish" else "-n"
    subprocess.run([shell, check], input=script, text=True, check=True)


@pytest.mark.skipif(shutil.which("bash") is None, reason="no bash here")
def test_bash_completes_commands_options_and_the_names_of_clusters(tmp_path):
    code, program = tmp_path / "code.py", tmp_path / "trainyard"
    program.write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} {shlex.quote(str(code))} "$@"\n')
    code.write_text(
        "from kitlib import clusters\nfrom kitlib.display.tables import Table\n"
        "from trainyard_kit.cli.main import main\n"
        "clusters.list_clusters = lambda: Table(('cluster',), [('lab',), ('other',)])\n"
        "main(prog_name='trainyard')\n"
    )
    program.chmod(0o755)
    script = run("completion", "bash").stdout
    for line, expected in (
        ("trainyard clu", ["cluster"]),
        ("trainyard cluster delete l", ["lab"]),
        ("trainyard run list -c ", ["lab", "other"]),
        ("trainyard run list -o y", ["yaml"]),
        ("trainyard completion z", ["zsh"]),
    ):
        words = line.split(" ")
        ask = (
            f"{script}\nCOMP_WORDS=({' '.join(map(shlex.quote, words))}); COMP_CWORD={len(words) - 1}\n"
            '_trainyard_completion trainyard; printf "%s\\n" "${COMPREPLY[@]}"'
        )
        environment = os.environ | {"PATH": f"{tmp_path}:{os.environ['PATH']}", "PYTHONPATH": str(ROOT)}
        done = subprocess.run(
            ["bash", "-c", ask], env=environment, capture_output=True, text=True, check=True
        )
        assert done.stdout.split() == expected, done.stderr


# What errors advise


def texts(node):
    """Yield the texts that an expression may be, with a word in place of each value."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        yield node.value
    elif isinstance(node, ast.JoinedStr):
        yield "".join(str(part.value) if isinstance(part, ast.Constant) else "x1" for part in node.values)
    elif isinstance(node, ast.IfExp):
        yield from texts(node.body)
        yield from texts(node.orelse)
    elif isinstance(node, ast.BinOp):
        for left in list(texts(node.left)) or ["x1"]:
            yield from (left + right for right in list(texts(node.right)) or ["x1"])


def advised():
    """Yield every text that an error of the product advises, and where it is written."""
    for path in (path for name in PACKAGES for path in sorted((ROOT / name).rglob("*.py"))):
        text = path.read_text("utf-8")
        for node in ast.walk(ast.parse(text)) if "fix" in text or "resume" in text else ():
            if isinstance(node, ast.keyword) and node.arg in ("fix", "resume"):
                yield from (
                    (f"{path.relative_to(ROOT)}:{node.value.lineno}", text) for text in texts(node.value)
                )
            elif isinstance(node, ast.Assign) and any(
                re.search(r"\bfix\b", ast.unparse(name)) for name in node.targets
            ):
                yield from ((f"{path.relative_to(ROOT)}:{node.lineno}", text) for text in texts(node.value))
    for path in (path for name in PACKAGES for path in sorted((ROOT / name).rglob("*.toml"))):
        yield from (
            (path.name, text) for text in re.findall("^(?:fix|less) = .*", path.read_text("utf-8"), re.M)
        )


def terminal(text, *words, **known):
    return advice.for_terminal(text, command=EVERY[words], root=main, known=known)


def check_command(line):
    """Have click parse a command, without running it."""
    words = shlex.split(line)[1:]
    command, context = main, click.Context(main)
    while isinstance(command, click.Group) and words:
        subcommand = command.get_command(context, words[0])
        assert subcommand, f"{line}: there is no {words[0]}"
        command, words = subcommand, words[1:]
        context = click.Context(command, parent=context)
    known = {flag: param for param in command.params for flag in param.opts}
    for word in words:
        if word == "--" or command.name == "kubectl":
            break
        if word.startswith("-"):
            assert word.partition("=")[0] in known, f"{line}: {command.name} has no {word}"


# A call or an argument; not those of torch, and not the x1 of `texts`.
PYTHON = re.compile(
    r"\b(?:kit|cluster|run|volume|job)(?:\.\w+)+\(|(?<![\w\-.{/?&])"
    r"(?!x1|drop_last|find_unused|key|num_workers|pid|timeout|world_size)[a-z]\w*=(?!=)"
)


def test_every_fix_is_a_command_in_a_terminal():
    checked = 0
    for place, text in advised():
        bare = PYTHON.search(CODE.sub("", text))
        assert not bare or "kubectl" in text or "--" in text, f"{place}: put {bare} between backticks"
        shown = terminal(text, "cluster", "create")
        left = set(re.findall(r"\b(?:kit|cluster|run|volume|job)(?:\.\w+)+(?=\()", shown))
        assert left <= set(advice.IN_PYTHON), f"{place}: {shown}"
        for line in re.findall(r"\btrainyard (?:[\w./=-]+ ?|'[^']*' ?|\"[^\"]*\" ?)+", shown):
            if "bundle`" not in line:
                known = [word for word in line.replace("`", "").split() if not word.endswith(",")]
                assert known[1] in main.list_commands(click.Context(main)), f"{place}: {line}"
                checked += 1
    assert checked >= 50


@pytest.mark.parametrize(
    ("text", "words", "expected"),
    [
        (
            '`region="eu-central-1"`, or set AWS_REGION',
            ("cluster", "create"),
            "--set region=eu-central-1, or set AWS_REGION",
        ),
        ("`nodes=4`", ("cluster", "create"), "--nodes 4"),
        ("`confirm=True`", ("cluster", "scale"), "--yes"),
        ('`name="lab-1"`', ("cluster", "create"), "lab-1"),
        ("give it another `name=`", ("launch",), "give it another --name"),
        ('`admins=["a"]`', ("cluster", "create"), "--set 'admins=[\"a\"]'"),
        ('`args={"epochs": 3}`', ("launch",), "-- --epochs=3"),
        ("set it to a=b", ("version",), "set it to a=b"),
        ("https://a.example/?zone=x&b=y", ("cluster", "create"), "https://a.example/?zone=x&b=y"),
    ],
)
def test_an_argument_is_advised_as_the_option_of_the_command(text, words, expected):
    assert terminal(text, *words) == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ('`kit.create_cluster("local", name="lab")`', "trainyard cluster create lab --provider local"),
        (
            '`kit.create_cluster("eks", region="eu-1")`',
            "trainyard cluster create lab --provider eks --set region=eu-1",
        ),
        ('`kit.connect("lab", start=True)`', "trainyard cluster start lab"),
        ('`kit.clusters.find("lab").delete()`', "trainyard cluster delete lab"),
        ("`kit.launch(job, replace=True)` deletes", "trainyard launch TRAINER --replace -c lab deletes"),
        ('`cluster.create_volume("shared")`', "trainyard volume create shared -c lab"),
        ('`kit.install("trainer", cluster="two")`', "trainyard operator install trainer -c two"),
        (
            "`kit.TorchElastic(…, min_nodes=1)`",
            "trainyard launch --kind torch-elastic TRAINER --set min_nodes=1 -c lab",
        ),
        ("`run.logs(follow=True)` begins again", "trainyard run logs digits --follow -c lab begins again"),
        ('`cluster.top("pods")`', "trainyard kubectl -c lab top pods"),
        ("`volume.ls()` shows it", "trainyard volume ls NAME -c lab shows it"),
        ('`kit.connect("two").run("a")`', "trainyard run wait a -c two"),
        ('`kit.connect("a" "b)`', 'kit.connect("a" "b)'),
        ('`kit.check("05")`', 'kit.check("05")'),
    ],
)
def test_a_call_is_advised_as_the_command_that_does_the_same(text, expected):
    shown = terminal(text, "version", cluster="lab", run="digits")
    assert shown == expected
    if shown.startswith("trainyard"):
        check_command(re.match(r"trainyard [^;,]*?(?= deletes| begins| shows|$)", shown)[0])


def test_an_error_in_a_terminal_advises_a_command_and_in_python_a_call(monkeypatch):
    from kitlib.clusters.local import broken

    monkeypatch.setattr(options.ErrorGroup, "root", main)
    error = broken("lab", {"state": "stopped"})
    assert 'kit.connect("lab", start=True)' in str(error)

    @options.ErrorGroup.command(group := options.ErrorGroup("trainyard"))
    def fails():
        raise error

    done = CliRunner().invoke(group, ["fails"])
    assert done.exit_code == 1
    assert "try:   trainyard cluster start lab" in done.output


def test_the_causes_of_a_run_and_the_checks_of_doctor_advise_commands(monkeypatch):
    fix = '`memory="512Mi"`, or `run.logs(rank=1)`'
    diagnosis = Diagnosis('run "a"', "Failed", (Cause(kind="OOMKilled", who="rank 1", what="died", fix=fix),))
    cluster = SimpleNamespace(run=lambda name: SimpleNamespace(why=lambda: diagnosis))
    report = Report("lab", (Check("cluster", Level.FAILED, "stopped", '`kit.connect("lab", start=True)`'),))
    monkeypatch.setattr("kitlib.clusters.connect", lambda *names: cluster)
    monkeypatch.setattr("kitlib.plugins.find", lambda group, name: lambda *about, **options: report)
    shown = CliRunner().invoke(main, ["why", "a", "-c", "lab"]).stdout
    assert "try:      --memory 512Mi, or trainyard run logs a --rank 1 -c lab" in shown
    assert "trainyard cluster start lab" in CliRunner().invoke(main, ["doctor", "--cluster", "lab"]).stdout


# kubectl


@pytest.mark.parametrize(
    ("words", "rest", "cluster"),
    [
        ("get nodes -c lab", "get nodes", "lab"),
        ("get nodes -c=lab", "get nodes", "lab"),
        ("get nodes -clab -o wide", "get nodes -o wide", "lab"),
        ("get nodes --cluster lab", "get nodes", "lab"),
        ("logs pod -c main", "logs pod -c main", None),
        ("logs pod -c main --cluster=lab", "logs pod -c main", "lab"),
        ("-n default exec pod -c main -- sh -c ls", "-n default exec pod -c main -- sh -c ls", None),
        ("get pods -- -c lab", "get pods -- -c lab", None),
    ],
)
def test_a_cluster_after_the_words_of_kubectl_is_understood_where_c_is_no_container(words, rest, cluster):
    assert split_cluster(tuple(words.split())) == (rest.split(), cluster)


def test_a_c_without_a_name_is_refused():
    with pytest.raises(click.UsageError, match="requires an argument"):
        split_cluster(("get", "nodes", "-c"))


def test_no_other_command_of_kubectl_has_a_c_of_its_own():
    from kitlib.clusters.kubectl import find_kubectl

    try:
        program = find_kubectl()
    except KitError:
        pytest.skip("no kubectl here")

    def kubectl_help(*words):
        return subprocess.run([*program, *words, "--help"], capture_output=True, text=True, check=True).stdout

    names = re.findall(r"^  ([a-z-]+)  +\w", kubectl_help(), re.M)
    assert len(names) > 20
    with_c = {name for name in names if re.search(r"^ +-c, --", kubectl_help(name), re.M)}
    assert with_c <= set(WITH_CONTAINER)
    assert set(WITH_CONTAINER) - with_c == {"set"}  # set env, set image and set resources have it


# The course


def test_a_folder_that_cannot_be_written_is_a_sentence():
    done = run("course", "/proc/course")
    assert done.exit_code == 1
    assert "the course cannot be written" in done.output
    assert "/proc/course" in done.output
    assert isinstance(done.exception, SystemExit)


def test_the_course_is_copied_without_what_a_learner_made_beside_it(tmp_path, monkeypatch):
    notebooks = tmp_path / "data" / "notebooks"
    ours, theirs = (
        ("05_jobs.ipynb", "scripts/train.py"),
        ("my_digits.py", "05_jobs-Copy1.ipynb", "Untitled.ipynb"),
    )
    for name in (*ours, *theirs):
        (notebooks / name).parent.mkdir(parents=True, exist_ok=True)
        (notebooks / name).touch()
    monkeypatch.setattr(config, "DATA", tmp_path / "data")
    written = [str(path) for path in copy_course(tmp_path / "course") if path.parts[0] == "notebooks"]
    assert written == [f"notebooks/{name}" for name in ours]


# First words of somebody who comes from kubectl, gh and uv


@pytest.mark.parametrize("words", [(), ("run",), ("cluster", "create"), ("workshop", "add")])
def test_help_is_a_command_as_well_as_an_option(words):
    assert run("help", *words).stdout == run(*words, "--help", prog_name=advice.PROGRAM).stdout


def test_help_for_what_is_no_command_is_a_usage_error():
    done = run("help", "nosuch")
    assert done.exit_code == 2 and "No such command 'nosuch'" in done.stderr


def test_verbose_shows_the_traceback_of_an_error_before_the_error():
    quiet, verbose = run("cluster", "start", "nosuch"), run("--verbose", "cluster", "start", "nosuch")
    assert quiet.exit_code == verbose.exit_code == 1
    assert "Traceback" not in quiet.stderr
    assert "Traceback" in verbose.stderr and verbose.stderr.rstrip().endswith(quiet.stderr.splitlines()[-1])


@pytest.mark.parametrize("verb", ["stop", "start", "status", "kubeconfig", "delete"])
def test_a_verb_on_a_cluster_that_does_not_exist_says_so_and_nothing_before(verb):
    done = run("cluster", verb, "nosuch")
    assert done.exit_code == 1 and done.stderr.startswith("ClusterNotFound: there is no such cluster")
    assert "stopping" not in done.stderr


def test_doctor_advises_commands_in_a_terminal(tmp_path, monkeypatch):
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "none"))
    shown = run("doctor").stdout
    assert "trainyard cluster create --provider existing --set kubeconfig=FILE" in shown
    assert "kit." not in shown and "create_cluster" not in shown
