"""Megatron's files of others: written here byte by byte, read as a packed corpus is, refused when broken."""

from __future__ import annotations

import hashlib
import itertools
import json
import os
import struct
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import tokenizers
from hypothesis import given
from hypothesis import strategies as st

from stamm.base.errors import DataError
from stamm.corpus.megatron_dataset import MegatronTokens, read_megatron
from stamm.corpus.shards import write_shard
from stamm.corpus.shuffle import verify
from tests.unit.foreign_files import write_foreign

DOCUMENTS: list[list[list[float]]] = [[[1, 5], [7, 2]], [[1, 2]], [[1], [], [100, 120, 2]]]
STREAM = [1, 5, 7, 2, 1, 2, 1, 100, 120, 2]


@pytest.mark.parametrize("code", range(1, 9))
def test_every_type_is_read(tmp_path: Path, code: int) -> None:
    split = read_megatron(write_foreign(tmp_path / "x", DOCUMENTS, code))
    assert split.num_tokens == 10
    assert split.read(0, 10).tolist() == STREAM
    assert split.read(3, 8).tolist() == STREAM[3:8]
    assert split.read(4, 4).tolist() == []
    assert split.read(0, 10).dtype == np.int64


def test_a_file_that_is_cut_while_it_is_mapped_is_told(tmp_path: Path) -> None:
    """To read on would end the process."""
    split = read_megatron(write_foreign(tmp_path / "x", DOCUMENTS))
    tokens = tmp_path / "x.bin"
    os.truncate(tokens, tokens.stat().st_size - 1)
    with pytest.raises(DataError, match=r"x\.bin was truncated while it was read"):
        split.read(0, 1)


def test_documents_of_several_sequences(tmp_path: Path) -> None:
    assert read_megatron(write_foreign(tmp_path / "x", DOCUMENTS)).borders.tolist() == [0, 4, 6, 10]


def test_ids_beyond_16_bits(tmp_path: Path) -> None:
    for code in (4, 5, 6):
        split = read_megatron(write_foreign(tmp_path / f"x{code}", [[[131_071, 70_000]]], code))
        assert split.read(0, 2).tolist() == [131_071, 70_000]


@given(st.lists(st.lists(st.lists(st.integers(0, 60_000), max_size=6), max_size=4), max_size=6))
def test_any_documents(
    tmp_path_factory: pytest.TempPathFactory, documents: list[list[list[float]]]
) -> None:
    split = read_megatron(write_foreign(tmp_path_factory.mktemp("f") / "x", documents, 8))
    flat = [[t for sequence in d for t in sequence] for d in documents]
    whole = [split.read(a, b).tolist() for a, b in itertools.pairwise(split.borders.tolist())]
    assert whole == [d for d in flat if d]


def test_our_own_shards_are_read_and_are_what_the_writer_here_writes(tmp_path: Path) -> None:
    write_shard(tmp_path / "own", [np.array([1, 5, 2]), np.array([1, 2])], 8)
    split = read_megatron(tmp_path / "own.idx")
    assert split.read(0, 5).tolist() == [1, 5, 2, 1, 2]
    write_foreign(tmp_path / "theirs", [[[1, 5, 2]], [[1, 2]]], 8)
    for ending in (".bin", ".idx"):
        own, theirs = (tmp_path / (name + ending) for name in ("own", "theirs"))
        assert own.read_bytes() == theirs.read_bytes()


