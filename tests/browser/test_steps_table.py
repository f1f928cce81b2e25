"""The table of an operation's steps at a cloud, live in a browser."""

import pytest

from .pages import menu, open_notebook, until, write_notebook

WORK = """from trainyard_kit.clouds.steps import Phase, Steps
with Steps('cluster "lab"') as steps:
    for name, seconds in {"network": 2, "cluster": 540, "nodes": 180}.items():
        steps.update(name, Phase.WAITS, usual=seconds)
    with steps.step("network"):
        steps.sleep(2)
    with steps.step("cluster", "CREATE_IN_PROGRESS"):
        steps.sleep(3600)"""

pytestmark = [pytest.mark.cluster, pytest.mark.slow, pytest.mark.timeout(600)]


def step(page, name):
    """Look up a step in the table: state, usually, took."""
    look = """() => [...document.querySelectorAll(".jp-OutputArea-output table tbody tr")]
        .map(row => [...row.cells].map(cell => cell.innerText))"""
    for called, state, usually, took, *_ in page.evaluate(look):
        if called == name:
            return state, usually, took
    return "", "", ""


def test_steps_are_live_in_the_notebook_and_stopped_by_its_button(page, lab):
    url, home = lab
    open_notebook(page, url(write_notebook(home, "steps.ipynb", WORK)))
    menu(page, "Run", "Run All Cells")
    until(page, lambda: step(page, "cluster")[0] == "runs", "the cluster's turn")
    assert step(page, "network")[0] == "done" and step(page, "nodes")[0] == "waits"
    assert step(page, "cluster")[1] == "9 min"
    took = step(page, "cluster")[2]
    until(page, lambda: step(page, "cluster")[2] != took, "another second")
    page.locator(".jp-ToolbarButtonComponent[data-command='notebook:interrupt-kernel']").first.click()
    until(page, lambda: step(page, "cluster")[0] == "failed", "the stopped step")
    menu(page, "Kernel", "Shut Down Kernel")
