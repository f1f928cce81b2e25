"""Building a container image and pushing it to a registry: with Docker or Podman where there is one, or else
in the cluster, by BuildKit.

A local cluster needs no registry: what was built goes into the store that its nodes run from. The kit logs in
to a cloud cluster's own registry; for any other that is left to ``docker login`` and its helpers, so that no
password passes through here.
"""

import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import cast

from kitlib import config
from kitlib.clusters import Cluster
from kitlib.clusters.trainer_image import TRAINER, remember
from kitlib.display.signatures import checked
from kitlib.errors import BadInput, NoContainerEngine
from kitlib.k8s.quantities import format_bytes
from trainyard_kit.container_images import engines
from trainyard_kit.container_images.build_context import BuildContext
from trainyard_kit.container_images.cluster_build import build_in_cluster
from trainyard_kit.container_images.registry import Registry

BUILDERS = ("", "here", "cluster")


@dataclass(frozen=True)
class ContainerImage:
    """An image that was built, and perhaps pushed.

    Attributes:
        name: With registry and tag.
        bytes: Of its layers, unpacked; of one that was not built here, compressed.
        layers: Number of layers; 0 if it was not built here.
        build_seconds: Time to build; next to nothing when all layers were cached.
        push_seconds: Time to push.
        digest: Of its content in the registry, ``sha256:…``; empty if it was not pushed.
        loaded: The nodes of the cluster have it, without a registry.
    """

    name: str
    bytes: int
    layers: int
    build_seconds: float
    push_seconds: float = 0.0
    digest: str = ""
    loaded: bool = False

    @property
    def reference(self) -> str:
        """The name to put into manifests: by digest if it was pushed, because a tag can be moved."""
        return f"{self.name.rpartition(':')[0]}@{self.digest}" if self.digest else self.name

    def __repr__(self) -> str:
        layers = f"in {self.layers} layer{'s' * (self.layers != 1)}" if self.layers else "compressed"
        where = self.digest or ("loaded" if self.loaded else "not pushed")
        return f"{self.name}: {format_bytes(self.bytes)} {layers}, {where}"


@checked
def build_image(
    name: str = TRAINER,
    *,
    tag: str | None = None,
    dockerfile: str | Path = "images/trainer/Dockerfile",
    registry: str = "",
    cluster: Cluster | None = None,
    arguments: Mapping[str, str] | None = None,
    builder: str = "",
) -> ContainerImage:
    """Build an image, and push it if there is a registry.

    The trainer image of a cluster is remembered there, with its digest: jobs that name no image have it.

    Args:
        name: Without registry and tag; by default that of the trainer image.
        tag: Its version; ``latest`` is none. By default made of the content: what has not changed is not
            built again.
        dockerfile: As seen from here or from the repository's root, which is then what it can copy from.
        registry: Host and path, such as ``us-central1-docker.pkg.dev/PROJECT/REPOSITORY``.
        cluster: For whose pods it is. Without ``registry``, the registry is that of the cloud it is in: the
            repository is made here, and deleted with the cluster.
            Nodes of a local cluster have the image at once, without a registry.
        arguments: Values of the Dockerfile's ``ARG``.
        builder: ``here``, or ``cluster``, which is BuildKit in a pod: the default for a cluster at a cloud,
            as from here gigabytes would be pushed uphill, and for an existing one if no engine answers here.

    Raises:
        BadInput: The tag says nothing, or there is no such Dockerfile.
        NoContainerEngine: No engine answers on this machine, and no cluster builds: a local one does not.
        CommandFailed: Building or pushing failed; the error has the builder's words.

    Example:
        >>> build_image("trainyard/trainer", tag="0.1.0", registry="127.0.0.1:5000").reference
        '127.0.0.1:5000/trainyard/trainer@sha256:…'
        >>> build_image(cluster=cluster)
    """
    _check(name, tag, builder)
    context = _context(config.find(dockerfile), arguments or {})
    home = cast("Registry | None", cluster.registry) if cluster is not None and not registry else None
    if cluster is not None and home is None and cluster.provider == "local":
        _check_local(name, builder)
    if cluster is not None and home is not None:
        image = _at_a_cloud(name, tag or context.tag, context, cluster, home, here=builder == "here")
    elif builder == "cluster" or (not builder and _only_in(cluster) and engines.missing()):
        image = _in_cluster(cluster, registry, f"{name}:{tag or context.tag}", context)
    else:
        full = "/".join(filter(None, (registry.rstrip("/"), f"{name}:{tag or context.tag}")))
        image = _here(full, context, push=bool(registry))
        if cluster is not None and not registry:
            image = replace(image, loaded=_load(cluster, image))
    if cluster is not None and name == TRAINER and (home is not None or registry):
        remember(cluster.kube, image.reference)
    return image


