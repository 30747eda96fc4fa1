"""Rows of published schemas, with every optional key set: read, or refused by the key's name.

The rows are written here after the documentation of OpenAI (fine-tuning), TRL, axolotl, LLaMA-Factory
and ms-swift, and after the cards of UltraFeedback (binarized), HH-RLHF, no_robots and Alpaca.
"""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pyarrow as pa
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
from stamm.chat.conversation import AssistantTurn, EmptyAnswerError, Response, Thoughts, UserTurn
from stamm.corpus.limits import ReadLimits

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
    "tools of a column of text": {"messages": [USER, RIGHT], "tools": "", "system": ""},
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
    "Dolly": {"instruction": "2+2?", "context": "", "response": "4", "category": None},
    "the same twice": {"instruction": "2+2?", "output": "4", "messages": [USER, RIGHT], "response": "4"},
    "cut answers are marked": {"messages": [USER, {**RIGHT, "finish_reason": "stop"}]},
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
    "lists of messages as JSON text": {
        "chosen": json.dumps([USER, RIGHT]),
        "rejected": json.dumps([USER, WRONG]),
    },
    "HH-RLHF without blank lines before it": {
        "prompt": HH.strip(),
        "chosen": f"{HH} 4".strip(),
        "rejected": f"{HH} 5".strip(),
    },
    "the prompt with other white space": {
        "prompt": "2+2?",
        "chosen": "\n2+2?\n4",
        "rejected": " 2+2? 5",
    },
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
    for value in (0, 0.0, "false", "False", "0"):
        with pytest.raises(DataError, match="marks an answer that is not wanted"):
            read({**labelled, "label": value}, "chat")
    assert isinstance(read({**labelled, "label": "false"}), RatedAnswer)
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


@pytest.mark.parametrize(
    ("prompt", "chosen", "rejected"),
    [
        ("Hi", "Hi! How can I help you?", "Hi there, go away."),
        ("I", "It is good", "It is bad"),
        ("I", "It is good", "No."),
        ("Yes?", "Yes?", "No."),
    ],
)
def test_an_answer_that_only_begins_as_the_prompt_is_not_cut(
    prompt: str, chosen: str, rejected: str
) -> None:
    pair = read({"prompt": prompt, "chosen": chosen, "rejected": rejected})
    assert isinstance(pair, PreferencePair)
    assert pair.chosen.blocks == (Response(chosen),)
    assert pair.rejected.blocks == (Response(rejected),)


def test_a_transcript_that_ends_with_an_open_turn_has_no_answer() -> None:
    for row in ({"chosen": HH, "rejected": f"{HH} 5"}, {"chosen": f"{HH} 4", "rejected": f"{HH} "}):
        with pytest.raises(EmptyAnswerError, match="has no answer of the assistant"):
            read(row, "preference")


def test_a_prompt_that_one_answer_repeats_is_named() -> None:
    with pytest.raises(DataError, match="repeats the prompt, and the other does not"):
        read({"prompt": "2+2?", "chosen": "2+2? 4", "rejected": "5"})
    marked = {"prompt": "Q: 2+2? Assistant:", "chosen": "Q: 2+2? Assistant:4"}
    pair = read({**marked, "rejected": "Q: 2+2? Assistant:5"})
    assert isinstance(pair, PreferencePair)
    assert (pair.chosen, pair.rejected) == (GOOD, BAD)


@pytest.mark.parametrize(
    ("row", "what"),
    [
        ({"prompt": "q", "response": "a", "history": [["b", "c"]]}, "history is read beside instruction"),
        ({"prompt": "q", "response": "a", "input": "more"}, "input is read beside instruction"),
        ({"prompt": "q", "response": "a", "context": "more"}, r"input \(context\) is read beside"),
        ({"instruction": "q", "output": "a", "response": "b"}, r"completion \(response\) and output are"),
        ({"instruction": "q", "prompt": "r", "output": "a"}, "prompt and instruction are different"),
        ({"instruction": "q", "messages": [USER, RIGHT]}, "messages and instruction are different"),
        ({"prompt": "q", "messages": [USER, RIGHT]}, "prompt and messages are different"),
        ({"prompt": "q", "chosen": "a", "rejected": "b", "response": "c"}, "neither chosen nor rejected"),
        ({"completion": "5", "messages": [USER, RIGHT]}, "completion and messages are different"),
        ({"prompt": "Be brief.\n\nHuman: q\n\nAssistant:", "completion": "a"}, "not a transcript of HH"),
        ({"prompt": "Human: q\nAssistant:", "completion": "a"}, "not a transcript of HH-RLHF's form"),
        ({"prompt": "\n\nHuman: q", "completion": "a"}, "not a transcript of HH-RLHF's form"),
        ({"prompt": "q", "completion": "[{'role': 'user', 'content': 'q'}]"}, "is not JSON"),
    ],
)  # fmt: skip
def test_a_column_beside_the_ones_that_are_read_is_named(row: Row, what: str) -> None:
    with pytest.raises(DataError, match=what):
        read(row)


