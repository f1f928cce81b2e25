"""What notebooks show and link to is there, however JupyterLab was started."""

import shlex
import subprocess
from urllib.parse import unquote, urlsplit

import pytest
from click.testing import CliRunner

from trainyard_kit import hosted
from trainyard_kit.cli.course import course

from .pages import ROOT, until

NOTEBOOKS = sorted(path.name for path in (ROOT / "notebooks").glob("*.ipynb"))
# JupyterLab replaces relative links, of which each notebook has one to the next, after it has shown the text.
RESOLVED = "links => links.every(link => /^(https?:|#)/.test(link.getAttribute('href')))"

pytestmark = pytest.mark.timeout(600)


def after_lab(line):
    """Take the words behind ``jupyter lab`` from a line that starts it."""
    words = shlex.split(line)
    return words[words.index("lab") + 1 :]


def as_make_lab(_folder, _monkeypatch):
    command = ["make", "--no-print-directory", "lab", "DRY_RUN=1"]
    lines = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout.splitlines()
    return ROOT, after_lab(next(line for line in lines if "jupyter lab" in line)), "notebooks"


def as_course(folder, _monkeypatch):
    said = CliRunner().invoke(course, [str(folder / "course")], catch_exceptions=False).output
    line = next(line for line in said.splitlines() if "jupyter lab" in line)
    return folder, after_lab(line.partition(",")[0]), "notebooks"


def as_hosted(folder, monkeypatch):
    """Prepare a project's folder, which the service has at its root, from a notebook that was alone there."""
    monkeypatch.chdir(folder)
    monkeypatch.setattr(hosted, "_install", lambda *_: None)
    return folder, [], hosted.prepare().relative_to(folder).as_posix()


@pytest.fixture(scope="module", params=[as_make_lab, as_course, as_hosted], ids=lambda way: way.__name__)
def open_at(request, serve_lab, tmp_path_factory):
    """The address of each notebook, in a JupyterLab that was started in one of the ways."""
    with pytest.MonkeyPatch.context() as monkeypatch:
        folder, words, notebooks = request.param(tmp_path_factory.mktemp("course"), monkeypatch)
    with serve_lab(folder, *words) as address_of:
        yield lambda name: address_of(f"{notebooks}/{name}"), address_of


@pytest.mark.parametrize("name", NOTEBOOKS)
def test_no_request_of_a_notebook_fails_and_each_link_of_it_leads_to_a_file(page, open_at, name):
    address, address_of = open_at
    failed = []
    page.on("response", lambda response: failed.append(response.url) if response.status >= 400 else None)
    page.on("requestfailed", lambda request: failed.append(f"{request.url}: {request.failure}"))
    page.goto(address(name))
    page.locator(".jp-NotebookPanel .jp-RenderedMarkdown").last.wait_for()
    pictures = page.locator(".jp-RenderedMarkdown img")
    until(
        page, lambda: all(pictures.evaluate_all("images => images.map(image => image.complete)")), "pictures"
    )
    missing = "images => images.filter(image => !image.naturalWidth).map(image => image.src)"
    assert pictures.evaluate_all(missing) == []
    anchors = page.locator(".jp-RenderedMarkdown a[href]")
    until(page, lambda: anchors.evaluate_all(RESOLVED), "the links' addresses")
    links = anchors.evaluate_all("links => links.map(link => link.href)")
    served = address_of("").partition("lab/tree/")[0]
    targets = {
        link.removeprefix(f"{served}files/").partition("#")[0].partition("?")[0]
        for link in links
        if link.startswith(f"{served}files/")
    }
    assert targets
    for target in targets:
        status = page.request.get(f"{served}api/contents/{target}?content=0").status
        assert status == 200, f"{unquote(target)}: {status} at {urlsplit(page.url).path}"
    assert failed == []
