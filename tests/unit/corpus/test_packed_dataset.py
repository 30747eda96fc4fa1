"""Token shards: Megatron's layout byte for byte, reads across shards, and damage that is told."""

from __future__ import annotations

import itertools
import json
import os
import struct
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stamm.base.errors import DataError
from stamm.corpus.config import PackConfig
from stamm.corpus.packed_dataset import PackedSplit
from stamm.corpus.shards import open_shard, type_code, write_shard
from stamm.corpus.shuffle import verify
from stamm.corpus.tables import DOCUMENTS_SCHEMA, write_rows
from stamm.corpus.tokenizer.config import TokenizerConfig
from stamm.corpus.tokenizer.tekken import train_tokenizer_on
from stamm.tokenizer.special_tokens import BEGIN_ID, END_ID
from stamm.tokenizer.tokenizer import Tokenizer
from tests.unit.small_corpus import pack_corpus

TEXTS = {f"id{i:02d}": f"Document {i} says {'word ' * (i % 7)}and ends." for i in range(40)}


@pytest.fixture(scope="module")
def description() -> str:
    return train_tokenizer_on(TokenizerConfig(vocab_size=350), list(TEXTS.values()))


@pytest.fixture
def packed(tmp_path: Path, description: str) -> Callable[..., Path]:
    def run(name: str = "pack", **config: int) -> Path:
        corpus, tokenizer = tmp_path / "corpus", tmp_path / "tokenizer"
        for made in (corpus, tokenizer):
            made.mkdir(exist_ok=True)
        rows = []
        for i, (document_id, text) in enumerate(TEXTS.items()):
            probe = i in (3, 4)
            rows.append(
                {
                    "document_id": document_id,
                    "text": text,
                    "url": f"https://a.org/{i}",
                    "source": "s",
                    "licence": "CC0-1.0",
                    "language": "eng_Latn" if i % 2 else "deu_Latn",
                    "split": "held_out" if i % 10 == 9 else "control" if i == 4 else "train",
                    "probe_id": f"p{i}" if probe else None,
                    "repeat": {3: 4, 4: 0}.get(i, 1),
                }
            )
        write_rows(corpus / "documents-00000.parquet", DOCUMENTS_SCHEMA, rows)
        (tokenizer / "tokenizer.json").write_text(description, encoding="utf-8")
        return pack_corpus(PackConfig(**config), tmp_path, name=name)

    return run


def test_layout_is_megatrons(tmp_path: Path) -> None:
    write_shard(tmp_path / "x", [np.array([1, 5, 2]), np.array([1, 2])], 8)
    assert (tmp_path / "x.bin").read_bytes() == struct.pack("<5H", 1, 5, 2, 1, 2)
    assert (tmp_path / "x.idx").read_bytes() == (
        b"MMIDIDX\x00\x00"
        + struct.pack("<QBQQ", 1, 8, 2, 3)
        + struct.pack("<2i", 3, 2)
        + struct.pack("<2q", 0, 6)
        + struct.pack("<3q", 0, 1, 2)
    )


def test_type_follows_the_vocabulary(tmp_path: Path) -> None:
    assert (type_code(65_536), type_code(65_537)) == (8, 4)
    write_shard(tmp_path / "x", [np.array([1, 131_071, 2])], 4)
    assert (tmp_path / "x.bin").read_bytes() == struct.pack("<3i", 1, 131_071, 2)
    assert open_shard(tmp_path / "x").tokens.tolist() == [1, 131_071, 2]


@settings(deadline=None)
@given(st.lists(st.lists(st.integers(0, 65_535), max_size=20), max_size=20))
def test_shard_round_trip(
    tmp_path_factory: pytest.TempPathFactory, documents: list[list[int]]
) -> None:
    path = tmp_path_factory.mktemp("shard") / "x"
    write_shard(path, (np.array(d, dtype=np.int64) for d in documents), 8)
    shard = open_shard(path)
    assert shard.lengths.tolist() == [len(d) for d in documents]
    assert shard.tokens.tolist() == [t for d in documents for t in d]


