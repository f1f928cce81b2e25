"""The table of a cloud cluster's steps, live in a browser. The cloud is simulated, and its time runs fast."""

import json

import pytest

from ..cloud.aws import FakeAmazon
from ..cloud.aws.machines import nodes_of
from ..cloud.backing_cluster import BackingCluster
from .pages import menu, open_notebook, until, write_notebook

NAME, REGION = "shown", "us-west-2"
SLOW = 400  # seconds, on a machine that does much else
THEIRS, OURS = 60, 10  # how fast time runs at the cloud, and for the table
HOURS = 300  # time runs so fast that a cluster of four hours would end before the test does
ENVIRONMENT = {
    "AWS_ACCESS_KEY_ID": "AKIATESTTESTTESTTEST",
    "AWS_SECRET_ACCESS_KEY": "secret",
    "AWS_DEFAULT_REGION": REGION,
    "AWS_EC2_METADATA_DISABLED": "true",
    "AWS_MAX_ATTEMPTS": "1",
    "AWS_CONFIG_FILE": "/nowhere/config",
    "AWS_SHARED_CREDENTIALS_FILE": "/nowhere/credentials",
}
CLOCK = f"""
import contextlib, os, queue, time
import kitlib as kit
from clouds.reconciler import reconcile
from clouds.reconciler.clock import Clock

class Fast(Clock):
    tick = {OURS / 2}

    def now(self):
        return time.monotonic() * {OURS}

    def receive(self, inbox, *, until, requests):
        with contextlib.suppress(queue.Empty):
            return inbox.get(timeout=max(0.0, min(until - self.now(), self.tick)) / {OURS})

reconcile.Clock = Fast
"""
CREATE = f"""cluster = kit.create_cluster(
    "eks", name="{NAME}", nodes=1, region="{REGION}", hours={HOURS}, confirm=True)"""

pytestmark = [pytest.mark.cluster, pytest.mark.slow, pytest.mark.long, pytest.mark.timeout(900)]


@pytest.fixture
def amazon(state_home):
    """A fake Amazon whose time stands still as yet, with a real cluster behind the one that is made."""
    with FakeAmazon() as amazon, BackingCluster(amazon.token_webhook(NAME), nodes=2) as behind:
        amazon.backing(NAME, endpoint=behind.endpoint, ca=behind.ca, on_nodes=nodes_of(behind))
        yield amazon
        behind.settled()


def rows_of(page, number=0):
    """Return the rows of a table: the phase, and the words of each cell."""
    look = """number => [
        ...document.querySelectorAll(".ty-steps")[number]?.querySelectorAll("tbody tr") ?? []]
        .map(row => [row.dataset.phase, ...[...row.cells].map(cell => cell.innerText)])"""
    return page.evaluate(look, number)


def step(page, name):
    """Return what the table says of a step: phase, state, expected, took."""
    for phase, _, called, state, expected, took, *_ in rows_of(page):
        if called == name:
            return phase, state, expected, took
    return "", "", "", ""


def alignment(page):
    """Return how the names of the steps are aligned, by the style that wins."""
    look = """() => {
        const cell = document.querySelector(".ty-steps tbody td:nth-child(2)");
        return cell && getComputedStyle(cell).textAlign; }"""
    return page.evaluate(look)


def fits(page):
    """Return whether the table is as wide as its place, or less; it is a new element with each second."""
    look = """() => {
        const table = document.querySelector(".ty-steps table"), place = table?.closest(".jp-OutputArea");
        return place && table.getBoundingClientRect().right <= place.getBoundingClientRect().right; }"""
    return page.evaluate(look)


def test_steps_live_in_the_notebook_are_stopped_by_its_button_and_go_on(page, lab, amazon):
    url, home = lab
    given = json.dumps(ENVIRONMENT | {"AWS_ENDPOINT_URL": amazon.endpoint})
    cells = (f"{CLOCK}\nos.environ.update({given})", CREATE, "cluster.delete()")
    open_notebook(page, url(write_notebook(home, "steps.ipynb", *cells)))
    menu(page, "Run", "Run All Cells")
    until(page, lambda: step(page, "cluster")[0] == "runs", "the cluster's turn")
    assert step(page, "cluster")[2] == "9 min"
    took = step(page, "cluster")[3]
    until(page, lambda: step(page, "cluster")[3] != took, "another second")
    until(page, lambda: alignment(page) == "left", "to align it otherwise than a notebook's own tables")
    page.set_viewport_size({"width": 760, "height": 1200})
    until(page, lambda: fits(page), "a narrow table")
    page.locator(".jp-ToolbarButtonComponent[data-command='notebook:interrupt-kernel']").first.click()
    page.locator(".jp-OutputArea-output", has_text="stopped creating").first.wait_for()
    assert {row[0] for row in rows_of(page)} <= {"done", "left"}

    amazon.clock.run(THEIRS)
    page.set_viewport_size({"width": 1280, "height": 1400})
    menu(page, "Run", "Run All Cells")
    until(page, lambda: {row[0] for row in rows_of(page)} == {"done"}, "the last step", patience=SLOW)
    begun = [each for each in amazon.calls if each.action == "eks:CreateCluster" and each.outcome == "ok"]
    assert len(begun) == 1, "it went on where it was"
    until(page, lambda: {row[0] for row in rows_of(page, 1)} == {"done"}, "the deletion", patience=SLOW)
    assert amazon.left() == []
    menu(page, "Kernel", "Shut Down Kernel")
