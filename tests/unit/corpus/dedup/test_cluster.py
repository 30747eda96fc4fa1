"""Deduplication clusters over shards, whatever the shards, the order, the threads and the memory."""

from __future__ import annotations

import hashlib
import itertools
import random
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from stamm.base.errors import DataError, RunError
from stamm.corpus.dedup.cluster import (
    CLUSTERS_SCHEMA,
    DedupCounts,
    find_clusters,
    keys_row,
    keys_schema,
)
from stamm.corpus.dedup.config import DedupConfig
from stamm.corpus.dedup.shingles import hash_words, minhash, text_key
from stamm.corpus.tables import read_rows, write_rows

CONFIG = DedupConfig()


@dataclass(frozen=True)
class Document:
    """What a shard says of one document."""

    name: str
    text: str
    date: str = ""
    source: str = ""
    licence: str = ""
    language: str = ""


def text_hash(text: str) -> bytes:
    return hashlib.sha256(text.encode()).digest()[:16]


def write_shard(folder: Path, shard: int, documents: Sequence[Document], name: str = "") -> Path:
    path = folder / (name or f"keys-{shard:05d}.parquet")
    rows = (
        keys_row(
            shard=shard,
            row=row,
            document_id=document.name,
            date=document.date,
            source=document.source,
            licence=document.licence,
            language=document.language,
            text_hash=text_hash(document.text),
            key=text_key(document.text),
            signature=minhash(hash_words(document.text), CONFIG),
        )
        for row, document in enumerate(documents)
    )
    write_rows(path, keys_schema(CONFIG), rows)
    return path


def clusters(
    folder: Path, shards: list[Path], config: DedupConfig = CONFIG, **how: int
) -> tuple[DedupCounts, list[dict[str, Any]]]:
    found = find_clusters(config, shards, folder / "clusters.parquet", scratch=folder, **how)
    return found, list(read_rows(folder / "clusters.parquet"))


def prose(seed: object, words: int = 200) -> list[str]:
    draw = random.Random(str(seed))
    return [f"w{draw.randrange(10_000)}" for _ in range(words)]


def near(seed: object, variant: int) -> str:
    """One of many texts with about 0.9 of their runs in common."""
    words = prose(seed)
    words[variant % 200] = f"changed{variant}"
    return " ".join(words)


def corpus() -> list[Document]:
    made = [Document(f"single-{i}", " ".join(prose(f"single {i}"))) for i in range(40)]
    for family in range(6):
        made += [Document(f"near-{family}-{i}", near(family, 9 * i)) for i in range(4)]
        made += [Document(f"exact-{family}-{i}", near(family, 0).upper()) for i in range(2)]
    return [*made, Document("empty-1", "!!!"), Document("empty-2", "???")]


def kept(rows: list[dict[str, Any]]) -> dict[str, str]:
    return {row["document_id"]: row["kept_id"] for row in rows}


def test_families_are_found_and_nothing_else(tmp_path: Path) -> None:
    found, rows = clusters(tmp_path, [write_shard(tmp_path, 0, corpus())])
    assert found == DedupCounts(rows=78, exact=12, near=18, pairs=found.pairs, clusters=6)
    assert len(rows) == 36
    for row in rows:
        kind, family, number = row["document_id"].split("-")
        # All are undated: the smallest identifier is kept. "exact-..-1" says the same as it.
        assert row["kept_id"] == f"exact-{family}-0"
        assert row["kept"] == (row["document_id"] == row["kept_id"])
        assert row["rows"] == 6
        same = kind == "exact" or number == "0"
        assert row["kind"] == ("" if row["kept"] else "exact" if same else "near")
    assert [(row["shard"], row["row"]) for row in rows] == sorted(
        (row["shard"], row["row"]) for row in rows
    )


