"""An attendee who exhausts resources in turn, and another's training job that counts its steps.

An attack creates flows, connections (also to kubelets), DNS queries, inotify instances and processes without
end, runs one of the `attacks`, requests images from registries that never answer, and corrupts the data of
the instructor's table. The result is the job's speed with and without the attack, in the same cluster and
hour.
"""

import contextlib
import itertools
import statistics
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeVar

import kitlib as kit
from kitlib.errors import KitError
from kitlib.k8s import manifests
from kitlib.k8s.client import Kube
from kitlib.k8s.manifests import Object
from soak.attacks import ATTACKS, FINALIZER, LABELS
from soak.attendee import AT_ONCE, pod_spec, wait_until_done
from soak.neighbour import Neighbour
from trainyard_kit import workshop

NAME, TRAINER = "attacker", "trainer"
PORT, UDP_PORTS = 9000, range(9001, 9009)
SETTLE_SECONDS, MIN_SECONDS, PATIENCE_SECONDS = 5, 60, 60
# Shares of the job's speed, and of the time; the latter varies with nodes that are off.
MAX_LOST, MAX_STOPPED = 0.1, 0.25
SILENT_IMAGES = [f"192.0.2.{number}:5000/silent:1" for number in range(1, 4)]  # of RFC 5737: unused addresses
# A thread for each shared resource, which takes all that it gets and retries.
ATTACK = f"""
import ctypes, random, socket, threading, time
libc = ctypes.CDLL(None)
kept = []

def datagrams():
    sock = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    sock.sendto(b"x", ("attack", random.choice({list(UDP_PORTS)})))
    kept.append(sock)

def dials():
    sock = socket.socket()
    sock.setblocking(False)
    sock.connect_ex((f"198.51.100.{{random.randrange(1, 255)}}", random.randrange(1, 65536)))
    kept.append(sock)

def questions():
    name = bytes(random.choices(range(97, 123), k=12))
    head = random.randbytes(2) + bytes([1, 0, 0, 1, 0, 0, 0, 0, 0, 0])
    query = head + bytes([len(name)]) + name + b"\\3com\\0\\0\\1\\0\\1"
    asking.sendto(query, (server, 53))

def instances():
    if libc.inotify_init1(0) < 0:
        time.sleep(1)

def connections():
    for address, port in (("10.244.254.1", 10250), ("10.244.0.1", 4443), ("10.244.0.1", 6443)):
        sock = socket.socket()
        sock.setblocking(False)
        sock.connect_ex((address, port))
        kept.append(sock)
    time.sleep(0.01)

def processes():
    try:
        threading.Thread(target=time.sleep, args=(60,), daemon=True).start()
    except RuntimeError:
        time.sleep(1)

def repeat(act):
    while True:
        try:
            act()
        except OSError:
            time.sleep(0.01)
            if len(kept) > 10_000:
                kept.clear()

lines = open("/etc/resolv.conf").read().split()
server = lines[lines.index("nameserver") + 1]
asking = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
threads = [threading.Thread(target=repeat, args=(act,))
           for act in (datagrams, dials, questions, instances, connections, processes)]
for thread in threads:
    thread.start()
"""
# A step exchanges gradients with itself over a persistent connection, and computes.
TRAINING = f"""
import socket, threading, time
listener = socket.create_server(("", {PORT}))

def answer():
    while True:
        with listener.accept()[0] as peer:
            while data := peer.recv(65536):
                peer.sendall(data)

threading.Thread(target=answer, daemon=True).start()
gradients = bytes(65536)
second, steps = int(time.time()), 0
with open("/claim/steps", "a") as file:
    peer = None
    while True:
        try:
            peer = peer or socket.create_connection(("{TRAINER}", {PORT}), timeout=5)
            peer.sendall(gradients)
            left = len(gradients)
            while left and (data := peer.recv(left)):
                left -= len(data)
            sum(range(200_000))
            steps += 1
        except OSError:
            peer = None
        while second < int(time.time()):
            print(second, steps, file=file, flush=True)
            second, steps = second + 1, 0
"""


Result = TypeVar("Result")


