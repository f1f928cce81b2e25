"""Every relative link of every document and notebook leads to a file, and every anchor to a heading."""

import json
import re
import subprocess
from functools import cache
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest

ROOT = Path(__file__).parents[2]
FENCE = re.compile(r"^ *(```|~~~).*?^ *\1 *$", re.MULTILINE | re.DOTALL)
CODE = re.compile(r"(`+)(?!`).+?(?<!`)\1(?!`)")
LINK = re.compile(r"(?<!\\)\]\(\s*<?([^)\s>]+)>?(?:\s+\"[^\"]*\")?\s*\)")
REFERENCE = re.compile(r"^ {0,3}\[[^\]]+\]:\s*(\S+)", re.MULTILINE)
ATTRIBUTE = re.compile(r"<[^>]*?\b(?:href|src|srcset)=\"([^\"]+)\"")
HEADING = re.compile(r"^ {0,3}#{1,6} +(.+?) *#* *$", re.MULTILINE)
NAMED = re.compile(r"<[^>]*?\b(?:id|name)=\"([^\"]+)\"")
ABSOLUTE = re.compile(r"[a-z][a-z0-9+.-]*:|//")
SKIPPED = ("tests/walk_throughs/pages/",)  # as they were published
OF_OTHERS = ("docs/operators.md",)  # its paths are in the operators' repositories


def documents():
    listed = subprocess.run(
        ["git", "ls-files", "*.md", "*.ipynb"], cwd=ROOT, capture_output=True, text=True, check=True
    )
    return [name for name in listed.stdout.splitlines() if not name.startswith(SKIPPED)]


def text_of(path):
    """Read a document's Markdown: of a notebook, that of its text cells."""
    text = path.read_text(encoding="utf-8")
    if path.suffix != ".ipynb":
        return text
    cells = json.loads(text)["cells"]
    return "\n\n".join("".join(cell["source"]) for cell in cells if cell["cell_type"] == "markdown")


def links(text):
    """List the targets of the links and pictures of a text, but for those in code.

    Example:
        >>> links("[a](b.md#c) `[x](y)` <img src=\\"d.png\\">")
        ['b.md#c', 'd.png']
    """
    prose = CODE.sub("", FENCE.sub("", text))
    return [target for pattern in (LINK, REFERENCE, ATTRIBUTE) for target in pattern.findall(prose)]


@cache
def anchors(path):
    """List the anchors of a document, as GitHub makes them of headings."""
    prose, counted, names = FENCE.sub("", text_of(path)), {}, set()
    if path.suffix == ".ipynb":
        names = {f"cell-id={cell['id']}" for cell in json.loads(path.read_text("utf-8"))["cells"]}
    for heading in HEADING.findall(prose):
        title = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading).replace("`", "")
        slug = re.sub(r"[^\w\- ]", "", title.strip().lower()).replace(" ", "-")
        counted[slug] = counted.get(slug, -1) + 1
        names.add(f"{slug}-{counted[slug]}" if counted[slug] else slug)
        names.add(title.strip().replace(" ", "-"))  # as JupyterLab makes them
    return names | set(NAMED.findall(prose))


def problem(page, target):
    """Say what is wrong with a link of a page; nothing if it leads somewhere."""
    if ABSOLUTE.match(target):
        return ""
    name, _, anchor = unquote(target).partition("#")
    name = name.partition("?")[0]
    goal = (page.parent / name).resolve() if name else page
    if not goal.exists():
        return f"{target}: there is no such file"
    if not goal.is_relative_to(ROOT):
        return f"{target}: it is outside of the repository"
    if anchor and goal.suffix in (".md", ".ipynb") and anchor not in anchors(goal):
        return f"{target}: {goal.name} has no such heading"
    return ""


@pytest.mark.parametrize("name", documents())
def test_every_link_and_anchor_of_a_document_leads_somewhere(name):
    page = ROOT / name
    assert list(filter(None, (problem(page, target) for target in links(text_of(page))))) == []


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("[a](gone.md)", "there is no such file"),
        ("![a](gone.png)", "there is no such file"),
        ("[a][1]\n\n[1]: gone.md", "there is no such file"),
        ('<img src="gone.png">', "there is no such file"),
        ("[a](README.md#gone)", "has no such heading"),
        ("[a](#gone)", "has no such heading"),
        ("[a](../../elsewhere)", "there is no such file"),
    ],
)
def test_a_dead_link_is_seen_however_it_is_written(text, expected):
    ((target),) = links(text)
    assert expected in problem(ROOT / "CONTRIBUTING.md", target)


def test_code_is_no_link():
    assert links("`[a](b)`\n\n```\n[c](d)\n```\n") == []


def test_paths_that_documents_name_in_tools_and_docs_exist():
    """A file that was renamed stays in prose and comments, where no link shows that it is gone."""
    listed = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True)
    files = set(listed.stdout.splitlines())
    names = {Path(name).name for name in files}
    pages = [name for name in files if name.endswith((".md", ".ipynb")) or name.startswith("tools/")]
    folders = "tools|docs|tests|packaging|images|manifests"
    pattern = re.compile(rf"(?<![\w/.-])((?:{folders})/[\w/.-]+\.(?:py|md|ya?ml|toml))")
    missing = {}
    for page in sorted(set(pages) - {"CHANGELOG.md"}):
        if not page.endswith((".md", ".ipynb", ".py")) or page.startswith(SKIPPED + OF_OTHERS):
            continue
        text = (ROOT / page).read_text(encoding="utf-8")
        for path in set(pattern.findall(text)) - files:
            beside = Path(page).parent.joinpath(path).as_posix()
            if beside not in files and not (ROOT / path).exists():
                missing.setdefault(page, []).append(path)
        if page.startswith("tools/"):
            modules = re.findall(r"``([a-z_]+\.py)``", text)
            missing.setdefault(page, []).extend(name for name in modules if name not in names)
    assert {page: paths for page, paths in missing.items() if paths} == {}


READ_ON = ("pytorch.org", "kubernetes.io", "arxiv.org", "k8s.io", "kubeflow.org", "usenix.org", "github.com")
READ_ON += ("docker.com", "nvidia.com", "scikit-learn.org", "amazon.com", "google.com", "huggingface.co")


@pytest.mark.parametrize("name", [name for name in documents() if re.match(r"notebooks/\d\d_", name)])
def test_each_notebook_ends_with_two_to_four_official_documents_to_read_on(name):
    last = text_of(ROOT / name).rpartition("Read on: ")[2].partition("\n\n")[0]
    targets = [urlsplit(target) for target in links(last)]
    assert 2 <= len(targets) <= 4
    for target in targets:
        assert target.scheme == "https" and target.path.strip("/") and not target.query, target
        host = target.netloc
        assert any(host == owner or host.endswith(f".{owner}") for owner in READ_ON), host
    assert len(set(targets)) == len(targets)
