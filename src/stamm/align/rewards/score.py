"""Score answers: add a reward to each row of a file, `stamm score`.

Reads    a file of rows with a prompt and a completion, or with messages that end with the assistant
Writes   the same rows with the column "reward", as JSONL, and beside it NAME.manifest.json: reward,
         hash of its code, hashes of input and output, rows that could not be read or scored

Checked  tests/cli/test_score.py
"""

from __future__ import annotations

import collections
import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from stamm.align.data.dataset_reader import BadRow, read_rows
from stamm.align.data.examples import ChatExample, Example, RatedAnswer, last_answer
from stamm.align.rewards.reward import Answer, Reward
from stamm.align.rewards.reward_config import CustomReward, ScoreConfig
from stamm.align.rewards.rules import load_reward
from stamm.base.config import to_plain
from stamm.base.errors import ConfigError, DataError, visible
from stamm.base.files import atomic, sha256_file, write_json
from stamm.base.user_code import guarded, source_file
from stamm.chat.conversation import Conversation

SCHEMA = 1
_NAMED = 1000  # bad rows that the manifest lists


@dataclass(frozen=True)
class ScoreSummary:
    """Result of `score_file`.

    rows       rows with a reward
    bad        rows without one, at most 1,000 of them
    num_bad    how many there were
    rewards    how often each reward occurred, for at most 1,000 values
    """

    rows: int
    bad: list[BadRow]
    num_bad: int
    rewards: Mapping[float, int]

    @property
    def mean(self) -> float:
        """Mean reward; NaN without rows."""
        total = math.fsum(value * count for value, count in self.rewards.items())
        return total / self.rows if self.rows else math.nan


def score_file(data: Path, out: Path, config: ScoreConfig) -> ScoreSummary:
    """Write the rows of `data` with their rewards to `out`.

    Raises   ConfigError when `out` exists or a user's reward raises, DataError for a bad row with
             bad_rows="stop", and when no row could be scored
    """
    if out.exists():
        raise ConfigError(f"{out} exists", fix="Name another file with --out, or remove it")
    reward = load_reward(config.reward)
    bad: list[BadRow] = []
    num_bad = rows = 0
    rewards: collections.Counter[float] = collections.Counter()
    out.parent.mkdir(parents=True, exist_ok=True)
    with atomic(out) as temporary:
        with temporary.open("w", encoding="utf-8") as file:
            for row, value in _scored(data, reward, config):
                if isinstance(value, BadRow):
                    if config.bad_rows == "stop":
                        raise DataError(value.reason, where=f"{value.file}, row {value.row}")
                    num_bad += 1
                    bad += [value] if len(bad) < _NAMED else []
                    continue
                rows += 1
                rewards[value] += 1
                file.write(
                    json.dumps({**row, "reward": value}, ensure_ascii=False, default=str) + "\n"
                )
        if not rows:
            first = f": {bad[0].line()}" if bad else ""
            raise DataError(f"{data} has no row with an answer{first}")
    summary = ScoreSummary(rows, bad, num_bad, rewards)
    write_json(out.with_name(out.name + ".manifest.json"), _manifest(data, out, config, summary))
    return summary


def _scored(
    data: Path, reward: Reward, config: ScoreConfig
) -> Iterator[tuple[Mapping[str, Any], float | BadRow]]:
    for row, example in read_rows(data):
        if isinstance(example, BadRow):
            yield {}, example
            continue
        found = _answer(row, example)
        if found is None:
            origin = example.origin
            yield row, BadRow(origin.file, origin.row, "the row has no completion")
            continue
        origin = example.origin
        try:
            yield row, _reward(reward, found, config)
        except DataError as error:
            yield row, BadRow(origin.file, origin.row, error.line().rstrip("."))
        except ConfigError as error:
            where = f"{error.where}, for {origin.file}, row {origin.row}"
            raise ConfigError(error.what, where=where, fix=error.fix) from error


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


def _reward(reward: Reward, answer: Answer, config: ScoreConfig) -> float:
    """The reward of an answer.

    Raises   DataError for a reward that is not a finite number, ConfigError when a user's raises
    """
    if isinstance(config.reward, CustomReward):
        file = source_file(config.reward.reference, type(reward))
        value = guarded(file, lambda: reward(answer))
    else:
        value = reward(answer)
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        shown = visible(repr(value), 80)
        raise DataError(f"reward {reward.name} is {shown}, which is not a finite number")
    return float(value)


def _manifest(data: Path, out: Path, config: ScoreConfig, summary: ScoreSummary) -> dict[str, Any]:
    code = {}
    if isinstance(config.reward, CustomReward):
        reference = config.reward.reference
        file = source_file(reference, type(load_reward(config.reward)))
        code = {"code": {"path": reference, "sha256": sha256_file(file)}}
    return {
        "schema": SCHEMA,
        "kind": "score",
        "config": to_plain(config),
        **code,
        "input": {"path": str(data), "sha256": sha256_file(data)},
        "output": {"path": out.name, "sha256": sha256_file(out)},
        "rows": summary.rows,
        "mean_reward": summary.mean,
        "distinct_rewards": len(summary.rewards),
        "num_bad_rows": summary.num_bad,
        "bad_rows": [vars(row) for row in summary.bad],
    }