class Attacker:
    """One attendee who attacks, and the training job of another.

    Args:
        cluster: The cluster of the soak test.
        victim: A client for the namespace of the training attendee.
    """

    def __init__(self, cluster: kit.Cluster, victim: Kube) -> None:
        self.cluster, self.victim = cluster, victim
        attendee = workshop.add(NAME, cluster=cluster, cpu="1", memory="2Gi")
        self.kube = Kube(attendee.kubeconfig, cluster="soak")
        self.attacks: list[list[float]] = []  # start and end, in seconds since the epoch
        self._rows = itertools.cycle(ATTACKS)

    def set_up(self) -> None:
        """Start the training job, and create the objects that exist before the attacks."""
        headless = {"spec": {"clusterIP": "None", "publishNotReadyAddresses": True}}
        self.victim.create(manifests.merge(_service(TRAINER, [("TCP", PORT)]), headless))
        self.victim.create(_deployment(TRAINER, TRAINING))
        self.kube.create(_service("attack", [("UDP", port) for port in UDP_PORTS]))

    def begin(self) -> str:
        """Start attacking; return the size of the instructor's table."""
        self.attacks.append([time.time(), float("inf")])
        _retry(self._attack)
        return f"{len(_retry(lambda: workshop.status(cluster=self.cluster)))} attendees in the table"

    def _attack(self) -> None:
        self.kube.apply(_deployment("attack", ATTACK))
        for number, image in enumerate(SILENT_IMAGES):
            requests = {"cpu": "1m", "memory": "4Mi", "ephemeral-storage": "1Mi"}
            container = {"name": "main", "image": image, "command": ["true"]}
            spec = {"containers": [container | {"resources": {"requests": requests}}]}
            labels = LABELS | {"trainyard/worker": "9" * 60, "trainyard/run": "spoiled"}
            pod = {"metadata": {"name": f"silent-{number}", "labels": labels}, "spec": spec}
            self.kube.apply({"apiVersion": "v1", "kind": "Pod"} | pod)
        self._create(next(self._rows))
        spoiled = {f"{number:02}_x": text for number, text in enumerate(("[" * 10_000, "NaN", '{"at": []}'))}
        self.kube.patch("ConfigMap", "notebook-progress", {"data": spoiled})

    def end(self) -> str:
        """Stop attacking."""
        _retry(lambda: self.kube.delete("Deployment", "attack"))
        _retry(self._delete)
        if self.attacks:
            self.attacks[-1][1] = min(self.attacks[-1][1], time.time())
        return "ended"

    def run_attacks(
        self, neighbour: Kube, *, count: int, report: Callable[[dict[str, Any]], None]
    ) -> list[str]:
        """Run all attacks while a neighbour works without faults; return its losses.

        Args:
            neighbour: A client for the neighbour's namespace.
            count: The number of attacks; delays are only checked if it is all of them.
            report: Called with the result of each.
        """
        problems = []
        with Neighbour(neighbour) as working:
            for name in itertools.islice(ATTACKS, count):
                with working.watching(starts=2) as record:
                    self._create(name)
                remaining = wait_until_done(self._delete, seconds=PATIENCE_SECONDS, report=lambda line: None)
                report({"attack": name, "neighbour": record.figures(), "left": remaining})
                delays = record.delays() if count >= len(ATTACKS) else []
                problems += [f"during {name}: {text}" for text in record.problems + delays]
        return problems

    def _create(self, name: str) -> None:
        for item in ATTACKS[name]():
            with contextlib.suppress(KitError):  # a rejected object is also a good result
                self.kube.create(item)

    def _delete(self) -> list[str]:
        """Delete an attack's objects; return the names of remaining pods."""
        labels = ",".join(f"{key}={value}" for key, value in LABELS.items())
        for kind in ("Job", "Pod", "PersistentVolumeClaim", "ConfigMap", "Secret", "Service"):
            for item in self.kube.get_all(kind, labels=labels):
                release(self.kube, kind, item)
                self.kube.delete(kind, item["metadata"]["name"], grace=0 if kind == "Pod" else None)
        return [pod["metadata"]["name"] for pod in self.kube.get_all("Pod", labels=labels)]

    def clean_up(self) -> list[tuple[int, int]]:
        """End everything; return the training job's steps in each second."""
        with contextlib.suppress(KitError):
            self.end()
        pods = self.victim.get_all("Pod", labels=f"app={TRAINER}")
        name = next(pod["metadata"]["name"] for pod in pods if pod["status"].get("phase") == "Running")
        lines = self.victim.execute(
            name, ["sh", "-c", "cat /claim/steps && rm /claim/steps"], container="main"
        ).splitlines()
        self.victim.delete("Deployment", TRAINER)
        self.victim.delete("Service", TRAINER)
        self.kube.delete("Service", "attack")
        return [(int(second), int(steps)) for second, steps in map(str.split, lines)]


