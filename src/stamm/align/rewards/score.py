"""Score answers: add a reward to each row of a file, `stamm score`.

Reads    a file of rows with a prompt and a completion, with messages that end with the assistant, or
         with a chosen and a rejected answer
Writes   the same rows with the column "reward" (of a pair: chosen_reward, rejected_reward) and
         without columns of an earlier reward, such as ref_rewards, as JSONL,
         and beside it NAME.manifest.json (`runs.schemas.rewards`): reward, hashes of its files, of input
         and output, and the rows that could not be read or scored

An answer without content, of a model that ended its turn at once, is scored as any other: without it
the mean reward would be that of the answers with content.

Checked  tests/cli/test_score.py
"""

from __future__ import annotations

import itertools
import math
from array import array
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TextIO

from stamm.align.data.dataset_reader import BadRow, read_rows
from stamm.align.data.examples import (
    CHOSEN_REWARD,
    REJECTED_REWARD,
    ChatExample,
    Example,
    PreferencePair,
    RatedAnswer,
    last_answer,
)
from stamm.align.rewards.load_reward import load_reward
from stamm.align.rewards.reward import Answer, BatchReward, Reward, rewards_of
from stamm.align.rewards.reward_config import ScoreConfig
from stamm.align.rewards.sources import reward_sources
from stamm.align.rewards.statistics import constant_prompts, rank_correlation, tied_pairs
from stamm.base.config import to_plain
from stamm.base.errors import ConfigError, DataError
from stamm.base.files import atomic, json_line, sha256_file, sha256_value
from stamm.base.schema import write_record
from stamm.chat.conversation import before_last_turn, to_messages
from stamm.runs.schemas.rewards import ScoreManifest

BATCH_ROWS = 1024
"""Rows that a `BatchReward` scores together."""
COLUMN, PAIR_COLUMNS = "reward", ("chosen_reward", "rejected_reward")
# Columns of another reward: those of references would be compared with this one.
_EARLIER = frozenset({COLUMN, "ref_rewards", *CHOSEN_REWARD, *REJECTED_REWARD})
NO_REWARD = "no_reward"
_NAMED = 1000  # bad rows that the manifest lists


@dataclass(frozen=True)
class ScoreSummary:
    """Result of `score_file`.

    rewards    the reward of each answer of the rows that have one, in order; of a pair, the chosen
               answer's first
    lengths    characters of each answer
    prompts    number of each answer's prompt, from 0
    rows       how many rows have rewards
    pairs      how many of them are pairs
    agreeing   pairs whose chosen answer has the larger reward; a tie counts 1/2
    bad        rows without a reward, at most 1,000 of them
    num_bad    how many there were
    """

    rewards: Sequence[float]
    lengths: Sequence[int]
    prompts: Sequence[int]
    rows: int
    pairs: int
    agreeing: float
    bad: Sequence[BadRow]
    num_bad: int

    @property
    def mean(self) -> float:
        """Mean reward; NaN without rows."""
        return math.fsum(self.rewards) / len(self.rewards) if self.rewards else math.nan

    @property
    def agreement(self) -> float | None:
        """Share of the pairs whose chosen answer has the larger reward; None without pairs."""
        return self.agreeing / self.pairs if self.pairs else None

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
    """A row's answers, and the reason why it has no reward if there are none or one gets none."""

    answers: tuple[Answer, ...]
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
    sources = reward_sources(config.reward)
    out.parent.mkdir(parents=True, exist_ok=True)
    with atomic(out) as temporary:
        with temporary.open("w", encoding="utf-8") as file:
            summary = _write(file, data, reward, config)
        if not summary.rewards:
            first = f": {summary.bad[0].line()}" if summary.bad else ""
            raise DataError(f"no row of {data} can be scored{first}")
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
                    for name, path in sources.items()
                },
                "input": {"path": str(data), "sha256": before},
                "output": {"path": out.name, "sha256": sha256_file(temporary)},
                "rows": summary.rows,
                "answers": len(summary.rewards),
                "agreement": summary.agreement,
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
    rewards, lengths, prompts = array("d"), array("q"), array("q")
    num_rows = num_pairs = num_bad = 0
    agreeing = 0.0
    known: dict[str, int] = {}
    bad: list[BadRow] = []
    size = BATCH_ROWS if isinstance(reward, BatchReward) else 1
    rows = _rows(data)
    while batch := list(itertools.islice(rows, size)):
        for row, values in zip(batch, _scored(reward, batch), strict=True):
            if isinstance(values, BadRow):
                if config.bad_rows == "stop":
                    raise DataError(values.reason, where=f"{values.file}, row {values.row}")
                num_bad += 1
                bad += [values] if len(bad) < _NAMED else []
                continue
            num_rows += 1
            rewards.extend(values)
            lengths.extend(len(answer.text) for answer in row.answers)
            prompts.extend(
                known.setdefault(_prompt_key(answer), len(known)) for answer in row.answers
            )
            names = PAIR_COLUMNS if len(values) == 2 else (COLUMN,)
            kept = {k: v for k, v in row.answers[0].row.items() if k not in _EARLIER}
            line = {**kept, **dict(zip(names, values, strict=True))}
            file.write(json_line(line))
            if len(values) == 2:
                num_pairs += 1
                agreeing += 0.5 * ((values[0] > values[1]) + (values[0] >= values[1]))
    return ScoreSummary(
        rewards, lengths, prompts, num_rows, num_pairs, agreeing, bad=bad, num_bad=num_bad
    )


def _prompt_key(answer: Answer) -> str:
    """A hash that answers to the same prompt share."""
    prompt = answer.prompt
    tools = [dict(tool) for tool in prompt.tools]
    return sha256_value([to_messages(prompt.system, prompt.turns), tools, prompt.deliberation])


def _scored(reward: Reward, batch: Sequence[_Row]) -> Iterator[tuple[float, ...] | BadRow]:
    """The rewards of each row's answers, or the reason why it has none."""
    answers = [answer for row in batch for answer in row.answers]
    try:
        values = iter(rewards_of(reward, answers))
    except ConfigError as error:
        first, last = batch[0].place, batch[-1].place
        rows = f"row {first.row}" if first.row == last.row else f"rows {first.row} to {last.row}"
        where = f"{error.where}, for {first.file}, {rows}"
        raise ConfigError(error.what, where=where, fix=error.fix) from error
    for row in batch:
        found: list[float] = []
        wrong: BadRow | None = None if row.answers else row.place
        for value in itertools.islice(values, len(row.answers)):
            if isinstance(value, DataError):
                reason = value.line().rstrip(".")
                wrong = BadRow(row.place.file, row.place.row, reason, NO_REWARD)
            else:
                found.append(value)
        yield tuple(found) if wrong is None else wrong


def _rows(data: Path) -> Iterator[_Row]:
    for row, example in read_rows(data, empty_answers=True):
        if isinstance(example, BadRow):
            yield _Row((), example)
            continue
        origin = example.origin
        place = BadRow(origin.file, origin.row, "the row has no completion", NO_REWARD)
        yield _Row(tuple(_answers(row, example)), place)


def _answers(row: Mapping[str, Any], example: Example) -> Iterator[Answer]:
    if isinstance(example, RatedAnswer):
        yield Answer(example.prompt, example.completion, row)
    elif isinstance(example, PreferencePair):
        yield Answer(example.prompt, example.chosen, row)
        yield Answer(example.prompt, example.rejected, row)
    elif isinstance(example, ChatExample):
        whole = example.conversation
        yield Answer(before_last_turn(whole), last_answer(whole), row)
