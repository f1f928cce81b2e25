"""Write the project's addresses from one setting, ``repository`` in pyproject.toml.

    python tools/addresses.py            # after [tool.trainyard] repository = "https://github.com/OWNER/NAME"

It sets the README's badges, the package's URL, the citation's repository, and the location of the release's
wheels in the third cell of notebooks. While the setting is empty, none of them has an address, because a
badge or ``pip install`` with somebody else's name would run that owner's code. Nothing is downloaded.
"""

import json
import re
import tomllib
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

ROOT = Path(__file__).resolve().parents[1]
FIRST = "notebooks/00_start.ipynb"
DISTRIBUTIONS = (
    "trainyard-kit",
    "trainyard-kit-localkube",
    "trainyard-kit-controlplane",
    "trainyard-kit-operators",
)
# Services and the link of each; PATH is owner/name of the repository.
BADGES = {
    "[![Colab](https://colab.research.google.com/assets/colab-badge.svg)]": (
        f"https://colab.research.google.com/github/PATH/blob/main/{FIRST}"
    ),
    "[![Kaggle](https://kaggle.com/static/images/open-in-kaggle.svg)]": (
        f"https://kaggle.com/kernels/welcome?src=https://github.com/PATH/blob/main/{FIRST}"
    ),
    "[![Studio Lab](https://studiolab.sagemaker.aws/studiolab.svg)]": (
        f"https://studiolab.sagemaker.aws/import/github/PATH/blob/main/{FIRST}"
    ),
    "[![Binder](https://mybinder.org/badge_logo.svg)]": (
        f"https://mybinder.org/v2/gh/PATH/main?urlpath=lab/tree/{FIRST}"
    ),
    "[![Codespaces](https://github.com/codespaces/badge.svg)]": "https://codespaces.new/PATH",
}
# Colab and Kaggle are detected by their variables, Studio Lab by its home folder.
CELL = """\
import importlib.util, os  # docs/hosted.md
if {{"COLAB_RELEASE_TAG", "KAGGLE_KERNEL_RUN_TYPE"}} & {{*os.environ}} or "studio-lab-user" in os.environ.get("HOME", ""):
    get_ipython().run_line_magic("pip", "install -q --no-deps --no-index --find-links {place} {pins}")
    from trainyard_kit import hosted; hosted.enter()
elif not importlib.util.find_spec("kitlib"):
    raise ModuleNotFoundError("this kernel has no kitlib: choose the kernel of .venv (docs/hosted.md)")"""  # noqa: E501


def setting(project: dict[str, Any]) -> str:
    """Read the repository's address; empty if none is set.

    Raises:
        SystemExit: It is not the address of a repository at GitHub.
    """
    address = project["tool"]["trainyard"]["repository"]
    parts = urlsplit(address)
    if address and not (
        (parts.scheme, parts.netloc) == ("https", "github.com")
        and re.fullmatch(r"/[\w-]+/[\w.-]+", parts.path)
    ):
        raise SystemExit(f"repository = {address!r}: write https://github.com/OWNER/NAME, or leave it empty")
    return address


def hosted_cell(repository: str, version: str) -> str:
    """Write the cell that sets up a hosted notebook with the wheels of a release, or those beside it."""
    links = f"{repository}/releases/expanded_assets/v{version}" if repository else "."
    return CELL.format(place=links, pins=" ".join(f"{name}=={version}" for name in DISTRIBUTIONS))


def badges(repository: str) -> str:
    """Write the badges that open the course in hosted services; none without a repository."""
    path = urlsplit(repository).path.strip("/")
    return "".join(f"{badge}({link.replace('PATH', path)})\n" for badge, link in BADGES.items() if path)


def replace(path: Path, pattern: str, content: str) -> None:
    """Replace the first match of a pattern in a file, across lines."""
    text = path.read_text(encoding="utf-8")
    path.write_text(re.sub(pattern, lambda _: content, text, count=1, flags=re.DOTALL), encoding="utf-8")


def write(root: Path) -> None:
    """Write the addresses into the files below a checkout's root."""
    metadata = root / "pyproject.toml"
    project = tomllib.loads(metadata.read_text(encoding="utf-8"))
    repository, version = setting(project), project["project"]["version"]
    cell = hosted_cell(repository, version)
    urls = f'[project.urls]\nRepository = "{repository}"\n\n' if repository else ""
    code = f"repository-code: {repository}\n" if repository else ""
    replace(metadata, r"(\[project\.urls\]\n[^\n]*\n\n)?(?=\[project\.scripts\])", urls)
    replace(root / "CITATION.cff", r"(repository-code: [^\n]*\n)?(?=license:)", code)
    replace(root / "docs" / "hosted.md", r"(?<=```python\n).*?(?=\n```)", cell)
    replace(root / "README.md", r"(?<=<!-- badges -->\n).*?(?=<!-- /badges -->)", badges(repository))
    for path in sorted((root / "notebooks").glob("[0-9][0-9]_*.ipynb")):
        notebook = json.loads(path.read_text(encoding="utf-8"))
        (hosted,) = [cell for cell in notebook["cells"] if "hosted" in cell["metadata"].get("tags", ())]
        hosted["source"] = cell.splitlines(keepends=True)
        path.write_text(json.dumps(notebook, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


if __name__ == "__main__":
    write(ROOT)