def test_names_with_points_and_either_ending(tmp_path: Path) -> None:
    stem = write_foreign(tmp_path / "dump.v2_text_document", DOCUMENTS)
    for name in ("dump.v2_text_document", "dump.v2_text_document.idx", "dump.v2_text_document.bin"):
        assert read_megatron(tmp_path / name).stem == str(stem)


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
    stem = write_foreign(tmp_path / "x", [[[1, 2, token if code in (6, 7) else int(token)]]], code)
    split = read_megatron(stem)
    assert split.read(0, 2).tolist() == [1, 2]
    with pytest.raises(DataError, match=f"has no valid id at token 2: {shown}"):
        split.read(1, 3)
    with pytest.raises(DataError, match="has no valid id at token 2"):
        list(split.pieces())
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
        (lambda f: (f / "x.idx").write_bytes(b"TNTIDX\x00\x00" * 9), "is not a Megatron index"),
        (lambda f: cut(f / "x.idx", 20), "ends inside its head, after 20 bytes"),
        (lambda f: cut(f / "x.idx", 137), "has 137 bytes, its header declares 138"),
        (lambda f: cut(f / "x.bin", 39), "has 39 bytes, its index declares 40"),
        (lambda f: put(f / "x.idx", 9, b"\x02"), "has version 2 and type 4"),
        (lambda f: put(f / "x.idx", 17, b"\x09"), "has version 1 and type 9"),
        (lambda f: put(f / "x.idx", 18, b"\xff" * 8), "its header declares"),
        (lambda f: put(f / "x.idx", 34, struct.pack("<i", -3)), "a sequence of -3 tokens"),
        (lambda f: put(f / "x.idx", 66, struct.pack("<q", 4)), "do not follow one another"),
        (lambda f: put(f / "x.idx", 106, struct.pack("<q", 1)), "do not run from sequence 0 to 6"),
        (lambda f: put(f / "x.idx", 114, struct.pack("<q", 9)), "do not run from sequence 0 to 6"),
        (lambda f: put(f / "x.idx", 130, struct.pack("<q", 5)), "do not run from sequence 0 to 6"),
    ],
)
def test_damage_is_told(tmp_path: Path, damage: Callable[[Path], object], message: str) -> None:
    write_foreign(tmp_path / "x", DOCUMENTS)
    damage(tmp_path)
    with pytest.raises(DataError, match=message):
        read_megatron(tmp_path / "x")


def test_pictures_beside_text_are_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="has a mode for each sequence"):
        read_megatron(write_foreign(tmp_path / "x", DOCUMENTS, modes=True))


TOKENIZER = {
    "added_tokens": [{"id": 2, "content": "</s>"}, {"id": 130, "content": "<pad>"}],
    "model": {"vocab": {"a": 0, "b": 120}},
}


@pytest.fixture
def tokenizer(tmp_path: Path) -> Path:
    """A tokenizer with ids up to 130."""
    path = tmp_path / "tokenizer.json"
    path.write_text(json.dumps(TOKENIZER))
    return path


def test_files_are_one_stream(tmp_path: Path, tokenizer: Path) -> None:
    one, two = (
        write_foreign(tmp_path / name, DOCUMENTS, code) for name, code in (("a", 8), ("b", 5))
    )
    stream = MegatronTokens.open([one, two], tokenizer.parent, "</s>")
    assert (stream.num_tokens, stream.stages, stream.vocabulary) == (20, ((0, 20),), 131)
    assert stream.document_starts().tolist() == [0, 4, 6, 10, 14, 16]
    for start in range(21):
        for stop in range(start, 21):
            assert stream.read(start, stop).tolist() == (STREAM * 2)[start:stop]
    for start, stop in ((-1, 2), (3, 2), (0, 21)):
        with pytest.raises(DataError, match=rf"tokens {start} to {stop} are not in the files"):
            stream.read(start, stop)


def test_the_identity_is_of_the_bytes_of_each_file(tmp_path: Path, tokenizer: Path) -> None:
    one = write_foreign(tmp_path / "a", DOCUMENTS, 8)
    two = write_foreign(tmp_path / "b", [[[9, 2]]], 8)
    proof = verify(MegatronTokens.open([one, two], tokenizer, "</s>"))
    assert [file["bin_sha256"] for file in proof.facts["files"]] == [
        hashlib.sha256((tmp_path / name).read_bytes()).hexdigest() for name in ("a.bin", "b.bin")
    ]
    assert [file["idx_sha256"] for file in proof.facts["files"]] == [
        hashlib.sha256((tmp_path / name).read_bytes()).hexdigest() for name in ("a.idx", "b.idx")
    ]
    assert proof.facts["files"][0] | {"idx_sha256": "", "bin_sha256": ""} == {
        "idx_sha256": "",
        "bin_sha256": "",
        "tokens": 10,
        "documents": 3,
        "largest_id": 120,
        "ended_documents": 3,
        "end_tokens_inside": 0,
    }
    assert proof.remark == ""
    several = MegatronTokens.open([one, two], tokenizer, "</s>")
    assert several.proof(several.examine([1]) | several.examine([0])) == proof
    assert verify(MegatronTokens.open([two, one], tokenizer, "</s>")).sha256 != proof.sha256
    for ending in (".bin", ".idx"):
        (tmp_path / f"a{ending}").rename(tmp_path / f"moved{ending}")
    moved = verify(MegatronTokens.open([tmp_path / "moved", two], tokenizer, "</s>"))
    assert moved.sha256 == proof.sha256
    write_foreign(tmp_path / "moved", [[[1, 5, 7, 2, 1, 2]], [[1, 100, 120, 2]]], 8)
    cut = verify(MegatronTokens.open([tmp_path / "moved", two], tokenizer, "</s>"))
    assert cut.facts["files"][0]["bin_sha256"] == proof.facts["files"][0]["bin_sha256"]
    assert cut.sha256 != proof.sha256  # the same tokens in other documents


