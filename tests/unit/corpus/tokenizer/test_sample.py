"""The sample that a tokenizer is trained on: the same whatever the shards, balanced, bounded."""

from __future__ import annotations

import hashlib
import json
import random
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stamm.base.errors import DataError
from stamm.corpus.tables import DOCUMENTS_SCHEMA, write_rows
from stamm.corpus.tokenizer.config import TekkenConfig, TokenizerConfig
from stamm.corpus.tokenizer.job import (
    TokenizerSample,
    open_corpus_documents,
    shares,
    train_tokenizer,
)
from stamm.runs.job import Workspace
from stamm.tokenizer.tokenizer import Tokenizer

WORDS = {
    "deu_Latn": "und der die Würde des Menschen ist unantastbar achten schützen Verpflichtung",
    "eng_Latn": "the dignity of people is inviolable to respect and protect it shall be duty",
    "roh_Latn": "la dignitad da la persuna è invulnerabla respectar e proteger",
}


def documents() -> list[dict[str, Any]]:
    draw = random.Random(5)
    rows = []
    for language, count in (("deu_Latn", 120), ("eng_Latn", 60), ("roh_Latn", 6)):
        for i in range(count):
            text = " ".join(draw.choices(WORDS[language].split(), k=draw.randint(20, 60)))
            rows.append(
                row(f"{language}{i:03d}", text, language, "held_out" if i % 10 == 9 else "train")
            )
    rows.append({**row("probe", "zzyzx " * 40, "eng_Latn", "train"), "probe_id": "p0", "repeat": 9})
    return rows


def row(document_id: str, text: str, language: str, split: str) -> dict[str, Any]:
    return {
        "document_id": document_id,
        "text": text,
        "url": "",
        "source": "s",
        "licence": "CC0-1.0",
        "language": language,
        "split": split,
        "probe_id": None,
        "repeat": 1,
    }


def write(folder: Path, rows: list[dict[str, Any]], num_shards: int) -> Path:
    folder.mkdir(parents=True)
    for k in range(num_shards):
        path = folder / f"documents-{k:05d}.parquet"
        write_rows(path, DOCUMENTS_SCHEMA, rows[k::num_shards])
    return folder


def train(config: TokenizerConfig, corpus: Path, folder: Path) -> dict[str, bytes]:
    folder.mkdir()
    train_tokenizer(config, Workspace(folder=folder, inputs={"corpus": corpus}))
    return {path.name: path.read_bytes() for path in folder.iterdir()}


SMALL = TokenizerConfig(vocab_size=380)


@pytest.mark.parametrize("sample_bytes", [10**8, 4000])
def test_shards_and_their_order_change_no_byte(tmp_path: Path, sample_bytes: int) -> None:
    rows = documents()
    shuffled = random.Random(1).sample(rows, len(rows))
    config = TokenizerConfig(vocab_size=380, sample_bytes=sample_bytes)
    made = [
        train(config, write(tmp_path / f"c{k}", given, shards), tmp_path / f"t{k}")
        for k, (given, shards) in enumerate([(rows, 1), (rows, 5), (shuffled, 3)])
    ]
    assert made[0] == made[1] == made[2]
    assert set(made[0]) == {"tokenizer.json", "summary.json"}


def test_documents_of_a_sample_by_hand(tmp_path: Path) -> None:
    rows = documents()
    with open_corpus_documents(write(tmp_path / "c", rows, 2), tmp_path) as query:
        found = list(TokenizerSample(query, 4000, 0.5, "train").documents())
        whole = TokenizerSample(query, 10**8, 0.5, "train")
        assert whole.whole and len(list(whole.documents())) == len(
            [r for r in rows if r["split"] == "train"]
        )
    sizes: dict[str, int] = {}
    for r in rows:
        if r["split"] == "train":
            sizes[r["language"]] = sizes.get(r["language"], 0) + len(r["text"].encode())
    expected = []
    for language, share in shares(sizes, 4000, 0.5).items():
        own = [r for r in rows if r["split"] == "train" and r["language"] == language]
        size = 0
        for r in sorted(own, key=digest):
            if size < share:
                expected.append((digest(r), r["text"]))
                size += len(r["text"].encode())
    assert [d.text for d in found] == [text for _, text in sorted(expected)]
    assert sum(len(d.text.encode()) for d in found) < 4000 + 3 * 700


