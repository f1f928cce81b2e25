"""What AWS and its client library say when something goes wrong, as the kit's errors: what, on what, and the
next thing to do. Pure: nothing here makes a request.
"""

import json
import re
from collections.abc import Mapping
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime

from botocore import exceptions as boto
from botocore.parsers import ResponseParserError

from kitlib.errors import BadInput, KitError, ProviderFailed

_EXPIRED = {"ExpiredToken", "ExpiredTokenException", "RequestExpired", "TokenRefreshRequired"}
_UNKNOWN_KEY = {
    "InvalidClientTokenId",
    "UnrecognizedClientException",
    "AuthFailure",
    "InvalidAccessKeyId",
    "SignatureDoesNotMatch",
    "InvalidSignatureException",
    "OptInRequired",
}
_DENIED = {"AccessDenied", "AccessDeniedException", "UnauthorizedOperation", "AuthorizationError", "403"}
_THROTTLED = {
    "Throttling",
    "ThrottlingException",
    "ThrottledException",
    "RequestThrottled",
    "RequestLimitExceeded",
    "TooManyRequestsException",
    "SlowDown",
    "PriorRequestNotComplete",
}
_CAPACITY = {
    "InsufficientInstanceCapacity",
    "InsufficientCapacity",
    "InsufficientHostCapacity",
    "UnfulfillableCapacity",
    "UnsupportedAvailabilityZoneException",
    "Unsupported",
    "NoFreeAddressesInSubnet",
    "InsufficientFreeAddresses",
}
_NOT_YET = re.compile(
    r"(could not|cannot) be assumed|must allow .* to assume|cannot assume|not exist or the trusted", re.I
)
# Something else, which goes by itself or is deleted at the same time, still uses it.
_IN_USE = {
    "DependencyViolation",
    "DeleteConflict",
    "FileSystemInUse",
    "IncorrectFileSystemLifeCycleState",
    "IncorrectMountTargetState",
    "IncorrectState",
    "InvalidGroup.InUse",
    "InvalidNetworkInterface.InUse",
    "InvalidIPAddress.InUse",
    "VolumeInUse",
    "ResourceInUse",
    "ResourceInUseException",
    "ConcurrentModification",
    "OperationAborted",
    "BucketNotEmpty",
}
_LIMIT = re.compile(r"LimitExceeded|QuotaExceeded|LimitReached|TooMany(?!Requests)|VcpuLimit|InstanceLimit")
_SKEW = re.compile(
    r"signature (not yet current|expired)|skew|ahead of|difference between the request time", re.I
)
_AT_FAULT = re.compile(r"Internal|ServiceUnavailable|Unavailable|^5\d\d$|ServerException")
_WHO = re.compile(r"(?:User|Principal): (\S+) is not authorized")
_WHAT = re.compile(r"not authorized to perform:? ?\[?([a-zA-Z0-9-]+:[A-Za-z0-9]+)")
_ON_WHAT = re.compile(r"on resource: (\S+)")
SKEW_SECONDS = 300  # AWS refuses requests that are off by more
ABSENT = re.compile(r"NotFound|NoSuch|^404$")


class AwsError(ProviderFailed):
    """AWS did not do what was asked of it.

    Attributes:
        code: Its own word for why, such as ``AccessDenied``; empty where it did not answer.
        passing: Whether the same request may do in a little while.
    """

    def __init__(
        self, what: str, *, about: str, fix: str, detail: str = "", code: str = "", passing: bool = False
    ) -> None:
        super().__init__(what, about=about, fix=fix, detail=detail)
        self.code = code
        self.passing = passing


def code_of(error: BaseException) -> str:
    """Return the code of an answer of AWS; empty where there was none."""
    return error.response.get("Error", {}).get("Code", "") if isinstance(error, boto.ClientError) else ""


def to_error(
    error: Exception, service: str, operation: str, parameters: Mapping, *, region: str, profile: str | None
) -> KitError:
    """Return the kit's error for one of botocore's.

    Args:
        error: What the client library raised.
        service: As boto3 calls it: ``eks``.
        operation: The same: ``create_cluster``.
        parameters: Of the request; those that name something are told.
        region: Where it was sent.
        profile: Whose credentials; None for the environment's.
    """
    about = f"{service}: {operation.replace('_', ' ')}{_names(parameters)} in {region}"
    if isinstance(error, boto.ClientError):
        return _answered(error, about, service, operation, profile)
    return _unanswered(error, about, service, region, profile)


