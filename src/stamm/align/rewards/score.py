"""Score answers: add a reward to each row of a file, `stamm score`.

Reads    a file of rows with a prompt and a completion, or with messages that end with the assistant
Writes   the same rows with the column "reward", as JSONL, and beside it NAME.manifest.json
         (`runs.schemas.rewards`): reward, hashes of its files, of input and output, and the rows that
         could not be read or scored

Checked  tests/cli/test_score.py
"""

from __future__ import annotations

import itertools
import json
import math
from array import array
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TextIO

from stamm.align.data.dataset_reader import BadRow, read_rows
from stamm.align.data.examples import ChatExample, Example, RatedAnswer, last_answer
from stamm.align.rewards.load_reward import load_reward
from stamm.align.rewards.reward import Answer, BatchReward, Reward, files_of, rewards_of
from stamm.align.rewards.reward_config import ScoreConfig
from stamm.align.rewards.statistics import constant_prompts, rank_correlation, tied_pairs
from stamm.base.config import to_plain
from stamm.base.errors import ConfigError, DataError
from stamm.base.files import atomic, sha256_file, sha256_value
from stamm.base.schema import write_record
from stamm.chat.conversation import Conversation, to_messages
from stamm.runs.schemas.rewards import ScoreManifest

BATCH_ROWS = 1024
"""Rows that a `BatchReward` scores together."""
NO_REWARD = "no_reward"
_NAMED = 1000  # bad rows that the manifest lists


@dataclass(frozen=True)
class ScoreSummary:
    """Result of `score_file`.

    rewards    the reward of each row that has one, in order
    lengths    characters of each answer
    prompts    number of each answer's prompt, from 0
    bad        rows without a reward, at most 1,000 of them
    num_bad    how many there were
    """

    rewards: Sequence[float]
    lengths: Sequence[int]
    prompts: Sequence[int]
    bad: Sequence[BadRow]
    num_bad: int

    @property
    def mean(self) -> float:
        """Mean reward; NaN without rows."""
        return math.fsum(self.rewards) / len(self.rewards) if self.rewards else math.nan

    @property
    def distinct(self) -> int:
        """Number of different rewards."""
        return len(set(self.rewards))

    @property
    def num_prompts(self) -> int:
        """Number of different prompts."""
        return len(set(self.prompts))

    @property
    def tied_pairs(self) -> float | None:
        """Share of the pairs of answers to one prompt with equal rewards; None without any."""
        return tied_pairs(self.rewards, self.prompts)

    @property
    def constant_prompts(self) -> float | None:
        """Share of the prompts with several answers that all have one reward; None without any."""
        return constant_prompts(self.rewards, self.prompts)

    @property
    def length_correlation(self) -> float | None:
        """Spearman's rank correlation of reward and length; None if one is constant."""
        return rank_correlation(self.rewards, self.lengths)


@dataclass(frozen=True)
class _Row:
    """A row's answer, and the reason why it has no reward if that is None or gets none."""

    answer: Answer | None
    place: BadRow


def score_file(data: Path, out: Path, config: ScoreConfig) -> ScoreSummary:
    """Write the rows of `data` with their rewards to `out`.

    Raises   ConfigError when `out` exists or a user's reward raises, DataError for a bad row with
             bad_rows="stop", when no row could be scored, and when `data` changes meanwhile
    """
    if out.exists():
        raise ConfigError(f"{out} exists", fix="Name another file with --out, or remove it")
    if not data.is_file():
        raise DataError(f"cannot read {data}: no such file")
    before = sha256_file(data)
    reward = load_reward(config.reward)
    out.parent.mkdir(parents=True, exist_ok=True)
    with atomic(out) as temporary:
        with temporary.open("w", encoding="utf-8") as file:
            summary = _write(file, data, reward, config)
        if not summary.rewards:
            first = f": {summary.bad[0].line()}" if summary.bad else ""
            raise DataError(f"{data} has no row with an answer{first}")
        if sha256_file(data) != before:
            raise DataError(f"{data} changed while it was read", fix="Score it again")
        # Written before the file that it describes: what exists has a manifest.
        write_record(
            out.with_name(out.name + ".manifest.json"),
            ScoreManifest,
            {
                "kind": "score",
                "reward": reward.name,
                "config": to_plain(config),
                "reads": {
                    name: {"path": str(path), "sha256": sha256_file(path)}
                    for name, path in files_of(reward).items()
                },
                "input": {"path": str(data), "sha256": before},
                "output": {"path": out.name, "sha256": sha256_file(temporary)},
                "rows": len(summary.rewards),
                "mean_reward": summary.mean,
                "distinct_rewards": summary.distinct,
                "prompts": summary.num_prompts,
                "tied_pairs": summary.tied_pairs,
                "constant_prompts": summary.constant_prompts,
                "length_correlation": summary.length_correlation,
                "num_bad_rows": summary.num_bad,
                "bad_rows": [vars(row) for row in summary.bad],
            },
        )
    return summary


