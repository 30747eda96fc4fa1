"""Rows of alignment data as typed examples, in the columns of TRL and of other public data.

docs/alignment/data.md has the columns and the forms of each kind of row. `ALIASES` has other names of
columns, `ROW_KEYS` all that is read, and the columns that are refused because they change what a row means.
Other columns are not used, and counted.

Source   TRL documentation, "Dataset formats and types" (trl 1.16); LLaMA-Factory, data/README.md;
         HuggingFaceH4/ultrafeedback_binarized; Anthropic/hh-rlhf
Checked  tests/unit/align/test_examples.py, tests/unit/align/test_public_schemas.py
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from stamm.base.errors import DataError
from stamm.base.json_text import parse_json
from stamm.base.known_keys import KnownKeys, RefusedKey
from stamm.chat.conversation import (
    AssistantTurn,
    Conversation,
    EmptyAnswerError,
    Thoughts,
    ToolCalls,
    UserTurn,
    as_prompt,
    before_last_turn,
    check_control_tokens,
    read_conversation,
)
from stamm.chat.message_keys import CUT, ENDED, LOSS_KEYS, MASK, MESSAGE_KEYS, TOOL_KEYS
from stamm.chat.render import ANSWER_TOOL
from stamm.corpus.documents import clean_field, whole_text
from stamm.corpus.readers.rows import as_mapping, value_at

Kind = Literal["auto", "chat", "preference", "rated"]


@dataclass(frozen=True, kw_only=True)
class RowOrigin:
    """Where a row comes from, for the ledger.

    file, row   the file and the line (JSONL) or row (Parquet), from 1
    id          the row's own identifier, "" when it has none
    """

    file: str
    row: int
    id: str = ""
    source: str = ""
    licence: str = ""


@dataclass(frozen=True)
class ChatExample:
    """A conversation to learn from, its last turn the assistant's."""

    origin: RowOrigin
    conversation: Conversation


@dataclass(frozen=True)
class PreferencePair:
    """Two answers to a prompt, the first preferred.

    chosen_reward, rejected_reward   None: the row has none
    ref_rewards                      as in RatedAnswer
    """

    origin: RowOrigin
    prompt: Conversation
    chosen: AssistantTurn
    rejected: AssistantTurn
    chosen_reward: float | None = None
    rejected_reward: float | None = None
    ref_rewards: tuple[float, ...] = field(default=())


@dataclass(frozen=True)
class RatedAnswer:
    """An answer to a prompt with its reward.

    ref_rewards   rewards of completions that the reference model gave to the same prompt
    """

    origin: RowOrigin
    prompt: Conversation
    completion: AssistantTurn
    reward: float
    ref_rewards: tuple[float, ...] = field(default=())


@dataclass(frozen=True)
class PromptExample:
    """A prompt to be answered."""

    origin: RowOrigin
    prompt: Conversation


Example = ChatExample | PreferencePair | RatedAnswer | PromptExample

KIND_OF: dict[type[Example], Kind] = {
    ChatExample: "chat",
    PreferencePair: "preference",
    RatedAnswer: "rated",
}

CHOSEN_REWARD = ("chosen_reward", "chosen_rewards", "score_chosen")
REJECTED_REWARD = ("rejected_reward", "rejected_rewards", "score_rejected")
"""Names of the rewards of a pair; two of them have to be equal."""

ALIASES = {
    "messages": ("conversations", "conversation"),
    "completion": ("response",),
    "label": ("kto_tag",),
    "tools": ("functions",),
    "licence": ("license",),
    "deliberation": ("enable_thinking",),
    "system": ("system_prompt",),
    "input": ("context",),
}
"""Other names of columns. A row may have one of them; two are refused unless they are equal."""

