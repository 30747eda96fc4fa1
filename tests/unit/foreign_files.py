"""Files in the layout of Megatron, written byte by byte without any of our code."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from pathlib import Path

# The letter by which the struct module writes each type, by Megatron's code.
LETTERS = {1: "B", 2: "b", 3: "h", 4: "i", 5: "q", 6: "d", 7: "f", 8: "H"}


def write_foreign(
    stem: Path,
    documents: Sequence[Sequence[Sequence[float]]],
    code: int = 4,
    modes: bool = False,
) -> Path:
    """Documents of sequences of tokens as `stem`.bin and `stem`.idx; `stem`."""
    sequences = [sequence for document in documents for sequence in document]
    borders = [0]
    for document in documents:
        borders.append(borders[-1] + len(document))
    letter = LETTERS[code]
    size = struct.calcsize("<" + letter)
    number = float if code in (6, 7) else int
    tokens = [number(token) for sequence in sequences for token in sequence]
    stem.with_name(stem.name + ".bin").write_bytes(struct.pack(f"<{len(tokens)}{letter}", *tokens))
    lengths = [len(sequence) for sequence in sequences]
    offsets = [sum(lengths[:i]) * size for i in range(len(lengths))]
    stem.with_name(stem.name + ".idx").write_bytes(
        b"MMIDIDX\x00\x00"
        + struct.pack("<Q", 1)
        + struct.pack("<B", code)
        + struct.pack("<Q", len(sequences))
        + struct.pack("<Q", len(borders))
        + struct.pack(f"<{len(lengths)}i", *lengths)
        + struct.pack(f"<{len(offsets)}q", *offsets)
        + struct.pack(f"<{len(borders)}q", *borders)
        + (struct.pack(f"<{len(lengths)}b", *[0] * len(lengths)) if modes else b"")
    )
    return stem