def _write(file: TextIO, data: Path, reward: Reward, config: ScoreConfig) -> ScoreSummary:
    rewards, lengths, prompts, num_bad = array("d"), array("q"), array("q"), 0
    known: dict[str, int] = {}
    bad: list[BadRow] = []
    size = BATCH_ROWS if isinstance(reward, BatchReward) else 1
    rows = _rows(data)
    while batch := list(itertools.islice(rows, size)):
        for found in _scored(reward, batch):
            if isinstance(found, BadRow):
                if config.bad_rows == "stop":
                    raise DataError(found.reason, where=f"{found.file}, row {found.row}")
                num_bad += 1
                bad += [found] if len(bad) < _NAMED else []
                continue
            answer, value = found
            rewards.append(value)
            lengths.append(len(answer.text))
            prompts.append(known.setdefault(_prompt_key(answer), len(known)))
            line = {**answer.row, "reward": value}
            file.write(json.dumps(line, ensure_ascii=False, default=str) + "\n")
    return ScoreSummary(rewards, lengths, prompts, bad, num_bad)


def _prompt_key(answer: Answer) -> str:
    """What answers to the same prompt have in common."""
    prompt = answer.prompt
    tools = [dict(tool) for tool in prompt.tools]
    return sha256_value([to_messages(prompt.system, prompt.turns), tools, prompt.deliberation])


def _scored(reward: Reward, batch: Sequence[_Row]) -> Iterator[tuple[Answer, float] | BadRow]:
    """The answer and the reward of each row, or the reason why it has none."""
    answers = [row.answer for row in batch if row.answer is not None]
    try:
        values = iter(rewards_of(reward, answers))
    except ConfigError as error:
        first, last = batch[0].place, batch[-1].place
        rows = f"row {first.row}" if first.row == last.row else f"rows {first.row} to {last.row}"
        where = f"{error.where}, for {first.file}, {rows}"
        raise ConfigError(error.what, where=where, fix=error.fix) from error
    for row in batch:
        if row.answer is None:
            yield row.place
            continue
        value = next(values)
        if isinstance(value, DataError):
            yield BadRow(row.place.file, row.place.row, value.line().rstrip("."), NO_REWARD)
        else:
            yield row.answer, value


def _rows(data: Path) -> Iterator[_Row]:
    for row, example in read_rows(data):
        if isinstance(example, BadRow):
            yield _Row(None, example)
            continue
        place = BadRow(
            example.origin.file, example.origin.row, "the row has no completion", NO_REWARD
        )
        yield _Row(_answer(row, example), place)


def _answer(row: Mapping[str, Any], example: Example) -> Answer | None:
    if isinstance(example, RatedAnswer):
        return Answer(example.prompt, example.completion, row)
    if isinstance(example, ChatExample):
        whole = example.conversation
        before = Conversation(
            turns=whole.turns[:-1],
            system=whole.system,
            deliberation=whole.deliberation,
            tools=whole.tools,
        )
        return Answer(before, last_answer(whole), row)
    return None
