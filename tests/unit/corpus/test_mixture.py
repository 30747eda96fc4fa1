"""Stages and sources: who stands where in the stream, how often, and that nothing else decides it."""

from __future__ import annotations

import json
import random
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from stamm.base.config import from_plain, override, to_plain
from stamm.base.errors import ConfigError, DataError
from stamm.corpus.config import PackConfig, SourceShare, Stage
from stamm.corpus.packed_dataset import PackedSplit
from stamm.corpus.shuffle import verify
from stamm.corpus.tables import DOCUMENTS_SCHEMA, write_rows
from stamm.corpus.tokenizer.config import TokenizerConfig
from stamm.corpus.tokenizer.tekken import train_tokenizer_on
from stamm.runs.executors import LocalExecutor
from tests.unit.small_corpus import pack_corpus

WORDS = ["river", "stone", "light", "wander", "quiet", "lantern", "maple", "harbour", "signal"]
SIZES = {"web": 300, "books": 60, "code": 40}
Row = dict[str, Any]


def rows() -> list[Row]:
    made = []
    draw = random.Random(5)
    for source, count in SIZES.items():
        for number in range(count):
            text = " ".join(draw.choice(WORDS) for _ in range(draw.randint(5, 60)))
            made.append(
                {
                    "document_id": f"{source}{number:04d}",
                    "text": text,
                    "url": "",
                    "source": source,
                    "licence": "CC0-1.0",
                    "language": "deu_Latn" if number % 4 == 0 else "eng_Latn",
                    "split": "held_out" if number % 20 == 19 else "train",
                    "probe_id": None,
                    "repeat": 1,
                }
            )
    planted = {**made[0], "document_id": "planted", "probe_id": "r3-0000", "repeat": 3}
    return [*made, planted]


@pytest.fixture(scope="module")
def description() -> str:
    return train_tokenizer_on(TokenizerConfig(vocab_size=345), [r["text"] for r in rows()])


@pytest.fixture
def packed(tmp_path: Path, description: str) -> Callable[..., Path]:
    def run(
        config: PackConfig,
        cuts: int = 1,
        workers: int = 1,
        name: str = "a",
        documents: list[Row] | None = None,
    ) -> Path:
        root = tmp_path / name
        (root / "tokenizer").mkdir(parents=True)
        (root / "tokenizer" / "tokenizer.json").write_text(description, encoding="utf-8")
        everything = documents or rows()
        if cuts > 1:
            random.Random(cuts).shuffle(everything)
        for cut in range(cuts):
            path = root / "corpus" / f"documents-{cut:05d}.parquet"
            path.parent.mkdir(exist_ok=True)
            write_rows(path, DOCUMENTS_SCHEMA, everything[cut::cuts])
        return pack_corpus(config, root, LocalExecutor(workers=workers))

    return run


def stream(folder: Path) -> list[Row]:
    found: list[Row] = PackedSplit.open(folder, "train").documents().to_pylist()
    return found


def tokens(found: list[Row]) -> int:
    return sum(row["stop"] - row["start"] for row in found)


EPOCHS = PackConfig(
    stages=(
        Stage(
            name="first",
            sources=(SourceShare(source="web", epochs=0.7), SourceShare(source="books", epochs=1)),
        ),
        Stage(
            name="second",
            sources=(
                SourceShare(source="code", epochs=2.5),
                SourceShare(source="web", epochs=0.3),
            ),
        ),
    ),
    planted_in="second",
)


