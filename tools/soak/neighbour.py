"""A neighbour of the attacker: it trains, queries DNS, and starts a pod every five seconds.

No pod or request of the neighbour may fail meanwhile; the durations of responses and pod starts are recorded.
The tests of attacks and the soak test use it; only the soak test checks the durations.
"""

import json
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from kitlib.errors import KitError
from kitlib.k8s import logs
from kitlib.k8s.client import Kube
from kitlib.k8s.manifests import Object

NAME = "neighbour"
START_SECONDS, LONGEST_START = 5.0, 60.0
DNS_BOUND, START_BOUND = 1.0, 3.0
TRAIN = """
import json, os, socket, threading, time
lines = open("/etc/resolv.conf").read().split()
server = lines[lines.index("nameserver") + 1]
name = b"\\nkubernetes\\7default\\3svc\\7cluster\\5local\\0"
question = b"\\0\\7\\1\\0\\0\\1" + bytes(6) + name + b"\\0\\1\\0\\1"
steps = 0

def measure_dns():
    while True:
        began = time.monotonic()
        with socket.socket(type=socket.SOCK_DGRAM) as client:
            client.settimeout(5)
            try:
                client.sendto(question, (server, 53))
                answered = client.recv(512)[3] & 15 == 0
            except OSError:
                answered = False
        waited = time.monotonic() - began
        line = {"time": time.time(), "dns": waited, "answered": answered, "steps": steps}
        print(json.dumps(line), flush=True)
        time.sleep(max(0, 0.25 - waited))

threading.Thread(target=measure_dns, daemon=True).start()
weights = [0.5] * 1000
while True:
    weights = [weight - 0.01 * (weight - 0.1) for weight in weights]
    steps += 1
    if not steps % 1000:
        with open("/tmp/checkpoint", "w") as file:
            json.dump(weights, file)
            os.fsync(file.fileno())
    time.sleep(0.001)
"""


@dataclass
class Record:
    """The neighbour's observations.

    Attributes:
        starts: Seconds from the creation of each pod to the end of its program.
        dns: Seconds of each DNS response.
        lost: The number of queries without a response.
        steps: Training steps.
        problems: Descriptions of failed pods and requests.
    """

    starts: list[float] = field(default_factory=list)
    dns: list[float] = field(default_factory=list)
    lost: int = 0
    steps: int = 0
    problems: list[str] = field(default_factory=list)

    def figures(self) -> dict[str, object]:
        """Summarise the record: the longest waits, and how many there were."""
        return {
            "dns": len(self.dns),
            "dns_longest": round(max(self.dns, default=0), 3),
            "dns_lost": self.lost,
            "starts": len(self.starts),
            "start_longest": round(max(self.starts, default=0), 2),
            "steps": self.steps,
        }

    def delays(self) -> list[str]:
        """Name the waits above the limits: one second for a response and three for a pod."""
        late_answers = sum(seconds > DNS_BOUND for seconds in self.dns) + self.lost
        late_starts = [round(seconds, 1) for seconds in self.starts if seconds > START_BOUND]
        problems = [f"{late_answers} DNS responses were late or lost"] if late_answers else []
        return problems + ([f"pods started after {late_starts} s"] if late_starts else [])


