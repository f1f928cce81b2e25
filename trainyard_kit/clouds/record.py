"""Record requests to a cloud's APIs and their answers, without secrets: ``trainyard record``.

With ``TRAINYARD_RECORD`` each process that talks to a cloud, such as a notebook's kernel, appends a line of
JSON to that file for each request; `tests/cloud/replay.py` plays it back. Keys, tokens, certificates and
passwords are taken out. Ids of accounts and projects, names of users and e-mail addresses are replaced, each
always by the same.
"""

import hashlib
import hmac
import json
import os
import re
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import boto3
    import httplib2
    from botocore.model import OperationModel

FILE, SALT = "TRAINYARD_RECORD", "TRAINYARD_RECORD_SALT"
TAKEN_OUT = "dGFrZW4gb3V0"  # "taken out" in base64, so that what decodes certificates still can
_HEADERS = ("content-type", "location", "x-amzn-errortype", "x-amzn-requestid", "retry-after")
_SECRET = (
    r"[\w.:-]*(?:authorization(?!data)|password|secret|(?<!client)(?<!request)token(?!s)|signature|credential|certificate"
    r"|access_?key|private_?key|client_?key)[\w.-]*"
)
_SECRET_KEY = re.compile(_SECRET, re.I)
_SECRET_ELEMENT = re.compile(rf"<({_SECRET})>[^<]+</\1>", re.I)
_SECRET_TEXT = re.compile(
    r"-----BEGIN [A-Z ]+-----[^-]*-----END [A-Z ]+-----"  # PEM
    r"|\beyJ[\w-]{8,}\.[\w-]{8,}\.[\w-]*|ya29\.[\w.-]+|1//[\w-]{20,}|k8s-aws-v1\.[\w-]+"  # JWT, OAuth, EKS
    r"|(?:Bearer|Basic) [\w+/=.~-]{8,}"
    r"|(?<=X-Amz-Signature=)\w+|(?<=X-Amz-Security-Token=)[\w%+/=.-]+|(?<=X-Amz-Credential=)[\w%/.-]+"
)
_IDENTITY = re.compile(
    r"(?:(?<=%[0-9A-F]{2})|(?<![\d.]))\d{12}(?!\d)"  # an AWS account, a Google project's number
    r"|\bA(?:KIA|SIA|IDA|ROA|NPA)[A-Z0-9]{12,}"  # ids of keys, users and roles
    r"|(?<![\w.+-])[\w.+-]{1,64}@(?![\w.-]{1,99}gserviceaccount\.com)[\w-]{1,64}\.[\w.-]{1,99}"
    r"|(?<=:user/)[\w+=,.@/-]+"
)


def boto(session: "boto3.Session") -> None:
    """Record what the clients of a `boto3.Session` send from now on, if there is a record.

    Source: https://botocore.amazonaws.com/v1/documentation/api/latest/topics/events.html
    """
    if not os.environ.get(FILE):
        return

    def sends(
        model: "OperationModel", params: dict[str, Any], context: dict[str, Any], **more: object
    ) -> None:
        context["recorded"] = (model.service_model.signing_name, model.name, params)

    def receives(
        response_dict: dict[str, Any] | None,
        exception: Exception | None,
        context: dict[str, Any],
        **more: object,
    ) -> None:
        service, operation, sent = context["recorded"]
        answer = response_dict or {"status_code": None, "headers": {}, "body": repr(exception)}
        _write(
            cloud="aws",
            service=service,
            operation=operation,
            request={each: sent[each] for each in ("method", "url")}
            | {"target": sent["headers"].get("X-Amz-Target", ""), "body": _content(sent["body"])},
            answer=_answer(answer["status_code"], answer["headers"], answer["body"]),
        )

    session.events.register("before-call", sends, unique_id="trainyard-record-sends")
    session.events.register("response-received", receives, unique_id="trainyard-record-receives")


class _RecordedHttp:
    """An HTTP object of Google's REST client that records."""

    def __init__(self, http: "httplib2.Http", service: str, project: str) -> None:
        self._http, self._service, self._project = http, service, project

    def __getattr__(self, name: str) -> Any:
        return getattr(self._http, name)

    def request(
        self,
        uri: str,
        method: str = "GET",
        body: object = None,
        headers: Mapping[str, str] | None = None,
        **more: object,
    ) -> tuple["httplib2.Response", bytes]:
        sent = {"method": method, "url": uri, "body": _content(body)}
        known = {"cloud": "google", "service": self._service, "request": sent}
        try:
            response, content = self._http.request(uri, method=method, body=body, headers=headers, **more)
        except Exception as error:
            _write(self._project, **known, answer=_answer(None, {}, repr(error)))
            raise
        _write(self._project, **known, answer=_answer(response.status, response, content))
        return response, content