_OTHER_NAMES = ALIASES | {
    "prompt": ("instruction", "input", "context", "history"),
    "completion": (*ALIASES["completion"], "output"),
    "chosen_reward": CHOSEN_REWARD,
    "rejected_reward": REJECTED_REWARD,
}
"""Names that are not read where the field is configured."""
_SAMPLED = {"chosen_token_ids", "rejected_token_ids"}
_PAIR = {"chosen", "rejected", *CHOSEN_REWARD, *REJECTED_REWARD, *_SAMPLED}
NO_COLUMNS = "no known combination of columns"
NO_PROMPT = "chosen and rejected begin with no common prompt"
_ONE = "Leave one of them out"
_NOTHING: tuple[object, ...] = ("", [], {})
_NOT_TEXT = RefusedKey(meaning="is not text", neutral=_NOTHING)
_THOUGHTS = RefusedKey(
    meaning="holds thoughts",
    neutral=("", "on", "off"),
    fix="Put them into reasoning_content of the assistant's message",
)
_WEIGHT = RefusedKey(
    meaning="scales the loss of a row", neutral=(1,), fix="Repeat the row, or leave it out"
)
_STEPS = RefusedKey(meaning="rates the steps of an answer", fix="Use prompt, completion and label")

ROW_KEYS = KnownKeys(
    reader="rows of alignment data",
    read=frozenset(
        {
            *("messages", "prompt", "completion", "chosen", "rejected", "label", "reward"),
            *("ref_rewards", *CHOSEN_REWARD, *REJECTED_REWARD, "tools", "deliberation", "system"),
            *("instruction", "input", "output", "history", "chat_template_kwargs"),
            *("id", "source", "licence", "language", "url"),
            *(alias for names in ALIASES.values() for alias in names),
            *("token_ids", "chosen_token_ids", "rejected_token_ids"),
        }
    ),
    harmless=frozenset(
        {
            *("prompt_id", "uuid", "idx", "index", "split", "dataset", "text", "num_turns"),
            *("sample", "log_prob", "sampled_log_prob", "num_tokens", "stopped"),
            *("ref_chosen_logps", "ref_rejected_logps"),
        }
    ),
    refused={
        **dict.fromkeys(
            ("image", "images", "audio", "audios", "video", "videos", "files"), _NOT_TEXT
        ),
        **dict.fromkeys(("weight", "sample_weight", "loss_weight"), _WEIGHT),
        **dict.fromkeys(
            (
                *("reasoning", "reasoning_content", "reasoning_text", "thinking", "thought"),
                *("thoughts", "cot", "chain_of_thought", "rationale"),
            ),
            _THOUGHTS,
        ),
        **dict.fromkeys(("mask", "loss_mask", "mask_history"), MASK),
        **dict.fromkeys(("finish_reason", "stop_reason"), ENDED),
        **CUT,
        "reasoning_effort": RefusedKey(meaning="changes the prompt", neutral=_NOTHING),
        "continue_final_message": RefusedKey(meaning="changes the prompt", neutral=(False,)),
        "prefix": RefusedKey(meaning="begins the answer or the prompt", neutral=_NOTHING),
        "suffix": RefusedKey(meaning="is a text after the answer", neutral=_NOTHING),
        **dict.fromkeys(("completions", "labels"), _STEPS),
        "train": RefusedKey(
            meaning="states whether a row is trained on", neutral=(True,), fix="Leave the row out"
        ),
        "chat_template": RefusedKey(meaning="replaces the model's chat template"),
        "documents": RefusedKey(meaning="adds documents to the prompt", neutral=_NOTHING),
        "tool_choice": RefusedKey(meaning="restricts the tools", neutral=("auto", "none")),
        "function_call": RefusedKey(meaning="restricts the tools", neutral=("auto", "none")),
        "parallel_tool_calls": RefusedKey(meaning="changes the prompt", neutral=(True,)),
        "response_format": RefusedKey(
            meaning="restricts the answer", neutral=({"type": "text"}, "text")
        ),
    },
    suspect=re.compile(
        r"(?i)^(?:is_?)?(?:train(?:able|ed|ing)?|learn(?:able|ed)?|supervised?|loss|ignored?|skip)$|"
        r"^train_?on|(?:^|_)loss(?:_|$)|(?:^|_)masks?(?:_|$)|(?:^|_)weights?$|^weights?_"
    ),
    suspected=RefusedKey(
        meaning="may state what is trained on",
        neutral=_NOTHING,
        fix="Use weight of a message: 1 or 0, or remove the column",
    ),
)
_ORDER = RefusedKey(
    meaning="may state another order of the answers than chosen and rejected",
    neutral=_NOTHING,
    fix="Remove the column, or the row where it contradicts",
)
_PAIR_KEYS = KnownKeys(
    reader="a pair",
    read=frozenset(),
    refused={
        **dict.fromkeys(
            (
                *("preference", "preferred", "winner", "better", "label", "kto_tag"),
                *("swapped", "flipped", "is_swapped", "is_flipped"),
            ),
            _ORDER,
        ),
        **dict.fromkeys(
            ("tie", "is_tie", "tied"),
            RefusedKey(
                meaning="states whether the answers are equally good",
                neutral=(False,),
                fix="Leave out the rows whose answers are equally good",
            ),
        ),
        "margin": RefusedKey(
            meaning="is a margin of the reward model's loss",
            fix="Use chosen_reward and rejected_reward, whose difference is the margin with "
            "train.loss.margin=true",
        ),
    },
)
"""Columns of a row. language and url are of the ledger; token_ids are read from steps of the same run."""

