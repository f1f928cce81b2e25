"""The rules that every notebook keeps, held against the files as they are stored."""

import builtins
import dis
import math
import re
import statistics
import sys
from copy import copy
from functools import cache
from pathlib import Path
from types import CodeType

import nbformat
import pytest

from trainyard_kit.workshop.notebook_reset import BY_KUBECTL, ORDER

ROOT = Path(__file__).parents[2]
sys.path.append(str(ROOT / "tools"))  # as it is for a program that lies there
import day_sheet  # noqa: E402
import report  # noqa: E402
from solutions import fold, unfold  # noqa: E402
from store_outputs import MAX_BYTES, TYPES, digest  # noqa: E402

NOTEBOOKS = sorted((ROOT / "notebooks").glob("[0-9][0-9]_*.ipynb"))
# Published recipes and accounts: an exercise, but not all parts of a lesson.
APPENDICES = ("20_cloud_accounts", "21_elastic_from_a_bucket", "22_published_commands")
PARTS = ("The question", "Exercise", "When it goes wrong", "What just happened?", "On a cloud", "Clean up")
TRAINING = ("05", "06", "07", "08", "09", "10", "11", "12", "14", "15", "23")
CHECKED = "nbval-check-output"
MAX_CELLS, MEDIAN_LINES, WORDS = 40, 3, range(800, 1801)


@pytest.fixture(params=NOTEBOOKS, ids=lambda path: path.stem)
def path(request):
    """Each notebook's file in turn."""
    return request.param


@cache
def stored(path):
    """Read a notebook, once for all tests, and check it against the format's schema."""
    document = nbformat.read(path, as_version=nbformat.NO_CONVERT)
    nbformat.validate(document)
    return document


@pytest.fixture
def notebook(path):
    """Each notebook in turn; its solutions as code."""
    return unfold(copy(stored(path)))


@pytest.fixture
def lesson(path):
    """Skip an appendix, which has an exercise but not all parts of a lesson."""
    if path.stem in APPENDICES:
        pytest.skip("an appendix is no whole lesson")


def in_order(paths):
    """List notebooks as a learner reads them: by number, but for those that say which one they follow."""
    course = []
    for path in paths:
        earlier = stored(path).metadata.trainyard.get("follows")
        place = [one.stem for one in course].index(earlier) + 1 if earlier else len(course)
        course.insert(place, path)
    return course


@pytest.fixture
def number(path):
    """The notebook's number, as text: ``05``."""
    return path.stem[:2]


def code_cells(notebook):
    return [cell for cell in notebook.cells if cell.cell_type == "code"]


def sources(notebook):
    return [cell.source for cell in notebook.cells]


def tags(cell):
    return cell.metadata.get("tags", [])


def to_be_written(cells, number):
    """Return the place of the cell in which the learner writes: it ends with ``kit.check("04", …)``."""
    call, numbers = f'kit.check("{number}", ', range(len(cells))
    (place,) = (
        index for index in numbers if call in cells[index].source and "exercise" in tags(cells[index])
    )
    return place


def sections(notebook):
    """List the sections: title, text, and the sources of the code cells."""
    parts = [["", "", []]]
    for cell in notebook.cells:
        headings = list(re.finditer(r"^## (.*)", cell.source, flags=re.MULTILINE))
        if cell.cell_type == "code":
            parts[-1][2].append(cell.source)
        elif headings:
            parts.append([headings[-1][1], cell.source[headings[-1].start() :], []])
    return parts


def test_notebooks_have_their_places_in_the_course():
    assert [path.stem[:2] for path in NOTEBOOKS] == [f"{number:02}" for number in range(len(NOTEBOOKS))]
    assert {"00_start", "13_clean_up", *APPENDICES} <= {path.stem for path in NOTEBOOKS}


def test_the_readme_and_both_tables_of_the_guide_have_a_row_for_each_notebook():
    numbers = [path.stem[:2] for path in NOTEBOOKS]
    linked = re.findall(r"\(notebooks/(\d\d)_", (ROOT / "README.md").read_text("utf-8"))
    assert sorted(set(linked)) == numbers
    guide = (ROOT / "docs/instructors-guide.md").read_text("utf-8")
    for heading in ("### Minutes by section", "## Talking points"):
        section = guide.partition(f"\n{heading}\n")[2].partition("\n## ")[0]
        assert re.findall(r"^\| (\d\d) \|", section, re.MULTILINE) == numbers, heading


