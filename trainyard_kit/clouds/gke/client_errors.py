"""Errors of Google Cloud and its client libraries as the kit's: what failed, on what, and what to do. Pure.

The same error comes over gRPC, over HTTP and as the end of an operation: with a code of google.rpc.Code,
words, and mostly an ErrorInfo with a reason (https://google.aip.dev/193).
"""

import http.client
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

import google.api_core.exceptions as api
import google.auth.exceptions as auth
import httplib2
from googleapiclient.errors import Error as ClientError
from googleapiclient.errors import HttpError

from kitlib.errors import BadInput, KitError, ProviderFailed

ErrorReason = StrEnum(
    "ErrorReason",
    "ABSENT TAKEN BUSY DENIED UNKNOWN_ACCOUNT DISABLED BILLING PROJECT QUOTA STOCKOUT CREDENTIALS NETWORK "
    "FAULT OTHER",
)
CONSOLE = "https://console.cloud.google.com"
LOGIN = "gcloud auth application-default login; kit.credentials() says which credentials win"
AGAIN = "call it again in a minute"
SAID = {
    ErrorReason.ABSENT: ("it is not there: {words}", "look for it: kit.list_resources()"),
    ErrorReason.TAKEN: ("the name is taken: {words}", "take another name"),
    ErrorReason.BUSY: ("Google Cloud is at something else there: {words}", AGAIN),
    ErrorReason.DENIED: (
        "this user lacks the permission {permission}",
        "{role} gives it: gcloud projects add-iam-policy-binding {project} --member=user:YOU --role={role}",
    ),
    ErrorReason.UNKNOWN_ACCOUNT: ("Google Cloud does not know it yet: {words}", AGAIN),
    ErrorReason.DISABLED: (
        "the API {service} is not enabled in project {consumer}",
        "gcloud services enable {service} --project={project}\n"
        "or at {console}/apis/library/{service}?project={project}",
    ),
    ErrorReason.BILLING: (
        "nobody pays for project {project}: {words}",
        "link a billing account: {console}/billing/linkedaccount?project={project}",
    ),
    ErrorReason.PROJECT: (
        "there is no project {project}, or it is not yours to use: {words}",
        "take its id, not its name: gcloud projects list; or get roles/serviceusage.serviceUsageConsumer",
    ),
    ErrorReason.QUOTA: (
        "the project's quota is used up: {words}",
        "ask for more{of} at {console}/iam-admin/quotas?project={project}; or fewer nodes, or another region",
    ),
    ErrorReason.STOCKOUT: (
        "the zone has none of these to give now: {words}",
        "another zone or accelerator, or spot=False if it was spot",
    ),
    ErrorReason.CREDENTIALS: ("Google Cloud does not accept these credentials: {words}", LOGIN),
    ErrorReason.FAULT: ("Google Cloud failed: {words}", AGAIN),
    ErrorReason.OTHER: ("Google Cloud refused: {words}", "correct what it names; the same call continues"),
}
ROLES = {  # https://cloud.google.com/iam/docs/understanding-roles; the longest beginning counts
    "artifactregistry.": "roles/artifactregistry.admin",
    "cloudbuild.": "roles/cloudbuild.builds.editor",
    "cloudscheduler.": "roles/cloudscheduler.admin",
    "compute.": "roles/compute.networkAdmin",
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
    api.GoogleAPICallError,
    api.RetryError,
    auth.GoogleAuthError,
    ClientError,
    httplib2.HttpLib2Error,
    http.client.HTTPException,
    OSError,
)
_CERTIFICATE = re.compile(
    r"CERTIFICATE_VERIFY_FAILED|certificate verify failed|self.signed certificate", re.I
)
_STOCKOUT = re.compile(r"STOCKOUT|RESOURCE_POOL_EXHAUSTED|not have enough resources|pool exhausted", re.I)
_QUOTA = re.compile(r"quota '?([A-Za-z0-9_-]+)'? exceeded|QUOTA_EXCEEDED|insufficient (?:\w+ )?quota", re.I)
_BILLING = re.compile(r"billing (?:account|must|is|to be).*(?:disabled|enabled)", re.I)
# What Google's token service says of a token from the past or the future, and TLS of all certificates.
_SKEW = re.compile(r"in a reasonable timeframe|iat and exp values|certificate is not yet valid", re.I)
_BUSY = re.compile(
    r"incompatible operation|operation .{0,200}in progress|is currently \w+ing|ALREADY_HAS_OPERATION|"
    r"being (?:used|created|deleted|updated) by|resourceInUse|resourceNotReady|not ready|try again later|"
    r"concurrent (?:policy )?change|is being",
    re.I,
)
_NO_ACCOUNT = re.compile(r"(?:account|principal|member|identity pool)\b.* does not exist", re.I)
_PERMISSION = re.compile(r"""permission ['"]?([a-z]+(?:\.\w+){2,3})|([a-z]+(?:\.\w+){2,3})['"]? permission""")