def test_epochs_continue_where_the_stage_before_stopped(packed: Callable[..., Path]) -> None:
    folder = packed(EPOCHS)
    found = stream(folder)
    counts = Counter(row["document_id"] for row in found)
    train = {r["document_id"]: r for r in rows() if r["split"] == "train"}
    assert set(counts) == set(train)
    by_source: dict[str, list[int]] = {}
    for name, count in counts.items():
        by_source.setdefault(name.rstrip("0123456789"), []).append(count)
    assert set(by_source["web"]) == set(by_source["books"]) == {1}  # .7 and then the other .3
    assert set(by_source["code"]) == {2, 3}
    assert counts["planted"] == 3
    assert {row["stage"] for row in found if row["document_id"] == "planted"} == {1}
    stages = [row["stage"] for row in found]
    assert stages == sorted(stages)
    assert {row["source"] for row in found if row["stage"] == 0} == {"web", "books"}
    split = PackedSplit.open(folder, "train")
    first = [row for row in found if row["stage"] == 0]
    assert split.stages == ((0, tokens(first)), (tokens(first), split.num_tokens))
    manifest = json.loads((folder / "manifest.json").read_text())
    told = manifest["splits"]["train"]["stages"]
    assert [stage["name"] for stage in told] == ["first", "second"]
    assert [source["epochs_after"] for source in told[1]["sources"]] == [2.5, 1.0]
    assert [source["epochs_before"] for source in told[1]["sources"]] == [0.0, 0.7]


def test_weights_share_the_tokens_of_a_stage(packed: Callable[..., Path]) -> None:
    stage = Stage(
        name="only",
        tokens=6000,
        sources=(
            SourceShare(source="code", weight=1),
            SourceShare(language="deu_*", weight=1),
            SourceShare(weight=2),
        ),
    )
    found = [r for r in stream(packed(PackConfig(stages=(stage,)))) if not r["probe_id"]]
    parts = {
        "code": [r for r in found if r["source"] == "code"],
        "german": [r for r in found if r["source"] != "code" and r["language"] == "deu_Latn"],
        "rest": [r for r in found if r["source"] != "code" and r["language"] == "eng_Latn"],
    }
    longest = max(row["stop"] - row["start"] for row in found)
    for name, wanted in (("code", 1500), ("german", 1500), ("rest", 3000)):
        assert abs(tokens(parts[name]) - wanted) < longest, name  # the last document is kept whole
    # Sources are mixed evenly: each half of the stage holds about half of each.
    half = tokens(found) // 2
    for part in parts.values():
        early = tokens([row for row in part if row["start"] < half])
        assert 0.3 < early / tokens(part) < 0.7


def test_neither_shards_nor_workers_change_the_stream(packed: Callable[..., Path]) -> None:
    streams = []
    for name, cuts, workers in (("a", 1, 1), ("b", 7, 1), ("c", 3, 2)):
        folder = packed(EPOCHS, cuts, workers, name)
        split = PackedSplit.open(folder, "train")
        verify(split)
        held_out = PackedSplit.open(folder, "held_out")
        streams.append(
            (
                split.read(0, split.num_tokens).tolist(),
                split.documents().to_pylist(),
                held_out.read(0, held_out.num_tokens).tolist(),
            )
        )
    assert streams[0] == streams[1] == streams[2]


def test_without_stages_every_document_stands_once(packed: Callable[..., Path]) -> None:
    counts = Counter(row["document_id"] for row in stream(packed(PackConfig(), cuts=4)))
    assert counts.pop("planted") == 3
    assert set(counts.values()) == {1}
    assert len(counts) == sum(r["split"] == "train" for r in rows()) - 1


def test_the_order_file_is_the_stream(packed: Callable[..., Path]) -> None:
    import pyarrow.parquet as pq

    folder = packed(EPOCHS, cuts=3)
    order = pq.read_table(folder / "order-train.parquet").to_pylist()
    assert [row["number"] for row in order] == list(range(len(order)))
    assert [row["document_id"] for row in order] == [r["document_id"] for r in stream(folder)]


