"""The actions of an attendee with their own kubeconfig: objects, jobs, exec, logs and port-forwards."""

import contextlib
import subprocess
import threading
import time
import urllib.request
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

from kitlib.errors import KitError, Rejected
from kitlib.k8s.client import Kube
from kitlib.k8s.manifests import Object
from soak.ledger import ABSENT, Ledger

DESK = "desk"
PORT = 8000
LABELS = {"soak": "yes"}
MAX_JOBS, MAX_OBJECTS = 4, 40
ANSWER_SECONDS = 30
# Pods of a lost node are replaced after 5 s, not after Kubernetes' five minutes.
AT_ONCE = [
    {
        "key": f"node.kubernetes.io/{taint}",
        "operator": "Exists",
        "effect": "NoExecute",
        "tolerationSeconds": 5,
    }
    for taint in ("unreachable", "not-ready")
]
# It numbers its lines, so that gaps in the log are detected, and answers on a port.
PROGRAM = f"""
import http.server, itertools, threading, time
class Answer(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.end_headers()
    def log_message(self, *words):
        pass
server = http.server.ThreadingHTTPServer(("127.0.0.1", {PORT}), Answer)
threading.Thread(target=server.serve_forever, daemon=True).start()
for number in itertools.count():
    print("line", number, flush=True)
    time.sleep(1)
"""


class Broken(Exception):
    """An invariant does not hold."""


