"""Build container images and push them to a registry, with Docker or Podman, or with BuildKit in the cluster.

A local cluster needs no registry: the image is loaded into the image store of its nodes. The kit logs in to a
cloud cluster's own registry; for others use ``docker login``, so that the kit handles no password.
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
        bytes: Size of its layers, unpacked if it was built on this machine, otherwise compressed.
        layers: Number of layers; 0 if it was not built on this machine.
        build_seconds: Time to build.
        push_seconds: Time to push.
        digest: In the registry, ``sha256:…``; empty if it was not pushed.
        loaded: Whether it was loaded into the nodes of a local cluster.
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
        """The image reference for manifests: with the digest if it was pushed, because tags are mutable."""
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

    A cluster's trainer image is recorded in the cluster, with its digest, and is then the default of jobs.

    Args:
        name: Without registry and tag; by default that of the trainer image.
        tag: Its version, not ``latest``. By default a hash of the content, so that an unchanged image is
            not built again.
        dockerfile: Relative to the working directory, or to the repository's root, which is then the
            build context.
        registry: Host and path, such as ``us-central1-docker.pkg.dev/PROJECT/REPOSITORY``.
        cluster: The cluster that runs the image. Without ``registry``, a cloud cluster's image is pushed to
            a repository that is created for it and deleted with it; a local cluster's is loaded into its
            nodes.
        arguments: Values of the Dockerfile's ``ARG``.
        builder: ``here``, or ``cluster`` for BuildKit in a pod. ``cluster`` is the default for a cloud
            cluster, because uploading gigabytes is slow, and for an existing one if no container engine
            runs on this machine.

    Raises:
        BadInput: The tag is no version, or there is no such Dockerfile.
        NoContainerEngine: No engine runs on this machine, and the cluster cannot build.
        CommandFailed: Building or pushing failed; the message has the builder's output.

    Example:
        >>> build_image("trainyard/trainer", tag="0.1.0", registry="127.0.0.1:5000").reference
        '127.0.0.1:5000/trainyard/trainer@sha256:…'
        >>> build_image(cluster=cluster)
    """
    _check(name, tag, builder)
    context = _context(config.find(dockerfile), arguments or {})
    own = cast("Registry | None", cluster.registry) if cluster is not None and not registry else None
    if cluster is not None and own is None and cluster.provider == "local":
        _check_local(name, builder)
    if cluster is not None and own is not None:
        image = _build_for_cloud(name, tag or context.tag, context, cluster, own, here=builder == "here")
    elif builder == "cluster" or (not builder and _needs_push(cluster) and engines.missing()):
        image = _build_in_cluster(cluster, registry, f"{name}:{tag or context.tag}", context)
    else:
        full = "/".join(filter(None, (registry.rstrip("/"), f"{name}:{tag or context.tag}")))
        image = _build_here(full, context, push=bool(registry))
        if cluster is not None and not registry:
            image = replace(image, loaded=_load(cluster, image))
    if cluster is not None and name == TRAINER and (own is not None or registry):
        remember(cluster.kube, image.reference)
    return image


def _context(file: Path, arguments: Mapping[str, str]) -> BuildContext:
    folder = config.DATA if file.is_relative_to(config.DATA) else file.parent
    return BuildContext(folder, file, dict(arguments))


def _needs_push(cluster: Cluster | None) -> bool:
    """Whether a cluster's nodes can only pull the image from a registry."""
    return cluster is not None and cluster.provider != "local"


def _build_in_cluster(
    cluster: Cluster | None, registry: str, name: str, context: BuildContext
) -> ContainerImage:
    if cluster is None or not registry:
        raise BadInput(
            "pods push the built image to a registry, and none is configured",
            about=f"image {name}",
            fix='pass `cluster=` and `registry="HOST/PATH"`, with push access by the Secret that '
            "TRAINYARD_PULL_SECRET names",
        )
    full = f"{registry.rstrip('/')}/{name}"
    seconds, digest = build_in_cluster(cluster, full, context)
    return ContainerImage(full, 0, 0, seconds, 0.0, digest)


def _check(name: str, tag: str | None, builder: str) -> None:
    if tag in ("", "latest"):
        raise BadInput(
            "this tag does not identify a version: a node that has pulled it may run an older image",
            about=f"image {name}, tag={tag!r}",
            fix='`tag="0.1.0"`, or the commit; without `tag=` it is a hash of the content',
        )
    if builder not in BUILDERS:
        fix = ", ".join(filter(None, BUILDERS))
        raise BadInput("there is no such builder", about=f"builder={builder!r}", fix=f"one of {fix}")


def _check_local(name: str, builder: str) -> None:
    """Raise an error if no image can be built for a local cluster."""
    about = f"image {name}, of a local cluster"
    alternative = "use none: its pods have the packages of this environment; install missing ones here"
    if builder == "cluster":
        what = "local nodes build no images: their seccomp filter forbids the namespaces of BuildKit"
        raise BadInput(what, about=about, fix=f'`builder="here"`, with Docker or Podman; or {alternative}')
    if missing := engines.missing():
        raise NoContainerEngine(missing, about=about, fix=f"start Docker or Podman; or {alternative}")


def _build_here(full: str, context: BuildContext, *, push: bool) -> ContainerImage:
    """Build an image with this machine's engine, and push it if ``push``."""
    engine = _engine(full)
    build_seconds = engine.build(full, context)
    push_seconds, digest = engine.push(full) if push else (0.0, "")
    return _inspect(engine, full, build_seconds, push_seconds, digest)


def _engine(image: str) -> engines.Engine:
    return engines.find(image, fix="start Docker or Podman here, or build in a cluster: `cluster=…`")


def _load(cluster: Cluster, image: ContainerImage) -> bool:
    """Load an image into a cluster's nodes; False if the cluster cannot load archives."""
    with tempfile.TemporaryDirectory(prefix="trainyard-image-") as folder:
        archive = Path(folder, "image.tar")
        _engine(image.name).save(image.name, archive)
        return cluster.load_images(archive)


def _build_for_cloud(
    name: str, tag: str, context: BuildContext, cluster: Cluster, registry: Registry, *, here: bool
) -> ContainerImage:
    """Find an image in a cluster's own registry, or build it here or in the cluster and push it."""
    full = f"{registry.address(name)}:{tag}"
    if tag == context.tag and (stored := registry.find_image(name, tag)):
        return ContainerImage(full, stored.bytes, 0, 0.0, 0.0, stored.digest)
    if here:
        engine = _engine(full)
        build_seconds = engine.build(full, context, target=registry.platform)
        push_seconds, digest = engine.push(full, registry.login())
        return _inspect(engine, full, build_seconds, push_seconds, digest)
    seconds, digest = build_in_cluster(cluster, full, context, registry.login())
    stored = registry.find_image(name, tag)
    return ContainerImage(full, stored.bytes if stored else 0, 0, seconds, 0.0, digest)


def _inspect(
    engine: engines.Engine, full: str, build_seconds: float, push_seconds: float, digest: str
) -> ContainerImage:
    details = engine.inspect(full)
    layers = len(details["RootFS"]["Layers"])
    return ContainerImage(full, details["Size"], layers, build_seconds, push_seconds, digest)


__all__ = ["ContainerImage", "build_image"]
