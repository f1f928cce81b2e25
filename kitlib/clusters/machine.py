"""This machine: the local cluster's program, the machine's capabilities, and the images that it can run.

The package `localkube`, a separate distribution, is started as a program that prints JSON lines, and
never imported: any program with the same verbs could replace it.
"""

import contextlib
import importlib.util
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from subprocess import DEVNULL, PIPE
from typing import Any

from kitlib.config import DATA, ROOT
from kitlib.display.progress import progress
from kitlib.display.signatures import checked
from kitlib.display.tables import Table
from kitlib.errors import KitError, ProviderFailed
from kitlib.k8s.quantities import format_bytes

CALLS = {
    "create": 'kit.create_cluster("local", name="{0}")',
    "delete": 'kit.clusters.find("{0}").delete()',
    "list": "kit.list_clusters()",
    "start": 'kit.connect("{0}", start=True)',
}
VERB = re.compile(r"`python -m localkube ([\w-]{1,40}) ?([^`]{0,200})`")
COMMANDS = {"image-store": "images", "get-images": "images get"}
VERBS = 1  # the version of the verbs and their answers; `localkube.__main__` has the same
STOP_SECONDS = 90  # the program ends what it has begun, and kills what does not end
LITTLE_DISK, LITTLE_MEMORY = 2 * 2**30, 3 * 2**30


def is_installed() -> bool:
    """Whether the local cluster's program is on this machine."""
    return (ROOT / "localkube").is_dir() or importlib.util.find_spec("localkube") is not None


class Unfinished(KeyboardInterrupt):
    """The program was interrupted, and ended before its clean-up was complete."""


def call(*arguments: str, report: Callable[[str], None] = lambda text: None) -> Any:
    """Run one verb of ``python -m localkube`` and return its result.

    Raises:
        ProviderFailed: The program's own error; or it is not installed, or speaks another version.
    """
    if not is_installed():
        what, fix = "no local cluster is installed", "install trainyard-kit with its extra [local]"
        raise ProviderFailed(what, about="the Python package localkube", fix=fix)
    command = [sys.executable, "-m", "localkube", *arguments]
    environment = {"TRAINYARD_STAND_INS": str(DATA / "images" / "published.toml"), **os.environ}
    environment["TRAINYARD_VERBS"] = str(VERBS)
    with (
        tempfile.TemporaryFile("w+", errors="replace") as errors,  # a pipe fills up, and stops the program
        # In a session of its own, the program gets no Ctrl-C; it is passed on below.
        subprocess.Popen(
            command,
            stdin=DEVNULL,
            stdout=PIPE,
            stderr=errors,
            text=True,
            cwd=ROOT,
            env=environment,
            start_new_session=True,
        ) as process,
    ):
        assert process.stdout, "it is a pipe"
        try:
            answer: dict[str, Any] = {}
            for line in process.stdout:
                answer = _message(line)
                if "progress" in answer:
                    report(answer["progress"])
            process.wait()
            errors.seek(0)
            output = errors.read()
        except BaseException as interruption:
            if not _interrupt(process):
                raise Unfinished from interruption
            raise
    if answer.keys() & {"error", "result"} and answer.get("verbs") != VERBS:
        what = f"it speaks version {answer.get('verbs')} of the verbs, and this kit version {VERBS}"
        fix = "install trainyard-kit and trainyard-kit-localkube of the same release"
        raise ProviderFailed(what, about="the Python package localkube", fix=fix)
    if "error" in answer:
        error = answer["error"]
        raise ProviderFailed(error["what"], about=error["about"], fix=error["fix"])
    if "result" not in answer:
        raise ProviderFailed(
            f"the local cluster's program ended with status {process.returncode}, without a result\n"
            + output[-2000:].strip(),
            about=f"python -m localkube {' '.join(arguments)}",
            fix="try again; if it fails again, run: trainyard doctor",
        )
    return answer["result"]


def _for_the_kit(values: dict[str, Any]) -> dict[str, Any]:
    """Replace localkube's verbs in texts by the kit's calls and commands."""

    def call_of(match: re.Match[str]) -> str:
        verb, operands = match.groups()
        return f"`{CALLS.get(verb, f'trainyard {COMMANDS.get(verb, verb)} {{0}}').format(operands).rstrip()}`"

    return {
        key: VERB.sub(call_of, value) if isinstance(value, str) else value for key, value in values.items()
    }