def test_the_first_cell_says_goal_time_cost_what_is_needed_and_what_is_learnt(notebook):
    first = notebook.cells[0]
    assert first.cell_type == "markdown"
    assert re.match(r"# .+\n\nThe goal: ", first.source)
    rows = re.findall(r"^\| ([^|]+) \| .+ \|$", first.source, flags=re.MULTILINE)
    assert rows == ["---", "Time", "Cost", "Before you start", "You will be able to"]
    assert re.search(r"(?m)^\| Time \| \d+ minutes for you; \w+ for the machine", first.source)


def test_the_minutes_are_those_of_reading_and_of_the_exercises(notebook):
    minutes = day_sheet.minutes(notebook.cells)
    stated = re.search(r"^\| Time \| (\d+) minutes", notebook.cells[0].source, flags=re.MULTILINE)
    assert abs(int(stated[1]) - minutes) <= 5, f"about {minutes:.0f}"


def test_the_machines_minutes_are_those_of_the_metadata(notebook):
    stated = re.search(
        r"^\| Time \| \d+ minutes for you; (\w+) for", notebook.cells[0].source, flags=re.MULTILINE
    )
    minutes = math.ceil(notebook.metadata.trainyard["seconds"] / 60)
    assert stated[1] == ("one", "two", "three", "four", "five", "six")[minutes - 1]


def test_the_second_cell_has_literal_parameters_alone(notebook, number):
    second = notebook.cells[1]
    assert "parameters" in tags(second)
    literal = re.compile(r'\w+ = ("[^"]*"|[\d.]+|True|False|None|{})')
    assert all(literal.fullmatch(line) for line in second.source.splitlines())
    names = [line.split(" = ")[0] for line in second.source.splitlines()]
    assert names[:4] == ["provider", "cluster_name", "nodes", "options"]
    assert "gpus" in names or number not in TRAINING
    assert [cell for cell in notebook.cells if "parameters" in tags(cell)] == [second]


def test_the_third_cell_sets_up_hosted_notebooks(notebook):
    assert tags(notebook.cells[2]) == ["hosted"]
    assert notebook.cells[2].metadata.jupyter.source_hidden
    page = (NOTEBOOKS[0].parents[1] / "docs" / "hosted.md").read_text(encoding="utf-8")
    assert re.findall(r"```python\n(.*?)\n```", page, re.DOTALL) == [notebook.cells[2].source]
    assert notebook.cells[3].source.splitlines()[0] == "import kitlib as kit"


def test_its_parameters_alone_create_its_cluster(notebook):
    calls = re.findall(r"kit\.create_cluster\(provider.*", "\n".join(sources(notebook)))
    expected = "kit.create_cluster(provider, name=cluster_name, nodes=nodes, **options)"
    assert all(call.startswith(expected) for call in calls), calls


@pytest.mark.usefixtures("lesson")
def test_cells_are_few_and_short(notebook, number):
    """The three cells of the exercise in which one writes come on top, and the one of hosted notebooks."""
    cells = notebook.cells[:2] + notebook.cells[3:]
    place = to_be_written(cells, number)
    lesson = cells[: place - 1] + cells[place + 2 :]
    assert 20 <= len(lesson) <= MAX_CELLS
    lengths = [len(cell.source.splitlines()) for cell in lesson if cell.cell_type == "code"]
    assert statistics.median(lengths) <= MEDIAN_LINES


def test_no_cell_is_long_and_the_text_is_neither_thin_nor_long(notebook, path):
    assert max(len(cell.source.splitlines()) for cell in code_cells(notebook)) <= 15
    words = sum(len(cell.source.split()) for cell in notebook.cells if cell.cell_type == "markdown")
    assert words in WORDS or path.stem in APPENDICES and 300 <= words <= 1000


def test_folded_cells_have_no_markdown_in_their_summary(notebook):
    summaries = re.findall(r"<summary>(.*?)</summary>", "\n".join(sources(notebook)))
    assert [summary for summary in summaries if re.search(r"[*`]|\]\(", summary)] == []


