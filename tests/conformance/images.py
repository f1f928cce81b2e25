"""Make the images of the suite's pods without an engine and without a registry elsewhere.

``images.toml`` says what each consists of: Debian's packages, which apt fetches and any user may unpack;
programs of Go modules; BusyBox for the rest. The same recipe gives the same bytes. They are uploaded to
a ``docker-registry`` of Debian's, whose storage is kept in the cache.
"""

import contextlib
import gzip
import hashlib
import io
import json
import posixpath
import shutil
import socket
import subprocess
import tarfile
import tempfile
import time
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import requests
import yaml

from localkube.controlplane.lock import Report
from localkube.controlplane.recipes import RECIPES
from localkube.errors import LocalClusterError
from localkube.paths import target

from . import programs

SUITE = tomllib.loads(Path(__file__).with_name("images.toml").read_text(encoding="utf-8"))
REGISTRY = "docker-registry"
INDEX, MANIFEST = "application/vnd.oci.image.index.v1+json", "application/vnd.oci.image.manifest.v1+json"
CONFIG, LAYER = "application/vnd.oci.image.config.v1+json", "application/vnd.oci.image.layer.v1.tar+gzip"
PATH = "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
MERGED = ("bin", "sbin", "lib", "lib64")  # links to their likes in usr, as in Debian
FOLDERS = {
    "etc": 0o755,
    "home": 0o755,
    "proc": 0o755,
    "root": 0o700,
    "run": 0o755,
    "sys": 0o755,
    "dev": 0o755,
}
FOLDERS |= {
    "tmp": 0o1777,
    "usr/local/bin": 0o755,
    "var/tmp": 0o1777,
    **{f"usr/{name}": 0o755 for name in MERGED},
}
PASSWD = """root:x:0:0:root:/root:/bin/sh
bin:x:1:1:bin:/bin:/bin/false
daemon:x:2:2:daemon:/usr/sbin:/bin/false
www-data:x:33:33:www-data:/var/www:/bin/false
nobody:x:65534:65534:nobody:/home:/bin/false
"""
GROUP = "root:x:0:\nbin:x:1:\ndaemon:x:2:\nwww-data:x:33:\nnogroup:x:65534:\n"


class Layer:
    """The files of a layer, by path; what is added later replaces what was there."""

    def __init__(self) -> None:
        self.members: dict[str, tuple[tarfile.TarInfo, bytes]] = {}

    def add(
        self, path: str, *, data: bytes = b"", mode: int = 0o644, link: str = "", kind: bytes = b""
    ) -> None:
        member = tarfile.TarInfo(path)
        member.mode, member.linkname, member.size = mode, link, len(data)
        member.type = kind or (tarfile.SYMTYPE if link else tarfile.REGTYPE)
        self.members[path] = member, data

    def add_folder(self, path: str, mode: int = 0o755) -> None:
        self.add(path, mode=mode, kind=tarfile.DIRTYPE)

    def add_package(self, package: Path) -> None:
        """Add what a Debian package installs; its scripts are not run."""
        with (
            subprocess.Popen(
                ["dpkg-deb", "--fsys-tarfile", str(package)], stdout=subprocess.PIPE
            ) as unpacked,
            tarfile.open(fileobj=unpacked.stdout, mode="r|") as files,
        ):
            for member in files:
                path = _merged(member.name)
                if path in ("", *MERGED) or path.startswith("usr/share/doc/"):
                    continue
                link = _merged(member.linkname) if member.islnk() else member.linkname
                content = files.extractfile(member) if member.isreg() else None
                data = content.read() if content else b""
                self.add(path, data=data, mode=member.mode, link=link, kind=member.type)
        if unpacked.returncode:
            raise LocalClusterError("cannot unpack", about=str(package), fix="delete it, and try again")

    def tar(self) -> bytes:
        raw = io.BytesIO()
        with tarfile.open(fileobj=raw, mode="w", format=tarfile.GNU_FORMAT) as tar:
            # Hard links come after what they are links to.
            for member, data in sorted(
                self.members.values(), key=lambda entry: (entry[0].islnk(), entry[0].name)
            ):
                tar.addfile(member, io.BytesIO(data))
        return raw.getvalue()