class Attendee:
    """One attendee of the shared cluster.

    Args:
        name: The attendee's name.
        kubeconfig: The attendee's kubeconfig.
        kubectl: The command of kubectl, for port-forwards.
        ledger: The ledger of all attendees.
    """

    def __init__(self, name: str, kubeconfig: Path, *, kubectl: Sequence[str], ledger: Ledger) -> None:
        self.name = name
        self.kube = Kube(kubeconfig, cluster="soak")
        self.namespace = self.kube.namespace
        self._kubectl = [*kubectl, "--kubeconfig", str(kubeconfig)]
        self._ledger = ledger
        self._gaps: list[tuple[str, str]] = []
        self._lock = threading.Lock()  # serialises changes of one object

    def set_up(self) -> None:
        """Create the permanent objects of an attendee: a claim, and a Deployment with one pod."""
        self.kube.create(
            {
                "apiVersion": "v1",
                "kind": "PersistentVolumeClaim",
                "metadata": {"name": "work"},
                "spec": {"accessModes": ["ReadWriteMany"], "resources": {"requests": {"storage": "1Gi"}}},
            }
        )
        spec = pod_spec(["python", "-u", "-c", PROGRAM]) | {"tolerations": AT_ONCE}
        self.kube.create(
            {
                "apiVersion": "apps/v1",
                "kind": "Deployment",
                "metadata": {"name": DESK},
                "spec": {
                    "selector": {"matchLabels": {"app": DESK}},
                    "template": {"metadata": {"labels": {"app": DESK}}, "spec": spec},
                },
            }
        )

    def act(self, what: str, number: int, pick: float) -> str:
        """Perform an action and return its result.

        Args:
            what: A kind of the plan's lane "attendees".
            number: The number of the disturbance, for names.
            pick: Between 0 and 1; selects the object.

        Raises:
            KitError: It failed because a component was not available.
            Broken: The result is wrong.
        """
        match what:
            case "create":
                return self._create_object(f"object-{number}", f"{what} {number}")
            case "update":
                return self._pick_one("ConfigMap", pick, lambda name: self._update(name, f"{what} {number}"))
            case "delete":
                return self._pick_one("ConfigMap", pick, lambda name: self._delete("ConfigMap", name))
            case "job":
                return self._create_job(f"job-{number}", seconds=round(20 * pick**3))
            case "delete job":
                return self._pick_one("Job", pick, lambda name: self._delete("Job", name))
            case "exec":
                return self.execute(f"said-{number}")
            case "logs":
                return self.follow(seconds=5 + 40 * pick)
            case "port-forward":
                return self.forward(seconds=20 * pick)
        raise ValueError(what)

    # Objects.

    def _create_object(self, name: str, content: str) -> str:
        if len(self._ledger.usable(self.namespace, "ConfigMap")) >= MAX_OBJECTS:
            return self._pick_one("ConfigMap", 0, lambda name: self._delete("ConfigMap", name))
        item = {
            "apiVersion": "v1",
            "kind": "ConfigMap",
            "metadata": {"name": name, "labels": LABELS},
            "data": {"content": content},
        }
        return self._request("ConfigMap", name, content, lambda: self.kube.create(item))

    def _update(self, name: str, content: str) -> str:
        version = self.kube.get("ConfigMap", name)["metadata"]["resourceVersion"]
        change = {"metadata": {"resourceVersion": version}, "data": {"content": content}}
        return self._request("ConfigMap", name, content, lambda: self.kube.patch("ConfigMap", name, change))

    def _delete(self, kind: str, name: str) -> str:
        return self._request(kind, name, ABSENT, lambda: self.kube.delete(kind, name))

    def _create_job(self, name: str, *, seconds: int) -> str:
        if len(self._ledger.usable(self.namespace, "Job")) >= MAX_JOBS:
            return self._pick_one("Job", 0, lambda name: self._delete("Job", name))
        script = f"echo begun; sleep {seconds}; until touch /claim/{name}; do sleep 1; done; echo done"
        item = {
            "apiVersion": "batch/v1",
            "kind": "Job",
            "metadata": {"name": name, "labels": LABELS},
            "spec": {
                "backoffLimit": 1000,
                "template": {
                    "spec": pod_spec(["sh", "-c", script])
                    | {"restartPolicy": "OnFailure", "tolerations": AT_ONCE}
                },
            },
        }
        return self._request("Job", name, name, lambda: self.kube.create(item))

    def _pick_one(self, kind: str, pick: float, call: Callable[[str], str]) -> str:
        with self._lock:
            names = self._ledger.usable(self.namespace, kind)
            return call(names[int(pick * len(names))]) if names else f"there is no {kind}"

    def _request(self, kind: str, name: str, content: str | None, send: Callable[[], object]) -> str:
        key = (self.namespace, kind, name)
        states = self._ledger.possible(key)
        self._ledger.sent(key, content)
        try:
            send()
        except Rejected as error:
            if error.status < 500:
                self._ledger.refused(key, content, states)
            else:
                self._ledger.lost(key, content)
            raise
        except KitError:
            self._ledger.lost(key, content)
            raise
        self._ledger.answered(key, content)
        return name

    def objects(self) -> dict[tuple[str, str, str], str]:
        """Return this attendee's objects, by key of the ledger."""
        by_key = {}
        for kind in ("ConfigMap", "Job"):
            for item in self.kube.get_all(kind, labels="soak=yes"):
                name = item["metadata"]["name"]
                content = item["data"]["content"] if kind == "ConfigMap" else name
                by_key[self.namespace, kind, name] = content
        return by_key

    def unfinished(self) -> list[str]:
        """Return the jobs that have not succeeded, and the desk if it is not ready."""
        jobs = [
            f"{self.namespace}/{item['metadata']['name']}: {item.get('status')}"
            for item in self.kube.get_all("Job", labels="soak=yes")
            if not item.get("status", {}).get("succeeded")
        ]
        desk = self.kube.get("Deployment", DESK).get("status", {})
        return jobs + ([] if desk.get("readyReplicas") == 1 else [f"{self.namespace}/{DESK}: {desk}"])

    def missing_files(self) -> list[str]:
        """Return the succeeded jobs whose file is missing on the claim."""
        existing = set(self.kube.execute(self._desk(), ["ls", "/claim"], container="main").split())
        succeeded = {item["metadata"]["name"] for item in self.kube.get_all("Job", labels="soak=yes")}
        return [f"{self.namespace}: no file of {name}" for name in sorted(succeeded - existing)]

    def clear(self) -> None:
        """Delete jobs, objects and ended pods, but not the desk."""
        for kind in ("Job", "ConfigMap"):
            for item in self.kube.get_all(kind, labels="soak=yes"):
                self._delete(kind, item["metadata"]["name"])
        for item in self.kube.get_all("Pod"):
            if item["status"].get("phase") in ("Failed", "Succeeded"):
                self.kube.delete("Pod", item["metadata"]["name"])
        self.kube.execute(self._desk(), ["sh", "-c", "rm -f /claim/job-*"], container="main")

    def pods(self) -> list[str]:
        """Return the names of all pods."""
        return [item["metadata"]["name"] for item in self.kube.get_all("Pod")]

    # Streams.

    def execute(self, text: str) -> str:
        """Run a command in the desk's pod."""
        output = self.kube.execute(self._desk(), ["echo", text], container="main")
        if output.strip() != text:
            raise Broken(f"{self.namespace}: exec of `echo {text}` wrote {output!r}")
        return "wrote it"

    def follow(self, *, seconds: float) -> str:
        """Follow the desk's log for a while: its lines are numbered, see `unexplained_gaps`."""
        name = self._desk()
        stream = self.kube.stream(
            f"{self.kube.path('Pod', name)}/log", about=f"the log of {name}", params={"follow": "true"}
        )
        end = threading.Timer(seconds, stream.close)
        end.start()
        try:
            return f"{count_lines(stream, about=self.namespace)} lines"
        except Broken as error:
            self._gaps.append((name, str(error)))
            return str(error)
        finally:
            end.cancel()
            stream.close()

    def unexplained_gaps(self) -> list[str]:
        """Return the gaps in logs without an Event; a full disk causes an Event."""
        gaps = [
            event["involvedObject"]["name"]
            for event in self.kube.get_all("Event", fields="reason=LogLost")
            if event["involvedObject"]["kind"] == "Pod"
        ]
        return [gap for pod, gap in self._gaps if pod not in gaps]

    def forward(self, *, seconds: float) -> str:
        """Forward a port of the desk's pod, send a request, and stay connected for a while."""
        command = [*self._kubectl, "port-forward", f"pod/{self._desk()}", f":{PORT}"]
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
            killer = threading.Timer(ANSWER_SECONDS + seconds, process.kill)
            killer.start()
            assert process.stdout and process.stderr
            try:
                line = process.stdout.readline()
                if " -> " not in line:
                    return f"failed: {process.stderr.read().strip()[-200:]}"
                port = line.split(" -> ")[0].rsplit(":", 1)[1]
                with urllib.request.urlopen(f"http://127.0.0.1:{port}/", timeout=ANSWER_SECONDS) as answer:
                    status = answer.status
                with contextlib.suppress(subprocess.TimeoutExpired):
                    process.wait(seconds)
                return f"HTTP {status}"
            except OSError as error:
                return f"failed: {error}"
            finally:
                killer.cancel()
                process.kill()

    def _desk(self) -> str:
        for item in self.kube.get_all("Pod", labels=f"app={DESK}"):
            ready = [
                condition
                for condition in item["status"].get("conditions", [])
                if condition["type"] == "Ready"
            ]
            if ready and ready[0]["status"] == "True" and "deletionTimestamp" not in item["metadata"]:
                return item["metadata"]["name"]
        raise KitError("no pod of the desk is ready", about=self.namespace, fix="wait")


