"""Keys of messages, their contents, tool calls and tools: read, harmless, or refused by name.

Source   OpenAI, fine-tuning API (`weight`); axolotl, dataset formats (`train`, `train_detail`);
         LLaMA-Factory, data/README.md; ms-swift (`loss`, `loss_scale`)
Checked  tests/unit/chat/test_conversation.py, tests/unit/align/test_rows_of_other_trainers.py
"""

from __future__ import annotations

import re

from stamm.base.known_keys import ANY_KEY, KnownKeys, RefusedKey

LOSS_KEYS = ("weight", "train", "training", "loss", "loss_weight", "loss_scale")
THOUGHTS = ("reasoning_content", "reasoning", "thinking")
IDS, NAMES = ("tool_call_id", "call_id", "id"), ("name", "tool_name")
NO_TEXT: tuple[object, ...] = ("", [], {})
_NOT_TEXT = {
    key: RefusedKey(meaning="is not text", neutral=NO_TEXT)
    for key in ("image", "image_url", "images", "audio", "input_audio", "audios", "video", "videos", "file")
}  # fmt: skip
MASK = RefusedKey(
    meaning="trains on parts of a row",
    neutral=(*NO_TEXT, False),
    fix="Use weight of a message: 1 or 0",
)
ENDED = RefusedKey(
    meaning="is of an answer that did not end by itself",
    neutral=(
        *("", "stop", "stop_sequence", "end_turn", "eos", "eos_token", "tool_calls", "tool_use"),
        *("function_call", "STOP", "END_TURN", "complete", "completed", "COMPLETE"),
    ),
    fix="Leave the row out",
)

CUT = {
    **dict.fromkeys(
        ("truncated", "is_truncated", "partial", "incomplete", "cut_off"),
        RefusedKey(
            meaning="is of an answer that did not end by itself",
            neutral=(*NO_TEXT, False, 0),
            fix="Leave the row out",
        ),
    ),
    **dict.fromkeys(
        ("end_turn", "is_complete", "is_finished", "add_eos", "eos", "eot"),
        RefusedKey(
            meaning="states whether an answer ended by itself",
            neutral=(*NO_TEXT, True, 1),
            fix="Leave the row out where it did not",
        ),
    ),
}
MESSAGE_LOSS = RefusedKey(
    meaning="may state whether it is trained on",
    neutral=NO_TEXT,
    fix="Use weight of a message: 1 or 0, or remove the key",
)