class GcpError(ProviderFailed):
    """A request to Google Cloud failed.

    Attributes:
        why: The reason.
        consumer: Id or number of the project that is said to lack an API.
    """

    def __init__(self, what: str, *, why: ErrorReason, consumer: str = "", **told: str) -> None:
        super().__init__(what, **told)
        self.why, self.consumer = why, consumer
        self.passing = why in (ErrorReason.BUSY, ErrorReason.NETWORK, ErrorReason.FAULT)


@dataclass(frozen=True)
class ErrorReply:
    """An error as a service gave it: HTTP's status, a code, words; reason and metadata of its ErrorInfo."""

    status: int
    code: str
    words: str
    reason: str = ""
    metadata: Mapping[str, str] = field(default_factory=dict)


def translate(error: Exception, about: str, project: str) -> KitError:
    """Convert a client library's exception to the kit's.

    Args:
        error: The exception.
        about: The request: ``container: create_cluster lab``.
        project: Of the request.
    """
    if isinstance(error, api.GoogleAPICallError | HttpError):
        return to_error(_reply(error), about, project)
    words = str(error.args[0]) if error.args else str(error)
    if isinstance(error, TypeError | ClientError):
        return BadInput(
            f"Google Cloud takes no such values: {error}", about=about, fix="correct what it names"
        )
    fix, why = LOGIN, ErrorReason.CREDENTIALS
    if isinstance(error, auth.DefaultCredentialsError):
        what = "there are no credentials for Google Cloud"
    elif _SKEW.search(str(error)):
        what, fix = f"this machine's clock is wrong: {words}", "set it: sudo chronyc makestep, or timedatectl"
    elif _CERTIFICATE.search(str(error)):
        what = f"a certificate between here and Google Cloud is not known: {words}"
        names = ("REQUESTS_CA_BUNDLE", "HTTPLIB2_CA_CERTS", "GRPC_DEFAULT_SSL_ROOTS_FILE_PATH")
        fix = f"for a proxy that opens TLS, set {', '.join(names)} to its .pem; then restart the kernel"
    elif isinstance(error, auth.RefreshError):
        what = f"the credentials have expired or were withdrawn: {words}"
    else:
        what, fix = f"the network does not reach Google Cloud: {error}", AGAIN
        why = ErrorReason.NETWORK
    return GcpError(what, about=about, fix=fix, why=why)


