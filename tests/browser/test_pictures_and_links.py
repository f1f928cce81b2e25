"""What notebooks show and link to is there, however JupyterLab was started."""

import shlex
import sys
from pathlib import Path
from urllib.parse import unquote

import nbformat
import pytest
from click.testing import CliRunner

from trainyard_kit import hosted
from trainyard_kit.cli.course import course

from ..rows import slow
from .pages import PATIENCE, ROOT, SECONDS, until

NOTEBOOKS = sorted(path.name for path in (ROOT / "notebooks").glob("*.ipynb"))
# JupyterLab replaces relative links, of which each notebook has one to the next, after it has shown the text.
RESOLVED = "links => links.every(link => /^(https?:|#)/.test(link.getAttribute('href')))"
# It replaces those of pictures as well, and requests what the text says before.
LOADED = "images => images.every(i => i.complete && /^(data|https?):/.test(i.getAttribute('src')))"
OPEN = "notebook => jupyterapp.commands.execute('docmanager:open', notebook).then(panel => panel.id)"
SHOW = "panel => { jupyterapp.shell.activateById(panel.id) }"  # an earlier one may come to the front late

pytestmark = pytest.mark.timeout(600)


def as_make_lab(_folder, _monkeypatch):
    """Start what README says first, as whoever runs the tests, which in a container is root."""
    in_checkout = Path(sys.prefix) == ROOT / ".venv"
    return ROOT, ["make", "lab", *([] if in_checkout else [f"VENV={sys.prefix}"])], "notebooks"


def as_course(folder, _monkeypatch):
    output = CliRunner().invoke(course, [str(folder / "course")], catch_exceptions=False).output
    line = next(line for line in output.splitlines() if "jupyter lab" in line)
    return folder, shlex.split(line.removeprefix("Next: ").partition(",")[0]), "notebooks"


def as_hosted(folder, monkeypatch):
    """Prepare a project's folder, which the service has at its root, from a notebook that was alone there."""
    monkeypatch.chdir(folder)
    monkeypatch.setattr(hosted, "_install", lambda *_: None)
    return folder, ["jupyter", "lab", "--allow-root"], hosted.prepare().relative_to(folder).as_posix()


WAYS = [as_make_lab, *slow(as_course, as_hosted)]


@pytest.fixture(scope="module", params=WAYS, ids=lambda way: way.__name__)
def jupyterlab(request, serve_lab, context, tmp_path_factory):
    """A page of a JupyterLab that was started in one of the ways, its address, and what opens a notebook."""
    with pytest.MonkeyPatch.context() as monkeypatch:
        folder, command, notebooks = request.param(tmp_path_factory.mktemp("course"), monkeypatch)
    with serve_lab(folder, *command) as (served, token), context.new_page() as page:
        page.set_default_timeout(PATIENCE * SECONDS)
        page.goto(f"{served}lab/tree/{notebooks}/{NOTEBOOKS[0]}?token={token}&reset")
        page.wait_for_function("() => window.jupyterapp")
        page.evaluate("jupyterapp.restored.then(() => null)")
        kernel = page.request.post(f"{served}api/kernels?token={token}").json()  # one that all have

        def open_notebook(name):
            opened = {"path": f"{notebooks}/{name}", "factory": "Notebook", "kernel": kernel}
            panel = page.locator(f"[id='{page.evaluate(OPEN, opened)}']")
            idle = panel.locator(".jp-Notebook-ExecutionIndicator[data-status=idle]").first
            idle.wait_for(state="attached")
            return panel

        yield page, served, open_notebook


@pytest.fixture
def failures(jupyterlab):
    """What fails in the page during a test, but for pictures, which are looked at in the end.

    The first request for one is in vain.
    """
    page, *_ = jupyterlab
    failed = []

    def note(request, what):
        if request.resource_type != "image":
            failed.append(f"{request.url}: {what}")

    def note_console(message):
        if message.type == "error" and not message.text.startswith("Failed to load resource"):
            failed.append(message.text)

    listeners = {
        "response": lambda answer: note(answer.request, answer.status) if answer.status >= 400 else None,
        "requestfailed": lambda request: note(request, request.failure),
        "pageerror": lambda error: failed.append(str(error)),
        "console": note_console,
    }
    for event, listener in listeners.items():
        page.on(event, listener)
    yield failed
    for event, listener in listeners.items():
        page.remove_listener(event, listener)


@pytest.mark.parametrize("name", [NOTEBOOKS[0], NOTEBOOKS[-1], *slow(*NOTEBOOKS[1:-1])])
def test_no_request_of_a_notebook_fails_and_each_link_of_it_leads_to_a_file(jupyterlab, failures, name):
    page, served, open_notebook = jupyterlab
    notebook = open_notebook(name)
    cells = nbformat.read(ROOT / "notebooks" / name, as_version=4).cells
    texts = sum(cell.cell_type == "markdown" for cell in cells)
    rendered = notebook.locator(".jp-MarkdownCell .jp-RenderedMarkdown:not(:empty)")
    until(page, lambda: rendered.count() == texts or notebook.evaluate(SHOW), f"{texts} texts")
    pictures = notebook.locator(".jp-RenderedMarkdown img")
    until(page, lambda: pictures.evaluate_all(LOADED), "pictures")
    missing = "images => images.filter(image => !image.naturalWidth).map(image => image.src)"
    assert pictures.evaluate_all(missing) == []
    anchors = notebook.locator(".jp-RenderedMarkdown a[href]")
    until(page, lambda: anchors.evaluate_all(RESOLVED), "the links' addresses")

    def targets():
        links = anchors.evaluate_all("links => links.map(link => link.href)")
        files = [link.removeprefix(f"{served}files/") for link in links if link.startswith(f"{served}files/")]
        return {file.partition("#")[0].partition("?")[0] for file in files}

    until(page, targets, "links to files")
    for target in targets():
        status = page.request.get(f"{served}api/contents/{target}?content=0").status
        assert status == 200, f"{name}, {unquote(target)}: {status}"
    assert failures == []
