"""What an HTTP request asks for, and how an answer is written: by botocore's own models of the services.

Operations are found, and parameters read and results written, by moto's parsers and serializers. What moto
does not speak, Smithy's CBOR, is put into JSON before and back into CBOR afterwards.
"""

import io
import json
import warnings
from dataclasses import dataclass
from functools import cache
from typing import Any

from botocore.parsers import RpcV2CBORParser, create_parser
from botocore.serialize import RpcV2CBORSerializer
from moto.core.model import OperationModel
from moto.core.parse import PROTOCOL_PARSERS
from moto.core.request import Request, determine_request_protocol
from moto.core.routing import get_service_router
from moto.core.serialize import get_serializer_class
from moto.core.utils import get_service_model
from werkzeug.exceptions import HTTPException

from .calls import Refused

# By the name in the signature: boto3's name of the service, and IAM's in the names of actions.
SERVICES = {
    "elasticfilesystem": ("efs", "elasticfilesystem"),
    "servicequotas": ("service-quotas", "servicequotas"),
    "tagging": ("resourcegroupstaggingapi", "tag"),
    "monitoring": ("cloudwatch", "cloudwatch"),
}
CBOR = "application/cbor"
# What the models of services do not say: the HTTP status of errors that every service knows.
STATUS = {
    "AccessDenied": 403,
    "AccessDeniedException": 403,
    "ExpiredToken": 403,
    "ExpiredTokenException": 403,
    "InvalidClientTokenId": 403,
    "InvalidSignatureException": 403,
    "RequestTimeTooSkewed": 403,
    "SignatureDoesNotMatch": 403,
    "UnauthorizedOperation": 403,
    "UnrecognizedClientException": 403,
    "AuthFailure": 401,
    "RequestLimitExceeded": 503,
    "SlowDown": 503,
    "Unavailable": 503,
    "InsufficientInstanceCapacity": 500,
    "InternalError": 500,
    "InternalFailure": 500,
    "ServiceUnavailable": 503,
}


@dataclass
class Answer:
    """An HTTP response."""

    status: int
    headers: list[tuple[str, str]]
    body: bytes


@dataclass
class Question:
    """A request, read.

    Attributes:
        service: boto3's name.
        prefix: IAM's name of the service.
        region: From the signature.
        key: The access key's id.
        model: Of the operation; None where the models know none such.
        parameters: As boto3 was given them.
        environ: WSGI's, in a form that moto understands.
        cbor: Whether the answer has to be CBOR.
    """

    service: str
    prefix: str
    region: str
    key: str
    model: OperationModel | None
    parameters: dict[str, Any]
    environ: dict[str, Any]
    cbor: bool

    @property
    def action(self) -> str:
        """As IAM writes it."""
        return f"{self.prefix}:{self.operation}"

    @property
    def operation(self) -> str:
        """Its name, or the HTTP request's where there is no such operation."""
        if self.model is not None:
            return self.model.name
        return f"{self.environ['REQUEST_METHOD']} {self.environ['PATH_INFO']}"


def read(environ: dict[str, Any]) -> Question:
    """Return what a request asks for."""
    body = _body(environ)
    environ["wsgi.input"] = io.BytesIO(body)
    environ["CONTENT_LENGTH"] = str(len(body))
    environ.pop("HTTP_TRANSFER_ENCODING", None)
    key, signed_for, region = _scope(environ)
    service, prefix = SERVICES.get(signed_for, (signed_for, signed_for))
    if service == "elasticloadbalancing":
        service = "elbv2" if b"Version=2015-12-01" in body else "elb"
    cbor = environ.get("HTTP_SMITHY_PROTOCOL") == "rpc-v2-cbor"
    if cbor:
        _json_for_cbor(environ, service, body)
    request = Request(environ)
    try:
        model, labels = get_service_router(service).match(request)
    except (HTTPException, NotImplementedError, LookupError, ValueError):
        return Question(service, prefix, region, key, None, {}, environ, cbor)
    parameters = _parameters(model, labels, request)
    environ["wsgi.input"] = io.BytesIO(environ["moto.body"] if cbor else body)
    return Question(service, prefix, region, key, model, parameters, environ, cbor)


