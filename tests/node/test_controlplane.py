"""The four real components, started as a cluster starts them: they work together, and let no stranger in.

etcd begins late. OpenAPI documents are built when somebody asks for them, and are then what upstream's API
server serves.
"""

import json
import os
import re
import socket
import ssl
import urllib.error
import urllib.parse
import urllib.request
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from itertools import count, pairwise

import psutil
import pytest
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec

from localkube.controlplane import binaries
from localkube.controlplane.components import ETCD_SOCKET
from localkube.runtime.client import short_name

from ..security.users import as_user
from .bare_control_plane import bare
from .clusters import eventually
from .restrictions import NOBODY

ALL = ("etcd", "kube-apiserver", "kube-controller-manager", "kube-scheduler")
FAILURE = re.compile(r"^W\d+ (\S+) .*(SubChannel #\d+)\] grpc: addrConn.createTransport failed", re.MULTILINE)
WAIT = 'until [ "$(grep -c createTransport "$0")" -ge 9 ]; do sleep 0.05; done; exec "$@"'


@pytest.fixture(scope="module")
def running(tmp_path_factory):
    folder = tmp_path_factory.mktemp("all-four")
    wait = ("/bin/sh", "-c", WAIT, str(folder / "logs" / "kube-apiserver.log"))

    def late(component):
        return replace(component, argv=(*wait, *component.argv)) if component.name == "etcd" else component

    control_plane = binaries.obtain(report=lambda text: None)
    with bare(folder, control_plane, components=ALL, change=late) as running:
        yield running


def test_the_api_server_dials_a_late_etcd_again_within_milliseconds(running):
    times: dict[str, list[datetime]] = {}
    for time, channel in FAILURE.findall((running.paths.logs / "kube-apiserver.log").read_text()):
        times.setdefault(channel, []).append(datetime.strptime(time, "%H:%M:%S.%f"))
    gaps = [later - earlier for channel in times.values() for earlier, later in pairwise(channel)]
    assert min(gap.total_seconds() for gap in gaps) < 0.5


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


def create(running, kind, name, version, **spec):
    body = {"apiVersion": version, "kind": kind, "metadata": {"name": name}, "spec": spec}
    running.run("create", "-f", "-", "--validate=ignore", stdin=json.dumps(body))


def test_custom_resources_come_and_go(running):
    explained, name = "How wide it is.", "widgets.example.org"
    schema = {"type": "object", "properties": {"size": {"type": "integer", "description": explained}}}
    version = {"name": "v1", "served": True, "storage": True, "schema": {"openAPIV3Schema": schema}}
    names = {"kind": "Widget", "plural": "widgets"}
    spec = {"group": "example.org", "names": names, "scope": "Namespaced", "versions": [version]}
    create(running, "CustomResourceDefinition", name, "apiextensions.k8s.io/v1", **spec)
    eventually(lambda: "apis/example.org/v1" in get(running, "/openapi/v3")["paths"], expected=True)
    path = get(running, "/openapi/v3")["paths"]["apis/example.org/v1"]["serverRelativeURL"]
    assert explained in running.run("get", "--raw", path)
    eventually(lambda: explained in running.run("get", "--raw", "/openapi/v2"), expected=True)
    running.run("delete", "crd", name)
    eventually(lambda: "apis/example.org/v1" in get(running, "/openapi/v3")["paths"], expected=False)


def test_a_mutating_policy_knows_the_types_from_its_first_object_on(running):
    rule = {"apiGroups": [""], "apiVersions": ["v1"], "resources": ["configmaps"], "operations": ["CREATE"]}
    expression = 'Object{metadata: Object.metadata{labels: {"by": "policy"}}}'
    mutation = {"patchType": "ApplyConfiguration", "applyConfiguration": {"expression": expression}}
    spec = {"failurePolicy": "Fail", "reinvocationPolicy": "Never", "mutations": [mutation]}
    spec["matchConstraints"] = {"resourceRules": [rule]}
    group, names = "admissionregistration.k8s.io/v1", count()
    create(running, "MutatingAdmissionPolicy", "labels", group, **spec)
    create(running, "MutatingAdmissionPolicyBinding", "labels", group, policyName="labels")

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


def fetch(running, path, *, client):
    """Return the status of a request with the certificate ``client``."""
    pki = running.paths.pki
    context = ssl.create_default_context(cafile=pki / "ca.crt")
    context.load_cert_chain(pki / f"{client}.crt", pki / f"{client}.key")
    try:
        return urllib.request.urlopen(running.server + path, context=context, timeout=120).status
    except urllib.error.HTTPError as error:
        return error.code


def _words(process):
    try:
        return process.cmdline()
    except psutil.ZombieProcess:  # of an earlier test of this worker
        return []


def test_kubectl_reaches_a_ready_server_of_the_right_version(running):
    assert running.run("get", "--raw", "/readyz") == "ok"
    version = json.loads(running.run("version", "--output=json"))
    assert version["serverVersion"]["gitVersion"].startswith("v1.37.")
    assert version["serverVersion"] == {**version["serverVersion"], "major": "1", "minor": "37"}


def test_service_accounts_get_tokens_and_no_more_than_their_rights(running):
    running.run("wait", "--for=create", "serviceaccount/default", "--timeout=120s")
    token = running.run("create", "token", "default")
    assert token.count(".") == 2
    answer = running.run("auth", "can-i", "--list", "--as=system:serviceaccount:default:default")
    assert "pods" not in answer


def test_a_component_has_its_own_rights_only(running):
    assert fetch(running, "/api/v1/pods", client="scheduler") == 200
    assert fetch(running, "/api/v1/secrets", client="scheduler") == 403


def connect(path):
    with short_name(path) as name, socket.socket(socket.AF_UNIX) as sock:
        sock.connect(name)


def test_etcd_listens_on_no_port_and_for_the_owner_of_the_cluster_alone(running):
    etcd = next(process for process in psutil.Process().children() if "etcd" in _words(process)[:2])
    assert etcd.net_connections("tcp") == []
    path = running.paths.root / ETCD_SOCKET
    assert path.parent.stat().st_mode & 0o077 == 0
    connect(path)
    if os.getuid() == 0:
        with pytest.raises(AssertionError, match="PermissionError"):
            as_user(NOBODY, lambda: connect(path))
