"""Throw-away certificates for tests of TLS servers: one CA, and leaves that it signs."""

import datetime
import ipaddress
from dataclasses import dataclass
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.types import CertificatePublicKeyTypes
from cryptography.x509.oid import NameOID


@dataclass(frozen=True)
class Pair:
    """The files of a certificate and its key."""

    cert: Path
    key: Path


class Authority:
    """A CA in a directory.

    Example:
        >>> Authority(tmp_path, "ca").issue("kube-apiserver-kubelet-client").cert
    """

    def __init__(self, directory: Path, name: str) -> None:
        self._directory = directory
        self._name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        self._key = ec.generate_private_key(ec.SECP256R1())
        certificate = self._builder(self._name, self._key.public_key()).add_extension(
            x509.BasicConstraints(ca=True, path_length=None), critical=True
        )
        self.cert = directory / f"{name}.crt"
        self.cert.write_bytes(self._sign(certificate))

    def issue(self, common_name: str, *, host: str | None = None) -> Pair:
        """Sign a certificate for ``common_name``, valid for 127.0.0.1, or for a host's name in its place."""
        key = ec.generate_private_key(ec.SECP256R1())
        subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common_name)])
        address = x509.IPAddress(ipaddress.ip_address("127.0.0.1"))
        names = x509.SubjectAlternativeName([x509.DNSName(host) if host else address])
        pair = Pair(self._directory / f"{common_name}.crt", self._directory / f"{common_name}.key")
        pair.cert.write_bytes(
            self._sign(self._builder(subject, key.public_key()).add_extension(names, critical=False))
        )
        pair.key.write_bytes(
            key.private_bytes(
                serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
            )
        )
        return pair

    def certify(self, key: CertificatePublicKeyTypes, common_name: str) -> bytes:
        """Sign a certificate for somebody's key, as PEM."""
        subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common_name)])
        return self._sign(self._builder(subject, key))

    def _builder(self, subject: x509.Name, key: CertificatePublicKeyTypes) -> x509.CertificateBuilder:
        now = datetime.datetime.now(datetime.UTC)
        return (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(self._name)
            .public_key(key)
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - datetime.timedelta(minutes=1))
            .not_valid_after(now + datetime.timedelta(days=1))
        )

    def _sign(self, builder: x509.CertificateBuilder) -> bytes:
        return builder.sign(self._key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM)
