"""``kit.check``: each exercise is right with a solution, and tells typical wrong answers what is not yet."""

import json
import linecache
import re
import tempfile
import textwrap
import tomllib
from pathlib import Path

import pytest

import kitlib as kit
from kitlib.errors import BadInput
from trainyard_kit import exercises
from trainyard_kit.exercises.checklist import Checklist, definitions

from .exercise_answers import (
    BUBBLE,
    COST,
    CROSSINGS,
    EPOCH,
    EXPOSED,
    FITS,
    FORMULA,
    LORA,
    OPTIMIZER,
    REPEATED,
    RESUME,
    RESUME_BY_STATEFUL,
    SAVE,
    SCALING,
    STEP,
)

ROOT = Path(__file__).parents[2]
AMDAHL = "def amdahl(share, workers):\n    return {}"
LAW = "1 / (1 - share + share / workers)"
DATASET = """
    from pathlib import Path
    import numpy
    import torch
    from PIL import Image
    from torch.utils.data import Dataset

    class Pictures(Dataset):
        def __init__(self, root):
            folders = sorted(each for each in Path(root).iterdir())
            self.items = []
            for label, folder in enumerate(folders):
                self.items += [(path, label) for path in sorted(folder.iterdir())]

        def __len__(self):
            return len(self.items)

        def __getitem__(self, index):
            path, label = self.items[index]
            pixels = torch.from_numpy(numpy.array(Image.open(path).convert("L")))
            return pixels.unsqueeze(0).float() / 255, label
"""
FINISH = """
    import torch

    def finish(model, correct, rank, path):
        torch.distributed.all_reduce(correct)
        if rank == 0:
            torch.save(model.module.state_dict(), path)
        return correct
"""
ELASTIC = """
    def train(state, images, rank, world_size, batch):
        for step in range(state["step"], len(images) // batch):
            whole = images[step * batch : (step + 1) * batch]
            yield whole[rank::world_size]
            state["step"] = step + 1
"""
INTERVAL = "def predict(s, m):\n    return (2 * s * m) ** 0.5, (2 * s / m) ** 0.5"
PATTERN = r"\[train\].* it (?P<step>\d+)/.* nll (?P<loss>\S+)"
FLAGS = "--break-system-packages --no-cache-dir --constraint /opt/trainyard/constraints.txt"
INSTRUCTION = f"RUN python -m pip install {FLAGS} einops==0.8.2"
SOLUTIONS = {
    "00": AMDAHL.format("1 / (1 - share + share / workers)"),
    "02": SAVE,
    "04": DATASET,
    "05-step": STEP,
    "06": FINISH,
    "06-epoch": EPOCH,
    "08": ELASTIC,
    "10": OPTIMIZER,
    "15": EXPOSED,
    "15-step": FORMULA,
    "17-fits": FITS,
    "18": BUBBLE,
    "19-lora": LORA,
    "20": COST,
    "21": REPEATED,
    "23": RESUME,
    "23-interval": INTERVAL,
    "24": SCALING,
    "25": CROSSINGS,
}
ANSWERS = tomllib.loads((ROOT / "tests/programs/wrong_answers.toml").read_text())
SOLUTIONS |= ANSWERS["solutions"]


def written(source):
    """Execute a cell as a learner's process does; return what is passed to the checks."""
    namespace = {}
    text = textwrap.dedent(source)
    linecache.cache["<your cell>"] = (len(text), None, text.splitlines(keepends=True), "<your cell>")
    exec(compile(definitions(text), "<your cell>", "exec"), namespace)
    return namespace


def rows(notebook, source):
    """Make the checks of an exercise in this process."""
    exercise = exercises.load(notebook)
    namespace = written(source)
    (name,) = exercise.takes
    answer = namespace.get(name) or namespace["Pictures"]
    return Checklist(tuple(exercise.rows({name: answer})))


def cell(source, monkeypatch):
    """Execute a cell whose source can be read, as in a notebook."""
    text = textwrap.dedent(source)
    name = f"<cell {hash(text)}>"
    monkeypatch.setitem(linecache.cache, name, (len(text), None, text.splitlines(keepends=True), name))
    namespace = {}
    exec(compile(text, name, "exec"), namespace)
    return namespace


@pytest.mark.parametrize("notebook", SOLUTIONS)
def test_a_solution_is_right(notebook):
    checklist = rows(notebook, SOLUTIONS[notebook])
    assert checklist, checklist


@pytest.mark.parametrize(("notebook", "old", "new", "check", "advice"), ANSWERS["rows"])
def test_a_wrong_answer_is_told_what_to_do(notebook, old, new, check, advice):
    right = textwrap.dedent(SOLUTIONS[notebook])
    old = textwrap.dedent(old) if old in right else old
    source = textwrap.dedent(SOLUTIONS[notebook].replace(old, new))
    assert source != right, "nothing was replaced"
    checklist = rows(notebook, source)
    failed = {row.name: row.advice for row in checklist if row.right is False}
    assert any(check in name and advice in words for name, words in failed.items()), checklist


