"""The registry from which nodes pull images: a mirror of Docker Hub, and the Secret for it. Pure."""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from kitlib.k8s.manifests import Object, rewrite

HUB = ("docker.io", "index.docker.io", "registry-1.docker.io")


def mirrored(image: str, registry: str) -> str:
    """Name an image in the registry that mirrors Docker Hub, or another host as ``host=mirror``; others stay.

    Example:
        >>> mirrored("busybox", "registry.example/hub ghcr.io=registry.example/ghcr")
        'registry.example/hub/library/busybox'
    """
    mirrors = {own: mirror for own, _, mirror in (word.rpartition("=") for word in registry.split())}
    host, slash, rest = image.partition("/")
    is_host = bool(slash) and ("." in host or ":" in host or host == "localhost")
    own = host if is_host and host not in HUB else ""
    if not mirrors.get(own):
        return image
    path = rest if is_host else image
    return f"{mirrors[own].rstrip('/')}/{path if own or '/' in path else f'library/{path}'}"


def named_in(part: Any) -> Iterator[str]:
    """List the images that an object, or a part or a list of them, names for its containers."""
    if isinstance(part, Mapping):
        for item in (part if "name" in part else {}, part.get("trainer")):  # a container; of a TrainJob
            if isinstance(item, Mapping) and isinstance(item.get("image"), str):
                yield item["image"]
        part = part.values()
    if not isinstance(part, str | bytes) and isinstance(part, Iterable):
        for item in part:
            yield from named_in(item)


def pull_from(item: Mapping[str, Any], registry: str, secrets: list[dict[str, str]] | None) -> Object:
    """Let the pods of an object pull from the registry, with these Secrets if they name none."""

    def change(part: Object) -> Object:
        containers = [entry for entry in part.get("containers") or () if isinstance(entry, Mapping)]
        if isinstance(part.get("image"), str) and ("name" in part or "numNodes" in part):  # of a TrainJob
            part["image"] = mirrored(part["image"], registry)
        if secrets and any("image" in container for container in containers):
            part["imagePullSecrets"] = part.get("imagePullSecrets") or secrets
        return part

    return rewrite(item, change)