_MESSAGE_COLUMNS = ("messages", "prompt", "completion", "chosen", "rejected")
_HUMAN, _ASSISTANT = "\n\nHuman:", "\n\nAssistant:"
_SPEAKER = re.compile(f"({_HUMAN}|{_ASSISTANT})")
_FIRST_HUMAN = re.compile(r"(?:\A\s*|\n[ \t]*)Human:")
_MARKERS = ("Assistant:", "ASSISTANT:", "assistant:", "[/INST]", "|>")
_LISTED = re.compile(r"\[?\s*\{\s*['\"](?:role|from|content|value)['\"]\s*:")
_ASKING = ("user", "human", "prompter", "system", "developer")
_LABELS = {"true": 1.0, "1": 1.0, "1.0": 1.0, "false": 0.0, "0": 0.0, "0.0": 0.0}
_TEMPLATE_KEYS = KnownKeys(reader="chat_template_kwargs", read=frozenset({"enable_thinking"}))


def read_example(
    row: object, origin: RowOrigin, *, kind: Kind = "auto", empty_answers: bool = False
) -> Example:
    """The example of a row.

    kind wanted kind of example, where the columns allow several: of messages beside chosen
                    and rejected, "chat" or "preference"
    empty_answers   whether the answer may have no content, as completions that are scored

    Raises   DataError naming the column that is wrong.
    """
    if not isinstance(row, Mapping):
        raise DataError("the row is not an object")
    ROW_KEYS.check(row)
    columns = _columns(row)
    example_type = _kind(columns, kind)
    origin = replace(
        origin,
        id=row_text(columns, "id"),
        source=row_text(columns, "source"),
        licence=row_text(columns, "licence"),
    )
    if example_type is ChatExample:
        return _dialogue(columns, origin, empty_answers)
    if example_type is PreferencePair:
        return _pair(columns, origin, empty_answers)
    if example_type is RatedAnswer:
        return _rated(columns, origin, empty_answers)
    return PromptExample(origin, _prompt(_messages(columns, "prompt", "user"), columns))


def renamed(row: Mapping[str, Any], fields: Mapping[str, str]) -> dict[str, Any]:
    """The row with the configured fields under their own names, and without their other names.

    fields   name in the file by field; a path of names leads inside objects
    """
    values = {field: value_at(row, path) for field, path in fields.items()}
    left_out = {*_columns_of(row, fields), *_other_names(fields)}
    rest = {name: value for name, value in row.items() if name not in left_out}
    return rest | {field: value for field, value in values.items() if value is not None}


def unread_columns(row: Mapping[str, Any], fields: Mapping[str, str]) -> Iterator[str]:
    """Columns that `renamed` drops: aliases of configured fields, and keys beside nested ones.

    Edge     null and what is empty is not counted
    """
    columns = _columns_of(row, fields)
    for name in sorted(row.keys() & (columns | _other_names(fields))):
        if name not in columns:
            yield from [name] if row[name] not in (None, *_NOTHING) else ()
        elif name not in fields.values():
            yield from _beside(row[name], f"{name}.", set(fields.values()))


def _beside(value: Any, above: str, paths: set[str]) -> Iterator[str]:
    """The paths inside a value that are neither among `paths` nor lead to one of them."""
    for key, inner in (as_mapping(value) or {}).items():
        path = f"{above}{key}"
        if any(other.startswith(f"{path}.") for other in paths):
            yield from _beside(inner, f"{path}.", paths)
        elif path not in paths and inner not in (None, *_NOTHING):
            yield path


