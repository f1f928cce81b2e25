"""Run the suite against a local cluster: of this user, or of another whom root becomes."""

import codecs
import contextlib
import json
import os
import pwd
import re
import select
import shlex
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from localkube.controlplane import binaries
from localkube.controlplane.lock import Report
from localkube.errors import LocalClusterError
from localkube.paths import cache_dir

from ..node import restrictions
from . import programs

CLUSTER, NODES = "conformance", 2
SIGS = ("sig-node", "sig-storage", "sig-network", "sig-apps")
# What the official mode runs, and what else runs on a plain provider: no feature that has to be switched on.
LABELS = {
    "Conformance": "Conformance",
    "NodeConformance": "NodeConformance",
    "DRA": "DRA && !Alpha && !Disruptive && !Flaky",
    "sigs": f"({' || '.join(SIGS)}) && !Conformance && Feature: isEmpty && !Alpha && !Disruptive && !Flaky",
}
PARTS = {"parallel": "!Serial", "serial": "Serial"}
REPORT_SECONDS, STOP_SECONDS = 15, 120


@dataclass(frozen=True)
class Account:
    """A user who has the cluster and runs the suite, and a home of this run alone.

    Attributes:
        name: The user's name.
        home: A new folder; the user's XDG directories are below it.
        tools: A folder with the suite, ginkgo and kubectl, which everybody may read.
    """

    name: str
    home: Path
    tools: Path

    @property
    def own(self) -> bool:
        """Whether this process is that user's."""
        return pwd.getpwnam(self.name).pw_uid == os.getuid()

    def options(self) -> dict[str, Any]:
        """The options of ``subprocess`` for the user's commands."""
        folders = {f"XDG_{kind.upper()}_HOME": str(self.home / kind) for kind in ("state", "config", "data")}
        cache = cache_dir().parent if self.own else self.home / "cache"
        env = {
            "HOME": str(self.home),
            "XDG_CACHE_HOME": str(cache),
            "PATH": f"{self.tools}:{os.environ['PATH']}",
        }
        enter = None
        if os.getuid() == 0:
            user = pwd.getpwnam(self.name)
            # Pods write into directories of the node below /tmp, which are to be nobody else's.
            places = {} if self.own else {place: place for place in restrictions.python_places()}
            enter = restrictions.become(user.pw_uid, user.pw_gid, places | {Path("/tmp"): self.home / "tmp"})
        return {
            "env": os.environ | {"TMPDIR": "/tmp"} | folders | env,
            "cwd": restrictions.REPOSITORY if self.own else "/",
            "preexec_fn": enter,
            "start_new_session": True,
            "stdin": subprocess.DEVNULL,
        }


def prepare(account: Account, *, mirror: str) -> None:
    """Fill the account's folders: the control plane's programs, and the registry that mirrors the suite's."""
    account.home.chmod(0o755)
    hosts = account.home / "config" / "trainyard" / "certs.d" / "registry.k8s.io" / "hosts.toml"
    hosts.parent.mkdir(parents=True)
    (account.home / "tmp").mkdir()
    hosts.write_text(f'[host."http://{mirror}"]\n  capabilities = ["pull", "resolve"]\n')
    obtained = binaries.present()
    if not account.own:
        # The original is its owner's alone.
        for folder in {Path(command[0]).parent for command in obtained.programs.values()}:
            shutil.copytree(folder, account.home / "cache" / "trainyard" / "controlplane" / folder.name)
    user = pwd.getpwnam(account.name)
    for path in [account.home, *account.home.rglob("*")]:
        os.chown(path, user.pw_uid, user.pw_gid)
    (account.home / "tmp").chmod(0o1777)


def install_tools(folder: Path, *, report: Report) -> None:
    """Put the suite, ginkgo and kubectl in a folder that everybody may read."""
    folder.mkdir()
    binaries.obtain(report=report)
    for package in (programs.SUITE, programs.GINKGO):
        program = programs.obtain(package, report=report)
        shutil.copy(program, folder / program.name)
        (folder / program.name).chmod(0o755)
    kubectl = binaries.present().argv("kubectl")
    shutil.copy(kubectl[0], folder / "kubernetes")
    (folder / "kubernetes").chmod(0o755)
    (folder / "kubectl").write_text(f'#!/bin/sh\nexec {folder}/kubernetes {shlex.join(kubectl[1:])} "$@"\n')
    (folder / "kubectl").chmod(0o755)