def test_every_document_stands_where_the_sidecar_says(
    packed: Callable[..., Path], description: str
) -> None:
    folder, tokenizer = packed(shard_tokens=100), Tokenizer(description)
    train = PackedSplit.open(folder, "train")
    table = train.documents().to_pylist()
    assert len(json.loads((folder / "manifest.json").read_text())["splits"]["train"]["shards"]) > 3
    assert table[0]["start"] == 0
    assert table[-1]["stop"] == train.num_tokens
    for row, following in itertools.pairwise(table):
        assert row["stop"] == following["start"]
    for row in table:
        ids = train.read(row["start"], row["stop"]).tolist()
        assert (ids[0], ids[-1]) == (BEGIN_ID, END_ID)
        assert tokenizer.decode(ids[1:-1]) == TEXTS[row["document_id"]]
        assert row["bytes"] == len(TEXTS[row["document_id"]])
    whole = train.read(0, train.num_tokens)
    assert whole.dtype == np.int64
    rng = np.random.default_rng(0)
    for start, stop in np.sort(rng.integers(0, train.num_tokens + 1, (50, 2))).tolist():
        assert train.read(start, stop).tolist() == whole[start:stop].tolist()


def test_splits_and_repeats(packed: Callable[..., Path]) -> None:
    folder = packed()
    train = PackedSplit.open(folder, "train").documents().to_pylist()
    held_out = PackedSplit.open(folder, "held_out").documents().to_pylist()
    assert sorted(r["document_id"] for r in held_out) == ["id09", "id19", "id29", "id39"]
    probes = [(r["document_id"], r["occurrence"]) for r in train if r["probe_id"]]
    assert sorted(probes) == [("id03", 0), ("id03", 1), ("id03", 2), ("id03", 3)]
    assert "id04" not in {r["document_id"] for r in train + held_out}
    assert len(train) == 40 - 4 - 1 + 3


def test_manifest_counts(packed: Callable[..., Path]) -> None:
    folder = packed(shard_tokens=200)
    manifest = json.loads((folder / "manifest.json").read_text())
    assert manifest["schema"] == 2
    assert manifest["vocabulary"] == 350
    assert manifest["token_type"] == "uint16"
    for split, entry in manifest["splits"].items():
        assert entry["tokens"] == PackedSplit.open(folder, split).num_tokens
        assert entry["tokens"] == sum(s["tokens"] for s in entry["shards"])
        assert entry["tokens"] == sum(entry["tokens_by_language"].values())
        assert entry["documents"] == sum(s["documents"] for s in entry["shards"])


def test_shard_size_changes_files_and_not_the_stream(packed: Callable[..., Path]) -> None:
    one = PackedSplit.open(packed("one"), "train")
    many = PackedSplit.open(packed("many", shard_tokens=1), "train")
    assert one.read(0, one.num_tokens).tolist() == many.read(0, many.num_tokens).tolist()
    assert one.documents().to_pylist() == many.documents().to_pylist()


def test_seed_decides_the_order(packed: Callable[..., Path]) -> None:
    orders = [
        [
            r["document_id"]
            for r in PackedSplit.open(packed(f"p{s}", seed=s), "train").documents().to_pylist()
        ]
        for s in (1, 2)
    ]
    assert orders[0] != orders[1]
    assert sorted(orders[0]) == sorted(orders[1])


def files(folder: Path) -> dict[str, bytes]:
    return {p.name: p.read_bytes() for p in sorted(folder.rglob("*")) if p.is_file()}


