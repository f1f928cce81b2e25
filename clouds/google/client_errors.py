"""What Google Cloud and its client libraries say when something goes wrong, as the kit's errors: what, on
what, and the next thing to do. Pure: nothing here makes a request.

The same error comes in three clothes: over gRPC, over HTTP, and as the end of an operation. All have a code
of google.rpc.Code and words, most of them an ErrorInfo with a reason (https://google.aip.dev/193).
"""

import http.client
import json
import re
from dataclasses import dataclass, field
from enum import StrEnum

import google.api_core.exceptions as api
import google.auth.exceptions as auth
import httplib2
from googleapiclient.errors import Error as ClientError
from googleapiclient.errors import HttpError

from clouds.google.permissions import grant, role_for
from kitlib.errors import BadInput, KitError, ProviderFailed


class ErrorReason(StrEnum):
    """Why something was refused, in words that gRPC and HTTP share."""

    ABSENT = "absent"
    TAKEN = "taken"
    BUSY = "busy"
    DENIED = "denied"
    DISABLED = "disabled"
    BILLING = "billing"
    PROJECT = "project"
    QUOTA = "quota"
    STOCKOUT = "stockout"
    CREDENTIALS = "credentials"
    NETWORK = "network"
    FAULT = "fault"
    OTHER = "other"


PASSING = {ErrorReason.BUSY, ErrorReason.NETWORK, ErrorReason.FAULT}
LOGIN = "gcloud auth application-default login; kit.credentials() says which credentials win"
_STOCKOUT = re.compile(
    r"STOCKOUT|RESOURCE_POOL_EXHAUSTED|does not have enough resources|resource pool exhausted", re.I
)
_QUOTA = re.compile(r"quota '?([A-Za-z0-9_-]+)'? exceeded|QUOTA_EXCEEDED|insufficient (?:\w+ )?quota", re.I)
_METRIC = re.compile(r"""['"]([A-Z][A-Z0-9_]{3,})['"]""")
# What Google's token service says of a token from the past or the future, and TLS of all certificates.
_SKEW = re.compile(r"in a reasonable timeframe|iat and exp values|certificate is not yet valid", re.I)
_BUSY = re.compile(
    r"incompatible operation|operation .{0,200}in progress|is currently \w+ing|ALREADY_HAS_OPERATION|"
    r"being (?:used|created|deleted|updated) by|resourceInUse|resourceNotReady|not ready|try again later|"
    r"concurrent (?:policy )?change|is being",
    re.I,
)
_PERMISSION = re.compile(
    r"""['"]?\b([a-z]+(?:\.[a-zA-Z]+){2,3})\b['"]? permission|permission ['"]?([a-z]+(?:\.[a-zA-Z]+){2,3})"""
)


class GcpError(ProviderFailed):
    """Google Cloud did not do what was asked of it.

    Attributes:
        why: In a word.
        passing: Whether the same request may do in a little while.
    """

    def __init__(
        self, what: str, *, about: str, fix: str, detail: str = "", why: ErrorReason = ErrorReason.OTHER
    ) -> None:
        super().__init__(what, about=about, fix=fix, detail=detail)
        self.why = why
        self.passing = why in PASSING


@dataclass(frozen=True)
class ErrorReply:
    """An error that a service gave, without its clothes.

    Attributes:
        status: The HTTP status.
        code: Of google.rpc.Code, or what an older API calls it: ``notFound``.
        words: Its message.
        reason: Of its ErrorInfo.
        metadata: Of its ErrorInfo: the service, the permission.
    """

    status: int
    code: str
    words: str
    reason: str = ""
    metadata: dict[str, str] = field(default_factory=dict)


def translate(error: Exception, about: str, project: str) -> KitError:
    """Return the kit's error for one of the client libraries'.

    Args:
        error: What they raised.
        about: The request: ``container: create_cluster lab``.
        project: In which it was.
    """
    if isinstance(error, api.GoogleAPICallError | HttpError):
        return to_error(answer(error), about, project)
    if isinstance(error, auth.DefaultCredentialsError):
        return GcpError(
            "there are no credentials for Google Cloud", about=about, fix=LOGIN, why=ErrorReason.CREDENTIALS
        )
    if _SKEW.search(str(error)):
        return GcpError(
            f"this machine's clock is wrong: {_first(error)}",
            about=about,
            fix="set it: sudo chronyc makestep, or timedatectl",
            why=ErrorReason.CREDENTIALS,
        )
    if isinstance(error, auth.RefreshError):
        return GcpError(
            f"the credentials have expired or were withdrawn: {_first(error)}",
            about=about,
            fix=LOGIN,
            why=ErrorReason.CREDENTIALS,
        )
    network = (
        auth.TransportError,
        api.RetryError,
        httplib2.HttpLib2Error,
        http.client.HTTPException,
        OSError,
    )
    if isinstance(error, network):
        return GcpError(
            f"the network does not reach Google Cloud: {error}",
            about=about,
            fix="see that this machine is online; the same call goes on where it was",
            why=ErrorReason.NETWORK,
        )
    if isinstance(error, TypeError | ValueError | ClientError):
        return BadInput(
            f"Google Cloud takes no such values: {error}", about=about, fix="correct what it names"
        )
    return GcpError(f"the client library failed: {error}", about=about, fix="call it again; kit doctor")


def answer(error: Exception) -> ErrorReply:
    """Convert an error of either client library to a reply."""
    if isinstance(error, HttpError):
        return _http(error)
    code = getattr(error.grpc_status_code, "name", "") if error.grpc_status_code else ""
    return ErrorReply(
        int(error.code or 500), code, error.message, error.reason or "", dict(error.metadata or {})
    )


