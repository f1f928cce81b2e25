"""Errors of AWS and its client library as the kit's own: what failed, on what, and what to do. Pure."""

import json
import re
from collections.abc import Mapping
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Any

from botocore import exceptions as boto

from kitlib.errors import BadInput, KitError
from trainyard_kit.clouds.cloud_errors import CloudError, ErrorReason, classify
from trainyard_kit.clouds.eks.credentials import SIGN_IN

ABSENT = re.compile(r"NotFound|NoSuch|^404$")
SKEW_SECONDS = 300  # AWS refuses requests that are off by more


class AwsError(CloudError):
    """AWS did not do what was asked of it."""


def foreign(about: str) -> AwsError:
    """Build the error for what has the right name, and not the kit's tags."""
    what, fix = (
        "it exists already, and it is not the kit's",
        "use another name: the kit leaves alone what is not its own",
    )
    return AwsError(what, about=about, fix=fix, why=ErrorReason.TAKEN)


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
        return BadInput(f"AWS refuses these values: {error}", about=about, fix="correct what it names")
    if isinstance(error, boto.ProfileNotFound):
        fix = f"`kit.credentials()` lists; or: {SIGN_IN}"
        return BadInput(f'no file has the profile "{profile}"', about=about, fix=fix)
    kinds = " ".join(kind.__name__ for kind in type(error).__mro__)
    row = classify("amazon_library", f"{kinds}: {error}")
    fix = row.fix.replace("{renew}", renew).replace("{service}", service).replace("{region}", region)
    return AwsError(f"{row.what}: {error}", about=about, fix=fix, why=row.why)


def _refused(error: boto.ClientError, about: str, service: str, operation: str, renew: str) -> AwsError:
    code, message = code_of(error), error.response.get("Error", {}).get("Message") or str(error)
    known = classify("amazon", f"RequestTimeTooSkewed {message}" if _off(error) else f"{code} {message}")
    denied = re.search(r"AccessDenied|Unauthorized|^AuthorizationError|^403$", code)
    if denied and known.why is not ErrorReason.ACCOUNT:
        return _denied(about, code, message, service, operation)
    more = f" ({code})" if known.why is ErrorReason.OTHER else ""
    fix = known.fix.replace("{renew}", renew)
    return AwsError(f"{known.what}: {message}{more}", about=about, fix=fix, why=known.why, code=code)


def _off(error: boto.ClientError) -> bool:
    """Whether credentials seem expired because this machine's clock is off: EC2 says of both the same."""
    date = error.response.get("ResponseMetadata", {}).get("HTTPHeaders", {}).get("date")
    try:
        seconds = abs((datetime.now(UTC) - parsedate_to_datetime(date)).total_seconds())
    except (TypeError, ValueError):
        return False
    return "Expired" in code_of(error) and seconds > SKEW_SECONDS


def _denied(about: str, code: str, message: str, service: str, operation: str) -> AwsError:
    principal = re.search(r"(?:User|Principal): (\S+) is not authorized", message)
    what = re.search(r"not authorized to perform:? ?\[?([a-zA-Z0-9-]+:[A-Za-z0-9]+)", message)
    on = re.search(r"on resource: (\S+)", message)
    action = what[1] if what else f"{service}:{operation.title().replace('_', '')}"
    refused = f"{principal[1] if principal else 'these credentials'} may not do {action}"
    if "explicit deny" in message:
        refused, fix = f"{refused}: a policy denies it", "ask the account's administrator"
    else:
        statement = {"Effect": "Allow", "Action": action, "Resource": on[1].rstrip(".") if on else "*"}
        fix = f"have this added to their policy: {json.dumps(statement)}; docs/eks.md has all of it"
    return AwsError(refused, about=about, fix=fix, why=ErrorReason.DENIED, code=code, detail=message)


def _names(parameters: Mapping[str, Any]) -> str:
    names = (
        value
        for key, value in parameters.items()
        if isinstance(value, str) and re.search(r"(?i)name$|id$|arn$|^bucket$", key)
    )
    return "".join(f" {words}" for words in names)