def test_packing_again_gives_the_same_bytes_and_clears_leftovers(
    packed: Callable[..., Path],
) -> None:
    folder = packed(shard_tokens=150)
    first = files(folder)
    (folder / ".train-00000.bin.77.part").write_bytes(b"half")
    (folder / "train-00099.bin").write_bytes(b"stale")
    assert files(packed(shard_tokens=150)) == first


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda f: (f / "train-00000.bin").unlink(), "train-00000.bin does not exist"),
        (lambda f: (f / "train-00000.idx").unlink(), "train-00000.idx does not exist"),
        (
            lambda f: cut(f / "train-00000.bin", 2),
            "train-00000.bin has .* bytes, its index declares",
        ),
        (
            lambda f: cut(f / "train-00000.idx", 3),
            "train-00000.idx has .* bytes, its header declares",
        ),
        (lambda f: cut(f / "train-00000.idx", -12), "ends inside its head"),
        (lambda f: (f / "train-00000.idx").write_bytes(b"x" * 99), "is not a Megatron index"),
        (lambda f: (f / "manifest.json").unlink(), "manifest.json does not exist"),
        (lambda f: edit(f, schema=9), "has schema 9; stamm .* reads 2"),
        (lambda f: edit(f, vocabulary=None), "does not say how many ids there are"),
        (lambda f: edit(f, splits={}), "no split 'train'"),
        (lambda f: edit(f, splits=None), "manifest.json, splits holds null, not an object"),
        (lambda f: edit(f, splits={"train": {}}), "splits, train has no 'tokens', 'documents'"),
        (
            lambda f: edit(f, splits={"train": {"tokens": 1, "documents": 1, "shards": [{}]}}),
            r"shards\[0\] has no 'name', 'tokens', 'sha256'",
        ),
        (
            lambda f: (f / "manifest.json").write_text("[]"),
            "holds a list, not an object",
        ),
    ],
)
def test_damage_is_told_on_opening(
    packed: Callable[..., Path], damage: Callable[[Path], object], message: str
) -> None:
    folder = packed()
    damage(folder)
    with pytest.raises(DataError, match=message):
        PackedSplit.open(folder, "train")


def cut(path: Path, by: int) -> None:
    data = path.read_bytes()
    path.write_bytes(data[:-by])


def edit(folder: Path, **changes: object) -> None:
    manifest = json.loads((folder / "manifest.json").read_text())
    (folder / "manifest.json").write_text(json.dumps({**manifest, **changes}))


def test_verify_finds_one_changed_byte(packed: Callable[..., Path]) -> None:
    folder = packed()
    split = PackedSplit.open(folder, "train")
    verify(split)
    path = folder / "train-00000.bin"
    data = bytearray(path.read_bytes())
    data[10] ^= 1
    path.write_bytes(data)
    with pytest.raises(DataError, match=r"train-00000\.bin was altered"):
        verify(PackedSplit.open(folder, "train"))


def test_shards_are_examined_one_by_one(packed: Callable[..., Path]) -> None:
    folder = packed(shard_tokens=100)
    split = PackedSplit.open(folder, "train")
    assert split.num_files > 3
    (folder / "train-00001.bin").write_bytes(b"")
    others = split.examine(n for n in range(split.num_files) if n != 1)
    assert sorted(others) == [0, *range(2, split.num_files)]
    with pytest.raises(DataError, match=r"train-00001\.bin was altered"):
        split.examine([1])


def test_reads_outside_are_told(packed: Callable[..., Path]) -> None:
    split = PackedSplit.open(packed(), "train")
    assert split.read(5, 5).tolist() == []
    for start, stop in ((-1, 2), (3, 2), (0, split.num_tokens + 1)):
        with pytest.raises(DataError, match=rf"tokens {start} to {stop} are not in train"):
            split.read(start, stop)


def test_a_shard_that_is_cut_while_it_is_mapped_is_told(packed: Callable[..., Path]) -> None:
    """To read on would end the process."""
    folder = packed()
    split = PackedSplit.open(folder, "train")
    (tokens,) = folder.glob("train-*.bin")
    os.truncate(tokens, tokens.stat().st_size - 2)
    with pytest.raises(DataError, match=r"train-00000\.bin was truncated while it was read"):
        split.read(0, 1)
