"""The notebooks in a real browser: JupyterLab runs them by its menu, and the pictures in them live.

Where there is no browser these tests are skipped, and say so, unless TRAINYARD_NEEDS_BROWSER tells that they
must run, as it does in continuous integration. With TRAINYARD_PICTURES=docs/images they also write pictures
there.
"""

import importlib.util
import json
import os
import re
import secrets
import shutil
import subprocess
import sys
import time
from contextlib import contextmanager
from pathlib import Path

import nbformat
import pytest
from nbformat.v4 import new_code_cell, new_notebook
from playwright.sync_api import sync_playwright

import kitlib as kit

ROOT = Path(__file__).parents[2]
PATIENCE = 120
SECONDS = 1000  # a playwright's timeout is in milliseconds
INTERRUPTED = re.compile("Interrupted|KeyboardInterrupt")
PICTURES = os.environ.get("TRAINYARD_PICTURES")
KERNEL = {"name": "python3", "language": "python", "display_name": "Python 3"}

# No questions at the start; and cells that are far away are there all the same.
SETTINGS = {
    "apputils-extension/notification": {"fetchNews": "false", "checkForUpdates": False},
    "notebook-extension/tracker": {"windowingMode": "none"},
}

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


def _browser():
    spec = importlib.util.spec_from_file_location("browser", ROOT / "tools" / "browser.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.find()


@pytest.fixture(scope="module")
def chromium():
    """A browser without windows."""
    path = _browser()
    if path is None:
        missing = "the notebooks in a browser are NOT TESTED: there is none; tools/browser.py --install"
        (pytest.fail if os.environ.get("TRAINYARD_NEEDS_BROWSER") else pytest.skip)(missing)
    with sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=path, args=["--no-sandbox"])  # root has no other way
        yield browser
        browser.close()


@pytest.fixture(scope="module")
def lab(local_cluster, tmp_path_factory):
    """A JupyterLab of its own on a copy of the notebooks: the address that opens one, and the folder."""
    home = tmp_path_factory.mktemp("lab")
    for name in ("notebooks", "trainers"):
        shutil.copytree(ROOT / name, home / name, ignore=shutil.ignore_patterns(".ipynb_checkpoints"))
    for name, values in SETTINGS.items():
        path = home / "settings" / "@jupyterlab" / f"{name}.jupyterlab-settings"
        path.parent.mkdir(parents=True)
        path.write_text(json.dumps(values))
    token, folders = secrets.token_hex(16), ("CONFIG_DIR", "DATA_DIR", "RUNTIME_DIR")
    variables = {f"JUPYTER_{name}": str(home / name.lower()) for name in folders}
    variables |= {"JUPYTERLAB_SETTINGS_DIR": str(home / "settings"), "JUPYTER_TOKEN": token}
    variables |= {"JUPYTERLAB_WORKSPACES_DIR": str(home / "workspaces"), "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-m", "jupyterlab", "--no-browser", "--allow-root", "--ServerApp.port=0"]
    with (
        (home / "log").open("w") as log,
        subprocess.Popen(
            [*command, f"--ServerApp.root_dir={home}"], env=os.environ | variables, stdout=log, stderr=log
        ) as server,
    ):
        try:
            address = _address(home / "runtime_dir", home / "log", server)
            yield lambda path: f"{address}lab/tree/{path}?token={token}&reset", home
        finally:
            server.terminate()


def _address(folder, log, server):
    end = time.monotonic() + PATIENCE
    while time.monotonic() < end and server.poll() is None:
        for record in folder.glob("jpserver-*.json"):
            if (text := record.read_text()).endswith("}\n") or text.endswith("}"):
                return json.loads(text)["url"]
        time.sleep(0.1)
    raise AssertionError(f"JupyterLab did not start:\n{log.read_text()[-2000:]}")


@pytest.fixture
def page(chromium, tmp_path):
    """A new page; an error in its console fails the test."""
    context = chromium.new_context(viewport={"width": 1280, "height": 1400})
    page, errors = context.new_page(), []
    page.set_default_timeout(PATIENCE * SECONDS)
    page.on("pageerror", lambda error: errors.append(str(error)))
    page.on("console", lambda said: errors.append(said.text) if said.type == "error" else None)
    yield page
    page.screenshot(path=str(tmp_path / "last.png"))
    context.close()
    assert not errors


