"""Scored completions of two models on the same prompts, as arrays of answers by prompt.

Checked  tests/unit/align/test_completions.py
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from stamm.base.errors import DataError
from stamm.base.files import sha256_value
from stamm.base.schema import decode, read_objects
from stamm.chat.conversation import Conversation, read_conversation
from stamm.chat.formats import ChatFormat

ONLY_START = "prompts that only the start model answered"
ONLY_ALIGNED = "prompts that only the aligned model answered"
TOO_FEW = "prompts with too few start answers"
UNSCORED = "answers without a reward"
_FIX = "Score the completions with `stamm score`"


@dataclass(frozen=True, kw_only=True)
class CompletionLine:
    """A line of completions.jsonl. Texts are untrusted.

    prompt, completion   messages, as `chat.conversation.read_conversation` reads them
    num_tokens           sampled tokens, the stop token included
    token_ids            their ids; () in files that did not record them
    stopped              ended by a stop token, not by its longest length
    """

    id: str = ""
    prompt: object
    completion: object
    tools: object = None
    deliberation: bool = False
    sample: int = 0
    num_tokens: int
    token_ids: tuple[int, ...] = ()
    stopped: bool


@dataclass(frozen=True)
class ScoredAnswer:
    """A completion with its reward, and that of a second scorer where there is one."""

    line: CompletionLine
    rewards: tuple[float, ...]


@dataclass(frozen=True)
class PromptAnswers:
    """All answers to one prompt.

    before       answers of the start model that are compared
    references   answers of the start model among which quantiles are computed
    after        answers of the aligned model, by seed
    """

    before: tuple[ScoredAnswer, ...]
    references: tuple[ScoredAnswer, ...]
    after: tuple[tuple[ScoredAnswer, ...], ...]

    @property
    def id(self) -> str:
        """The prompt's own identifier, "" when it has none."""
        return self.before[0].line.id

    def reference_rewards(self, column: int) -> list[float]:
        """Rewards of the reference completions."""
        return [answer.rewards[column] for answer in self.references]


@dataclass(frozen=True)
class PairedAnswers:
    """Prompts that all models answered, in the start file's order, and counts of what was left out.

    Answers without a reward are missing from the files. Their number is counted as the difference
    between a prompt's answers and those of the prompt with the most answers.
    """

    prompts: tuple[PromptAnswers, ...]
    left_out: Mapping[str, int]


def read_paired(
    start: Path,
    aligned: Sequence[Path],
    column: str,
    gold: tuple[Path, Sequence[Path]] | None = None,
) -> PairedAnswers:
    """The answers of the start model and of the aligned model's seeds, prompt by prompt.

    column   of the rewards. The first half of a prompt's start answers, by sample number, is
             compared with the aligned ones, the rest are references.
    gold     the same completions scored by another reward, in the same column; an answer that is
             not in them is left out

    Prompts are the same when identifier, messages, tools and deliberation are.

    Raises   DataError for a line without a reward, and when no prompt is left
    """
    first = read_completions(start, column, gold[0] if gold else None)
    seconds = gold[1] if gold else [None] * len(aligned)
    others = [
        read_completions(path, column, second)
        for path, second in zip(aligned, seconds, strict=True)
    ]
    reasons: Counter[str] = Counter()
    prompts = []
    for key, answers in first.items():
        half = len(answers) // 2
        if not all(key in other for other in others):
            reasons[ONLY_START] += 1
        elif half < 1:
            reasons[TOO_FEW] += 1
        else:
            prompts.append(
                PromptAnswers(answers[:half], answers[half:], tuple(o[key] for o in others))
            )
    extra = {key for other in others for key in other} - first.keys()
    if extra:
        reasons[ONLY_ALIGNED] = len(extra)
    files = [[len(answers) for answers in file.values()] for file in (first, *others)]
    if unscored := sum(max(counts) * len(counts) - sum(counts) for counts in files if counts):
        reasons[UNSCORED] = unscored
    if not prompts:
        reasons_text = ", ".join(f"{count} {reason}" for reason, count in reasons.items())
        raise DataError(
            f"no prompt has two answers in {start} and one in {aligned[0]}: {reasons_text}",
            fix="Sample both models on the same prompts, the start model with n=2 or more",
        )
    return PairedAnswers(tuple(prompts), dict(reasons))


