"""Credentials for a cluster's API: a program that kubectl and the Kubernetes client run when they need one.

The token is a request to STS, signed and never sent by us: EKS sends it, and so learns who signed
(https://github.com/kubernetes-sigs/aws-iam-authenticator#api-authorization-from-outside-a-cluster). No other
program is needed, and nothing is written down.
"""

import argparse
import base64
import json
import sys
from datetime import UTC, datetime, timedelta

from botocore.signers import RequestSigner

from clouds.aws.session import AwsSession
from kitlib.errors import KitError

PREFIX, HEADER = "k8s-aws-v1.", "x-k8s-aws-id"
URL_SECONDS = 60  # EKS takes it for 15 minutes after it was signed, whatever this says
GOOD_FOR = timedelta(minutes=14)
EXEC = "client.authentication.k8s.io/v1beta1"


def token(session: AwsSession, cluster: str) -> str:
    """Return a bearer token for the API of a cluster.

    Raises:
        AwsError: There are no credentials.
    """
    sts = session.client("sts")
    signer = RequestSigner(
        sts.meta.service_model.service_id,
        session.region,
        "sts",
        "v4",
        session.credentials,
        sts.meta.events,
    )
    request = {
        "method": "GET",
        "url": f"{sts.meta.endpoint_url.rstrip('/')}/?Action=GetCallerIdentity&Version=2011-06-15",
        "body": {},
        "headers": {HEADER: cluster},
        "context": {},
    }
    try:
        url = signer.generate_presigned_url(
            request, region_name=session.region, expires_in=URL_SECONDS, operation_name=""
        )
    except Exception as error:  # noqa: BLE001  (botocore's errors share no base with those of its credentials)
        raise session.translated(error, "sts", "sign", {"clusterName": cluster}) from error
    return PREFIX + base64.urlsafe_b64encode(url.encode()).decode().rstrip("=")


def credential(session: AwsSession, cluster: str, now: datetime | None = None) -> dict:
    """Return the token as kubectl wants it from a program: https://kubernetes.io/docs/reference/config-api/client-authentication.v1beta1/."""
    until = (now or datetime.now(UTC)) + GOOD_FOR
    status = {
        "token": token(session, cluster),
        "expirationTimestamp": until.strftime("%Y-%m-%dT%H:%M:%SZ"),
    }
    return {"apiVersion": EXEC, "kind": "ExecCredential", "status": status}


def main(arguments: list[str] | None = None) -> int:
    """Print a credential; or say on stderr why there is none."""
    parser = argparse.ArgumentParser(prog="python -m clouds.aws.token")
    parser.add_argument("--cluster", required=True)
    parser.add_argument("--region", required=True)
    parser.add_argument("--profile")
    given = parser.parse_args(arguments)
    try:
        print(json.dumps(credential(AwsSession(given.region, given.profile), given.cluster)))
    except KitError as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
