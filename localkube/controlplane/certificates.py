"""A cluster's certificates and keys, with an authority each for the API and for front proxies.

Every cluster has its own authorities. Keys are ECDSA P-256, files are 0600. `issue` keeps the certificates
that are still valid.
"""

import datetime
import ipaddress
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.types import CertificatePublicKeyTypes
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from localkube.controlplane.client_credentials import node_file
from localkube.paths import private_dir, write_private, writing

AUTHORITY_DAYS = 3650
LEAF_DAYS: float = 365
RENEW_DAYS: float = 30
API_NAMES = (
    "kubernetes",
    "kubernetes.default",
    "kubernetes.default.svc",
    "kubernetes.default.svc.cluster.local",
    "localhost",
    "127.0.0.1",
    "10.96.0.1",
    "10.244.0.1",
)
# metrics-server's own name, which the kubelet admits and RBAC knows, and those under which it is called.
METRICS_USER = "system:metrics-server"
METRICS_NAMES = ("metrics-server.kube-system.svc", "10.244.0.1", "127.0.0.1")
# What serves all nodes: its rights are in ``kubelet/manifests/identities.yaml``.
NODE_PARTS = ("informers", "provisioner")


@dataclass(frozen=True)
class CertificateSpec:
    """A certificate to issue: its file's name, subject and usage."""

    file: str
    authority: str
    name: str
    organization: str | None = None
    client: bool = True
    server_names: tuple[str, ...] = ()


def leaves(
    *, node_addresses: Sequence[str], api_names: Sequence[str] = (), nodes: Sequence[str] = ()
) -> list[CertificateSpec]:
    """List the certificates of a cluster, authorities excluded."""
    api = (*API_NAMES, *api_names)
    masters = "system:masters"
    return [
        CertificateSpec("apiserver", "ca", "kube-apiserver", client=False, server_names=api),
        CertificateSpec("apiserver-kubelet-client", "ca", "kube-apiserver-kubelet-client", masters),
        CertificateSpec("admin", "ca", "kubernetes-admin", masters),
        *(CertificateSpec(node_file(node), "ca", f"system:node:{node}", "system:nodes") for node in nodes),
        *(CertificateSpec(part, "ca", f"trainyard:{part}") for part in NODE_PARTS),
        CertificateSpec("controller-manager", "ca", "system:kube-controller-manager"),
        CertificateSpec("scheduler", "ca", "system:kube-scheduler"),
        CertificateSpec(
            "kubelet-serving",
            "ca",
            "trainyard:nodes",
            client=False,
            server_names=("127.0.0.1", *node_addresses),
        ),
        CertificateSpec("metrics-server", "ca", METRICS_USER, server_names=METRICS_NAMES),
        CertificateSpec("front-proxy-client", "front-proxy-ca", "front-proxy-client"),
    ]


def issue(
    pki: Path, *, node_addresses: Sequence[str], api_names: Sequence[str] = (), nodes: Sequence[str] = ()
) -> None:
    """Write the cluster's certificates and keys into ``pki``, keeping those that are still valid.

    A certificate is issued anew when it is missing, unreadable, signed by another authority, about to expire,
    or lacks an address.
    """
    private_dir(pki)
    with writing(pki):
        authorities = {name: _authority(pki, name) for name in ("ca", "front-proxy-ca")}
        for leaf in leaves(node_addresses=node_addresses, api_names=api_names, nodes=nodes):
            _leaf(pki, leaf, *authorities[leaf.authority])
        _service_account_keys(pki)


def _authority(pki: Path, name: str) -> tuple[x509.Certificate, ec.EllipticCurvePrivateKey]:
    existing = _load(pki / f"{name}.crt", pki / f"{name}.key")
    if existing and not _expires_soon(existing[0]):
        return existing
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, f"trainyard-{name}")])
    usage = x509.KeyUsage(True, False, False, False, False, True, True, False, False)
    certificate = (
        _builder(subject, subject, key.public_key(), AUTHORITY_DAYS)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(usage, critical=True)
        .sign(key, hashes.SHA256())
    )
    _write_pair(pki, name, certificate, key)
    return certificate, key