MESSAGE_KEYS = KnownKeys(
    reader="messages",
    read=frozenset(
        {
            *("role", "from", "content", "value", "tool_calls", "masked", *NAMES),
            *("function_call", *IDS, *LOSS_KEYS, *THOUGHTS),
        }
    ),
    harmless=frozenset(
        {
            *("index", "message_id", "timestamp", "created", "created_at", "create_time"),
            *("model", "annotations", "citations", "logprobs"),
        }
    ),
    refused={
        **_NOT_TEXT,
        "files": RefusedKey(meaning="is not text", neutral=NO_TEXT),
        "attachments": RefusedKey(meaning="is not text", neutral=NO_TEXT),
        "refusal": RefusedKey(
            meaning="is an answer beside the content", neutral=NO_TEXT, fix="Put it into content"
        ),
        "train_detail": RefusedKey(
            meaning="trains on parts of a message", neutral=NO_TEXT, fix="Use train: true or false"
        ),
        **dict.fromkeys(
            ("reasoning_details", "reasoning_text", "thoughts", "thought", "cot"),
            RefusedKey(
                meaning="holds thoughts", neutral=NO_TEXT, fix="Put them into reasoning_content"
            ),
        ),
        **dict.fromkeys(("mask", "loss_mask"), MASK),
        **dict.fromkeys(("finish_reason", "stop_reason"), ENDED),
        **CUT,
        "is_target": RefusedKey(
            meaning="states whether it is trained on", neutral=(True, 1), fix="Use weight: 1 or 0"
        ),
        **dict.fromkeys(
            ("parts", "text", "blocks"),
            RefusedKey(meaning="is a content too", neutral=NO_TEXT, fix="Put it into content"),
        ),
        "prefix": RefusedKey(meaning="makes the message the beginning of one", neutral=(False,)),
        "channel": RefusedKey(meaning="names a channel of the answer", neutral=("final", "")),
        "recipient": RefusedKey(meaning="names who reads the message", neutral=("all", "")),
        "tools": RefusedKey(
            meaning="declares tools", neutral=NO_TEXT, fix="Put them into tools of the row"
        ),
        "functions": RefusedKey(
            meaning="declares tools", neutral=NO_TEXT, fix="Put them into tools of the row"
        ),
        "function_calls": RefusedKey(
            meaning="holds tool calls", neutral=NO_TEXT, fix="Put them into tool_calls"
        ),
    },
    suspect=re.compile(
        r"(?:(?<![a-zA-Z])|(?=[A-Z]))(?i:train(?:able|ed|ing)?|loss|mask(?:ed|s)?|weight(?:ed|s)?|"
        r"supervis(?:e|ed|ion)|learn(?:able|ed)?|ignored?|skip(?:ped)?)(?![a-z])"
    ),
    suspected=MESSAGE_LOSS,
)
"""Keys of a message. `weight` and its other names: 0 or false, the message is context and not trained
on; 1 or true, it is; any other value is refused. `masked` is the opposite."""

_HARMLESS_IN_PARTS = frozenset(
    {
        *("annotations", "citations", "cache_control", "id", "index", "logprobs"),
        *("signature", "thoughtSignature", "thought_signature"),
    }
)
PART_KEYS = KnownKeys(
    reader="parts of a content",
    read=frozenset({"type", "text", "value", "thought"}),
    harmless=_HARMLESS_IN_PARTS,
    refused=_NOT_TEXT,
    suspect=ANY_KEY,
)
THOUGHT_KEYS = KnownKeys(
    reader="thoughts of a content",
    read=frozenset({"type", "text", "thinking", "reasoning", "thought"}),
    harmless=_HARMLESS_IN_PARTS,
    refused=_NOT_TEXT,
    suspect=ANY_KEY,
)
PARTS_KEYS = KnownKeys(reader="a content in parts", read=frozenset({"parts"}), suspect=ANY_KEY)
BLOCKS_KEYS = KnownKeys(reader="a content in blocks", read=frozenset({"blocks"}), suspect=ANY_KEY)
BLOCK_KEYS = {
    kind: KnownKeys(reader=f"a block of {kind}", read=frozenset({"type", key}), suspect=ANY_KEY)
    for kind, key in (
        ("thoughts", "text"),
        ("response", "text"),
        ("tool_calls", "calls"),
        ("tool_outputs", "outputs"),
    )
}
ARGUMENTS = ("arguments", "parameters", "input", "args", "kwargs", "action_input")
CALL_KEYS = KnownKeys(
    reader="tool calls",
    read=frozenset({"type", "function", "name", *IDS, *ARGUMENTS}),
    harmless=frozenset({"index", "status", "extra_content"}),
    suspect=ANY_KEY,
)
OUTPUT_KEYS = KnownKeys(
    reader="tool outputs", read=frozenset({"type", "output", *IDS, *NAMES}), suspect=ANY_KEY
)
TOOL_KEYS = KnownKeys(
    reader="tools",
    read=frozenset({"name", "description", "parameters"}),
    harmless=frozenset({"strict", "type", "id"}),
    refused={
        key: RefusedKey(meaning="describes a tool's arguments", fix="Use parameters, a JSON schema")
        for key in (
            *("input_schema", "inputSchema", "args_schema", "arguments", "args"),
            *("properties", "required"),
        )
    },
)
