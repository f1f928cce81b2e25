"""The notebooks in a real browser: JupyterLab runs them by its menu, and the pictures in them live.

With TRAINYARD_PICTURES=docs/images these tests also write pictures there.
"""

import re
from contextlib import contextmanager

import pytest

import kitlib as kit

from .pages import (
    PICTURES,
    ROOT,
    check_lives,
    menu,
    open_notebook,
    picture,
    until,
    width_of,
    with_parameters,
    write_notebook,
)

INTERRUPTED = re.compile("Interrupted|KeyboardInterrupt")

# Ranks without torch, quick to start: they report as a trainer does.
TRAINER = """
import json, math, os, time
rank, world = int(os.environ["NODE_RANK"]), 4
for step in range(100_000):
    loss = 2 * math.exp(-step / 80) + 0.1 * math.sin(step * (rank + 1))
    print(json.dumps({"event": "step", "time": time.time(), "rank": rank, "world_size": world,
                      "step": step, "loss": loss, "images_per_s": 900 + 50 * rank}), flush=True)
    sum(range(BUSY * (1 + rank)))
    time.sleep(0.05)
"""

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(1500)]


@pytest.mark.slow
def test_notebook_06_runs_by_its_menu_draws_live_is_interrupted_and_runs_again(page, lab, local_cluster):
    url, home = lab
    path = with_parameters(
        home, "06_data_parallel.ipynb", cluster_name=local_cluster.name, epochs=8, limit=1500
    )
    open_notebook(page, url(path))
    try:
        menu(page, "Run", "Run All Cells")
        watch = page.locator(".ty-watch").filter(has_text="Run cifar10").first
        watch.wait_for()
        watch.scroll_into_view_if_needed()
        check_lives(page, watch)
        menu(page, "Kernel", "Interrupt Kernel")
        # The kit's own error where it was waiting, Python's where a cell was at work.
        page.locator(".jp-OutputArea-output", has_text=INTERRUPTED).first.wait_for()
        menu(page, "Run", "Run All Cells")
        watch.wait_for(state="detached")
        watch.wait_for()
        watch.scroll_into_view_if_needed()
        check_lives(page, watch)
        until(page, lambda: watch.get_attribute("data-finished") == "true", "the end of the run")
        picture(page, watch, "watch-run.png")
    finally:
        menu(page, "Kernel", "Shut Down Kernel")
        for run in local_cluster.runs():
            local_cluster.run(run["run"]).delete()


@contextmanager
def reporting(cluster, home):
    """Launch ranks that report without end."""
    busy = 20_000 if PICTURES else 0  # so that there is something to be seen
    (home / "reporting.py").write_text(TRAINER.replace("BUSY", str(busy)))
    command = ["python", "/trainyard/trainer/reporting.py"]
    pod = {"containers": [{"name": "pytorch", "command": command}], "terminationGracePeriodSeconds": 1}
    job = kit.IndexedJob(home / "reporting.py", nodes=4, name="reporting")
    run = kit.launch(job.patch({"spec": {"template": {"spec": pod}}}), cluster=cluster)
    try:
        yield run
    finally:
        run.delete()


