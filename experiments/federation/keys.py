"""Certificates and keys of a federation on one machine, made anew for every run.

A real federation gets the server's certificate from its own authority, and every hospital makes its
own key and hands in the public half alone.
"""

from __future__ import annotations

import base64
import datetime
import hashlib
import ipaddress
import json
import os
import secrets
import time

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, ed25519

_VALID_DAYS = 2


def write_certificates(folder: str) -> dict[str, str]:
    """Writes an authority's certificate, and a certificate and key for 127.0.0.1 and localhost."""
    authority_key, server_key = (ec.generate_private_key(ec.SECP384R1()) for _ in range(2))
    authority_name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "dpjax example")])
    server_name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "localhost")])
    authority = (
        _dated(authority_name, authority_name, authority_key)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_key_usage(key_cert_sign=True, crl_sign=True), critical=True)
        .sign(authority_key, hashes.SHA384())
    )
    alternatives = [
        x509.DNSName("localhost"),
        x509.IPAddress(ipaddress.ip_address("127.0.0.1")),
    ]
    server = (
        _dated(server_name, authority_name, server_key)
        .add_extension(x509.SubjectAlternativeName(alternatives), critical=False)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_key_usage(digital_signature=True), critical=True)
        .add_extension(
            x509.ExtendedKeyUsage([x509.ExtendedKeyUsageOID.SERVER_AUTH]), critical=False
        )
        .add_extension(
            x509.AuthorityKeyIdentifier.from_issuer_public_key(authority_key.public_key()),
            critical=False,
        )
        .sign(authority_key, hashes.SHA384())
    )
    pem = serialization.Encoding.PEM
    contents = {
        "authority": authority.public_bytes(pem),
        "certificate": server.public_bytes(pem),
        "key": server_key.private_bytes(
            pem, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        ),
    }
    return {name: _written(folder, f"{name}.pem", content) for name, content in contents.items()}


def write_node_key(folder: str, name: str) -> tuple[str, str]:
    """A SuperNode's key pair, in OpenSSH's format; returns the paths (private, public)."""
    key = ec.generate_private_key(ec.SECP384R1())
    private = key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.OpenSSH,
        serialization.NoEncryption(),
    )
    public = key.public_key().public_bytes(
        serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH
    )
    return _written(folder, name, private), _written(folder, f"{name}.pub", public)


def write_token(folder: str, name: str) -> str:
    """A secret of 256 random bits, as text; returns its path."""
    return _written(folder, name, secrets.token_urlsafe(32).encode())


def sign_app(folder: str, app: bytes) -> tuple[str, str]:
    """Signs an app, the bundle that Flower sends, by a key that is then forgotten.

    In a real federation whoever has read the app signs it, and every node's owner decides whose
    signature he accepts. Returns the paths of the signatures, for
    `experiments.federation.superlink`, and of what a node accepts, for `--trusted-entities`.
    """
    key = ed25519.Ed25519PrivateKey.generate()
    signer, signed_at, digest = "fpk_example", int(time.time()), hashlib.sha256(app)
    # What Flower's nodes check: the time, eight bytes, and the bundle's hash.
    signature = key.sign(signed_at.to_bytes(8, "big") + digest.digest())
    verification = {
        "signed_at": signed_at,
        "signature": base64.urlsafe_b64encode(signature).decode(),
    }
    signatures = {digest.hexdigest(): {"valid_license": "Valid", signer: json.dumps(verification)}}
    public = key.public_key().public_bytes(
        serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH
    )
    return (
        _written(folder, "signatures.json", json.dumps(signatures).encode()),
        # JSON is YAML.
        _written(folder, "trusted.yaml", json.dumps({signer: public.decode()}).encode()),
    )


def _dated(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePrivateKey
) -> x509.CertificateBuilder:
    now = datetime.datetime.now(datetime.UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(hours=1))
        .not_valid_after(now + datetime.timedelta(days=_VALID_DAYS))
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
    )


def _key_usage(**permitted: bool) -> x509.KeyUsage:
    """What a key may be used for; without it Python 3.13's TLS accepts no authority."""
    uses = (
        *("digital_signature", "content_commitment", "key_encipherment", "data_encipherment"),
        *("key_agreement", "key_cert_sign", "crl_sign", "encipher_only", "decipher_only"),
    )
    return x509.KeyUsage(**{use: permitted.get(use, False) for use in uses})


def _written(folder: str, name: str, content: bytes) -> str:
    """Writes a file that only its owner can read; returns its path."""
    path = os.path.join(folder, name)
    with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
        file.write(content)
    return path
