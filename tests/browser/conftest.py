"""What the tests in a browser share: a browser without windows, a JupyterLab of its own, a page in it.

Where there is no browser these tests are skipped, and say so, unless TRAINYARD_NEEDS_BROWSER tells that they
must run, as it does in continuous integration.
"""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from contextlib import contextmanager

import pytest
from browser import find
from playwright.sync_api import sync_playwright

from .pages import PATIENCE, ROOT, SECONDS

# No questions at the start; nothing is saved unasked; cells that are far away are there all the same;
# a kernel has no subshells that are still being made when its notebook is closed.
SETTINGS = {
    "docmanager-extension/plugin": {"autosave": False},
    "apputils-extension/kernels-settings": {"commsOverSubshells": "disabled"},
    "apputils-extension/notification": {"fetchNews": "false", "checkForUpdates": False},
    "notebook-extension/tracker": {"windowingMode": "none"},
}


@pytest.fixture(scope="module")
def chromium():
    """A browser without windows."""
    path = find()
    if path is None:
        missing = "the notebooks in a browser are NOT TESTED: there is none; tools/browser.py --install"
        (pytest.fail if os.environ.get("TRAINYARD_NEEDS_BROWSER") else pytest.skip)(missing)
    with sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=path, args=["--no-sandbox"])  # root has no other way
        yield browser
        browser.close()


@pytest.fixture(scope="module")
def lab(state_home, tmp_path_factory):
    """A JupyterLab of its own on a copy of the notebooks: the address that opens one, and the folder."""
    home = tmp_path_factory.mktemp("lab")
    for name in ("notebooks", "trainers", "docs/images"):
        shutil.copytree(ROOT / name, home / name, ignore=shutil.ignore_patterns(".ipynb_checkpoints"))
    jupyter = [sys.executable, "-m", "jupyterlab", "--allow-root", "--no-browser", "--ServerApp.port=0"]
    with serve(home, *jupyter, f"--ServerApp.root_dir={home}") as (served, token):
        yield lambda path: f"{served}lab/tree/{path}?token={token}&reset", home


@pytest.fixture(scope="module")
def serve_lab(tmp_path_factory):
    """Start JupyterLab in a folder, by a document's command; its address and token, as it prints them."""
    return lambda folder, *command: serve(tmp_path_factory.mktemp("server"), *command, folder=folder)


@contextmanager
def serve(home, *command, folder=None):
    """Start JupyterLab, with its settings and records in ``home``."""
    for name, values in SETTINGS.items():
        path = home / "settings" / "@jupyterlab" / f"{name}.jupyterlab-settings"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(values))
    folders = ("CONFIG_DIR", "DATA_DIR", "RUNTIME_DIR")
    variables = {f"JUPYTER_{name}": str(home / name.lower()) for name in folders}
    variables |= {"JUPYTERLAB_SETTINGS_DIR": str(home / "settings"), "JUPYTERLAB_WORKSPACES_DIR": str(home)}
    variables |= {"PYTHONPATH": str(ROOT), "PATH": f"{sys.prefix}/bin:{os.environ['PATH']}"}
    # Tests look into the page; people's servers need no more than the command.
    (home / "config_dir").mkdir()
    exposed = {"LabApp": {"expose_app_in_browser": True}}
    (home / "config_dir" / "jupyter_lab_config.json").write_text(json.dumps(exposed))
    environment = {key: value for key, value in os.environ.items() if key != "JUPYTER_TOKEN"} | variables
    with (
        (home / "log").open("w") as log,
        subprocess.Popen(
            command, cwd=folder, env=environment, stdout=log, stderr=log, start_new_session=True
        ) as server,
    ):
        try:
            yield _address(home / "log", server)
        finally:
            os.killpg(server.pid, signal.SIGTERM)
            try:
                server.wait(20)
            except subprocess.TimeoutExpired:
                os.killpg(server.pid, signal.SIGKILL)  # AnyIO may join a thread for ever


def _address(log, server):
    """Read the address and the token that a person would copy."""
    end = time.monotonic() + 3 * PATIENCE  # of a machine that does much else
    while time.monotonic() < end and server.poll() is None:
        if printed := re.search(r"(http://(?:localhost|127\.0\.0\.1):\d+/)\S*\?token=(\w+)", log.read_text()):
            return printed.groups()
        time.sleep(0.1)
    raise AssertionError(f"JupyterLab did not start:\n{log.read_text()[-2000:]}")


@pytest.fixture(scope="module")
def context(chromium):
    """What the pages of a module have in common: the browser's cache, so that JupyterLab is loaded once."""
    with chromium.new_context(viewport={"width": 1280, "height": 1400}) as context:
        yield context


@pytest.fixture
def page(context, tmp_path):
    """A new page; an error in its console fails the test."""
    page, errors = context.new_page(), []
    page.set_default_timeout(PATIENCE * SECONDS)
    page.on("pageerror", lambda error: errors.append(str(error)))
    page.on("console", lambda message: errors.append(message.text) if message.type == "error" else None)
    yield page
    page.screenshot(path=str(tmp_path / "last.png"))
    page.close()
    context.clear_cookies()
    assert not errors
