"""What the first pages say: README is short, and a package's page has no link into the repository."""

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