def _merged(name: str) -> str:
    path = posixpath.normpath(name).lstrip("./")
    return f"usr/{path}" if path.split("/")[0] in MERGED and "/" in path else path


def layer(recipe: Mapping[str, Any], *, report: Report) -> Layer:
    """Make the layer that a recipe of ``images.toml`` describes."""
    new_layer = Layer()
    if not recipe.get("bare") and "from" not in recipe:
        for path, mode in FOLDERS.items():
            new_layer.add_folder(path, mode)
        for name in MERGED:
            new_layer.add(name, link=f"usr/{name}")
        new_layer.add(
            "etc/passwd", data="\n".join([PASSWD + "\n".join(recipe.get("users", [])), ""]).lstrip().encode()
        )
        new_layer.add(
            "etc/group", data="\n".join([GROUP + "\n".join(recipe.get("groups", [])), ""]).lstrip().encode()
        )
        _add_busybox(new_layer, packages(["busybox-static"], report=report))
        for package in packages(recipe["packages"], report=report) if "packages" in recipe else ():
            new_layer.add_package(package)
    for path in recipe.get("directories", ()):
        new_layer.add_folder(path, 0o1777)
    for path, program in recipe.get("cached", {}).items():
        new_layer.add(path, data=RECIPES[program].path.read_bytes(), mode=0o755)
    for path, package in recipe.get("programs", {}).items():
        mode = 0o4755 if path in recipe.get("setuid", ()) else 0o755
        new_layer.add(path, data=programs.obtain(package, report=report).read_bytes(), mode=mode)
    if "files" in recipe:
        folder = programs.sources(programs.KUBERNETES) / "test" / "images"
        for path, source in recipe["files"].items():
            new_layer.add(path, data=(folder / source).read_bytes())
    for path, text in recipe.get("text", {}).items():
        new_layer.add(path, data=text.lstrip().encode())
    for path, link in recipe.get("links", {}).items():
        new_layer.add(path, link=link)
    return new_layer


def packages(names: Sequence[str], *, report: Report) -> list[Path]:
    """Fetch Debian's packages with all that they depend on, into the cache, without installing them.

    Raises:
        LocalClusterError: There is no apt, or it cannot fetch them.
    """
    archives = programs.cache() / "packages" / "archives"
    (archives / "partial").mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as none:
        # With no package installed and none fetched, apt lists all that are needed.
        listed = _apt(["--print-uris", *names], archives=Path(none))
    files = [archives / line.split()[1] for line in listed.splitlines() if line.startswith("'")]
    if not all(file.exists() for file in files):
        report(f"Fetching Debian's packages for {', '.join(names)}")
        _apt(["--download-only", "--yes", *names], archives=archives)
    return sorted(files)


def _apt(arguments: Sequence[str], *, archives: Path) -> str:
    options = {
        "Dir::State::status": "/dev/null",
        "Dir::Cache": archives.parent,
        "Dir::Cache::archives": archives,
    }
    options |= {"Debug::NoLocking": "true", "APT::Sandbox::User": ""}
    command = ["apt-get", "-qq", "install", "--no-install-recommends"]
    command += [part for name, value in options.items() for part in ("-o", f"{name}={value}")]
    done = subprocess.run(
        [*command, *arguments], capture_output=True, text=True, stdin=subprocess.DEVNULL, check=False
    )
    if done.returncode:
        raise LocalClusterError(
            f"apt cannot fetch packages: {done.stderr.strip()}",
            about=" ".join(arguments),
            fix="the suite's images are made of Debian's packages: run it on Debian, after `apt-get update`",
        )
    return done.stdout