def _interrupt(process: subprocess.Popen[str]) -> bool:
    """Send SIGINT to the program and its children; return whether it ended with its clean-up complete.

    Another Ctrl-C kills it at once.
    """
    try:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGINT)
        process.communicate(timeout=STOP_SECONDS)
    except (subprocess.TimeoutExpired, KeyboardInterrupt):
        with contextlib.suppress(KeyboardInterrupt):
            process.kill()
        return False
    return True


def _message(line: str) -> dict[str, Any]:
    try:
        message = json.loads(line, object_hook=_for_the_kit)
    except json.JSONDecodeError:
        return {}
    return message if isinstance(message, dict) else {}


@checked
def doctor() -> Table:
    """List cores, memory, disk, GPUs and rights of this machine, with what each means for a cluster.

    Example:
        >>> doctor()
    """
    report = call("doctor")
    separated = report["mode"] == "namespaces"
    cores, memory, disk = report["cores"], report["memory"], report["disk_free"]
    rows = [
        ("system", report["system"], ""),
        ("python", report["python"], ""),
        ("cores", cores, "pods take turns: speed-ups will not show" if cores < 2 else ""),
        ("memory", format_bytes(memory), "too little for four nodes" if memory < LITTLE_MEMORY else ""),
        (
            "disk",
            f"{format_bytes(disk)} free in {report['disk_path']}",
            report["disk_problem"] or ("too little" if disk < LITTLE_DISK else ""),
        ),
        (
            "gpus",
            ", ".join(gpu["name"] for gpu in report["gpus"]) or "none",
            "" if report["gpus"] else "training runs on the CPU",
        ),
        _kubernetes(report["kubernetes"]),
        _namespaces(report["namespaces"]),
        _mode(report["mode"]),
        *([_pod_users(report["pod_users"]), _filter(report["seccomp"])] if separated else []),
        *(("overloaded", item["resource"], f"{item['what']}: {item['fix']}") for item in report["overload"]),
    ]
    return Table(("item", "value", "note"), rows)


def _kubernetes(report: dict[str, str]) -> tuple[str, str, str]:
    if "build" in report:
        spared = "spared by the wheel trainyard-kit-controlplane, or by trainyard bundle use FILE"
        return "kubernetes", f"{report['version']} must be compiled: {report['build']}", spared
    return "kubernetes", f"{report['version']} from {report['origin']}", ""


def _namespaces(report: dict[str, Any]) -> tuple[str, str, str]:
    if report["allowed"]:
        return (
            "namespaces",
            "allowed",
            "pods are separated" + (", without root" if report["user_namespace"] else ""),
        )
    return "namespaces", f"refused: {report['reason']}", report["fix"]


def _pod_users(report: dict[str, Any]) -> tuple[str, str, str]:
    if report["size"] == 1:
        return "pods' users", "yours", "root of a container is you, without privileges"
    if not report["idmap"]:
        ids = f"{report['size']} ids from {report['first']}"
        return "pods' users", ids, "all pods share them: this file system has no idmapped mounts"
    return (
        "pods' users",
        f"{report['count']} ranges of {report['size']} ids from {report['first']}",
        "one a pod",
    )


def _filter(available: bool) -> tuple[str, str, str]:
    if available:
        return "system calls", "filtered", "as by Docker's default profile"
    return "system calls", "not filtered", "install libseccomp (Debian, Ubuntu: apt-get install libseccomp2)"


def _mode(mode: str) -> tuple[str, str, str]:
    if mode == "namespaces":
        return ("mode", "namespaces", "each pod has a network, processes and a file tree of its own")
    return (
        "mode",
        "plain: pods are processes of this machine",
        "pods see its files and its processes with your rights; nodes cannot be cut off from the network; "
        "the row above says how an administrator allows more",
    )


def load_images(file: str) -> list[dict[str, Any]]:
    """Load the images of an archive of ``docker save``, or of an OCI layout; return their records."""
    with progress("images") as line:
        loaded = call("image-store", "load", str(Path(file).absolute()), report=line.update)
        line.done(f"{len(loaded)} loaded")
    return loaded


def get_images(*names: str) -> list[dict[str, str]]:
    """Obtain the programs that images run on this machine's nodes, such as ``training-operator``.

    Returns:
        For each its name, version and folder; the folder has the program and, for an operator, ``manifests``.
    """
    with progress("images") as line:
        folders = call("get-images", *names, report=line.update)
        line.done(", ".join(f"{program['name']} {program['version']}" for program in folders))
    return folders


def manifests_here(program: str) -> Path | None:
    """Folder of the manifests beside an operator's program, if that is on this machine already."""
    with contextlib.suppress(KitError):  # no machine for local clusters, and so without their programs
        for image in call("get-images", "--here", program):
            return Path(image["folder"]) / "manifests"
    return None
