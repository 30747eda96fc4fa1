"""`stamm score`: add a reward to each answer of a data file."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import get_args

from stamm.align.rewards.reward_config import RewardConfig, ScoreConfig
from stamm.align.rewards.score import ScoreSummary, score_file
from stamm.base.config import override
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
    data = Path(options.data)
    config = override(ScoreConfig(), options.changes)
    out = Path(options.out) if options.out else Path(f"{_stem(data.name)}.scored.jsonl")
    print(_text(score_file(data, out, config)))
    print(out)
    return 0


def _stem(name: str) -> str:
    for ending in (".jsonl.zst", ".jsonl.gz", ".jsonl", ".json", ".parquet"):
        if name.endswith(ending):
            return name.removesuffix(ending)
    return name


def _text(summary: ScoreSummary) -> str:
    """Rows, mean reward, ties, correlation with length, and the first bad rows."""
    distinct = summary.distinct
    values = "value" if distinct == 1 else "values"
    lines = [
        f"{len(summary.rewards):,} answers, mean reward {summary.mean:.4g}, {distinct:,} {values}"
    ]
    if distinct == 1:
        lines.append("All rewards are equal: preference losses learn nothing from them.")
    if summary.tied_pairs is not None and distinct > 1:
        lines.append(
            f"{summary.num_prompts:,} prompts: {summary.tied_pairs:.1%} of the pairs of answers to "
            f"one prompt are ties, {summary.constant_prompts:.1%} of the prompts have one reward only"
        )
    if summary.agreement is not None:
        lines.append(
            f"{summary.pairs:,} pairs: the chosen answer has the larger reward in "
            f"{summary.agreement:.1%}, ties counted as 1/2"
        )
    if summary.length_correlation is not None:
        lines.append(f"rank correlation of reward and length {summary.length_correlation:+.3f}")
    if summary.num_bad:
        lines.append(f"{summary.num_bad:,} rows without a reward:")
        lines += [f"  {visible(row.line(), 200)}" for row in summary.bad[:_SHOWN]]
    return "\n".join(lines)
