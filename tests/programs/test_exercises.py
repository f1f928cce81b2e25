"""``kit.check``: the notebooks' solutions are right, and each wrong answer is told what is not yet."""

import json
import linecache
import os
import re
import sys
import tempfile
import textwrap
import tomllib
from pathlib import Path

import numpy
import pandas
import pytest
from solutions import CODE

import kitlib as kit
from kitlib.display.progress import Progress
from kitlib.errors import BadInput
from trainyard_kit import exercises
from trainyard_kit.exercises import sandbox
from trainyard_kit.exercises.checklist import Checklist, definitions
from trainyard_kit.exercises.checks import resume
from trainyard_kit.exercises.checks.dataset import Entries

ROOT = Path(__file__).parents[2]
ANSWERS = tomllib.loads(Path(__file__).with_name("exercise_answers.toml").read_text("utf-8"))


def tagged(tag):
    """Yield the number and the source of each cell of the notebooks with a tag, as a learner finds it."""
    for path in sorted((ROOT / "notebooks").glob("[0-9][0-9]_*.ipynb")):
        for part in json.loads(path.read_text())["cells"]:
            source = "".join(part["source"])
            if tag in part["metadata"].get("tags", ()) and "kit.check(" in source:
                yield path.name[:2], source


def solutions():
    """Return the definitions of each solution that is judged without a cluster, by the exercise's number."""
    texts = [CODE.search(source)[1] for _, source in tagged("solution")]
    by_number = {re.search(r'kit\.check\("(.+?)"', text)[1]: text for text in texts}
    return {
        number: re.split(r"\n.*kit\.check\(", text)[0] + "\n"
        for number, text in by_number.items()
        if exercises.load(number).seconds
    }


SOLUTIONS = solutions()


def rows(number, source):
    """Make the checks of an exercise in this process, which executes the cell as a learner's process does."""
    namespace, text = {"np": numpy}, textwrap.dedent(source)  # which another cell has imported
    linecache.cache["<your cell>"] = (len(text), None, text.splitlines(keepends=True), "<your cell>")
    exec(compile(definitions(text), "<your cell>", "exec"), namespace)
    exercise = exercises.load(number)
    (name,) = exercise.answers
    return Checklist(tuple(exercise.rows({name: namespace.get(name) or namespace["Pictures"]})))


def variant(number, old, new):
    """Make the checks of a solution in which something is replaced, or of another answer."""
    assert not old or old in SOLUTIONS[number], "nothing was replaced"
    return rows(number, SOLUTIONS[number].replace(old, new) if old else new)


def advice(checklist, check=""):
    """Return what is advised by the checks that fail."""
    return "\n".join(row.advice for row in checklist if row.right is False and check in row.name)


def cell(source, monkeypatch, **names):
    """Execute a cell whose source can be read, as in a notebook, after cells that have defined names."""
    name = f"<cell {hash(source)}>"
    monkeypatch.setitem(linecache.cache, name, (len(source), None, source.splitlines(keepends=True), name))
    exec(compile(source, name, "exec"), names)
    return names


@pytest.mark.parametrize("number", SOLUTIONS)
def test_a_solution_is_right(number):
    assert (checklist := rows(number, SOLUTIONS[number])), checklist


@pytest.mark.parametrize(("number", "old", "new"), ANSWERS["right"])
def test_an_answer_may_be_right_in_an_unusual_way(number, old, new):
    assert (checklist := variant(number, old, new)), checklist


@pytest.mark.parametrize(
    ("number", "old", "new", "words", "check"), [(*row, "")[:5] for row in ANSWERS["wrong"]]
)
def test_a_wrong_answer_is_told_what_to_do(number, old, new, words, check):
    checklist = variant(number, old, new)
    assert words in advice(checklist, check), checklist


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ("self.items[index]", "self.items[max(0, index - 1)]", "use its index"),
        (" / 255", " / 255 * 0.5", "not a byte divided by 255"),
    ],
)
def test_consequences_of_a_mistake_are_not_reported_as_mistakes(old, new, words):
    wrong_rows = [row for row in variant("04", old, new) if row.right is False]
    assert [words in row.advice for row in wrong_rows] == [True], wrong_rows