@contextlib.contextmanager
def cluster(account: Account, *, keep: Path, report: Report) -> Iterator[Path]:
    """Create the account's cluster, and yield its kubeconfig; at the end delete it and keep its logs.

    Raises:
        LocalClusterError: It cannot be created.
    """
    try:
        created = _localkube(
            account, "create", CLUSTER, "--nodes", str(NODES), "--images", "pull", report=report
        )
        yield Path(created["kubeconfig"])
    finally:
        logs = account.home / "state" / "trainyard" / "clusters" / CLUSTER / "logs"
        shutil.copytree(logs, keep / "logs", dirs_exist_ok=True) if logs.exists() else None
        _localkube(account, "delete", CLUSTER, report=report)


def _localkube(account: Account, *arguments: str, report: Report) -> Any:
    command = [sys.executable, "-m", "localkube", *arguments]
    options = account.options()
    options["env"]["PYTHONPATH"] = str(restrictions.REPOSITORY)
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, **options) as process:
        for line in process.stdout or ():
            message = json.loads(line)
            if "progress" in message:
                report(message["progress"])
            elif "error" in message:
                raise LocalClusterError(**message["error"])
    return message["result"]


# A manifest of the suite has a newer tag than its list.
UNLISTED = ("registry.k8s.io/e2e-test-images/sample-device-plugin:1.8.0",)


def list_images(tools: Path) -> list[str]:
    """List the images that tests of the suite name."""
    done = subprocess.run([tools / "e2e.test", "--list-images"], capture_output=True, text=True, check=True)
    return [*done.stdout.split(), *UNLISTED]


def run(
    account: Account, kubeconfig: Path, *, labels: str, focus: str, processes: int, keep: Path, report: Report
) -> None:
    """Run the tests with these labels, and keep their JUnit file and their output.

    Args:
        account: Whose cluster it is.
        kubeconfig: Of the cluster.
        labels: A label filter of ginkgo's.
        focus: A regular expression that names of tests must match, or nothing.
        processes: How many tests at a time.
        keep: The folder for ``junit.xml`` and ``output.log``.
        report: Called with lines of progress.
    """
    shutil.rmtree(keep, ignore_errors=True)
    keep.mkdir(parents=True)
    results = account.home / "results"
    shutil.rmtree(results, ignore_errors=True)
    results.mkdir(mode=0o777)
    results.chmod(0o777)
    command: list[str | Path] = [
        account.tools / "ginkgo",
        "--no-color",
        "--timeout=24h",
        f"--procs={processes}",
    ]
    command += [f"--label-filter={labels}", *([f"--focus={focus}"] if focus else [])]
    command += [account.tools / "e2e.test", "--", f"--kubeconfig={kubeconfig}", f"--report-dir={results}"]
    command += ["--provider=skeleton", "--disable-log-dump", f"--kubectl-path={account.tools / 'kubectl'}"]
    with (
        (keep / "output.log").open("wb") as log,
        subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, **account.options()
        ) as process,
    ):
        try:
            _follow(process, log, f"{account.name}, {keep.name}", report)
        except BaseException:
            _stop(process)
            raise
        finally:
            for path in results.glob("junit*.xml"):
                shutil.copy(path, keep / path.name)


def _follow(process: subprocess.Popen, log: Any, what: str, report: Report) -> None:
    """Report how many tests are done, from ginkgo's output: a bullet each, and a word if it failed."""
    assert process.stdout is not None, "standard output is a pipe"
    start = spoke = time.monotonic()
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    output, done, failed, total = "", 0, 0, "?"

    def progress() -> str:
        return f"{what}: {done} of {total} done, {failed} failed, {(time.monotonic() - start) / 60:.1f} min"

    while True:
        if select.select([process.stdout], [], [], REPORT_SECONDS)[0]:
            data = os.read(process.stdout.fileno(), 1 << 16)
            if not data:
                break
            log.write(data)
            log.flush()
            text = decoder.decode(data)
            done += text.count("•")  # while they pass, all are on one line
            *lines, output = (output + text).split("\n")
            for line in lines:
                failed += bool(re.search(r"• \[[A-Z]", line))
                if announcement := re.search(r"Will run (\d+) of", line):
                    total = announcement[1]
        if time.monotonic() - spoke >= REPORT_SECONDS:
            spoke = time.monotonic()
            report(progress())
    report(progress())


def _stop(process: subprocess.Popen) -> None:
    """Have ginkgo end its tests, which delete what they made, and kill what is left."""
    with contextlib.suppress(ProcessLookupError):
        process.send_signal(signal.SIGINT)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.communicate(timeout=STOP_SECONDS)  # what it prints is read, or it would wait
        os.killpg(process.pid, signal.SIGKILL)