def to_error(said: ErrorReply, about: str, project: str) -> GcpError:
    """Return the kit's error for what a service said, or what an operation ended with."""
    why = reason_of(said)
    what, fix = _say(why, said, project)
    return GcpError(
        what, about=about, fix=fix, detail=said.words if why is ErrorReason.DENIED else "", why=why
    )


def reason_of(said: ErrorReply) -> ErrorReason:
    """Classify a reply."""
    words = said.words
    if said.reason == "SERVICE_DISABLED" or "accessNotConfigured" in said.code:
        return ErrorReason.DISABLED
    if said.reason == "BILLING_DISABLED" or re.search(
        r"billing (?:account|must|is|to be).*(?:disabled|enabled)", words, re.I
    ):
        return ErrorReason.BILLING
    if said.reason in ("CONSUMER_INVALID", "USER_PROJECT_DENIED"):
        return ErrorReason.PROJECT
    if said.status == 401 or said.code == "UNAUTHENTICATED" or "metadata from plugin failed" in words:
        return ErrorReason.CREDENTIALS
    if _STOCKOUT.search(words):
        return ErrorReason.STOCKOUT
    if _QUOTA.search(words) or said.code == "quotaExceeded":
        return ErrorReason.QUOTA
    if said.status == 403 and said.code not in ("rateLimitExceeded", "userRateLimitExceeded"):
        return ErrorReason.DENIED
    if said.status == 404 or said.code == "NOT_FOUND":
        return ErrorReason.ABSENT
    if said.code in ("ALREADY_EXISTS", "alreadyExists", "conflict"):
        return ErrorReason.TAKEN
    if (
        said.status in (403, 412, 429)
        or said.code == "ABORTED"
        or (said.status < 500 and _BUSY.search(f"{said.reason} {words}"))
    ):
        return ErrorReason.BUSY
    if said.status == 409:
        return ErrorReason.TAKEN
    return ErrorReason.FAULT if said.status >= 500 else ErrorReason.OTHER


def _say(why: ErrorReason, said: ErrorReply, project: str) -> tuple[str, str]:
    words = said.words.strip()
    match why:
        case ErrorReason.DISABLED:
            service = said.metadata.get("service") or _service(words)
            link = f"https://console.cloud.google.com/apis/library/{service}?project={project}"
            return f"the API {service} is not enabled in project {project}", (
                f"gcloud services enable {service} --project={project}\nor at {link}"
            )
        case ErrorReason.BILLING:
            return f"nobody pays for project {project}: {words}", (
                f"link a billing account: https://console.cloud.google.com/billing/linkedaccount?project={project}"
            )
        case ErrorReason.PROJECT:
            return f"there is no project {project}, or it is not yours: {words}", (
                "take its id, not its name: gcloud projects list"
            )
        case ErrorReason.CREDENTIALS:
            return f"Google Cloud does not take these credentials: {words}", LOGIN
        case ErrorReason.DENIED:
            permission = permission_in(said)
            if not permission:
                return f"this user may not do that: {words}", "docs/gke.md lists the roles that are needed"
            return f"this user lacks the permission {permission}", (
                f"{role_for(permission)} gives it: {grant(project, permission)}"
            )
        case ErrorReason.QUOTA:
            metric = _METRIC.search(words)
            name = metric[1] if metric else ""
            link = f"https://console.cloud.google.com/iam-admin/quotas?project={project}"
            return f"the project's quota is used up: {words}", (
                f"ask for more{f' of {name}' if name else ''} at {link}; or fewer nodes, or another region"
            )
        case ErrorReason.STOCKOUT:
            return f"the zone has none of these to give now: {words}", (
                "another zone or accelerator, or spot=False if it was spot"
            )
        case ErrorReason.BUSY:
            return f"Google Cloud is at something else there: {words}", "call it again in a minute"
        case ErrorReason.FAULT:
            return f"Google Cloud failed: {words}", "call it again in a minute"
        case ErrorReason.ABSENT:
            return f"it is not there: {words}", "look for it: kit.list_resources()"
        case ErrorReason.TAKEN:
            return f"the name is taken: {words}", "take another name"
    return f"Google Cloud refused: {words}", "read what it says; the same call goes on where it was"


def permission_in(said: ErrorReply) -> str:
    """Return the permission that an answer names as missing; empty if it names none."""
    if given := said.metadata.get("permission"):
        return given
    found = _PERMISSION.search(said.words)
    return next(filter(None, found.groups())) if found else ""


def _http(error: HttpError) -> ErrorReply:
    try:
        body = json.loads(error.content)["error"]
        words, details = body.get("message", ""), body.get("details") or []
    except (ValueError, KeyError, TypeError, AttributeError):
        return ErrorReply(int(error.resp.status), "", str(error))
    old = next((each.get("reason", "") for each in body.get("errors") or []), "")
    code = (
        old
        if old in ("rateLimitExceeded", "quotaExceeded", "accessNotConfigured")
        else body.get("status") or old
    )
    info = next((each for each in details if each.get("@type", "").endswith("ErrorInfo")), {})
    return ErrorReply(int(error.resp.status), code, words, info.get("reason", ""), info.get("metadata") or {})


def _service(words: str) -> str:
    found = re.search(r"[a-z]+\.googleapis\.com", words)
    return found[0] if found else "that it names"


def _first(error: Exception) -> str:
    return str(error.args[0]) if error.args else str(error)
