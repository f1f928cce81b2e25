"""The diagrams of docs and notebooks: pictures that were made from the text beside them."""

import hashlib
import re
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SOURCES = sorted((ROOT / "docs" / "diagrams").glob("*.d2"))
MOST_HIGH = 480  # pixels: beside the text that explains it, in a window of a laptop
PAGES = [*(ROOT / "docs").glob("*.md"), *(ROOT / "notebooks").glob("*.ipynb")]


@pytest.mark.parametrize("source", SOURCES, ids=lambda each: each.stem)
def test_a_picture_was_made_from_the_present_text(source):
    picture = ROOT / "docs" / "images" / f"{source.stem}.svg"
    hashed = hashlib.sha256(source.read_bytes()).hexdigest()
    assert f"<!-- source: {hashed} -->" in picture.read_text(encoding="utf-8"), "tools/dev.py diagrams"


@pytest.mark.parametrize("source", SOURCES, ids=lambda source: source.stem)
def test_a_picture_has_a_size_that_fits_beside_its_text(source):
    picture = ElementTree.parse(ROOT / "docs" / "images" / f"{source.stem}.svg").getroot()
    assert int(picture.attrib["height"]) <= MOST_HIGH  # without, a page shows it as wide as the page
    assert int(picture.attrib["width"]) <= 3 * MOST_HIGH


@pytest.mark.parametrize("source", SOURCES, ids=lambda each: each.stem)
def test_a_page_shows_each_diagram_with_words_for_those_who_do_not_see_it(source):
    image = re.compile(rf"!\[([^\]]*)\]\([./a-z]*images/{source.stem}\.svg\)")
    words = [found for page in PAGES for found in image.findall(page.read_text(encoding="utf-8"))]
    assert words and all(len(each) > 60 for each in words)
