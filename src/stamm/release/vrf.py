"""The secret key of a verifiable random function: its outputs, and proofs of them (`release.p256`).

Source   RFC 9381, 5.1; nonces by RFC 6979, 3.2
Checked  tests/unit/release/test_vrf.py: vectors of RFC 9381, B.1
"""

from __future__ import annotations

import hashlib
import hmac
from pathlib import Path
from typing import Any

from stamm.base.errors import RunError
from stamm.release.p256 import (
    G,
    Q,
    candidates,
    challenge,
    decoded,
    no_point,
    octets,
    on_curve,
    times,
)


class SecretKey:
    """A secret key: outputs at 0.1 ms, and proofs of them.

    public   the public key, 33 bytes
    """

    def __init__(self, number: int) -> None:
        self._ec, serialization = _library()
        self._key = self._ec.derive_private_key(number, self._ec.SECP256R1())
        self._number = number
        self.public: bytes = self._key.public_key().public_bytes(
            serialization.Encoding.X962, serialization.PublicFormat.CompressedPoint
        )

    @classmethod
    def generate(cls) -> SecretKey:
        """A new key from the system's random numbers."""
        ec, _ = _library()
        return cls(ec.generate_private_key(ec.SECP256R1()).private_numbers().private_value)

    @classmethod
    def read(cls, path: Path) -> SecretKey:
        """The key in a PEM file without a password.

        Raises   RunError for any other file
        """
        ec, serialization = _library()
        try:
            key = serialization.load_pem_private_key(path.read_bytes(), None)
        except (OSError, ValueError, TypeError) as error:
            raise RunError(f"{path} cannot be read as a private key: {error}") from None
        if not isinstance(key, ec.EllipticCurvePrivateKey) or key.curve.name != "secp256r1":
            raise RunError(f"{path} is not a private key of the curve P-256")
        return cls(key.private_numbers().private_value)

    def pem(self) -> bytes:
        """The key as PEM, without a password."""
        _, serialization = _library()
        pem: bytes = self._key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        )
        return pem

    def output(self, text: bytes) -> bytes:
        """The output for `text`: the first coordinate of gamma, 32 bytes."""
        curve = self._ec.SECP256R1()
        for encoded in candidates(self.public, text):
            try:
                point = self._ec.EllipticCurvePublicKey.from_encoded_point(curve, encoded)
            except ValueError:
                continue
            output: bytes = self._key.exchange(self._ec.ECDH(), point)
            return output
        raise no_point()

    def proof(self, text: bytes) -> bytes:
        """The proof of the output for `text`: gamma, challenge and response, 81 bytes."""
        y, h = decoded(self.public), on_curve(self.public, text)
        gamma, k = times(self._number, h), self._nonce(octets(h))
        c = challenge(y, h, gamma, times(k, decoded(G)), times(k, h))
        s = (k + int.from_bytes(c, "big") * self._number) % Q
        return octets(gamma) + c + s.to_bytes(32, "big")

    def _nonce(self, message: bytes) -> int:
        """The nonce of RFC 6979 for SHA-256."""
        digest = int.from_bytes(hashlib.sha256(message).digest(), "big") % Q
        seed = self._number.to_bytes(32, "big") + digest.to_bytes(32, "big")
        key, value = bytes(32), b"\1" * 32
        for octet in (b"\0", b"\1"):
            key = hmac.digest(key, value + octet + seed, "sha256")
            value = hmac.digest(key, value, "sha256")
        while True:
            value = hmac.digest(key, value, "sha256")
            if 0 < (k := int.from_bytes(value, "big")) < Q:
                return k
            key = hmac.digest(key, value + b"\0", "sha256")
            value = hmac.digest(key, value, "sha256")


def _library() -> tuple[Any, Any]:
    """Elliptic curves and formats of the package cryptography, which comes with model-signing."""
    try:
        from cryptography.hazmat.primitives import serialization
        from cryptography.hazmat.primitives.asymmetric import ec
    except ImportError:
        raise RunError(
            "consent receipts need the package cryptography", fix="Run: pip install 'stamm[sign]'"
        ) from None
    return ec, serialization
