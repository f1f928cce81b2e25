"""Look up the formats of tests/unit/log_corpus.toml in their sources.

``python -m tests.programs.formats FOLDER``: it has clones of the repositories, as OWNER/NAME, with the
commits of the list.
"""

import subprocess
import sys
import tomllib
from pathlib import Path

from .entries import ROOT


def main(folder: Path) -> int:
    """Print the formats that do not stand in their sources, and how many do."""
    corpus = tomllib.loads((ROOT / "tests/unit/log_corpus.toml").read_text(encoding="utf-8"))
    count, absent = len(corpus["format"]), []
    for entry in corpus["format"]:
        repository, path = entry["source"].split(" ", 1)
        place = f"{corpus['commits'][repository]}:{path}"
        words = ["git", "-C", str(folder / repository), "show", place]
        source = subprocess.run(words, capture_output=True).stdout.decode("utf-8", "replace")
        if entry["format"] not in source:
            absent.append(f"{entry['source']}: {entry['format']}")
    print(*absent, f"{count - len(absent)} of {count} formats found", sep="\n")
    return bool(absent)


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
