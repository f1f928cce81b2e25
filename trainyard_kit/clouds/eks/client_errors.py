"""Errors of AWS and its client library as the kit's own: what failed, on what, and what to do. Pure."""

import json
import re
from collections.abc import Mapping
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Any

from botocore import exceptions as boto
from botocore.parsers import ResponseParserError

from kitlib.errors import BadInput, KitError, ProviderFailed
from trainyard_kit.clouds.eks.credentials import SIGN_IN

ABSENT = re.compile(r"NotFound|NoSuch|^404$")
CERTIFICATE = re.compile(r"CERTIFICATE_VERIFY_FAILED|certificate verify failed|self.signed certificate", re.I)
SKEW_SECONDS = 300  # AWS refuses requests that are off by more
RENEW = "{renew}; kit.credentials() says which credentials are used"  # in the way in which they signed in
AGAIN = "call it again in a minute"
CLOCK = "set this machine's clock: sudo chronyc makestep, or timedatectl"
REGION = RENEW + "; a region that is off by default has to be enabled in the account first"
STRANGER = "AWS does not know these credentials"
OTHERS = "another zone, instance type or region; or spot=False if it was spot"
QUOTAS = "ask for more at Service Quotas in the console, or delete something: kit.list_resources()"
CAPACITY = re.compile(r"Insufficient\w*Capacity|UnfulfillableCapacity|sufficient .{0,40}capacity", re.I)
UPGRADE = "upgrade it: https://console.aws.amazon.com/billing/home#/account; the credits stay"
# What an account has to be before it may start anything: no other zone or type helps.
ACCOUNT = (
    (
        r"PendingVerification|being (validated|verified)|is blocked|not recognized as a valid account",
        "AWS is still verifying this account",
        "wait for AWS's e-mail, which takes minutes and at most a day, then call it again; or ask at "
        "https://console.aws.amazon.com/support",
        False,
    ),
    (
        r"Free Tier|free[ -]?plan|FreeTierRestriction",
        "the account's free plan does not have it",
        UPGRADE,
        False,
    ),
    (
        r"SubscriptionRequired|needs a subscription|OptInRequired",
        "the account is not active yet",
        "finish signing up (payment method, telephone, plan): https://portal.aws.amazon.com/billing/signup/resume",
        False,
    ),
)
# By code and message, the first that fits: what failed, what to do, whether it passes by itself.
REFUSALS = (
    *ACCOUNT,
    (r"TooSkewed|signature (not yet current|expired)|request time", "the clock is wrong", CLOCK, False),
    (r"Expired|TokenRefreshRequired", "the credentials have expired", RENEW, False),
    (r"^(Invalid(ClientToken|AccessKey|Signature)|UnrecognizedClient)", STRANGER, REGION, False),
    (r"^(AuthFailure|SignatureDoesNotMatch)", STRANGER, REGION, False),
    (r"Throttl|RequestLimit|TooManyRequests|SlowDown|PriorRequest", "AWS asks to go slower", AGAIN, True),
    (CAPACITY.pattern, "AWS has none of these to give now", OTHERS, False),
    (r"LimitExceeded|Quota|LimitReached|TooMany|VcpuLimit", "the account's quota is used up", QUOTAS, False),
    (r"DependencyViolation|DeleteConflict|InUse|NotEmpty|Aborted", "it is in use", AGAIN, True),
    (r"Incorrect\w*State|ConcurrentModification", "it is changing", AGAIN, True),
    (r"not be assumed|cannot assume|to assume|or the trusted", "a new role is not known yet", AGAIN, True),
    (r"^\S*(Internal|Unavailable|ServerException)|^5\d\d ", "AWS failed", AGAIN, True),
)
UNUSABLE = (
    boto.PartialCredentialsError
    | boto.CredentialRetrievalError
    | boto.TokenRetrievalError
    | boto.MetadataRetrievalError
    | boto.RefreshWithMFAUnsupportedError
)
UNANSWERED = (
    (
        boto.NoCredentialsError | boto.NoAuthTokenError,
        "there are no credentials for AWS",
        "{renew}",
    ),
    (
        boto.MissingDependencyException,
        "these credentials need a package more",
        'pip install "botocore[crt]", then restart the kernel',
    ),
    (
        boto.LoginInsufficientPermissions,
        "the sign-in may not be used by programs",
        "have AWS's policy SignInLocalDevelopmentAccess attached to the user or role; then {renew}",
    ),
    (boto.SSOError | boto.LoginError, "the sign-in has expired", RENEW),
    (UNUSABLE, "the credentials cannot be used", RENEW),
)


class AwsError(ProviderFailed):
    """AWS did not do what was asked of it.

    Attributes:
        code: Its own word for why, such as ``AccessDenied``; empty where it did not answer.
        passing: Whether the same request may succeed in a little while.
    """

    def __init__(
        self, what: str, *, about: str, fix: str, detail: str = "", code: str = "", passing: bool = False
    ) -> None:
        super().__init__(what, about=about, fix=fix, detail=detail)
        self.code, self.passing = code, passing


