"""What goes wrong on purpose: errors, cut connections, missing rights, credentials and clocks, by call.

A rule names actions by a pattern (``eks:CreateCluster``, ``ec2:Describe*``, ``*``) and counts the calls that
match it, from when the rule was made.
"""

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from fnmatch import fnmatchcase

from .calls import Call, Refused

AGE = timedelta(minutes=5)  # Amazon's: an older signature, or one from the future, is refused
MESSAGES = {
    "ThrottlingException": "Rate exceeded",
    "Throttling": "Rate exceeded",
    "TooManyRequestsException": "Rate exceeded",
    "RequestLimitExceeded": "Request limit exceeded.",
    "InternalError": "An internal error has occurred",
    "InternalFailure": "The request processing has failed because of an unknown error, exception or failure.",
    "ServerException": "Internal server error.",
    "ServiceUnavailable": "Service is unable to handle request.",
    "InsufficientInstanceCapacity": (
        "We currently do not have sufficient capacity in the Availability Zone you requested. Our system "
        "will be working on provisioning additional capacity."
    ),
}


@dataclass
class Rule:
    """One thing that goes wrong, the nth to the (nth + times - 1)th time that an action is called."""

    pattern: str
    nth: int
    times: int | None
    seen: int = 0

    def applies(self, call: Call) -> bool:
        """Return whether it is now; counts the call."""
        if not fnmatchcase(call.action, self.pattern):
            return False
        self.seen += 1
        return self.seen >= self.nth and (self.times is None or self.seen < self.nth + self.times)


@dataclass
class Failure(Rule):
    """The service answers with an error; after it has done what was asked, if ``after``."""

    error: str = ""
    message: str | None = None
    after: bool = False

    def refusal(self) -> Refused:
        """Return the error."""
        return Refused(
            self.error, self.message or MESSAGES.get(self.error, f"{self.error}, as the test says")
        )


@dataclass
class Cut(Rule):
    """The connection ends without an answer, before or after the call took effect."""

    when: str = "before"


class Faults:
    """All rules of a fake."""

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        """Let everything work."""
        self.rules: list[Rule] = []
        self.denied: dict[str, bool] = {}
        self.expired: set[str] = set()
        self.invalid: set[str] = set()
        self.regions: set[str] = set()
        self.skew = timedelta()
        self.offline = False

    def before(self, call: Call, signed: datetime | None, identity: str) -> None:
        """Raise what a service says before it looks at the request itself.

        Raises:
            AwsError: The credentials, the clock, a right.
        """
        if call.region in self.regions:
            raise _invalid(call)
        if call.key in self.invalid:
            raise _invalid(call)
        if call.key in self.expired or "*" in self.expired:
            raise _expired(call)
        if signed is not None:
            now = datetime.now(UTC) + self.skew
            if abs(now - signed) > AGE:
                raise _skewed(call, signed, now)
        for pattern, explicit in self.denied.items():
            if fnmatchcase(call.action, pattern):
                raise _denied(call, identity, explicit)


def _style(call: Call) -> str:
    """Return which family of services this is of; each has its own words for the same refusals."""
    if call.service in ("ec2", "s3"):
        return call.service
    return "query" if call.service in ("iam", "sts", "elb", "elbv2", "autoscaling") else "json"


def _invalid(call: Call) -> Refused:
    words = "The security token included in the request is invalid."
    if call.service == "ec2":
        words = "AWS was not able to validate the provided access credentials"
        return Refused("AuthFailure", words)
    if call.service == "s3":
        return Refused(
            "InvalidAccessKeyId", "The AWS Access Key Id you provided does not exist in our records."
        )
    code = "InvalidClientTokenId" if _style(call) == "query" else "UnrecognizedClientException"
    return Refused(code, words, status=403)


def _expired(call: Call) -> Refused:
    words = "The security token included in the request is expired"
    style = _style(call)
    if style == "ec2":
        return Refused("RequestExpired", "Request has expired.")
    if style == "s3":
        return Refused("ExpiredToken", "The provided token has expired.", status=400)
    return Refused("ExpiredToken" if style == "query" else "ExpiredTokenException", words, status=403)


def _skewed(call: Call, signed: datetime, now: datetime) -> Refused:
    style = _style(call)
    if style == "ec2":
        return Refused("RequestExpired", "Request has expired.")
    if style == "s3":
        words = "The difference between the request time and the current time is too large."
        return Refused("RequestTimeTooSkewed", words)
    said, here, first, last = (f"{each:%Y%m%dT%H%M%SZ}" for each in (signed, now, now - AGE, now + AGE))
    if signed < now:
        words = f"Signature expired: {said} is now earlier than {first} ({here} - 5 min.)"
    else:
        words = f"Signature not yet current: {said} is still later than {last} ({here} + 5 min.)"
    code = "SignatureDoesNotMatch" if style == "query" else "InvalidSignatureException"
    return Refused(code, words)


def _denied(call: Call, identity: str, explicit: bool) -> Refused:
    why = (
        "with an explicit deny in an identity-based policy"
        if explicit
        else f"because no identity-based policy allows the {call.action} action"
    )
    on = (
        ""
        if call.reads
        else f" on resource: arn:aws:{call.action.split(':')[0]}:{call.region}:123456789012:*"
    )
    words = f"User: {identity} is not authorized to perform: {call.action}{on} {why}"
    style = _style(call)
    if style == "ec2":
        start = "You are not authorized to perform this operation. "
        return Refused("UnauthorizedOperation", start + words)
    return Refused("AccessDeniedException" if style == "json" else "AccessDenied", words)
