"""The objects that both sides create, from ``bench/manifests``."""

from pathlib import Path

from kitlib.k8s.manifests import Object, merge, parse

FOLDER = Path(__file__).parent / "manifests"


def read(name: str, **patch: object) -> Object:
    """Return the object of ``manifests/<name>.yaml``, with ``patch`` merged into it.

    Example:
        >>> read("sleeper", metadata={"name": "sleeper-7"})["metadata"]["name"]
        'sleeper-7'
    """
    path = FOLDER / f"{name}.yaml"
    (item,) = parse(path.read_text(encoding="utf-8"), about=str(path))
    return merge(item, patch)