def _other_names(fields: Mapping[str, str]) -> set[str]:
    """Names that are not read: aliases of the fields; of a pair with one configured answer, the other columns."""
    names = {name for field in fields for name in (field, *_OTHER_NAMES.get(field, ()))}
    used = {"chosen", "rejected"}.intersection(fields.values())
    return names | (_PAIR - used if used and not _PAIR & fields.keys() else set())


def _columns_of(row: Mapping[str, Any], fields: Mapping[str, str]) -> set[str]:
    """The columns that the configured fields are read from."""
    return {path if path in row else path.partition(".")[0] for path in fields.values()}


def unknown_keys(row: Mapping[str, Any]) -> Iterator[str]:
    """Columns of a row, keys of its messages and of its tools that are not read: "score", "messages: mood"."""
    yield from ROW_KEYS.unknown(row)
    unknown: set[str] = set()
    for column in (*_MESSAGE_COLUMNS, *ALIASES["messages"]):
        value = row.get(column)
        for message in value if isinstance(value, list) else ():
            if isinstance(message, Mapping):
                unknown.update(MESSAGE_KEYS.unknown(message))
    yield from (f"messages: {key}" for key in sorted(unknown))
    tools = row.get("tools", row.get("functions"))
    unknown = set()
    for tool in tools if isinstance(tools, list) else ():
        declared = tool.get("function", tool) if isinstance(tool, Mapping) else None
        unknown.update(TOOL_KEYS.unknown(declared) if isinstance(declared, Mapping) else ())
    yield from (f"tools: {key}" for key in sorted(unknown))


def _columns(row: Mapping[str, Any]) -> dict[str, Any]:
    """The columns of a row that are not null, under the names that the module states."""
    columns = {str(name): value for name, value in row.items() if value is not None}
    for name, aliases in ALIASES.items():
        for alias in aliases:
            if alias not in columns:
                continue
            value = columns.pop(alias)
            if columns.setdefault(name, value) != value:
                raise DataError(f"{name} and {alias} are different", fix=_ONE)
    if {"chosen", "rejected"} <= columns.keys():
        for name in ("chosen", "rejected"):  # one message, as LLaMA-Factory has it
            if isinstance(columns[name], Mapping):
                columns[name] = [columns[name]]
        if "messages" in columns and not _is_conversation(columns["chosen"]):
            columns.setdefault("prompt", columns["messages"])
    for name, other in (("chosen", "rejected"), ("rejected", "chosen")):
        if name in columns and other not in columns:
            raise DataError(f"{name} without {other}", fix="Give both, or prompt and completion")
    if columns.get("instruction") or ("instruction" in columns and columns.get("input")):
        asked = _instruction(columns)
        beside = next((name for name in ("messages", "prompt") if name in columns), "")
        if beside and not _says(_messages(columns, beside, "user"), asked):
            raise DataError(f"{beside} and instruction are different", fix=_ONE)
        if not beside:
            columns["prompt"] = asked
    else:
        for name in ("input", "history"):
            if columns.get(name):
                also = "".join(f" ({alias})" for alias in ALIASES.get(name, ()) if alias in row)
                raise DataError(
                    f"{name}{also} is read beside instruction alone", fix="Put it into the prompt"
                )
    output = columns.get("output")
    if isinstance(output, str) and columns.setdefault("completion", output) != output:
        raise DataError("completion (response) and output are different", fix=_ONE)
    return columns


def _says(whole: Sequence[Any], part: Sequence[Any]) -> bool:
    """Whether all contents of `part` are contents of `whole`."""
    contents, required = (
        [
            text.strip() if isinstance(text := _content(message), str) else text
            for message in messages
            if isinstance(message, Mapping)
        ]
        for messages in (whole, part)
    )
    return all(content in contents for content in required)


