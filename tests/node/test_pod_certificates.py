"""What identifies pods, in projected volumes: trust bundles, and certificates from a signer."""

import base64
import json
from datetime import timedelta

import pytest
from cryptography import x509
from kubernetes import client, watch

from .clusters import PATIENCE, pod
from .tls import Authority

SIGNER = "lab.example.com/pods"


def projected(*sources, **spec):
    """A pod that shows the files of a projected volume in the order of their names."""
    volume = {"name": "data", "projected": {"sources": list(sources)}}
    mounts = {"volumeMounts": [{"name": "data", "mountPath": "/data"}]}
    return pod("cat /data/*", main=mounts, volumes=[volume], **spec)


@pytest.fixture
def decide(cluster):
    """Decide on a pod's request, as a signer does: the status is computed from the request's PKCS #10."""

    def wait_and_patch(name, status):
        api = client.CustomObjectsApi(cluster.core.api_client)
        place = ("certificates.k8s.io", "v1", "default", "podcertificaterequests")
        stream = watch.Watch().stream(api.list_namespaced_custom_object, *place, timeout_seconds=PATIENCE)
        request = next(item["object"] for item in stream if item["object"]["spec"]["podName"] == name)
        body = {
            "status": status(x509.load_der_x509_csr(base64.b64decode(request["spec"]["stubPKCS10Request"])))
        }
        words = ("--subresource=status", "--type=merge", f"--patch={json.dumps(body)}")
        cluster.kubectl("patch", "podcertificaterequest", request["metadata"]["name"], *words)

    return wait_and_patch


def condition(kind, reason="Policy"):
    return {"type": kind, "status": "True", "reason": reason, "lastTransitionTime": "2026-01-01T00:00:00Z"}


def test_the_api_servers_authority_is_a_trust_bundle_of_every_cluster(pods):
    anchors = {"signerName": "kubernetes.io/kube-apiserver-serving", "labelSelector": {}, "path": "anchors"}
    own = {"name": "kube-root-ca.crt", "items": [{"key": "ca.crt", "path": "own"}]}
    text = pods.output(projected({"clusterTrustBundle": anchors}, {"configMap": own}))
    first, second = x509.load_pem_x509_certificates(text.encode())
    assert first == second


def test_a_missing_bundle_holds_the_pod_unless_it_is_optional(pods):
    bundle = {"name": "lab.example.com:pods:none", "path": "anchors"}
    name = pods.create(projected({"clusterTrustBundle": bundle}))
    pods.wait_for_event(
        name, "FailedMount", f'clustertrustbundle.certificates.k8s.io "{bundle["name"]}" not found'
    )
    assert pods.output(projected({"clusterTrustBundle": bundle | {"optional": True}})) == ""


def test_a_pod_gets_a_key_and_the_certificate_that_its_signer_issues(pods, decide, tmp_path):
    source = {"signerName": SIGNER, "keyType": "ECDSAP256", "credentialBundlePath": "bundle"}
    source["maxExpirationSeconds"] = 2 * 24 * 3600
    name = pods.create(projected({"podCertificate": source}))
    authority = Authority(tmp_path, "signer")

    def issue(request):
        chain = authority.certify(request.public_key(), name)
        certificate = x509.load_pem_x509_certificate(chain)
        begins, ends = certificate.not_valid_before_utc, certificate.not_valid_after_utc
        times = {"notBefore": begins, "notAfter": ends, "beginRefreshAt": ends - timedelta(minutes=30)}
        return {
            "conditions": [condition("Issued")],
            "certificateChain": chain.decode(),
            **{key: time.strftime("%Y-%m-%dT%H:%M:%SZ") for key, time in times.items()},
        }

    decide(name, issue)
    text = pods.logs(pods.until(name, lambda pod: pod["status"]["phase"] == "Succeeded"))
    assert "BEGIN PRIVATE KEY" in text
    (certificate,) = x509.load_pem_x509_certificates(
        text.partition("-----END PRIVATE KEY-----\n")[2].encode()
    )
    assert certificate.subject.rfc4514_string() == f"CN={name}"


def test_a_refused_certificate_holds_the_pod_with_the_signers_reason(pods, decide):
    source = {"signerName": SIGNER, "keyType": "ED25519", "keyPath": "key", "certificateChainPath": "chain"}
    name = pods.create(projected({"podCertificate": source}))
    decide(name, lambda request: {"conditions": [condition("Denied", "NotOurs")]})
    pods.wait_for_event(name, "FailedMount", 'was permanently denied: reason="NotOurs"')