def test_shards_order_threads_memory_and_names_do_not_matter(tmp_path: Path) -> None:
    documents = corpus()
    seen = []
    for run, (number, threads, memory) in enumerate([(1, 1, 4096), (3, 2, 256), (7, 2, 256)]):
        shuffled = random.Random(run).sample(documents, len(documents))
        folder = tmp_path / f"it's [{run}] *?"
        folder.mkdir()
        shards = [
            write_shard(folder, number - shard, shuffled[shard::number], f"{run}[{shard}]'*.x")
            for shard in range(number)
        ]
        shards = random.Random(run).sample(shards, number)
        found, rows = clusters(folder, shards, threads=threads, memory_mib=memory)
        facts = sorted((r["document_id"], r["kept_id"], r["kind"], r["rows"]) for r in rows)
        seen.append((found, facts))
    assert all(one == seen[0] for one in seen[1:])


def test_the_same_shards_give_the_same_bytes(tmp_path: Path) -> None:
    shards = [write_shard(tmp_path, i, corpus()[i::4]) for i in range(4)]
    clusters(tmp_path, shards, threads=2)
    first = (tmp_path / "clusters.parquet").read_bytes()
    clusters(tmp_path, shards[::-1], threads=1, memory_mib=300)
    assert (tmp_path / "clusters.parquet").read_bytes() == first
    assert sorted(p.name for p in tmp_path.iterdir() if not p.name.startswith("keys")) == [
        "clusters.parquet"
    ]


def test_the_oldest_is_kept_then_the_smallest_identifier(tmp_path: Path) -> None:
    documents = [
        Document("a", "the same text"),
        Document("b", "The same text", "2020-01-01"),
        Document("d", "the same  text", "2013-05-20"),
        Document("c", "the SAME text", "2013-05-20"),
    ]
    _, rows = clusters(tmp_path, [write_shard(tmp_path, 0, documents)])
    assert kept(rows) == dict.fromkeys("abcd", "c")


def test_duplicates_of_one_identifier_are_ordered_by_their_fields(tmp_path: Path) -> None:
    twins = [
        Document("same", "one text", source="web"),
        Document("same", "one text", source="books", licence="CC0-1.0", language="eng_Latn"),
        Document("same", "one text", source="books", licence="CC0-1.0"),
        Document("same", "one text", source="books"),
        Document("same", "one text", source="books", licence="CC-BY-4.0"),
        Document("same", "one text"),
        Document("same", "one text", date="2024-01-01", source="web"),
        Document("same", "one text", date="2023-05-05"),
    ]
    # By date, licence, language and source, in this order; what is not known comes last.
    best_first = [twins[i] for i in (7, 6, 4, 1, 2, 3, 0, 5)]
    for left in range(len(twins)):
        chosen = best_first[left:]
        for order in (chosen, chosen[::-1]):
            folder = tmp_path / f"{left}-{order is chosen}"
            folder.mkdir()
            shards = [write_shard(folder, i, [twin]) for i, twin in enumerate(order)]
            _, rows = clusters(folder, shards)
            stay = [order[row["shard"]] for row in rows if row["kept"]] or order
            assert stay == [best_first[left]]


def test_an_identifier_of_two_texts_has_the_first_one(tmp_path: Path) -> None:
    # One page whose bytes were read in two ways; its second reading is another page's only text.
    one, other = (
        Document("page", "K\u00e4se und Brot"),
        Document("page", "K\u0413\u00a4se und Brot"),
    )
    stays, goes = sorted((one, other), key=lambda document: text_hash(document.text))
    assert text_key(stays.text) != text_key(goes.text)
    for text, backwards in itertools.product((stays.text, goes.text), (False, True)):
        alone = Document("z", text)
        order = [alone, goes, stays] if backwards else [stays, goes, alone]
        folder = tmp_path / f"{text is stays.text}-{backwards}"
        folder.mkdir()
        shards = [write_shard(folder, i, [document]) for i, document in enumerate(order)]
        _, rows = clusters(folder, shards)
        found = {id(order[row["shard"]]): (row["kept"], row["kind"]) for row in rows}
        expected = {id(stays): (True, ""), id(goes): (False, "exact")}
        if text == stays.text:  # a text that went as a second reading stays where it stands alone
            expected[id(alone)] = (False, "exact")
        assert found == expected


def test_one_identifier_twice_keeps_the_first_row(tmp_path: Path) -> None:
    shards = [write_shard(tmp_path, i, [Document("same", "one text")] * 2) for i in (1, 0)]
    _, rows = clusters(tmp_path, shards)
    assert [(r["shard"], r["row"]) for r in rows if r["kept"]] == [(0, 0)]
    assert len(rows) == 4


