"""Errors of Google Cloud and its client libraries as the kit's: what failed, on what, and what to do. Pure.

The same error comes as an answer and as the end of an operation: with a code of google.rpc.Code, words, and
mostly an ErrorInfo with a reason (https://google.aip.dev/193).
"""

import http.client
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import google.auth.exceptions as auth
import httplib2
from googleapiclient.errors import Error as ClientError
from googleapiclient.errors import HttpError

from kitlib.errors import BadInput, KitError
from trainyard_kit.clouds.cloud_errors import AGAIN, CERTIFICATE, CLOCK, CloudError, ErrorReason, classify

CONSOLE = "https://console.cloud.google.com"
LOGIN = "gcloud auth application-default login; kit.credentials() says which credentials win"
ROLES = {  # https://cloud.google.com/iam/docs/understanding-roles; the longest beginning counts
    "artifactregistry.": "roles/artifactregistry.admin",
    "cloudscheduler.": "roles/cloudscheduler.admin",
    "compute.": "roles/compute.networkAdmin",
    "compute.acceleratorTypes.": "roles/compute.viewer",
    "compute.machineTypes.": "roles/compute.viewer",
    "compute.disks.": "roles/compute.storageAdmin",
    "compute.firewalls.": "roles/compute.securityAdmin",
    "container.": "roles/container.admin",
    "file.": "roles/file.editor",
    "iam.serviceAccounts.": "roles/iam.serviceAccountAdmin",
    "iam.serviceAccounts.actAs": "roles/iam.serviceAccountUser",
    "resourcemanager.projects.": "roles/resourcemanager.projectIamAdmin",
    "serviceusage.": "roles/serviceusage.serviceUsageConsumer",
    "storage.": "roles/storage.admin",
}
RAISED = (  # by the client libraries
    auth.GoogleAuthError,
    ClientError,
    httplib2.HttpLib2Error,
    http.client.HTTPException,
    OSError,
)
# What Google's token service says of a token from the past or the future, and TLS of all certificates.
_SKEW = re.compile(r"in a reasonable timeframe|iat and exp values|certificate is not yet valid", re.I)
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


def translate(error: Exception, about: str, project: str) -> KitError:
    """Convert a client library's exception to the kit's; ``about`` names the request."""
    if isinstance(error, HttpError) and not CERTIFICATE.search(str(error)):
        return to_error(_reply(error), about, project)
    message = str(error.args[0]) if error.args else str(error)
    if isinstance(error, TypeError | ClientError):
        return BadInput(
            f"Google Cloud refuses these values: {error}", about=about, fix="correct what it names"
        )
    fix, why = LOGIN, ErrorReason.CREDENTIALS
    if isinstance(error, auth.DefaultCredentialsError):
        what = "there are no credentials for Google Cloud"
    elif _SKEW.search(str(error)):
        what, fix = f"this machine's clock is wrong: {message}", CLOCK
    elif CERTIFICATE.search(str(error)):
        what = f"a certificate between here and Google Cloud is not trusted: {message}"
        names = ("REQUESTS_CA_BUNDLE", "HTTPLIB2_CA_CERTS")
        fix = f"for a proxy that opens TLS, set {' and '.join(names)} to its .pem; then restart the kernel"
    elif isinstance(error, auth.RefreshError | auth.OAuthError | auth.UserAccessTokenError):
        what = f"the credentials have expired or were withdrawn: {message}"
    else:
        what, fix = f"the network does not reach Google Cloud: {error}", AGAIN
        why = ErrorReason.NETWORK
    return GcpError(what, about=about, fix=fix, why=why)


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


def _reply(error: HttpError) -> ErrorReply:
    status = int(error.resp.status)
    try:
        body = json.loads(error.content)["error"]
        words, details = body.get("message", ""), body.get("details") or []
    except (ValueError, KeyError, TypeError, AttributeError):
        return ErrorReply(status, "", str(error))
    old = next((error.get("reason", "") for error in body.get("errors") or []), "")  # of Compute and Storage
    code = old if re.search("Exceeded|NotConfigured", old) else body.get("status") or old
    none: dict[str, Any] = {}
    info = next((detail for detail in details if detail.get("@type", "").endswith("ErrorInfo")), none)
    return ErrorReply(status, code, words, info.get("reason", ""), info.get("metadata") or {})
