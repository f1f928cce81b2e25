"""Answers that are right, or wrong, in an unusual way."""

import os
import sys
import tomllib
from pathlib import Path

import pytest

import kitlib as kit
from kitlib.display.progress import Progress
from trainyard_kit.exercises import sandbox
from trainyard_kit.exercises.checks import resume
from trainyard_kit.exercises.checks.dataset import Entries

from .test_exercises import DATASET, FLAGS, INSTRUCTION, SOLUTIONS, cell, dockerfile, rows

VARIANTS = tomllib.loads(Path(__file__).with_name("exercise_variants.toml").read_text("utf-8"))


@pytest.mark.parametrize(("notebook", "old", "new"), VARIANTS["right"])
def test_an_answer_may_be_right_in_an_unusual_way(notebook, old, new):
    assert (checklist := rows(notebook, SOLUTIONS[notebook].replace(old, new) if old else new)), checklist


@pytest.mark.parametrize(("notebook", "old", "new", "advice"), VARIANTS["wrong"])
def test_an_answer_that_is_wrong_in_an_unusual_way_is_told_why(notebook, old, new, advice):
    checklist = rows(notebook, SOLUTIONS[notebook].replace(old, new) if old else new)
    assert any(advice in row.advice for row in checklist if row.right is False), checklist


def test_ranks_that_compute_for_ever_are_named(monkeypatch):
    resume.saved()  # which may take longer
    monkeypatch.setattr(resume, "SECONDS", 6)
    loop = SOLUTIONS["23"].replace("weights, moments = get_state_dict(model, optimizer)", "while True: pass")
    first, *_ = rows("23", loop)
    assert "look for a loop that does not end" in first.advice


@pytest.mark.parametrize(
    ("old", "new", "advice"),
    [
        ("self.items[index]", "self.items[max(0, index - 1)]", "use its index"),
        (" / 255", " / 255 * 0.5", "not a byte divided by 255"),
    ],
)
def test_what_follows_from_a_mistake_is_not_called_one_of_its_own(old, new, advice):
    wrong_rows = [row for row in rows("04", DATASET.replace(old, new)) if row.right is False]
    assert [advice in row.advice for row in wrong_rows] == [True], wrong_rows


def interrupt(*_, **__):
    raise KeyboardInterrupt


@pytest.mark.parametrize(
    ("place", "notebook", "answer"),
    [
        ("trainyard_kit.exercises.sandbox.run", "12", SOLUTIONS["12"]),
        ("trainyard_kit.exercises.checks.ddp.train", "05", None),
    ],
)
def test_an_interrupt_is_one_line_and_not_the_kits_own_frames(place, notebook, answer, monkeypatch, tmp_path):
    monkeypatch.setattr(place, interrupt)
    program = tmp_path / "program.py"
    program.write_text("print()")
    written = {"accuracies": cell(answer, monkeypatch)["accuracies"]} if answer else {"program": program}
    with pytest.raises(KeyboardInterrupt) as caught:
        kit.check(notebook, **written)
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


def test_modules_of_other_cells_and_what_a_definition_uses_of_its_own_are_there(monkeypatch):
    source = SOLUTIONS["12"].replace(
        "np.sum(matrices, axis=0)", "pd.DataFrame(np.sum(matrices, SIZE - 2)).values"
    )
    source = "    SIZE = len([1, 2])\n" + source
    namespace = cell(source, monkeypatch)
    namespace["pd"] = __import__("pandas")
    assert (checklist := kit.check("12", accuracies=namespace["accuracies"])), checklist


def test_a_package_without_its_requirements_leaves_torch_as_it_is():
    flags = FLAGS.partition(" --constraint")[0]
    assert kit.check("03", dockerfile=dockerfile(f"RUN pip install {flags} --no-deps einops==0.8.2"))


@pytest.mark.parametrize(
    ("instruction", "advice"),
    [
        (f"{INSTRUCTION} || true", "if pip fails"),
        (f"{INSTRUCTION}; echo done", "if pip fails"),
        (INSTRUCTION.replace("install", "install --dry-run"), "with --dry-run"),
        (f"{INSTRUCTION} && pip uninstall -y einops", "removes einops again"),
        (INSTRUCTION.replace("install", "install --target=/opt/more"), "with --target"),
        (f"{INSTRUCTION}; rm -rf /root/.cache/pip", "if pip fails"),
        (f"{INSTRUCTION.replace('--no-cache-dir ', '')} && rm -rf /tmp/pip", "pass --no-cache-dir"),
        (f"{INSTRUCTION.replace('--no-cache-dir ', '')} && rm /root/.cache/pip", "pass --no-cache-dir"),
    ],
)
def test_an_instruction_that_may_leave_the_image_without_the_package_is_refused(instruction, advice):
    checklist = kit.check("03", dockerfile=dockerfile(instruction))
    assert any(advice in row.advice for row in checklist if row.right is False), checklist


@pytest.mark.parametrize(
    "instruction",
    [
        INSTRUCTION.replace("install", "--no-input install -q"),
        f"{INSTRUCTION.replace('--no-cache-dir ', '')} && pip cache purge",
        f"{INSTRUCTION.replace('--no-cache-dir ', '')} && rm -rf /root/.cache/pip",
        f"{INSTRUCTION.replace('--no-cache-dir ', '')} && rm -r -f ~/.cache/",
        INSTRUCTION.replace("--no-cache-dir ", "").replace("install", "--no-cache-dir install"),
        INSTRUCTION.replace("einops", "Einops"),
        f"RUN echo einops==0.8.2 > r.txt && {INSTRUCTION[4:].replace('einops==0.8.2', '-r r.txt')}",
        f"RUN /usr/bin/{INSTRUCTION[4:]}",  # which must not run this machine's pip
        f"RUN bash -c '{INSTRUCTION[4:]}'",
    ],
)
def test_options_may_come_before_install_and_downloads_be_purged_in_the_same_layer(instruction):
    assert (checklist := kit.check("03", dockerfile=dockerfile(instruction))), checklist


def test_labels_in_the_order_of_a_file_system_are_refused_though_this_one_sorts(monkeypatch):
    scandir = os.scandir
    monkeypatch.setattr(
        os, "scandir", lambda path: Entries(sorted(scandir(path), key=lambda entry: entry.name))
    )
    source = DATASET.replace("sorted(each for each in Path(root).iterdir())", "list(Path(root).iterdir())")
    source = source.replace("return len", "self.items.sort()\n            return len")
    checklist = rows("04", source)
    assert any("files and folders" in row.advice for row in checklist if row.right is False), checklist
