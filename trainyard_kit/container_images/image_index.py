"""The architectures of an image, as its registry lists them, compared with those of the nodes.

The registry is queried anonymously, or with the login of the pull Secret.
https://github.com/opencontainers/distribution-spec/blob/main/spec.md#pulling-manifests
"""

import base64
import json
import re
import urllib.error
import urllib.request
from collections.abc import Iterable, Iterator, Sequence
from http.client import HTTPException
from typing import Any
from urllib.parse import urlencode, urlsplit
from urllib.request import parse_http_list, parse_keqv_list

from kitlib import config
from kitlib.causes.rules.network import selects
from kitlib.clusters import Cluster
from kitlib.jobs.resources import TRANSIENT, pod_specs, tolerated
from kitlib.k8s import images
from kitlib.k8s.client import Kube, allowed
from kitlib.k8s.images import HUB
from kitlib.k8s.manifests import Object
from trainyard_kit.container_images.registry import DOCKER_CONFIG

TIMEOUT_SECONDS = 3
AMD64, LABEL = "amd64", "kubernetes.io/arch"
MAX_BYTES = 4 << 20
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


def warn_of_architectures(cluster: Cluster, objects: Sequence[Object]) -> Iterator[str]:
    """Warn of images that cannot run on some of the nodes that a job's pods may be scheduled on.

    There is no warning if this user may not list nodes, or the registry does not answer.
    """
    nodes = None if cluster.provider == "local" else allowed(lambda: cluster.kube.get_all("Node"))
    specs = [
        *pod_specs(list(objects)),
        {"containers": [{"image": image} for image in images.named_in(objects)]},
    ]
    checked: set[str] = set()
    for spec in specs if nodes else ():
        usable = [node for node in nodes or () if _may_run(node, spec)]
        secrets = [secret["name"] for secret in spec.get("imagePullSecrets") or ()]
        for container in [*(spec.get("initContainers") or ()), *spec["containers"]]:
            image = container.get("image", "")
            if not image or image in checked:
                continue
            checked.add(image)
            published, unsupported = compare(cluster.kube, image, usable, secrets)
            if unsupported:
                architectures_ = ", ".join(sorted(published))
                what = f"image {image} is for {architectures_}, and its pods may run on {unsupported} nodes"
                selector = f"{{{LABEL}: {min(published)}}}"
                yield f"{what}; job.patch with nodeSelector: {selector}, or build it for both"


def compare(
    kube: Kube, image: str, nodes: Iterable[Object], secrets: Iterable[str] = ()
) -> tuple[frozenset[str], str]:
    """Compare an image's architectures with those of nodes.

    Args:
        kube: A client of the Secrets' namespace.
        image: As the nodes pull it.
        nodes: Those on which its pods may run.
        secrets: Names of pull Secrets; by default the configured one.

    Returns:
        The image's architectures, empty if unknown, and the nodes' that it does not support.
    """
    needed = {(node["metadata"].get("labels") or {}).get(LABEL, "") for node in nodes} - {""}
    official = image.endswith(config.DEFAULT_IMAGE)
    if official and needed <= {AMD64}:
        return frozenset({AMD64}), ""
    published = architectures(image, credentials=_credentials(kube, secrets, split(image)[0]))
    published = published or frozenset({AMD64} if official else ())
    return published, ", ".join(sorted(needed - published)) if published else ""


def _may_run(node: Object, spec: Object) -> bool:
    """Whether a node's labels and taints admit a pod, disregarding taints for transient conditions."""
    affinity: Object = (spec.get("affinity") or {}).get("nodeAffinity") or {}
    terms = (affinity.get("requiredDuringSchedulingIgnoredDuringExecution") or {}).get("nodeSelectorTerms")
    return (
        selects({"matchLabels": spec.get("nodeSelector") or {}}, node)
        and (not terms or any(selects(term, node) for term in terms))
        and tolerated(node, [*(spec.get("tolerations") or ()), *TRANSIENT])
    )


