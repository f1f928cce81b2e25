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


@pytest.mark.parametrize("name", ["README.md", "SECURITY.md", "CONTRIBUTING.md", "docs/security.md"])
def test_links_lead_to_files(name):
    page = ROOT / name
    for target in LINK.findall(page.read_text(encoding="utf-8")):
        assert (page.parent / target).exists(), target


@pytest.mark.parametrize(
    ("figure", "said"),
    [
        ("disk_gb", r"([\d.]+) GB of (?:free )?disk"),
        ("download_gb", r"(?:downloads up to|build or) ([\d.]+) GB"),
    ],
)
def test_what_a_set_up_takes_has_one_source(figure, said):
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    wanted = {str(project["tool"]["trainyard"][figure])}
    pages = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
    for page in pages:
        figures = set(re.findall(said, page.read_text(encoding="utf-8")))
        assert figures in (wanted, set()), page.name
        assert figures or page.name not in ("README.md", "instructors-guide.md"), page.name


def _measured(what: str) -> tuple[str, str]:
    """Return a benchmark's value, and its peer's, as documents write them."""
    parts = json.loads((ROOT / "docs" / "performance.json").read_text()).values()
    (result,) = [it for part in parts for it in part["results"] if it["what"] == what]
    return f"{result['value']:.2f}", f"{result['peer_value']:.0f}"


@pytest.mark.parametrize(
    "what", ["SIGKILL of 1 of 2 workers → next step", "SIGSTOP of 1 of 3 workers → survivors' next step"]
)
@pytest.mark.parametrize("name", ["docs/elastic.md", "docs/when-to-use-what.md"])
def test_what_a_lost_worker_costs_is_what_the_benchmark_measured(name, what):
    seconds, peer = _measured(what)
    text = (ROOT / name).read_text(encoding="utf-8")
    assert seconds in text and f"{peer}" in text and "219" not in text and "tenths of" not in text


def test_the_course_and_the_changelog_name_the_benchmarks_figure():
    seconds, peer = _measured("SIGKILL of 1 of 2 workers → next step")
    lesson = (ROOT / "notebooks" / "06_data_parallel.ipynb").read_text(encoding="utf-8")
    assert f"{seconds} s lost after a kill, where torchrun had not continued after {peer} s" in lesson
    assert f"continues {seconds} s after a worker was killed" in (ROOT / "CHANGELOG.md").read_text()


def test_the_half_day_of_the_guide_has_180_minutes_at_most():
    guide = (ROOT / "docs" / "instructors-guide.md").read_text(encoding="utf-8")
    agenda = guide.partition("| Half a day |")[2].partition("\n\n")[0]
    minutes = [row.split("|")[2].strip() for row in agenda.splitlines()[2:]]
    assert sum(int(number) for number in minutes if number) <= 180
