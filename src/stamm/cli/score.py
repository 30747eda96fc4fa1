"""`stamm score`: add a reward to each answer of a data file."""

from __future__ import annotations

import argparse
from typing import get_args

from stamm.align.data.dataset_reader import truncated_files
from stamm.align.records import ScoreManifest, truncation_sentence
from stamm.align.rewards.config import RewardConfig
from stamm.align.verb import score
from stamm.base.errors import visible
from stamm.cli.arg_types import add_changes, text

_SHOWN = 5


def arguments(parser: argparse.ArgumentParser, verb: str) -> None:
    """Add the arguments of the verb."""
    parser.add_argument(
        "data", type=text, metavar="DATA", help="a JSONL or Parquet file with prompts and answers"
    )
    add_changes(
        parser,
        f"reward={', '.join(kind.__name__ for kind in get_args(RewardConfig))} or "
        "mine.py:MyReward, and its settings",
    )
    parser.add_argument(
        "--out", type=text, metavar="PATH", help="the scored file (default: DATA.scored.jsonl)"
    )


def run(options: argparse.Namespace, verb: str) -> int:
    """Score the file and print a summary."""
    scored = score(options.data, *options.changes, out=options.out)
    print(_text(scored.record))
    print(scored.file)
    return 0


def _text(scored: ScoreManifest) -> str:
    """Rows, mean reward, ties, correlation with length, and the first bad rows."""
    distinct = scored.distinct_rewards
    values = "value" if distinct == 1 else "values"
    lines = [
        f"{scored.answers:,} answers, mean reward {scored.mean_reward:.4g}, {distinct:,} {values}"
    ]
    if distinct == 1:
        lines.append("All rewards are equal: preference losses learn nothing from them.")
    if scored.tied_pairs is not None and distinct > 1:
        lines.append(
            f"{scored.prompts:,} prompts: {scored.tied_pairs:.1%} of the pairs of answers to "
            f"one prompt are ties, {scored.constant_prompts:.1%} of the prompts have one reward only"
        )
    if scored.agreement is not None:
        lines.append(
            f"{scored.answers - scored.rows:,} pairs: the chosen answer has the larger reward in "
            f"{scored.agreement:.1%}, ties counted as 1/2"
        )
    if scored.length_correlation is not None:
        lines.append(f"rank correlation of reward and length {scored.length_correlation:+.3f}")
    if scored.num_bad_rows:
        lines.append(f"{scored.num_bad_rows:,} rows without a reward:")
        lines += [f"  {visible(row.line(), 200)}" for row in scored.bad_rows[:_SHOWN]]
    if cut := truncation_sentence(truncated_files(scored.bad_rows)):
        lines.append(cut)
    return "\n".join(lines)