def test_an_answer_in_json_is_text_unless_it_is_messages() -> None:
    for text in ('{"role": "admin"}', '[{"value": 3}]', "{'value': 3", "[1, 2]"):
        chat = read({"prompt": "2+2?", "completion": text})
        assert isinstance(chat, ChatExample)
        assert chat.conversation.turns[1] == AssistantTurn((Response(text),))


def test_the_context_and_the_system_prompt_are_read() -> None:
    dolly = {
        "instruction": "Add.",
        "context": "2+2?",
        "response": "4",
        "system_prompt": "Be brief.",
    }
    chat = read(dolly)
    assert isinstance(chat, ChatExample)
    assert chat.conversation.system == "Be brief."
    assert chat.conversation.turns == (UserTurn("Add.\n2+2?"), GOOD)


@pytest.mark.parametrize("suffix", [".jsonl", ".json"])
def test_a_key_with_two_values_is_a_bad_row(tmp_path: Path, suffix: str) -> None:
    good = json.dumps({"messages": [USER, RIGHT]})
    twice = good.replace('"content": "4"', '"content": "5", "content": "4"')
    path = tmp_path / f"rows{suffix}"
    rows = [good, twice, good]
    path.write_text("\n".join(rows) if suffix == ".jsonl" else f"[{', '.join(rows)}]")
    found = [example for _, example in read_rows(path)]
    assert isinstance(found[1], BadRow)
    assert "two values for the key 'content'" in found[1].reason
    assert [isinstance(example, ChatExample) for example in found] == [True, False, True]


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
        ({"cot": "Because."}, "cot = 'Because.' holds thoughts"),
        ({"thought": "Because."}, "thought = 'Because.' holds thoughts"),
        ({"loss_mask": [0, 1]}, "trains on parts of a row"),
        ({"mask_history": True}, "mask_history = True trains on parts of a row"),
        ({"finish_reason": "length"}, "is of an answer that did not end by itself"),
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
    for text, row in ((whole[:-20], 3), (whole[:-1], 4), (f"{whole}\n{whole}", 4)):
        path.write_text(text)
        *good, (_, bad) = read_rows(path)
        assert isinstance(bad, BadRow)
        assert (len(good), bad.row) == (row - 1, row)
        assert f"rows from {row} on are lost" in bad.reason


def test_what_is_wrong_in_an_array_costs_that_element(tmp_path: Path) -> None:
    path = tmp_path / "rows.json"
    row = json.dumps({"messages": [USER, RIGHT]})
    for wrong, reason in (
        (f"{row} {row}", "not JSON: Extra data"),
        ('{"a": 1, "a": 2}', "not JSON: two values for the key 'a'"),
        (f'{{"messages": "{"x" * 2000}"}}', "2016 bytes, limit 1000"),
    ):
        path.write_text(f"[{row},{wrong},{row}]")
        first, (_, bad), last = read_rows(path, ReadLimits(line_bytes=1000))
        assert isinstance(bad, BadRow)
        assert (bad.row, bad.reason[: len(reason)]) == (2, reason)
        assert isinstance(first[1], ChatExample) and isinstance(last[1], ChatExample)


def test_every_file_of_which_stamm_fields_shows_rows_is_read(tmp_path: Path) -> None:
    row = {"messages": [USER, RIGHT], "id": "a"}
    table = pa.Table.from_pylist([row, row])
    with (
        pa.OSFile(str(tmp_path / "stream.arrow"), "wb") as file,
        pa.ipc.new_stream(file, table.schema) as writer,
    ):
        writer.write_table(table)
    with pa.ipc.new_file(str(tmp_path / "file.arrow"), table.schema) as writer:
        writer.write_table(table)
    (tmp_path / "a.json.gz").write_bytes(gzip.compress(json.dumps([row, row]).encode()))
    (tmp_path / "object.json").write_text(json.dumps(row, indent=1))
    for name, count in (
        ("stream.arrow", 2),
        ("file.arrow", 2),
        ("a.json.gz", 2),
        ("object.json", 1),
    ):
        rows = list(read_rows(tmp_path / name))
        assert [found for found, _ in rows] == [row] * count
        assert all(isinstance(example, ChatExample) for _, example in rows)
