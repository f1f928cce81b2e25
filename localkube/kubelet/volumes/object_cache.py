"""ConfigMaps, Secrets and service account tokens for pods, with short-lived caching.

All pods of a Job start at once and need the same objects, so requests for one object share a response for a
quarter of a second. The ConfigMap with the API server's authority, which every pod mounts, is watched. Tokens
belong to one pod each, and are kept until their renewal.
"""

import asyncio
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from localkube.api_client import Api, Informer, find
from localkube.api_path import MutableObject, api_path
from localkube.errors import ApiError

Pod = Mapping[str, Any]
# A node's own client, by its name: a pod's objects are read with the credentials of its node.
Access = Callable[[str], Api]
FRESH_SECONDS = 0.25
ROOT_CA = "kube-root-ca.crt"
# As the kubelet: renew when a fifth of the lifetime is left, and daily.
RENEW_AT, RENEW_DAILY = 0.8, 24 * 3600.0


class ObjectCache:
    """Reads ConfigMaps and Secrets.

    Args:
        authority: The API server's, for pods that start before the controller manager has published it.
    """

    def __init__(self, access: Access, *, authorities: Informer | None = None, authority: str = "") -> None:
        self._access = access
        self._authorities, self._authority = authorities, authority
        self._answers: dict[tuple[str, str], tuple[float, asyncio.Task[MutableObject | None]]] = {}

    async def configmap(self, pod: Pod, name: str) -> MutableObject | None:
        """Get a ConfigMap of the pod's namespace; None if it does not exist."""
        namespace = pod["metadata"]["namespace"]
        if self._authorities and (known := self._authorities.store.get((namespace, name))):
            return known
        if name == ROOT_CA and self._authority:
            return {"data": {"ca.crt": self._authority}}
        return await self._get(pod, api_path("v1/configmaps", namespace=namespace, name=name))

    async def secret(self, pod: Pod, name: str) -> MutableObject | None:
        """Get a Secret of the pod's namespace; None if it does not exist."""
        path = api_path("v1/secrets", namespace=pod["metadata"]["namespace"], name=name)
        return await self._get(pod, path)

    async def _get(self, pod: Pod, path: str) -> MutableObject | None:
        now, place = time.monotonic(), (pod["spec"].get("nodeName", ""), path)
        known = self._answers.get(place)
        if known is None or now - known[0] > FRESH_SECONDS:
            self._answers = {
                key: answer for key, answer in self._answers.items() if now - answer[0] <= FRESH_SECONDS
            }
            known = (now, asyncio.create_task(self._fetch(place)))
            self._answers[place] = known
        # Shielded: the deletion of one pod must not cancel the request of the others.
        return await asyncio.shield(known[1])

    async def _fetch(self, place: tuple[str, str]) -> MutableObject | None:
        item, (node, path) = None, place
        try:
            item = await find(self._access(node), path)
            (item or {}).get("metadata", {}).pop("managedFields", None)  # can be larger than the rest
        finally:
            if item is None:  # the next caller requests it again
                self._answers.pop(place, None)
        return item


def watch_authorities(api: Api) -> Informer:
    """Create the informer of the ConfigMap ``kube-root-ca.crt`` of every namespace."""
    return Informer(api, api_path("v1/configmaps"), field_selector=f"metadata.name={ROOT_CA}")


@dataclass(frozen=True)
class _Token:
    text: str
    renew_at: float
    expires_at: float


class TokenManager:
    """Service account tokens bound to a pod."""

    def __init__(self, access: Access, *, clock: Callable[[], float] = time.time) -> None:
        self._access = access
        self._clock = clock
        self._tokens: dict[tuple[str, str, int], _Token] = {}

    async def get(self, pod: Mapping[str, Any], *, audience: str, seconds: int) -> str:
        """Get a token of the pod's service account for ``audience`` (empty: the API server).

        Raises:
            ApiError: No token could be obtained, and there is no earlier one that is still valid.
        """
        key = (pod["metadata"]["uid"], audience, seconds)
        known = self._tokens.get(key)
        if known and self._clock() < known.renew_at:
            return known.text
        try:
            fresh = await self._request(pod, audience, seconds)
        except ApiError:
            if known and self._clock() < known.expires_at:
                return known.text
            raise
        self._tokens[key] = fresh
        return fresh.text

    def forget(self, uid: str) -> None:
        for key in [key for key in self._tokens if key[0] == uid]:
            del self._tokens[key]

    async def _request(self, pod: Mapping[str, Any], audience: str, seconds: int) -> _Token:
        metadata, account = pod["metadata"], pod["spec"].get("serviceAccountName") or "default"
        body = {
            "apiVersion": "authentication.k8s.io/v1",
            "kind": "TokenRequest",
            "spec": {
                "audiences": [audience] if audience else [],
                "expirationSeconds": seconds,
                "boundObjectRef": {
                    "apiVersion": "v1",
                    "kind": "Pod",
                    "name": metadata["name"],
                    "uid": metadata["uid"],
                },
            },
        }
        start = self._clock()
        path = api_path(
            "v1/serviceaccounts", namespace=metadata["namespace"], name=account, subresource="token"
        )
        status = (await self._access(pod["spec"].get("nodeName", "")).post(path, body))["status"]
        expires = datetime.fromisoformat(status["expirationTimestamp"]).timestamp()
        lifetime = min((expires - start) * RENEW_AT, RENEW_DAILY)
        return _Token(status["token"], start + lifetime, expires)
