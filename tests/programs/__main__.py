"""Run programs and manifests that were not written for this kit: ``python -m tests.programs FOLDER [NAME…]``.

programs.toml says what they are, and how each ends. A repository lies at FOLDER/OWNER/NAME, at the commit of
the list, and is fetched if it does not; packages that programs need go into environments below FOLDER. Data
sets are replaced by small ones of random numbers. A program is launched on two nodes, its log is read, its
curve is drawn, its checkpoint is fetched; a manifest is applied by kubectl, which also judges it by `kubectl
wait`.
"""

import argparse
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import kitlib as kit

from . import data, table
from .entries import ROOT, Entry, check_out, make_environment, read_list

PROGRAM_SECONDS = 400
MANIFEST_SECONDS = 300


class UnexpectedEnd(Exception):
    """It did not end as the list says."""


def run_program(cluster: kit.Cluster, entry: Entry, folder: Path) -> None:
    """Launch a program, and look at what a learner would: log, curve, checkpoint."""
    volume, options = cluster.create_volume("programs"), dict[str, Any](entry.options)
    program = entry.file(folder)
    for name, maker in entry.data.items():
        with tempfile.TemporaryDirectory() as drawn:
            data.MAKERS[maker](Path(drawn))
            volume.upload(drawn, to=name, replace=True)
        options["volumes"] = {entry.mount: volume}
    for name, maker in entry.beside.items():
        if name == "." or not (program.parent / name).exists():
            (program.parent / name).mkdir(parents=True, exist_ok=True)
            data.MAKERS[maker](program.parent / name)
    if entry.before:
        words = [sys.executable if word == "python" else word for word in entry.before]
        subprocess.run(words, cwd=program.parent, check=True, stdout=subprocess.DEVNULL)
    if entry.server:
        cluster.kubectl(f"apply --filename={ROOT / entry.server}")
        cluster.kubectl(f"wait --timeout={MANIFEST_SECONDS}s deployment --all --for=condition=Available")
    files = entry.all_files
    options = {"nodes": 2} | options | {"args": entry.args, "files": files, "workspace": volume}
    if "root" in options:
        options["root"] = program.parent / options["root"]
    try:
        trainer = None if "module" in options else program
        run = kit.launch(trainer, cluster=cluster, name=entry.name, replace=True, **options)
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
            with tempfile.TemporaryDirectory() as data_folder:
                volume.download(f"runs/{entry.name}/{entry.checkpoint}", data_folder)
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
    declared_namespace = re.search(r"^  namespace: (\S+)$", text, re.MULTILINE)
    namespace = declared_namespace[1] if declared_namespace else entry.name
    if not declared_namespace or namespace not in cluster.kubectl("get namespaces"):
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
        if declared_namespace:
            cluster.kubectl(f"delete --wait=false --ignore-not-found --filename={entry.file(folder)}")
        else:
            cluster.kubectl(f"delete namespace {namespace} --wait=false")


def run_here(entries: Sequence[Entry], folder: Path) -> int:
    """Run entries in this environment, on a cluster of their own; return how many ended unexpectedly."""
    cluster = kit.create_cluster("local", name="programs", nodes=2)
    unexpected = 0
    try:
        for entry in entries:
            start, end = time.monotonic(), "as expected"
            try:
                (apply_manifest if entry.wait else run_program)(cluster, entry, folder)
            except (UnexpectedEnd, kit.KitError, subprocess.CalledProcessError) as error:
                unexpected, end = unexpected + 1, f"UNEXPECTED: {error}"
            seconds = round(time.monotonic() - start)
            print(f"| {entry.name} | {seconds} s | {entry.ends} | {end} |", flush=True)
            if end == "as expected":
                table.record(entry, seconds)
    finally:
        cluster.delete()
    return unexpected


def main() -> int:
    """Run what is asked for, and print a line of a table for each."""
    parser = argparse.ArgumentParser(prog="python -m tests.programs", description=__doc__)
    parser.add_argument("folder", type=Path, help="where the repositories are, as OWNER/NAME")
    parser.add_argument("names", nargs="*", metavar="NAME", help="of the list; by default all")
    parser.add_argument("--sources", default="https://github.com", help="where they are fetched from")
    parser.add_argument("--in-environment", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    folder = arguments.folder.absolute()
    entries = [entry for entry in read_list() if not arguments.names or entry.name in arguments.names]
    if arguments.in_environment:
        return run_here(entries, folder)
    check_out(entries, folder, arguments.sources)
    unexpected = 0
    for environment in sorted({entry.environment for entry in entries}):
        chosen = [entry for entry in entries if entry.environment == environment]
        if not environment:
            unexpected += run_here(chosen, folder)
            continue
        words = [make_environment(environment, folder), "-m", "tests.programs", "--in-environment", folder]
        unexpected += subprocess.run([*words, *(entry.name for entry in chosen)], cwd=ROOT).returncode
    table.write()
    print(f"{len(entries)} tried, {unexpected} ended unexpectedly")
    return min(unexpected, 1)


if __name__ == "__main__":
    sys.exit(main())
