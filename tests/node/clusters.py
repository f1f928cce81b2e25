"""A real local cluster for tests, driven as users do: ``python -m localkube``, kubectl, a client library.

Each cluster has a state directory of its own, so that tests neither see nor touch the user's clusters. What a
test waits for it learns from a watch; where nothing can be watched, ``eventually`` looks again and again.
"""

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import psutil
from kubernetes import client, config, watch

from ..patience import PATIENCE, eventually
from .restrictions import REPOSITORY, Enter

TERMINAL = ("Succeeded", "Failed")


class Refused(AssertionError):
    """``python -m localkube`` answered with an error; ``error`` has its what, about and fix."""

    def __init__(self, error: dict[str, str], output: str) -> None:
        super().__init__(f"{error}\n{output}")
        self.error = error


def localkube(
    *arguments: str, home: Path, env: dict[str, str] | None = None, **options: Any
) -> dict[str, Any]:
    """Run ``python -m localkube`` and return its result.

    Args:
        arguments: The verb, the name and so on.
        home: Its XDG_STATE_HOME.
        env: Further variables.
        options: Of ``subprocess.run``.

    Raises:
        Refused: It answered with an error.
    """
    command = [sys.executable, "-m", "localkube", *arguments]
    xdg = {"XDG_STATE_HOME": str(home), "XDG_CONFIG_HOME": str(config_of(home))}
    environment = {**os.environ, **xdg, "PYTHONPATH": str(REPOSITORY), **(env or {})}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False, **options)
    return answer(done.stdout, done.stderr)


def config_of(home: Path) -> Path:
    """The XDG_CONFIG_HOME of the clusters whose state is in ``home``."""
    return home / "config"


def list_registry(home: Path, address: str) -> None:
    """List a registry of the loopback for the clusters in ``home``: pods may then pull from it."""
    folder = config_of(home) / "trainyard" / "certs.d" / address
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "hosts.toml").write_text(f'server = "http://{address}"\n')


def answer(output: str, errors: str) -> dict[str, Any]:
    """Return the result among the JSON lines of ``python -m localkube``."""
    lines = [json.loads(line) for line in output.splitlines()]
    last = lines[-1] if lines else {}
    if "error" in last:
        raise Refused(last["error"], errors)
    assert "result" in last, f"no answer: {output}\n{errors}"
    return last["result"]


class RunningCluster:
    """A running cluster; ``status`` is what ``create`` answered, ``enter`` makes a command its user's."""

    def __init__(self, home: Path, status: dict[str, Any], *, enter: Enter | None = None) -> None:
        self.home = home
        self.enter = enter
        self.status = status
        self.name: str = status["name"]
        self.root = home / "trainyard" / "clusters" / self.name
        self._api = config.new_client_from_config(status["kubeconfig"])
        self.core = client.CoreV1Api(self._api)
        self.apps = client.AppsV1Api(self._api)
        self.coordination = client.CoordinationV1Api(self._api)

    def localkube(self, verb: str, *arguments: str) -> dict[str, Any]:
        return localkube(verb, self.name, *arguments, home=self.home, preexec_fn=self.enter)

    def kubectl(self, *arguments: str, stdin: Any = None) -> str:
        """Run kubectl, with an object for its stdin as JSON, and return its output."""
        done = subprocess.run(
            self.kubectl_command(*arguments),
            input=None if stdin is None else json.dumps(stdin),
            capture_output=True,
            text=True,
            timeout=2 * PATIENCE,
            check=False,
            preexec_fn=self.enter,
        )
        assert done.returncode == 0, f"kubectl {' '.join(arguments)}: {done.stdout}{done.stderr}"
        return done.stdout

    def kubectl_command(self, *arguments: str) -> list[str]:
        return [*self.status["kubectl"], "--kubeconfig", self.status["kubeconfig"], *arguments]

    def processes(self) -> list[psutil.Process]:
        """Return every process of this cluster, the supervisor first, as the host sees them."""
        supervisor = psutil.Process(self.status["processes"]["supervisor"]["pid"])
        return [supervisor, *supervisor.children(recursive=True)]

    def process(self, *words: str) -> psutil.Process:
        """Return the one process of this cluster that has these words in its command line, once it runs."""
        matches: list[psutil.Process] = []

        def look() -> int:
            several = self.processes_with(*words)
            # A shell's child has its words until it becomes what it was forked for.
            with suppress(psutil.NoSuchProcess):  # one ends at this moment
                matches[:] = [
                    child for child in several if child.ppid() not in {parent.pid for parent in several}
                ]
                return len(matches)
            return 0

        eventually(look, expected=1)
        return matches[0]

    def processes_with(self, *words: str) -> list[psutil.Process]:
        """Return the processes of this cluster with all these words in their command line."""
        return [process for process in self.processes() if set(words) <= set(command_line(process))]

    def restart_kubelet(self) -> None:
        """Kill the kubelet, and wait for the next one."""
        kubelet = self.process("localkube.kubelet")
        kubelet.kill()
        eventually(lambda: self.process("localkube.kubelet").pid != kubelet.pid)

    def close(self) -> None:
        self._api.close()