def dockerfile(instruction, *, before="COPY trainers/"):
    lines = (ROOT / "images" / "trainer" / "Dockerfile").read_text().splitlines()
    place = next(number for number, line in enumerate(lines) if line.startswith(before))
    return lines[:place] + instruction.splitlines() + lines[place:]


@pytest.mark.parametrize(
    ("answer", "check", "advice"),
    [
        (dockerfile("RUN TODO"), "one new instruction", "unchanged"),
        (dockerfile("RUN pipp install einops"), "the shell runs it", "not found"),
        (dockerfile(f"{INSTRUCTION} einops==0.7.0"), "version is pinned", "0.8.2 and 0.7.0"),
        (
            dockerfile(f"{INSTRUCTION} && {INSTRUCTION[4:].replace('0.8.2', '0.7')}"),
            "version is pinned",
            "0.7",
        ),
        (dockerfile(INSTRUCTION.replace("0.8.2", "0.8.1")), "version is pinned", "0.8.1"),
        (dockerfile("pip install einops"), "one new instruction", "which instruction does"),
        (dockerfile(f"RUN pip install {FLAGS} einops=0.8.2"), "the shell runs it", "einops==0.8.2"),
        (dockerfile(f"RUN pip install {FLAGS} einops"), "version is pinned", "pin it"),
        (dockerfile("RUN pip install einops==0.8.2"), "keeps its torch", "--constraint"),
        (dockerfile("RUN pip install einops==0.8.2"), "system's Python", "--break-system-packages"),
        (dockerfile("RUN pip install einops==0.8.2"), "not stored in the layer", "--no-cache-dir"),
        (dockerfile(INSTRUCTION, before="ENV"), "does not reinstall it", "before COPY trainers/"),
        (dockerfile(INSTRUCTION, before="COPY images"), "keeps its torch", "does not exist yet"),
        (dockerfile("RUN pip install 'einops"), "the shell runs it", "the shell fails"),
        (dockerfile("RUN pip download einops"), "the shell runs it", "it does not run pip install"),
        (dockerfile("RUN while true; do :; done"), "the shell runs it", "does not end"),
        ([INSTRUCTION], "one new instruction", "is missing"),
        (dockerfile("# RUN pip install einops"), "one new instruction", "0 new instructions"),
        (None, "one new instruction", "None"),
    ],
)
def test_a_wrong_instruction_is_told_what_to_do(answer, check, advice, monkeypatch):
    monkeypatch.setattr("trainyard_kit.exercises.checks.dockerfile.SECONDS", 1)
    checklist = kit.check("03", dockerfile=answer)
    assert any(check in row.name and advice in row.advice for row in checklist if row.right is False), (
        checklist
    )


@pytest.mark.parametrize(
    "instruction",
    [
        INSTRUCTION,
        INSTRUCTION.replace("python -m pip", "pip"),
        INSTRUCTION.replace(" /opt", "=/opt"),
        INSTRUCTION.replace("einops==0.8.2", "'einops == 0.8.2'"),
        f"RUN {json.dumps(INSTRUCTION[4:].split())}",
        f"RUN --mount=type=cache,target=/root/.cache/pip {INSTRUCTION[4:].replace('--no-cache-dir ', '')}",
        f"RUN <<EOF\nset -e\n{INSTRUCTION[4:]}\nEOF",
        "RUN PIP_NO_CACHE_DIR=1 PIP_BREAK_SYSTEM_PACKAGES=1 "
        "pip install -c/opt/trainyard/constraints.txt einops==0.8.2",
    ],
)
def test_an_instruction_may_be_written_in_several_ways(instruction):
    assert kit.check("03", dockerfile=dockerfile(instruction)), kit.check(
        "03", dockerfile=dockerfile(instruction)
    )


