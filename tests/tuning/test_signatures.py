"""Detached signatures: who vouches for a release."""

import pathlib
import shutil
import subprocess

import pytest

from dpjax.tuning import signatures, verification

pytest.importorskip("cryptography")
FROZEN = pathlib.Path(__file__).parents[1] / "frozen" / "random_repetitions_plain"


def make_keys(folder, name):
    from cryptography.hazmat.primitives import serialization
    from cryptography.hazmat.primitives.asymmetric import ed25519

    key, pem = ed25519.Ed25519PrivateKey.generate(), serialization.Encoding.PEM
    (folder / f"{name}.pem").write_bytes(
        key.private_bytes(pem, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    )
    (folder / f"{name}.pub").write_bytes(
        key.public_key().public_bytes(pem, serialization.PublicFormat.SubjectPublicKeyInfo)
    )


@pytest.fixture
def signed(tmp_path):
    shutil.copytree(FROZEN, tmp_path / "release")
    make_keys(tmp_path, "ours")
    make_keys(tmp_path, "theirs")
    assert signatures.sign(tmp_path, tmp_path / "ours.pem") == str(tmp_path / "release.sig")
    return tmp_path


def test_the_owner_of_the_key_signed_it_and_nobody_else(signed):
    signatures.check(signed, signed / "ours.pub")
    verification.verify_release(signed)  # The release's own folder is as it was.
    with pytest.raises(verification.NotVerified, match="not a signature of this statement by"):
        signatures.check(signed, signed / "theirs.pub")


def test_a_changed_statement_another_signature_and_none_are_refused(signed):
    (signed / "release.sig").rename(signed / "mine.sig")
    with pytest.raises(verification.NotVerified, match="there is no signature"):
        signatures.check(signed, signed / "ours.pub")
    signatures.check(signed, signed / "ours.pub", signed / "mine.sig")
    for odd in (b"", b"x" * 64, (signed / "mine.sig").read_bytes() + b"x"):
        (signed / "odd.sig").write_bytes(odd)
        with pytest.raises(verification.NotVerified, match="not a signature of this statement"):
            signatures.check(signed, signed / "ours.pub", signed / "odd.sig")
    statement = signed / "release" / "guarantee.json"
    statement.write_text(statement.read_text().replace('"private": true', '"private": true '))
    with pytest.raises(verification.NotVerified, match="not a signature of this statement"):
        signatures.check(signed, signed / "ours.pub", signed / "mine.sig")


def test_what_is_no_key_is_refused_with_how_to_make_one(signed):
    for path, why in (("nowhere", "cannot be read"), ("ours.pub", "not an Ed25519 private key")):
        with pytest.raises(ValueError, match=f"{why}.*openssl genpkey"):
            signatures.sign(signed, signed / path)
    with pytest.raises(ValueError, match="not an Ed25519 public key"):
        signatures.check(signed, signed / "ours.pem")


@pytest.mark.skipif(shutil.which("openssl") is None, reason="needs openssl")
def test_openssl_reads_the_signature_too(signed):
    verified = subprocess.run(
        ["openssl", "pkeyutl", "-verify", "-pubin", "-rawin", "-inkey", "ours.pub"]
        + ["-in", "release/guarantee.json", "-sigfile", "release.sig"],
        cwd=signed,
        capture_output=True,
    )
    assert verified.returncode == 0, verified.stdout + verified.stderr