def release(kube: Kube, kind: str, item: Object) -> None:
    """Remove the attacks' finalizer from an object, which nothing else removes."""
    if FINALIZER in item["metadata"].get("finalizers", ()):
        kube.patch(kind, item["metadata"]["name"], {"metadata": {"finalizers": None}})


def compare(counts: Iterable[tuple[int, int]], attacks: Iterable[Sequence[float]]) -> dict[str, Any]:
    """Compare the median of steps per second with and without an attack. Pure.

    Seconds without a step are counted separately, because nodes that are off stop the job on both sides.

    Example:
        >>> compare([(second, 10 - (second >= 100)) for second in range(200)], [(100, 200)])["lost"]
        0.1
    """
    windows = list(attacks)
    with_attack: list[int] = []
    without: list[int] = []
    for second, steps in counts:
        if any(abs(second - edge) < SETTLE_SECONDS for window in windows for edge in window):
            continue
        attacked = any(begin <= second < end for begin, end in windows)
        (with_attack if attacked else without).append(steps)
    figures = {"attacked": len(with_attack), "alone": len(without), "lost": None, "stopped": None}
    if min(len(with_attack), len(without)) < MIN_SECONDS:
        return figures
    speeds = [statistics.median(filter(None, steps)) if any(steps) else 0 for steps in (with_attack, without)]
    stops = [steps.count(0) / len(steps) for steps in (with_attack, without)]
    slowdown = 1 - speeds[0] / speeds[1] if speeds[1] else 0
    return figures | {"lost": round(slowdown, 3), "stopped": round(stops[0] - stops[1], 3)}


def problems(figures: dict[str, Any]) -> list[str]:
    """Evaluate the result of `compare`. Pure."""
    slowdown, stopped = figures["lost"] or 0, figures["stopped"] or 0
    slower = [f"an attacker took {slowdown:.0%} of another's training speed"] * (slowdown > MAX_LOST)
    return slower + [f"an attacker stopped another's training for {stopped:.0%}"] * (stopped > MAX_STOPPED)


def _retry(call: Callable[[], Result]) -> Result:
    """Retry while a component is unavailable."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    while True:
        try:
            return call()
        except KitError:
            if time.monotonic() > deadline:
                raise
            time.sleep(1)


def _service(name: str, ports: Iterable[tuple[str, int]]) -> dict[str, Any]:
    entries = [{"name": f"p{port}", "port": port, "protocol": protocol} for protocol, port in ports]
    spec = {"selector": {"app": name}, "ports": entries}
    return {"apiVersion": "v1", "kind": "Service", "metadata": {"name": name}, "spec": spec}


def _deployment(name: str, program: str) -> dict[str, Any]:
    spec = pod_spec(["python", "-u", "-c", program]) | {"tolerations": AT_ONCE}
    (container,) = spec["containers"]
    if name == TRAINER:  # unrequested cores are shared
        container["resources"] = {"requests": {"cpu": "500m", "memory": "64Mi", "ephemeral-storage": "1Mi"}}
    else:  # without a claim
        spec = {"containers": [container | {"volumeMounts": []}], "tolerations": AT_ONCE}
    template = {"metadata": {"labels": {"app": name}}, "spec": spec}
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": name},
        "spec": {"selector": {"matchLabels": {"app": name}}, "template": template},
    }