def _answered(
    error: boto.ClientError, about: str, service: str, operation: str, profile: str | None
) -> KitError:
    code, words = code_of(error), error.response.get("Error", {}).get("Message") or str(error)

    def refused(what: str, fix: str, *, passing: bool = False, detail: str = "") -> AwsError:
        return AwsError(what, about=about, fix=fix, code=code, passing=passing, detail=detail)

    if code == "RequestTimeTooSkewed" or _SKEW.search(words) or _off(error):
        return refused(
            f"this machine's clock is wrong: {words}", "set it: sudo chronyc makestep, or timedatectl"
        )
    if code in _EXPIRED:
        return refused(f"the credentials have expired: {words}", _renew(profile))
    if code in _DENIED:
        return _denied(refused, words, service, operation)
    if code in _UNKNOWN_KEY:
        hint = "; a region that is off by default has to be enabled in the account first"
        return refused(f"AWS does not know these credentials: {words}", _renew(profile) + hint)
    if code in _THROTTLED:
        return refused(f"AWS asks to go slower: {words}", "call it again in a minute", passing=True)
    if code in _CAPACITY:
        return refused(
            f"AWS has none of these to give now: {words}",
            "another zone, instance type or region; or spot=False if it was spot",
        )
    if _LIMIT.search(code):
        return refused(
            f"the account's quota is used up: {words}",
            "ask for more at Service Quotas in the console, or delete something: kit.list_resources()",
        )
    if code in _IN_USE:
        return refused(f"it is in use: {words}", "call it again in a minute", passing=True)
    if _NOT_YET.search(words):
        return refused(
            f"a role that was just made is not known everywhere: {words}", "call it again", passing=True
        )
    if _AT_FAULT.search(code):
        return refused(f"AWS failed: {words}", "call it again in a minute", passing=True)
    return refused(f"AWS refused: {words} ({code})", "read what it says; the same call goes on where it was")


def _off(error: boto.ClientError) -> bool:
    """Check whether AWS's clock, as its answer has it, is so far from this one that it refuses requests.

    EC2 says of a wrong clock and of credentials that have expired the same.
    """
    told = error.response.get("ResponseMetadata", {}).get("HTTPHeaders", {}).get("date")
    try:
        there = parsedate_to_datetime(told)
        return code_of(error) in _EXPIRED and abs((datetime.now(UTC) - there).total_seconds()) > SKEW_SECONDS
    except (TypeError, ValueError):
        return False


def _denied(refused, words: str, service: str, operation: str) -> AwsError:
    who, what, on = (each.search(words) for each in (_WHO, _WHAT, _ON_WHAT))
    action = what[1] if what else f"{service}:{''.join(word.title() for word in operation.split('_'))}"
    whose = who[1] if who else "these credentials"
    if "explicit deny" in words:
        return refused(
            f"{whose} may not do {action}: a policy denies it",
            "ask who looks after the account: no permission of yours outweighs a denial",
            detail=words,
        )
    resource = on[1].rstrip(".") if on else "*"
    statement = {"Effect": "Allow", "Action": action, "Resource": resource}
    return refused(
        f"{whose} may not do {action}",
        f"have this statement added to their policy: {json.dumps(statement)}; docs/eks.md has all of it",
        detail=words,
    )


def _unanswered(error: Exception, about: str, service: str, region: str, profile: str | None) -> KitError:
    if isinstance(error, boto.ParamValidationError):
        return BadInput(f"AWS takes no such values: {error}", about=about, fix="correct what it names")
    if isinstance(error, boto.ProfileNotFound):
        return BadInput(
            f'no file has the profile "{profile}"',
            about=about,
            fix="kit.credentials() lists; or: aws configure sso",
        )
    if isinstance(error, boto.NoCredentialsError | boto.NoAuthTokenError):
        return AwsError(
            "there are no credentials for AWS",
            about=about,
            fix="aws configure sso; kit.credentials() says where it looks",
        )
    if isinstance(error, boto.SSOError | boto.LoginError):
        return AwsError(f"the sign-in has expired: {error}", about=about, fix=_renew(profile))
    if isinstance(
        error, boto.PartialCredentialsError | boto.CredentialRetrievalError | boto.TokenRetrievalError
    ):
        return AwsError(f"the credentials cannot be used: {error}", about=about, fix=_renew(profile))
    if isinstance(error, boto.MetadataRetrievalError | boto.RefreshWithMFAUnsupportedError):
        return AwsError(f"the credentials cannot be had: {error}", about=about, fix=_renew(profile))
    if isinstance(error, boto.HTTPClientError | boto.ConnectionError | boto.IncompleteReadError | OSError):
        return AwsError(
            f"the network does not reach AWS: {error}",
            about=about,
            fix=f"see that this machine is online, and that {region} has {service}; then call it again",
            passing=True,
        )
    if isinstance(error, ResponseParserError):
        what = f"what answered is not AWS, or AWS failed: {error}"
        return AwsError(what, about=about, fix="see whether a proxy is in between", passing=True)
    return AwsError(
        f"the client library of AWS failed: {error}", about=about, fix="call it again; kit doctor"
    )


def _renew(profile: str | None) -> str:
    if profile:
        return f"aws sso login --profile {profile}, or renew the keys of the profile"
    return "renew them where they come from; kit.credentials() says which win"


def _names(parameters: Mapping) -> str:
    told = [
        str(value)
        for key, value in parameters.items()
        if isinstance(value, str) and re.search(r"(?i)name$|id$|arn$|^bucket$", key)
    ]
    return " " + " ".join(told) if told else ""
