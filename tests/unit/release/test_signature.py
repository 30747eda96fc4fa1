"""Signatures of a release."""

from __future__ import annotations

from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
)

from stamm.base.errors import RunError
from stamm.release.checksums import write_sums
from stamm.release.signature import check_key, sign
from stamm.release.verify import verify

pytest.importorskip("model_signing")


def key_pair(folder: Path, name: str) -> tuple[Path, Path]:
    """Files of a private key and its public key."""
    key = ec.generate_private_key(ec.SECP256R1())
    private, public = folder / f"{name}.pem", folder / f"{name}.pub"
    private.write_bytes(key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
    public.write_bytes(
        key.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
    )
    return private, public


def test_a_signature_holds_for_its_key_and_its_bytes(released: Path, tmp_path: Path) -> None:
    private, public = key_pair(tmp_path, "mine")
    _, other = key_pair(tmp_path, "other")
    assert [p.what for p in verify(released, public)] == ["is missing: the folder is not signed"]
    sign(released, private)
    write_sums(released)
    assert not list(verify(released, public))
    assert [problem.file for problem in verify(released, other)] == ["model.sig"]
    # Someone changes a file and makes SHA256SUMS again: the hashes hold, the signature does not.
    (released / "samples.json").write_text("{}")
    write_sums(released)
    assert not list(verify(released))
    assert [problem.file for problem in verify(released, public)] == ["model.sig"]


def test_a_release_from_the_hub_holds(released: Path, tmp_path: Path) -> None:
    """Its client leaves files in .cache/huggingface, and the Hub adds .gitattributes."""
    private, public = key_pair(tmp_path, "mine")
    sign(released, private)
    write_sums(released)
    left = released / ".cache" / "huggingface" / "download"
    left.mkdir(parents=True)
    (left / "config.json.metadata").write_text("0" * 40)
    (left.parent / ".gitignore").write_text("*")
    (released / ".gitattributes").write_text("*.safetensors filter=lfs")
    assert not list(verify(released, public))
    # Beside them nothing is left out.
    (released / ".cache" / "code.py").write_text("x")
    write_sums(released)
    assert [problem.file for problem in verify(released, public)] == ["model.sig"]


def test_a_release_in_a_relative_folder_is_signed(
    released: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    private, public = key_pair(tmp_path, "mine")
    monkeypatch.chdir(released.parent)
    relative = Path(released.name)
    sign(relative, private)
    write_sums(relative)
    assert not list(verify(relative, public))
    monkeypatch.chdir(tmp_path)
    assert not list(verify(released, public))


def test_a_flipped_byte_of_the_signature_is_found_without_the_key(
    released: Path, tmp_path: Path
) -> None:
    sign(released, key_pair(tmp_path, "mine")[0])
    write_sums(released)
    signature = released / "model.sig"
    content = bytearray(signature.read_bytes())
    content[len(content) // 2] ^= 1
    signature.write_bytes(content)
    assert [problem.file for problem in verify(released)] == ["model.sig"]


def test_a_key_that_cannot_sign_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "key.pem").write_text("not a key")
    for key in (tmp_path / "key.pem", tmp_path / "none.pem", key_pair(tmp_path, "a")[1]):
        with pytest.raises(RunError, match="cannot sign"):
            check_key(key)


def test_a_key_of_another_kind_is_named(tmp_path: Path) -> None:
    key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
    pem = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    (tmp_path / "rsa.pem").write_bytes(pem)
    with pytest.raises(RunError, match=r"rsa\.pem cannot sign: it is not an elliptic-curve key"):
        check_key(tmp_path / "rsa.pem")
