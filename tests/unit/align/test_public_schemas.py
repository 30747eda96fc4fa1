"""Rows of published schemas, with every optional key set: read, or refused by the key's name.

The rows are written here after the documentation of OpenAI (fine-tuning), TRL, axolotl, LLaMA-Factory
and ms-swift, and after the cards of UltraFeedback (binarized), HH-RLHF, no_robots and Alpaca.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from stamm.align.data.dataset_reader import BadRow, read_rows
from stamm.align.data.examples import (
    ChatExample,
    Example,
    Kind,
    PreferencePair,
    PromptExample,
    RatedAnswer,
    RowOrigin,
    read_example,
    unknown_keys,
)
from stamm.base.errors import DataError
from stamm.chat.conversation import AssistantTurn, Response, Thoughts, UserTurn

Row = dict[str, Any]
ORIGIN = RowOrigin(file="rows.jsonl", row=1)
ASKED, GOOD, BAD = UserTurn("2+2?"), AssistantTurn((Response("4"),)), AssistantTurn((Response("5"),))  # fmt: skip
USER = {"role": "user", "content": "2+2?"}
RIGHT, WRONG = {"role": "assistant", "content": "4"}, {"role": "assistant", "content": "5"}
HUMAN = {"from": "human", "value": "2+2?"}
GPT, OTHER_GPT = {"from": "gpt", "value": "4"}, {"from": "gpt", "value": "5"}
HH = "\n\nHuman: 2+2?\n\nAssistant:"
TOOLS = [{"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}]


def read(row: Row, kind: Kind = "auto") -> Example:
    return read_example(row, ORIGIN, kind=kind)


CHATS: dict[str, Row] = {
    "OpenAI": {
        "messages": [USER, {**RIGHT, "weight": 1, "tool_calls": None, "refusal": None, "audio": None}],
        "tools": None,
        "parallel_tool_calls": True,
    },
    "OpenAI, functions": {
        "messages": [USER, RIGHT],
        "functions": [tool["function"] for tool in TOOLS],
        "function_call": "auto",
    },
    "TRL, prompt and completion": {
        "prompt": [USER],
        "completion": [RIGHT],
        "chat_template_kwargs": {"enable_thinking": False},
        "images": None,
    },
    "axolotl": {
        "messages": [{**USER, "train": False}, {**RIGHT, "train": True, "train_detail": None}],
    },
    "axolotl, training": {"messages": [USER, {**RIGHT, "training": True}]},
    "ms-swift": {"messages": [USER, {**RIGHT, "loss": True}], "images": [], "audios": [], "videos": []},
    "ShareGPT": {"id": "x_1", "conversations": [HUMAN, GPT]},
    "LLaMA-Factory, ShareGPT": {
        "conversations": [HUMAN, GPT],
        "system": "",
        "tools": json.dumps(TOOLS),
        "images": [],
        "videos": [],
        "audios": [],
    },
    "LLaMA-Factory, Alpaca": {
        "instruction": "2+2?",
        "input": "",
        "output": "4",
        "system": "",
        "history": [],
    },
    "Alpaca": {"instruction": "2+2?", "input": "", "output": "4", "text": "Below is an instruction"},
    "prompt and response": {"prompt": "2+2?", "response": "4"},
    "no_robots": {"prompt": "2+2?", "prompt_id": "a", "messages": [USER, RIGHT], "category": "Maths"},
}  # fmt: skip

PAIRS: dict[str, Row] = {
    "UltraFeedback": {
        "prompt": "2+2?",
        "prompt_id": "a",
        "chosen": [USER, RIGHT],
        "rejected": [USER, WRONG],
        "messages": [USER, RIGHT],
        "score_chosen": 9.0,
        "score_rejected": 3.0,
    },
    "HH-RLHF": {"chosen": f"{HH} 4", "rejected": f"{HH} 5"},
    "HH-RLHF with its prompt": {"prompt": HH, "chosen": f"{HH} 4", "rejected": f"{HH} 5"},
    "HH-RLHF, TRL": {"prompt": HH, "chosen": " 4", "rejected": " 5"},
    "the prompt repeated": {"prompt": "2+2?", "chosen": "2+2? 4", "rejected": "2+2? 5"},
    "TRL": {
        "prompt": [USER],
        "chosen": [RIGHT],
        "rejected": [WRONG],
        "ref_chosen_logps": -1.0,
        "ref_rejected_logps": -2.0,
        "chat_template_kwargs": None,
        "images": [],
    },
    "TRL, implicit prompt": {"chosen": [USER, RIGHT], "rejected": [USER, WRONG]},
    "LLaMA-Factory, Alpaca": {
        "instruction": "2+2?",
        "input": "",
        "chosen": "4",
        "rejected": "5",
        "system": "",
        "history": [],
    },
    "LLaMA-Factory, ShareGPT": {"conversations": [HUMAN], "chosen": GPT, "rejected": OTHER_GPT},
    "OpenAI-like messages": {"messages": [USER], "chosen": RIGHT, "rejected": WRONG},
}

RATED: dict[str, Row] = {
    "TRL, KTO": {"prompt": [USER], "completion": [RIGHT], "label": True},
    "labels as numbers": {"prompt": "2+2?", "completion": "4", "label": 1},
    "labels as text": {"prompt": "2+2?", "completion": "4", "label": "True"},
    "LLaMA-Factory, Alpaca": {"instruction": "2+2?", "input": "", "output": "4", "kto_tag": True},
    "LLaMA-Factory, ShareGPT": {"conversations": [HUMAN, GPT], "kto_tag": True},
    "messages": {"messages": [USER, RIGHT], "label": 1},
    "with rewards": {"messages": [USER, RIGHT], "reward": 1.0, "ref_rewards": [0.0]},
}


@pytest.mark.parametrize("name", CHATS)
def test_conversations(name: str) -> None:
    example = read(CHATS[name], "chat")
    assert isinstance(example, ChatExample)
    assert example.conversation.turns == (ASKED, GOOD)
    assert example.conversation.system is None
    left = ["category"] if name == "no_robots" else []
    assert list(unknown_keys(CHATS[name])) == left


@pytest.mark.parametrize("name", PAIRS)
def test_pairs(name: str) -> None:
    example = read(PAIRS[name], "preference")
    assert isinstance(example, PreferencePair)
    assert example.prompt.turns == (ASKED,)
    assert (example.chosen, example.rejected) == (GOOD, BAD)
    assert not list(unknown_keys(PAIRS[name]))


@pytest.mark.parametrize("name", RATED)
def test_rated_answers(name: str) -> None:
    row = RATED[name]
    example = read(row, "rated")
    assert isinstance(example, RatedAnswer)
    assert example.prompt.turns == (ASKED,)
    assert (example.completion, example.reward) == (GOOD, 1.0)
    if "reward" in row:
        return
    key = "label" if "label" in row else "kto_tag"
    other = "False" if row[key] == "True" else type(row[key])(0)
    assert isinstance(worse := read({**row, key: other}, "rated"), RatedAnswer)
    assert worse.reward == 0.0


def test_the_wanted_reading_decides_where_a_row_has_several() -> None:
    both = PAIRS["UltraFeedback"]
    assert isinstance(read(both, "chat"), ChatExample)
    assert isinstance(read(both), PreferencePair)
    labelled = {"messages": [USER, RIGHT], "label": False}
    assert isinstance(read(labelled), RatedAnswer)
    with pytest.raises(DataError, match="label = false marks an answer that is not wanted"):
        read(labelled, "chat")
    classes = {"messages": [USER, RIGHT], "label": 1}
    assert isinstance(read(classes), ChatExample)


def test_the_prompt_of_several_turns_is_what_both_answers_share() -> None:
    asked = {"role": "user", "content": "And 3+3?"}
    before, six, seven = [USER, RIGHT, asked], {**RIGHT, "content": "6"}, {**RIGHT, "content": "7"}
    rows: list[Row] = [
        {"prompt": before, "chosen": [six], "rejected": [seven]},
        {"prompt": before, "chosen": "6", "rejected": "7"},
        {"chosen": [*before, six], "rejected": [*before, seven]},
        {"prompt": "2+2?", "chosen": [*before, six], "rejected": [*before, seven]},
        {"prompt": "And 3+3?", "chosen": [*before, six], "rejected": [*before, seven]},
        {"prompt": [USER], "chosen": [*before[1:], six], "rejected": [*before[1:], seven]},
    ]
    for row in rows:
        example = read(row, "preference")
        assert isinstance(example, PreferencePair)
        assert example.prompt.turns == (ASKED, GOOD, UserTurn("And 3+3?"))
        assert example.chosen.blocks == (Response("6"),)
    with pytest.raises(DataError, match="chosen begins with another question than the prompt"):
        read({"prompt": "Why?", "chosen": [*before, six], "rejected": [*before, seven]})


def test_alpaca_has_an_input_and_earlier_turns() -> None:
    row = {"instruction": "Add.", "input": "2+2?", "output": "4", "history": [["Hi", "Hello"]]}
    example = read({**row, "system": "Be brief."}, "chat")
    assert isinstance(example, ChatExample)
    assert example.conversation.system == "Be brief."
    assert example.conversation.turns == (
        UserTurn("Hi"), AssistantTurn((Response("Hello"),)), UserTurn("Add.\n2+2?"), GOOD,
    )  # fmt: skip
    assert isinstance(read({"instruction": "Add."}), PromptExample)


def test_the_system_message_of_a_column() -> None:
    for row in (
        {"messages": [USER, RIGHT], "system": "Be brief."},
        {"messages": [{"role": "system", "content": "Be brief."}, USER, RIGHT], "system": "Be brief."},
        {"chosen": [USER, RIGHT], "rejected": [USER, WRONG], "system": "Be brief."},
        {"prompt": "2+2?", "chosen": [USER, RIGHT], "rejected": [USER, WRONG], "system": "Be brief."},
    ):  # fmt: skip
        example = read(row)
        whole = example.conversation if isinstance(example, ChatExample) else example.prompt
        assert (whole.system, whole.turns[0]) == ("Be brief.", ASKED)
    other = {"messages": [{"role": "system", "content": "x"}, USER, RIGHT], "system": "y"}
    with pytest.raises(DataError, match="system and the first message of the row are different"):
        read(other)


@pytest.mark.parametrize(
    ("keys", "what"),
    [
        ({"weight": 0.5}, "weight = 0.5 scales the loss of a row"),
        ({"sample_weight": 2}, "scales the loss of a row"),
        ({"train": False}, "train = False states whether a row is trained on"),
        ({"images": ["x.png"]}, "images = .* is not text"),
        ({"image": "x.png"}, "image = 'x.png' is not text"),
        ({"audios": ["x.wav"]}, "is not text"),
        ({"videos": ["x.mp4"]}, "is not text"),
        ({"parallel_tool_calls": False}, "parallel_tool_calls = False changes the prompt"),
        ({"tool_choice": "required"}, "restricts the tools"),
        ({"response_format": {"type": "json_object"}}, "restricts the answer"),
        ({"chat_template": "{{ x }}"}, "replaces the model's chat template"),
        ({"chat_template_kwargs": {"date": "today"}}, "chat_template_kwargs has date"),
        ({"chat_template_kwargs": {"enable_thinking": "no"}}, "which is not true or false"),
        ({"deliberation": 1}, "deliberation is 1, which is not true or false"),
        ({"documents": [{"text": "x"}]}, "adds documents to the prompt"),
        ({"reasoning": "Because."}, "reasoning = 'Because.' holds thoughts"),
        ({"completions": ["4"], "labels": [True]}, "rates the steps of an answer"),
        ({"conversations": [HUMAN]}, "messages and conversations are different"),
        ({"kto_tag": "maybe", "label": "no"}, "label and kto_tag are different"),
    ],
)
def test_a_column_that_changes_the_meaning_is_named(keys: Row, what: str) -> None:
    with pytest.raises(DataError, match=what):
        read({"messages": [USER, RIGHT], **keys})


def test_thoughts_enable_deliberation_unless_the_row_states_it() -> None:
    thought = {"role": "assistant", "content": "<think>\nAdd.\n</think>\n\n4"}
    blocks = (Thoughts("Add."), Response("4"))
    chat = read({"messages": [USER, thought]})
    assert isinstance(chat, ChatExample)
    assert chat.conversation.deliberation
    pair = read({"prompt": [USER], "chosen": [thought], "rejected": [WRONG]})
    assert isinstance(pair, PreferencePair)
    assert (pair.prompt.deliberation, pair.chosen.blocks) == (True, blocks)
    rated = read({"prompt": [USER], "completion": [thought], "label": True})
    assert isinstance(rated, RatedAnswer)
    assert rated.prompt.deliberation
    for stated in ({"deliberation": False}, {"chat_template_kwargs": {"enable_thinking": False}}):
        off = read({"messages": [USER, thought], **stated})
        assert isinstance(off, ChatExample)
        assert not off.conversation.deliberation


def test_what_is_not_trained_on_is_no_answer() -> None:
    for row in (
        {"prompt": [USER], "chosen": [{**RIGHT, "weight": 0}], "rejected": [WRONG]},
        {"prompt": [USER], "completion": [{**RIGHT, "weight": 0}], "label": True},
    ):
        with pytest.raises(DataError, match="is marked as not trained on"):
            read(row)


def test_unknown_keys_are_listed_once() -> None:
    messages = [{**USER, "mood": "glad"}, {**RIGHT, "mood": "sad", "grade": 1, "note": None}]
    row = {"messages": messages, "score": 3, "topic": None}
    assert list(unknown_keys(row)) == ["score", "messages: grade", "messages: mood"]


@pytest.mark.parametrize("indent", [None, 2])
def test_a_json_array_is_read_row_by_row(tmp_path: Path, indent: int | None) -> None:
    path = tmp_path / "rows.json"
    rows = [
        {"messages": [USER, {**RIGHT, "content": f"{k} é \U0001f600" * 40}]} for k in range(400)
    ]
    text = json.dumps([*rows[:200], 12, {"text": "\ud83d"}, *rows[200:]], indent=indent)
    path.write_text("\ufeff \n" + text + "\n")
    found = list(read_rows(path))
    bad = [example for _, example in found if isinstance(example, BadRow)]
    assert [(each.row, each.reason[:17]) for each in bad] == [
        (201, "the row is not an"),
        (202, "a text contains a"),
    ]
    assert [row for row, example in found if isinstance(example, ChatExample)] == rows
    assert isinstance(found[-1][1], ChatExample)
    assert found[-1][1].origin.row == 402
    path.write_text("[]")
    assert list(read_rows(path)) == []


def test_an_array_that_ends_early_says_from_where(tmp_path: Path) -> None:
    path = tmp_path / "rows.json"
    whole = json.dumps([{"messages": [USER, RIGHT]}] * 3)
    for cut, row in ((whole[:-20], 3), (whole.replace("]}, {", "]} {", 1), 2), (whole[:-1], 4)):
        path.write_text(cut)
        *good, (_, bad) = read_rows(path)
        assert isinstance(bad, BadRow)
        assert (len(good), bad.row) == (row - 1, row)
        assert f"rows from {row} on are lost" in bad.reason
