"""Read a GGUF file: metadata, and tensors as float32. Every count and offset is checked against its size.

Source   https://github.com/ggml-org/ggml/blob/master/docs/gguf.md; gguf_init_from_file in ggml/src/gguf.cpp
Checked  tests/unit/export/test_gguf_import.py, against the package gguf and damaged files
"""

from __future__ import annotations

import math
import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from stamm.base.errors import DataError, visible

_NUMBERS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}  # fmt: skip
_TEXT, _ARRAY = 8, 9  # enum gguf_type
_BLOCKS = {"F32": (1, 4), "F16": (1, 2), "BF16": (1, 2), "Q8_0": (32, 34)}
"""Weights and bytes of a block, of the types that are read."""
_TYPES = {
    0: "F32", 1: "F16", 2: "Q4_0", 3: "Q4_1", 6: "Q5_0", 7: "Q5_1", 8: "Q8_0", 10: "Q2_K", 11: "Q3_K",
    12: "Q4_K", 13: "Q5_K", 14: "Q6_K", 16: "IQ2_XXS", 17: "IQ2_XS", 18: "IQ3_XXS", 19: "IQ1_S",
    20: "IQ4_NL", 21: "IQ3_S", 22: "IQ2_S", 23: "IQ4_XS", 30: "BF16", 39: "MXFP4",
}  # fmt: skip
"""Names of enum ggml_type."""
_ALIGNMENT, _MOST_ALIGNMENT = "general.alignment", 1 << 16

GgufValue = int | float | bool | str | Sequence[int | float] | Sequence[str]


@dataclass(frozen=True, kw_only=True)
class GgufTensor:
    """A tensor in a GGUF file.

    shape   as torch has it, rows first
    start   its first byte in the file, of `size` bytes
    """

    type: str
    shape: tuple[int, ...]
    start: int
    size: int


class GgufReader:
    """An open GGUF file.

    metadata   by key
    tensors    by name, in the order of the file

    Raises   DataError for a file that is damaged, or has a tensor of another type than _BLOCKS.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            self._bytes = np.memmap(path, np.uint8, mode="r").data
        except (OSError, ValueError) as error:
            raise DataError(f"{path} cannot be read: {error}") from None
        self._offset = 0
        self.metadata: dict[str, GgufValue] = {}
        self.tensors: dict[str, GgufTensor] = {}
        try:
            self._read_header()
        except UnicodeDecodeError:
            raise self._damaged("text in its header is not UTF-8") from None

    def read(self, name: str) -> Tensor:
        """The tensor `name`, float32, dequantized; a copy."""
        entry = self.tensors[name]
        raw = np.frombuffer(self._bytes[entry.start : entry.start + entry.size], np.uint8)
        return torch.from_numpy(_DECODE[entry.type](raw).reshape(entry.shape))

    def _read_header(self) -> None:
        if bytes(self._take(4)) != b"GGUF":
            raise self._damaged("it does not begin with GGUF")
        version = self._number("I")
        if version in (2 << 24, 3 << 24):
            raise DataError(
                f"{self.path} is big-endian, which is not read", fix="Use a little-endian file"
            )
        if version not in (2, 3):
            raise DataError(f"{self.path} has GGUF version {version}; 2 and 3 are read")
        num_tensors, num_keys = self._number("Q"), self._number("Q")
        for _ in range(num_keys):
            key = self._text()
            if key in self.metadata:
                raise self._damaged(f"the key {key[:80]!r} occurs twice")
            self.metadata[key] = self._value(self._number("I"))
        infos = [self._tensor_info() for _ in range(num_tensors)]
        self._place_tensors(infos)

    def _place_tensors(self, infos: list[tuple[str, str, tuple[int, ...], int, int]]) -> None:
        """Check that tensors follow one another without gaps, as llama.cpp demands, up to the end."""
        alignment = self.metadata.get(_ALIGNMENT, 32)
        if not (isinstance(alignment, int) and 0 < alignment <= _MOST_ALIGNMENT):
            raise self._damaged(f"{_ALIGNMENT} is {visible(str(alignment), 80)}")
        first, expected = -(-self._offset // alignment) * alignment, 0
        for name, kind, shape, size, offset in infos:
            shown = name[:80]
            if name in self.tensors:
                raise self._damaged(f"the tensor {shown!r} occurs twice")
            if offset != expected:
                raise self._damaged(f"the tensor {shown!r} is at {offset} instead of {expected}")
            start = first + offset
            if start + size > len(self._bytes):
                raise self._damaged(f"it ends within the tensor {shown!r}")
            self.tensors[name] = GgufTensor(type=kind, shape=shape, start=start, size=size)
            expected += -(-size // alignment) * alignment

    def _tensor_info(self) -> tuple[str, str, tuple[int, ...], int, int]:
        name, dims = self._text(), self._number("I")
        if not 1 <= dims <= 4:
            raise self._damaged(f"the tensor {name[:80]!r} has {dims} dimensions")
        shape = tuple(self._number("Q") for _ in range(dims))
        kind, offset = self._number("I"), self._number("Q")
        named = _TYPES.get(kind, f"number {kind}")
        if named not in _BLOCKS:
            raise DataError(
                f"{self.path} has tensors of type {named}; {', '.join(_BLOCKS)} are read",
                fix="Use the model's file of one of these types",
            )
        weights, size = _BLOCKS[named]
        if 0 in shape or shape[0] % weights:
            raise self._damaged(f"the tensor {name[:80]!r} has the shape {shape}")
        return name, named, shape[::-1], math.prod(shape) // weights * size, offset

    def _value(self, kind: int) -> GgufValue:
        if kind in _NUMBERS:
            return self._number(_NUMBERS[kind])
        if kind == _TEXT:
            return self._text()
        if kind != _ARRAY:
            raise self._damaged(f"a value in its header has the type {kind}")
        inner, count = self._number("I"), self._number("Q")
        if inner == _TEXT:
            return [self._text() for _ in range(count)]
        if inner not in _NUMBERS:
            raise self._damaged(f"an array in its header has elements of type {inner}")
        code = "<" + _NUMBERS[inner]
        numbers: list[int | float] = np.frombuffer(
            self._take(count * struct.calcsize(code)), code
        ).tolist()
        return numbers

    def _text(self) -> str:
        return bytes(self._take(self._number("Q"))).decode("utf-8")

    def _number(self, code: str) -> int:
        """A number; the caller of a float or bool knows its type."""
        number: int
        (number,) = struct.unpack(f"<{code}", self._take(struct.calcsize(f"<{code}")))
        return number

    def _take(self, count: int) -> memoryview:
        if count > len(self._bytes) - self._offset:
            raise self._damaged("it ends within its header")
        taken = self._bytes[self._offset : self._offset + count]
        self._offset += count
        return taken

    def _damaged(self, why: str) -> DataError:
        return DataError(f"{self.path} is not a GGUF file or is damaged: {why}")


def _bfloat16(raw: np.ndarray) -> np.ndarray:
    return (raw.view("<u2").astype(np.uint32) << 16).view(np.float32)


def _q8_0(raw: np.ndarray) -> np.ndarray:
    """Blocks of a float16 scale and 32 int8."""
    blocks = raw.reshape(-1, 34)
    scales = blocks[:, :2].copy().view("<f2").astype(np.float32)
    return scales * blocks[:, 2:].view(np.int8)


_DECODE: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "F32": lambda raw: raw.view("<f4").astype(np.float32),
    "F16": lambda raw: raw.view("<f2").astype(np.float32),
    "BF16": _bfloat16,
    "Q8_0": _q8_0,
}
