"""Convert errors of Google Cloud and its client libraries to the kit's errors. Pure.

The same error comes as a response and as the result of an operation: with a code of google.rpc.Code, a
message, and usually an ErrorInfo with a reason (https://google.aip.dev/193).
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from requests import Response

from trainyard_kit.clouds.cloud_errors import CloudError, ErrorReason, classify
from trainyard_kit.clouds.spec import read_table

CONSOLE = "https://console.cloud.google.com"
LOGIN = "gcloud auth application-default login; `kit.credentials()` shows which credentials are used"
ROLES = read_table("machines")["google"]["roles"]
_PERMISSION = re.compile(
    r"""(?i:permission) ['"]?([a-z]+(?:\.\w+){2,3})|([a-z]+(?:\.\w+){2,3})['"]? permission"""
)


class GcpError(CloudError):
    """A request to Google Cloud failed."""


@dataclass(frozen=True)
class ErrorReply:
    """A service's error: HTTP status, code, message; reason and metadata of its ErrorInfo."""

    status: int
    code: str
    message: str
    reason: str = ""
    metadata: Mapping[str, str] = field(default_factory=dict)


def translate(error: Exception, about: str, project: str) -> GcpError:
    """Convert an exception of google-auth or of the network; ``about`` names the request."""
    classes = " ".join(class_.__name__ for class_ in type(error).__mro__)
    row = classify("google_library", f"{classes}: {error}")
    message = str(error.args[0] if error.args else error)
    return GcpError(row.what.replace("{message}", message), about=about, fix=row.fix, reason=row.reason)


def from_response(reply: Response, about: str, project: str) -> GcpError:
    """Convert an HTTP error response."""
    try:
        body = reply.json()["error"]
        message, details = body.get("message", ""), body.get("details") or []
    except (ValueError, KeyError, TypeError, AttributeError):
        return to_error(ErrorReply(reply.status_code, "", reply.text or reply.reason), about, project)
    reason = next((error.get("reason", "") for error in body.get("errors") or []), "")  # Compute, Storage
    code = reason if re.search("Exceeded|NotConfigured", reason) else body.get("status") or reason
    infos = [detail for detail in details if detail.get("@type", "").endswith("ErrorInfo")]
    info = infos[0] if infos else {}
    parts = (message, info.get("reason", ""), info.get("metadata") or {})
    return to_error(ErrorReply(reply.status_code, code, *parts), about, project)


def to_error(reply: ErrorReply, about: str, project: str) -> GcpError:
    """Convert a service's error, or that of an operation."""
    message, metadata = reply.message.strip(), reply.metadata
    permission = metadata.get("permission") or _first(_PERMISSION, message)
    suffix = f" [{permission}]" if permission else ""
    row = classify("google", f"{reply.status} {reply.code} {reply.reason}: {message}{suffix}")
    consumer = metadata.get("consumer", "").removeprefix("projects/")
    consumer = consumer or _first(r"project (\S+) before", message)
    service = metadata.get("service") or _first(r"([a-z]+\.googleapis\.com)", message)
    metric = _first(r"""['"]([A-Z][A-Z0-9_]{3,})['"]""", message)
    values = {
        "message": message,
        "project": project,
        "console": CONSOLE,
        "consumer": consumer or project,
        "service": service or "named in the message",
        "permission": permission,
        "role": role_for(permission),
        "of": f" of {metric}" if metric else "",
    }
    what, fix = row.what.format_map(values), row.fix.format_map(values)
    detail = message if row.reason is ErrorReason.DENIED else ""
    return GcpError(what, about=about, fix=fix, detail=detail, reason=row.reason, consumer=consumer)


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
