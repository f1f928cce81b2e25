"""A plugin for nbval, which gives a kernel five seconds to hand over what a cell has written: too few on a
machine that is busy with something else.
"""

import sys

# nbval imports nbformat, that imports jsonschema, and that would compile a grammar: tools/smoke/__init__.py.
sys.modules.setdefault("rfc3987_syntax", None)

OUTPUT_SECONDS = 120


def pytest_collection_modifyitems(items):
    """Let each cell wait longer; nbval has no option for it."""
    for item in items:
        if hasattr(item, "output_timeout"):
            item.output_timeout = OUTPUT_SECONDS
