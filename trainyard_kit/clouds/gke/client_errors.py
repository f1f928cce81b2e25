"""Errors of Google Cloud and its client libraries as the kit's: what failed, on what, and what to do. Pure.

The same error comes as an answer and as the end of an operation: with a code of google.rpc.Code, words, and
mostly an ErrorInfo with a reason (https://google.aip.dev/193).
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from requests import Response

from trainyard_kit.clouds.cloud_errors import CloudError, ErrorReason, classify
from trainyard_kit.clouds.spec import read_table

CONSOLE = "https://console.cloud.google.com"
LOGIN = "gcloud auth application-default login; `kit.credentials()` says which credentials win"
ROLES = read_table("machines")["google"]["roles"]
_PERMISSION = re.compile(
    r"""(?i:permission) ['"]?([a-z]+(?:\.\w+){2,3})|([a-z]+(?:\.\w+){2,3})['"]? permission"""
)


class GcpError(CloudError):
    """A request to Google Cloud failed."""


@dataclass(frozen=True)
class ErrorReply:
    """An error as a service gave it: HTTP's status, a code, words; reason and metadata of its ErrorInfo."""

    status: int
    code: str
    words: str
    reason: str = ""
    metadata: Mapping[str, str] = field(default_factory=dict)


def translate(error: Exception, about: str, project: str) -> GcpError:
    """Convert an exception of google-auth or of the network; ``about`` names the request."""
    kinds = " ".join(kind.__name__ for kind in type(error).__mro__)
    row, words = classify("google_library", f"{kinds}: {error}"), str(error.args[0] if error.args else error)
    return GcpError(row.what.replace("{words}", words), about=about, fix=row.fix, why=row.why)


def refused(reply: Response, about: str, project: str) -> GcpError:
    """Build the error for an answer over HTTP that is one."""
    try:
        body = reply.json()["error"]
        words, details = body.get("message", ""), body.get("details") or []
    except (ValueError, KeyError, TypeError, AttributeError):
        return to_error(ErrorReply(reply.status_code, "", reply.text or reply.reason), about, project)
    old = next((error.get("reason", "") for error in body.get("errors") or []), "")  # of Compute and Storage
    code = old if re.search("Exceeded|NotConfigured", old) else body.get("status") or old
    infos = [detail for detail in details if detail.get("@type", "").endswith("ErrorInfo")]
    info = infos[0] if infos else {}
    parts = (words, info.get("reason", ""), info.get("metadata") or {})
    return to_error(ErrorReply(reply.status_code, code, *parts), about, project)


def to_error(reply: ErrorReply, about: str, project: str) -> GcpError:
    """Build the error for a service's reply, or for the end of an operation."""
    words, metadata = reply.words.strip(), reply.metadata
    permission = metadata.get("permission") or _first(_PERMISSION, words)
    known = classify(
        "google", f"{reply.status} {reply.code} {reply.reason}: {words}{permission and f' [{permission}]'}"
    )
    consumer = metadata.get("consumer", "").removeprefix("projects/") or _first(
        r"project (\S+) before", words
    )
    metric = _first(r"""['"]([A-Z][A-Z0-9_]{3,})['"]""", words)
    details = {
        "words": words,
        "project": project,
        "console": CONSOLE,
        "consumer": consumer or project,
        "service": metadata.get("service") or _first(r"([a-z]+\.googleapis\.com)", words) or "that it names",
        "permission": permission,
        "role": role_for(permission),
        "of": f" of {metric}" if metric else "",
    }
    what, fix = (words.format_map(details) for words in (known.what, known.fix))
    detail = words if known.why is ErrorReason.DENIED else ""
    return GcpError(what, about=about, fix=fix, detail=detail, why=known.why, consumer=consumer)


def role_for(permission: str) -> str:
    """The narrowest predefined role that has a permission.

    Example:
        >>> role_for("iam.serviceAccounts.actAs")
        'roles/iam.serviceAccountUser'
    """
    return ROLES.get(max(filter(permission.startswith, ROLES), key=len, default=""), "roles/editor")


def _first(pattern: str | re.Pattern[str], message: str) -> str:
    match = re.search(pattern, message)
    return next(filter(None, match.groups()), "") if match else ""