def _add_busybox(target_layer: Layer, fetched: Sequence[Path]) -> None:
    for package in fetched:
        target_layer.add_package(package)
    with tempfile.TemporaryDirectory() as scratch:
        program = Path(scratch) / "busybox"
        program.write_bytes(target_layer.members["usr/bin/busybox"][1])
        program.chmod(0o755)
        applets = subprocess.run(
            [program, "--list"], capture_output=True, text=True, check=True
        ).stdout.split()
    for applet in {*applets} - {"busybox"}:
        target_layer.add(f"usr/bin/{applet}", link="busybox")


class Images:
    """Images as blobs by digest, and an index of each repository's."""

    def __init__(self, recipes: Mapping[str, Any], *, report: Report) -> None:
        self.recipes, self.report = recipes, report
        self.blobs: dict[str, bytes] = {}
        self._layers: dict[str, list[tuple[str, dict[str, Any]]]] = {}

    def make(self, repository: str, tag: str) -> dict[str, Any]:
        """Make an image and return the descriptor of its index."""
        recipe = self.recipes[repository]
        layers = self._chain(repository)
        machine = {"architecture": target()[1], "os": "linux"}
        inner: dict[str, Any] = {
            "Env": [PATH, *recipe.get("env", ())],
            "Labels": {"name": f"{repository}:{tag}"},
        }
        inner |= {key.capitalize(): recipe[key] for key in ("entrypoint", "cmd", "user") if key in recipe}
        inner |= {"WorkingDir": recipe["directory"]} if "directory" in recipe else {}
        config = machine | {
            "config": inner,
            "rootfs": {"type": "layers", "diff_ids": [diff for diff, _ in layers]},
        }
        manifest = {"schemaVersion": 2, "mediaType": MANIFEST, "config": self._json(CONFIG, config)}
        described = self._json(MANIFEST, manifest | {"layers": [entry for _, entry in layers]})
        index = {"schemaVersion": 2, "mediaType": INDEX, "manifests": [described | {"platform": machine}]}
        return self._json(INDEX, index)

    def contents(self, described: Mapping[str, Any]) -> tuple[list[str], list[str]]:
        """The digests of the manifests below an index, itself included, and of their blobs."""
        (below,) = json.loads(self.blobs[described["digest"]])["manifests"]
        manifest = json.loads(self.blobs[below["digest"]])
        blobs = [blob["digest"] for blob in (*manifest["layers"], manifest["config"])]
        return [below["digest"], described["digest"]], blobs

    def _chain(self, repository: str) -> list[tuple[str, dict[str, Any]]]:
        if repository not in self._layers:
            recipe = self.recipes[repository]
            self.report(f"Making {repository}")
            below = self._chain(recipe["from"]) if "from" in recipe else []
            new_layer = layer(recipe, report=self.report)
            for name, registry_name in recipe.get("registry", {}).items():
                self._add_registry(new_layer, name, registry_name)
            tar = new_layer.tar()
            described = self._blob(LAYER, gzip.compress(tar, compresslevel=1, mtime=0))
            self._layers[repository] = [*below, (_digest(tar), described)]
        return self._layers[repository]

    def _add_registry(self, target_layer: Layer, name: str, repository: str) -> None:
        """Add an image as agnhost's fake registry reads it."""
        described = self.make(repository, "testing")
        for kind, digests in zip(("manifests", "blobs"), self.contents(described), strict=True):
            for digest in digests:
                algorithm, value = digest.split(":")
                path = f"var/registry/{name}/{kind}/{algorithm}/{value[:2]}/{value}/data"
                target_layer.add(path, data=self.blobs[digest])
        target_layer.add(f"var/registry/{name}/manifests/testing", data=described["digest"].encode())

    def _json(self, kind: str, content: Mapping[str, Any]) -> dict[str, Any]:
        return self._blob(kind, json.dumps(content, sort_keys=True).encode())

    def _blob(self, kind: str, data: bytes) -> dict[str, Any]:
        digest = _digest(data)
        self.blobs[digest] = data
        return {"mediaType": kind, "digest": digest, "size": len(data)}


