"""Whose a token of EKS is: its presigned request goes to STS, then the access entries are looked into.

As the authenticator of EKS does it (https://github.com/kubernetes-sigs/aws-iam-authenticator): the URL in the
token must be STS's GetCallerIdentity, signed together with the cluster's name, and not older than 15 minutes.
"""

import base64
import urllib.error
import urllib.request
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qs, parse_qsl, urlsplit

from botocore.auth import SigV4QueryAuth
from botocore.awsrequest import AWSRequest
from botocore.credentials import Credentials

from ..tokens import BadToken, User
from .eks import MASTERS, eks_backends
from .faults import ACCOUNT, Refused, principal

if TYPE_CHECKING:
    from .server import FakeAws

PREFIX, HEADER, AGE = "k8s-aws-v1.", "x-k8s-aws-id", timedelta(minutes=15)
KNOWN = {"Action", "Version", *(f"X-Amz-{name}" for name in ("Algorithm", "Credential", "Date", "Expires"))}
KNOWN |= {f"X-Amz-{name}" for name in ("Security-Token", "Signature", "SignedHeaders")}


def authenticate(aws: "FakeAws", cluster: str, token: str) -> User:
    """Return whose a token is, and what they are in the cluster; `BadToken` if they are nobody there."""
    things: dict[Any, dict[str, Any]] = {}
    for backend in eks_backends[ACCOUNT].values():
        things |= backend.things
    request = urllib.request.Request(_url(aws, token), headers={HEADER: cluster})
    try:
        with urllib.request.urlopen(request, timeout=10) as answer:
            arn = answer.read().decode().split("<Arn>")[1].split("</Arn>")[0]
    except (urllib.error.URLError, OSError) as error:
        raise BadToken(f"STS refuses the token: {error}") from error
    entry = things.get((cluster, "AccessEntry", principal(arn)))
    if entry is None:
        raise BadToken(f"{arn} has no access entry in cluster {cluster}")
    names = [policy.split("/")[-1] for policy in entry["_policies"]]
    groups = ["system:masters" if name == MASTERS else f"eks:{name}" for name in names]
    return User(entry["username"], (*entry["kubernetesGroups"], *groups), extra={"arn": [arn]})


def check_signature(aws: "FakeAws", environ: dict[str, Any]) -> None:
    """Refuse a presigned request whose signature is not that of its key; of unknown keys nothing is known."""
    query = dict(parse_qsl(environ.get("QUERY_STRING", ""), keep_blank_values=True))
    secret = aws.faults.secrets.get(query.get("X-Amz-Credential", "").split("/")[0])
    if secret is None:
        return
    signature = query.pop("X-Amz-Signature")
    request = AWSRequest("GET", f"{aws.endpoint}/", params=query)
    for name in query["X-Amz-SignedHeaders"].split(";"):
        if name != "host":
            request.headers[name] = environ.get(f"HTTP_{name.upper().replace('-', '_')}", "")
    request.context["timestamp"] = query["X-Amz-Date"]
    key, _, region, *_ = query["X-Amz-Credential"].split("/")
    auth = SigV4QueryAuth(Credentials(key, secret), "sts", region)
    if auth.signature(auth.string_to_sign(request, auth.canonical_request(request)), request) != signature:
        words = "The request signature we calculated does not match the signature you provided."
        raise Refused("SignatureDoesNotMatch", words, status=403)


def _url(aws: "FakeAws", token: str) -> str:
    text = token.removeprefix(PREFIX)
    try:
        url = base64.urlsafe_b64decode(text + "=" * (-len(text) % 4)).decode()
        address, query = urlsplit(url), parse_qs(urlsplit(url).query)
        signed = datetime.strptime(query["X-Amz-Date"][0], "%Y%m%dT%H%M%SZ").replace(tzinfo=UTC)
        headers = query["X-Amz-SignedHeaders"][0].split(";")
    except (ValueError, KeyError) as error:
        raise BadToken("the token holds no presigned URL") from error
    if address.netloc != urlsplit(aws.endpoint).netloc or address.path not in ("", "/"):
        raise BadToken(f"the token is for {address.netloc}{address.path}, which is not STS")
    if set(query) - KNOWN or query.get("Action") != ["GetCallerIdentity"] or HEADER not in headers:
        raise BadToken("the token asks something else than who its owner is, or for no cluster")
    if datetime.now(UTC) - signed > AGE or not token.startswith(PREFIX):
        raise BadToken("the token has expired, or is none")
    return url
