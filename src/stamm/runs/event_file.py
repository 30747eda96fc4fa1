"""Writer of TensorBoard event files, without TensorBoard.

A file is a sequence of records: length, checksum of the length, an Event, checksum of the Event. An
Event is a protocol buffer; four of its fields are used here.

Source   tensorflow/core/lib/io/record_writer.h (layout and masked CRC-32C), core/util/event.proto
         and core/framework/summary.proto (field numbers)
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from pathlib import Path

_POLYNOMIAL = 0x82F63B78  # CRC-32C (Castagnoli), reflected


def _table() -> tuple[int, ...]:
    rows = []
    for row in range(256):
        for _ in range(8):
            row = (row >> 1) ^ (_POLYNOMIAL if row & 1 else 0)
        rows.append(row)
    return tuple(rows)


_ROWS = _table()


def crc32c(data: bytes) -> int:
    """CRC-32C of `data`: 0xE3069283 for b"123456789" (RFC 3720, appendix B.4 has more)."""
    crc = 0xFFFFFFFF
    for byte in data:
        crc = _ROWS[(crc ^ byte) & 0xFF] ^ (crc >> 8)
    return crc ^ 0xFFFFFFFF


def _masked(data: bytes) -> bytes:
    crc = crc32c(data)
    return struct.pack("<I", (((crc >> 15) | (crc << 17)) + 0xA282EAD8) & 0xFFFFFFFF)


def _varint(value: int) -> bytes:
    """A non-negative integer as a varint, seven bits per byte."""
    parts = bytearray()
    while value > 0x7F:
        parts.append(value & 0x7F | 0x80)
        value >>= 7
    parts.append(value)
    return bytes(parts)


def _field(number: int, body: bytes) -> bytes:
    return _varint(number << 3 | 2) + _varint(len(body)) + body


def _event(step: int, seconds: float, body: bytes) -> bytes:
    tag = b"\x10" + _varint(step) if step else b""  # zero is the default and is not written
    return b"\x09" + struct.pack("<d", seconds) + tag + body


class EventFile:
    """A new event file in `folder`, after the existing ones.

    after   readers discard what earlier files contain for later steps
    """

    def __init__(self, folder: Path, after: int, seconds: float) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        number = len(list(folder.glob("events.out.tfevents.*"))) + 1
        # Readers sort files by name.
        self._file = (folder / f"events.out.tfevents.{number:010d}.stamm").open("xb")
        self._write(_event(0, seconds, _field(3, b"brain.Event:2")))
        self._write(_event(after + 1, seconds, _field(7, b"\x08\x01")))  # SessionLog: START

    def add(self, step: int, values: Mapping[str, float], seconds: float) -> None:
        """Add the numbers of a step as float32; `seconds` is their Unix time."""
        tagged = (
            _field(1, _field(1, tag.encode()) + b"\x15" + _float32(value))
            for tag, value in values.items()
        )
        self._write(_event(step, seconds, _field(5, b"".join(tagged))))

    def flush(self) -> None:
        """Flush, so that readers see what was added."""
        self._file.flush()

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def _write(self, event: bytes) -> None:
        length = struct.pack("<Q", len(event))
        self._file.write(length + _masked(length) + event + _masked(event))


def _float32(value: float) -> bytes:
    try:
        return struct.pack("<f", value)
    except OverflowError:
        return struct.pack("<f", float("inf") if value > 0 else float("-inf"))
