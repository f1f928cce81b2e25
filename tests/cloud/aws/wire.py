"""What an HTTP request asks for, and how an answer is written: by botocore's own models of the services.

Operations are found, and parameters read and results written, by moto's parsers and serializers. What moto
does not speak, Smithy's CBOR, is put into JSON before and back into CBOR afterwards.
"""

import io
import json
import warnings
from dataclasses import dataclass
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

from .faults import Refused

# By the name in the signature: boto3's name of the service.
SERVICES = {
    "elasticfilesystem": "efs",
    "servicequotas": "service-quotas",
    "tagging": "resourcegroupstaggingapi",
}
# What the models of services do not say: the HTTP status of errors that every service knows.
STATUS = {"InternalFailure": 500, "ServiceUnavailable": 503}


@dataclass
class Answer:
    """An HTTP response."""

    status: int
    headers: list[tuple[str, str]]
    body: bytes


@dataclass
class Question:
    """A request, read: its operation's model is None where the models know none such.

    Attributes:
        service: boto3's name; `prefix` is IAM's.
        key: The access key's id.
        cbor: Whether the answer has to be CBOR.
    """

    service: str
    prefix: str
    region: str
    key: str
    environ: dict[str, Any]
    cbor: bool
    model: OperationModel | None = None
    parameters: dict[str, Any] | None = None

    @property
    def operation(self) -> str:
        return self.model.name if self.model else self.environ["PATH_INFO"]

    @property
    def action(self) -> str:
        """As IAM writes it."""
        return f"{self.prefix}:{self.operation}"


def read(environ: dict[str, Any]) -> Question:
    """Return what a request asks for."""
    length, stream = environ.get("CONTENT_LENGTH"), environ["wsgi.input"]
    body = (
        stream.read(int(length)) if length else stream.read() if environ.get("wsgi.input_terminated") else b""
    )
    environ.pop("HTTP_TRANSFER_ENCODING", None)
    key, prefix, region = _scope(environ)
    service = SERVICES.get(prefix, prefix)
    if service == "elasticloadbalancing":
        service = "elbv2" if b"Version=2015-12-01" in body else "elb"
    question = Question(
        service, prefix, region, key, environ, environ.get("HTTP_SMITHY_PROTOCOL") == "rpc-v2-cbor"
    )
    if question.cbor:
        body = _as_json(environ, service, body)
    environ |= {"wsgi.input": io.BytesIO(body), "CONTENT_LENGTH": str(len(body))}
    request = Request(environ)
    try:
        question.model, labels = get_service_router(service).match(request)
    except (HTTPException, NotImplementedError, LookupError, ValueError):
        return question
    question.parameters = _parameters(question.model, labels, request)
    environ["wsgi.input"] = io.BytesIO(body)
    return question


def write(question: Question, result: dict[str, Any] | Refused) -> Answer:
    """Return a result or an error as the service's protocol has it."""
    model = question.model.service_model
    protocol = determine_request_protocol(model, question.environ.get("CONTENT_TYPE"))
    serializer = get_serializer_class(model.service_name, "json" if question.cbor else protocol)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that what every service may say is not in the service's model
        written = serializer(operation_model=question.model).serialize(result)
    status, body = written["status_code"], written["body"]
    if isinstance(result, Refused):
        status = result.status or STATUS.get(result.code, status)
    answer = Answer(
        status, list(written["headers"].items()), body.encode() if isinstance(body, str) else body
    )
    return as_cbor(question, answer) if question.cbor else answer


def as_cbor(question: Question, answer: Answer) -> Answer:
    """Return an answer in JSON as one in CBOR; of an error only that it is one."""
    plain, shape = bytearray(), question.model.output_shape
    if answer.status < 300 and shape is not None:
        parsed = create_parser("json").parse({"status_code": 200, "headers": {}, "body": answer.body}, shape)
        parsed.pop("ResponseMetadata", None)
        RpcV2CBORSerializer()._serialize_data_item(plain, parsed, shape)
    headers = [("Content-Type", "application/cbor"), ("smithy-protocol", "rpc-v2-cbor")]
    return Answer(answer.status, headers, bytes(plain))


def _scope(environ: dict[str, Any]) -> tuple[str, str, str]:
    """Return key, service and region of a signature, in the header or in the URL."""
    header = environ.get("HTTP_AUTHORIZATION", "")
    credential = header.partition("Credential=")[2].split(",")[0]
    if not credential and (credential := Request(environ).args.get("X-Amz-Credential", "")):
        environ["HTTP_AUTHORIZATION"] = f"AWS4-HMAC-SHA256 Credential={credential}, SignedHeaders=host"
    key, _, region, service, *_ = credential.split("/") if credential else ("", "", "us-east-1", "s3")
    return key, service, region


def _parameters(model: OperationModel, labels: dict[str, Any], request: Request) -> dict[str, Any]:
    protocol = determine_request_protocol(model.service_model, request.content_type)
    if model.service_model.service_name == "s3" and model.name in ("PutObject", "UploadPart"):
        return dict(labels)  # the body is the object
    parts = {"method": request.method, "values": request.values, "headers": request.headers}
    parts |= {"body": request.data, "url_path": request.path, "url_params": labels}
    return PROTOCOL_PARSERS[protocol](model).parse(parts)


def _as_json(environ: dict[str, Any], service: str, body: bytes) -> bytes:
    target = get_service_model(service).metadata["targetPrefix"]
    environ["HTTP_X_AMZ_TARGET"] = f"{target}.{environ['PATH_INFO'].rsplit('/', 1)[-1]}"
    environ |= {
        "PATH_INFO": "/",
        "RAW_URI": "/",
        "REQUEST_URI": "/",
        "CONTENT_TYPE": "application/x-amz-json-1.1",
    }
    parser = RpcV2CBORParser()
    data = parser.parse_data_item(parser.get_peekable_stream_from_bytes(body)) if body else {}
    return json.dumps(data, default=lambda value: value.timestamp()).encode()