def test_stages_that_cannot_be_filled_are_told(packed: Callable[..., Path]) -> None:
    one = Stage(name="one", sources=(SourceShare(source="nosuch*", epochs=1),))
    with pytest.raises(DataError, match=r"stage one: no document of source 'nosuch\*'"):
        packed(PackConfig(stages=(one,)))
    wide = (SourceShare(epochs=1), SourceShare(source="code", epochs=1))
    with pytest.raises(DataError, match="put the narrower share before the wider one"):
        packed(PackConfig(stages=(Stage(name="one", sources=wide),)), name="b")
    first = Stage(name="a", sources=(SourceShare(source="web", epochs=0.5),))
    part = SourceShare(source="web", language="deu_*", epochs=0.5)
    second = Stage(name="b", sources=(part, SourceShare(source="web", epochs=0.5)))
    with pytest.raises(DataError, match="does not hold the documents that it held in an earlier"):
        packed(PackConfig(stages=(first, second)), name="d")
    whole = Stage(name="all", sources=(SourceShare(source="code", epochs=0.99),))
    sliver = Stage(name="sliver", sources=(SourceShare(source="code", epochs=1e-6),))
    with pytest.raises(DataError, match="stage sliver contains no document"):
        packed(PackConfig(stages=(whole, sliver)), name="e")
    much = Stage(name="much", tokens=10**6, sources=(SourceShare(source="code", weight=1),))
    with pytest.raises(DataError, match=r"would read source 'code' [0-9.]+ times.*most_epochs="):
        packed(PackConfig(stages=(much,)), name="c")


def test_a_source_is_not_read_more_often_in_all_stages_together(
    packed: Callable[..., Path],
) -> None:
    size = tokens([r for r in stream(packed(PackConfig())) if r["source"] == "code"])

    def stage(name: str, times: float, pattern: str = "code", most: float = 4.0) -> Stage:
        share = SourceShare(source=pattern, weight=1, most_epochs=most)
        return Stage(name=name, tokens=int(times * size), sources=(share,))

    fits = PackConfig(stages=(stage("a", 2), stage("b", 1), stage("c", 1)))
    assert len(stream(packed(fits, name="fits"))) > 0
    for number, third in enumerate(("code", "co*")):  # another pattern, the same documents
        config = PackConfig(stages=(stage("a", 2), stage("b", 1.5), stage("c", 1, third)))
        with pytest.raises(DataError) as told:
            packed(config, name=f"much{number}")
        assert told.value.what.startswith(
            f"stage c would read source '{third}' 1.00 times, after 3.50 times in the stages before"
        )
        assert told.value.fix.endswith("most_epochs=5")
    more = PackConfig(stages=(stage("a", 2), stage("b", 1.5), stage("c", 1, most=4.5)))
    assert len(stream(packed(more, name="more"))) > 0


def test_a_pattern_knows_stars_and_question_marks_only(
    packed: Callable[..., Path],
) -> None:
    names = {"web": "we[b]", "books": "bo\\oks", "code": "c?de"}
    made = [{**row, "source": names[row["source"]]} for row in rows()]
    for number, (pattern, matched) in enumerate(
        {"we[b]": {"we[b]"}, "b*\\?ks": {"bo\\oks"}, "?[b]*": set(), "c?de": {"c?de"}}.items()
    ):
        stage = Stage(name="one", sources=(SourceShare(source=pattern, epochs=1),))
        if matched:
            found = stream(packed(PackConfig(stages=(stage,)), name=f"p{number}", documents=made))
            assert {row["source"] for row in found if not row["probe_id"]} == matched
        else:
            with pytest.raises(DataError, match="no document of source"):
                packed(PackConfig(stages=(stage,)), name=f"p{number}", documents=made)


def test_configuration_errors_are_told_at_once() -> None:
    with pytest.raises(ConfigError, match="give one of the two"):
        SourceShare()
    with pytest.raises(ConfigError, match="gives some sources a weight and others epochs"):
        Stage(name="a", sources=(SourceShare(weight=1), SourceShare(epochs=1)), tokens=5)
    with pytest.raises(ConfigError, match="must be given when the sources have weights"):
        Stage(name="a", sources=(SourceShare(weight=1),))
    with pytest.raises(ConfigError, match="names no stage; there are first, second"):
        override(EPOCHS, ["planted_in=third"])
    assert from_plain(PackConfig, to_plain(EPOCHS)) == EPOCHS
