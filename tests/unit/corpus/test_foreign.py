"""Megatron's files of others: written here byte by byte, read as a packed corpus is, refused when broken."""

from __future__ import annotations

import struct
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stamm.base.errors import DataError
from stamm.corpus.foreign import read_foreign
from stamm.corpus.pack import SIDECAR_SCHEMA
from stamm.corpus.shards import write_shard

# The letter by which the struct module writes each type, by Megatron's code.
LETTERS = {1: "B", 2: "b", 3: "h", 4: "i", 5: "q", 6: "d", 7: "f", 8: "H"}


def foreign(
    stem: Path, documents: list[list[list[float]]], code: int = 4, modes: bool = False
) -> Path:
    """Documents of sequences of tokens, in the layout of Megatron, without any of our code."""
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


DOCUMENTS: list[list[list[float]]] = [[[1, 5], [7, 2]], [[1, 2]], [[1], [], [100, 120, 2]]]
STREAM = [1, 5, 7, 2, 1, 2, 1, 100, 120, 2]


@pytest.mark.parametrize("code", range(1, 9))
def test_every_type_is_read(tmp_path: Path, code: int) -> None:
    split = read_foreign(foreign(tmp_path / "x", DOCUMENTS, code))
    assert split.num_tokens == 10
    assert split.stages == ((0, 10),)
    assert split.read(0, 10).tolist() == STREAM
    assert split.read(3, 8).tolist() == STREAM[3:8]
    assert split.read(4, 4).tolist() == []
    assert split.read(0, 10).dtype == np.int64
    assert split.largest_id() == 120


def test_documents_of_several_sequences(tmp_path: Path) -> None:
    table = read_foreign(foreign(tmp_path / "x", DOCUMENTS)).documents()
    assert table.schema.equals(SIDECAR_SCHEMA)
    rows = table.to_pylist()
    assert [(r["start"], r["stop"]) for r in rows] == [(0, 4), (4, 6), (6, 10)]
    assert [r["document_id"] for r in rows] == ["x:0", "x:1", "x:2"]
    assert {(r["language"], r["licence"], r["bytes"], r["probe_id"]) for r in rows} == {
        ("", "", None, None)
    }


def test_ids_beyond_16_bits(tmp_path: Path) -> None:
    for code in (4, 5, 6):
        split = read_foreign(foreign(tmp_path / f"x{code}", [[[131_071, 70_000]]], code))
        assert split.read(0, 2).tolist() == [131_071, 70_000]


@given(st.lists(st.lists(st.lists(st.integers(0, 60_000), max_size=6), max_size=4), max_size=6))
def test_any_documents(
    tmp_path_factory: pytest.TempPathFactory, documents: list[list[list[float]]]
) -> None:
    split = read_foreign(foreign(tmp_path_factory.mktemp("f") / "x", documents, 8))
    flat = [[t for sequence in d for t in sequence] for d in documents]
    rows = split.documents().to_pylist()
    whole = [split.read(row["start"], row["stop"]).tolist() for row in rows]
    assert whole == [d for d in flat if d]


def test_our_own_shards_are_read_and_are_what_the_writer_here_writes(tmp_path: Path) -> None:
    write_shard(tmp_path / "own", [np.array([1, 5, 2]), np.array([1, 2])], 8)
    split = read_foreign(tmp_path / "own.idx")
    assert split.read(0, 5).tolist() == [1, 5, 2, 1, 2]
    foreign(tmp_path / "theirs", [[[1, 5, 2]], [[1, 2]]], 8)
    for ending in (".bin", ".idx"):
        own, theirs = (tmp_path / (name + ending) for name in ("own", "theirs"))
        assert own.read_bytes() == theirs.read_bytes()


def test_names_with_points_and_either_ending(tmp_path: Path) -> None:
    stem = foreign(tmp_path / "dump.v2_text_document", DOCUMENTS)
    for name in ("dump.v2_text_document", "dump.v2_text_document.idx", "dump.v2_text_document.bin"):
        assert read_foreign(tmp_path / name).split == str(stem)


@pytest.mark.parametrize(
    ("code", "token", "shown"),
    [
        (2, -1, "-1"),
        (5, -(2**40), "-10995"),
        (6, 1.5, "1.5"),
        (7, float("nan"), "nan"),
        (6, 1e300, "1e"),
    ],
)
def test_a_number_that_is_no_id_is_told_where_it_stands(
    tmp_path: Path, code: int, token: float, shown: str
) -> None:
    stem = foreign(tmp_path / "x", [[[1, 2, token if code in (6, 7) else int(token)]]], code)
    split = read_foreign(stem)
    assert split.read(0, 2).tolist() == [1, 2]
    with pytest.raises(DataError, match=f"holds no id at token 2: {shown}"):
        split.read(1, 3)
    with pytest.raises(DataError, match="holds no id at token 2"):
        split.largest_id()
    with pytest.raises(DataError, match="tokens 1 to 4 are not in"):
        split.read(1, 4)


def cut(path: Path, size: int) -> None:
    path.write_bytes(path.read_bytes()[:size])


def put(path: Path, at: int, data: bytes) -> None:
    old = path.read_bytes()
    path.write_bytes(old[:at] + data + old[at + len(data) :])


# In the index of DOCUMENTS: head to 34, 6 lengths to 58, 6 offsets to 106, 4 borders to 138.
@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda f: (f / "x.bin").unlink(), "x.bin does not exist"),
        (lambda f: (f / "x.idx").unlink(), "x.idx does not exist"),
        (lambda f: (f / "x.idx").write_bytes(b""), "x.idx cannot be read"),
        (lambda f: (f / "x.idx").write_bytes(b"TNTIDX\x00\x00" * 9), "is no index of Megatron's"),
        (lambda f: cut(f / "x.idx", 20), "ends inside its head, after 20 bytes"),
        (lambda f: cut(f / "x.idx", 137), "has 137 bytes, its head says 138"),
        (lambda f: cut(f / "x.bin", 39), "has 39 bytes, its index says 40"),
        (lambda f: put(f / "x.idx", 9, b"\x02"), "has version 2 and type 4"),
        (lambda f: put(f / "x.idx", 17, b"\x09"), "has version 1 and type 9"),
        (lambda f: put(f / "x.idx", 18, b"\xff" * 8), "its head says"),
        (lambda f: put(f / "x.idx", 34, struct.pack("<i", -3)), "a sequence of -3 tokens"),
        (lambda f: put(f / "x.idx", 66, struct.pack("<q", 4)), "do not follow one another"),
        (lambda f: put(f / "x.idx", 106, struct.pack("<q", 1)), "do not lead from sequence 0 to 6"),
        (lambda f: put(f / "x.idx", 114, struct.pack("<q", 9)), "do not lead from sequence 0 to 6"),
        (lambda f: put(f / "x.idx", 130, struct.pack("<q", 5)), "do not lead from sequence 0 to 6"),
    ],
)
def test_damage_is_told(tmp_path: Path, damage: Callable[[Path], object], message: str) -> None:
    foreign(tmp_path / "x", DOCUMENTS)
    damage(tmp_path)
    with pytest.raises(DataError, match=message):
        read_foreign(tmp_path / "x")


def test_pictures_beside_text_are_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="tells a mode of each sequence"):
        read_foreign(foreign(tmp_path / "x", DOCUMENTS, modes=True))


def test_an_empty_file_is_an_empty_split(tmp_path: Path) -> None:
    split = read_foreign(foreign(tmp_path / "x", []))
    assert split.num_tokens == 0
    assert split.documents().num_rows == 0
    assert split.largest_id() == -1