@pytest.mark.parametrize(
    ("answer", "check", "advice"),
    [
        (re.compile(PATTERN), "a regular expression", "should be a string"),
        (r"TODO (?P<step>\d+) TODO", "a regular expression", "unchanged"),
        (PATTERN.replace(r"\[train\]", "[train]"), "validation lines", r"write \[train\]"),
        (PATTERN.replace(" nll", " | nll"), "loss is", r"write \|"),
        (PATTERN.replace(r"\[train\]", "[train"), "a regular expression", r"write \["),
        (r"\[train\]( *\S+)*( *\S+)*!(?P<step>\d+)(?P<loss>\d+)", "a regular expression", "one + is enough"),
        ("TODO", "a regular expression", "missing (?P<step>…) and (?P<loss>…)"),
        (PATTERN.replace("step", "it"), "a regular expression", "missing (?P<step>…)"),
        (PATTERN + "(", "a regular expression", "not a regular expression"),
        (PATTERN.replace("nll ", "loss "), "each training line", "0 of 3"),
        (r"ep (?P<step>\d+).* nll (?P<loss>\S+)", "step is", "0, 0, 1"),
        (PATTERN.replace(r"\S+", r"[\d.]+"), "loss is", "1.8412"),
        (PATTERN.replace(r"\[train\]", ""), "validation lines", "[valid]"),
        (PATTERN.replace(r"\d+", r"\d{2,3}"), "longer run", "more digits"),
    ],
)
def test_a_wrong_pattern_is_told_what_to_do(answer, check, advice, monkeypatch):
    exercise = exercises.load("07")
    monkeypatch.setattr(exercise, "seconds", 2)
    if advice in ("should be a string", "unchanged", "one + is enough"):  # of the process apart, or before it
        checklist = kit.check("07", pattern=answer)
    else:
        checklist = Checklist(tuple(exercise.rows({"pattern": answer})))
    assert any(check in row.name and advice in row.advice for row in checklist if row.right is False), (
        checklist
    )


@pytest.mark.parametrize("answer", [PATTERN, r"train.*it (?P<step>\d+).*nll (?P<loss>[\d.e+-]+)"])
def test_a_pattern_may_be_written_in_several_ways(answer):
    assert kit.check("07", pattern=answer), kit.check("07", pattern=answer)


@pytest.mark.parametrize(
    "answer",
    [
        "def amdahl(share, workers):\n    import numpy\n    return numpy.float32({})",
        "from fractions import Fraction\ndef amdahl(share, workers):\n    return Fraction({})",
        "from functools import cache\n@cache\ndef amdahl(share, workers):\n    return {}",
        "other = lambda share: share; amdahl = lambda share, workers: {}",
    ],
)
def test_a_number_of_any_kind_is_right_and_a_function_however_it_is_written(answer, monkeypatch):
    amdahl = cell(answer.format("1 / (1 - share + share / workers)"), monkeypatch)["amdahl"]
    checklist = kit.check("00", amdahl=amdahl)
    assert checklist, checklist


@pytest.mark.parametrize(
    ("answer", "advice"),
    [
        ("{(0.5, 1): 1, (1, 4): 4, (0, 8): 1, (0.9, 10): 5.263, (0.9, 10**6): 10}[share, workers]", "raises"),
        ("float('nan')", "should be 1"),
        ("True", "should be a number"),
        ("'1'", "should be a number"),
    ],
)
def test_a_table_of_the_points_that_are_asked_or_no_number_is_wrong(answer, advice):
    checklist = rows("00", AMDAHL.format(answer))
    assert any(advice in row.advice for row in checklist if row.right is False), checklist


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("import torch\n", "import torch\n    from torch import save\n"),
        (
            "model.module.state_dict()",
            "{n.removeprefix('module.'): v for n, v in model.state_dict().items()}",
        ),
        ("return correct", "torch.distributed.barrier(); return correct.item()"),
    ],
)
def test_the_end_of_a_training_may_be_written_in_several_ways(old, new):
    source = FINISH.replace(old, new).replace("torch.save", "save" if "save" in new else "torch.save")
    assert (checklist := rows("06", source)), checklist


IMAGE_FOLDER = """
    from torchvision.datasets import ImageFolder
    from torchvision.transforms import v2
    import torch

    class Pictures(ImageFolder):
        def __init__(self, root):
            tensor = [v2.Grayscale(), v2.ToImage(), v2.ToDtype(torch.float32, scale=True)]
            super().__init__(root, transform=v2.Compose(tensor))
"""


def test_torchvisions_image_folder_is_right():
    assert (checklist := rows("04", IMAGE_FOLDER)), checklist


def test_a_class_without_methods_has_a_source(monkeypatch):
    text = textwrap.dedent(IMAGE_FOLDER).split("    def __init__")[0] + "    extensions = ()\n"
    checklist = kit.check("04", dataset=cell(text, monkeypatch)["Pictures"])
    assert [row.right for row in checklist][:2] == [True, True], checklist


def test_a_checkpoint_may_be_loaded_in_several_ways_and_a_rank_that_does_not_take_part_is_named(monkeypatch):
    assert (checklist := rows("23", RESUME_BY_STATEFUL)), checklist
    monkeypatch.setattr("trainyard_kit.exercises.checks.resume.SECONDS", 6)
    alone = RESUME.replace(
        "checkpoint.load(", "__import__('torch').distributed.get_rank() or checkpoint.load("
    )
    first, *rest = rows("23", alone)
    assert "all ranks call" in first.advice
    assert not any(row.right for row in rest)