def _instruction(columns: Mapping[str, Any]) -> list[dict[str, str]]:
    """The prompt of a row of Alpaca's: earlier turns, then instruction and input on lines of their own."""
    messages = []
    history = columns.get("history") or ()
    if not isinstance(history, Sequence) or isinstance(history, str):
        raise DataError("history is not a list of questions and answers")
    for pair in history:
        if not isinstance(pair, Sequence) or isinstance(pair, str) or len(pair) != 2:
            raise DataError("history is not a list of questions and answers")
        roles = zip(("user", "assistant"), pair, strict=True)
        messages += [{"role": role, "content": text} for role, text in roles]
    context = columns.get("input") or ""
    asked = [columns["instruction"], "" if context == "<noinput>" else context]
    if not all(isinstance(text, str) for text in asked):
        raise DataError("instruction or input is not text")
    return [*messages, {"role": "user", "content": "\n".join(filter(None, asked))}]


def _kind(columns: Mapping[str, Any], wanted: Kind) -> type[Example]:
    """The wanted kind of example, else the first that the columns of the row allow.

    A label beside messages is one of the answer where it is true or false, or labels are wanted: data
    for classification has labels too.
    """
    names = columns.keys()
    labelled = "label" in names and (
        "messages" not in names
        or wanted == "rated"
        or str(columns["label"]).lower() in ("true", "false")
    )
    scored = "reward" in names or labelled
    possible: list[type[Example]] = []
    if {"chosen", "rejected"} <= names:
        possible.append(PreferencePair)
    if "messages" in names:
        possible += [RatedAnswer, ChatExample] if scored else [ChatExample]
    elif {"prompt", "completion"} <= names:
        possible.append(RatedAnswer if scored else ChatExample)
    elif "prompt" in names:
        possible.append(PromptExample)
    if not possible:
        shown = ", ".join(sorted(names)[:8])
        raise DataError(
            f"{NO_COLUMNS}: {shown}",
            fix="Use messages; prompt and completion; or chosen and rejected",
        )
    return next((kind for kind in possible if KIND_OF.get(kind) == wanted), possible[0])


def row_text(row: Mapping[str, Any], column: str) -> str:
    """A text column of a row, cleaned and cut at 4,096 characters; "" without one.

    Edge   a whole number is a text, as identifiers of public data sets are
    """
    value = row.get(column)
    if isinstance(value, int) and not isinstance(value, bool):
        value = str(value)
    return clean_field(whole_text(value)) if isinstance(value, str) else ""


def prompt_and_answers(example: Example) -> tuple[Conversation, tuple[AssistantTurn, ...]]:
    """The prompt of an example, and its answers: one, the chosen and the rejected one, or none."""
    match example:
        case ChatExample():
            return before_last_turn(example.conversation), (_last_answer(example.conversation),)
        case PreferencePair():
            return example.prompt, (example.chosen, example.rejected)
        case RatedAnswer():
            return example.prompt, (example.completion,)
    return example.prompt, ()


def _last_answer(conversation: Conversation) -> AssistantTurn:
    last = conversation.turns[-1] if conversation.turns else None
    if not isinstance(last, AssistantTurn):
        raise DataError("the conversation does not end with the assistant")
    return last


def _dialogue(row: Mapping[str, Any], origin: RowOrigin, empty: bool) -> ChatExample:
    if _LABELS.get(str(row.get("label")).lower()) == 0.0:
        stated = str(row["label"]).lower()
        raise DataError(
            f"label = {stated} marks an answer that is not wanted, and SFT would learn it"
        )
    conversation = _read(_answered(row)[0], row, empty)
    _last_answer(conversation)
    return ChatExample(origin, conversation)


def _answered(row: Mapping[str, Any]) -> tuple[list[Any], int]:
    """The messages of a row with its answer, and how many of them come before the answer."""
    if "messages" not in row:
        prompt = _messages(row, "prompt", "user")
        return prompt + _messages(row, "completion", "assistant"), len(prompt)
    messages = _messages(row, "messages", "user")
    count = len(messages)
    while count and _role(messages[count - 1]) not in _ASKING:
        count -= 1
    for name, role, beside in (
        ("prompt", "user", messages[:count]),
        ("completion", "assistant", messages[count:]),
    ):
        if name in row and not _says(beside, _messages(row, name, role)):
            raise DataError(f"{name} and messages are different", fix=_ONE)
    return messages, count