@contextmanager
def running_cluster(
    *shape: str, name: str = "lab", home: Path, enter: Enter | None = None, warm: bool = False, **options: Any
) -> Iterator[RunningCluster]:
    """Yield a new cluster; it is deleted whatever happens.

    Args:
        shape: Options of ``create``.
        name: The cluster's.
        home: Its XDG_STATE_HOME.
        enter: How a command becomes that of the cluster's user.
        warm: With a forkserver.
        options: Of ``localkube``.
    """
    shape = shape if warm else ("--no-warm", *shape)
    try:
        created = localkube("create", name, *shape, home=home, preexec_fn=enter, **options)
        cluster = RunningCluster(home, created, enter=enter)
        try:
            yield cluster
        finally:
            cluster.close()
    finally:
        localkube("delete", name, home=home, preexec_fn=enter, **options)


@contextmanager
def state_home(parent: Path) -> Iterator[Path]:
    """Yield a new directory below ``parent`` for clusters, and remove what is left of it."""
    with tempfile.TemporaryDirectory(prefix="home-", dir=parent) as path:
        yield Path(path)


class Pods:
    """Pods that a test makes in the namespace ``default``; those that are left are deleted after it."""

    def __init__(self, cluster: RunningCluster) -> None:
        self.cluster = cluster
        self._names: list[str] = []

    def __enter__(self) -> "Pods":
        return self

    def __exit__(self, *exc: object) -> None:
        for name in self._names:
            try:
                self.cluster.core.delete_namespaced_pod(name, "default", grace_period_seconds=0)
            except client.ApiException as error:
                if error.status != 404:
                    raise

    def create(self, manifest: dict[str, Any]) -> str:
        """Create a pod and return its name."""
        name = self.cluster.core.create_namespaced_pod("default", manifest).metadata.name
        self._names.append(name)
        return name

    def finish(self, manifest: dict[str, Any]) -> dict[str, Any]:
        """Create a pod and return it when it has succeeded or failed."""
        return self.until(self.create(manifest), lambda pod: pod["status"]["phase"] in TERMINAL)

    def running(self, manifest: dict[str, Any]) -> dict[str, Any]:
        """Create a pod and return it when it is ready."""
        return self.until(self.create(manifest), is_ready)

    def output(self, manifest: dict[str, Any], container: str = "main") -> str:
        """Run a pod that must succeed, and return what a container of it wrote."""
        pod = self.finish(manifest)
        if pod["status"]["phase"] == "Succeeded":
            return self.logs(pod, container)
        try:
            text = self.logs(pod, container)
        except client.ApiException as error:  # it has none: the status says why
            text = str(error.reason)
        raise AssertionError(f"the pod failed: {text}\n{pod['status']}")

    def until(self, name: str, condition: Callable[[dict[str, Any]], Any]) -> dict[str, Any]:
        """Watch a pod until ``seen`` holds for it, and return it."""
        last: Any = "nothing was seen of it"
        while True:
            before = last
            stream = watch.Watch().stream(
                self.cluster.core.list_namespaced_pod,
                "default",
                field_selector=f"metadata.name={name}",
                timeout_seconds=PATIENCE,
            )
            for event in stream:
                last = event["raw_object"]
                if event["type"] != "DELETED" and condition(last):
                    return last
            if last == before:
                status = last["status"] if isinstance(last, dict) else last
                raise AssertionError(f"pod {name}: for {PATIENCE} s there was nothing new: {status}")

    def wait_for_event(self, name: str, reason: str, words: str) -> dict[str, Any]:
        """Watch the events on a pod until one has the reason and the words, and return it."""
        messages = []
        stream = watch.Watch().stream(
            self.cluster.core.list_namespaced_event,
            "default",
            field_selector=f"involvedObject.name={name}",
            timeout_seconds=PATIENCE,
        )
        for event in stream:
            item = event["raw_object"]
            if item["reason"] == reason and words in item["message"]:
                return item
            messages.append((item["reason"], item["message"]))
        raise AssertionError(f"pod {name}: no event {reason} with {words!r} among {messages}")

    def gone(self, name: str) -> None:
        """Watch until the API has forgotten a pod."""
        self.cluster.kubectl("wait", "--for=delete", f"pod/{name}", f"--timeout={PATIENCE}s")

    def logs(self, pod: dict[str, Any] | str, container: str = "main", **options: Any) -> str:
        name = pod if isinstance(pod, str) else pod["metadata"]["name"]
        raw = self.cluster.core.read_namespaced_pod_log(
            name, "default", container=container, _preload_content=False, **options
        )
        return raw.data.decode()

    def wait_for_line(self, name: str, line: str, container: str = "main") -> None:
        """Follow a container's output until it has written ``line``."""
        self.until(
            name, lambda pod: "running" in state(pod, container) or "terminated" in state(pod, container)
        )
        stream = self.cluster.core.read_namespaced_pod_log(
            name,
            "default",
            container=container,
            follow=True,
            _preload_content=False,
            _request_timeout=PATIENCE,
        )
        output = b""
        for chunk in stream.stream():
            output += chunk
            if line.encode() in output.split(b"\n"):
                stream.close()
                return
        raise AssertionError(f"{line!r} is not in {output!r}")


