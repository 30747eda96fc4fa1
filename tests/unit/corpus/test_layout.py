"""How records are cut into files, and in which order they stand there, decides nothing."""

from __future__ import annotations

import json
import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from stamm.corpus.config import CorpusConfig, PackConfig, SourceShare, Stage
from stamm.corpus.consent.config import ConsentConfig
from stamm.corpus.packed_dataset import MANIFEST
from stamm.corpus.tables import read_parts
from stamm.corpus.tokenizer.config import TokenizerConfig
from stamm.corpus.tokenizer.job import train_tokenizer
from stamm.runs.job import Workspace
from stamm.tokenizer.tokenizer import FILE
from tests.unit.corpus.corpus_inputs import page, warc_response
from tests.unit.small_corpus import build_corpus, pack_corpus

CORPUS = CorpusConfig(
    inputs=("none",), consent=ConsentConfig(unknown_host="allow"), language=None, held_out=0.3
)
PACK = PackConfig(
    shard_tokens=4000,
    stages=(
        Stage(name="one", sources=(SourceShare(epochs=0.6),)),
        Stage(name="two", sources=(SourceShare(epochs=0.9),)),
    ),
)
SYLLABLES = [a + b for a in "bdflm" for b in "aeiou"]
Row = dict[str, Any]


def prose(seed: object, words: int = 60) -> str:
    draw = random.Random(str(seed))
    return " ".join("".join(draw.choices(SYLLABLES, k=3)) for _ in range(words)) + "."


def lines() -> list[Row]:
    """Texts of which many are twins: of one address or several, with other dates and names."""
    made: list[Row] = [
        {"text": prose(n), "url": f"https://a.org/{n}", "language": "eng"} for n in range(60)
    ]
    for n in range(20):
        twin = made[n]
        made.append(twin | {"source": "web", "licence": "CC0-1.0"})
        made.append(twin | {"source": "books", "language": "deu"})
        made.append(twin | {"source": "books", "language": "eng", "licence": "CC-BY-4.0"})
        made.append(twin | {"url": f"https://b.org/{n}", "source": "copy"})
        if n % 3 == 0:
            near = twin["text"].replace(" ", f" new{n} ", 1)
            made.append(twin | {"text": near, "url": f"https://c.org/{n}", "date": "2021-01-01"})
        if n % 3 == 1:
            made.append(twin | {"date": "2020-01-01", "source": "old"})
    return made


def pages() -> list[bytes]:
    """Pages that came twice, byte for byte alike, but with another charset in the header.

    The second half differs by a sign alone, which no two readings have in common as a letter.
    """
    made = []
    for n in range(30):
        letter = "\xe4" if n < 15 else "\xa4"
        body = (
            page(f"{prose(f'page {n}')} {letter} {prose(f'rest {n}')}").decode().encode("latin-1")
        )
        for charset in ("iso-8859-15", "koi8-r", "windows-1251"):
            headers = {"Content-Type": f"text/html; charset={charset}"}
            made.append(warc_response(f"https://p.org/{n}", body, headers))
    return made


def built(root: Path, texts: list[list[Row]], archives: list[list[bytes]]) -> Path:
    root.mkdir()
    names = []
    for number, cut in enumerate(texts):
        names.append(root / f"{number}.jsonl")
        names[-1].write_text("".join(json.dumps(row) + "\n" for row in cut))
    for number, records in enumerate(archives):
        names.append(root / f"{number}.warc")
        names[-1].write_bytes(b"".join(records))
    build_corpus(replace(CORPUS, inputs=tuple(map(str, names))), root)
    (root / "tokenizer").mkdir()
    train_tokenizer(
        TokenizerConfig(vocab_size=400),
        Workspace(folder=root / "tokenizer", inputs={"corpus": root / "corpus"}),
    )
    pack_corpus(PACK, root)
    return root


def left(root: Path, sources: bool) -> dict[str, object]:
    """What a corpus is: its documents in whatever file, its vocabulary, and its token stream.

    sources   whether sources are looked at: that of a web archive is its file
    """
    rows = read_parts(root / "corpus", "documents")
    documents = sorted(repr(row if sources else row | {"source": ""}) for row in rows)
    patterns = ["*-0*.bin", "*-0*.idx", *(["*-0*.documents.parquet", MANIFEST] if sources else [])]
    packed = [path for pattern in patterns for path in sorted((root / "pack").glob(pattern))]
    files = [root / "tokenizer" / FILE, *packed]
    return {"documents": documents} | {path.name: path.read_bytes() for path in files}


@pytest.mark.parametrize("archives", [False, True])
def test_files_and_their_order_say_nothing(tmp_path: Path, archives: bool) -> None:
    texts, records = lines(), pages() if archives else []
    one = left(built(tmp_path / "one", [texts], [records] if archives else []), not archives)
    assert len(one) >= 8 and len(json.dumps(repr(one["documents"]))) > 20_000
    for seed in (1, 2):
        draw = random.Random(seed)
        draw.shuffle(texts)
        draw.shuffle(records)
        cuts = [texts[n :: 2 * seed + 1] for n in range(2 * seed + 1)]
        cuts.insert(seed, [{"text": ""}])  # a file of which nothing stays
        other = left(
            built(
                tmp_path / f"other{seed}",
                cuts,
                [records[n::2] for n in range(2)] if archives else [],
            ),
            not archives,
        )
        assert other.keys() == one.keys()
        assert [name for name in one if one[name] != other[name]] == []


def test_an_identifier_stands_for_one_document(tmp_path: Path) -> None:
    root = built(tmp_path / "one", [lines()], [pages()])
    names = [row["document_id"] for row in read_parts(root / "corpus", "documents")]
    assert len(names) == len(set(names))
    ledger = list(read_parts(root / "corpus", "ledger"))
    assert {row["document_id"] for row in ledger if row["decision"] == "kept"} == set(names)
    twice = [row for row in ledger if row["duplicate_of"] == row["document_id"]]
    assert {row["reason"] for row in twice} == {"exact_duplicate"}
    assert len(twice) >= 60  # two readings of each of 30 pages, and the twins among the lines
