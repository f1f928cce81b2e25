"""Paths of the Kubernetes API, from parts that are valid: no name leads to another object.

HTTP clients and servers resolve ``..`` and decode ``%2e``; a manifest or a learner may name anything. No
other module builds a path; a test holds it.
"""

import re
from urllib.parse import quote

from kitlib.errors import BadInput

_VERSION = re.compile(r"(?:[a-z0-9.-]+/)?v[0-9][a-z0-9]*")
_LONGEST = 253


def api_path(
    api_version: str, plural: str = "", *, namespace: str | None = None, name: str | None = None
) -> str:
    """Build the path of a group's version, of a collection, or of one object of it.

    Raises:
        BadInput: A part that no object can have, as the API server has it for path segments.

    Example:
        >>> api_path("apps/v1", "deployments", namespace="lab", name="web")
        '/apis/apps/v1/namespaces/lab/deployments/web'
        >>> api_path("v1")
        '/api/v1'
    """
    if not _VERSION.fullmatch(api_version) or len(api_version) > _LONGEST:
        raise BadInput("no such apiVersion", about=repr(api_version[:_LONGEST]), fix='apiVersion: "apps/v1"')
    parts = ["", "apis" if "/" in api_version else "api", api_version]
    if namespace:
        parts += ["namespaces", _segment(namespace, "a namespace")]
    if plural:
        parts.append(_segment(plural, "a resource"))
    if name is not None:
        parts.append(_segment(name, "an object"))
    return "/".join(parts)


def group_path(group: str = "") -> str:
    """Build the path of a group, which lists its versions, or of the list of all groups."""
    if not group:
        return "/apis"
    return f"/apis/{_segment(group, 'a group')}"


def _segment(text: str, bearer: str) -> str:
    is_plain = text.isprintable() and not set("/%") & set(text)
    if not is_plain or text in ("", ".", "..") or len(text) > _LONGEST:
        fix = "lower-case letters, digits, '-' and '.', at most 253 of them"
        raise BadInput(f"{bearer} cannot have this name", about=repr(text[:_LONGEST]), fix=fix)
    return quote(text, safe=":")
