"""The errors of Google's APIs.

They have a code of google.rpc.Code, words, and details: ErrorInfo with a reason, and Help with a link
(https://google.aip.dev/193). Compute Engine and Cloud Storage have their own, older form.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

import grpc
from google.api_core.exceptions import from_grpc_status
from google.protobuf import json_format
from google.rpc import code_pb2, error_details_pb2, status_pb2

# What Compute Engine and Cloud Storage call a code
_OLD_REASONS = {"NOT_FOUND": "notFound", "ALREADY_EXISTS": "alreadyExists", "PERMISSION_DENIED": "forbidden"}
_OLD_REASONS |= {"RESOURCE_EXHAUSTED": "rateLimitExceeded", "UNAVAILABLE": "backendError"}


@dataclass
class ApiError(Exception):
    """A request that is refused, with the name of a google.rpc.Code, and the parts of its details."""

    code: str
    message: str
    reason: str = ""
    metadata: Mapping[str, str] = field(default_factory=dict)
    link: str = ""

    def status(self) -> status_pb2.Status:
        """Convert it to a google.rpc.Status."""
        message_of_status = status_pb2.Status(code=code_pb2.Code.Value(self.code), message=self.message)
        if self.reason:
            metadata = dict(self.metadata)
            info = error_details_pb2.ErrorInfo(reason=self.reason, domain="googleapis.com", metadata=metadata)
            message_of_status.details.add().Pack(info)
        if self.link:
            link = error_details_pb2.Help.Link(description="Google developers console", url=self.link)
            message_of_status.details.add().Pack(error_details_pb2.Help(links=[link]))
        return message_of_status

    def http(self, service: str) -> tuple[int, dict]:
        """Convert it to the status and body of an HTTP answer."""
        number = from_grpc_status(grpc.StatusCode[self.code], self.message).code
        error: dict = {"code": number, "message": self.message}
        if service in ("compute", "storage"):
            reason = _OLD_REASONS.get(self.code, "badRequest")
            error["errors"] = [{"message": self.message, "domain": "global", "reason": reason}]
        else:
            error["status"] = self.code
        if details := json_format.MessageToDict(self.status()).get("details"):
            error["details"] = details
        return number, {"error": error}


class LineCut(Exception):
    """The connection ends here, without an answer."""


@dataclass(frozen=True)
class OperationFailure:
    """The end of an operation that was begun: a google.rpc.Code, words, and a `StatusCondition.Code`."""

    code: str
    message: str
    condition: str = "UNKNOWN"


def service_disabled(service: str, title: str, project: str) -> ApiError:
    """Build the error for an API that a project has not enabled."""
    host = f"{service}.googleapis.com"
    link = f"https://console.developers.google.com/apis/api/{host}/overview?project={project}"
    words = (
        f"{title} has not been used in project {project} before or it is disabled. Enable it by visiting "
        f"{link} then retry. If you enabled this API recently, wait a few minutes for the action to "
        "propagate to our systems and retry."
    )
    metadata = {"service": host, "consumer": f"projects/{project}", "serviceTitle": title}
    return ApiError("PERMISSION_DENIED", words, "SERVICE_DISABLED", metadata, link)


def permission_denied(permission: str, resource: str) -> ApiError:
    """Build the error for a missing permission."""
    words = f'Required "{permission}" permission(s) for "{resource}".'
    metadata = {"permission": permission, "resource": resource}
    return ApiError("PERMISSION_DENIED", words, "IAM_PERMISSION_DENIED", metadata)


def stockout(zone: str, *, project: str = "trainyard-test") -> OperationFailure:
    """Build the end of an operation in a zone that has no machines left."""
    words = (
        "Google Compute Engine: Not all instances running in IGM after 35m. Expected 1, running 0, "
        "transitioning 1. Current errors: [GCE_STOCKOUT]: Instance creation failed: The zone "
        f"'projects/{project}/zones/{zone}' does not have enough resources available to fulfill the request. "
        "Try a different zone, or try again later."
    )
    return OperationFailure("RESOURCE_EXHAUSTED", words, "GCE_STOCKOUT")