def http(plain: "httplib2.Http", service: str, project: str) -> "httplib2.Http | _RecordedHttp":
    """Wrap an HTTP object of Google's REST client if there is a record; outside of what signs requests."""
    return _RecordedHttp(plain, service, project) if os.environ.get(FILE) else plain


def rpc(call: Callable[..., Any], service: str, method: str, project: str) -> Callable[..., Any]:
    """Wrap a method of one of Google's gRPC clients, if there is a record."""
    if not os.environ.get(FILE):
        return call

    from google.api_core.exceptions import GoogleAPICallError  # not where only AWS is asked

    def recorded(request: Mapping[str, Any], **more: object) -> object:
        known = {"cloud": "google", "service": service, "operation": method, "request": {"body": request}}
        try:
            answer = call(request=request, **more)
        except GoogleAPICallError as error:
            code = error.grpc_status_code.name if error.grpc_status_code else str(error.code)
            details = [str(each) for each in error.details]
            _write(project, **known, answer={"status": code, "body": error.message, "details": details})
            raise
        _write(project, **known, answer={"status": "OK", "type": type(answer).__name__, "body": answer})
        return answer

    return recorded


def _answer(status: int | None, headers: Mapping[str, str], body: object) -> dict[str, Any]:
    lower = {key.lower(): value for key, value in headers.items()}
    kept = {key: lower[key] for key in _HEADERS if key in lower}
    return {"status": status, "headers": kept, "body": _content(body)}


def _content(body: object) -> object:
    """A body as JSON, form or text; of others, such as an archive, the length alone."""
    if body is None or isinstance(body, Mapping):
        return body
    if not isinstance(body, str | bytes | bytearray):
        return f"<{type(body).__name__}>"
    try:
        text = body if isinstance(body, str) else bytes(body).decode()
    except UnicodeDecodeError:
        return f"<{len(body)} bytes>"
    try:
        return json.loads(text)
    except ValueError:
        return text


def _write(project: str = "", **entry: object) -> None:
    """Append a line in one write, which the lines of other processes and threads cannot divide."""
    entry = {"time": datetime.now(UTC).isoformat(timespec="milliseconds"), "project": project, **entry}
    plain = json.loads(json.dumps(entry, default=_plain))
    text = json.dumps(without_secrets(plain, project))
    file = os.open(os.environ[FILE], os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    try:
        os.write(file, f"{text}\n".encode())
    finally:
        os.close(file)


def _plain(value: object) -> object:
    """A message of Google's as a dict; enumerations by name."""
    to_dict = getattr(type(value), "to_dict", None)
    if to_dict is None:
        return str(value)
    return to_dict(value, use_integers_for_enums=False, always_print_fields_with_no_presence=False)


def without_secrets(value: object, project: str = "", secret: bool = False) -> object:
    """Take secrets out of JSON, and replace identities.

    Args:
        value: A JSON value; strings may hold XML, URLs or tokens.
        project: An id of a Google Cloud project, which is replaced as well.
        secret: Whether all of it is.
    """
    if isinstance(value, dict):
        return {
            without_secrets(key, project): without_secrets(
                each, project, secret or _SECRET_KEY.fullmatch(key) is not None
            )
            for key, each in value.items()
        }
    if isinstance(value, list):
        return [without_secrets(each, project, secret) for each in value]
    if not isinstance(value, str) or not value:
        return value
    if secret:
        return TAKEN_OUT
    text = _SECRET_TEXT.sub(TAKEN_OUT, _SECRET_ELEMENT.sub(rf"<\1>{TAKEN_OUT}</\1>", value))
    text = _IDENTITY.sub(_instead, text)
    return re.sub(rf"(?<![a-z0-9])({re.escape(project)})(?![a-z0-9])", _instead, text) if project else text


def _instead(found: re.Match[str]) -> str:
    """Replace an identity by one of its kind: each always by the same, within a recording."""
    identity = found[0]
    digest = hmac.new(os.environ.get(SALT, "").encode(), identity.encode(), hashlib.sha256).hexdigest()
    if identity.isdigit():
        return f"{int(digest, 16) % 10**12:012}"
    if identity.isupper():
        return identity[:4] + digest[: len(identity) - 4].upper()
    return f"{digest[:8]}@example.org" if "@" in identity else f"id-{digest[:8]}"
