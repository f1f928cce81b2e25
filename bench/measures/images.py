"""Pulled images: pull and start beside Docker's, a second start beside a stand-in's, the disk of many pods.

One registry on loopback serves both sides, an image of BusyBox and a hundred megabytes that no compression
shortens. Docker makes and pushes it, so without Docker there is nothing to measure. Before each pull the
image is removed on its side.
"""

import os
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from bench.errors import MeasureFailed, NotHere
from bench.lab import KUBELET, KWOK, Lab
from bench.measures.pod_start import series
from bench.results import Limit, Result
from bench.sampling import alternate, percentile
from bench.watching import Watch, has_started
from kitlib.k8s.client import Kube
from localkube.controlplane import binaries
from localkube.paths import images_dir
from localkube.runtime.trees import disk_usage

MEGABYTES, QUICK_MEGABYTES = 100, 10
PODS, STARTS = 10, 20
BUSYBOX = Path("/bin/busybox")
DOCKERFILE = """FROM scratch
COPY busybox /bin/busybox
COPY content /content
CMD ["/bin/busybox", "sleep", "1000"]
"""
REGISTRY = """version: 0.1
log: {{level: error}}
storage: {{filesystem: {{rootdirectory: {root}}}}}
http: {{addr: {address}}}
"""


def measure(lab: Lab) -> list[Result]:
    """Pull, start again, and fill the disk."""
    missing = [name for name in ("docker", "docker-registry") if shutil.which(name) is None]
    if not BUSYBOX.is_file():
        missing.append("busybox-static")
    if missing or subprocess.run(["docker", "info"], capture_output=True, check=False).returncode:
        raise NotHere(f"Docker has to make the image: {', '.join(missing) or 'its daemon'} is missing")
    lab.clear(KUBELET, KWOK)
    size = QUICK_MEGABYTES if lab.quick else MEGABYTES
    with _registry(lab.folder) as address, _pushed(f"{address}/bench:1", size, lab.folder) as image:
        return [_pulls(lab, image, size), _second_starts(lab, image), _disk(lab, image, size)]


def _pulls(lab: Lab, image: str, size: int) -> Result:
    def ours() -> float:
        _store("prune", "--all", "--min-age", "0s")
        if (images_dir() / "images").is_dir() and any((images_dir() / "images").iterdir()):
            raise MeasureFailed("the image is still in the store")
        return _start(lab.ours.kube, image, policy="Always")

    def theirs() -> float:
        subprocess.run(["docker", "image", "rm", "--force", image], capture_output=True, check=False)
        began = time.monotonic()
        command = ["docker", "run", "--rm", "--pull", "always", image, "/bin/busybox", "true"]
        subprocess.run(command, capture_output=True, check=True)
        return time.monotonic() - began

    lab.report("pulling and starting an image, here and with Docker")
    samples = alternate({"ours": ours, "theirs": theirs}, lab.rounds)
    return Result(
        what=f"pull and start of an image of {size} MB from a local registry",
        unit="s",
        ours=tuple(samples["ours"]),
        peer="docker run --pull always",
        theirs=tuple(samples["theirs"]),
        limit=Limit(1.0),
        notes="ours begins before the pod's creation and ends with its container started; Docker's has run",
    )


def _second_starts(lab: Lab, image: str) -> Result:
    kube = lab.ours.kube
    _start(kube, image, policy="IfNotPresent")
    sides = {
        "ours": lambda: percentile(series(kube, STARTS, image=image), 50),
        "theirs": lambda: percentile(series(kube, STARTS), 50),
    }
    lab.report("starting pods of a pulled image and of a stand-in")
    samples = alternate(sides, lab.rounds)
    return Result(
        what=f"pod of a pulled image created → started, p50 of {STARTS}",
        unit="ms",
        ours=tuple(samples["ours"]),
        peer="a stand-in's",
        theirs=tuple(samples["theirs"]),
        limit=Limit(1.3),
    )


def _disk(lab: Lab, image: str, size: int) -> Result:
    kube = lab.ours.kube
    places = [images_dir(), lab.folder / "state" / "trainyard" / "clusters"]

    def used(pods: int) -> float:
        names = [f"filler-{number}" for number in range(pods)]
        for name in names:
            _start(kube, image, policy="IfNotPresent", name=name, keep=True)
        bytes_used = sum(disk_usage(place / part) for place, part in _parts(places))
        for name in names:
            kube.delete("Pod", name)
        return bytes_used / 1e6

    lab.report("filling the disk with pods of one image")
    return Result(
        what=f"disk of {PODS} pods of one image of {size} MB",
        unit="MB",
        ours=(used(PODS),),
        peer="one pod",
        theirs=(used(1),),
        limit=Limit(1.1),
    )


def _parts(places: list[Path]) -> Iterator[tuple[Path, str]]:
    store, clusters = places
    yield store, "."
    for cluster in clusters.glob("[!.]*"):
        yield cluster, "pods"


def _start(kube: Kube, image: str, *, policy: str, name: str = "pulled", keep: bool = False) -> float:
    """Return the seconds from a pod's creation to its started container."""
    container = {"name": "main", "image": image, "imagePullPolicy": policy}
    spec = {"containers": [container], "terminationGracePeriodSeconds": 0}
    with Watch(kube, "Pod") as watch:
        began = time.monotonic()
        pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": spec}
        uid = kube.create(pod)["metadata"]["uid"]
        started, _ = watch.until(
            lambda kind, pod: pod["metadata"]["uid"] == uid and has_started(pod), what=f"{name} started"
        )
        if not keep:
            kube.delete("Pod", name)
            watch.until(
                lambda kind, pod: kind == "DELETED" and pod["metadata"]["uid"] == uid, what=f"{name} gone"
            )
    return started - began


def _store(*words: str) -> None:
    verb, *rest = words
    argv = binaries.present().argv("images", verb, "--store", str(images_dir()), *rest)
    subprocess.run(argv, capture_output=True, stdin=subprocess.DEVNULL, check=True)


@contextmanager
def _registry(folder: Path) -> Iterator[str]:
    """Run Debian's registry on a free port of loopback."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{free.getsockname()[1]}"
    file = folder / "registry.yml"
    file.write_text(REGISTRY.format(root=folder / "registry", address=address))
    with subprocess.Popen(
        ["docker-registry", "serve", str(file)], stdout=subprocess.DEVNULL, stderr=subprocess.STDOUT
    ) as process:
        # Pods pull from the loopback where its owner lists the registry.
        config = Path(os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config")
        listed = config / "trainyard" / "certs.d" / address
        listed.mkdir(parents=True)
        try:
            (listed / "hosts.toml").write_text(f'server = "http://{address}"\n')
            yield address
        finally:
            shutil.rmtree(listed)
            process.terminate()


@contextmanager
def _pushed(image: str, megabytes: int, folder: Path) -> Iterator[str]:
    """Make an image with Docker and push it; it is removed at the end."""
    with tempfile.TemporaryDirectory(dir=folder) as place:
        context = Path(place)
        (context / "Dockerfile").write_text(DOCKERFILE)
        shutil.copy(BUSYBOX, context / "busybox")
        (context / "content").write_bytes(os.urandom(megabytes * 10**6))
        subprocess.run(["docker", "build", "--quiet", "--tag", image, place], capture_output=True, check=True)
    try:
        subprocess.run(["docker", "push", "--quiet", image], capture_output=True, check=True)
        yield image
    finally:
        subprocess.run(["docker", "image", "rm", "--force", image], capture_output=True, check=False)
