"""Rows of alignment data: TRL's columns, our own, and rows that cannot be read."""

from __future__ import annotations

import gzip
import json
import zlib
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from stamm.align.data.dataset_reader import BadRow, read_examples, read_rows, truncated_files
from stamm.align.data.examples import (
    ChatExample,
    PreferencePair,
    PromptExample,
    RatedAnswer,
    RowOrigin,
    read_example,
)
from stamm.align.records import truncation_sentence
from stamm.base.errors import DataError
from stamm.chat.conversation import AssistantTurn, Response, UserTurn

USER, GOOD, BAD = (
    {"role": "user", "content": "2+2?"},
    {"role": "assistant", "content": "4"},
    {"role": "assistant", "content": "5"},
)
TOOL = {"name": "f", "description": "Does it."}
ORIGIN = RowOrigin(file="data.jsonl", row=1)
FOUR, FIVE = AssistantTurn((Response("4"),)), AssistantTurn((Response("5"),))


def read(**row: Any) -> Any:
    return read_example(row, ORIGIN)


def test_columns_decide_what_a_row_is() -> None:
    assert isinstance(read(messages=[USER, GOOD]), ChatExample)
    assert isinstance(read(prompt=[USER], completion=[GOOD]), ChatExample)
    assert isinstance(read(prompt="2+2?", completion="4"), ChatExample)
    assert isinstance(read(prompt=[USER]), PromptExample)
    assert isinstance(read(prompt=[USER], chosen=[GOOD], rejected=[BAD]), PreferencePair)
    assert isinstance(read(prompt="2+2?", completion="4", label=True), RatedAnswer)


def test_strings_and_messages_are_the_same_example() -> None:
    plain, listed = read(prompt="2+2?", completion="4"), read(messages=[USER, GOOD])
    assert plain.conversation == listed.conversation
    assert plain.conversation.turns == (UserTurn("2+2?"), FOUR)


def test_a_pair_without_a_prompt_has_the_shared_beginning_as_one() -> None:
    explicit = read(prompt=[USER], chosen=[GOOD], rejected=[BAD])
    implicit = read(chosen=[USER, GOOD], rejected=[USER, BAD])
    assert (implicit.prompt, implicit.chosen, implicit.rejected) == (
        explicit.prompt,
        explicit.chosen,
        explicit.rejected,
    )
    assert (implicit.chosen, implicit.rejected) == (FOUR, FIVE)


def test_a_pair_may_repeat_its_prompt_in_both_answers() -> None:
    """As HuggingFaceH4/ultrafeedback_binarized has it, with the scores of both."""
    found = read(
        prompt="2+2?", chosen=[USER, GOOD], rejected=[USER, BAD], score_chosen=8.5, score_rejected=1
    )
    assert (found.prompt.turns, found.chosen, found.rejected) == ((UserTurn("2+2?"),), FOUR, FIVE)
    assert (found.chosen_reward, found.rejected_reward) == (8.5, 1.0)


def test_an_answer_without_content_is_read_only_where_it_is_asked_for() -> None:
    row = {"prompt": "2+2?", "completion": [{"role": "assistant", "content": ""}]}
    origin = RowOrigin(file="f", row=1)
    found = read_example(row, origin, empty_answers=True)
    assert isinstance(found, ChatExample)
    assert found.conversation.turns == (UserTurn("2+2?"), AssistantTurn(()))
    with pytest.raises(DataError, match="turn is empty"):
        read_example(row, origin)
    earlier = [USER, {"role": "assistant", "content": ""}, USER]
    with pytest.raises(DataError, match="turn is empty"):
        read_example({**row, "prompt": earlier}, origin, empty_answers=True)


def test_rewards_and_labels_are_numbers() -> None:
    rated = read(prompt="2+2?", completion="4", reward=0.5, ref_rewards=[1, 0.25])
    assert (rated.reward, rated.ref_rewards, rated.completion) == (0.5, (1.0, 0.25), FOUR)
    assert read(prompt="2+2?", completion="4", label=False).reward == 0.0


def test_the_origin_is_kept_for_the_ledger() -> None:
    found = read(messages=[USER, GOOD], id="a1", source="here", license="MIT")
    assert found.origin == RowOrigin(
        file="data.jsonl", row=1, id="a1", source="here", licence="MIT"
    )


