"""Whose a bearer token is: the webhook by which a local cluster's API server asks a fake cloud (TokenReview).

Not here: how a cloud authenticates; that is the function which `review` is given.
"""

import json
from collections.abc import Callable
from dataclasses import dataclass, field


@dataclass(frozen=True)
class User:
    """Who sent a token.

    Attributes:
        name: For Kubernetes.
        groups: ``system:masters`` may do everything.
        uid: Of the cloud's.
    """

    name: str
    groups: tuple[str, ...] = ()
    uid: str = ""
    extra: dict[str, list[str]] = field(default_factory=dict)


class BadToken(Exception):
    """The token is nobody's; the text says why."""


def review(body: bytes, authenticate: Callable[[str], User]) -> bytes:
    """Answer a TokenReview; ``authenticate`` returns the user of a token, or raises `BadToken`."""
    token_review = json.loads(body)
    try:
        user = authenticate(token_review["spec"]["token"])
        about = {"username": user.name, "groups": list(user.groups), "uid": user.uid, "extra": user.extra}
        status = {"authenticated": True, "user": about}
    except BadToken as error:
        status = {"authenticated": False, "error": str(error)}
    kind = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenReview"}
    return json.dumps({**kind, "status": status}).encode()
