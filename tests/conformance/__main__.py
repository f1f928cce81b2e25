"""``python -m tests.conformance``: what ``make conformance`` runs.

As root, a user named by ``--as`` has the cluster instead. The cluster, the registry and their files are gone
at the end, also after Ctrl-C; JUnit files and output are kept in ``reports/conformance/USER``.
"""

import argparse
import getpass
import os
import pwd
import shutil
import signal
import sys
import tempfile
import time
from pathlib import Path

from localkube.errors import LocalClusterError

from . import images, report, suite

KEPT = Path("reports", "conformance")


def parse(arguments: list[str] | None = None) -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(prog="make conformance", description=__doc__)
    parser.add_argument("--focus", default="", metavar="REGEX", help="of tests' names: these alone")
    parser.add_argument("--suite", choices=suite.LABELS, default="Conformance")
    parser.add_argument(
        "--as", dest="user", default=getpass.getuser(), metavar="USER", help="whose cluster it is"
    )
    parser.add_argument("--processes", type=int, default=5 * (os.cpu_count() or 1), help="tests at a time")
    parser.add_argument(
        "--only", choices=suite.PARTS, help="the tests that run in parallel, or the serial ones"
    )
    parser.add_argument(
        "--write", action="store_true", help="write the document from the reports, and run nothing"
    )
    return parser.parse_args(arguments)


def main(arguments: list[str] | None = None) -> int:
    """Run the suite; the exit status is 0 when every test that ran has passed."""
    options = parse(arguments)
    if options.write:
        report.write(KEPT)
        return 0
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, _interrupt)
    start = time.monotonic()

    def say(line: str) -> None:
        minutes, seconds = divmod(round(time.monotonic() - start), 60)
        print(f"{minutes:3}:{seconds:02}  {line}", flush=True)

    try:
        return _run(options, say)
    except LocalClusterError as error:
        print(f"error: {error}", file=sys.stderr)
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
    except KeyError:
        print(f"error: {options.user}: no such user; make one with useradd", file=sys.stderr)
    return 1


def _run(options: argparse.Namespace, say) -> int:
    pwd.getpwnam(options.user)
    keep = KEPT / options.user / options.suite
    parts = [part for part in suite.PARTS if options.only in (None, part)]
    folders = {part: keep / (f"{part}-focus" if options.focus else part) for part in parts}
    scratch = Path(tempfile.mkdtemp(prefix="conformance-", dir="/var/tmp"))
    scratch.chmod(0o755)
    try:
        suite.install_tools(scratch / "bin", report=say)
        required_images = suite.list_images(scratch / "bin")
        account = suite.Account(options.user, scratch / "home", scratch / "bin")
        account.home.mkdir()
        with images.registry(required_images, folder=scratch, report=say) as mirror:
            suite.prepare(account, mirror=mirror)
            with suite.cluster(account, keep=keep, report=say) as kubeconfig:
                for part in parts:
                    suite.run(
                        account,
                        kubeconfig,
                        labels=f"({suite.LABELS[options.suite]}) && {suite.PARTS[part]}",
                        focus=options.focus,
                        processes=1 if part == "serial" else options.processes,
                        keep=folders[part],
                        report=say,
                    )
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    outcomes = {name: how for part in parts for name, how in report.results(folders[part]).items()}
    failed = {name: how for name, how in outcomes.items() if how != "passed"}
    for name, how in failed.items():
        say(f"{name}\n        {how[:300]}")
    say(f"{len(outcomes) - len(failed)} of {len(outcomes)} passed; {keep} has the rest")
    if not options.focus and not options.only:
        report.write(KEPT)
    return bool(failed or not outcomes)


def _interrupt(number: int, frame: object) -> None:
    raise KeyboardInterrupt


if __name__ == "__main__":
    sys.exit(main())