def write(question: Question, result: dict[str, Any] | Refused) -> Answer:
    """Return a result or an error as the service's protocol has it."""
    model = question.model
    service_model = model.service_model
    content = question.environ.get("CONTENT_TYPE")
    protocol = "json" if question.cbor else determine_request_protocol(service_model, content)
    serializer = get_serializer_class(service_model.service_name, protocol)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that what every service may say is not in the service's model
        written = serializer(operation_model=model).serialize(result)
    status = written["status_code"]
    if isinstance(result, Refused):
        status = result.status or STATUS.get(result.code, status)
    body = written["body"]
    body = body.encode() if isinstance(body, str) else body
    answer = Answer(status, list(written["headers"].items()), body)
    return as_cbor(question, answer) if question.cbor else answer


def as_cbor(question: Question, answer: Answer) -> Answer:
    """Return an answer in JSON as one in CBOR."""
    shape = question.model.output_shape
    plain = bytearray()
    if answer.status >= 300:
        said = json.loads(answer.body or b"{}")
        words = {"__type": said.get("__type", "InternalFailure").split("#")[-1]}
        words["message"] = said.get("message") or said.get("Message") or ""
        text = RpcV2CBORSerializer()
        plain += bytes([0xA0 + len(words)])
        for name, value in words.items():
            text._serialize_type_string(plain, name, None, None)
            text._serialize_type_string(plain, value, None, None)
    elif shape is not None:
        parser = create_parser("json")
        given = {"status_code": 200, "headers": {}, "body": answer.body or b"{}"}
        parsed = parser.parse(given, shape)
        parsed.pop("ResponseMetadata", None)
        RpcV2CBORSerializer()._serialize_data_item(plain, parsed, shape)
    headers = [("Content-Type", CBOR), ("smithy-protocol", "rpc-v2-cbor")]
    return Answer(answer.status, headers, bytes(plain))


def _body(environ: dict[str, Any]) -> bytes:
    length = environ.get("CONTENT_LENGTH")
    if length:
        return environ["wsgi.input"].read(int(length))
    return environ["wsgi.input"].read() if environ.get("wsgi.input_terminated") else b""


def _scope(environ: dict[str, Any]) -> tuple[str, str, str]:
    """Return key, service and region of a signature, in the header or in the URL."""
    header = environ.get("HTTP_AUTHORIZATION", "")
    if "Credential=" in header:
        credential = header.split("Credential=")[1].split(",")[0]
    else:
        credential = Request(environ).args.get("X-Amz-Credential", "")
        if credential:  # moto looks only at the header
            environ["HTTP_AUTHORIZATION"] = f"AWS4-HMAC-SHA256 Credential={credential}, SignedHeaders=host"
    try:
        key, _, region, service, _ = credential.split("/")
    except ValueError:
        return "", "s3", "us-east-1"
    return key, service, region


def _parameters(model: OperationModel, labels: dict[str, Any], request: Request) -> dict[str, Any]:
    protocol = determine_request_protocol(model.service_model, request.content_type)
    if model.service_model.service_name == "s3" and model.name in ("PutObject", "UploadPart"):
        return dict(labels)  # the body is the object
    given = {
        "method": request.method,
        "values": request.values,
        "headers": request.headers,
        "body": request.data,
        "url_path": request.path,
        "url_params": labels,
    }
    return PROTOCOL_PARSERS[protocol](model).parse(given)


@cache
def _targets(service: str) -> str:
    return get_service_model(service).metadata["targetPrefix"]


def _json_for_cbor(environ: dict[str, Any], service: str, body: bytes) -> None:
    operation = environ["PATH_INFO"].rsplit("/", 1)[-1]
    parser = RpcV2CBORParser()
    given = parser.parse_data_item(parser.get_peekable_stream_from_bytes(body)) if body else {}
    plain = json.dumps(given, default=lambda value: value.timestamp()).encode()
    environ.update(
        {
            "PATH_INFO": "/",
            "RAW_URI": "/",
            "REQUEST_URI": "/",
            "CONTENT_TYPE": "application/x-amz-json-1.1",
            "CONTENT_LENGTH": str(len(plain)),
            "HTTP_X_AMZ_TARGET": f"{_targets(service)}.{operation}",
            "wsgi.input": io.BytesIO(plain),
            "moto.body": plain,
        }
    )