def count_lines(lines: Iterable[str], *, about: str) -> int:
    """Count the lines of `PROGRAM`.

    Raises:
        Broken: A line is missing, repeated or incomplete.
    """
    previous, count = None, 0
    for line in lines:
        label, _, number = line.partition(" ")
        if label != "line" or not number.isdecimal() or previous not in (None, int(number) - 1):
            raise Broken(f"{about}: in the log, line {previous} is followed by {line!r}")
        previous, count = int(number), count + 1
    return count


def pod_spec(command: list[str]) -> Object:
    """Return the spec of a pod that has the attendee's claim at /claim."""
    return {
        "terminationGracePeriodSeconds": 1,
        "containers": [
            {
                "name": "main",
                "image": "python",
                "command": command,
                "resources": {"requests": {"cpu": "10m", "memory": "16Mi", "ephemeral-storage": "1Mi"}},
                "volumeMounts": [{"name": "work", "mountPath": "/claim"}],
            }
        ],
        "volumes": [{"name": "work", "persistentVolumeClaim": {"claimName": "work"}}],
    }


def wait_until_done(
    read: Callable[[], list[str]], *, seconds: float, report: Callable[[dict[str, Any]], None]
) -> list[str]:
    """Wait until nothing is left, or nothing has changed for a while; return the rest."""
    remaining, deadline = None, time.monotonic() + seconds
    while True:
        try:
            names = read()
        except KitError as error:
            names = [str(error)]
        if not names:
            return []
        if names != remaining:
            remaining, deadline = names, time.monotonic() + seconds
            report({"what": "wait", "for": names[:5]})
        if time.monotonic() > deadline:
            return names
        time.sleep(1)
