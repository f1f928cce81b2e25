"""How tests use JupyterLab: notebooks that are written, opened, run by the menu, and looked at."""

import os
import time
from pathlib import Path

import nbformat
from nbformat.v4 import new_code_cell, new_notebook

ROOT = Path(__file__).parents[2]
PATIENCE = 120
SECONDS = 1000  # a playwright's timeout is in milliseconds
PICTURES = os.environ.get("TRAINYARD_PICTURES")
KERNEL = {"name": "python3", "language": "python", "display_name": "Python 3"}


def write_notebook(home, name, *cells):
    notebook = new_notebook(cells=[new_code_cell(cell) for cell in cells], metadata={"kernelspec": KERNEL})
    nbformat.write(notebook, home / "notebooks" / name)
    return f"notebooks/{name}"


def with_parameters(home, name, **values):
    """Change a copied notebook's parameters as papermill does: by a cell behind them."""
    path = home / "notebooks" / name
    notebook = nbformat.read(path, as_version=4)
    known = next(i for i, cell in enumerate(notebook.cells) if "parameters" in cell.metadata.get("tags", []))
    parameters = [
        f"{key} = {value!r}" for key, value in values.items() if f"{key} =" in notebook.cells[known].source
    ]
    notebook.cells.insert(known + 1, new_code_cell("\n".join(parameters)))
    nbformat.write(notebook, path)
    return f"notebooks/{name}"


def open_notebook(page, url):
    page.goto(url)
    page.locator(".jp-NotebookPanel .jp-Cell").first.wait_for()
    page.locator("text=Python 3 (ipykernel) >> visible=true").first.wait_for()
    page.locator(".jp-Notebook-ExecutionIndicator[data-status=idle]").first.wait_for(state="attached")


def menu(page, *names):
    """Choose from JupyterLab's menu, as people do."""
    page.get_by_role("menuitem", name=names[0], exact=True).click()
    for name in names[1:-1]:
        page.locator(".lm-Menu-itemLabel", has_text=name).first.hover()
    page.locator(".lm-Menu-itemLabel").get_by_text(names[-1], exact=True).click()


def step_shown(watch):
    """Return the step that the widget's figures name, 0 before the first."""
    words = watch.locator(".ty-figures").inner_text().split("\n")
    return int(words[words.index("step") + 1].replace(",", "")) if "step" in words else 0


def until(page, look, what, *, patience=PATIENCE):
    end = time.monotonic() + patience
    while not (value := look()):
        assert time.monotonic() < end, f"{what} took longer than {patience} s"
        page.wait_for_timeout(100)
    return value


def check_lives(page, watch):
    """Check that the chart is drawn anew while training runs."""
    canvas = watch.locator("canvas").first
    until(page, lambda: step_shown(watch) > 0 and canvas.count(), "the first step")
    before, step = canvas.evaluate("each => each.toDataURL()"), step_shown(watch)
    until(page, lambda: step_shown(watch) > step, "another step")
    until(page, lambda: canvas.evaluate("each => each.toDataURL()") != before, "another picture")


def picture(page, watch, name):
    if PICTURES:
        page.mouse.move(2, 2)
        page.wait_for_timeout(700)
        watch.screenshot(path=str(ROOT / PICTURES / name))


def width_of(locator):
    """Return the width of an element on the page, 0 while it is drawn anew and has none."""
    box = locator.bounding_box()
    return box["width"] if box else 0
