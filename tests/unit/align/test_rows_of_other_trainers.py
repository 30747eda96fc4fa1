"""Rows that other trainers read otherwise, or in silence: each is read as it is meant, or refused by name.

The cases follow public reports about TRL, axolotl, LLaMA-Factory, ms-swift and Unsloth: texts with the
control tokens of a template, keys that switch the loss off, pairs whose order is stated twice.
"""

from __future__ import annotations

from typing import Any

import pytest

from stamm.align.data.encoded import RowDropError, encode_row
from stamm.align.data.examples import (
    ChatExample,
    PreferencePair,
    RowOrigin,
    read_example,
    unknown_keys,
)
from stamm.base.errors import DataError
from stamm.chat.conversation import Response, UserTurn, read_conversation, to_messages
from stamm.models.hf_chat_format import load_folder_chat
from tests.unit.chat.imported_folders import LLAMA3, imported_folder

Row = dict[str, Any]
ORIGIN = RowOrigin(file="rows.jsonl", row=1)
USER = {"role": "user", "content": "2+2?"}
RIGHT = {"role": "assistant", "content": "4"}
WRONG = {"role": "assistant", "content": "5"}


def answer(text: Any, **keys: Any) -> Row:
    return {"role": "assistant", "content": text, **keys}


def called(arguments: Any) -> Row:
    return answer(None, tool_calls=[{"function": {"name": "f", "arguments": arguments}}])


