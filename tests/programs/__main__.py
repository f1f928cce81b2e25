"""Run programs and manifests that were not written for this kit: ``python -m tests.programs FOLDER [NAME…]``.

programs.toml says what they are, and how each ends. Nothing is fetched here: a repository lies at
FOLDER/OWNER/NAME, at the commit of the list. Data sets are replaced by small ones of random numbers. A
program is launched on two nodes, its log is read, its curve is drawn, its checkpoint is fetched; a manifest
is applied by kubectl, which also judges it by `kubectl wait`.
"""

import argparse
import importlib.util
import re
import sys
import tempfile
import time
import tomllib
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import kitlib as kit

from . import data

LIST = Path(__file__).with_name("programs.toml")
PROGRAM_SECONDS = 400
MANIFEST_SECONDS = 300


class UnexpectedEnd(Exception):
    """It did not end as the list says."""


@dataclass(frozen=True)
class Entry:
    """A program or a manifest of the list.

    Attributes:
        path: Relative to its repository; with an empty ``repository``, to this folder.
        ends: How: "as it is", "with an argument", "with a package", or "not".
        why: For what is not "as it is".
        log: A regular expression that the log has; of what ends "not", its error.
        wait: Of a manifest: the arguments of `kubectl wait`.
        logs: Of a manifest: the arguments of `kubectl logs`.
        curve: ``run.metrics()`` has a loss.
        endless: It is not awaited: it runs until its log has what is expected.
        needs: A module that the environment of the pods has to have.
        checkpoint: A file that the program writes, relative to its working directory.
        data: Functions of `data` that make what it reads, below /data: ``../data`` of the working directory.
    """

    name: str
    path: str
    repository: str = ""
    commit: str = ""
    ends: str = "as it is"
    why: str = ""
    log: str = ""
    wait: str = ""
    logs: str = ""
    install: str = ""
    curve: bool = False
    endless: bool = False
    needs: str = ""
    checkpoint: str = ""
    data: tuple[str, ...] = ()
    args: tuple[str, ...] = ()
    files: tuple[str, ...] = ()
    options: dict[str, Any] = field(default_factory=dict)

    def file(self, folder: Path) -> Path:
        """Where the file is."""
        return (folder / self.repository if self.repository else Path(__file__).parent) / self.path


def read_list() -> list[Entry]:
    """Return the entries of programs.toml."""
    tables = tomllib.loads(LIST.read_text(encoding="utf-8"))
    entries = []
    for table in tables["manifest"] + tables["program"]:
        commit = tables["commits"].get(table.get("repository", ""), "")
        entries.append(Entry(**{"commit": commit} | table))
    return entries


def run_program(cluster: kit.Cluster, entry: Entry, folder: Path) -> None:
    """Launch a program, and look at what a learner would: log, curve, checkpoint."""
    volume, options = cluster.create_volume("programs"), dict[str, Any](entry.options)
    for name in entry.data:
        with tempfile.TemporaryDirectory() as made:
            data.MAKERS[name](Path(made))
            volume.upload(made, to=name, replace=True)
        options["volumes"] = {"/data": volume}
    options = {"nodes": 2} | options | {"args": entry.args, "files": entry.files, "workspace": volume}
    try:
        run = kit.launch(entry.file(folder), cluster=cluster, name=entry.name, replace=True, **options)
    except kit.KitError as error:
        return expect(entry, str(error), failed=True)
    try:
        if entry.endless:
            any(re.search(entry.log, line) for line in run.logs(follow=True, timeout=PROGRAM_SECONDS))
        else:
            run.wait(timeout=PROGRAM_SECONDS)
    except kit.KitError as error:
        return expect(entry, f"{error}\n{getattr(error, 'detail', '')}\n{run.logs()}", failed=True)
    else:
        expect(entry, str(run.logs()), failed=False)
        if entry.curve and (run.metrics().empty or "rank" not in repr(run.plot())):
            raise UnexpectedEnd(f"no curve in {str(run.logs())[-500:]!r}")
        if entry.checkpoint:
            with tempfile.TemporaryDirectory() as kept:
                volume.download(f"runs/{entry.name}/{entry.checkpoint}", kept)
    finally:
        run.delete()
        volume.remove(f"runs/{entry.name}")


