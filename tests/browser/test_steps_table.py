"""The table of an operation's steps at a cloud, live in a browser."""

import pytest

from .pages import menu, open_notebook, until, write_notebook

WORK = """from trainyard_kit.clouds.steps import Phase, Steps
with Steps('cluster "lab"') as steps:
    for name, seconds in {"network": 2, "cluster": 540, "nodes": 180}.items():
        steps.update(name, Phase.WAITING, usual=seconds)
    with steps.step("network"):
        steps.sleep(2)
    with steps.step("cluster", "CREATE_IN_PROGRESS"):
        steps.sleep(3600)"""

pytestmark = [pytest.mark.cluster, pytest.mark.slow, pytest.mark.timeout(600)]


def step(page, name):
    """Look up a step in the table: phase, state, usually, took."""
    look = """() => [...document.querySelector(".ty-steps")?.querySelectorAll("tbody tr") ?? []]
        .map(row => [row.dataset.phase, ...[...row.cells].map(cell => cell.innerText)])"""
    for phase, _, called, state, usually, took, *_ in page.evaluate(look):
        if called == name:
            return phase, state, usually, took
    return "", "", "", ""


def alignment(page):
    """The alignment of the steps' names, by the style that wins."""
    look = """() => {
        const cell = document.querySelector(".ty-steps tbody td:nth-child(2)");
        return cell && getComputedStyle(cell).textAlign; }"""
    return page.evaluate(look)


def fits(page):
    """Whether the table is as wide as its place, or less; it is a new element with each second."""
    look = """() => {
        const table = document.querySelector(".ty-steps table"), place = table?.closest(".jp-OutputArea");
        return place && table.getBoundingClientRect().right <= place.getBoundingClientRect().right; }"""
    return page.evaluate(look)


def test_steps_are_live_in_the_notebook_and_stopped_by_its_button(page, lab):
    url, home = lab
    open_notebook(page, url(write_notebook(home, "steps.ipynb", WORK)))
    menu(page, "Run", "Run All Cells")
    until(page, lambda: step(page, "cluster")[0] == "running", "the cluster's turn")
    assert step(page, "network")[:2] == ("done", "done") and step(page, "nodes")[0] == "waiting"
    assert step(page, "cluster")[2] == "9 min"
    took = step(page, "cluster")[3]
    until(page, lambda: step(page, "cluster")[3] != took, "another second")
    until(page, lambda: alignment(page) == "left", "to align it otherwise than a notebook's own tables")
    page.set_viewport_size({"width": 760, "height": 1200})
    until(page, lambda: fits(page), "a narrow table")
    page.locator(".jp-ToolbarButtonComponent[data-command='notebook:interrupt-kernel']").first.click()
    until(page, lambda: step(page, "cluster")[0] == "failed", "the stopped step")
    menu(page, "Kernel", "Shut Down Kernel")