def test_what_end_tokens_say_beside_the_index_is_told(
    tmp_path: Path, tokenizer: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    documents: list[list[list[float]]] = [[[1, 2, 5, 2]], [[5, 5]], [[2, 2]], [[7]], [[8, 2]]]
    stream = MegatronTokens.open([write_foreign(tmp_path / "a", documents, 8)], tokenizer, "</s>")
    for chunk in (1, 2, 3, 100):
        monkeypatch.setattr("stamm.corpus.megatron_dataset._CHUNK", chunk)
        proof = verify(stream)
        assert proof.remark == (
            "2 of 5 documents have no end token; "
            "2 end tokens are inside documents, which they do not split"
        )
        assert proof.facts["files"][0]["ended_documents"] == 3
    assert verify(MegatronTokens.open([tmp_path / "a"], tokenizer)).remark == ""


@pytest.mark.parametrize(
    ("tokens", "end", "message"),
    [
        ([1, 131, 2], "</s>", r"a.bin has id 131 at token 1, its tokenizer has 131 ids"),
        ([1, 5, 7], "</s>", r"no document of .*a.bin ends with the end token, id 2"),
        ([1, 5, 2], "<eod>", r"tokenizer.json has no token '<eod>'"),
        ([], "</s>", r"a.bin contains no token"),
    ],
)
def test_a_tokenizer_that_does_not_fit_is_told(
    tmp_path: Path, tokenizer: Path, tokens: list[float], end: str, message: str
) -> None:
    stem = write_foreign(tmp_path / "a", [[tokens]], 8)
    with pytest.raises(DataError, match=message):
        verify(MegatronTokens.open([stem], tokenizer, end))


@pytest.mark.parametrize(
    "text",
    ["", "[]", "{}", '{"model": {}, "added_tokens": []}', '{"model": {"vocab": []}, "added_tokens": []}',
     '{"model": {"vocab": {"a": "b"}}, "added_tokens": []}', '{"model": {"vocab": 5}, "added_tokens": []}',
     '{"model": {"vocab": [1]}, "added_tokens": []}', '{"model": {"vocab": {"a": 1}}, "added_tokens": [7]}'],
)  # fmt: skip
def test_what_is_no_tokenizer_is_told(tmp_path: Path, text: str) -> None:
    stem = write_foreign(tmp_path / "a", [[[1]]])
    (tmp_path / "tokenizer.json").write_text(text)
    with pytest.raises(DataError, match=r"tokenizer.json is (not a tokenizer.json|not JSON)"):
        MegatronTokens.open([stem], tmp_path)


@pytest.mark.parametrize(
    "model",
    [
        tokenizers.models.BPE({"a": 0, "b": 1, "ab": 2}, [("a", "b")]),
        tokenizers.models.Unigram([("a", -1.0), ("b", -2.0), ("ab", -0.5)], 0),
        tokenizers.models.WordLevel({"a": 0, "b": 1, "ab": 2}, unk_token="a"),
    ],
)
def test_tokenizers_of_every_kind_have_the_ids_that_their_library_says(
    tmp_path: Path, model: tokenizers.models.Model
) -> None:
    whole = tokenizers.Tokenizer(model)
    whole.add_special_tokens(["<|endoftext|>", "<pad>"])
    whole.save(str(tmp_path / "tokenizer.json"))
    end = whole.token_to_id("<|endoftext|>")
    stem = write_foreign(tmp_path / "a", [[[0, end]], [[end]]])
    stream = MegatronTokens.open([stem], tmp_path, "<|endoftext|>")
    assert stream.vocabulary == whole.get_vocab_size(with_added_tokens=True) == 5
    assert verify(stream).facts["files"][0]["ended_documents"] == 2
