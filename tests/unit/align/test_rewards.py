"""Verifiable rewards on answers that are right, wrong, malformed or hostile."""

from __future__ import annotations

import json
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from stamm.align.rewards.reward import Answer
from stamm.align.rewards.reward_config import JsonFormat, Language, Length, Number, RewardConfig
from stamm.align.rewards.rules import last_number, load_reward
from stamm.base.errors import ConfigError, DataError
from stamm.chat.conversation import (
    AssistantTurn,
    Conversation,
    Response,
    Thoughts,
    ToolCall,
    ToolCalls,
    ToolOutputs,
    UserTurn,
)


def score(config: RewardConfig, text: str, **row: Any) -> float:
    prompt = Conversation(turns=(UserTurn("?"),))
    return load_reward(config)(Answer(prompt, AssistantTurn((Response(text),)), row))


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("She has 16 - 3 = 13. #### 72", "72"),
        ("#### 1,234.50 dollars in 2 months", "1234.5"),
        (r"So \boxed{-7} it is, of 9", "-7"),
        ("first 3, then 4.", "4"),
        ("12,5 is not a group", "5"),
        ("$1,000,000", "1000000"),
        ("a .5 b", "0.5"),
        ("none", None),
        ("", None),
    ],
)
def test_the_last_number_of_a_worked_answer(text: str, number: str | None) -> None:
    assert last_number(text) == (None if number is None else Decimal(number))


def test_numbers_are_compared_exactly_or_within_a_tolerance() -> None:
    assert score(Number(), "#### 72", answer="72") == 1
    assert score(Number(), "72.0", answer=72) == 1
    assert score(Number(), "72.1", answer=72) == 0
    assert score(Number(tolerance=0.1), "72.1", answer=72) == 1
    assert score(Number(column="final"), "x", final="1,000") == 0
    assert score(Number(), "1000", answer="Sum: 3\n#### 1,000") == 1
    with pytest.raises(DataError, match="no column answer"):
        score(Number(), "1")
    with pytest.raises(DataError, match="is not a number"):
        score(Number(), "1", answer="many")
    with pytest.raises(DataError, match="not a finite number"):
        score(Number(), "1", answer="NaN")


def test_thoughts_and_tool_outputs_do_not_count() -> None:
    blocks = (
        Thoughts("72"),
        ToolCalls((ToolCall("f", "72"),)),
        ToolOutputs(("72",)),
        Response("I think 71"),
    )
    answer = Answer(Conversation(turns=()), AssistantTurn(blocks), {"answer": 72})
    assert load_reward(Number())(answer) == 0


def test_json_is_parsed_and_checked_against_a_schema(tmp_path: Path) -> None:
    schema = {"type": "object", "required": ["a"], "properties": {"a": {"type": "integer"}}}
    file = tmp_path / "schema.json"
    file.write_text(json.dumps(schema))
    config = JsonFormat(schema=str(file))
    assert score(config, '{"a": 1}') == 1
    assert score(config, '```json\n{"a": 1}\n```') == 1
    assert score(JsonFormat(schema=str(file), fence=False), '```json\n{"a": 1}\n```') == 0
    assert score(config, '{"a": "1"}') == 0
    assert score(config, 'Here: {"a": 1}') == 0
    assert score(JsonFormat(), "[1, 2]") == 1
    assert score(JsonFormat(), "NaN") == 0
    assert score(JsonFormat(), "[" * 100_000) == 0
    assert score(JsonFormat(), '{"a": 1}', schema=schema) == 1
    assert score(JsonFormat(), "{}", schema=schema) == 0


def test_schemas_that_are_wrong_or_elsewhere_are_named(tmp_path: Path) -> None:
    file = tmp_path / "schema.json"
    file.write_text('{"type": "wizard"}')
    with pytest.raises(DataError, match="not a JSON schema"):
        score(JsonFormat(schema=str(file)), "{}")
    with pytest.raises(DataError, match="cannot be applied"):
        score(JsonFormat(), "{}", schema={"$ref": "http://localhost:1/schema.json"})


def test_length_is_a_window_of_characters() -> None:
    assert [score(Length(smallest=2, largest=3), "ä" * n) for n in (1, 2, 3, 4)] == [0, 1, 1, 0]
    with pytest.raises(ConfigError, match="smallest"):
        Length(smallest=4, largest=3)


def test_the_language_of_an_answer() -> None:
    german = "Der schnelle braune Fuchs springt über den faulen Hund, und das jeden Tag aufs Neue."
    assert score(Language(language="deu_Latn"), german) == 1
    assert score(Language(), german, language="fra_Latn") == 0
    with pytest.raises(DataError, match="no column language"):
        score(Language(), german)