def _context(file: Path, arguments: Mapping[str, str]) -> BuildContext:
    folder = config.DATA if file.is_relative_to(config.DATA) else file.parent
    return BuildContext(folder, file, dict(arguments))


def _only_in(cluster: Cluster | None) -> bool:
    """Whether a cluster's nodes have what was built only if it was pushed."""
    return cluster is not None and cluster.provider != "local"


def _in_cluster(cluster: Cluster | None, registry: str, name: str, context: BuildContext) -> ContainerImage:
    if cluster is None or not registry:
        raise BadInput(
            "pods push the built image to a registry, and none is configured",
            about=f"image {name}",
            fix='pass `cluster=` and `registry="HOST/PATH"`, to which the Secret TRAINYARD_PULL_SECRET may '
            "push",
        )
    full = f"{registry.rstrip('/')}/{name}"
    seconds, digest = build_in_cluster(cluster, full, context)
    return ContainerImage(full, 0, 0, seconds, 0.0, digest)


def _check(name: str, tag: str | None, builder: str) -> None:
    if tag in ("", "latest"):
        raise BadInput(
            "this tag does not say which version it is: a node that has it already may run an old one",
            about=f"image {name}, tag={tag!r}",
            fix='`tag="0.1.0"`, or the commit; without it, the tag is made of the content',
        )
    if builder not in BUILDERS:
        fix = ", ".join(filter(None, BUILDERS))
        raise BadInput("there is no such builder", about=f"builder={builder!r}", fix=f"one of {fix}")


def _check_local(name: str, builder: str) -> None:
    """Say at once what stands in for an image that nothing builds here."""
    about = f"image {name}, of a local cluster"
    instead = "its pods need none: they have the packages of this environment; install here what they lack"
    if builder == "cluster":
        what = "local nodes build no images: their filter of system calls forbids the namespaces of BuildKit"
        raise BadInput(what, about=about, fix=f'`builder="here"`, with Docker or Podman; or {instead}')
    if missing := engines.missing():
        raise NoContainerEngine(missing, about=about, fix=f"start Docker or Podman; or {instead}")


def _here(full: str, context: BuildContext, *, push: bool) -> ContainerImage:
    """Build an image with this machine's engine, and push it or not."""
    engine = _engine(full)
    built = engine.build(full, context)
    pushed, digest = engine.push(full) if push else (0.0, "")
    return _described(engine, full, built, pushed, digest)


def _engine(image: str) -> engines.Engine:
    """Find this machine's engine."""
    if (found := engines.find()) is None:
        fix = "start Docker or Podman here, or have a cluster build it: `cluster=…`"
        raise NoContainerEngine(engines.missing(), about=f"image {image}", fix=fix)
    return found


def _load(cluster: Cluster, image: ContainerImage) -> bool:
    """Give an image to a cluster that takes archives; False if it takes none."""
    with tempfile.TemporaryDirectory(prefix="trainyard-image-") as aside:
        archive = Path(aside, "image.tar")
        _engine(image.name).save(image.name, archive)
        return cluster.load_images(archive)


def _at_a_cloud(
    name: str, tag: str, context: BuildContext, cluster: Cluster, home: Registry, *, here: bool
) -> ContainerImage:
    """Have an image in a cluster's own registry: found, built here and pushed, or built there."""
    full = f"{home.address(name)}:{tag}"
    if tag == context.tag and (there := home.stored(name, tag)):
        return ContainerImage(full, there.bytes, 0, 0.0, 0.0, there.digest)
    if here:
        engine = _engine(full)
        built = engine.build(full, context, target=home.platform)
        pushed, digest = engine.push(full, home.login())
        return _described(engine, full, built, pushed, digest)
    seconds, digest = build_in_cluster(cluster, full, context, home.login())
    there = home.stored(name, tag)
    return ContainerImage(full, there.bytes if there else 0, 0, seconds, 0.0, digest)


def _described(engine: engines.Engine, full: str, built: float, pushed: float, digest: str) -> ContainerImage:
    found = engine.inspect(full)
    return ContainerImage(full, found["Size"], len(found["RootFS"]["Layers"]), built, pushed, digest)


__all__ = ["ContainerImage", "build_image"]
