"""OpenAPI documents are built when somebody asks for them, and are then what upstream's API server serves."""

import json
import socket
import ssl
import urllib.parse
from datetime import UTC, datetime, timedelta

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec

from localkube.controlplane import binaries

from .bare_control_plane import bare
from .clusters import eventually

WIDGETS = {
    "apiVersion": "apiextensions.k8s.io/v1",
    "kind": "CustomResourceDefinition",
    "metadata": {"name": "widgets.example.org"},
    "spec": {
        "group": "example.org",
        "names": {"kind": "Widget", "plural": "widgets"},
        "scope": "Namespaced",
        "versions": [
            {
                "name": "v1",
                "served": True,
                "storage": True,
                "schema": {
                    "openAPIV3Schema": {
                        "type": "object",
                        "properties": {"size": {"type": "integer", "description": "How wide it is."}},
                    }
                },
            }
        ],
    },
}
POLICY = {
    "apiVersion": "admissionregistration.k8s.io/v1",
    "kind": "MutatingAdmissionPolicy",
    "metadata": {"name": "labels"},
    "spec": {
        "failurePolicy": "Fail",
        "reinvocationPolicy": "Never",
        "matchConstraints": {
            "resourceRules": [
                {
                    "apiGroups": [""],
                    "apiVersions": ["v1"],
                    "resources": ["configmaps"],
                    "operations": ["CREATE"],
                }
            ]
        },
        "mutations": [
            {
                "patchType": "ApplyConfiguration",
                "applyConfiguration": {
                    "expression": 'Object{metadata: Object.metadata{labels: {"by": "policy"}}}'
                },
            }
        ],
    },
}
BINDING = {
    "apiVersion": "admissionregistration.k8s.io/v1",
    "kind": "MutatingAdmissionPolicyBinding",
    "metadata": {"name": "labels"},
    "spec": {"policyName": "labels"},
}


@pytest.fixture
def running(tmp_path):
    control_plane = binaries.obtain(report=lambda text: None)
    with bare(tmp_path, control_plane, components=("etcd", "kube-apiserver")) as running:
        yield running


def get(running, path):
    return json.loads(running.run("get", "--raw", path))


def test_documents_are_complete_on_the_first_request_and_nobody_asks_before(running):
    assert 'subresource="openapi/v3"' not in running.run("get", "--raw", "/metrics")
    paths = get(running, "/openapi/v3")["paths"]
    for group in ("api/v1", "apis/apps/v1", "apis/apiextensions.k8s.io/v1", "apis/apiregistration.k8s.io/v1"):
        assert group in paths
    document = get(running, paths["apis/apps/v1"]["serverRelativeURL"])
    assert "io.k8s.api.apps.v1.Deployment" in document["components"]["schemas"]
    swagger = get(running, "/openapi/v2")
    assert "io.k8s.api.apps.v1.Deployment" in swagger["definitions"]
    for path in ("/api/v1/pods", "/apis/apps/v1/deployments", "/apis/apiregistration.k8s.io/v1/apiservices"):
        assert path in swagger["paths"]


def test_custom_resources_come_and_go(running):
    explained = "How wide it is."
    running.run("create", "-f", "-", stdin=json.dumps(WIDGETS))
    eventually(lambda: "apis/example.org/v1" in get(running, "/openapi/v3")["paths"], expected=True)
    path = get(running, "/openapi/v3")["paths"]["apis/example.org/v1"]["serverRelativeURL"]
    assert explained in running.run("get", "--raw", path)
    eventually(lambda: explained in running.run("get", "--raw", "/openapi/v2"), expected=True)
    running.run("delete", "crd", "widgets.example.org")
    eventually(lambda: "apis/example.org/v1" in get(running, "/openapi/v3")["paths"], expected=False)


def test_a_mutating_policy_knows_the_types_from_its_first_object_on(running):
    running.run("create", "-f", "-", "--validate=ignore", stdin=json.dumps(POLICY))
    running.run("create", "-f", "-", "--validate=ignore", stdin=json.dumps(BINDING))
    names = iter(range(1000))

    def labels():
        name = f"labelled-{next(names)}"
        running.run("create", "configmap", name)
        return json.loads(running.run("get", "configmap", name, "-o", "json"))["metadata"].get("labels")

    eventually(labels, expected={"by": "policy"})


def test_the_api_server_reaches_itself_by_a_certificate_of_an_elliptic_curve(running):
    address = urllib.parse.urlsplit(running.server)
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    with (
        socket.create_connection((address.hostname, address.port), timeout=60) as connection,
        context.wrap_socket(connection, server_hostname="apiserver-loopback-client") as tls,
    ):
        certificate = x509.load_der_x509_certificate(tls.getpeercert(binary_form=True))
    assert certificate.subject == certificate.issuer
    names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert names.get_values_for_type(x509.DNSName) == ["apiserver-loopback-client"]
    assert isinstance(certificate.public_key(), ec.EllipticCurvePublicKey)
    assert certificate.not_valid_after_utc - datetime.now(UTC) > timedelta(days=2 * 365)
