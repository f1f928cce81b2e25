"""Whatever is to be installed is ours or named on purpose; one setting writes the addresses."""

import json
import re
import shlex
import shutil
import subprocess
import tomllib
from pathlib import Path

import pytest
import yaml
from addresses import DISTRIBUTIONS, ROOT, hosted_cell, write
from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import canonicalize_name

OURS = set(DISTRIBUTIONS)
# Of others, each named on purpose where somebody is told to install it.
OTHERS = {
    "elasticdl-client",
    "botocore",  # AWS's, with its part that signs in by aws login
    "hydra-core",  # public programs of docs/your-own.md, and timm
    "timm",
    "accelerate",
    "lightning",
    "transformers",
    "boto3",
    "jupyterlab",
    "einops",  # notebook 03 adds it to an image
    "kopf",  # the controller of ElasticJobs, on an image that lacks it
    "requests",
    "scikit-learn",  # the digits
    "torch",
    "torchft",
    "torchvision",
    "ziglang",  # plain mode's library without a C compiler
    "setuptools",
    "uv",
    "pip",
    "wheel",
    "atheris",
    "myst-nb",
    "sphinx",
    "sphinx-book-theme",
    "pyright",
    "tensorboard",
    "python-etcd",
    "moto",
    "papermill",
}
STRANGER = r"(?<![\w-])(?:trainyard|kitlib|localkube)\[\w+\]"  # an extra of a project that is not ours
PROSE = {"from", "does", "it"}  # what follows the words in a sentence
WITH_VALUE = re.compile(
    r"-[cfirtmw]|--(constraints?|find-links|requirements?|target|python|prefix|extra|torch-backend)"
)
COMMAND = re.compile(
    r"(?:\bpip3?|\buv(?: pip)?) (?:install|download|add)\b(?P<words>[^\n|;&`)]*)"
    r"|\buvx (?P<tool>[^\n|;&`)]*)|\bpipx (?:install|run) (?P<app>[^\n|;&`)]*)"
)
MAGIC = re.compile(r"run_line_magic\(\\?[\"']pip\\?[\"'], f?\\?[\"']install (?P<words>.*?)\\?[\"']\)")


def files():
    listed = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True)
    skipped = (".png", ".svg", ".sum", ".lock", ".js")
    return [ROOT / name for name in listed.stdout.splitlines() if not name.endswith(skipped)]


def distributions(words):
    """List the distributions that the words after ``pip install`` name."""
    text = re.sub(r"[\\\"']|\\n", " ", words)
    split = shlex.split(text, comments=True)
    names, skip = [], False
    for word in split:
        if (
            skip
            or word.startswith("-")
            or not re.match(r"[A-Za-z]", word)
            or re.search(r"[/{$(]|\.(txt|whl|toml)", word)
        ):
            skip = not skip and bool(WITH_VALUE.fullmatch(word))
            continue
        try:
            names.append(canonicalize_name(Requirement(word.strip(",.:")).name))
        except InvalidRequirement:
            break  # a word of the sentence that follows
    return names


def named(text):
    matches = [*COMMAND.finditer(text), *MAGIC.finditer(text)]
    return {name for match in matches for words in match.groups() if words for name in distributions(words)}


def test_nothing_names_a_distribution_that_is_neither_ours_nor_listed():
    """A project is named by the first word after a command; what stands in prose is told apart."""
    strangers = {}
    for path in files():
        if path == Path(__file__):
            continue
        text = path.read_text(encoding="utf-8", errors="replace")
        text = text.replace(r"\n", "\n") if path.suffix in (".ipynb", ".d2") else text
        for name in named(text):
            if name.startswith("trainyard") and name not in OURS:
                strangers[path.relative_to(ROOT)] = name
        strangers |= {path.relative_to(ROOT): name for name in re.findall(STRANGER, text)}
        for match in COMMAND.finditer(text):
            words = distributions(match["words"] or match["tool"] or match["app"] or "")
            if words and words[0] not in OURS | OTHERS | PROSE and path.parts[len(ROOT.parts)] != "tests":
                strangers[path.relative_to(ROOT)] = words[0]
    assert strangers == {}


def test_the_distributions_have_the_names_that_are_ours():
    kit = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    programs = [*(ROOT / "packaging").glob("*/pyproject.toml"), ROOT / "localkube" / "pyproject.toml"]
    names = {tomllib.loads(path.read_text())["project"]["name"] for path in programs}
    assert {kit["name"], *names} == OURS
    assert "trainyard" in kit["scripts"] and "kit" not in kit["scripts"]


def test_the_index_is_named_in_no_document_until_both_are_registered():
    """docs/releasing.md says which steps a person takes first; it alone names the command."""
    mentions = [
        path.relative_to(ROOT)
        for path in files()
        if path.suffix in (".md", ".ipynb") and path.name not in ("releasing.md", "CHANGELOG.md")
        if named(path.read_text(encoding="utf-8")) & OURS
    ]
    cells = {path for path in mentions if path.suffix == ".ipynb"} | {Path("docs/hosted.md")}
    assert set(mentions) <= cells, "a pip install of ours outside of the hosted cell"
    assert all("--no-index" in (ROOT / path).read_text(encoding="utf-8") for path in mentions)


@pytest.fixture
def checkout(tmp_path):
    """Copy what has addresses, with a repository set."""

    def copy(repository):
        for name in ("pyproject.toml", "README.md", "CITATION.cff"):
            shutil.copy(ROOT / name, tmp_path)
        (tmp_path / "docs").mkdir(exist_ok=True)
        shutil.copy(ROOT / "docs" / "hosted.md", tmp_path / "docs")
        shutil.copytree(ROOT / "notebooks", tmp_path / "notebooks", dirs_exist_ok=True)
        text = (tmp_path / "pyproject.toml").read_text()
        changed = re.sub(r'(?m)^repository = ".*?"', f'repository = "{repository}"', text)
        (tmp_path / "pyproject.toml").write_text(changed)
        return tmp_path

    return copy


