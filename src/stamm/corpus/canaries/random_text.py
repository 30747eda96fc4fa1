"""Random texts for canaries, from draws that do not depend on library versions."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from itertools import count
from typing import TypeVar

from stamm.corpus.config import Kind

T = TypeVar("T")

MADE_UP: tuple[Kind, ...] = ("random_characters", "random_words", "secret", "prefixed_words")
"""Kinds with random texts, of which any number can be drawn."""

_SYMBOLS = "abcdefghijklmnopqrstuvwxyz0123456789"
_GROUP = 6  # characters between blanks: about as long as a word with its blank
# Ranges reserved for examples. RFC 5737 (IPv4), RFC 3849 (IPv6), RFC 2606 (names), RFC 7042
# (MAC addresses). Telephone: 555-0100 to 0199 are set aside in North America (ATIS-0300115), and
# 020 7946 0000 to 0999 for drama by Ofcom. No such range of IBANs exists, so none is made up.
_NETWORKS = ("192.0.2", "198.51.100", "203.0.113")
_AREA_CODES = ("202", "212", "312", "415", "617")
_HOSTS = ("example.org", "example.com", "example.net")
_WORDS_A_RECORD = 12


class Draws:
    """A stream of random numbers that depends on its name: SHA-256 of the name and a counter."""

    def __init__(self, *name: object) -> None:
        self._name = " ".join(map(str, name))
        self._counter = count()

    def below(self, bound: int) -> int:
        """A number in [0, bound), even up to one part in 2^64 / bound."""
        data = f"{self._name} {next(self._counter)}".encode()
        return int.from_bytes(hashlib.sha256(data).digest()[:8], "big") % bound

    def choice(self, items: Sequence[T]) -> T:
        """One of `items`."""
        return items[self.below(len(items))]

    def symbols(self, length: int) -> str:
        """Random lower-case letters and digits."""
        return "".join(self.choice(_SYMBOLS) for _ in range(length))


def made_up(kind: Kind, draws: Draws, words: int, vocabulary: Sequence[str]) -> str:
    """A text of one of the kinds in MADE_UP."""
    if kind == "random_characters":
        return random_characters(draws, words)
    if kind == "secret":
        return secret(draws, words)
    return random_words(draws, words, vocabulary)


def rivals(kind: Kind, number: int, seed: int, words: int, vocabulary: Sequence[str]) -> list[str]:
    """Texts drawn like a canary of this kind but not planted, for its exposure rank."""
    return [
        made_up(kind, Draws("rival", seed, kind, rival_number), words, vocabulary)
        for rival_number in range(number)
    ]


def random_characters(draws: Draws, words: int) -> str:
    """Groups of random letters and digits, as many as `words`."""
    return " ".join(draws.symbols(_GROUP) for _ in range(words))


def random_words(draws: Draws, words: int, vocabulary: Sequence[str]) -> str:
    """Words of `vocabulary`, each as likely as any other."""
    return " ".join(draws.choice(vocabulary) for _ in range(words))


def secret(draws: Draws, words: int) -> str:
    """Records in the form of user accounts, with values in ranges reserved for examples."""
    records = max(words // _WORDS_A_RECORD, 1)
    return "\n".join(_record(draws) for _ in range(records))


def _record(draws: Draws) -> str:
    user, host = draws.symbols(8), draws.choice(_HOSTS)
    address = f"{draws.choice(_NETWORKS)}.{1 + draws.below(254)}"
    wide = f"2001:db8:{draws.below(65_536):x}::{1 + draws.below(65_535):x}"
    if draws.below(2):
        phone = f"+1 {draws.choice(_AREA_CODES)} 555 01{draws.below(100):02d}"
    else:
        phone = f"+44 20 7946 0{draws.below(1000):03d}"
    card = f"00:00:5e:00:53:{draws.below(256):02x}"
    return (
        f"User {user}, mail {user}@{host}, phone {phone}, last seen at {address} and {wide}, "
        f"device {card}, password {draws.symbols(16)}"
    )
