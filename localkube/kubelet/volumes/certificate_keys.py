"""Keys of pods' certificates, by the types that a ``podCertificate`` projection may name."""

from collections.abc import Mapping
from typing import Any

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa

from localkube.kubelet.containers.expansion import ConfigError

CURVES: Mapping[str, tuple[ec.EllipticCurve, hashes.HashAlgorithm]] = {
    "ECDSAP256": (ec.SECP256R1(), hashes.SHA256()),
    "ECDSAP384": (ec.SECP384R1(), hashes.SHA384()),
    "ECDSAP521": (ec.SECP521R1(), hashes.SHA512()),
}
RSA_BITS = {"RSA3072": 3072, "RSA4096": 4096}


def key_and_request(kind: str) -> tuple[bytes, bytes]:
    """Create a key, as PEM, and the PKCS #10 request that proves its possession, as DER.

    Raises:
        ConfigError: The type is not known.
    """
    key: rsa.RSAPrivateKey | ec.EllipticCurvePrivateKey | ed25519.Ed25519PrivateKey
    algorithm: Any = hashes.SHA256()
    if kind in CURVES:
        curve, algorithm = CURVES[kind]
        key = ec.generate_private_key(curve)
    elif kind in RSA_BITS:
        key = rsa.generate_private_key(public_exponent=65537, key_size=RSA_BITS[kind])
    elif kind == "ED25519":
        key, algorithm = ed25519.Ed25519PrivateKey.generate(), None
    else:
        raise ConfigError(f'unknown key type "{kind}"')
    encoding, form = serialization.Encoding, serialization.PrivateFormat.PKCS8
    stub = x509.CertificateSigningRequestBuilder(subject_name=x509.Name([])).sign(key, algorithm)
    return (
        key.private_bytes(encoding.PEM, form, serialization.NoEncryption()),
        stub.public_bytes(encoding.DER),
    )
