"""What a run of notebooks consists of, one noun a module: the cluster that it works on, the execution of a
notebook, thresholds, the result, and the bundle for whoever has to find out why it failed.

``run_notebooks.py`` puts them together. What the notebooks themselves say is read by ``report.py``.
"""

import sys

# jsonschema, which nbformat imports, would compile the grammar of web addresses with it: three seconds of a
# core for a format that no notebook has. It does without where the package is missing.
sys.modules.setdefault("rfc3987_syntax", None)  # type: ignore[arg-type]  # import takes None for "is missing"
