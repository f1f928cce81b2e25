"""Whose an access token is, as GKE's API servers see it.

Google's tokens are opaque, so a fake has a list. Who may do all in the project may do all in its
clusters: rights of IAM count beside those of Kubernetes
(https://cloud.google.com/kubernetes-engine/docs/how-to/role-based-access-control). Others are known, and have
no rights but those that the cluster gives them.
"""

import json

from ..tokens import BadToken, User, review

OWNER = "owner@example.com"


class Identities:
    """The tokens that are valid.

    Example:
        >>> google.identities.add("ya29.ada", "ada@example.com", admin=False)
    """

    def __init__(self) -> None:
        self._users: dict[str, User] = {}

    def add(self, token: str, email: str = OWNER, *, admin: bool = True) -> str:
        """Let a token be somebody's, and return it."""
        groups = ("system:masters",) if admin else ()
        self._users[token] = User(email, groups, extra={"iam.gke.io/user-assertion": [email]})
        return token

    def revoke(self, token: str) -> None:
        """Let a token be nobody's."""
        self._users.pop(token, None)

    def answer(self, asked: dict) -> dict:
        """Answer an API server's TokenReview."""
        return json.loads(review(json.dumps(asked).encode(), self._judge))

    def _judge(self, token: str) -> User:
        if token not in self._users:
            raise BadToken("the token is not one of Google's")
        return self._users[token]
