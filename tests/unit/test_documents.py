"""What the first pages say: README is short, and a package's page has no link into the repository."""

import json
import re
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
LINK = re.compile(r"\]\((?![a-z]+:|#)([^)#\s]+)")


def test_readme_is_read_in_five_minutes():
    assert len((ROOT / "README.md").read_text().splitlines()) <= 130


def test_a_packages_page_has_no_link_that_is_dead_there():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert LINK.findall((ROOT / project["readme"]).read_text()) == []


@pytest.mark.parametrize(
    ("figure", "pattern"),
    [
        ("disk_gb", r"([\d.]+) GB of (?:free )?disk"),
        ("download_gb", r"(?:downloads up to|build or) ([\d.]+) GB"),
    ],
)
def test_the_disk_and_download_of_a_set_up_have_one_source(figure, pattern):
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    expected = {str(project["tool"]["trainyard"][figure])}
    pages = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
    for page in pages:
        figures = set(re.findall(pattern, page.read_text(encoding="utf-8")))
        assert figures in (expected, set()), page.name
        assert figures or page.name not in ("README.md", "instructors-guide.md"), page.name


def _measured(what: str) -> tuple[str, str]:
    """Return a benchmark's value, and its peer's, as documents write them."""
    parts = json.loads((ROOT / "docs" / "performance.json").read_text()).values()
    (result,) = [entry for part in parts for entry in part["results"] if entry["what"] == what]
    return f"{result['value']:.2f}", f"{result['peer_value']:.0f}"


@pytest.mark.parametrize(
    "what", ["SIGKILL of 1 of 2 workers → next step", "SIGSTOP of 1 of 3 workers → survivors' next step"]
)
@pytest.mark.parametrize("name", ["docs/elastic.md", "docs/when-to-use-what.md"])
def test_the_cost_of_a_lost_worker_is_that_of_the_benchmark(name, what):
    seconds, peer = _measured(what)
    text = (ROOT / name).read_text(encoding="utf-8")
    assert seconds in text and f"{peer}" in text and "219" not in text and "tenths of" not in text


def test_the_changelog_names_the_benchmarks_figure():
    seconds, _ = _measured("SIGKILL of 1 of 2 workers → next step")
    assert f"continues {seconds} s after a worker was killed" in (ROOT / "CHANGELOG.md").read_text()


def test_the_half_day_of_the_guide_has_180_minutes_at_most():
    guide = (ROOT / "docs" / "instructors-guide.md").read_text(encoding="utf-8")
    agenda = guide.partition("| Half a day |")[2].partition("\n\n")[0]
    minutes = [row.split("|")[2].strip() for row in agenda.splitlines()[2:]]
    assert sum(int(number) for number in minutes if number) <= 180


def test_readmes_argument_has_the_figures_that_were_measured():
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    parts = json.loads((ROOT / "docs" / "performance.json").read_text()).values()
    results = [result for part in parts for result in part["results"]]
    for goal in ("first pod Running", "first job of 4 pods has trained"):
        (result,) = (
            result
            for result in results
            if result["what"] == f"create a cluster of 4 nodes → {goal}"
            and result["peer"].startswith("kubelet")
        )
        for value in (result["value"], result["peer_value"]):
            assert f"{value:.1f} s" in readme, goal


def test_readme_speaks_of_every_machine_and_says_what_pip_takes():
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    package = (ROOT / "packaging" / "PACKAGE.md").read_text(encoding="utf-8")
    for word in ("WSL2", "Colima", "Lima", "ssh -L", "JupyterHub", "kind", "IP="):
        assert word in readme, word
    for page in (readme, package):
        assert "--torch-backend=auto" in page


def test_commands_of_readme_name_no_cluster():
    """The only cluster is the default: a reader's first commands are short."""
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    commands = [line for line in readme.splitlines() if line.startswith("    trainyard ")]
    assert len(commands) >= 5 and not any(" -c " in line for line in commands)


def test_each_test_that_the_page_on_security_names_exists():
    page = (ROOT / "docs" / "security.md").read_text(encoding="utf-8")
    texts: dict[str, str] = {}
    for path in (ROOT / "tests").rglob("test_*.py"):
        texts[path.name] = texts.get(path.name, "") + path.read_text(encoding="utf-8")
    for name, function in re.findall(r"`(?:[\w/]*/)?(test_\w+\.py)(?:::(\w+))?`", page):
        assert f"def {function}" in texts.get(name, ""), f"{name}::{function}"
