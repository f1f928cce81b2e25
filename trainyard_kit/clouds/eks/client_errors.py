"""Convert errors of AWS and botocore to the kit's errors. Pure."""

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
SKEW_SECONDS = 300  # AWS rejects requests with a larger clock skew


class AwsError(CloudError):
    """A request to AWS failed."""


def name_taken(about: str) -> AwsError:
    """Build the error for a resource of this name without the kit's tags."""
    fix = "use another name: the kit does not touch resources of others"
    return AwsError("it exists, and is not the kit's", about=about, fix=fix, reason=ErrorReason.TAKEN)


def code_of(error: BaseException) -> str:
    """The error code of AWS's response; empty without one."""
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
    """Convert an error of botocore; ``renew`` is the command that renews the credentials."""
    about = f"{service}: {operation.replace('_', ' ')}{_names(parameters)} in {region}"
    if isinstance(error, boto.ClientError):
        return _from_response(error, about, service, operation, renew)
    if isinstance(error, boto.ParamValidationError):
        return BadInput(f"AWS rejects these values: {error}", about=about, fix="correct what it names")
    if isinstance(error, boto.ProfileNotFound):
        fix = f"`kit.credentials()` shows what is configured; or: {SIGN_IN}"
        return BadInput(f'there is no profile "{profile}"', about=about, fix=fix)
    classes = " ".join(class_.__name__ for class_ in type(error).__mro__)
    row = classify("amazon_library", f"{classes}: {error}")
    fix = row.fix.replace("{renew}", renew).replace("{service}", service).replace("{region}", region)
    return AwsError(f"{row.what}: {error}", about=about, fix=fix, reason=row.reason)


def _from_response(error: boto.ClientError, about: str, service: str, operation: str, renew: str) -> AwsError:
    code, message = code_of(error), error.response.get("Error", {}).get("Message") or str(error)
    row = classify("amazon", f"RequestTimeTooSkewed {message}" if _is_skewed(error) else f"{code} {message}")
    denied = re.search(r"AccessDenied|Unauthorized|^AuthorizationError|^403$", code)
    if denied and row.reason is not ErrorReason.ACCOUNT:
        return _denied(about, code, message, service, operation)
    suffix = f" ({code})" if row.reason is ErrorReason.OTHER else ""
    fix = row.fix.replace("{renew}", renew)
    return AwsError(f"{row.what}: {message}{suffix}", about=about, fix=fix, reason=row.reason, code=code)


def _is_skewed(error: boto.ClientError) -> bool:
    """Whether credentials only seem expired because of this machine's clock; EC2's error is the same."""
    date = error.response.get("ResponseMetadata", {}).get("HTTPHeaders", {}).get("date")
    try:
        seconds = abs((datetime.now(UTC) - parsedate_to_datetime(date)).total_seconds())
    except (TypeError, ValueError):
        return False
    return "Expired" in code_of(error) and seconds > SKEW_SECONDS


def _denied(about: str, code: str, message: str, service: str, operation: str) -> AwsError:
    principal = re.search(r"(?:User|Principal): (\S+) is not authorized", message)
    permission = re.search(r"not authorized to perform:? ?\[?([a-zA-Z0-9-]+:[A-Za-z0-9]+)", message)
    resource = re.search(r"on resource: (\S+)", message)
    action = permission[1] if permission else f"{service}:{operation.title().replace('_', '')}"
    what = f"{principal[1] if principal else 'these credentials'} may not do {action}"
    if "explicit deny" in message:
        what, fix = f"{what}: a policy denies it", "ask the account's administrator"
    else:
        arn = resource[1].rstrip(".") if resource else "*"
        statement = json.dumps({"Effect": "Allow", "Action": action, "Resource": arn})
        fix = f"have this added to their policy: {statement}; docs/eks.md has the whole policy"
    return AwsError(what, about=about, fix=fix, reason=ErrorReason.DENIED, code=code, detail=message)


def _names(parameters: Mapping[str, Any]) -> str:
    return "".join(
        f" {value}"
        for key, value in parameters.items()
        if isinstance(value, str) and re.search(r"(?i)name$|id$|arn$|^bucket$", key)
    )