def test_a_chain_becomes_one_cluster(tmp_path: Path) -> None:
    words = prose("chain", 400)
    documents = [Document(f"{i}", " ".join(words[i * 12 : i * 12 + 200])) for i in range(16)]
    _, rows = clusters(tmp_path, [write_shard(tmp_path, 0, documents)])
    assert set(kept(rows).values()) == {"0"}
    assert len(rows) == 16


def test_a_band_that_thousands_share_is_not_compared_in_square(tmp_path: Path) -> None:
    # A page frame of 190 words and 4 of its own: 2,000 texts, all alike to some 0.95.
    frame = " ".join(prose("frame", 190))
    documents = [Document(f"{i:04d}", f"{frame} {' '.join(prose(i, 4))}") for i in range(2000)]
    found, rows = clusters(tmp_path, [write_shard(tmp_path, 0, documents)])
    assert found.pairs <= 2000 * CONFIG.neighbours * CONFIG.bands
    assert set(kept(rows).values()) == {"0000"}
    assert len(rows) == 2000


def test_pairs_inside_a_shared_band_are_still_found(tmp_path: Path) -> None:
    # Every text shares half its runs with all others, so bands of 2 hashes are crowded; 100 pairs
    # among them are near duplicates. A quarter of the runs in common is not enough to be one.
    config = replace(CONFIG, bands=56, band_hashes=2)
    frame = " ".join(prose("frame", 100))
    documents = [
        Document(f"{pair:03d}-{side}", f"{frame} {near(pair, 7)} {side}")
        for pair, side in itertools.product(range(100), "ab")
    ]
    found, rows = clusters(tmp_path, [write_shard(tmp_path, 0, documents)], config)
    assert found.near == 100
    assert all(row["kept_id"] == row["document_id"][:3] + "-a" for row in rows)


def test_threshold_decides(tmp_path: Path) -> None:
    shard = write_shard(tmp_path, 0, corpus())
    counts = [
        clusters(tmp_path, [shard], replace(CONFIG, threshold=threshold))[0].near
        for threshold in (0.75, 1.0)
    ]
    assert counts[0] == 18
    assert counts[1] == 0


def test_no_documents_no_clusters(tmp_path: Path) -> None:
    found, rows = clusters(tmp_path, [write_shard(tmp_path, 0, []), write_shard(tmp_path, 1, [])])
    assert (found, rows) == (DedupCounts(rows=0, exact=0, near=0, pairs=0, clusters=0), [])


def test_shards_that_are_no_tables_of_keys_are_refused(tmp_path: Path) -> None:
    good = write_shard(tmp_path, 3, corpus())
    broken = tmp_path / "broken.parquet"
    broken.write_bytes(good.read_bytes()[:-100])
    other = tmp_path / "other.parquet"
    write_rows(other, pa.schema([("row", pa.int64())]), [{"row": 1}])
    again = write_shard(tmp_path, 3, corpus()[:2], "again.parquet")
    for shards, told in (
        ([tmp_path / "missing.parquet"], "does not exist"),
        ([broken], "cannot be read"),
        ([other], "other.parquet has no column"),
        ([good, again], "is not a table of keys.*shards 3 to 3, as .*keys-00003"),
    ):
        with pytest.raises(DataError, match=told):
            clusters(tmp_path, shards)
    with pytest.raises(DataError, match="signatures of 56 values"):
        clusters(tmp_path, [good], replace(CONFIG, bands=7))
    assert not (tmp_path / "clusters.parquet").exists()


def test_too_little_memory_is_reported(tmp_path: Path) -> None:
    shard = write_shard(tmp_path, 0, corpus() * 20)
    with pytest.raises(RunError, match=r"ran out of memory.*memory_gib"):
        clusters(tmp_path, [shard], memory_mib=1)


def test_what_is_written_has_the_columns_promised(tmp_path: Path) -> None:
    _, rows = clusters(tmp_path, [write_shard(tmp_path, 0, corpus())])
    assert list(rows[0]) == CLUSTERS_SCHEMA.names