def test_watches_of_run_and_cluster_live_in_several_views_themes_and_widths(page, lab, local_cluster):
    url, home = lab
    cells = (
        f"import kitlib as kit\ncluster = kit.connect({local_cluster.name!r})",
        "usage = cluster.watch()\nusage",
        "watch = cluster.run('reporting').watch()\nwatch",
        "watch  # another view of the same",
    )
    with reporting(local_cluster, home):
        open_notebook(page, url(write_notebook(home, "watches.ipynb", *cells)))
        menu(page, "Run", "Run All Cells")
        until(page, lambda: page.locator(".ty-watch").count() == 3, "three views")
        usage, one_view, other_view = (page.locator(".ty-watch").nth(index) for index in range(3))
        for tab in (one_view, other_view):
            tab.scroll_into_view_if_needed()
            check_lives(page, tab)
        assert "4 of 4" in usage.inner_text()
        figure = usage.locator(".u-legend .u-value").nth(1)
        until(page, lambda: figure.inner_text().endswith("%"), "a figure of the CPU")
        picture(page, usage, "watch-cluster.png")

        menu(page, "Settings", "Theme", "JupyterLab Dark")
        until(page, lambda: one_view.get_attribute("data-theme") == "dark", "the dark theme")
        check_lives(page, one_view)
        picture(page, one_view, "watch-run-dark.png")
        picture(page, usage, "watch-cluster-dark.png")
        menu(page, "Settings", "Theme", "JupyterLab Light")

        page.set_viewport_size({"width": 760, "height": 1200})
        until(page, lambda: one_view.evaluate("e => e.scrollWidth <= e.clientWidth"), "a narrow page")
        canvas = one_view.locator("canvas").first
        until(page, lambda: 0 < width_of(canvas) <= width_of(one_view), "a narrow chart")

        one_view.locator(".ty-plot").first.focus()
        page.keyboard.press("Home")
        legend = one_view.locator(".u-legend .u-value").first
        until(page, lambda: legend.inner_text() == "0", "the cursor at the first step")
        assert (
            one_view.locator(".ty-plot").first.get_attribute("aria-label").startswith("Loss by rank: 4 ranks")
        )
        assert "Run reporting" in one_view.locator("[role=status]").text_content()
        menu(page, "Kernel", "Shut Down Kernel")


def figure_shown(watch, name):
    """Return one of the widget's figures, as a number; 0 before there is any."""
    words = watch.locator(".ty-figures").inner_text().split("\n")
    return int(words[words.index(name) + 1].replace(",", "")) if name in words else 0


@pytest.mark.slow
def test_buttons_of_the_lab_kill_a_rank_and_scale_and_the_timeline_shows_it(page, lab, local_cluster):
    url, home = lab
    flags = {"epochs": 2000, "step_seconds": 0.1, "log_every": 1}
    job = kit.TorchElastic(ROOT / "trainers" / "digits_elastic.py", nodes=2, name="pressed", args=flags)
    run = kit.launch(job, cluster=local_cluster)
    cells = (
        f"import kitlib as kit\nrun = kit.connect({local_cluster.name!r}).run('pressed')",
        "run.dashboard()",
    )
    try:
        open_notebook(page, url(write_notebook(home, "lab.ipynb", *cells)))
        menu(page, "Run", "Run All Cells")
        watch = page.locator(".ty-watch")
        watch.wait_for()
        watch.scroll_into_view_if_needed()
        until(page, lambda: figure_shown(watch, "world size") == 2, "the first rendezvous")
        rounds = figure_shown(watch, "rounds")
        button = page.locator("button:not([disabled])")

        button.and_(page.get_by_title("kill pressed-1")).click()
        page.locator(".ty-lab code", has_text="run.kill(rank=1)").wait_for()
        watch.locator("td", has_text="killed").first.wait_for()
        until(page, lambda: figure_shown(watch, "rounds") > rounds, "another round")
        until(page, lambda: figure_shown(watch, "world size") == 2, "the worker's return")

        for name, size in (("scale down", 1), ("scale up", 2)):
            button.and_(page.get_by_title(name)).click()
            page.locator(".ty-lab code", has_text=f"run.scale({size})").wait_for()
            until(page, lambda size=size: figure_shown(watch, "world size") == size, f"a world of {size}")
        picture(page, page.locator(".ty-lab"), "lab.png")
        page.set_viewport_size({"width": 760, "height": 1200})
        until(page, lambda: watch.evaluate("e => e.scrollWidth <= e.clientWidth"), "a narrow page")
        run.delete()
        until(page, lambda: watch.get_attribute("data-finished") == "true", "the end of the run")
        until(page, lambda: not button.and_(page.get_by_title("kill pressed-0")).count(), "disabled buttons")
        menu(page, "Kernel", "Shut Down Kernel")
    finally:
        run.delete()
