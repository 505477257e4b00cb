"""Signs a release: a detached Ed25519 signature of its `guarantee.json`, which names all its files.

The hashes in a release show what was changed by accident; a signature shows who vouches for it. It
lies beside the release's folder, as `<folder>.sig`: 64 bytes, which OpenSSL reads too. Needs the
extra `sign` (the package cryptography).
"""

from __future__ import annotations

import os
from typing import Any

from dpjax import files
from dpjax.tuning import release_files

ENDING = ".sig"
_MAKE = (
    "make a pair with  openssl genpkey -algorithm ed25519 -out private.pem  and  "
    "openssl pkey -in private.pem -pubout -out public.pem"
)


def sign(release: str | os.PathLike[str], private_key: str | os.PathLike[str]) -> str:
    """Signs a release as it is and returns the path of the signature.

    Args:
      release: the folder, its `guarantee.json`, or the run's folder that holds it.
      private_key: path of an Ed25519 key in PEM, not encrypted.
    """
    key = _key(private_key, private=True)
    statement = release_files.statement_in(release)
    path = _beside(statement)
    with files.replacing(path) as partial, open(partial, "wb") as file:
        file.write(key.sign(_content(statement)))
    return path


def check(
    release: str | os.PathLike[str],
    public_key: str | os.PathLike[str],
    signature: str | os.PathLike[str] | None = None,
) -> None:
    """Refuses a release that was not signed, as it is, by the owner of a key.

    Args:
      release: as in `sign`.
      public_key: path of an Ed25519 public key in PEM.
      signature: path of the signature; that beside the release if None.

    Raises:
      release_files.NotVerified: no signature, or one of another statement or key.
    """
    from cryptography.exceptions import InvalidSignature

    key = _key(public_key, private=False)
    statement = release_files.statement_in(release)
    path = os.fspath(_beside(statement) if signature is None else signature)
    try:
        with open(path, "rb") as file:
            signed = file.read(65)
    except OSError:
        raise release_files.NotVerified(f"there is no signature {path}") from None
    try:
        key.verify(signed, _content(statement))
    except InvalidSignature:
        raise release_files.NotVerified(
            f"{path} is not a signature of this statement by {os.fspath(public_key)}"
        ) from None


def _beside(statement: str) -> str:
    return os.path.dirname(os.path.abspath(statement)) + ENDING


def _content(statement: str) -> bytes:
    """Returns the bytes of a statement that are signed."""
    release_files.sealed_claim(statement)  # Nobody vouches for what was changed since.
    with open(statement, "rb") as file:
        return file.read()


def _key(path: str | os.PathLike[str], private: bool) -> Any:
    """Reads an Ed25519 key, private or public, from a PEM file."""
    try:
        from cryptography.hazmat.primitives import serialization
        from cryptography.hazmat.primitives.asymmetric import ed25519
    except ImportError:
        raise ValueError(
            "signatures need an extra: pip install -e '.[sign]' in dpjax's folder"
        ) from None
    path = os.fspath(path)
    try:
        with open(path, "rb") as file:
            content = file.read(1 << 16)
    except OSError as error:
        raise ValueError(f"{path} cannot be read ({error.strerror}): {_MAKE}") from None
    kind = ed25519.Ed25519PrivateKey if private else ed25519.Ed25519PublicKey
    key: Any = None
    try:
        if private:
            key = serialization.load_pem_private_key(content, password=None)
        else:
            key = serialization.load_pem_public_key(content)
    except (TypeError, ValueError):
        pass
    if not isinstance(key, kind):
        which = "private key, unencrypted," if private else "public key"
        raise ValueError(f"{path} is not an Ed25519 {which} in PEM: {_MAKE}")
    return key
