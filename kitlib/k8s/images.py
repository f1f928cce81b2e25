"""Where nodes pull images from: a mirror in the place of Docker Hub, and the Secret for it. Pure."""

from collections.abc import Mapping
from typing import Any

from kitlib.k8s.manifests import Object

HUB = ("docker.io", "index.docker.io", "registry-1.docker.io")


def mirrored(image: str, registry: str) -> str:
    """Name an image of Docker Hub in a registry that mirrors it; others stay.

    Example:
        >>> mirrored("busybox", "registry.example/hub")
        'registry.example/hub/library/busybox'
    """
    host, slash, rest = image.partition("/")
    is_host = bool(slash) and ("." in host or ":" in host or host == "localhost")
    if not registry or (is_host and host not in HUB):
        return image
    path = rest if is_host else image
    return f"{registry.rstrip('/')}/{path if '/' in path else f'library/{path}'}"


def pull_from(item: Mapping[str, Any], registry: str, secrets: list[dict[str, str]] | None) -> Object:
    """Let the pods of an object pull from the registry, with these Secrets if they name none."""
    pulled: Object = _pull_from(item, registry, secrets)
    return pulled


def _pull_from(part: Any, registry: str, secrets: list[dict[str, str]] | None) -> Any:
    if isinstance(part, list):
        return [_pull_from(item, registry, secrets) for item in part]
    if not isinstance(part, Mapping):
        return part
    mapped = {key: _pull_from(value, registry, secrets) for key, value in part.items()}
    if isinstance(part.get("image"), str) and ("name" in part or "numNodes" in part):  # a TrainJob's trainer
        mapped["image"] = mirrored(part["image"], registry)
    is_pod = any(
        "image" in container for container in part.get("containers") or () if isinstance(container, Mapping)
    )
    if is_pod and secrets and not part.get("imagePullSecrets"):
        mapped["imagePullSecrets"] = secrets
    return mapped
