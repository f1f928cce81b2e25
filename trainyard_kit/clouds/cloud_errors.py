"""Cloud errors: one exception, one list of reasons, and the table `errors.toml` that classifies messages.

Each provider converts its client library's exceptions. Pure, except for reading that file.
"""

import re
from dataclasses import dataclass
from enum import StrEnum
from functools import cache

from kitlib.errors import ProviderFailed
from trainyard_kit.clouds.spec import read_table

ErrorReason = StrEnum(
    "ErrorReason",
    "ABSENT TAKEN BUSY DENIED UNKNOWN_ACCOUNT DISABLED ACCOUNT BILLING PROJECT QUOTA POLICY SETUP STOCKOUT "
    "CREDENTIALS CLOCK NETWORK FAULT OTHER",
)
TRANSIENT = (ErrorReason.BUSY, ErrorReason.NETWORK, ErrorReason.FAULT)
# Neither waiting nor another zone or type helps: the account has to be changed.
PERMANENT = (
    ErrorReason.ACCOUNT,
    ErrorReason.BILLING,
    ErrorReason.POLICY,
    ErrorReason.QUOTA,
    ErrorReason.SETUP,
)


class CloudError(ProviderFailed):
    """A request to a cloud failed.

    Attributes:
        reason: Its classification.
        code: The cloud's error code, such as ``AccessDenied``; empty without a response.
        consumer: Id or number of the project that has not enabled an API.
        transient: Whether a retry may succeed.
    """

    def __init__(
        self,
        what: str,
        *,
        about: str,
        fix: str,
        detail: str = "",
        reason: ErrorReason = ErrorReason.OTHER,
        code: str = "",
        consumer: str = "",
    ) -> None:
        super().__init__(what, about=about, fix=fix, detail=detail)
        self.reason, self.code, self.consumer = reason, code, consumer
        self.transient = reason in TRANSIENT


@dataclass(frozen=True)
class ErrorRule:
    """A row of the table: messages that match ``pattern`` have this reason, description and fix."""

    reason: ErrorReason
    pattern: re.Pattern[str]
    what: str
    fix: str


@cache
def known_errors(cloud: str) -> tuple[ErrorRule, ...]:
    """Read the rows of a cloud: ``amazon`` or ``google``."""
    return tuple(
        ErrorRule(
            ErrorReason[row["reason"]], re.compile(row["pattern"], re.I | re.S), row["what"], row["fix"]
        )
        for row in read_table("errors")[cloud]
    )


def classify(cloud: str, message: str) -> ErrorRule:
    """Find the first row that matches; the last row matches everything."""
    return next(row for row in known_errors(cloud) if row.pattern.search(message))
