"""For which architectures an image exists, as its registry lists them: read without a login, or not at all.

https://github.com/opencontainers/distribution-spec/blob/main/spec.md#pulling-manifests
"""

import json
import re
import urllib.error
import urllib.request
from http.client import HTTPException
from typing import Any
from urllib.parse import urlencode
from urllib.request import parse_http_list, parse_keqv_list

from kitlib.k8s.images import HUB

SECONDS = 3
MOST_BYTES = 4 << 20
ACCEPTED = ",".join(
    f"application/{kind}"
    for kind in (
        "vnd.oci.image.index.v1+json",
        "vnd.docker.distribution.manifest.list.v2+json",
        "vnd.oci.image.manifest.v1+json",
        "vnd.docker.distribution.manifest.v2+json",
    )
)
LOOPBACK = re.compile(r"(localhost|127\.\d+\.\d+\.\d+)(:\d+)?")


def architectures(image: str) -> frozenset[str]:
    """Look up an image's architectures, such as ``amd64``; empty if its registry does not answer.

    Example:
        >>> architectures("busybox")
        frozenset({'amd64', 'arm64', …})
    """
    host, repository, version = split(image)
    place = f"{'http' if LOOPBACK.fullmatch(host) else 'https'}://{host}/v2/{repository}"
    try:
        token = ""
        try:
            content = _get(f"{place}/manifests/{version}", token)
        except urllib.error.HTTPError as error:
            token = _token(error.headers.get("WWW-Authenticate", ""))
            content = _get(f"{place}/manifests/{version}", token)
        if "manifests" not in content:
            return frozenset({_get(f"{place}/blobs/{content['config']['digest']}", token)["architecture"]})
        platforms = (item.get("platform") or {} for item in content["manifests"])
        return frozenset(item["architecture"] for item in platforms if item.get("os") == "linux")
    except (OSError, HTTPException, ValueError, LookupError, TypeError, AttributeError):
        return frozenset()


def split(image: str) -> tuple[str, str, str]:
    """Split a reference into the registry's host, the repository, and the tag or digest.

    Example:
        >>> split("busybox")
        ('registry-1.docker.io', 'library/busybox', 'latest')
    """
    name, _, digest = image.partition("@")
    before, _, tag = name.rpartition(":")
    name, tag = (before, tag) if before and "/" not in tag else (name, "")
    host, slash, path = name.partition("/")
    if not slash or not ({*".:"} & {*host} or host == "localhost"):
        host, path = HUB[0], name
    if host in HUB:
        host, path = HUB[-1], path if "/" in path else f"library/{path}"
    return host, path, digest or tag or "latest"


def _token(challenge: str) -> str:
    """Get an anonymous token, from the server that a registry's answer names."""
    fields = parse_keqv_list(parse_http_list(challenge.partition(" ")[2]))
    realm = fields.pop("realm")
    if not realm.startswith("https://"):
        raise ValueError(realm)
    answer = _get(f"{realm}?{urlencode(fields)}", "")
    return str(answer.get("token") or answer["access_token"])


def _get(url: str, token: str) -> Any:
    headers = {"Accept": ACCEPTED} | ({"Authorization": f"Bearer {token}"} if token else {})
    with urllib.request.urlopen(urllib.request.Request(url, headers=headers), timeout=SECONDS) as answer:
        return json.loads(answer.read(MOST_BYTES))
