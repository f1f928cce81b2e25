"""What goes wrong at a cloud: one kind of error, one list of reasons, and one table, `errors.toml`.

How a client library's exception becomes such an error is each cloud's own. Pure, but for that file.
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
PASSING = (ErrorReason.BUSY, ErrorReason.NETWORK, ErrorReason.FAULT)
# No waiting helps, and no other zone or type: somebody has to do something about the account.
PERMANENT = (
    ErrorReason.ACCOUNT,
    ErrorReason.BILLING,
    ErrorReason.POLICY,
    ErrorReason.QUOTA,
    ErrorReason.SETUP,
)
AGAIN = "call it again in a minute"


class CloudError(ProviderFailed):
    """A cloud did not do what was asked of it.

    Attributes:
        why: The reason.
        code: The cloud's own word for it, such as ``AccessDenied``; empty where it did not answer.
        consumer: Id or number of the project that is said to lack an API.
        passing: Whether the same request may succeed in a little while.
    """

    def __init__(
        self,
        what: str,
        *,
        about: str,
        fix: str,
        detail: str = "",
        why: ErrorReason = ErrorReason.OTHER,
        code: str = "",
        consumer: str = "",
    ) -> None:
        super().__init__(what, about=about, fix=fix, detail=detail)
        self.why, self.code, self.consumer = why, code, consumer
        self.passing = why in PASSING


@dataclass(frozen=True)
class ErrorRule:
    """A row of the table: the reason, by what it is known, and what is said of it."""

    why: ErrorReason
    says: re.Pattern[str]
    what: str
    fix: str


@cache
def known_errors(cloud: str) -> tuple[ErrorRule, ...]:
    """Read the rows of a cloud: ``amazon`` or ``google``."""
    return tuple(
        ErrorRule(ErrorReason[row["why"]], re.compile(row["says"], re.I | re.S), row["what"], row["fix"])
        for row in read_table("errors")[cloud]
    )


def classify(cloud: str, message: str) -> ErrorRule:
    """Find the first row that fits; the last one fits everything."""
    return next(row for row in known_errors(cloud) if row.says.search(message))