def _digest(data: bytes) -> str:
    return f"sha256:{hashlib.sha256(data).hexdigest()}"


@contextlib.contextmanager
def registry(
    image_names: Sequence[str], *, folder: Path, report: Report, recipes: Mapping[str, Any] = SUITE
) -> Iterator[str]:
    """Serve the ``wanted`` images that have a recipe, and yield the address, ``127.0.0.1:PORT``.

    Args:
        wanted: Names with tags.
        folder: For the registry's settings and log.
        report: Called with lines of progress.
        recipes: What each repository's images are made of.

    Raises:
        LocalClusterError: There is no ``docker-registry``, or it does not start.
    """
    program = shutil.which(REGISTRY)
    if program is None:
        raise LocalClusterError("not found on PATH", about=REGISTRY, fix=f"apt-get install {REGISTRY}")
    images = [name.rpartition(":")[::2] for name in sorted(image_names)]
    images = [(repository, tag) for repository, tag in images if repository in recipes]
    storage = programs.cache() / f"images-{_fingerprint(images, recipes)}"
    with socket.create_server(("127.0.0.1", 0)) as free:
        address = f"127.0.0.1:{free.getsockname()[1]}"
    settings = {"version": 0.1, "http": {"addr": address}, "log": {"level": "warn"}}
    settings["storage"] = {"filesystem": {"rootdirectory": str(storage)}}
    (folder / "registry.yml").write_text(yaml.safe_dump(settings))
    command, log = [program, "serve", str(folder / "registry.yml")], folder / "registry.log"
    with (
        log.open("w") as output,
        requests.Session() as session,
        subprocess.Popen(command, stdout=output, stderr=output, start_new_session=True) as process,
    ):
        session.trust_env = False  # no proxy is asked for what is on this machine
        try:
            _wait_for(address, session, process, log)
            if not (storage / "complete").exists():
                _fill(address, session, images, recipes, report)
                (storage / "complete").touch()
            yield address
        finally:
            process.terminate()


def _fingerprint(images: Sequence[Sequence[str]], recipes: Mapping[str, Any]) -> str:
    digest = hashlib.sha256(json.dumps([images, recipes]).encode())
    sources = [Path(__file__), *(path for path in programs.MODULE.rglob("*") if path.is_file())]
    for path in sorted(sources):
        digest.update(path.read_bytes())
    return digest.hexdigest()[:12]


def _wait_for(address: str, session: requests.Session, process: subprocess.Popen[bytes], log: Path) -> None:
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline and process.poll() is None:
        with contextlib.suppress(requests.ConnectionError):
            session.get(f"http://{address}/v2/", timeout=5)
            return
        time.sleep(0.1)
    raise LocalClusterError(
        f"does not answer at {address}", about=REGISTRY, fix=f"its log says why: {log.read_text()[-500:]}"
    )


def _fill(
    address: str,
    session: requests.Session,
    images: Sequence[Sequence[str]],
    recipes: Mapping[str, Any],
    report: Report,
) -> None:
    built = Images(recipes, report=report)
    for repository, tag in images:
        described = built.make(repository, tag)
        place = f"http://{address}/v2/{repository.partition('/')[2]}"
        manifests, blobs = built.contents(described)
        for digest in blobs:
            if session.head(f"{place}/blobs/{digest}", timeout=60).status_code != requests.codes.ok:
                opened = session.post(f"{place}/blobs/uploads/", timeout=60)
                opened.raise_for_status()
                upload = session.put(
                    opened.headers["Location"],
                    params={"digest": digest},
                    data=built.blobs[digest],
                    timeout=600,
                )
                upload.raise_for_status()
        for digest, name in zip(manifests, (manifests[0], tag), strict=True):
            kind = INDEX if name == tag else MANIFEST
            put = session.put(
                f"{place}/manifests/{name}",
                data=built.blobs[digest],
                headers={"Content-Type": kind},
                timeout=60,
            )
            put.raise_for_status()