def pod(
    script: str | None = None, *, name: str | None = None, labels: dict | None = None, **spec: Any
) -> dict:
    """Return the manifest of a pod with one container, ``main``, that runs a shell script.

    Args:
        script: For ``sh -c``; None when ``spec`` has containers of its own.
        name: Its name; by default a new one.
        labels: Of the pod.
        spec: The rest of the PodSpec; ``main`` goes to the container, ``annotations`` to the metadata.
    """
    main = {"name": "main", "image": "busybox"} | ({"command": ["sh", "-c", script]} if script else {})
    main |= spec.pop("main", {})
    metadata = {"labels": labels or {}, "annotations": spec.pop("annotations", {})}
    metadata |= {"name": name} if name else {"generateName": "test-"}
    body = {"restartPolicy": "Never", "terminationGracePeriodSeconds": 1, "containers": [main]} | spec
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": body}


def python(source: str) -> dict[str, Any]:
    """Return the part of a container that runs Python source."""
    return {"image": "python", "command": ["python", "-c", source]}


def on_node(index: int) -> dict[str, Any]:
    """Return the part of a PodSpec that binds it to a node."""
    return {"nodeSelector": {"kubernetes.io/hostname": f"node-{index}"}}


def container(pod: dict[str, Any], name: str = "main") -> dict[str, Any]:
    """Return a container's status; an empty one when nothing is reported yet."""
    status = pod["status"]
    statuses = [*status.get("initContainerStatuses", []), *status.get("containerStatuses", [])]
    return next((item for item in statuses if item["name"] == name), {"state": {}, "restartCount": 0})


def state(pod: dict[str, Any], name: str = "main") -> dict[str, Any]:
    return container(pod, name)["state"]


def is_ready(pod: dict[str, Any]) -> bool:
    conditions = {item["type"]: item["status"] for item in pod["status"].get("conditions", [])}
    return conditions.get("Ready") == "True"


def command_line(process: psutil.Process) -> list[str]:
    """Return its words; none of one that has ended."""
    try:
        return process.cmdline()
    except psutil.Error:
        return []
