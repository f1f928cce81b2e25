"""The errors of Google's APIs, as they go over gRPC and as they go over HTTP.

Both have a code of google.rpc.Code, words, and details: ErrorInfo with a reason, and Help with a link
(https://cloud.google.com/apis/design/errors). The two constructors at the end are those errors whose details
a client reads.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

import grpc
from google.protobuf import any_pb2
from google.rpc import code_pb2, error_details_pb2, status_pb2

DOMAIN = "googleapis.com"
# https://github.com/googleapis/googleapis/blob/master/google/rpc/code.proto
HTTP = {
    "CANCELLED": 499,
    "UNKNOWN": 500,
    "INVALID_ARGUMENT": 400,
    "DEADLINE_EXCEEDED": 504,
    "NOT_FOUND": 404,
    "ALREADY_EXISTS": 409,
    "PERMISSION_DENIED": 403,
    "RESOURCE_EXHAUSTED": 429,
    "FAILED_PRECONDITION": 400,
    "ABORTED": 409,
    "OUT_OF_RANGE": 400,
    "UNIMPLEMENTED": 501,
    "INTERNAL": 500,
    "UNAVAILABLE": 503,
    "DATA_LOSS": 500,
    "UNAUTHENTICATED": 401,
}
# What the older APIs (compute, storage) call it in `errors`.
_OLD_REASONS = {
    "NOT_FOUND": "notFound",
    "ALREADY_EXISTS": "alreadyExists",
    "PERMISSION_DENIED": "forbidden",
    "UNAUTHENTICATED": "authError",
    "RESOURCE_EXHAUSTED": "rateLimitExceeded",
    "INVALID_ARGUMENT": "badRequest",
    "FAILED_PRECONDITION": "failedPrecondition",
    "UNAVAILABLE": "backendError",
    "INTERNAL": "backendError",
}


@dataclass
class ApiError(Exception):
    """An answer that says no.

    Attributes:
        code: The name of a google.rpc.Code: ``NOT_FOUND``.
        message: Its words.
        reason: Of its ErrorInfo; without one it has no details.
        metadata: Of its ErrorInfo.
        help: A link, with its description.
    """

    code: str
    message: str
    reason: str = ""
    metadata: Mapping[str, str] = field(default_factory=dict)
    help: tuple[str, str] | None = None

    def status(self) -> status_pb2.Status:
        """Return it as a google.rpc.Status."""
        found = status_pb2.Status(code=code_pb2.Code.Value(self.code), message=self.message)
        for detail in self._details():
            packed = any_pb2.Any()
            packed.Pack(detail)
            found.details.append(packed)
        return found

    def abort(self, context: grpc.ServicerContext) -> None:
        """End a gRPC call with it, details in the trailer ``grpc-status-details-bin``."""
        context.set_trailing_metadata((("grpc-status-details-bin", self.status().SerializeToString()),))
        context.abort(grpc.StatusCode[self.code], self.message)

    def json(self) -> tuple[int, dict]:
        """Return the status and the body of an HTTP answer."""
        number = HTTP[self.code]
        error = {
            "code": number,
            "message": self.message,
            "status": self.code,
            "errors": [
                {
                    "message": self.message,
                    "domain": "global",
                    "reason": _OLD_REASONS.get(self.code, "unknown"),
                }
            ],
        }
        if self.reason:
            error["details"] = [
                {
                    "@type": "type.googleapis.com/google.rpc.ErrorInfo",
                    "reason": self.reason,
                    "domain": DOMAIN,
                    "metadata": dict(self.metadata),
                }
            ]
        if self.help:
            text, url = self.help
            error.setdefault("details", []).append(
                {
                    "@type": "type.googleapis.com/google.rpc.Help",
                    "links": [{"description": text, "url": url}],
                }
            )
        return number, {"error": error}

    def _details(self) -> list:
        found = []
        if self.reason:
            found.append(
                error_details_pb2.ErrorInfo(reason=self.reason, domain=DOMAIN, metadata=dict(self.metadata))
            )
        if self.help:
            link = error_details_pb2.Help.Link(description=self.help[0], url=self.help[1])
            found.append(error_details_pb2.Help(links=[link]))
        return found


class LineCut(Exception):
    """The connection ends here, without an answer."""


@dataclass(frozen=True)
class OperationFailure:
    """How an operation ends that the API has taken.

    Attributes:
        code: Of google.rpc.Code: ``RESOURCE_EXHAUSTED``.
        message: What the operation's error says.
        condition: A `StatusCondition.Code` of google-cloud-container: ``GCE_STOCKOUT``.
    """

    code: str
    message: str
    condition: str = "UNKNOWN"


def service_disabled(service: str, title: str, project: str) -> ApiError:
    """Return what an API says that the project has not enabled."""
    host = f"{service}.googleapis.com"
    link = f"https://console.developers.google.com/apis/api/{host}/overview?project={project}"
    return ApiError(
        "PERMISSION_DENIED",
        f"{title} has not been used in project {project} before or it is disabled. "
        f"Enable it by visiting {link} then retry. If you enabled this API recently, wait a few minutes for "
        "the action to propagate to our systems and retry.",
        reason="SERVICE_DISABLED",
        metadata={
            "service": host,
            "consumer": f"projects/{project}",
            "serviceTitle": title,
            "activationUrl": link,
        },
        help=("Google developers console API activation", link),
    )


def permission_denied(permission: str, resource: str) -> ApiError:
    """Return what an API says to somebody who may not do this."""
    return ApiError(
        "PERMISSION_DENIED",
        f'Required "{permission}" permission(s) for "{resource}".',
        reason="IAM_PERMISSION_DENIED",
        metadata={"permission": permission, "resource": resource},
    )


def stockout(zone: str, *, project: str = "trainyard-test", wanted: int = 1) -> OperationFailure:
    """Return how the creation of nodes ends in a zone that has none left."""
    return OperationFailure(
        "RESOURCE_EXHAUSTED",
        f"Google Compute Engine: Not all instances running in IGM after 35m. Expected {wanted}, running 0, "
        f"transitioning {wanted}. Current errors: [GCE_STOCKOUT]: Instance creation failed: The zone "
        f"'projects/{project}/zones/{zone}' does not have enough resources available to fulfill the request. "
        "Try a different zone, or try again later.",
        condition="GCE_STOCKOUT",
    )
