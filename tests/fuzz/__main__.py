"""Fuzz targets for so many seconds each: ``python -m tests.fuzz SECONDS [TARGET…]``; by default all of them.

Those in Python need atheris, those of the gateway and of images Go. Inputs that reach new code are kept in
reports/fuzz, and a failing one is written there. What is worth keeping belongs in the corpus, which the tests
replay.
"""

import subprocess
import sys
from pathlib import Path

from . import gateway, images

CORPUS = Path(__file__).parent / "corpus"
FOUND = Path("reports") / "fuzz"
GO = dict.fromkeys(gateway.TARGETS, "gateway") | dict.fromkeys(images.TARGETS, "images")


def main() -> None:
    seconds, *names = sys.argv[1:]
    names = names or [*sorted(path.name for path in CORPUS.iterdir()), *GO]
    if len(names) == 1:
        sys.exit(_fuzz(names[0], seconds))
    # A process each, because libFuzzer ends the one that it runs in.
    ends = {
        name: subprocess.run([sys.executable, "-m", "tests.fuzz", seconds, name]).returncode for name in names
    }
    sys.exit(", ".join(name for name, code in ends.items() if code))


def _fuzz(name: str, seconds: str) -> int:
    if package := GO.get(name):
        arguments = ("-run=^$", f"-fuzz=^{name}$", f"-fuzztime={seconds}s")
        return gateway.go_test(*arguments, package=package).returncode
    import atheris

    with atheris.instrument_imports(include=["localkube", "unpack", "tarfile", "zipfile", "dnslib"]):
        from .targets import TARGETS
    corpus = FOUND / name
    corpus.mkdir(parents=True, exist_ok=True)
    limits = [f"-max_total_time={seconds}", "-max_len=4096", "-rss_limit_mb=1024", "-timeout=120"]
    folders = [str(corpus), str(CORPUS / name)]
    atheris.Setup([sys.argv[0], *limits, f"-artifact_prefix={FOUND}/{name}-", *folders], TARGETS[name])
    atheris.Fuzz()
    return 0


if __name__ == "__main__":
    main()
