"""docs/why.md has a row for each cause that tests provoke."""

import why_docs


def test_the_table_of_causes_is_that_of_the_tests():
    text = why_docs.PAGE.read_text()
    assert why_docs.page(text) == text, "write it anew: .venv/bin/python tools/why_docs.py"


def test_at_least_sixty_causes_are_provoked():
    rows = [line for line in why_docs.table().splitlines() if line.startswith("|") and "---" not in line]
    assert len(rows) >= 60