class Neighbour:
    """A pod that trains and sends DNS queries, and a thread that starts further pods.

    Args:
        kube: A client for the neighbour's namespace.
    """

    def __init__(self, kube: Kube) -> None:
        self._kube = kube
        self._stopping, self._started = threading.Event(), threading.Condition()
        self._starts: list[tuple[float, float]] = []
        self._refused: list[tuple[float, str]] = []
        self._thread = threading.Thread(target=self._start_pods, name=NAME, daemon=True)

    def __enter__(self) -> "Neighbour":
        spec = _spec(["python", "-u", "-c", TRAIN])
        self._pod = self._kube.create(_pod({"name": NAME}, spec | {"restartPolicy": "Always"}))
        self._until(NAME, ("Running",), seconds=LONGEST_START)
        self._thread.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self._stopping.set()
        self._thread.join()
        self._kube.delete("Pod", NAME, grace=0)

    @contextmanager
    def watching(self, *, starts: int = 1) -> Iterator[Record]:
        """Record the neighbour's observations until the block ends, for at least some pod starts."""
        record, start, count = Record(), time.time(), len(self._starts) + len(self._refused)
        try:
            yield record
        finally:
            with self._started:
                self._started.wait_for(
                    lambda: len(self._starts) + len(self._refused) >= count + starts + 1,
                    timeout=(starts + 1) * (LONGEST_START + START_SECONDS),
                )
            self._fill(record, start)

    def _fill(self, record: Record, start: float) -> None:
        record.starts += [seconds for at, seconds in self._starts if at >= start]
        record.problems += [text for at, text in self._refused if at >= start]
        pod = self._kube.find("Pod", NAME)
        if pod is None or pod["metadata"]["uid"] != self._pod["metadata"]["uid"]:
            record.problems.append("the neighbour's pod was deleted")
            return
        status = (pod["status"].get("containerStatuses") or [{}])[0]
        if pod["status"]["phase"] != "Running" or status.get("restartCount") or not status.get("ready"):
            record.problems.append(f"the neighbour's pod has ended: {json.dumps(pod['status'])}")
        rows = [json.loads(line.text) for line in logs.read(self._kube, pod) if line.text.startswith("{")]
        rows = [row for row in rows if row["time"] >= start]
        record.dns += [row["dns"] for row in rows if row["answered"]]
        record.lost += sum(not row["answered"] for row in rows)
        record.steps = rows[-1]["steps"] - rows[0]["steps"] if rows else 0
        if not record.dns or not record.steps:
            record.problems.append("the neighbour had no DNS response, or no training step")

    def _start_pods(self) -> None:
        number = 0
        while not self._stopping.is_set():
            number, start, name = number + 1, time.time(), f"{NAME}-{number}"
            try:
                self._kube.create(_pod({"name": name}, _spec(["true"]) | {"restartPolicy": "Never"}))
                phase = self._until(name, ("Succeeded", "Failed"), seconds=LONGEST_START)
                self._kube.delete("Pod", name, grace=0)
                text = (
                    "" if phase == "Succeeded" else f"pod {name} of the neighbour is {phase or 'not started'}"
                )
            except KitError as error:
                text = f"pod {name}: {error}"
            with self._started:
                if text:
                    self._refused.append((start, text))
                else:
                    self._starts.append((start, time.time() - start))
                self._started.notify_all()
            self._stopping.wait(max(0.0, start + START_SECONDS - time.time()))

    def _until(self, name: str, phases: tuple[str, ...], *, seconds: float) -> str:
        """Watch a pod until it is in one of the phases, or the time limit; return its phase."""
        end, phase = time.monotonic() + seconds, ""
        while time.monotonic() < end:
            pods, version = self._kube.get_all_at("Pod", fields=f"metadata.name={name}")
            phase = pods[0]["status"].get("phase", "") if pods else ""
            if phase in phases:
                return phase
            stream = self._kube.watch("Pod", version, fields=f"metadata.name={name}")
            timer = threading.Timer(end - time.monotonic(), stream.close)
            timer.start()
            try:
                for line in stream:
                    phase = json.loads(line)["object"].get("status", {}).get("phase", phase)
                    if phase in phases:
                        return phase
            finally:
                timer.cancel()
                stream.close()
        return phase


def _spec(command: list[str]) -> Object:
    resources = {"requests": {"cpu": "100m", "memory": "16Mi", "ephemeral-storage": "1Mi"}}
    main = {"name": "main", "image": "python", "command": command, "resources": resources}
    return {"terminationGracePeriodSeconds": 1, "containers": [main]}


def _pod(metadata: Object, spec: Object) -> Object:
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}