UNEVEN = """
    def train(state, images, rank, world_size, batch):
        for step in range(state["step"], len(images) // batch):
            whole, n = images[step * batch : (step + 1) * batch], batch // world_size
            yield whole[rank * n : (rank + 1) * n]
            state["step"] = step + 1
"""


def test_a_loop_that_loses_the_rest_of_a_division_is_refused_and_arrays_are_images():
    lost = {row.name: row.advice for row in rows("08", UNEVEN) if row.right is False}
    assert any("12 // 5 leaves a remainder" in advice for advice in lost.values()), lost
    for array in ("__import__('numpy').array(images)", "__import__('torch').tensor(images)"):
        assert (checklist := rows("08", ELASTIC.replace("images[step", f"{array}[step"))), checklist


def stubs():
    """List the number and the source of each notebook's exercise, as a learner finds it."""
    stub_cells = []
    for path in sorted((ROOT / "notebooks").glob("[0-9][0-9]_*.ipynb")):
        for part in json.loads(path.read_text())["cells"]:
            source = "".join(part["source"])
            if "exercise" in part["metadata"].get("tags", ()) and "kit.check(" in source:
                stub_cells.append((path.name[:2], source))
    return stub_cells


WITH_MORE = ("01", "03", "05", "22")  # need a cluster or the notebook's imports
ALONE = [stub for stub in stubs() if "cluster.kubectl" not in stub[1] and stub[0] not in WITH_MORE]


DEALT = {"seed": 1, "nodes": 4}  # by the cell of parameters


@pytest.mark.parametrize(("notebook", "source"), ALONE, ids=[number for number, _ in ALONE])
def test_nothing_of_an_untouched_stub_is_right(notebook, source, monkeypatch):
    text, _, call = source.rpartition("kit.check(")
    first, *rest = eval(f"kit.check({call}", cell(text, monkeypatch) | {"cluster": None, "kit": kit} | DEALT)
    assert (first.right, {row.right for row in rest}) == (False, {None})
    assert "unchanged" in first.advice


# The process apart


def test_a_function_of_a_cell_is_judged_in_a_process_of_its_own(monkeypatch):
    source = SOLUTIONS["00"] + "\nraise SystemExit('only definitions of a cell are executed')"
    monkeypatch.setattr("builtins.SystemExit", RuntimeError)
    with pytest.raises(RuntimeError):
        cell(source, monkeypatch)
    amdahl = cell(SOLUTIONS["00"], monkeypatch)["amdahl"]
    checklist = kit.check("00", amdahl=amdahl)
    assert checklist, checklist
    assert repr(checklist).splitlines()[-1] == "6 of 6 checks pass."


@pytest.mark.parametrize(
    ("answer", "advice"),
    [
        ("while True: pass", "not finished after 2 s of computing"),
        ("__import__('time').sleep(1000)", "not finished"),
        ("__import__('os')._exit(7)", "exited with status 7"),
        ("raise ValueError('no')", "raises ValueError: no"),
        ("return undefined", "name 'undefined' is not defined"),
    ],
)
def test_code_that_never_returns_or_breaks_the_process_is_named(answer, advice, monkeypatch):
    monkeypatch.setattr(exercises.load("00"), "seconds", 2 if "not finished" in advice else 20)
    monkeypatch.setattr("trainyard_kit.exercises.sandbox.WAITING", 3)
    amdahl = cell(f"def amdahl(share, workers):\n    {answer}", monkeypatch)["amdahl"]
    first, *rest = kit.check("00", amdahl=amdahl)
    assert advice in first.advice
    assert not any(row.right for row in rest)


def test_an_answer_leaves_no_temporary_files_even_if_it_ends_the_process(monkeypatch, tmp_path):
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr(tempfile, "tempdir", None)  # which TMPDIR then sets
    source = (
        "def amdahl(share, workers):\n    __import__('tempfile').mkstemp()\n    __import__('os')._exit(7)"
    )
    first, *_ = kit.check("00", amdahl=cell(source, monkeypatch)["amdahl"])
    assert "status 7" in first.advice
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("nonsense", [None, 3.0, "def amdahl(): pass", len])
def test_what_is_no_function_is_named(nonsense):
    first, *_ = kit.check("00", amdahl=nonsense)
    assert first.right is False
    assert "write" in first.advice


def test_the_arguments_of_a_check_are_named():
    with pytest.raises(BadInput, match="(?s)99.*one of 00, 01"):
        kit.check("99")
    with pytest.raises(BadInput, match=r'kit.check\("00", amdahl=amdahl\)'):
        kit.check("00", function=print)


def test_each_notebook_has_an_exercise_to_write():
    numbers = {path.name[:2] for path in (ROOT / "notebooks").glob("[0-9][0-9]_*.ipynb")}
    assert {key[:2] for key in exercises.EXERCISES} == numbers