@pytest.mark.parametrize(
    ("row", "message"),
    [
        (3, "not an object"),
        ({"text": "x"}, "no known combination of columns: text"),
        ({"messages": [USER]}, "does not end with the assistant"),
        ({"messages": []}, "at least one message"),
        ({"prompt": [USER, GOOD]}, "does not end with the user"),
        ({"prompt": [USER], "chosen": [GOOD], "rejected": [GOOD]}, "the same answer"),
        ({"prompt": [USER], "chosen": [GOOD, USER], "rejected": [BAD]}, "exactly one answer"),
        (
            {"prompt": [USER], "completion": [], "reward": 1},
            "completion has no answer of the assistant",
        ),
        ({"prompt": "a", "completion": "b", "reward": float("nan")}, "nan, which is not a finite"),
        ({"prompt": "a", "completion": "b", "reward": True}, "not a finite number"),
        (
            {"prompt": "a", "completion": "b", "reward": 1, "ref_rewards": ["x"]},
            "ref_rewards holds",
        ),
        ({"prompt": "a", "completion": "b", "label": 2}, "not true or false"),
        ({"prompt": "a", "completion": ""}, "turn is empty"),
        ({"prompt": 3, "completion": "b"}, "prompt is neither text"),
        (
            {"messages": [USER, {"role": "assistant", "content": {"blocks": 0}}]},
            "blocks is not a list",
        ),
        ({"messages": [USER, {**GOOD, "tool_calls": 1}]}, "tool_calls is not a list"),
        ({"messages": [USER, GOOD], "tools": "[{"}, "tools is text, and not JSON"),
        (
            {"messages": [USER, GOOD], "tools": [{**TOOL, "parameters": []}]},
            r"\(f\): parameters is not",
        ),
        (
            {"messages": [USER, GOOD], "tools": [{**TOOL, "parameters": {"properties": {"a": 1}}}]},
            "parameters: a is not an object",
        ),
    ],
)
def test_a_wrong_row_is_named(row: Any, message: str) -> None:
    with pytest.raises(DataError, match=message):
        read_example(row, ORIGIN)


def test_a_file_with_bad_rows_is_read_to_its_end(tmp_path: Path) -> None:
    good = json.dumps({"messages": [USER, GOOD]}).encode()
    lines = [good, b"{", b"", b'{"text": "x"}', b"\xff\xfe", b"[" * 100_000, good]
    path = tmp_path / "data.jsonl.gz"
    path.write_bytes(gzip.compress(b"\n".join(lines)))
    found = list(read_examples(path))
    bad = [each for each in found if isinstance(each, BadRow)]
    assert [each.row for each in bad] == [2, 4, 5, 6]
    assert sum(isinstance(each, ChatExample) for each in found) == 2
    assert bad[1].line().startswith("data.jsonl.gz, row 4: no known combination")


def test_half_of_a_character_is_a_bad_row_and_a_whole_one_is_text(tmp_path: Path) -> None:
    texts = [r"\ud83d", r"\ud83d\ude00", r"\uDE00\ud83d", r"\\ud83d"]
    lines = (f'{{"prompt": "Hi", "completion": "{text}"}}' for text in texts)
    tools = json.dumps(
        {"messages": [USER, GOOD], "tools": json.dumps([TOOL]).replace("it", r"\ud83d")}
    )
    (tmp_path / "data.jsonl").write_text("\n".join([*lines, tools]))
    rows = list(read_rows(tmp_path / "data.jsonl"))
    reasons = [each.reason if isinstance(each, BadRow) else "" for _, each in rows]
    assert ["surrogate" in reason for reason in reasons] == [True, False, True, False, False]
    assert "not JSON of Unicode text" in reasons[4]
    assert [row.get("completion") for row, _ in rows[1:4:2]] == ["\U0001f600", r"\ud83d"]


def test_parquet_gives_the_examples_of_jsonl(tmp_path: Path) -> None:
    rows = [
        {"prompt": [USER], "chosen": [GOOD], "rejected": [BAD], "id": "1", "extra": [1]},
        {"prompt": [USER], "chosen": [BAD], "rejected": [GOOD], "id": "2", "extra": None},
    ]
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "data.parquet")
    (tmp_path / "data.jsonl").write_text("\n".join(map(json.dumps, rows)))
    tables = [
        [each for each in read_examples(tmp_path / name) if isinstance(each, PreferencePair)]
        for name in ("data.parquet", "data.jsonl")
    ]
    assert [(p.prompt, p.chosen, p.origin.id) for p in tables[0]] == [
        (p.prompt, p.chosen, p.origin.id) for p in tables[1]
    ]
    assert len(tables[0]) == 2