def _pair(row: Mapping[str, Any], origin: RowOrigin, empty: bool) -> PreferencePair:
    _PAIR_KEYS.check(row)
    prompt = _messages(row, "prompt", "user") if "prompt" in row else []
    if prompt:
        _prompt(prompt, row)
    texts = _without_prompt(row)
    chosen = _with_prompt(prompt, _messages(texts, "chosen", "assistant"), "chosen")
    rejected = _with_prompt(prompt, _messages(texts, "rejected", "assistant"), "rejected")
    answers = [*chosen, *rejected]
    if "completion" in row and not _says(answers, _messages(row, "completion", "assistant")):
        raise DataError("completion is neither chosen nor rejected", fix=_ONE)
    shared = 0
    while shared < min(len(chosen), len(rejected)) and _meant(chosen[shared]) == _meant(
        rejected[shared]
    ):
        shared += 1
    while shared and _role(chosen[shared - 1]) not in _ASKING:
        shared -= 1
    if not shared:
        raise DataError(NO_PROMPT, fix="Add the column prompt")
    start, better = _split(chosen, shared, row, "chosen", empty)
    _, worse = _split(rejected, shared, row, "rejected", empty)
    if better == worse:
        raise DataError("chosen and rejected are the same answer")
    if _deliberation(row) is None:
        start = replace(start, deliberation=start.deliberation or _reasoned(better, worse))
    chosen_reward, rejected_reward = _first(row, CHOSEN_REWARD), _first(row, REJECTED_REWARD)
    if (chosen_reward is None) != (rejected_reward is None):
        raise DataError("one answer of the pair has a reward, and the other has none")
    references = _references(row)
    return PreferencePair(origin, start, better, worse, chosen_reward, rejected_reward, references)


def _role(message: object) -> str:
    role = message.get("role", message.get("from")) if isinstance(message, Mapping) else None
    return role.lower() if isinstance(role, str) else ""


def _meant(message: object) -> object:
    """The keys of a message that count in a prompt, for a comparison of two."""
    if not isinstance(message, Mapping):
        return message
    left_out = {*MESSAGE_KEYS.harmless, *MESSAGE_KEYS.unknown(message), *LOSS_KEYS}
    return {
        key: value
        for key, value in message.items()
        if value is not None
        and key not in left_out
        and not (key == "id" and _role(message) != "tool")
    }


def _content(message: Mapping[str, Any]) -> object:
    return message.get("content", message.get("value"))


def _is_conversation(answer: object) -> bool:
    """Whether the column of an answer begins with a question or a system message."""
    if isinstance(answer, str):
        answer = _transcript(answer) or _listed(answer)
    return isinstance(answer, Sequence) and bool(answer) and _role(answer[0]) in _ASKING


def _without_prompt(row: Mapping[str, Any]) -> Mapping[str, Any]:
    """The row without the text of the prompt in chosen and rejected, where both repeat it."""
    prompt, names = row.get("prompt"), ("chosen", "rejected")
    if not isinstance(prompt, str) or not all(isinstance(row[name], str) for name in names):
        return row
    words = r"\s+".join(map(re.escape, prompt.split()))
    begins = [re.match(rf"\s*{words}", row[name]) if words else None for name in names]
    rests = [
        row[name][begin.end() :] if begin else "" for name, begin in zip(names, begins, strict=True)
    ]
    marked = prompt.rstrip().endswith(_MARKERS)
    repeated = [bool(rest) and (marked or rest[0].isspace()) for rest in rests]
    if all(repeated):
        return {**row, **{name: rest.lstrip() for name, rest in zip(names, rests, strict=True)}}
    if any(repeated) and not all(begins):
        raise DataError("one of chosen and rejected repeats the prompt, and the other does not")
    return {**row, **{name: row[name].lstrip() for name in names}} if _transcript(prompt) else row


def _with_prompt(prompt: list[Any], answer: list[Any], column: str) -> list[Any]:
    """The conversation of a prompt and an answer, which may be the whole conversation already."""
    if not prompt or [*map(_meant, answer[: len(prompt)])] == [*map(_meant, prompt)]:
        return answer
    if not _is_conversation(answer):
        return prompt + answer
    # The prompt beside a longer conversation is often its first or its last question.
    asked = [_content(message) for message in answer if _role(message) in _ASKING]
    if len(prompt) > 1 or _content(prompt[0]) not in asked:
        raise DataError(f"{column} begins with another question than the prompt")
    return answer


