"""The exec credential plugin for GKE clusters, so that gcloud is not needed.

It prints an ExecCredential (https://kubernetes.io/docs/reference/config-api/client-authentication.v1/) with
an access token of the user's Google credentials. kubectl runs this file for each command, so it imports the
kit, which takes half a second, only for errors.
"""

import json
import os
import sys
from datetime import UTC, datetime, timedelta
from typing import Any

TOKEN = "CLOUDSDK_AUTH_ACCESS_TOKEN"  # gcloud's variable: an access token that the user renews
SCOPE = "https://www.googleapis.com/auth/cloud-platform"
SCOPES = [SCOPE, "https://www.googleapis.com/auth/userinfo.email"]  # the address is the user's name in RBAC
_MARGIN = timedelta(minutes=1)  # renewed before it expires


def credential(token: str, expires: datetime | None) -> dict[str, Any]:
    """Build an ExecCredential that expires with the token, if that is known."""
    status = {"token": token}
    if expires is not None:
        status["expirationTimestamp"] = (expires - _MARGIN).strftime("%Y-%m-%dT%H:%M:%SZ")
    return {"apiVersion": "client.authentication.k8s.io/v1", "kind": "ExecCredential", "status": status}


def main() -> int:
    """Print a credential, or the error to stderr, which kubectl shows."""
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
    """Return a renewed access token and its expiry in UTC; None if unknown."""
    if token := os.environ.get(TOKEN):
        return token, None
    import google.auth
    import google.auth.exceptions
    from google.auth.transport.requests import Request

    try:
        credentials, _ = google.auth.default(scopes=SCOPES)
        credentials.refresh(Request())
    except (google.auth.exceptions.GoogleAuthError, OSError) as error:
        from trainyard_kit.clouds.gke.client_errors import translate

        raise translate(error, "google-auth: an access token", "") from error
    assert credentials.token is not None
    expiry: datetime | None = credentials.expiry  # naive, in UTC
    return credentials.token, None if expiry is None else expiry.replace(tzinfo=UTC)


if __name__ == "__main__":
    sys.exit(main())
