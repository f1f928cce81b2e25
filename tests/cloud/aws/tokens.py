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
from .calls import Refused
from .eks_store import Cluster, eks_backends
from .identities import ACCOUNT, principal

if TYPE_CHECKING:
    from .server import FakeAmazon

PREFIX, HEADER = "k8s-aws-v1.", "x-k8s-aws-id"
AGE = timedelta(minutes=15)
KNOWN = {"Action", "Version", "X-Amz-Algorithm", "X-Amz-Credential", "X-Amz-Date", "X-Amz-Expires"}
KNOWN |= {"X-Amz-Security-Token", "X-Amz-Signature", "X-Amz-SignedHeaders"}
MASTERS = "AmazonEKSClusterAdminPolicy"


def judge(amazon: "FakeAmazon", cluster: str, token: str) -> User:
    """Return whose a token is, and what they are in the cluster.

    Raises:
        BadToken: It is nobody's, or nobody's in this cluster.
    """
    found = next((each.clusters[cluster] for each in _regions() if cluster in each.clusters), None)
    if found is None:
        raise BadToken(f"there is no cluster {cluster}")
    url = _url(amazon, token)
    request = urllib.request.Request(url, headers={HEADER: cluster, "Accept": "application/json"})
    try:
        with urllib.request.urlopen(request, timeout=10) as answer:
            said = answer.read().decode()
    except (urllib.error.URLError, OSError) as error:
        raise BadToken(f"STS refuses the token: {error}") from error
    return _user(found, said.split("<Arn>")[1].split("</Arn>")[0])


def check_signature(amazon: "FakeAmazon", environ: dict[str, Any]) -> None:
    """Refuse a presigned request whose signature is not that of its key; of unknown keys nothing is known.

    Raises:
        AwsError: In STS's words.
    """
    given = dict(parse_qsl(environ.get("QUERY_STRING", ""), keep_blank_values=True))
    if "X-Amz-Signature" not in given:
        return
    key = given["X-Amz-Credential"].split("/")[0]
    secret = amazon.identities.secret(key)
    signed = datetime.strptime(given["X-Amz-Date"], "%Y%m%dT%H%M%SZ").replace(tzinfo=UTC)
    if abs(datetime.now(UTC) + amazon.faults.skew - signed) > AGE:
        raise Refused("SignatureDoesNotMatch", "Signature expired", status=403)
    if secret is None:
        return
    signature = given.pop("X-Amz-Signature")
    request = AWSRequest("GET", f"{amazon.endpoint}/", params=given)
    for name in given["X-Amz-SignedHeaders"].split(";"):
        if name != "host":
            request.headers[name] = environ.get(f"HTTP_{name.upper().replace('-', '_')}", "")
    request.context["timestamp"] = given["X-Amz-Date"]
    auth = SigV4QueryAuth(Credentials(key, secret), "sts", given["X-Amz-Credential"].split("/")[2])
    words = auth.string_to_sign(request, auth.canonical_request(request))
    if auth.signature(words, request) != signature:
        said = "The request signature we calculated does not match the signature you provided."
        raise Refused("SignatureDoesNotMatch", said, status=403)


def _regions() -> list[Any]:
    return list(eks_backends[ACCOUNT].values()) if ACCOUNT in eks_backends else []


def _url(amazon: "FakeAmazon", token: str) -> str:
    if not token.startswith(PREFIX):
        raise BadToken("not a token of EKS")
    text = token.removeprefix(PREFIX)
    try:
        url = base64.urlsafe_b64decode(text + "=" * (-len(text) % 4)).decode()
        there, given = urlsplit(url), parse_qs(urlsplit(url).query)
        signed = datetime.strptime(given["X-Amz-Date"][0], "%Y%m%dT%H%M%SZ").replace(tzinfo=UTC)
        headers = given["X-Amz-SignedHeaders"][0].split(";")
    except (ValueError, KeyError) as error:
        raise BadToken("the token holds no presigned URL") from error
    if there.netloc != urlsplit(amazon.endpoint).netloc or there.path not in ("", "/"):
        raise BadToken(f"the token is for {there.netloc}{there.path}, which is not STS")
    if set(given) - KNOWN or given.get("Action") != ["GetCallerIdentity"]:
        raise BadToken("the token asks STS for something else than who its owner is")
    if HEADER not in headers:
        raise BadToken("the name of the cluster is not signed")
    if datetime.now(UTC) - signed > AGE:
        raise BadToken("the token has expired")
    return url


def _user(cluster: Cluster, arn: str) -> User:
    entry = cluster.entries.get(principal(arn))
    if entry is None:
        raise BadToken(f"{arn} has no access entry in cluster {cluster.name}")
    groups = list(entry["kubernetesGroups"])
    for policy in cluster.policies.get(entry["principalArn"], {}):
        name = policy.split("/")[-1]
        groups.append("system:masters" if name == MASTERS else f"eks:{name}")
    name = entry["username"].replace("{{SessionName}}", arn.split("/")[-1])
    return User(name, tuple(groups), extra={"arn": [arn]})
