"""Differences between two files: tensors by name, keys of JSON, or bytes."""

from __future__ import annotations

import json
import struct
from collections.abc import Iterable, Mapping
from pathlib import Path

import numpy as np

from stamm.base.errors import DataError, visible
from stamm.base.files import read_json
from stamm.base.json_text import parse_json
from stamm.export.gguf_reader import GgufReader

Spans = Mapping[str, tuple[int, int]]
"""First byte and stop of each tensor in a file."""

_SHOWN = 4
_BLOCK = 1 << 22
_LONGEST_HEADER = 100 * 2**20


def difference(released: Path, derived: Path) -> str:
    """Difference between a released file and the one derived again, as text; "" for equal bytes."""
    if not released.is_file() or not derived.is_file():
        return "it is missing" if derived.is_file() else "nothing writes it"
    first, count = _different_bytes(released, derived)
    if not count:
        return ""
    sizes = (released.stat().st_size, derived.stat().st_size)
    size = "" if sizes[0] == sizes[1] else f", {sizes[0]} bytes instead of {sizes[1]}"
    try:
        match released.suffix:
            case ".safetensors":
                named = _tensors(released, derived, *map(safetensors_tensors, (released, derived)))
            case ".gguf":
                named = _gguf(released, derived)
            case ".json":
                named = _keys(read_json(released), read_json(derived))
            case _:
                named = ""
    except (DataError, ValueError, struct.error) as error:
        named = f"it cannot be read: {visible(str(error), 200)}"
    return f"{named or 'bytes'}, {count} bytes from {first} on{size}"


def safetensors_tensors(path: Path) -> dict[str, tuple[int, int]]:
    """First byte and stop of each tensor of a safetensors file.

    Raises   DataError for a damaged header
    """
    with path.open("rb") as file:
        (length,) = struct.unpack("<Q", file.read(8))
        if length > min(_LONGEST_HEADER, path.stat().st_size):
            raise DataError(f"{path} has a header of {length} bytes")
        header = parse_json(file.read(length))
    try:
        spans = {
            name: (
                8 + length + int(entry["data_offsets"][0]),
                8 + length + int(entry["data_offsets"][1]),
            )
            for name, entry in header.items()
            if name != "__metadata__"
        }
    except (KeyError, TypeError, AttributeError, IndexError):
        raise DataError(f"{path} has a damaged header") from None
    return spans


def _different_bytes(a: Path, b: Path) -> tuple[int, int]:
    """Place of the first differing byte, and the number of all."""
    first, count, at = -1, 0, 0
    with a.open("rb") as left, b.open("rb") as right:
        while True:
            x, y = left.read(_BLOCK), right.read(_BLOCK)
            if not x and not y:
                return max(first, 0), count
            if x != y:
                common = min(len(x), len(y))
                apart = np.flatnonzero(
                    np.frombuffer(x[:common], np.uint8) != np.frombuffer(y[:common], np.uint8)
                )
                if first < 0:
                    first = at + (int(apart[0]) if len(apart) else common)
                count += len(apart) + abs(len(x) - len(y))
            at += _BLOCK


def _gguf(released: Path, derived: Path) -> str:
    a, b = GgufReader(released), GgufReader(derived)
    spans = [
        {name: (t.start, t.start + t.size) for name, t in reader.tensors.items()}
        for reader in (a, b)
    ]
    named = _tensors(released, derived, *spans)
    keys = _keys(dict(a.metadata), dict(b.metadata))
    return ", ".join(filter(None, (named, keys)))


def _tensors(released: Path, derived: Path, a: Spans, b: Spans) -> str:
    """Names of tensors that differ, or that only one file has."""
    names = []
    left, right = (np.memmap(path, np.uint8, "r") for path in (released, derived))
    for name in sorted(a.keys() | b.keys()):
        if name not in a or name not in b:
            names.append(name)
            continue
        x, y = left[slice(*a[name])], right[slice(*b[name])]
        if len(x) != len(y) or not np.array_equal(x, y):
            names.append(name)
    return _listed("tensor", names)


def _keys(a: object, b: object) -> str:
    """Top-level keys of two JSON objects that differ."""
    if not isinstance(a, dict) or not isinstance(b, dict):
        return ""
    return _listed(
        "key",
        sorted(
            key
            for key in a.keys() | b.keys()
            if key not in a or key not in b or _text(a[key]) != _text(b[key])
        ),
    )


def _text(value: object) -> str:
    return json.dumps(value, sort_keys=True, default=str)


def _listed(what: str, names: Iterable[str]) -> str:
    names = list(names)
    if not names:
        return ""
    more = f" and {len(names) - _SHOWN} more" * (len(names) > _SHOWN)
    plural = "s" * (len(names) > 1)
    return f"{what}{plural} {', '.join(visible(name, 80) for name in names[:_SHOWN])}{more}"
