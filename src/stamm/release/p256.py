"""Proofs of a verifiable random function on the curve P-256, checked with Python's integers alone.

ECVRF-P256-SHA256-TAI. For a public key and a text there is one output, which the owner of the key cannot
choose, and which is as good as random to everyone who has no proof of it.

Source   RFC 9381, 5.3 and 5.4. Jacobian formulas with a = -3: Bernstein and Lange, Explicit-Formulas Database
         (dbl-2001-b, madd)
Checked  tests/unit/release/test_vrf.py: vectors of RFC 9381, B.1, and the script of a release, which computes
         in other coordinates
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator

Point = tuple[int, int]

Q = 0xFFFFFFFF00000000FFFFFFFFFFFFFFFFBCE6FAADA7179E84F3B9CAC2FC632551
"""Number of points."""
G = bytes.fromhex("036B17D1F2E12C4247F8BCE6E563A440F277037D812DEB33A0F4A13945D898C296")
"""The base point, encoded."""
_P = 2**256 - 2**224 + 2**192 + 2**96 - 1
_B = 0x5AC635D8AA3A93E7B3EBBD55769886BC651D06B0CC53B0F63BCE3C3E27D2604B


def proved_output(public: bytes, text: bytes, proof: bytes) -> bytes:
    """The output for `text` that a proof shows, 32 bytes.

    Raises   ValueError when the proof does not hold for the public key
    """
    y, h, gamma = decoded(public), on_curve(public, text), decoded(proof[:33])
    minus_c, s = -int.from_bytes(proof[33:49], "big"), int.from_bytes(proof[49:], "big")
    u = _sum(times(s, decoded(G)), times(minus_c, y))
    v = _sum(times(s, h), times(minus_c, gamma))
    # No honest proof leads to the point at infinity, and few programs can encode it.
    if (
        u is None
        or v is None
        or len(proof) != 81
        or s >= Q
        or challenge(y, h, gamma, u, v) != proof[33:49]
    ):
        raise ValueError("the place of the URL is not proved")
    return gamma[0].to_bytes(32, "big")


def candidates(public: bytes, text: bytes) -> Iterator[bytes]:
    """Octets of which the first that encode a point are the hash of `text` on the curve; one in 2 does."""
    start = hashlib.sha256(b"\1\1" + public + text)
    for count in range(256):
        whole = start.copy()
        whole.update(bytes([count, 0]))
        yield b"\2" + whole.digest()


def on_curve(public: bytes, text: bytes) -> Point:
    """The hash of `text` on the curve, by try and increment."""
    for encoded in candidates(public, text):
        try:
            return decoded(encoded)
        except ValueError:
            continue
    raise no_point()


def no_point() -> ValueError:
    """The error for a text without a hash on the curve: 1 in 2^256."""
    return ValueError("no hash of the URL is a point of the curve")


def decoded(encoded: bytes) -> Point:
    """The point that 33 bytes encode; raises ValueError when they encode none."""
    x = int.from_bytes(encoded[1:], "big")
    square = (x * x * x - 3 * x + _B) % _P
    y = pow(square, (_P + 1) // 4, _P)
    if len(encoded) != 33 or encoded[0] not in (2, 3) or x >= _P or y * y % _P != square:
        raise ValueError("not a point of the curve P-256")
    return x, y if y % 2 == encoded[0] % 2 else _P - y


def octets(point: Point | None) -> bytes:
    """The 33 bytes that encode a point."""
    return b"\0" if point is None else bytes([2 + point[1] % 2]) + point[0].to_bytes(32, "big")


def challenge(*points: Point | None) -> bytes:
    """The challenge of a proof over five points, 16 bytes."""
    return hashlib.sha256(b"\1\2" + b"".join(map(octets, points)) + b"\0").digest()[:16]


def times(k: int, point: Point) -> Point | None:
    """k times a point; None is the point at infinity."""
    total: tuple[int, int, int] | None = None
    for bit in bin(k % Q)[2:]:
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
