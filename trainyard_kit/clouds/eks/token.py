"""The exec credential plugin for a cluster's API, which kubectl and the Kubernetes client run.

The token is a presigned request to STS: EKS sends it, and so learns the identity of the signer
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
URL_SECONDS = 60  # EKS accepts a token for 15 minutes regardless of this
LIFETIME = timedelta(minutes=14)
EXEC = "client.authentication.k8s.io/v1beta1"


def token(session: AwsSession, cluster: str) -> str:
    """Sign a bearer token for the API of a cluster."""
    sts = session.client("sts")
    service, events = sts.meta.service_model.service_id, sts.meta.events
    signer = RequestSigner(service, session.region, "sts", "v4", session.credentials, events)
    url = f"{sts.meta.endpoint_url.rstrip('/')}/?Action=GetCallerIdentity&Version=2011-06-15"
    request = {"method": "GET", "url": url, "body": {}, "headers": {HEADER: cluster}, "context": {}}
    try:
        signed = signer.generate_presigned_url(
            request, region_name=session.region, expires_in=URL_SECONDS, operation_name=""
        )
    except Exception as error:  # noqa: BLE001  (botocore's errors have no common base class)
        raise session.convert(error, "sts", "sign", {"clusterName": cluster}) from error
    return PREFIX + base64.urlsafe_b64encode(signed.encode()).decode().rstrip("=")


def main(arguments: list[str] | None = None) -> int:
    """Print an ExecCredential, or the error to stderr.

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
    status = {"token": signed, "expirationTimestamp": f"{datetime.now(UTC) + LIFETIME:%Y-%m-%dT%H:%M:%SZ}"}
    print(json.dumps({"apiVersion": EXEC, "kind": "ExecCredential", "status": status}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
