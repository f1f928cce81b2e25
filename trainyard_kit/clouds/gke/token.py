"""The program with which kubectl and the kit sign in to a GKE cluster: no gcloud is needed.

It prints an ExecCredential (https://kubernetes.io/docs/reference/config-api/client-authentication.v1/) with
an access token of the user's own Google credentials. kubectl starts it, as the kubeconfig says, for each of
its commands: so as a file by itself, which imports the kit, half a second's work, only if there is trouble.
"""

import json
import os
import sys
from datetime import UTC, datetime, timedelta
from typing import Any

TOKEN = "CLOUDSDK_AUTH_ACCESS_TOKEN"  # as gcloud has it: a token that somebody else looks after
SCOPE = "https://www.googleapis.com/auth/cloud-platform"
SCOPES = [SCOPE, "https://www.googleapis.com/auth/userinfo.email"]  # by the address GKE knows a user in RBAC
_SHORTLY = timedelta(minutes=1)  # asked for anew that much before its end


def credential(token: str, expires: datetime | None) -> dict[str, Any]:
    """Return an ExecCredential, which ends when the token does, if anybody knows when."""
    status = {"token": token}
    if expires is not None:
        status["expirationTimestamp"] = (expires - _SHORTLY).strftime("%Y-%m-%dT%H:%M:%SZ")
    return {"apiVersion": "client.authentication.k8s.io/v1", "kind": "ExecCredential", "status": status}


def main() -> int:
    """Print a credential; what is wrong is said to stderr, which kubectl shows."""
    try:
        token, expires = access_token()
    except Exception as error:
        from kitlib.errors import KitError

        if not isinstance(error, KitError):
            raise
        print(error, file=sys.stderr)
        return 1
    print(json.dumps(credential(token, expires)))
    return 0


def access_token() -> tuple[str, datetime | None]:
    """Return a token that is as fresh as can be, and when it ends, in UTC; None if unknown."""
    if token := os.environ.get(TOKEN):
        return token, None
    import google.auth
    import google.auth.exceptions
    from google.auth.transport.requests import Request

    try:
        signed, _ = google.auth.default(scopes=SCOPES)
        signed.refresh(Request())
    except (google.auth.exceptions.GoogleAuthError, OSError) as error:
        from trainyard_kit.clouds.gke.client_errors import translate

        raise translate(error, "google-auth: an access token", "") from error
    assert signed.token is not None
    ends: datetime | None = signed.expiry  # naive, in UTC
    return signed.token, None if ends is None else ends.replace(tzinfo=UTC)


if __name__ == "__main__":
    sys.exit(main())