def expect(entry: Entry, text: str, *, failed: bool) -> None:
    """Compare an end and its text with those of the list.

    Raises:
        UnexpectedEnd: They differ.
    """
    if failed != (entry.ends == "not") or not re.search(entry.log, text):
        raise UnexpectedEnd(f"{'failed' if failed else 'ended'}: {text[:900]}")


def apply_manifest(cluster: kit.Cluster, entry: Entry, folder: Path) -> None:
    """Apply a manifest in a namespace of its own, and let kubectl wait for its end."""
    if entry.install:
        kit.install(entry.install, cluster=cluster)
    text = entry.file(folder).read_text(encoding="utf-8")
    own = re.search(r"^  namespace: (\S+)$", text, re.MULTILINE)
    namespace = own[1] if own else entry.name
    if not own or namespace not in cluster.kubectl("get namespaces"):
        cluster.kubectl(f"create namespace {namespace}")
    try:
        try:
            cluster.kubectl(f"apply --namespace={namespace} --filename={entry.file(folder)}")
        except kit.KitError as error:
            return expect(entry, str(error), failed=True)
        wait = f"wait --namespace={namespace} --timeout={MANIFEST_SECONDS}s {entry.wait}"
        try:
            cluster.kubectl(wait)
            log = cluster.kubectl(f"logs --namespace={namespace} {entry.logs}") if entry.logs else ""
            expect(entry, str(log), failed=entry.ends == "not")
        except kit.KitError as error:
            events = cluster.kubectl(f"get pods,events --namespace={namespace}")
            raise UnexpectedEnd(f"{error}\n{events}") from error
    finally:
        if own:
            cluster.kubectl(f"delete --wait=false --ignore-not-found --filename={entry.file(folder)}")
        else:
            cluster.kubectl(f"delete namespace {namespace} --wait=false")


def missing(entries: Iterable[Entry], folder: Path) -> list[str]:
    """Name the repositories, with their commits, of files that are not in the folder."""
    absent = {
        f"{folder / entry.repository}: https://github.com/{entry.repository} at {entry.commit}"
        for entry in entries
        if not entry.file(folder).exists()
    }
    return sorted(absent)


def main() -> int:
    """Run what is asked for, and print a line of a table for each."""
    parser = argparse.ArgumentParser(prog="python -m tests.programs", description=__doc__)
    parser.add_argument("folder", type=Path, help="where the repositories are, as OWNER/NAME")
    parser.add_argument("names", nargs="*", metavar="NAME", help="of the list; by default all")
    given = parser.parse_args()
    entries = [entry for entry in read_list() if not given.names or entry.name in given.names]
    if absent := missing(entries, given.folder):
        print("These are missing:", *absent, sep="\n  ")
        return 2
    cluster = kit.create_cluster("local", name="programs", nodes=2)
    unexpected = 0
    try:
        for entry in entries:
            start, end = time.monotonic(), "as expected"
            if entry.needs and not importlib.util.find_spec(entry.needs):
                print(f"| {entry.name} | skipped: it needs the module {entry.needs} |", flush=True)
                continue
            try:
                (apply_manifest if entry.wait else run_program)(cluster, entry, given.folder)
            except (UnexpectedEnd, kit.KitError) as error:
                unexpected, end = unexpected + 1, f"UNEXPECTED: {error}"
            row = (
                entry.name,
                f"{entry.repository}/{entry.path}",
                f"{time.monotonic() - start:.0f} s",
                entry.ends,
            )
            print("|", " | ".join((*row, end)), "|", flush=True)
    finally:
        cluster.delete()
    print(f"{len(entries)} tried, {unexpected} ended unexpectedly")
    return min(unexpected, 1)


if __name__ == "__main__":
    sys.exit(main())