def read_completions(
    path: Path, column: str, gold: Path | None = None
) -> dict[str, tuple[ScoredAnswer, ...]]:
    """The answers of a file by prompt, each prompt's in the order of its samples.

    gold   the same completions scored by a second reward; answers without one are left out

    Raises   DataError for a malformed line, or one whose reward is missing or not finite
    """
    second: dict[tuple[str, int], float] = {}
    if gold is not None:
        second = {(key, line.sample): reward for key, line, reward in _lines(gold, column)}
    answers_by_prompt: dict[str, list[ScoredAnswer]] = {}
    for key, line, reward in _lines(path, column):
        if gold is None:
            answers_by_prompt.setdefault(key, []).append(ScoredAnswer(line, (reward,)))
        elif (key, line.sample) in second:
            rewards = (reward, second[key, line.sample])
            answers_by_prompt.setdefault(key, []).append(ScoredAnswer(line, rewards))
    return {
        key: tuple(sorted(answers, key=lambda answer: answer.line.sample))
        for key, answers in answers_by_prompt.items()
    }


def _lines(path: Path, column: str) -> Iterator[tuple[str, CompletionLine, float]]:
    """Each line with the key of its prompt and its reward."""
    for where, plain in read_objects(path):
        line: CompletionLine = decode(CompletionLine, plain, where)
        key = sha256_value([line.id, line.prompt, line.tools, line.deliberation])
        yield key, line, _reward(plain, column, where)


def _reward(plain: Mapping[str, object], column: str, where: str) -> float:
    if plain.get(column) is None:
        raise DataError(f"{where} has no {column!r}", fix=_FIX)
    value: float = decode(float, plain[column], where, column)
    if not math.isfinite(value):
        raise DataError(f"{where}: {column} is {value}", fix=_FIX)
    return value


def answer_text(messages: object) -> str:
    """The text of a completion's messages for display; blocks other than responses with their kind."""
    return "\n".join(_texts(messages)).strip()


def prompt_text(messages: object) -> str:
    """The text of a prompt for display: of a single message its text, of several with their roles."""
    if not isinstance(messages, Sequence) or isinstance(messages, str):
        return str(messages)
    if len(messages) == 1:
        return answer_text(messages)
    return "\n".join(
        f"{message.get('role', '')}: {' '.join(_texts([message]))}"
        for message in messages
        if isinstance(message, Mapping)
    )


def _texts(messages: object) -> Iterable[str]:
    if isinstance(messages, str):
        yield messages
        return
    for message in messages if isinstance(messages, Sequence) else ():
        content = message.get("content") if isinstance(message, Mapping) else message
        blocks = content.get("blocks") if isinstance(content, Mapping) else None
        if isinstance(blocks, Sequence) and not isinstance(blocks, str):
            for block in blocks:
                kind = block.get("type") if isinstance(block, Mapping) else None
                rest = {k: v for k, v in block.items() if k != "type"} if kind else block
                yield str(block["text"]) if kind == "response" else f"[{kind}] {rest}"
        elif isinstance(content, str):
            yield content
        elif content is not None:
            yield str(content)


@dataclass(frozen=True)
class EncodedCompletion:
    """A prompt and its completion as ids.

    supervised   True for tokens of the completion that the model wrote
    prompt       ids of the prompt
    recoded      whether the completion has another number of tokens than were sampled
    """

    ids: list[int]
    supervised: list[bool]
    prompt: int
    recoded: bool

    @property
    def completion(self) -> list[int]:
        """The ids of the completion alone."""
        return self.ids[self.prompt :]


def encode_completion(chat: ChatFormat, line: CompletionLine) -> EncodedCompletion | None:
    """The ids of a completion: those that were sampled, or its text encoded again.

    Text that is encoded again has no stop token where it was cut at its longest length, and its
    tokens may differ from those that were sampled.

    Edge   None for a completion that the chat format cannot write, and for one without a sampled token
    """
    try:
        prompt = list(chat.encode(_conversation(line, []), prompt=True).ids)
        if line.token_ids:
            sampled = [False] * len(prompt) + [True] * len(line.token_ids)
            return EncodedCompletion([*prompt, *line.token_ids], sampled, len(prompt), False)
        encoded = chat.encode(_conversation(line, _listed(line.completion)))
    except DataError:
        return None
    start, ids, supervised = len(prompt), list(encoded.ids), list(encoded.supervised)
    if not line.stopped and ids[-1] in chat.stop_ids:
        ids, supervised = ids[:-1], supervised[:-1]
    supervised[:start] = [False] * start
    if not any(supervised):
        return None
    return EncodedCompletion(ids, supervised, start, len(ids) - start != line.num_tokens)


def _conversation(line: CompletionLine, answer: list[object]) -> Conversation:
    return read_conversation(
        [*_listed(line.prompt), *answer],
        tools=line.tools,
        deliberation=line.deliberation,
        empty_answer=True,
    )


def _listed(value: object) -> list[object]:
    if not isinstance(value, list):
        raise DataError("the messages are not a list")
    return value
