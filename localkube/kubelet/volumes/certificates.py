"""The credentials of pods in projected volumes: tokens, certificates, trust anchors.

Keys are in memory only: the next kubelet requests certificates anew.

Source: pkg/kubelet/clustertrustbundle and pkg/kubelet/podcertificate of Kubernetes 1.37
"""

import base64
import contextlib
import json
import re
import ssl
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from datetime import datetime

from localkube.api_client import Api, find
from localkube.api_path import Object, api_path
from localkube.kubelet.containers.expansion import ConfigError
from localkube.kubelet.volumes.object_cache import Access, TokenManager
from localkube.kubelet.work_pools import TEXTS

BUNDLES, REQUESTS = (
    "certificates.k8s.io/v1/clustertrustbundles",
    "certificates.k8s.io/v1/podcertificaterequests",
)
WAIT_SECONDS, TOKEN_SECONDS = 5, 3600
BLOCK = re.compile(r"-----BEGIN CERTIFICATE-----\s[^-]+-----END CERTIFICATE-----")


class PodCredentials:
    """The credentials of all pods; ``access`` returns a node's client."""

    def __init__(self, access: Access) -> None:
        self._access, self._tokens, self._certificates = (
            access,
            TokenManager(access),
            _PodCertificates(access),
        )

    async def contents(
        self, pod: Object, kind: str, source: Object, *, place: tuple[str, int]
    ) -> dict[str, bytes] | None:
        """Get the content of a projection's files, by their paths; None for another kind of projection.

        Args:
            place: The volume, and the projection's index in it.

        Raises:
            ConfigError: There is no such bundle, or the signer has not issued a certificate.
            ApiError: The API refuses, or does not respond.
        """
        if kind == "serviceAccountToken":
            seconds = source.get("expirationSeconds") or TOKEN_SECONDS
            text = await self._tokens.get(pod, audience=source.get("audience") or "", seconds=seconds)
            return {source["path"]: text.encode()}
        if kind == "clusterTrustBundle":
            api = self._access(pod["spec"].get("nodeName", ""))
            return {source["path"]: await _trust_anchors(api, source)}
        if kind == "podCertificate":
            return await self._certificates.files(pod, source, place)
        return None

    def forget(self, uid: str) -> None:
        """Drop a pod's credentials."""
        self._tokens.forget(uid)
        self._certificates.forget(uid)


async def _trust_anchors(api: Api, source: Object) -> bytes:
    """Get the certificates of a ``clusterTrustBundle`` projection as PEM, each once."""
    if name := source.get("name"):
        bundle = await find(api, api_path(BUNDLES, name=name))
        bundles: list[Object] = [bundle] if bundle else []
        problem = (
            f'while getting ClusterTrustBundle: clustertrustbundle.certificates.k8s.io "{name}" not found'
        )
    else:
        bundles = await _matching_bundles(api, source)
        problem = "combination of signerName and labelSelector matched zero ClusterTrustBundles"
    if not bundles and not source.get("optional"):
        raise ConfigError(problem)
    anchors = {anchor for bundle in bundles for anchor in _blocks(bundle["spec"]["trustBundle"])}
    return "".join(sorted(anchors)).encode()


async def _matching_bundles(api: Api, source: Object) -> list[Object]:
    selector = source.get("labelSelector")
    if selector is None:  # which matches nothing; an empty one matches everything
        return []
    labels = [f"{key}={value}" for key, value in (selector.get("matchLabels") or {}).items()]
    labels += map(_requirement, selector.get("matchExpressions") or ())
    parameters = {"labelSelector": ",".join(labels)} if labels else {}
    fields = f"spec.signerName={source['signerName']}"
    answer = await api.get(api_path(BUNDLES), fieldSelector=fields, **parameters)
    return answer.get("items") or []


def _requirement(expression: Object) -> str:
    key, values = expression["key"], ",".join(expression.get("values") or ())
    operators = {
        "In": f"{key} in ({values})",
        "NotIn": f"{key} notin ({values})",
        "Exists": key,
        "DoesNotExist": f"!{key}",
    }
    return operators[expression["operator"]]


def _blocks(text: str) -> Iterator[str]:
    """Yield the certificates of a PEM text without what is between them."""
    for block in BLOCK.findall(text):
        yield ssl.DER_cert_to_PEM_cert(ssl.PEM_cert_to_DER_cert(block))


@dataclass
class _Credential:
    """A key and its certificates, both PEM, with the request that is to replace them, and its key."""

    key: bytes = b""
    chain: bytes = b""
    renew_at: float = 0.0
    request: str = ""
    request_key: bytes = b""
    refusal: str = ""