def test_outputs_are_those_of_the_stored_sources(notebook):
    executed = notebook.metadata.trainyard.get("executed", "")
    assert executed == digest(notebook), (
        "run tools/run_notebooks.py and tools/store_outputs.py with its number"
    )
    counts = [cell.execution_count for cell in code_cells(notebook) if "solution" not in tags(cell)]
    assert counts == sorted(count or 0 for count in counts) and 0 not in counts
    assert all(cell.outputs for cell in code_cells(notebook) if CHECKED in tags(cell))


def test_pictures_are_stored_and_no_name_of_a_machine(notebook, path):
    outputs = [output for cell in code_cells(notebook) for output in cell.outputs]
    kinds = {kind for output in outputs for kind in output.get("data", {})}
    assert kinds <= set(TYPES) and all(output.output_type != "error" for output in outputs)
    for cell in code_cells(notebook):
        assert "result-picture" not in tags(cell) or any(
            "image/png" in o.get("data", {}) for o in cell.outputs
        )
    text = "\n".join(f"{output.get('text', '')}{output.get('data', '')}" for output in outputs)
    checkout = r"(?<![\w.:/-])/(?!home/you/)(?:[\w.-]+/)+(?:kitlib|localkube|notebooks|trainyard_kit)/"
    private = r"/root/|/home/(?!you)|/tmp/(tmp|trainyard)|PRIVATE KEY|client-key-data|eyJhbGci|<script"
    private = f"{checkout}|{private}"
    assert not re.search(private, text), re.search(private, text)
    assert path.stat().st_size <= MAX_BYTES


def test_the_notebooks_that_report_a_figure_of_the_smoke_test_are_those_of_its_page():
    notebooks = {path.stem[:2]: stored(path) for path in NOTEBOOKS}
    reports = {
        tag: [number for number, book in notebooks.items() if any(tag in tags(c) for c in book.cells)]
        for tag in report.FIGURE_TAGS
    }
    assert reports == {
        "result-accuracy": ["05", "06", "07", "10", "12"],
        "result-images-per-s": ["05", "06"],
        "result-allreduce": ["05"],
    }
    page = (ROOT / "docs" / "smoke-test.md").read_text("utf-8").replace("\n", " ")
    assert "05, 06, 07, 10 and 12 report accuracy, 05 and 06 images/s," in page


def test_nbval_compares_the_outputs_of_at_least_60_cells():
    notebooks = [unfold(copy(stored(path))) for path in NOTEBOOKS]
    assert sum(CHECKED in tags(cell) for notebook in notebooks for cell in code_cells(notebook)) >= 60


def test_an_exercise_is_followed_by_its_solution_which_ends_with_an_assert(notebook):
    cells = notebook.cells
    exercises = [index for index, cell in enumerate(cells) if "exercise" in tags(cell)]
    assert exercises
    for index in exercises:
        solution = cells[index + 1]
        assert "solution" in tags(solution)
        assert solution.source.splitlines()[-1].startswith("assert ")


def test_solutions_are_folded_as_the_tools_fold_them(path, notebook):
    assert [cell.source for cell in stored(path).cells] == [cell.source for cell in fold(notebook).cells]


def test_each_lesson_has_a_written_exercise_that_the_kit_checks(notebook, number):
    """Two hints come before the cell with the TODO, its solution after it."""
    cells, call = notebook.cells, f'kit.check("{number}", '
    place = to_be_written(cells, number)
    assert "TODO" in cells[place].source
    assert cells[place].source.splitlines()[-1].startswith(call)
    assert call in cells[place + 1].source
    assert cells[place - 1].source.count("<details><summary>") == 2


def loads_and_stores(code):
    """Return the global names that code reads before it sets them, and those it sets."""
    unset, bound = set(), set()
    for step in dis.get_instructions(code):
        if step.opname == "STORE_NAME":
            bound.add(step.argval)
        elif step.opname in ("LOAD_NAME", "LOAD_GLOBAL") and step.argval not in bound:
            unset.add(step.argval)
    inner = [loads_and_stores(constant)[0] for constant in code.co_consts if isinstance(constant, CodeType)]
    return unset | set().union(*inner) - bound, bound