def _rated(row: Mapping[str, Any], origin: RowOrigin, empty: bool) -> RatedAnswer:
    messages, count = _answered(row)
    start, answer = _split(messages, count, row, "completion", empty)
    if _deliberation(row) is None:
        start = replace(start, deliberation=start.deliberation or _reasoned(answer))
    if "reward" not in row:
        return RatedAnswer(origin, start, answer, _label(row["label"]))
    if "label" in row and row["label"] != row["reward"]:
        raise DataError("label and reward are different", fix=_ONE)
    return RatedAnswer(origin, start, answer, _reward(row["reward"], "reward"), _references(row))


def _label(value: object) -> float:
    """1.0 or 0.0 of a label: true, false, 1, 0, or one of these as text."""
    text = str(value).lower()
    if not isinstance(value, bool | int | float | str) or text not in _LABELS:
        raise DataError(f"label is {value!r}, which is not true or false, 1 or 0")
    return _LABELS[text]


def _references(row: Mapping[str, Any]) -> tuple[float, ...]:
    references = row.get("ref_rewards") or ()
    if not isinstance(references, Sequence) or isinstance(references, str):
        raise DataError("ref_rewards is not a list of numbers")
    return tuple(_reward(reward, "ref_rewards") for reward in references)


def _split(
    messages: list[Any], count: int, row: Mapping[str, Any], column: str, empty: bool
) -> tuple[Conversation, AssistantTurn]:
    """The prompt, the first `count` messages, and the one assistant's turn after it.

    Raises   DataError when the rest is empty, holds turns of the user, or is not to be trained on.
    """
    if len(messages) == count:
        raise EmptyAnswerError(f"{column} has no answer of the assistant", fix="Remove the row")
    start, whole = _prompt(messages[:count], row), _read(messages, row, empty)
    last = whole.turns[-1] if whole.turns else None
    if len(whole.turns) != len(start.turns) + 1 or not isinstance(last, AssistantTurn):
        raise DataError(f"{column} is not exactly one answer of the assistant")
    if not last.supervised:
        raise DataError(f"{column} is marked as not trained on")
    return start, last


def _prompt(messages: list[Any], row: Mapping[str, Any]) -> Conversation:
    conversation = _read(messages, row)
    if conversation.turns and isinstance(conversation.turns[-1], AssistantTurn):
        raise DataError("the prompt does not end with the user")
    return replace(conversation, turns=as_prompt(conversation.turns))


def _read(messages: list[Any], row: Mapping[str, Any], empty: bool = False) -> Conversation:
    """A conversation. Thoughts enable deliberation where the row does not state it."""
    stated = _deliberation(row)
    messages = _with_system(messages, row)
    check_control_tokens(messages)
    conversation = read_conversation(
        messages,
        tools=row.get("tools"),
        deliberation=stated is True,
        empty_answer=empty,
    )
    answers = [turn for turn in conversation.turns if isinstance(turn, AssistantTurn)]
    _check_called(conversation.tools, answers)
    asked = [turn.text for turn in conversation.turns if isinstance(turn, UserTurn)]
    if asked and not "".join([conversation.system or "", *asked]).strip():
        raise DataError(
            "the prompt is empty", fix="Check the names of the columns (prepare.fields)"
        )
    if stated is None and _reasoned(*answers):
        conversation = replace(conversation, deliberation=True)
    return conversation


def _check_called(tools: Sequence[Mapping[str, Any]], answers: Sequence[AssistantTurn]) -> None:
    """Check that the tools which are called are among those that the row declares, if it does."""
    declared = {tool["name"] for tool in tools} | {ANSWER_TOOL}
    for block in (block for answer in answers for block in answer.blocks):
        for call in block.calls if isinstance(block, ToolCalls) and tools else ():
            if call.name not in declared:
                raise DataError(f"the tool {call.name} is called, and tools does not declare it")


def _reasoned(*answers: AssistantTurn) -> bool:
    return any(isinstance(block, Thoughts) for answer in answers for block in answer.blocks)


