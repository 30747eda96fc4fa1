"""Score answers: add a reward to each row of a file, `stamm score`.

Reads    a file of rows with a prompt and a completion, with messages that end with the assistant, or
         with a chosen and a rejected answer
Writes   the same rows with the column "reward" (of a pair: chosen_reward, rejected_reward) and
         without columns of an earlier reward, such as ref_rewards, as JSONL,
         and beside it NAME.manifest.json (`align.records.ScoreManifest`): reward, hashes of its files, of input
         and output, and the rows that could not be read or scored

An answer without content, of a model that ended its turn at once, is scored as any other: without it
the mean reward would be that of the answers with content.

Checked  tests/cli/test_score.py
"""

from __future__ import annotations

import itertools
import math
from array import array
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TextIO

import numpy as np
from numpy.typing import NDArray

from stamm.align.data.dataset_reader import TRUNCATED, read_rows
from stamm.align.data.examples import (
    CHOSEN_REWARD,
    REJECTED_REWARD,
    prompt_and_answers,
)
from stamm.align.records import BadRow, ScoreManifest
from stamm.align.rewards.config import ScoreConfig, reward_sources
from stamm.align.rewards.load_reward import load_reward
from stamm.align.rewards.reward import Answer, BatchReward, Reward, rewards_of
from stamm.base.config import to_plain
from stamm.base.errors import ConfigError, DataError
from stamm.base.files import atomic, json_line, sha256_file, sha256_value
from stamm.base.schema import read_record, write_record
from stamm.chat.conversation import to_messages
from stamm.runs.job import Workspace

BATCH_ROWS = 1024
"""Rows that a `BatchReward` scores together."""
COLUMN, PAIR_COLUMNS = "reward", ("chosen_reward", "rejected_reward")
# Columns of another reward: those of references would be compared with this one.
_EARLIER = frozenset({COLUMN, "ref_rewards", *CHOSEN_REWARD, *REJECTED_REWARD})
NO_REWARD = "no_reward"
_NAMED = 1000  # bad rows that the manifest lists


@dataclass(frozen=True)
class _Row:
    """A row's answers, and the reason why it has no reward if there are none or one gets none."""

    answers: tuple[Answer, ...]
    place: BadRow