def write_notebook(home, name, *cells):
    notebook = new_notebook(cells=[new_code_cell(each) for each in cells], metadata={"kernelspec": KERNEL})
    nbformat.write(notebook, home / "notebooks" / name)
    return f"notebooks/{name}"


def with_parameters(home, name, **values):
    """Change a copied notebook's parameters as papermill does: by a cell behind them."""
    path = home / "notebooks" / name
    notebook = nbformat.read(path, as_version=4)
    known = next(i for i, cell in enumerate(notebook.cells) if "parameters" in cell.metadata.get("tags", []))
    given = [
        f"{key} = {value!r}" for key, value in values.items() if f"{key} =" in notebook.cells[known].source
    ]
    notebook.cells.insert(known + 1, new_code_cell("\n".join(given)))
    nbformat.write(notebook, path)
    return f"notebooks/{name}"


def open_notebook(page, url):
    page.goto(url)
    page.locator(".jp-NotebookPanel .jp-Cell").first.wait_for()
    page.locator("text=Python 3 (ipykernel) >> visible=true").first.wait_for()
    page.wait_for_function(
        "!document.querySelector('.jp-Notebook-ExecutionIndicator[data-status=connecting]')"
    )


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


def until(page, look, what):
    end = time.monotonic() + PATIENCE
    while not (seen := look()):
        assert time.monotonic() < end, f"{what} took longer than {PATIENCE} s"
        page.wait_for_timeout(100)
    return seen


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
        for each in local_cluster.runs():
            local_cluster.run(each["run"]).delete()


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
        usage, one, other = (page.locator(".ty-watch").nth(index) for index in range(3))
        for each in (one, other):
            each.scroll_into_view_if_needed()
            check_lives(page, each)
        assert "4 of 4" in usage.inner_text()
        figure = usage.locator(".u-legend .u-value").nth(1)
        until(page, lambda: figure.inner_text().endswith("%"), "a figure of the CPU")
        picture(page, usage, "watch-cluster.png")

        menu(page, "Settings", "Theme", "JupyterLab Dark")
        until(page, lambda: one.get_attribute("data-theme") == "dark", "the dark theme")
        check_lives(page, one)
        picture(page, one, "watch-run-dark.png")
        picture(page, usage, "watch-cluster-dark.png")
        menu(page, "Settings", "Theme", "JupyterLab Light")

        page.set_viewport_size({"width": 760, "height": 1200})
        until(page, lambda: one.evaluate("e => e.scrollWidth <= e.clientWidth"), "a narrow page")
        canvas = one.locator("canvas").first
        until(page, lambda: canvas.bounding_box()["width"] <= one.bounding_box()["width"], "a narrow chart")

        one.locator(".ty-plot").first.focus()
        page.keyboard.press("Home")
        legend = one.locator(".u-legend .u-value").first
        until(page, lambda: legend.inner_text() == "0", "the cursor at the first step")
        assert one.locator(".ty-plot").first.get_attribute("aria-label").startswith("Loss by rank: 4 ranks")
        assert "Run reporting" in one.locator("[role=status]").text_content()
        menu(page, "Kernel", "Shut Down Kernel")


def figure_shown(watch, name):
    """Return one of the widget's figures, as a number; 0 before there is any."""
    words = watch.locator(".ty-figures").inner_text().split("\n")
    return int(words[words.index(name) + 1].replace(",", "")) if name in words else 0


def test_buttons_of_the_lab_kill_a_rank_and_scale_and_the_timeline_shows_it(page, lab, local_cluster):
    url, home = lab
    flags = {"epochs": 2000, "step_seconds": 0.1, "log_every": 1}
    job = kit.TorchElastic(ROOT / "trainers" / "digits_elastic.py", nodes=2, name="pressed", args=flags)
    run = kit.launch(job, cluster=local_cluster)
    cells = (f"import kitlib as kit\nrun = kit.connect({local_cluster.name!r}).run('pressed')", "run.lab()")
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