def test_ranks_that_compute_for_ever_are_named(monkeypatch):
    resume.saved_checkpoint()  # which may take longer
    monkeypatch.setattr(resume, "SECONDS", 2)
    checklist = variant("23", "weights, moments = get_state_dict(model, optimizer)", "while True: pass")
    assert "look for a loop that does not end" in advice(checklist)


def test_labels_in_the_order_of_a_file_system_are_refused_though_this_one_sorts(monkeypatch):
    scandir = os.scandir
    monkeypatch.setattr(
        os, "scandir", lambda path: Entries(sorted(scandir(path), key=lambda entry: entry.name))
    )
    source = SOLUTIONS["04"].replace("sorted(Path(root).iterdir())", "Path(root).iterdir()")
    source = source.replace("return len", "self.items.sort()\n        return len")
    assert "files and folders" in advice(rows("04", source))


# The Dockerfile

FLAGS = "--break-system-packages --no-cache-dir --constraint /opt/trainyard/constraints.txt"
INSTRUCTION = f"RUN python -m pip install {FLAGS} einops==0.8.2"
CACHED = INSTRUCTION.replace("--no-cache-dir ", "")


def dockerfile(instruction, *, before="COPY trainers/"):
    lines = (ROOT / "images" / "trainer" / "Dockerfile").read_text().splitlines()
    place = next(number for number, line in enumerate(lines) if line.startswith(before))
    return lines[:place] + instruction.splitlines() + lines[place:]


@pytest.mark.parametrize(
    "instruction",
    [
        INSTRUCTION,
        INSTRUCTION.replace("python -m pip", "pip"),
        INSTRUCTION.replace(" /opt", "=/opt"),
        INSTRUCTION.replace("einops==0.8.2", "'einops == 0.8.2'"),
        INSTRUCTION.replace("einops", "Einops"),
        INSTRUCTION.replace("install", "--no-input install -q"),
        INSTRUCTION.replace("--constraint /opt/trainyard/constraints.txt", "--no-deps"),
        f"RUN {json.dumps(INSTRUCTION[4:].split())}",
        f"RUN --mount=type=cache,target=/root/.cache/pip {CACHED[4:]}",
        f"RUN <<EOF\nset -e\n{INSTRUCTION[4:]}\nEOF",
        "RUN PIP_NO_CACHE_DIR=1 PIP_BREAK_SYSTEM_PACKAGES=1 "
        "pip install -c/opt/trainyard/constraints.txt einops==0.8.2",
        f"{CACHED} && pip cache purge",
        f"{CACHED} && rm -rf /root/.cache/pip",
        f"{CACHED} && rm -r -f ~/.cache/",
        CACHED.replace("install", "--no-cache-dir install"),
        f"RUN echo einops==0.8.2 > r.txt && {INSTRUCTION[4:].replace('einops==0.8.2', '-r r.txt')}",
        f"RUN /usr/bin/{INSTRUCTION[4:]}",  # which must not run this machine's pip
        f"RUN bash -c '{INSTRUCTION[4:]}'",
    ],
)
def test_an_instruction_may_be_written_in_several_ways(instruction):
    assert (checklist := kit.check("03", dockerfile=dockerfile(instruction))), checklist


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (dockerfile("RUN TODO"), "unchanged"),
        (dockerfile("RUN pipp install einops"), "not found"),
        (dockerfile(f"{INSTRUCTION} einops==0.7.0"), "0.8.2 and 0.7.0"),
        (dockerfile(f"{INSTRUCTION} && {INSTRUCTION[4:].replace('0.8.2', '0.7')}"), "0.8.2 and 0.7"),
        (dockerfile("pip install einops"), "which instruction does"),
        (dockerfile(f"RUN pip install {FLAGS} einops=0.8.2"), "einops==0.8.2"),
        (dockerfile(f"RUN pip install {FLAGS} einops"), "pin it"),
        (dockerfile("RUN pip install einops==0.8.2"), "--constraint"),
        (dockerfile("RUN pip install einops==0.8.2"), "--break-system-packages"),
        (dockerfile("RUN pip install einops==0.8.2"), "--no-cache-dir"),
        (dockerfile(INSTRUCTION, before="ENV"), "before COPY trainers/"),
        (dockerfile(INSTRUCTION, before="COPY images"), "does not exist yet"),
        (dockerfile("RUN pip install 'einops"), "the shell fails"),
        (dockerfile("RUN pip download einops"), "it does not run pip install"),
        (dockerfile("RUN while true; do :; done"), "does not end"),
        ([INSTRUCTION], "is missing"),
        (dockerfile("# RUN pip install einops"), "0 new instructions"),
        (None, "None"),
        (dockerfile(f"{INSTRUCTION} || true"), "if pip fails"),
        (dockerfile(f"{INSTRUCTION}; rm -rf /root/.cache/pip"), "if pip fails"),
        (dockerfile(INSTRUCTION.replace("install", "install --dry-run")), "with --dry-run"),
        (dockerfile(INSTRUCTION.replace("install", "install --target=/opt/more")), "with --target"),
        (dockerfile(f"{INSTRUCTION} && pip uninstall -y einops"), "removes einops again"),
        (dockerfile(f"{CACHED} && rm -rf /tmp/pip"), "pass --no-cache-dir"),
        (dockerfile(f"{CACHED} && rm /root/.cache/pip"), "pass --no-cache-dir"),
    ],
)
def test_a_wrong_instruction_is_told_what_to_do(answer, words, monkeypatch):
    monkeypatch.setattr("trainyard_kit.exercises.checks.dockerfile.SECONDS", 1)
    assert words in advice(checklist := kit.check("03", dockerfile=answer)), checklist