def snapshot(root):
    return {path.relative_to(root): path.read_bytes() for path in root.rglob("*") if path.is_file()}


def test_one_setting_writes_every_address_and_takes_each_back(checkout):
    mine = "https://github.com/someone/yard"
    root = checkout("")
    write(root)
    before = snapshot(root)
    assert before == {name: (ROOT / name).read_bytes() for name in before}, "run tools/addresses.py"
    root = checkout(mine)
    write(root)
    readme = (root / "README.md").read_text()
    badges = re.findall(r"^\[!\[.+?\]\(.+?\)\]\((.+)\)$", readme, re.MULTILINE)
    assert len(badges) == 5 and all("/someone/yard" in link for link in badges)
    paths = [path for link in badges for path in re.findall(r"notebooks/\S+\.ipynb", link)]
    assert len(paths) == 4 and all((ROOT / path).is_file() for path in paths)
    assert tomllib.loads((root / "pyproject.toml").read_text())["project"]["urls"] == {"Repository": mine}
    assert yaml.safe_load((root / "CITATION.cff").read_text())["repository-code"] == mine
    cells = json.loads((root / "notebooks" / "00_start.ipynb").read_text())["cells"]
    assert f"{mine}/releases/" in "".join(cells[2]["source"])
    assert "".join(cells[2]["source"]) in (root / "docs" / "hosted.md").read_text()
    checkout_again = (
        (root / "pyproject.toml").read_text().replace(f'repository = "{mine}"  #', 'repository = ""  #')
    )
    (root / "pyproject.toml").write_text(checkout_again)
    write(root)
    assert snapshot(root) == before


@pytest.mark.parametrize(
    "address", ["https://example.org/a/b", "http://github.com/a/b", "https://github.com/a"]
)
def test_an_address_that_is_no_repository_is_refused(checkout, address):
    with pytest.raises(SystemExit, match="write https://github.com/OWNER/NAME"):
        write(checkout(address))


def run_cell(monkeypatch, environment, *, installed, folder):
    """Run the hosted cell where the kit is installed or not; return what it gave to pip."""
    commands = []

    class Shell:
        def run_line_magic(self, name, line):
            commands.append((name, line))

    import importlib.util

    from trainyard_kit import hosted

    for name in ("COLAB_RELEASE_TAG", "KAGGLE_KERNEL_RUN_TYPE"):
        monkeypatch.delenv(name, raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    monkeypatch.chdir(folder)
    monkeypatch.setattr(hosted, "prepare", lambda: folder)
    find = importlib.util.find_spec
    with monkeypatch.context() as patch:
        patch.setattr(
            importlib.util, "find_spec", lambda name: find(name) if name != "kitlib" or installed else None
        )
        exec(hosted_cell("", "0.1.0"), {"get_ipython": Shell})
    return commands


@pytest.mark.parametrize(
    "environment",
    [{"COLAB_RELEASE_TAG": "r"}, {"KAGGLE_KERNEL_RUN_TYPE": "Batch"}, {"HOME": "/home/studio-lab-user"}],
)
def test_a_known_host_installs_pinned_wheels_and_asks_no_index(monkeypatch, tmp_path, environment):
    ((name, line),) = run_cell(monkeypatch, environment, installed=False, folder=tmp_path)
    assert name == "pip" and "--no-index" in line
    assert set(distributions(line.removeprefix("install"))) == OURS
    assert all(f"{name}==0.1.0" in line for name in OURS)


def test_elsewhere_a_kernel_without_the_kit_is_named_and_nothing_is_installed(monkeypatch, tmp_path):
    with pytest.raises(ModuleNotFoundError, match="choose the kernel of .venv"):
        run_cell(monkeypatch, {}, installed=False, folder=tmp_path)
    assert run_cell(monkeypatch, {}, installed=True, folder=tmp_path) == []


@pytest.mark.parametrize("package", ["kitlib", "trainyard_kit", "localkube"])
def test_the_wheel_has_every_file_that_a_package_reads(package):
    folder = ROOT / "localkube" if package == "localkube" else ROOT
    project = tomllib.loads((folder / "pyproject.toml").read_text())
    patterns = project["tool"]["setuptools"]["package-data"][package]
    packed = {path for pattern in patterns for path in (ROOT / package).glob(pattern)}
    beside = [path for path in files() if path.is_relative_to(ROOT / package)]
    read = {
        path
        for path in beside
        if path.suffix not in (".py", ".md", ".proto")
        and "preload" not in path.parts
        and path.name not in ("LICENSE", "pyproject.toml")
    }
    assert read - packed == set()
    assert all(any((ROOT / package).glob(pattern)) for pattern in patterns)


def test_an_index_shows_the_author_and_topic_of_each_package():
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    authors = [{"name": author["name"]} for author in citation["authors"]]
    places = (ROOT, ROOT / "localkube", *(ROOT / "packaging").iterdir())
    for path in filter(Path.is_file, (place / "pyproject.toml" for place in places)):
        settings = tomllib.loads(path.read_text())
        project = settings["project"]
        assert project["authors"] == authors, path
        assert len(project["keywords"]) >= 3 and len(project["description"]) < 120, path
        if not settings["tool"].get("trainyard", {}).get("repository"):
            assert "Repository" not in project.get("urls", {}), path
    kit = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert set(citation["keywords"]) <= set(kit["keywords"])