def digest(r: dict[str, Any]) -> str:
    return hashlib.sha256(f"tokenizer {r['document_id']}".encode()).hexdigest()


def test_shares_by_hand() -> None:
    assert shares({"a": 900, "b": 100}, 400, 1.0) == {"a": 360, "b": 40}
    assert shares({"a": 900, "b": 100}, 80, 0.0) == {"a": 40, "b": 40}
    assert shares({"a": 900, "b": 100}, 80, 0.5) == {"a": 60, "b": 20}
    # b has no more than 100; a takes what b cannot give.
    assert shares({"a": 900, "b": 100}, 400, 0.0) == {"b": 100, "a": 300}
    assert shares({"a": 5, "b": 7}, 10**9, 0.5) == {"a": 5, "b": 7}
    assert shares({}, 10, 0.5) == {}


@given(
    st.dictionaries(st.text(max_size=3), st.integers(0, 10**12), max_size=12),
    st.integers(1, 10**12),
    st.floats(0, 1),
)
def test_shares_keep_the_budget(sizes: dict[str, int], budget: int, temperature: float) -> None:
    given = shares(sizes, budget, temperature)
    assert given.keys() == sizes.keys()
    assert all(given[name] <= max(1, sizes[name]) for name in sizes)
    assert sum(given.values()) <= min(budget, sum(sizes.values())) + len(sizes)
    assert sum(given.values()) >= min(budget, sum(sizes.values())) * (1 - 1e-9) - len(sizes)


def test_probes_are_trained_on_once_and_not_measured(tmp_path: Path) -> None:
    rows = documents()
    made = train(SMALL, write(tmp_path / "c", rows, 1), tmp_path / "t")
    summary = json.loads(made["summary.json"])
    train_rows = [r for r in rows if r["split"] == "train" and r["probe_id"] is None]
    assert summary["train"]["documents"] == len(train_rows)
    assert summary["train"]["bytes"] == sum(len(r["text"].encode()) for r in train_rows)
    assert summary["train"]["whole"] is True
    assert summary["train"]["corpus_bytes"] == summary["train"]["bytes"]
    tokenizer = Tokenizer(made["tokenizer.json"].decode())
    german = [r["text"] for r in train_rows if r["language"] == "deu_Latn"]
    told = summary["train"]["languages"]["deu_Latn"]
    tokens = sum(len(tokenizer.encode_slowly(text)) for text in german)
    assert told["tokens"] == tokens
    assert told["tokens_per_word"] == round(tokens / sum(len(t.split(" ")) for t in german), 4)
    assert list(summary["train"]["languages"]) == ["deu_Latn", "eng_Latn", "roh_Latn"]
    assert summary["held_out"]["documents"] == 18
    assert summary["fast"] is True
    assert summary["parallel"]["lines"] == 30
    assert len(summary["parallel"]["languages"]) == 39
    assert 0 < summary["parallel"]["gini"] < 0.5


def test_a_poor_corpus_is_reported(tmp_path: Path) -> None:
    corpus = write(tmp_path / "c", [row("a", "aa", "eng_Latn", "train")], 1)
    with pytest.raises(DataError, match=r"gives \d+ tokens, fewer than 6144") as caught:
        train(TokenizerConfig(), corpus, tmp_path / "t")
    assert f"`stamm show ledger {tmp_path} decision=dropped`" in caught.value.fix
    assert not list((tmp_path / "t").iterdir())


def test_an_empty_held_out_split_is_measured_as_nothing(tmp_path: Path) -> None:
    rows = [r for r in documents() if r["split"] == "train"]
    made = train(SMALL, write(tmp_path / "c", rows, 1), tmp_path / "t")
    summary = json.loads(made["summary.json"])
    assert summary["held_out"]["documents"] == 0
    assert summary["held_out"]["bytes_per_token"] is None
    assert summary["held_out"]["languages"] == {}


def test_tekken_needs_no_training_but_its_package(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    corpus, folder = write(tmp_path / "c", documents(), 1), tmp_path / "t"
    folder.mkdir()
    with pytest.raises(DataError, match="not installed"):
        train_tokenizer(TekkenConfig(), Workspace(folder=folder, inputs={"corpus": corpus}))