@pytest.mark.parametrize(
    ("row", "what"),
    [
        # End tokens that an earlier formatting function appended to the texts.
        ({"prompt": "2+2?", "completion": "4</s>"}, "message 2: the content has </s>, a control token"),
        ({"prompt": "2+2?", "completion": "4<|im_end|>"}, r"the content has <\|im_end\|>"),
        ({"messages": [USER, answer("4<|eot_id|>\n")]}, r"the content has <\|eot_id\|>"),
        ({"messages": [USER, answer("4 <|endoftext|>")]}, r"the content has <\|endoftext\|>"),
        ({"messages": [USER, answer([{"type": "text", "text": "4<|end|>"}])]}, r"has <\|end\|>"),
        ({"messages": [USER, answer("<s>4</s>")]}, "the content has </s>"),
        ({"messages": [USER, answer("4<end_of_turn>")]}, "the content has <end_of_turn>"),
        ({"messages": [USER, answer("4<eos>")]}, "the content has <eos>"),
        ({"messages": [USER, answer("4<｜end▁of▁sentence｜>")]}, "the content has <｜end"),
        ({"prompt": "2+2?", "chosen": "4<|im_end|>", "rejected": "5<|im_end|>"}, r"<\|im_end\|>"),
        ({"prompt": "2+2?", "completion": "4</s>", "label": True}, "the content has </s>"),
        # Prompts that a template has rendered already.
        (
            {"prompt": "<|im_start|>user\n2+2?<|im_end|>\n<|im_start|>assistant\n", "completion": "4"},
            r"message 1: the content begins with <\|im_start\|>: it is a conversation",
        ),
        ({"prompt": "<s>[INST] 2+2? [/INST]", "completion": "4"}, r"begins with \[INST\]"),
        (
            {"prompt": "<|begin_of_text|><|start_header_id|>user", "completion": "4"},
            r"begins with <\|start_header_id\|>",
        ),
        ({"prompt": "<|user|>\n2+2?", "chosen": "4", "rejected": "5"}, r"begins with <\|user\|>"),
        # Thoughts and calls in the markup of one model.
        ({"messages": [USER, answer("◁think▷Add.◁/think▷4")]}, "the content has ◁think▷"),
        ({"messages": [USER, answer("<seed:think>Add.</seed:think>4")]}, "has <seed:think>"),
        ({"messages": [USER, answer("<thought>Add.</thought>4")]}, "the content has <thought>"),
        ({"messages": [USER, answer('<functioncall> {"name": "f"}')]}, "has <functioncall>"),
        ({"messages": [USER, answer("<function=f>{}</function>")]}, "has <function=f>"),
        ({"messages": [USER, answer('<|python_tag|>{"name": "f"}')]}, r"has <\|python_tag\|>"),
        # Keys that switch the loss of a message off, under other names.
        ({"messages": [USER, answer("draft", trainable=False), USER, RIGHT]}, "trainable = False"),
        ({"messages": [USER, answer("draft", compute_loss=False)]}, "compute_loss = False is unknown"),
        ({"messages": [USER, answer("draft", step_loss_mask=0)]}, "step_loss_mask = 0"),
        ({"messages": [USER, answer("draft", isTrained=False)]}, "isTrained = False"),
        ({"messages": [USER, answer("draft", supervise=False)]}, "supervise = False"),
        ({"messages": [USER, answer("draft", ignored=True)]}, "ignored = True"),
        ({"messages": [USER, RIGHT], "loss_weights": [0]}, r"loss_weights = \[0\] is unknown in rows"),
        ({"messages": [USER, RIGHT], "train_on_inputs": True}, "train_on_inputs = True"),
        ({"messages": [USER, RIGHT], "importance_weight": 0.1}, "importance_weight = 0.1"),
        ({"messages": [USER, RIGHT], "loss": False}, "loss = False is unknown"),
        ({"messages": [USER, RIGHT], "is_trained": False}, "is_trained = False"),
        ({"messages": [USER, answer("4", is_target=False)]}, "is_target = False states whether"),
        # Answers that were cut, and would be learned with an end.
        ({"messages": [USER, answer("It is", end_turn=False)]}, "end_turn = False states whether"),
        ({"messages": [USER, answer("It is", partial=True)]}, "partial = True is of an answer"),
        ({"messages": [USER, answer("It is")], "truncated": True}, "truncated = True is of an answer"),
        ({"messages": [USER, answer("It is")], "is_complete": False}, "is_complete = False states"),
        # Columns that belong to the prompt or to the answer.
        ({"messages": [USER, RIGHT], "reasoning_effort": "high"}, "reasoning_effort = 'high' changes"),
        ({"prompt": "def f(", "completion": "x", "suffix": "): pass"}, r"suffix = '\): pass' is a text"),
        ({"prompt": "", "completion": "4"}, "the prompt is empty"),
        ({"prompt": " ", "chosen": "4", "rejected": "5"}, "the prompt is empty"),
        # Two statements about one thing.
        (
            {"messages": [{"role": "user", "from": "gpt", "content": "a"}, RIGHT]},
            "message 1: role 'user' and from 'gpt' are different",
        ),
        ({"prompt": "2+2?", "completion": "4", "label": True, "reward": 0.0}, "label and reward"),
        ({"prompt": "2+2?", "response": "4", "rejected": "5"}, "rejected without chosen"),
        ({"prompt": "2+2?", "chosen": "4", "rejected": None}, "chosen without rejected"),
        ({"messages": [USER, answer(float("nan"))]}, "message 2: the content is not text"),
        # Calls of tools.
        ({"messages": [USER, called('"{\\"a\\": 1}"')]}, "arguments of the call f are JSON within JSON"),
        ({"messages": [USER, called('{"a": NaN}')]}, "the arguments of the call f are not JSON"),
        ({"messages": [USER, called({"a": float("inf")})]}, "the arguments of the call f are not JSON"),
        ({"messages": [USER, called("{}")], "tools": [{"name": "g"}]}, "the tool f is called, and tools"),
        ({"messages": [USER, RIGHT], "tools": [{"name": "g", "required": ["a"]}]}, "required = "),
        # The order of a pair, stated again; ties; margins, which TRL's reward trainer reads.
        ({"prompt": "a", "chosen": "b", "rejected": "c", "winner": "rejected"}, "winner = 'rejected'"),
        ({"prompt": "a", "chosen": "b", "rejected": "c", "label": 0}, "label = 0 may state another"),
        (
            {"prompt": "a", "chosen": "b", "rejected": "c", "score_chosen": 1, "chosen_reward": 2,
             "score_rejected": 0},
            "chosen_reward and score_chosen are different",
        ),
        ({"prompt": "a", "chosen": "b", "rejected": "c", "is_tie": True}, "is_tie = True"),
        ({"prompt": "a", "chosen": "b", "rejected": "c", "margin": 0.5}, "margin = 0.5 is a margin"),
    ],
)  # fmt: skip
def test_a_row_that_would_be_learned_wrongly_is_named(row: Row, what: str) -> None:
    with pytest.raises(DataError, match=what):
        read_example(row, ORIGIN)