# Stubs, and arguments

WITH_MORE = ("01", "03", "05", "22")  # need a cluster or the notebook's imports
ALONE = [row for row in tagged("exercise") if "cluster.kubectl" not in row[1] and row[0] not in WITH_MORE]
DEALT = {"seed": 1, "nodes": 4}  # by the cell of parameters


@pytest.mark.parametrize(("notebook", "source"), ALONE, ids=[number for number, _ in ALONE])
def test_nothing_of_an_untouched_stub_is_right(notebook, source, monkeypatch):
    text, _, call = source.rpartition("kit.check(")
    first, *rest = eval(f"kit.check({call}", cell(text, monkeypatch) | {"cluster": None, "kit": kit} | DEALT)
    assert (first.right, {row.right for row in rest}) == (False, {None})
    assert "unchanged" in first.advice


@pytest.mark.parametrize(
    ("number", "answer", "words"),
    [
        ("00", None, "write a function"),
        ("00", "def amdahl(): pass", "write a function"),
        ("00", len, "write a function"),
        ("07", re.compile("x"), "should be a string"),
    ],
)
def test_an_answer_of_the_wrong_form_gets_an_example(number, answer, words):
    (name,) = exercises.load(number).answers
    assert words in advice(kit.check(number, **{name: answer}))


def test_the_arguments_of_a_check_are_named():
    with pytest.raises(BadInput, match="(?s)99.*one of 00, 01"):
        kit.check("99")
    with pytest.raises(BadInput, match=r'kit.check\("00", amdahl=amdahl\)'):
        kit.check("00", function=print)


def test_each_notebook_has_an_exercise_to_write():
    numbers = {path.name[:2] for path in (ROOT / "notebooks").glob("[0-9][0-9]_*.ipynb")}
    assert {key[:2] for key in exercises.EXERCISES} == numbers


# The process apart


def test_a_function_of_a_cell_is_judged_in_a_process_of_its_own(monkeypatch):
    source = SOLUTIONS["00"] + "amdahl(0.5, workers)\n"  # only its definitions are executed there
    amdahl = cell(source, monkeypatch, workers=4)["amdahl"]
    assert (checklist := kit.check("00", amdahl=amdahl)), checklist
    assert repr(checklist).splitlines()[-1] == "6 of 6 checks pass."


@pytest.mark.parametrize(
    "answer",
    [
        "from functools import cache\n@cache\ndef amdahl(share, workers):\n    return {}",
        "other = lambda share: share; amdahl = lambda share, workers: {}",
    ],
)
def test_a_function_may_be_decorated_or_a_lambda(answer, monkeypatch):
    amdahl = cell(answer.format("1 / (1 - share + share / workers)"), monkeypatch)["amdahl"]
    assert (checklist := kit.check("00", amdahl=amdahl)), checklist


