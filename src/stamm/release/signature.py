"""Signatures of a released folder with OpenSSF Model Signing, the one user of `model_signing`.

The signature covers every file but itself, SHA256SUMS, which lists the signature, and what git and
the Hub's client leave in a folder.
`model_signing verify key FOLDER --signature FOLDER/model.sig --public_key KEY` checks it without stamm.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from stamm.base.errors import RunError
from stamm.release.checksums import OF_THE_HUB, SUMS
from stamm.release.layout import SIGNATURE


def sign(folder: Path, key: Path) -> None:
    """Write model.sig into `folder`.

    Raises   RunError as `check_key` does.
    """
    check_key(key).set_hashing_config(_hashing()).sign(folder, folder / SIGNATURE)


def check_key(key: Path) -> Any:
    """The signer of a private elliptic-curve key in PEM, without a password.

    Raises   RunError when it cannot sign, or `model_signing` is not installed.
    """
    library = _library()
    try:
        return library.signing.Config().use_elliptic_key_signer(private_key=key)
    except Exception as error:  # the libraries below raise many kinds
        other = isinstance(error, AttributeError)  # a key of another kind has no curve
        raise RunError(
            f"{key} cannot sign: {'it is not an elliptic-curve key' if other else _line(error)}",
            fix="Make a key with `openssl ecparam -name prime256v1 -genkey -noout -out KEY`",
        ) from None


def signature_problem(folder: Path, key: Path) -> Iterator[str]:
    """Yield what is wrong with the signature of a folder; nothing when it holds.

    key   the public key, in PEM
    """
    if not (folder / SIGNATURE).is_file():
        yield "is missing: the folder is not signed"
        return
    library = _library()
    try:
        verifier = library.verifying.Config().use_elliptic_key_verifier(public_key=key)
        verifier.set_hashing_config(_hashing()).verify(folder, folder / SIGNATURE)
    except Exception as error:
        yield f"does not hold for {key}: {_line(error)}"


def _hashing() -> Any:
    """SHA-256 of every file that is signed."""
    # Names in the folder. The library's own list of git's files has some that a release may have.
    ignored = [SIGNATURE, SUMS, *OF_THE_HUB]
    return _library().hashing.Config().set_ignored_paths(paths=ignored, ignore_git_paths=False)


def _library() -> Any:
    try:
        import model_signing
        import model_signing.hashing
        import model_signing.signing
        import model_signing.verifying
    except ImportError as error:
        raise RunError(
            f"a signature needs {error.name}, which is not installed",
            fix='pip install "stamm[sign]"',
        ) from None
    return model_signing


def _line(error: Exception) -> str:
    return " ".join(f"{type(error).__name__} {error}".split())[:400]
