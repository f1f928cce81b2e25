"""What ``trainyard quickstart`` draws, and what ``trainyard course`` copies and leaves alone."""

import re
from pathlib import Path

import nbformat
import pytest
from click.testing import CliRunner

from kitlib.display.progress import Progress
from kitlib.display.tracebacks import Line
from kitlib.errors import BadInput
from kitlib.k8s import pods
from trainyard_kit.cli.course import copy_course
from trainyard_kit.cli.main import main
from trainyard_kit.cli.quickstart import HEIGHT, LossPrinter, ProgressPrinter, chart


def columns(drawn):
    return [line.partition("|")[2] for line in drawn.splitlines()]


def test_a_chart_falls_from_its_largest_value_to_the_axis():
    rows = columns(chart([8.0, 4.0, 0.001]))
    assert [row[0] for row in rows] == ["█"] * HEIGHT
    assert [row[1] for row in rows] == [" "] * (HEIGHT // 2) + ["█"] * (HEIGHT // 2)
    assert [row[2] for row in rows] == [" "] * (HEIGHT - 1) + ["▁"]
    assert chart([8.0]).splitlines()[0].split() == ["8", "|█"]


def test_losses_of_a_step_are_averaged_over_the_ranks():
    printer = LossPrinter("digits")
    for rank, loss in ((0, "1.0"), (1, "3.0"), (0, "NaN"), (1, '"large"')):
        line = f'{{"event":"step","time":1,"rank":{rank},"world_size":2,"step":5,"loss":{loss}}}'
        printer.show(rank, Line("", line))
    (drawn,) = printer.above()
    assert drawn.plain == f"    loss\n{chart([2.0], blocks=printer.blocks)}"


LINK = r"\]\((?!https:)([^)#:]+)"
SHOWN = r"[\"']((?:\.\./|scripts/|settings/)[\w./-]+\.\w+)"


def test_files_that_notebooks_name_are_in_the_copy(tmp_path):
    copy_course(tmp_path)
    notebooks = sorted((tmp_path / "notebooks").glob("*.ipynb"))
    named = {
        name
        for path in notebooks
        for cell in nbformat.read(path, as_version=4).cells
        for name in re.findall(LINK if cell.cell_type == "markdown" else SHOWN, cell.source)
    }
    assert len(notebooks) == 26 and len(named) > 40
    missing = {name for name in named if not (tmp_path / "notebooks" / name).exists()}
    assert missing == {"../settings/cifar10.toml"}, "notebook 07 names it to show an error"


def test_a_second_copy_changes_nothing_and_completes_what_is_missing(tmp_path):
    first = copy_course(tmp_path)
    (tmp_path / first[0]).unlink()
    assert copy_course(tmp_path) == [first[0]]
    assert copy_course(tmp_path) == []


def test_changed_files_are_named_and_nothing_is_written(tmp_path):
    copy_course(tmp_path)
    mine, deleted = tmp_path / "notebooks/00_start.ipynb", tmp_path / "trainers/digits_ddp.py"
    mine.write_text("mine")
    deleted.unlink()
    with pytest.raises(BadInput, match="00_start.ipynb"):
        copy_course(tmp_path)
    assert mine.read_text() == "mine" and not deleted.exists()


def test_the_command_says_how_to_open_the_notebooks(tmp_path):
    result = CliRunner().invoke(main, ["course", str(tmp_path / "course")])
    assert result.exit_code == 0, result.output
    ((folder, opened),) = re.findall(r"jupyter lab (?:--allow-root )?(\S+), and open (\S+)", result.output)
    assert Path(folder, opened).is_file()


@pytest.mark.parametrize(("user", "root"), [(0, True), (1000, False)])
def test_root_gets_the_option_without_which_jupyterlab_ends(tmp_path, monkeypatch, user, root):
    monkeypatch.setattr("trainyard_kit.cli.course.os.getuid", lambda: user)
    result = CliRunner().invoke(main, ["course", str(tmp_path / "course")])
    assert ("--allow-root" in result.output) is root


STEP = '{"event":"step","time":1,"rank":0,"world_size":2,"step":5,"steps":9,"loss":1.5,"images_per_s":20}'


@pytest.mark.parametrize("printer", [LossPrinter, ProgressPrinter])
@pytest.mark.parametrize(
    "text", [STEP, '{"event":"eval","time":1,"rank":0,"world_size":2,"accuracy":1}', "hello"]
)
def test_the_quick_start_shows_a_picture_in_place_of_the_log(capsys, printer, text):
    printer("digits").show(0, Line("", text))
    assert capsys.readouterr().out == ""


def test_the_bar_of_the_quick_start_names_no_second_loss():
    printer = LossPrinter("digits")
    printer.add(0, Line("", STEP))
    assert printer.figures == "20 images/s"


def pod(*states):
    return {"status": {"containerStatuses": [{"state": state} for state in states]}}


@pytest.mark.parametrize(
    ("pods_of_run", "seconds"),
    [
        ([], None),
        ([{}], None),
        ([pod({"running": {"startedAt": "2026-01-01T00:00:00Z"}})], None),
        (
            [
                pod(
                    {
                        "terminated": {
                            "startedAt": "2026-01-01T00:00:05Z",
                            "finishedAt": "2026-01-01T00:00:17Z",
                        }
                    }
                ),
                pod(
                    {
                        "terminated": {
                            "startedAt": "2026-01-01T00:00:04Z",
                            "finishedAt": "2026-01-01T00:00:16Z",
                        }
                    }
                ),
            ],
            13.0,
        ),
        ([pod({"terminated": {"exitCode": 1}})], None),
    ],
)
def test_the_time_of_a_run_is_that_of_its_containers(pods_of_run, seconds):
    assert pods.seconds_run(pods_of_run) == seconds


def test_a_result_names_the_time_of_the_run_and_not_that_of_the_wait(caplog):
    with caplog.at_level("INFO", logger="trainyard"):
        Progress("run digits").done("Succeeded", seconds=13.4)
    assert "run digits: Succeeded (13 s)" in caplog.text
