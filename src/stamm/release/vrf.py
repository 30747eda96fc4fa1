"""Verifiable random function of a URL: a place that only the owner of a key computes and everyone can check.

ECVRF-P256-SHA256-TAI. For a public key and a text there is one output, which the owner cannot choose, and
which is as good as random to everyone who has no proof of it.

Source   RFC 9381, 5.1 to 5.4.1.1; nonces by RFC 6979, 3.2. Jacobian formulas with a = -3: Bernstein and
         Lange, Explicit-Formulas Database (dbl-2001-b, madd)
Checked  tests/unit/release/test_vrf.py: vectors of RFC 9381, B.1, and the script of a release, which computes
         in other coordinates
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Iterator
from pathlib import Path

from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec

from stamm.base.errors import RunError

Point = tuple[int, int]

_P = 2**256 - 2**224 + 2**192 + 2**96 - 1
_B = 0x5AC635D8AA3A93E7B3EBBD55769886BC651D06B0CC53B0F63BCE3C3E27D2604B
_Q = 0xFFFFFFFF00000000FFFFFFFFFFFFFFFFBCE6FAADA7179E84F3B9CAC2FC632551
_G = bytes.fromhex("036B17D1F2E12C4247F8BCE6E563A440F277037D812DEB33A0F4A13945D898C296")
_CURVE, _ECDH = ec.SECP256R1(), ec.ECDH()


class SecretKey:
    """A secret key: outputs at 0.1 ms, and proofs of them.

    public   the public key, 33 bytes
    """

    def __init__(self, number: int) -> None:
        self._key = ec.derive_private_key(number, _CURVE)
        self._number = number
        self.public = self._key.public_key().public_bytes(
            serialization.Encoding.X962, serialization.PublicFormat.CompressedPoint
        )

    @classmethod
    def generate(cls) -> SecretKey:
        """A new key from the system's random numbers."""
        return cls(ec.generate_private_key(_CURVE).private_numbers().private_value)

    @classmethod
    def read(cls, path: Path) -> SecretKey:
        """The key in a PEM file without a password.

        Raises   RunError when it is no private key of the curve P-256
        """
        try:
            key = serialization.load_pem_private_key(path.read_bytes(), None)
        except (OSError, ValueError, TypeError) as error:
            raise RunError(f"{path} cannot be read as a private key: {error}") from None
        if not isinstance(key, ec.EllipticCurvePrivateKey) or key.curve.name != _CURVE.name:
            raise RunError(f"{path} is not a private key of the curve P-256")
        return cls(key.private_numbers().private_value)

    def pem(self) -> bytes:
        """The key as PEM, without a password."""
        return self._key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        )

    def output(self, text: bytes) -> bytes:
        """The output for `text`: the first coordinate of gamma, 32 bytes."""
        for octets in _candidates(self.public, text):
            try:
                point = ec.EllipticCurvePublicKey.from_encoded_point(_CURVE, octets)
            except ValueError:
                continue
            return self._key.exchange(_ECDH, point)
        raise _no_point()

    def proof(self, text: bytes) -> bytes:
        """The proof of the output for `text`: gamma, challenge and response, 81 bytes."""
        y, h = _decoded(self.public), _on_curve(self.public, text)
        gamma, k = _times(self._number, h), self._nonce(_octets(h))
        c = _challenge(y, h, gamma, _times(k, _decoded(_G)), _times(k, h))
        s = (k + int.from_bytes(c, "big") * self._number) % _Q
        return _octets(gamma) + c + s.to_bytes(32, "big")

    def _nonce(self, message: bytes) -> int:
        """The nonce of RFC 6979 for SHA-256."""
        digest = int.from_bytes(hashlib.sha256(message).digest(), "big") % _Q
        seed = self._number.to_bytes(32, "big") + digest.to_bytes(32, "big")
        key, value = bytes(32), b"\1" * 32
        for octet in (b"\0", b"\1"):
            key = hmac.digest(key, value + octet + seed, "sha256")
            value = hmac.digest(key, value, "sha256")
        while True:
            value = hmac.digest(key, value, "sha256")
            if 0 < (k := int.from_bytes(value, "big")) < _Q:
                return k
            key = hmac.digest(key, value + b"\0", "sha256")
            value = hmac.digest(key, value, "sha256")