def _deliberation(row: Mapping[str, Any]) -> bool | None:
    """deliberation of a row, or enable_thinking of its chat_template_kwargs; None without either."""
    options = row.get("chat_template_kwargs") or {}
    if not isinstance(options, Mapping):
        raise DataError("chat_template_kwargs is not an object")
    if unknown_options := _TEMPLATE_KEYS.unknown(options):
        raise DataError(
            f"chat_template_kwargs has {', '.join(unknown_options)}, which no chat format reads"
        )
    values = [row.get("deliberation"), options.get("enable_thinking")]
    stated = [value for value in values if value is not None]
    if any(not isinstance(value, bool) for value in stated):
        raise DataError(f"deliberation is {stated[0]!r}, which is not true or false")
    if len(set(stated)) > 1:
        raise DataError("deliberation and chat_template_kwargs are different")
    return stated[0] if stated else None


def _messages(row: Mapping[str, Any], column: str, role: str) -> list[Any]:
    """The messages of a column; a string is one message of `role`, or a transcript."""
    value = row[column]
    if isinstance(value, str):
        return _transcript(value) or _listed(value) or [{"role": role, "content": value}]
    if not isinstance(value, Sequence):
        raise DataError(f"{column} is neither text nor a list of messages")
    return list(value)


def _with_system(messages: list[Any], row: Mapping[str, Any]) -> list[Any]:
    """The messages after the system message that the row has in a column of its own."""
    stated = row.get("system")
    if stated in (None, ""):
        return messages
    if not messages or _role(messages[0]) not in ("system", "developer"):
        return [{"role": "system", "content": stated}, *messages]
    if _content(messages[0]) != stated:
        raise DataError("system and the first message of the row are different")
    return messages


def _transcript(text: str) -> list[dict[str, str]]:
    """The messages of "\\n\\nHuman: …\\n\\nAssistant: …", as HH-RLHF has it; [] for another text.

    Edge     blank lines at the beginning may lack; an open "\\n\\nAssistant:" at the end, as prompts
             have it, is left out
    Raises   DataError for other transcripts of Human and Assistant: with text before them, or without
             blank lines between the turns.
    """
    first = _FIRST_HUMAN.search(text)
    answered = first is not None and "\nAssistant:" in text[first.end() :]
    if not answered and not text.startswith((_HUMAN, _ASSISTANT)):
        return []
    before, *pieces = _SPEAKER.split("\n\n" + text.lstrip())
    if before.strip() or pieces[:1] != [_HUMAN] or _ASSISTANT not in pieces:
        raise DataError(
            "a text has turns of Human: and Assistant:, and is not a transcript of HH-RLHF's form",
            fix="Use a list of messages",
        )
    messages = [
        {"role": "user" if speaker == _HUMAN else "assistant", "content": utterance.strip()}
        for speaker, utterance in zip(pieces[::2], pieces[1::2], strict=True)
    ]
    return messages[:-1] if pieces[-2] == _ASSISTANT and not pieces[-1].strip() else messages


def _listed(text: str) -> list[Any]:
    """The messages of a text that is a list of messages in JSON; [] for another text."""
    if not _LISTED.match(text.lstrip()):
        return []
    try:
        value = parse_json(text)
    except (ValueError, RecursionError) as error:
        if re.search("['\"](?:role|from)['\"]", text) and re.search(
            "['\"](?:content|value)['\"]", text
        ):
            raise DataError(
                f"a text looks like a list of messages, and is not JSON: {error}"
            ) from None
        return []
    messages = value if isinstance(value, list) else [value]
    known = [
        isinstance(message, Mapping) and _role(message) and _content(message) is not None
        for message in messages
    ]
    return messages if all(known) else []


def _first(row: Mapping[str, Any], names: Sequence[str]) -> float | None:
    """The reward that the row has under one of `names`; None without one."""
    rewards = {name: _reward(row[name], name) for name in names if row.get(name) is not None}
    if len(set(rewards.values())) > 1:
        raise DataError(f"{' and '.join(rewards)} are different", fix=_ONE)
    return next(iter(rewards.values()), None)


def _reward(value: object, column: str) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise DataError(f"{column} holds {value!r}, which is not a finite number")
    return float(value)
