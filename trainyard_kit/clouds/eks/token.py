"""Credentials for a cluster's API: a program that kubectl and the Kubernetes client run when they need one.

The token is a request to STS, signed and never sent by us: EKS sends it, and so learns who signed
(https://github.com/kubernetes-sigs/aws-iam-authenticator#api-authorization-from-outside-a-cluster).
"""

import argparse
import base64
import json
import sys
from datetime import UTC, datetime, timedelta

from botocore.signers import RequestSigner

from kitlib.errors import KitError
from trainyard_kit.clouds.eks.session import AwsSession

PREFIX, HEADER = "k8s-aws-v1.", "x-k8s-aws-id"
URL_SECONDS = 60  # EKS takes it for 15 minutes after it was signed, whatever this says
GOOD_FOR = timedelta(minutes=14)
EXEC = "client.authentication.k8s.io/v1beta1"


def token(session: AwsSession, cluster: str) -> str:
    """Sign a bearer token for the API of a cluster."""
    sts, known = session.client("sts"), session.credentials
    service, events = sts.meta.service_model.service_id, sts.meta.events
    signer = RequestSigner(service, session.region, "sts", "v4", known, events)
    url = f"{sts.meta.endpoint_url.rstrip('/')}/?Action=GetCallerIdentity&Version=2011-06-15"
    request = {"method": "GET", "url": url, "body": {}, "headers": {HEADER: cluster}, "context": {}}
    try:
        signed = signer.generate_presigned_url(
            request, region_name=session.region, expires_in=URL_SECONDS, operation_name=""
        )
    except Exception as error:  # noqa: BLE001  (botocore's errors share no base with those of its credentials)
        raise session.translated(error, "sts", "sign", {"clusterName": cluster}) from error
    return PREFIX + base64.urlsafe_b64encode(signed.encode()).decode().rstrip("=")


def main(arguments: list[str] | None = None) -> int:
    """Print a credential as kubectl wants it; or say on stderr why there is none.

    https://kubernetes.io/docs/reference/config-api/client-authentication.v1beta1/
    """
    parser = argparse.ArgumentParser(prog="python -m trainyard_kit.clouds.eks.token")
    for option in ("--cluster", "--region"):
        parser.add_argument(option, required=True)
    parser.add_argument("--profile")
    options = parser.parse_args(arguments)
    try:
        signed = token(AwsSession(options.region, options.profile), options.cluster)
    except KitError as error:
        print(error, file=sys.stderr)
        return 1
    status = {"token": signed, "expirationTimestamp": f"{datetime.now(UTC) + GOOD_FOR:%Y-%m-%dT%H:%M:%SZ}"}
    print(json.dumps({"apiVersion": EXEC, "kind": "ExecCredential", "status": status}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
