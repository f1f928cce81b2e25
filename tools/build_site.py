"""Build the course as a web site in build/site: README, executed notebooks, docs and API.

``make site`` runs it in a separate environment. Executed notebooks are read from ``reports/``, where ``make
run`` writes them; others have no outputs. Each version has a folder, and folders of other versions are kept;
``latest`` links to the newest; ``switcher.json`` is the list for the menu on each page.
"""

import argparse
import json
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

from packaging.version import Version  # comes with Sphinx

ROOT = Path(__file__).resolve().parent.parent
PAGES = (
    "CHANGELOG.md",
    "CODE_OF_CONDUCT.md",
    "CONTRIBUTING.md",
    "SECURITY.md",
    "README.md",
    "docs/*.md",
    "localkube/README.md",
    "localkube/INTERNALS.md",
    "trainyard_kit/workshop/README.md",
    "notebooks/*.ipynb",
)
CHAPTERS = (
    ("The course", ("notebooks/*.ipynb",)),
    ("Elsewhere", ("docs/containers.md", "docs/hosted.md")),
    ("Background", ("docs/glossary.md", "docs/trainers.md", "docs/datasets.md", "docs/elastic.md")),
    ("Teaching", ("docs/instructors-guide.md", "docs/walk-throughs.md", "trainyard_kit/workshop/README.md")),
)
# YAML and IPython's Code are HTML in an output: their indentation is content.
CODE = """\
.cell_output pre, .cell_output code, .output_html pre {
  font-family: var(--pst-font-family-monospace, monospace); white-space: pre; tab-size: 4; }
"""
# A link in Markdown whose target is a file or folder of the repository.
LINK = re.compile(r"\[([^\]\n]+)\]\(((?![a-z]+:|#)[^)\s#]+)(#[^)\s]*)?\)")


def build(site: Path, version: str, base: str, reports: Path) -> None:
    """Collect the pages and build a version of the site with Sphinx; warnings are errors.

    Args:
        site: The site's folder; the version's folder in it is rewritten.
        version: The name of the version's folder.
        base: The path of the site on its server: ``/``, or ``/trainyard/``.
        reports: The folder of executed notebooks, with the names of those in ``notebooks/``.

    Raises:
        CalledProcessError: Sphinx reported a warning or an error.
    """
    source, output = site.with_name(site.name + "-source"), site / version
    for folder in filter(Path.exists, (source, output)):
        shutil.rmtree(folder)
    pages = [path for pattern in PAGES for path in sorted(ROOT.glob(pattern))]
    names = {path.relative_to(ROOT).as_posix() for path in pages}
    for path in pages:
        copy_page(path, source, reports, names)
    with (source / "index.md").open("a", encoding="utf-8") as index:
        index.write(contents(names))
    shutil.copytree(ROOT / "docs" / "images", source / "docs" / "images")
    shutil.copytree(ROOT / "docs" / "images", source / "extra" / "docs" / "images")
    shutil.copy(ROOT / "tools" / "site_settings.py", source / "conf.py")
    (source / "static").mkdir()
    (source / "static" / "code.css").write_text(CODE, encoding="utf-8")
    switcher = {"json_url": f"{base}switcher.json", "version_match": version}
    with (source / "conf.py").open("a", encoding="utf-8") as settings:
        settings.write(f"\nhtml_theme_options['switcher'] = {switcher!r}\n")
    arguments = ["-W", "--keep-going", "-q", "-b", "html", str(source), str(output)]
    subprocess.run([sys.executable, "-m", "sphinx", *arguments], check=True)
    shutil.rmtree(site / "jupyter_execute", ignore_errors=True)  # myst-nb's own, beside the pages
    list_versions(site, base)


def list_versions(site: Path, base: str) -> None:
    """Write ``switcher.json``, newest version first; link ``latest`` and the site's root to the newest."""
    folders = [folder.name for folder in site.iterdir() if folder.name[:1].isdigit()]
    newest, *older = sorted(folders, key=Version, reverse=True)
    entries = [
        {"name": f"{newest} (latest)", "version": newest, "url": f"{base}{newest}/", "preferred": True}
    ]
    entries += [{"version": version, "url": f"{base}{version}/"} for version in older]
    (site / "switcher.json").write_text(json.dumps(entries, indent=2) + "\n", encoding="utf-8")
    (site / "latest").unlink(missing_ok=True)
    (site / "latest").symlink_to(newest)
    (site / "index.html").write_text(
        '<meta http-equiv="refresh" content="0; url=latest/">\n', encoding="utf-8"
    )


def copy_page(path: Path, source: Path, reports: Path, names: set[str]) -> None:
    """Copy a page, or an executed notebook, with its links adapted to the site."""
    executed, folder = reports / path.name, path.relative_to(ROOT).parent
    page = executed if path.suffix == ".ipynb" and executed.exists() else path
    target = source / page_name(path.relative_to(ROOT).as_posix())
    target.parent.mkdir(parents=True, exist_ok=True)
    text = LINK.sub(lambda link: linked(link, folder, names), page.read_text(encoding="utf-8"))
    target.write_text(text, encoding="utf-8")


def page_name(name: str) -> str:
    return "index.md" if name == "README.md" else name


def linked(link: re.Match[str], folder: Path, names: set[str]) -> str:
    """Adapt a link to the site; keep only the text if the site does not have its target."""
    text, target, heading = link[1], link[2], link[3] or ""
    if heading.startswith("#cell-id="):  # a cell in JupyterLab; pages have no such anchors
        heading = ""
    parts: list[str] = []
    for part in (*folder.parts, *target.split("/")):
        if part == "..":
            parts.pop()
        elif part != ".":
            parts.append(part)
    name = "/".join(parts)
    if name in names:
        prefix = "../" * len(folder.parts)
        return f"[{text}]({prefix}{page_name(name)}{heading})"
    return link[0] if name.startswith("docs/images/") else text


def contents(names: set[str]) -> str:
    """Write the site's table of contents; pages without a chapter come last."""
    rest, blocks = names - {"README.md"}, []
    chapters = [*CHAPTERS, ("Reference", ("*",))]
    for title, patterns in chapters:
        of_chapter = [
            name
            for pattern in patterns
            for name in sorted(rest)
            if Path(name).match(pattern) or pattern == "*"
        ]
        rest -= set(of_chapter)
        lines = "\n".join(map(entry, of_chapter))
        blocks.append(f"\n```{{toctree}}\n:hidden:\n:caption: {title}\n\n{lines}\n```\n")
    return "".join(blocks)


def entry(name: str) -> str:
    """Return a page's title in the table of contents; notebooks have their numbers."""
    if not name.endswith(".ipynb"):
        return name
    heading = json.loads((ROOT / name).read_text(encoding="utf-8"))["cells"][0]["source"][0]
    return f"{Path(name).name[:2]} {heading.lstrip('# ').strip()} <{name}>"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    parser.add_argument("--output", type=Path, default=ROOT / "build" / "site")
    parser.add_argument("--version", default=project["version"])
    parser.add_argument("--base", default="/", help="the path of the site at its server, such as /trainyard/")
    parser.add_argument("--reports", type=Path, default=ROOT / "reports")
    arguments = parser.parse_args()
    build(arguments.output.resolve(), arguments.version, arguments.base, arguments.reports.resolve())
    print(f"{arguments.output / arguments.version / 'index.html'}")


if __name__ == "__main__":
    main()
