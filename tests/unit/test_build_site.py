"""The web site's pages: which there are, and where their links lead."""

import json
from pathlib import Path

import build_site as site
import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("[the guide](../docs/eks.md#access)", "[the guide](../docs/eks.md#access)"),
        ("[a cell](../docs/eks.md#cell-id=05-19)", "[a cell](../docs/eks.md)"),
        ("[home](../README.md)", "[home](../index.md)"),
        ("[a manifest](../manifests/job.yaml)", "a manifest"),
        ("[Kubernetes](https://kubernetes.io/)", "[Kubernetes](https://kubernetes.io/)"),
        ("[above](#here)", "[above](#here)"),
        ("![ranks](../docs/images/ranks.svg)", "![ranks](../docs/images/ranks.svg)"),
    ],
)
def test_a_link_leads_to_a_page_of_the_site_or_is_words(words, expected):
    names = {"README.md", "docs/eks.md"}
    assert site.LINK.sub(lambda link: site.linked(link, Path("notebooks"), names), words) == expected


def test_each_page_is_in_one_chapter_and_notebooks_have_their_numbers():
    names = {"README.md", "docs/eks.md", "docs/glossary.md", "notebooks/00_start.ipynb"}
    text = site.contents(names)
    assert text.count("docs/eks.md") == text.count("docs/glossary.md") == 1
    assert "\n00 Start" in text and "<notebooks/00_start.ipynb>" in text
    assert "README" not in text


def test_the_menu_lists_every_version_that_was_built_and_latest_leads_to_the_newest(tmp_path):
    for version in ("0.9.0", "0.10.0", "0.2.0"):
        (tmp_path / version).mkdir()
        site.list_versions(tmp_path, "/trainyard/")
    menu = json.loads((tmp_path / "switcher.json").read_text())
    assert [each["version"] for each in menu] == ["0.10.0", "0.9.0", "0.2.0"]
    assert menu[0]["url"] == "/trainyard/0.10.0/"
    assert (tmp_path / "latest").resolve().name == "0.10.0"