def proved_output(public: bytes, text: bytes, proof: bytes) -> bytes:
    """The output for `text` that a proof shows, 32 bytes.

    Raises   ValueError when the proof does not hold for the public key
    """
    y, h, gamma = _decoded(public), _on_curve(public, text), _decoded(proof[:33])
    minus_c, s = -int.from_bytes(proof[33:49], "big"), int.from_bytes(proof[49:], "big")
    u = _sum(_times(s, _decoded(_G)), _times(minus_c, y))
    v = _sum(_times(s, h), _times(minus_c, gamma))
    if len(proof) != 81 or s >= _Q or _challenge(y, h, gamma, u, v) != proof[33:49]:
        raise ValueError("the place of the URL is not proved")
    return gamma[0].to_bytes(32, "big")


def _candidates(public: bytes, text: bytes) -> Iterator[bytes]:
    """Octets of which the first that encode a point are the hash of `text` on the curve; one in 2 does."""
    start = hashlib.sha256(b"\1\1" + public + text)
    for count in range(256):
        whole = start.copy()
        whole.update(bytes([count, 0]))
        yield b"\2" + whole.digest()


def _on_curve(public: bytes, text: bytes) -> Point:
    for octets in _candidates(public, text):
        try:
            return _decoded(octets)
        except ValueError:
            continue
    raise _no_point()


def _no_point() -> ValueError:
    return ValueError("no hash of the URL is a point of the curve")  # 1 in 2^256


def _decoded(octets: bytes) -> Point:
    """The point that 33 bytes encode; raises ValueError when they encode none."""
    x = int.from_bytes(octets[1:], "big")
    square = (x * x * x - 3 * x + _B) % _P
    y = pow(square, (_P + 1) // 4, _P)
    if len(octets) != 33 or octets[0] not in (2, 3) or x >= _P or y * y % _P != square:
        raise ValueError("not a point of the curve P-256")
    return x, y if y % 2 == octets[0] % 2 else _P - y


def _octets(point: Point | None) -> bytes:
    return b"\0" if point is None else bytes([2 + point[1] % 2]) + point[0].to_bytes(32, "big")


def _challenge(*points: Point | None) -> bytes:
    return hashlib.sha256(b"\1\2" + b"".join(map(_octets, points)) + b"\0").digest()[:16]


def _times(k: int, point: Point) -> Point | None:
    total: tuple[int, int, int] | None = None
    for bit in bin(k % _Q)[2:]:
        total = _doubled(total)
        if bit == "1":
            total = _added(total, point)
    return _affine(total)


def _sum(p: Point | None, q: Point | None) -> Point | None:
    if p is None or q is None:
        return p or q
    return _affine(_added((*p, 1), q))


def _affine(total: tuple[int, int, int] | None) -> Point | None:
    if total is None:
        return None
    inverse = pow(total[2], -1, _P)
    square = inverse * inverse % _P
    return total[0] * square % _P, total[1] * square * inverse % _P


def _doubled(p: tuple[int, int, int] | None) -> tuple[int, int, int] | None:
    if p is None:
        return None
    x, y, z = p
    delta, gamma = z * z % _P, y * y % _P
    beta, alpha = x * gamma % _P, 3 * (x - delta) * (x + delta) % _P
    doubled = (alpha * alpha - 8 * beta) % _P
    rest = (alpha * (4 * beta - doubled) - 8 * gamma * gamma) % _P
    return doubled, rest, ((y + z) ** 2 - gamma - delta) % _P


def _added(p: tuple[int, int, int] | None, q: Point) -> tuple[int, int, int] | None:
    if p is None:
        return (*q, 1)
    square = p[2] * p[2] % _P
    h, r = (q[0] * square - p[0]) % _P, (q[1] * square * p[2] - p[1]) % _P
    if not h:
        return _doubled(p) if not r else None
    square = h * h % _P
    cube, v = h * square % _P, p[0] * square % _P
    x = (r * r - cube - 2 * v) % _P
    return x, (r * (v - x) - p[1] * cube) % _P, p[2] * h % _P