@pytest.mark.parametrize(
    "text",
    [
        "Now <s>20</s> 15 francs.", "<s>20</s> 15 francs.", "f <|> g, a |> b, <|x|> = 3", "a </s> b",
        "List.map (fun x -> x) <| xs |> ignore", "std::vector<eos> v;",
    ],
)  # fmt: skip
def test_texts_that_only_look_like_control_tokens_are_read(text: str) -> None:
    example = read_example({"messages": [USER, answer(text)]}, ORIGIN)
    assert isinstance(example, ChatExample)
    assert example.conversation.turns[-1].blocks == (Response(text),)  # type: ignore[union-attr]


def test_control_tokens_as_text_have_a_form_of_their_own_and_sampled_ones_are_read_back() -> None:
    blocks = {"blocks": [{"type": "response", "text": "4<|im_end|>"}]}
    asked = {"role": "user", "content": [{"type": "text", "text": "<|im_start|> is what?"}]}
    example = read_example({"messages": [asked, answer(blocks)]}, ORIGIN)
    assert isinstance(example, ChatExample)
    turns = example.conversation.turns
    assert turns[0] == UserTurn("<|im_start|> is what?")
    again = read_example({"messages": to_messages(None, turns)}, ORIGIN)
    assert isinstance(again, ChatExample)
    assert again.conversation == example.conversation
    # In the middle of a question such tokens stay letters.
    told = read_conversation([{"role": "user", "content": "What is <|im_start|>?"}, RIGHT])
    assert told.turns[0] == UserTurn("What is <|im_start|>?")


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ({"id": 1}, {"id": 2}), ({"timestamp": 1}, {"timestamp": 2}), ({"mood": "a"}, {}),
        ({"weight": 0}, {"weight": 1}), ({"refusal": None}, {}),
    ],
)  # fmt: skip
def test_the_shared_prompt_of_a_pair_is_what_its_messages_say(first: Row, second: Row) -> None:
    turns = [[{**USER, **keys}, answer("4", **keys), USER] for keys in (first, second)]
    if "weight" in first:
        turns = [[USER, answer("4", **keys), USER] for keys in (first, second)]
    pair = read_example({"chosen": [*turns[0], RIGHT], "rejected": [*turns[1], WRONG]}, ORIGIN)
    assert isinstance(pair, PreferencePair)
    assert len(pair.prompt.turns) == 3
    beside = {"prompt": turns[0], "chosen": [*turns[1], RIGHT], "rejected": [*turns[0], WRONG]}
    again = read_example(beside, ORIGIN)
    assert isinstance(again, PreferencePair)
    assert again.prompt.turns == pair.prompt.turns


def test_the_marker_of_an_empty_input_is_no_text() -> None:
    row = {"instruction": "Say hi", "input": "<noinput>", "output": "Hi!"}
    example = read_example(row, ORIGIN)
    assert isinstance(example, ChatExample)
    assert example.conversation.turns[0] == UserTurn("Say hi")


def test_answers_that_the_format_writes_alike_are_no_pair(tmp_path: Any) -> None:
    chat = load_folder_chat(imported_folder(tmp_path, LLAMA3)).chat  # trims contents
    pair = read_example({"prompt": "2+2?", "chosen": "4", "rejected": " 4\n"}, ORIGIN)
    with pytest.raises(RowDropError, match="chosen and rejected have the same tokens"):
        encode_row(pair, chat, 100, 0, "")


def test_unknown_keys_of_tools_are_counted() -> None:
    tool = {"type": "function", "function": {"name": "f", "return": {"type": "string"}}}
    assert list(unknown_keys({"messages": [USER, RIGHT], "tools": [tool]})) == ["tools: return"]