def test_an_exercise_runs_after_the_cells_that_its_text_names(notebook):
    """In a fresh kernel: no name is missing, neither in the exercise nor in a section that it names."""
    for place, (exercise, text, _) in enumerate(sections(notebook)):
        known = {*dir(builtins), "get_ipython", "display"}
        for title, _, cells in sections(notebook)[: place + 1] if exercise.startswith("Exercise") else []:
            for source in cells if title in ("", "The question", exercise) or f"*{title}*" in text else []:
                unset, bound = loads_and_stores(compile(source, title, "exec"))
                assert not unset - known, (
                    f"{exercise}: {sorted(unset - known)} in {title or 'the set-up cells'}"
                )
                known |= bound


@pytest.mark.usefixtures("lesson")
def test_every_part_of_a_lesson_is_there(notebook):
    text = "\n".join(cell.source for cell in notebook.cells if cell.cell_type == "markdown")
    for part in PARTS:
        assert re.search(rf"^## {re.escape(part)}", text, flags=re.MULTILINE), part
    assert "Review questions" in text


@pytest.mark.usefixtures("lesson")
def test_errors_are_provoked_where_it_goes_wrong(notebook):
    """Three of them; a cell may provoke two."""
    assert [len(cells) >= 2 for title, _, cells in sections(notebook) if title == "When it goes wrong"] == [
        True
    ]


def test_it_ends_with_cleaning_up_and_a_link_to_the_next(notebook, path):
    *_, heading, clean_up, link = notebook.cells
    assert "## Clean up" in heading.source
    assert clean_up.cell_type == "code"
    course = in_order(NOTEBOOKS)
    following = course[(course.index(path) + 1) % len(course)]  # the last leads to the first
    assert f"]({following.name})" in link.source


def test_files_that_cells_name_beside_the_notebooks_are_there(notebook):
    text = "\n".join(cell.source for cell in code_cells(notebook))
    for target in re.findall(r"\"(\.\./[\w/.-]+\.(?:py|yaml))\"", text):
        assert (NOTEBOOKS[0].parent / target).exists(), target


def test_nothing_is_installed_or_pasted(notebook, number):
    text = "\n".join(cell.source for cell in code_cells(notebook))
    lesson = [cell for cell in code_cells(notebook) if not {"solution", "hosted"} & set(tags(cell))]
    done = "\n".join(cell.source for cell in lesson)
    assert "pip install" not in done  # a solution may write one into a Dockerfile
    if number != "07":  # which sends a function of the notebook
        assert "loss.backward" not in text, "show training code from trainers/"
    assert not re.search(r"^\s*[!%]", text, flags=re.MULTILINE), "no shell escapes and no magics"


def test_it_lists_what_it_makes_so_that_it_can_be_undone(notebook, number):
    """``trainyard reset NN`` deletes what the metadata ``trainyard.makes`` lists: ``run/digits`` …

    What is made by kubectl has the label ``trainyard/notebook=NN``: by it the kit knows it.
    """
    kinds = {product.partition("/")[0] for product in notebook.metadata.trainyard.makes}
    assert all(re.fullmatch(r"[a-z]+/[a-z0-9.-]+", product) for product in notebook.metadata.trainyard.makes)
    assert kinds <= set(ORDER), f"trainyard reset knows {', '.join(ORDER)}"
    if kinds & set(BY_KUBECTL):
        assert re.search(rf"trainyard/notebook['\"]?[=:\]]+ ?['\"]?{number}", "\n".join(sources(notebook)))


def test_metadata_names_no_machine_and_cells_have_ids_of_their_own(notebook):
    ids = {cell.id for cell in notebook.cells}
    assert (notebook.nbformat, notebook.nbformat_minor >= 5, len(ids)) == (4, True, len(notebook.cells))
    assert notebook.metadata.kernelspec.name == "python3"
    assert set(notebook.metadata) == {"kernelspec", "language_info", "trainyard"}
    assert "version" not in notebook.metadata.language_info
    assert all(cell.metadata.keys() <= {"tags", "jupyter", "trainyard"} for cell in notebook.cells)
