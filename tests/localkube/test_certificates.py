"""A cluster's certificates: who may do what, what is kept, and what is issued anew."""

import shutil
import stat
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.x509.oid import ExtendedKeyUsageOID

from localkube.controlplane import certificates, client_credentials
from localkube.errors import LocalClusterError

NODES = ["10.244.254.1", "10.244.254.2"]
CLIENTS = {
    "admin": ("kubernetes-admin", "system:masters"),
    "node-node-0": ("system:node:node-0", "system:nodes"),
    "node-node-1": ("system:node:node-1", "system:nodes"),
    "informers": ("trainyard:informers", None),
    "provisioner": ("trainyard:provisioner", None),
    "apiserver-kubelet-client": ("kube-apiserver-kubelet-client", "system:masters"),
    "controller-manager": ("system:kube-controller-manager", None),
    "scheduler": ("system:kube-scheduler", None),
}


@pytest.fixture(scope="module")
def issued(tmp_path_factory):
    folder = tmp_path_factory.mktemp("issued") / "pki"
    certificates.issue(folder, node_addresses=NODES, nodes=["node-0", "node-1"])
    return folder


@pytest.fixture
def pki(issued, tmp_path):
    return Path(shutil.copytree(issued, tmp_path / "pki"))


def load(path):
    return x509.load_pem_x509_certificate(path.read_bytes())


def names(certificate):
    extension = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    return {str(name.value) for name in extension}


def changed(pki, before):
    return {path.name for path in pki.iterdir() if path.read_bytes() != (before / path.name).read_bytes()}


def test_every_file_is_readable_by_its_owner_alone(pki):
    assert stat.S_IMODE(pki.stat().st_mode) == 0o700
    assert {stat.S_IMODE(path.stat().st_mode) for path in pki.iterdir()} == {0o600}


def test_clients_carry_the_users_that_kubernetes_knows_and_cannot_serve(pki):
    for file, (user, group) in CLIENTS.items():
        certificate = load(pki / f"{file}.crt")
        names, groups = (
            [part.value for part in certificate.subject.get_attributes_for_oid(kind)]
            for kind in (x509.NameOID.COMMON_NAME, x509.NameOID.ORGANIZATION_NAME)
        )
        assert (names, groups) == ([user], [group] if group else [])
        usage = certificate.extensions.get_extension_for_class(x509.ExtendedKeyUsage).value
        assert ExtendedKeyUsageOID.SERVER_AUTH not in usage


def test_certificates_have_the_servers_names_and_the_nodes_addresses(pki):
    assert names(load(pki / "apiserver.crt")) == set(certificates.API_NAMES)
    assert names(load(pki / "kubelet-serving.crt")) == {"127.0.0.1", *NODES}


def test_the_front_proxy_has_an_authority_of_its_own(pki):
    authorities = {name: load(pki / f"{name}.crt") for name in ("ca", "front-proxy-ca")}
    for file, authority in {"front-proxy-client": "front-proxy-ca", "admin": "ca"}.items():
        load(pki / f"{file}.crt").verify_directly_issued_by(authorities[authority])
    with pytest.raises(ValueError, match="Issuer"):
        load(pki / "admin.crt").verify_directly_issued_by(authorities["front-proxy-ca"])


def test_a_new_node_renews_only_the_kubelets_certificate(pki, issued):
    certificates.issue(pki, node_addresses=NODES)
    assert changed(pki, issued) == set()
    certificates.issue(pki, node_addresses=[*NODES, "10.244.254.3"])
    assert changed(pki, issued) == {"kubelet-serving.crt", "kubelet-serving.key"}


@pytest.mark.parametrize("damage", [b"", b"not a certificate"])
def test_a_damaged_certificate_is_issued_anew(pki, damage):
    (pki / "admin.crt").write_bytes(damage)
    certificates.issue(pki, node_addresses=NODES)
    load(pki / "admin.crt").verify_directly_issued_by(load(pki / "ca.crt"))


def test_a_key_that_does_not_fit_its_certificate_is_replaced_with_it(pki):
    (pki / "admin.key").write_bytes((pki / "scheduler.key").read_bytes())
    certificates.issue(pki, node_addresses=NODES)
    assert (pki / "admin.key").read_bytes() != (pki / "scheduler.key").read_bytes()


def test_a_lost_authority_takes_its_certificates_with_it(pki, issued):
    (pki / "front-proxy-ca.key").unlink()
    certificates.issue(pki, node_addresses=NODES)
    names = ("front-proxy-ca", "front-proxy-client")
    assert changed(pki, issued) == {f"{name}.{kind}" for name in names for kind in ("crt", "key")}


def test_a_certificate_about_to_expire_is_renewed(tmp_path, monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr(certificates, "LEAF_DAYS", certificates.RENEW_DAYS - 1)
        certificates.issue(tmp_path / "pki", node_addresses=NODES)
    before = load(tmp_path / "pki" / "admin.crt")
    certificates.issue(tmp_path / "pki", node_addresses=NODES)
    assert load(tmp_path / "pki" / "admin.crt").not_valid_after_utc > before.not_valid_after_utc


def test_a_directory_that_cannot_be_made_is_explained(tmp_path):
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(LocalClusterError, match="cannot write") as error:
        certificates.issue(tmp_path / "file" / "pki", node_addresses=NODES)
    assert str(tmp_path / "file" / "pki") in error.value.about


def test_a_kubeconfig_holds_all_it_needs_and_is_private(pki, tmp_path):
    import base64
    import json

    path = tmp_path / "kubeconfig"
    client_credentials.write_kubeconfig(
        path, server="https://127.0.0.1:6443", name="lab", pki=pki, user="admin"
    )
    written = json.loads(path.read_text())
    cluster = written["clusters"][0]["cluster"]
    assert cluster["server"] == "https://127.0.0.1:6443"
    assert base64.b64decode(cluster["certificate-authority-data"]) == (pki / "ca.crt").read_bytes()
    assert written["current-context"] == "lab"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert [entry.name for entry in tmp_path.iterdir()].count(".kubeconfig.new") == 0