def score_file(data: Path, out: Path, config: ScoreConfig) -> ScoreManifest:
    """Write the rows of `data` with their rewards to `out`, and the manifest beside it, which is returned.

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
            counts = _write(file, data, reward, config)
        if not counts["rows"]:
            first = f": {counts['bad_rows'][0].line()}" if counts["bad_rows"] else ""
            raise DataError(f"no row of {data} can be scored{first}")
        if sha256_file(data) != before:
            raise DataError(f"{data} changed while it was read", fix="Score it again")
        # Written before the file that it describes: what exists has a manifest.
        body = {
            "kind": "score",
            "reward": reward.name,
            "config": to_plain(config),
            "reads": {
                name: {"path": str(path), "sha256": sha256_file(path)}
                for name, path in sources.items()
            },
            "input": {"path": str(data), "sha256": before},
            "output": {"path": out.name, "sha256": sha256_file(temporary)},
            **counts,
            "bad_rows": [vars(row) for row in counts["bad_rows"]],
        }
        manifest = out.with_name(f"{out.name}.manifest.json")
        write_record(manifest, ScoreManifest, body)
    return read_record(ScoreManifest, manifest)


def _write(file: TextIO, data: Path, reward: Reward, config: ScoreConfig) -> dict[str, Any]:
    """Write the rows with rewards; the counts of `ScoreManifest`."""
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
                bad += [values] if len(bad) < _NAMED or values.cause == TRUNCATED else []
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
    return {
        "rows": num_rows,
        "answers": len(rewards),
        "agreement": agreeing / num_pairs if num_pairs else None,
        "mean_reward": math.fsum(rewards) / len(rewards) if rewards else None,
        "distinct_rewards": len(set(rewards)),
        "prompts": len(known),
        "tied_pairs": tied_pairs(rewards, prompts),
        "constant_prompts": constant_prompts(rewards, prompts),
        "length_correlation": rank_correlation(rewards, lengths),
        "num_bad_rows": num_bad,
        "bad_rows": bad,
    }


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
        rewards: list[float] = []
        bad_row: BadRow | None = None if row.answers else row.place
        for value in itertools.islice(values, len(row.answers)):
            if isinstance(value, DataError):
                reason = value.line().rstrip(".")
                bad_row = BadRow(row.place.file, row.place.row, reason, NO_REWARD)
            else:
                rewards.append(value)
        yield tuple(rewards) if bad_row is None else bad_row


def _rows(data: Path) -> Iterator[_Row]:
    for row, example in read_rows(data, empty_answers=True):
        if isinstance(example, BadRow):
            yield _Row((), example)
            continue
        origin = example.origin
        no_completion = BadRow(origin.file, origin.row, "the row has no completion", NO_REWARD)
        prompt, answers = prompt_and_answers(example)
        yield _Row(tuple(Answer(prompt, answer, row) for answer in answers), no_completion)


Array = NDArray[np.float64]


def rank_correlation(first: Sequence[float], second: Sequence[float]) -> float | None:
    """Spearman's rank correlation in [-1, 1], with mid-ranks for ties; shapes (N,).

    Edge     None where one of the two is constant, and for fewer than two values
    """
    ranks = [_mid_ranks(np.asarray(values, float)) for values in (first, second)]
    if any(len(rank) < 2 or rank.min() == rank.max() for rank in ranks):
        return None
    x, y = (rank - rank.mean() for rank in ranks)
    return float((x * y).sum() / np.sqrt((x * x).sum() * (y * y).sum()))


def tied_pairs(rewards: Sequence[float], prompts: Sequence[int]) -> float | None:
    """Share of the pairs of answers to the same prompt that have equal rewards, in [0, 1].

    Such a pair has no chosen answer, and the quantiles of its answers are equal.

    prompts   the number of each answer's prompt, (N,)

    Edge      None without two answers to one prompt
    """
    prompt = np.asarray(prompts, np.int64)
    prompt_and_reward = np.stack([prompt.astype(float), np.asarray(rewards, float)])
    pairs = _pairs(np.unique(prompt, return_counts=True)[1])
    equal = _pairs(np.unique(prompt_and_reward, axis=1, return_counts=True)[1])
    return equal / pairs if pairs else None


def constant_prompts(rewards: Sequence[float], prompts: Sequence[int]) -> float | None:
    """Share of the prompts with two answers or more whose answers all have the same reward.

    A preference loss cannot learn from them: all answers are right, or all are wrong.

    Edge      None without such a prompt
    """
    _, groups, counts = np.unique(prompts, return_inverse=True, return_counts=True)
    values = np.asarray(rewards, float)
    lowest, highest = np.full(len(counts), np.inf), np.full(len(counts), -np.inf)
    np.minimum.at(lowest, groups, values)
    np.maximum.at(highest, groups, values)
    several = counts >= 2
    return float((lowest == highest)[several].mean()) if several.any() else None


def _mid_ranks(values: Array) -> Array:
    """Ranks from 1; equal values have the mean of their ranks."""
    _, groups, counts = np.unique(values, return_inverse=True, return_counts=True)
    last = np.cumsum(counts)
    ranks: Array = (last - (counts - 1) / 2)[groups]
    return ranks


def _pairs(counts: NDArray[np.int64]) -> int:
    return int((counts * (counts - 1) // 2).sum())


SCORED = "scored.jsonl"


def run(config: ScoreConfig, workspace: Workspace) -> None:
    """Score every answer of the input."""
    out = workspace.folder / SCORED
    out.unlink(missing_ok=True)  # of an attempt that was interrupted
    workspace.progress.begin("score", 1, "files")
    scored = score_file(workspace.inputs["answers"], out, config)
    bad = f", {scored.num_bad_rows} without a reward" if scored.num_bad_rows else ""
    workspace.progress.end(f"mean reward {scored.mean_reward:.3f}{bad}")
