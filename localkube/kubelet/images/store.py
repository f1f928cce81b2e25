"""Read the store of pulled images: resolve references, and read the images' records.

The store is written by the control plane's program (`images` of ``controlplane``), one for all clusters of a
user. A record is the JSON file ``images/<hex of the config's digest>.json``; ``names/`` has a symbolic link
to it for each reference, percent-encoded. References are read as containerd reads them, so that ``busybox``
and ``docker.io/library/busybox:latest`` are one. Only the standard library is used; nothing here writes.
"""

import json
import os
import re
from pathlib import Path
from typing import Any
from urllib.parse import quote

from localkube.paths import images_dir

DEFAULT_DOMAIN, LEGACY_DOMAIN = "docker.io", "index.docker.io"
LONGEST_PATH, LONGEST_REFERENCE = 255, 1024
_DOMAIN_PART = r"(?:[a-zA-Z0-9]|[a-zA-Z0-9][a-zA-Z0-9-]*[a-zA-Z0-9])"
_DOMAIN = rf"(?:{_DOMAIN_PART}(?:\.{_DOMAIN_PART})*|\[[a-fA-F0-9:]+\])(?::[0-9]+)?"
_PATH_PART = r"[a-z0-9]+(?:(?:[_.]|__|-+)[a-z0-9]+)*"
_REFERENCE = re.compile(
    rf"(?P<domain>{_DOMAIN})/(?P<path>{_PATH_PART}(?:/{_PATH_PART})*)"
    r"(?::(?P<tag>[a-zA-Z0-9_][a-zA-Z0-9_.-]{0,127}))?(?:@(?P<digest>[^@]+))?"
)
_DIGEST = re.compile(r"sha256:[a-f0-9]{64}|sha384:[a-f0-9]{96}|sha512:[a-f0-9]{128}")
_IDENTIFIER = re.compile(r"(?:sha256:)?([a-f0-9]{64})")


class InvalidReference(ValueError):
    """A text is not a valid image reference; the message says why."""


def normalize(reference: str) -> str:
    """Normalize a reference: with its registry, and a digest or else a tag.

    Source: the rules of https://github.com/distribution/reference; as in containerd, a tag beside a digest
    is dropped.

    Example:
        >>> normalize("busybox"), normalize("localhost:5000/a/b:1")
        ('docker.io/library/busybox:latest', 'localhost:5000/a/b:1')
    """
    if len(reference) > LONGEST_REFERENCE:
        raise InvalidReference(f'"{reference[:100]}…" is too long for the name of an image')
    if _IDENTIFIER.fullmatch(reference) and not reference.startswith("sha256:"):
        raise InvalidReference(f'"{reference}" is the id of an image, not its name')
    first, slash, rest = reference.partition("/")
    is_domain = bool(slash) and (
        first == "localhost" or bool(set(first) & set(".:")) or first.lower() != first
    )
    domain, remote = (first, rest) if is_domain else (DEFAULT_DOMAIN, reference)
    if domain == LEGACY_DOMAIN:
        domain = DEFAULT_DOMAIN
    if domain == DEFAULT_DOMAIN and "/" not in remote:
        remote = f"library/{remote}"
    name = remote.partition(":")[0]
    if name.lower() != name:
        raise InvalidReference(f'the name of the image "{reference}" must be lowercase')
    match = _REFERENCE.fullmatch(f"{domain}/{remote}")
    if match is None:
        raise InvalidReference(f'"{reference}" is not the name of an image')
    if len(match["path"]) > LONGEST_PATH:
        raise InvalidReference(f'the name of the image "{reference}" has more than {LONGEST_PATH} characters')
    repository = f"{match['domain']}/{match['path']}"
    if match["digest"] is None:
        return f"{repository}:{match['tag'] or 'latest'}"
    if not _DIGEST.fullmatch(match["digest"]):
        raise InvalidReference(f'"{reference}" has no valid digest')
    return f"{repository}@{match['digest']}"


def find(reference: str, *, store: Path | None = None) -> dict[str, Any] | None:
    """Read the record of an image in the store; None if it is not there.

    Args:
        reference: Its name, with or without registry, tag and digest, or its id (``sha256:…``).
        store: The store; by default the user's own.
    """
    store = store or images_dir()
    if identifier := _IDENTIFIER.fullmatch(reference):
        return _read(store / "images" / f"{identifier[1]}.json")
    return _read(store / "names" / quote(normalize(reference), safe=""))


def records(*, store: Path | None = None) -> list[dict[str, Any]]:
    try:
        files = sorted(os.listdir((store or images_dir()) / "images"))
    except FileNotFoundError:
        return []
    read = (_read((store or images_dir()) / "images" / name) for name in files if name.endswith(".json"))
    return [record for record in read if record is not None]


def _read(path: Path) -> dict[str, Any] | None:
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