def test_a_class_without_methods_has_a_source(monkeypatch):
    source = "class amdahl(float):\n    parallel = True\n"
    assert "raises TypeError" in advice(kit.check("00", amdahl=cell(source, monkeypatch)["amdahl"]))


def test_modules_of_other_cells_and_what_a_definition_uses_of_its_own_are_there(monkeypatch):
    source = SOLUTIONS["12"].replace(
        "np.sum(matrices, axis=0)", "pd.DataFrame(np.sum(matrices, SIZE - 2)).values"
    )
    cell_names = cell("SIZE = len([1, 2])\n" + source, monkeypatch, np=numpy, pd=pandas)
    assert (checklist := kit.check("12", accuracies=cell_names["accuracies"])), checklist


def test_a_pattern_is_examined_in_a_process_with_a_limit(monkeypatch):
    monkeypatch.setattr(exercises.load("07"), "seconds", 1)
    endless = r"\[train\]( *\S+)*( *\S+)*!(?P<step>\d+)(?P<loss>\d+)"
    assert "one + is enough" in advice(kit.check("07", pattern=endless))


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        ("while True: pass", "not finished after 2 s of computing"),
        ("__import__('time').sleep(1000)", "not finished"),
        ("__import__('tempfile').mkstemp(); __import__('os')._exit(7)", "exited with status 7"),
        ("return undefined", "name 'undefined' is not defined"),
    ],
)
def test_code_that_never_returns_or_breaks_the_process_is_named_and_leaves_no_files(
    answer, words, monkeypatch, tmp_path
):
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr(tempfile, "tempdir", None)  # which TMPDIR then sets
    monkeypatch.setattr(exercises.load("00"), "seconds", 2 if "not finished" in words else 20)
    monkeypatch.setattr("trainyard_kit.exercises.sandbox.WAITING", 3)
    amdahl = cell(f"def amdahl(share, workers):\n    {answer}", monkeypatch)["amdahl"]
    first, *rest = kit.check("00", amdahl=amdahl)
    assert words in first.advice
    assert not any(row.right for row in rest)
    assert not list(tmp_path.iterdir())


def interrupt(*_, **__):
    raise KeyboardInterrupt


@pytest.mark.parametrize(
    ("place", "number"),
    [("trainyard_kit.exercises.sandbox.run", "12"), ("trainyard_kit.exercises.checks.ddp.train", "05")],
)
def test_an_interrupt_is_one_line_and_not_the_kits_own_frames(place, number, monkeypatch, tmp_path):
    monkeypatch.setattr(place, interrupt)
    program = tmp_path / "program.py"
    program.write_text("print()")
    answers = {"12": lambda: cell(SOLUTIONS["12"], monkeypatch)["accuracies"], "05": lambda: program}
    (name,) = exercises.load(number).answers
    with pytest.raises(KeyboardInterrupt) as caught:
        kit.check(number, **{name: answers[number]()})
    (line,) = caught.value._render_traceback_()
    assert line.splitlines()[0] == "Interrupted: the check was interrupted"


@pytest.mark.parametrize("in_place", [True, False])
def test_a_line_moves_while_an_answer_is_judged_where_it_can_be_replaced(in_place, monkeypatch, tmp_path):
    shown = []
    line = type("Line", (Progress,), {"in_place": in_place, "show": lambda _, text: shown.append(text)})
    monkeypatch.setattr(sandbox, "progress", line)
    monkeypatch.setattr(sandbox, "TICK", 0.1)
    done = tmp_path / "done"
    program = f"import pathlib, time; pathlib.Path({str(done)!r}).touch(); time.sleep(1)"
    with sandbox.checking("training") as show:
        ended, _ = sandbox.run(
            [sys.executable, "-c", program],
            seconds=20,
            folder=str(tmp_path),
            on_tick=show(lambda: f"{int(done.exists())} of 1 files"),
        )
    assert ended == 0
    assert (shown[0], shown[-1]) == ("training", "training")
    assert any(text.startswith("1 of 1 files, ") for text in shown) == in_place
