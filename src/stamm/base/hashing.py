"""Well-mixed 64-bit numbers that no library version can change; texts replaced by their hash."""

from __future__ import annotations

import hashlib

import numpy as np
from numpy.typing import NDArray

GOLDEN = np.uint64(0x9E3779B97F4A7C15)  # 2^64 divided by the golden ratio, made odd


def mix64(values: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """A bijection of 64-bit numbers in which every bit depends on every bit.

    Source   the finaliser of SplitMix64 (Steele, Lea and Flood 2014), constants as in Vigna's
             public-domain reference.
    """
    with np.errstate(over="ignore"):
        values = (values ^ (values >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        values = (values ^ (values >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        return values ^ (values >> np.uint64(31))


def splitmix64(values: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """One output step of SplitMix64 for each state in `values`: mix64(value + GOLDEN)."""
    with np.errstate(over="ignore"):
        return mix64(values + GOLDEN)


def redacted(text: str) -> str:
    """Length and SHA-256 of a text, to show in its place."""
    digest = hashlib.sha256(text.encode(errors="surrogatepass")).hexdigest()
    return f"{len(text):,} characters, SHA-256 {digest[:16]}"