def foreign(about: str) -> AwsError:
    """Build the error for what has the right name, and not the kit's tags."""
    what, fix = "it is there already, and it is not the kit's", "another name: what is not the kit's stays"
    return AwsError(what, about=about, fix=fix, code="Foreign")


def code_of(error: BaseException) -> str:
    """The code of an answer of AWS; empty where there was none."""
    return error.response.get("Error", {}).get("Code", "") if isinstance(error, boto.ClientError) else ""


def to_error(
    error: Exception,
    service: str,
    operation: str,
    parameters: Mapping[str, Any],
    *,
    region: str,
    profile: str | None,
    renew: str = SIGN_IN,
) -> KitError:
    """Translate an error of botocore; ``renew`` is how the user signs in again."""
    about = f"{service}: {operation.replace('_', ' ')}{_names(parameters)} in {region}"
    if isinstance(error, boto.ClientError):
        return _refused(error, about, service, operation, renew)
    if isinstance(error, boto.ParamValidationError):
        return BadInput(f"AWS takes no such values: {error}", about=about, fix="correct what it names")
    if isinstance(error, boto.ProfileNotFound):
        fix = f"kit.credentials() lists; or: {SIGN_IN}"
        return BadInput(f'no file has the profile "{profile}"', about=about, fix=fix)
    for kinds, what, fix in UNANSWERED:
        if isinstance(error, kinds):
            return AwsError(f"{what}: {error}", about=about, fix=fix.replace("{renew}", renew))
    if CERTIFICATE.search(str(error)):
        what, fix = (
            f"a certificate between here and AWS is not known: {error}",
            "AWS_CA_BUNDLE=/path/of/your/company.pem",
        )
        return AwsError(what, about=about, fix=f"{fix}, for a proxy that opens TLS; then restart the kernel")
    if isinstance(error, boto.HTTPClientError | boto.ConnectionError | boto.IncompleteReadError | OSError):
        fix = f"see that this machine is online, and that {region} has {service}; then call it again"
        return AwsError(f"the network does not reach AWS: {error}", about=about, fix=fix, passing=True)
    if isinstance(error, ResponseParserError):
        what, fix = f"what answered is not AWS, or AWS failed: {error}", "see whether a proxy is in between"
        return AwsError(what, about=about, fix=fix, passing=True)
    fix = "call it again; trainyard doctor"
    return AwsError(f"the client library of AWS failed: {error}", about=about, fix=fix)


def _refused(error: boto.ClientError, about: str, service: str, operation: str, renew: str) -> AwsError:
    code, words = code_of(error), error.response.get("Error", {}).get("Message") or str(error)
    account = any(re.search(pattern, f"{code} {words}", re.I) for pattern, *_ in ACCOUNT)
    if not account and re.search(r"AccessDenied|Unauthorized|^AuthorizationError|^403$", code):
        return _denied(about, code, words, service, operation)
    said = f"RequestTimeTooSkewed {words}" if _off(error) else f"{code} {words}"
    for pattern, what, fix, passing in REFUSALS:
        if re.search(pattern, said, re.I):
            fix = fix.replace("{renew}", renew)
            return AwsError(f"{what}: {words}", about=about, fix=fix, code=code, passing=passing)
    fix = "read what it says; the same call goes on where it was"
    return AwsError(f"AWS refused: {words} ({code})", about=about, fix=fix, code=code)


def _off(error: boto.ClientError) -> bool:
    """Whether credentials seem expired because this machine's clock is off: EC2 says of both the same."""
    told = error.response.get("ResponseMetadata", {}).get("HTTPHeaders", {}).get("date")
    try:
        seconds = abs((datetime.now(UTC) - parsedate_to_datetime(told)).total_seconds())
    except (TypeError, ValueError):
        return False
    return "Expired" in code_of(error) and seconds > SKEW_SECONDS


def _denied(about: str, code: str, words: str, service: str, operation: str) -> AwsError:
    who = re.search(r"(?:User|Principal): (\S+) is not authorized", words)
    what = re.search(r"not authorized to perform:? ?\[?([a-zA-Z0-9-]+:[A-Za-z0-9]+)", words)
    on = re.search(r"on resource: (\S+)", words)
    action = what[1] if what else f"{service}:{operation.title().replace('_', '')}"
    refused = f"{who[1] if who else 'these credentials'} may not do {action}"
    if "explicit deny" in words:
        refused, fix = f"{refused}: a policy denies it", "ask who looks after the account"
    else:
        statement = {"Effect": "Allow", "Action": action, "Resource": on[1].rstrip(".") if on else "*"}
        fix = f"have this added to their policy: {json.dumps(statement)}; docs/eks.md has all of it"
    return AwsError(refused, about=about, fix=fix, code=code, detail=words)


def _names(parameters: Mapping[str, Any]) -> str:
    told = (
        value
        for key, value in parameters.items()
        if isinstance(value, str) and re.search(r"(?i)name$|id$|arn$|^bucket$", key)
    )
    return "".join(f" {each}" for each in told)