def _credentials(kube: Kube, secrets: Iterable[str], host: str) -> str:
    """Read a registry's user and password from Secrets, in base64; empty if there are none."""
    for name in filter(None, [*secrets, config.read().pull_secret]):
        secret = allowed(lambda name=name: kube.find("Secret", name)) or {}  # type: ignore[misc]
        try:
            auths = json.loads(base64.b64decode(secret["data"][DOCKER_CONFIG]))["auths"]
            entries = {urlsplit(key if "//" in key else f"//{key}").netloc: auths[key] for key in auths}
            entry = entries.get("index.docker.io" if host in HUB else host)
            if entry:
                plain = f"{entry.get('username', '')}:{entry.get('password', '')}".encode()
                return str(entry.get("auth") or base64.b64encode(plain).decode())
        except (LookupError, ValueError, TypeError, AttributeError):
            continue  # malformed: pods cannot pull with it either
    return ""


def architectures(image: str, *, credentials: str = "") -> frozenset[str]:
    """Look up an image's architectures, such as ``amd64``; empty if its registry does not answer.

    Args:
        image: Its reference.
        credentials: User and password, as ``auth`` in Docker's configuration; anonymous without them.

    Example:
        >>> architectures("busybox")
        frozenset({'amd64', 'arm64', …})
    """
    host, repository, version = split(image)
    url = f"{'http' if LOOPBACK.fullmatch(host) else 'https'}://{host}/v2/{repository}"
    try:
        token = ""
        try:
            content = _get(f"{url}/manifests/{version}", token)
        except urllib.error.HTTPError as error:
            token = _token(error.headers.get("WWW-Authenticate", ""), credentials)
            content = _get(f"{url}/manifests/{version}", token)
        if "manifests" not in content:
            return _architectures([_get(f"{url}/blobs/{content['config']['digest']}", token)])
        return _architectures([item.get("platform") or {} for item in content["manifests"]])
    except (OSError, HTTPException, ValueError, LookupError, TypeError, AttributeError):
        return frozenset()


def _architectures(platforms: Sequence[Object]) -> frozenset[str]:
    """List the Linux architectures; for an image without any, all its platforms: ``windows/amd64``."""
    known = [item for item in platforms if item.get("os", "linux") != "unknown" and "architecture" in item]
    linux = frozenset(item["architecture"] for item in known if item.get("os", "linux") == "linux")
    return linux or frozenset(f"{item['os']}/{item['architecture']}" for item in known)


def split(image: str) -> tuple[str, str, str]:
    """Split a reference into the registry's host, the repository, and the tag or digest.

    Example:
        >>> split("busybox")
        ('registry-1.docker.io', 'library/busybox', 'latest')
    """
    name, _, digest = image.partition("@")
    repository, _, tag = name.rpartition(":")
    name, tag = (repository, tag) if repository and "/" not in tag else (name, "")
    host, slash, path = name.partition("/")
    if not slash or not ({*".:"} & {*host} or host == "localhost"):
        host, path = HUB[0], name
    if host in HUB:
        host, path = HUB[-1], path if "/" in path else f"library/{path}"
    return host, path, digest or tag or "latest"


def _token(challenge: str, credentials: str) -> str:
    """Get the value of the Authorization header for a registry's challenge."""
    scheme, _, rest = challenge.partition(" ")
    basic = f"Basic {credentials}" if credentials else ""
    if scheme.lower() == "basic":
        return basic
    fields = parse_keqv_list(parse_http_list(rest))
    realm = fields.pop("realm")
    if not realm.startswith("https://") and not LOOPBACK.fullmatch(urlsplit(realm).netloc):
        raise ValueError(realm)
    response = _get(f"{realm}?{urlencode(fields)}", basic)
    return f"Bearer {response.get('token') or response['access_token']}"


def _get(url: str, authorization: str) -> Any:
    request = urllib.request.Request(url, headers={"Accept": ACCEPTED})
    if authorization:  # not for the storage to which blobs are redirected
        request.add_unredirected_header("Authorization", authorization)
    with urllib.request.urlopen(request, timeout=TIMEOUT_SECONDS) as response:
        return json.loads(response.read(MAX_BYTES))
