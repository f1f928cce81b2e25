"""Paths and objects of the Kubernetes API; paths are built from validated parts: no name leads elsewhere.

A pod may name a Secret ``../../other/secrets/top``: the API server validates few of the names in a pod's
specification, and HTTP clients resolve ``..``. No other module builds a path; a test checks this.
"""

import json
import re
from collections.abc import Mapping
from typing import Any
from urllib.parse import quote

from localkube.errors import ApiError

# An object of the API, or a part of one, as parsed from JSON.
Object = Mapping[str, Any]
MutableObject = dict[str, Any]

_RESOURCE = re.compile(r"(?:[a-z0-9.-]+/)?v[0-9][a-z0-9]*/[a-z]+")
_LABEL = "[a-z0-9](?:[-a-z0-9]*[a-z0-9])?"
_SUBDOMAIN = re.compile(rf"{_LABEL}(?:\.{_LABEL})*")
_SUBRESOURCES = ("", "status", "token", "scale")
MAX_CHARACTERS, MAX_IN_NAMESPACE, SHOWN = 253, 63, 80
# Their names are path segments: ``system:node-proxier`` is one.
PATH_SEGMENTS = ("rbac.authorization.k8s.io", "certificates.k8s.io/v1/clustertrustbundles")


def api_path(
    resource: str, *, namespace: str | None = None, name: str | None = None, subresource: str = ""
) -> str:
    """Build the path of a collection, or of one object of it.

    Raises:
        ApiError: A name is not valid for an object; the message is client-go's.

    Example:
        >>> api_path("v1/pods", namespace="lab", name="web-0", subresource="status")
        '/api/v1/namespaces/lab/pods/web-0/status'
        >>> api_path("storage.k8s.io/v1/storageclasses")
        '/apis/storage.k8s.io/v1/storageclasses'
    """
    assert _RESOURCE.fullmatch(resource), resource
    assert subresource in _SUBRESOURCES, subresource
    version, _, plural = resource.rpartition("/")
    parts = ["", "apis" if "/" in version else "api", version]
    if namespace is not None:
        parts += ["namespaces", _valid(namespace, limit=MAX_IN_NAMESPACE)]
    parts.append(plural)
    if name is not None:
        parts.append(_valid(name, is_subdomain=not resource.startswith(PATH_SEGMENTS)))
    return "/".join((*parts, subresource) if subresource else parts)


def _valid(name: str, *, limit: int = MAX_CHARACTERS, is_subdomain: bool = True) -> str:
    """Check a name, and escape it."""
    if problem := _problem(name, limit, is_subdomain):
        shown = json.dumps(name if len(name) <= SHOWN else f"{name[:SHOWN]}…", ensure_ascii=False)
        raise ApiError(400, "BadRequest", f"invalid resource name {shown}: [{problem}]")
    return quote(name, safe="")


def _problem(name: str, limit: int, is_subdomain: bool) -> str | None:
    """Return why a name is not valid for an object; None if it is.

    Source: staging/src/k8s.io/apimachinery/pkg/api/validation/path and pkg/util/validation
    """
    if name in ("", ".", ".."):
        return f"may not be '{name}'"
    if character := next((character for character in "/%\0" if character in name), None):
        return f"may not contain '{character}'" if character != "\0" else "may not contain NUL"
    if len(name) > limit:
        return f"must be no more than {limit} characters"
    if is_subdomain and not _SUBDOMAIN.fullmatch(name):
        return (
            "a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '-' or '.', "
            "and must start and end with an alphanumeric character"
        )
    return None