class _PodCertificates:
    """The ``podCertificate`` projections of all pods."""

    def __init__(self, access: Access, *, clock: Callable[[], float] = time.time) -> None:
        self._access, self._clock = access, clock
        # By the pod's uid, its volume, and the projection's index in the volume.
        self._credentials: dict[tuple[str, str, int], _Credential] = {}

    async def files(self, pod: Object, source: Object, place: tuple[str, int]) -> dict[str, bytes]:
        """Get files: the first certificate is awaited for a few seconds, those that replace it are not."""
        credential = self._credentials.setdefault((pod["metadata"]["uid"], *place), _Credential())
        api = self._access(pod["spec"]["nodeName"])
        if not credential.request and not credential.refusal and self._clock() >= credential.renew_at:
            # Imported at the first use: it takes as long as a tenth of the kubelet's other imports.
            from localkube.kubelet.volumes.certificate_keys import key_and_request

            key, stub = await TEXTS.call(lambda: key_and_request(source["keyType"]))
            credential.request_key = key
            credential.request = await _create(api, pod, source, stub)
        if credential.request:
            _settle(credential, await _read(api, pod, credential))
        if credential.refusal:
            raise ConfigError(credential.refusal)
        if not credential.chain:
            raise ConfigError("credential bundle is not issued yet")
        contents = {
            "credentialBundlePath": credential.key + credential.chain,
            "keyPath": credential.key,
            "certificateChainPath": credential.chain,
        }
        return {source[field]: content for field, content in contents.items() if source.get(field)}

    def forget(self, uid: str) -> None:
        for place in [place for place in self._credentials if place[0] == uid]:
            del self._credentials[place]


async def _create(api: Api, pod: Object, source: Object, stub: bytes) -> str:
    """Create a PodCertificateRequest, and return its name."""
    metadata, spec = pod["metadata"], pod["spec"]
    namespace, account_name = metadata["namespace"], spec.get("serviceAccountName") or "default"
    account = await api.get(api_path("v1/serviceaccounts", namespace=namespace, name=account_name))
    node = await api.get(api_path("v1/nodes", name=spec["nodeName"]))
    owner = {"apiVersion": "v1", "kind": "Pod", "name": metadata["name"], "uid": metadata["uid"]}
    request = {
        "apiVersion": "certificates.k8s.io/v1",
        "kind": "PodCertificateRequest",
        "metadata": {"generateName": "req-", "namespace": namespace, "ownerReferences": [owner]},
        "spec": {
            "signerName": source["signerName"],
            "podName": metadata["name"],
            "podUID": metadata["uid"],
            "serviceAccountName": account_name,
            "serviceAccountUID": account["metadata"]["uid"],
            "nodeName": spec["nodeName"],
            "nodeUID": node["metadata"]["uid"],
            "maxExpirationSeconds": source.get("maxExpirationSeconds"),
            "stubPKCS10Request": base64.b64encode(stub).decode(),
            "unverifiedUserAnnotations": source.get("userAnnotations"),
        },
    }
    return (await api.post(api_path(REQUESTS, namespace=namespace), request))["metadata"]["name"]


async def _read(api: Api, pod: Object, credential: _Credential) -> Object | None:
    """Get a pending request, or await its decision if the pod has no certificate; None if it was deleted."""
    namespace = pod["metadata"]["namespace"]
    if credential.chain:
        return await find(api, api_path(REQUESTS, namespace=namespace, name=credential.request))
    request: Object | None = {}
    fields = f"metadata.name={credential.request},spec.nodeName={pod['spec']['nodeName']}"
    parameters = {"watch": "1", "fieldSelector": fields, "timeoutSeconds": str(WAIT_SECONDS)}
    async with contextlib.aclosing(api.lines(api_path(REQUESTS, namespace=namespace), parameters)) as lines:
        async for line in lines:
            event = json.loads(line)
            request = None if event["type"] == "DELETED" else event["object"]
            if request is None or _conditions(request):
                break
    return request


def _settle(credential: _Credential, request: Object | None) -> None:
    conditions = _conditions(request or {})
    if request is None:
        credential.request = ""  # another one is created
    for kind in ("Denied", "Failed"):
        if condition := conditions.get(kind):
            credential.request, reason = "", json.dumps(condition.get("reason", ""))
            message = json.dumps(condition.get("message", ""))
            decision = f"PodCertificateRequest was permanently {kind.lower()}"
            credential.refusal = f"{decision}: reason={reason} message={message}"
    if request and "Issued" in conditions:
        status = request["status"]
        credential.key, credential.request = credential.request_key, ""
        credential.chain = "".join(_blocks(status["certificateChain"])).encode()
        credential.renew_at = datetime.fromisoformat(status["beginRefreshAt"]).timestamp()


def _conditions(request: Object) -> dict[str, Object]:
    conditions: Iterable[Object] = (request.get("status") or {}).get("conditions") or ()
    return {condition["type"]: condition for condition in conditions}