def to_error(said: ErrorReply, about: str, project: str) -> GcpError:
    """Build the error for a service's reply, or for the end of an operation."""
    why, words, metadata = reason_of(said), said.words.strip(), said.metadata
    consumer = metadata.get("consumer", "").removeprefix("projects/") or _first(
        r"project (\S+) before", words
    )
    permission = metadata.get("permission") or _first(_PERMISSION, words) or f"for that: {words}"
    metric = _first(r"""['"]([A-Z][A-Z0-9_]{3,})['"]""", words)
    given = {
        "words": words,
        "project": project,
        "console": CONSOLE,
        "consumer": consumer or project,
        "service": metadata.get("service") or _first(r"([a-z]+\.googleapis\.com)", words) or "that it names",
        "permission": permission,
        "role": role_for(permission),
        "of": f" of {metric}" if metric else "",
    }
    what, fix = (each.format_map(given) for each in SAID[why])
    if "compute.vmExternalIpAccess" in words:
        fix = "private=True gives nodes no public address: cluster.delete(), then create it with that"
    detail = words if why is ErrorReason.DENIED else ""
    return GcpError(what, about=about, fix=fix, detail=detail, why=why, consumer=consumer)


def reason_of(said: ErrorReply) -> ErrorReason:
    """Classify a reply."""
    words, status, code = said.words, said.status, said.code
    signed_out = status == 401 or code == "UNAUTHENTICATED" or "metadata from plugin failed" in words
    rules = (
        (said.reason == "SERVICE_DISABLED" or "accessNotConfigured" in code, ErrorReason.DISABLED),
        (said.reason == "BILLING_DISABLED" or _BILLING.search(words), ErrorReason.BILLING),
        (said.reason in ("CONSUMER_INVALID", "USER_PROJECT_DENIED"), ErrorReason.PROJECT),
        (signed_out, ErrorReason.CREDENTIALS),
        (_STOCKOUT.search(words), ErrorReason.STOCKOUT),
        (_QUOTA.search(words) or code == "quotaExceeded", ErrorReason.QUOTA),
        (status == 400 and _NO_ACCOUNT.search(words), ErrorReason.UNKNOWN_ACCOUNT),
        (status == 403 and "ateLimitExceeded" not in code, ErrorReason.DENIED),
        (status == 404 or code == "NOT_FOUND", ErrorReason.ABSENT),
        (code in ("ALREADY_EXISTS", "alreadyExists", "conflict"), ErrorReason.TAKEN),
        (status in (403, 412, 429) or code == "ABORTED", ErrorReason.BUSY),
        (status < 500 and _BUSY.search(f"{said.reason} {words}"), ErrorReason.BUSY),
        (status == 409, ErrorReason.TAKEN),
        (status >= 500, ErrorReason.FAULT),
    )
    return next((reason for holds, reason in rules if holds), ErrorReason.OTHER)


def role_for(permission: str) -> str:
    """The narrowest predefined role that has a permission.

    Example:
        >>> role_for("iam.serviceAccounts.actAs")
        'roles/iam.serviceAccountUser'
    """
    return ROLES.get(max(filter(permission.startswith, ROLES), key=len, default=""), "roles/editor")


def _first(pattern: str | re.Pattern[str], words: str) -> str:
    found = re.search(pattern, words)
    return next(filter(None, found.groups()), "") if found else ""


def _reply(error: api.GoogleAPICallError | HttpError) -> ErrorReply:
    if not isinstance(error, HttpError):
        code = error.grpc_status_code.name if error.grpc_status_code else ""
        return ErrorReply(
            int(error.code or 500), code, error.message, error.reason or "", error.metadata or {}
        )
    status = int(error.resp.status)
    try:
        body = json.loads(error.content)["error"]
        words, details = body.get("message", ""), body.get("details") or []
    except (ValueError, KeyError, TypeError, AttributeError):
        return ErrorReply(status, "", str(error))
    old = next((each.get("reason", "") for each in body.get("errors") or []), "")  # of Compute and Storage
    code = old if re.search("Exceeded|NotConfigured", old) else body.get("status") or old
    none: dict[str, Any] = {}
    info = next((each for each in details if each.get("@type", "").endswith("ErrorInfo")), none)
    return ErrorReply(status, code, words, info.get("reason", ""), info.get("metadata") or {})
