"""The parts of a run of notebooks: its cluster, execution, thresholds, result, and a bundle for diagnosis.

``run_notebooks.py`` combines them; ``report.py`` reads the executed notebooks.
"""

import sys

# With this package jsonschema, which nbformat imports, would compile a grammar of URIs: three seconds of CPU
# for a format that no notebook uses. It works without the package.
sys.modules.setdefault("rfc3987_syntax", None)  # type: ignore[arg-type]  # import takes None for "is missing"
