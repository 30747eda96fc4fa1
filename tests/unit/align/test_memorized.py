"""Answers that repeat a corpus: runs of words of the exact length, in any form of file."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from stamm.align.rewards.config import NotMemorized, reward_sources
from stamm.align.rewards.load_reward import load_reward
from stamm.align.rewards.reward import Answer
from stamm.align.rewards.rules import n_gram_index, shares_run
from stamm.base.errors import ConfigError, DataError
from stamm.chat.conversation import AssistantTurn, Conversation, Response, UserTurn
from tests.unit.untrained_run import untrained_run

WORDS = [f"word{number}" for number in range(40)]
OTHER = [f"other{number}" for number in range(40)]
TEXT = " ".join(WORDS)


def answer(text: str, prompt: str = "?") -> Answer:
    turns = (UserTurn(prompt),)
    return Answer(Conversation(turns=turns), AssistantTurn((Response(text),)), {})


@pytest.fixture
def corpus(tmp_path: Path) -> Path:
    file = tmp_path / "corpus.txt"
    file.write_text(TEXT + ".\n")
    return file


@pytest.mark.parametrize("shared", [0, 4, 5, 6, 12])
def test_a_run_counts_from_its_length_on(corpus: Path, shared: int) -> None:
    reward = load_reward(NotMemorized(corpus=(str(corpus),), words=5, min_words=3))
    text = " ".join([*OTHER[:6], *WORDS[10 : 10 + shared], *OTHER[6:9]])
    assert reward(answer(text)) == float(shared < 5)
    changed = text.upper().replace(" ", ",\n")  # case, punctuation and line breaks do not matter
    assert reward(answer(changed)) == float(shared < 5)


def test_a_short_answer_has_no_reward(corpus: Path) -> None:
    reward = load_reward(NotMemorized(corpus=(str(corpus),), words=5, min_words=8))
    assert [reward(answer(" ".join(OTHER[:n]))) for n in (0, 7, 8)] == [0, 0, 1]


def test_a_run_that_the_prompt_has_is_a_quotation(corpus: Path) -> None:
    reward = load_reward(NotMemorized(corpus=(str(corpus),), words=5, min_words=3))
    quoted = " ".join(WORDS[3:12])
    assert reward(answer(quoted)) == 0
    assert reward(answer(quoted, f"What follows from: {quoted}?")) == 1
    assert reward(answer(" ".join(WORDS[3:13]), f"What follows from: {quoted}?")) == 0


def test_every_format_gives_the_same_index(tmp_path: Path) -> None:
    rows = [{"body": TEXT}, {"body": " ".join(OTHER)}, {"body": "short"}]
    lines = "".join(json.dumps(row) + "\n" for row in rows)
    (tmp_path / "a.jsonl").write_text(lines)
    with pa.output_stream(tmp_path / "a.jsonl.zst") as stream:
        stream.write(lines.encode())
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "a.parquet")
    for name in ("a.jsonl", "a.jsonl.zst", "a.parquet"):
        config = NotMemorized(corpus=(str(tmp_path / name),), words=7, min_words=7, column="body")
        reward = load_reward(config)
        assert reward_sources(config) == {str(tmp_path / name): tmp_path / name}
        assert [reward(answer(" ".join(words[8:16]))) for words in (WORDS, OTHER)] == [0, 0]
        assert reward(answer(" ".join([*WORDS[34:], *OTHER[:6]]))) == 1  # across two documents


def test_the_corpus_of_a_run_is_what_it_is_trained_on(tmp_path: Path) -> None:
    untrained_run(tmp_path)
    (file,) = sorted((tmp_path / "corpus").glob("documents-*.parquet"))
    rows = pq.read_table(file).to_pylist()
    rows.append({**rows[0], "text": TEXT, "split": "held_out"})
    pq.write_table(pa.Table.from_pylist(rows, schema=pq.read_schema(file)), file)
    config = NotMemorized(corpus=(str(tmp_path),), words=9, min_words=9)
    reward = load_reward(config)
    assert reward(answer("the river is wide and the road is long the river")) == 0
    assert reward(answer(TEXT)) == 1  # held out
    assert reward_sources(config) == {str(file): file}


def test_an_index_of_many_texts_equals_that_of_one_after_the_other(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    texts = [" ".join(WORDS[n : n + 12]) for n in range(25)]
    whole = n_gram_index(texts, 4)
    assert len(whole) == len({tuple(WORDS[n : n + 4]) for n in range(33)})
    monkeypatch.setattr("stamm.align.rewards.rules._MERGED_AT_ONCE", 20)
    assert np.array_equal(n_gram_index(texts, 4), whole)
    nothing = np.empty(0, np.uint64)
    assert shares_run(texts[3], 4, whole, nothing)
    assert not shares_run(texts[3], 4, nothing, nothing)
    assert not shares_run("one two three", 4, whole, nothing)


def test_what_is_no_corpus_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text('{"text": "a b c"}\n{"body": "d"}\n')
    (tmp_path / "a.txt").write_text("too short")
    (tmp_path / "a.warc").write_text("")
    cases = {
        "a.jsonl": r"no_text.*record 2",
        "a.txt": "no text has 13 words",
        "a.warc": "unknown format",
        "absent.jsonl": "neither a run folder nor a file",
        "": "no documents",
    }
    for name, message in cases.items():
        with pytest.raises(DataError, match=message):
            load_reward(NotMemorized(corpus=(str(tmp_path / name),)))
    with pytest.raises(ConfigError, match="corpus"):
        NotMemorized(corpus=())