def test_fields_that_only_other_rows_of_a_parquet_file_have_are_absent(tmp_path: Path) -> None:
    tools = [
        {**TOOL, "parameters": {"properties": {"a": {"type": "string"}}}},
        {**TOOL, "parameters": {"properties": {"b": {"type": "number", "default": 1}}}},
    ]
    rows = [{"messages": [USER, GOOD], "tools": [tool]} for tool in tools]
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "data.parquet")
    found = [
        each for each in read_examples(tmp_path / "data.parquet") if isinstance(each, ChatExample)
    ]
    assert [example.conversation.tools for example in found] == [(tool,) for tool in tools]
    as_text = read(messages=[USER, GOOD], tools=json.dumps([tools[0]]))
    assert as_text.conversation.tools == (tools[0],)


def test_a_broken_or_unknown_file_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "data.parquet").write_bytes(b"PAR1 no")
    (bad,) = read_examples(tmp_path / "data.parquet")
    assert isinstance(bad, BadRow)
    assert "rows from 1 on are lost" in bad.reason
    table = pa.table({"prompt": ["a"], "created": pa.array([2**62], pa.duration("s"))})
    pq.write_table(table, tmp_path / "data.parquet")
    (bad,) = read_examples(tmp_path / "data.parquet")
    assert isinstance(bad, BadRow)
    assert bad.reason == "Python int too large to convert to C int; rows from 1 on are lost"
    for name, message in (("data.csv", "unknown format"), ("none.jsonl", "cannot read")):
        with pytest.raises(DataError, match=message):
            list(read_examples(tmp_path / name))


_ROWS = [{"prompt": f"{k}?", "completion": f"It is {k}, or {k * k}."} for k in range(400)]


@pytest.mark.parametrize(
    ("name", "cut"),
    [
        ("a.jsonl", 10_000),
        ("a.jsonl", -1),  # the line end alone is missing
        ("a.jsonl", -2),
        ("a.jsonl.gz", -1),  # all rows are there; whether more followed is not known
        ("a.jsonl.gz", 1000),
        ("a.jsonl.zst", -5),
        ("a.json", 10_000),
        ("a.json", -1),
    ],
)
def test_a_file_that_ends_in_the_middle_is_named(tmp_path: Path, name: str, cut: int) -> None:
    data = "".join(json.dumps(row) + "\n" for row in _ROWS).encode()
    if name == "a.json":
        data = json.dumps(_ROWS).encode()
    if name.endswith(".gz"):
        data = gzip.compress(data, mtime=0)
    if name.endswith(".zst"):
        data = pa.compress(data, codec="zstd", asbytes=True)
    path = tmp_path / name
    path.write_bytes(data[:cut])
    whole = zlib.decompressobj(31).decompress(data[:cut]) if name.endswith(".gz") else data[:cut]
    first = None if (name, cut) == ("a.jsonl", -1) else whole.count(b"}") + 1
    if name.endswith(".zst"):
        first = 1  # it is one block
    bad = [example for example in read_examples(path) if isinstance(example, BadRow)]
    if first is None:
        assert bad == []
        return
    (row,) = bad
    assert (row.cause, row.row) == ("truncated_file", first)
    assert f"the file ends in the middle: rows from {first} on are lost" in row.reason
    assert truncation_sentence(truncated_files(bad)) == (
        f"1 file ends in the middle, and rows are lost: {name} from row {first} on."
    )


@pytest.mark.parametrize(
    "ending", ['{"prompt": "q", completion}', "no row", '{"prompt": "q"}}', '{"a": 1}\n{"b": \n']
)
def test_a_bad_last_row_of_a_whole_file_is_no_file_that_ends_in_the_middle(
    tmp_path: Path, ending: str
) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text(f"{json.dumps(_ROWS[0])}\n{ending}")
    bad = [example for example in read_examples(path) if isinstance(example, BadRow)]
    assert bad and {row.cause for row in bad} == {"bad_row"}
    assert truncation_sentence(truncated_files(bad)) == ""