def _leaf(pki: Path, leaf: CertificateSpec, ca: x509.Certificate, ca_key: ec.EllipticCurvePrivateKey) -> None:
    expected = {_general_name(text) for text in leaf.server_names}
    existing = _load(pki / f"{leaf.file}.crt", pki / f"{leaf.file}.key")
    if existing and _is_valid_for(existing[0], ca, expected):
        return
    key = ec.generate_private_key(ec.SECP256R1())
    attributes = [x509.NameAttribute(NameOID.COMMON_NAME, leaf.name)]
    if leaf.organization:
        attributes.append(x509.NameAttribute(NameOID.ORGANIZATION_NAME, leaf.organization))
    purposes = [ExtendedKeyUsageOID.CLIENT_AUTH] if leaf.client else []
    builder = _builder(x509.Name(attributes), ca.subject, key.public_key(), LEAF_DAYS)
    if leaf.server_names:
        purposes.append(ExtendedKeyUsageOID.SERVER_AUTH)
        names = [_general_name(text) for text in dict.fromkeys(leaf.server_names)]
        builder = builder.add_extension(x509.SubjectAlternativeName(names), critical=False)
    usage = x509.KeyUsage(True, False, False, False, False, False, False, False, False)
    certificate = (
        builder.add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(usage, critical=True)
        .add_extension(x509.ExtendedKeyUsage(purposes), critical=False)
        .add_extension(
            x509.AuthorityKeyIdentifier.from_issuer_public_key(ca_key.public_key()), critical=False
        )
        .sign(ca_key, hashes.SHA256())
    )
    _write_pair(pki, leaf.file, certificate, key)


def _builder(
    subject: x509.Name, issuer: x509.Name, public_key: CertificatePublicKeyTypes, days: float
) -> x509.CertificateBuilder:
    now = datetime.datetime.now(datetime.UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(public_key)
        .serial_number(x509.random_serial_number())
        # Clocks of two containers on one machine may disagree a little.
        .not_valid_before(now - datetime.timedelta(minutes=5))
        .not_valid_after(now + datetime.timedelta(days=days))
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(public_key), critical=False)
    )


def _service_account_keys(pki: Path) -> None:
    private, public = pki / "sa.key", pki / "sa.pub"
    if _load_key(private) and public.exists():
        return
    key = ec.generate_private_key(ec.SECP256R1())
    write_private(private, _key_bytes(key))
    form = serialization.PublicFormat.SubjectPublicKeyInfo
    write_private(public, key.public_key().public_bytes(serialization.Encoding.PEM, form))


def _general_name(text: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(text))
    except ValueError:
        return x509.DNSName(text)


def _is_valid_for(
    certificate: x509.Certificate, ca: x509.Certificate, expected: set[x509.GeneralName]
) -> bool:
    try:
        certificate.verify_directly_issued_by(ca)
    except (ValueError, TypeError, InvalidSignature):
        return False
    if _expires_soon(certificate):
        return False
    try:
        names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except x509.ExtensionNotFound:
        return not expected
    return expected <= set(names)


def _expires_soon(certificate: x509.Certificate) -> bool:
    remaining = certificate.not_valid_after_utc - datetime.datetime.now(datetime.UTC)
    return remaining < datetime.timedelta(days=RENEW_DAYS)


def _load(certificate: Path, key: Path) -> tuple[x509.Certificate, ec.EllipticCurvePrivateKey] | None:
    try:
        loaded = x509.load_pem_x509_certificate(certificate.read_bytes())
    except (FileNotFoundError, ValueError):
        return None
    private = _load_key(key)
    if private is None or private.public_key() != loaded.public_key():
        return None
    return loaded, private


def _load_key(path: Path) -> ec.EllipticCurvePrivateKey | None:
    try:
        key = serialization.load_pem_private_key(path.read_bytes(), password=None)
    except (FileNotFoundError, ValueError):
        return None
    return key if isinstance(key, ec.EllipticCurvePrivateKey) else None


def _key_bytes(key: ec.EllipticCurvePrivateKey) -> bytes:
    form = serialization.PrivateFormat.PKCS8
    return key.private_bytes(serialization.Encoding.PEM, form, serialization.NoEncryption())


def _write_pair(pki: Path, name: str, certificate: x509.Certificate, key: ec.EllipticCurvePrivateKey) -> None:
    write_private(pki / f"{name}.key", _key_bytes(key))
    write_private(pki / f"{name}.crt", certificate.public_bytes(serialization.Encoding.PEM))
