"""The diagrams of docs and notebooks: pictures that were made from the text beside them."""

import hashlib
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SOURCES = sorted((ROOT / "docs" / "diagrams").glob("*.d2"))
PAGES = [*(ROOT / "docs").glob("*.md"), *(ROOT / "notebooks").glob("*.ipynb")]


@pytest.mark.parametrize("source", SOURCES, ids=lambda path: path.stem)
def test_a_picture_was_made_from_the_present_text(source):
    picture = ROOT / "docs" / "images" / f"{source.stem}.svg"
    hashed = hashlib.sha256(source.read_bytes()).hexdigest()
    assert f"<!-- source: {hashed} -->" in picture.read_text(encoding="utf-8"), "tools/dev.py diagrams"


@pytest.mark.parametrize("source", SOURCES, ids=lambda path: path.stem)
def test_a_page_shows_each_diagram_with_words_for_those_who_do_not_see_it(source):
    image = re.compile(rf"!\[([^\]]*)\]\([./a-z]*images/{source.stem}\.svg\)")
    words = [alt for page in PAGES for alt in image.findall(page.read_text(encoding="utf-8"))]
    assert words and all(len(word) > 60 for word in words)
