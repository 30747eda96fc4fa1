"""Measures of answers before and after alignment: rewards, quantiles, wins, length, repetition.

Letters: S seeds, P prompts. A measure is a pair of arrays (top, bottom) of shape (S, P), whose ratio
of sums is taken; those of the start model have one row.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from stamm.align.results.bootstrap import Array, Bootstrap
from stamm.align.results.completions import PromptAnswers, ScoredAnswer
from stamm.base.config import to_plain
from stamm.losses.preference_types import Ties
from stamm.losses.quantile import quantile_rewards

LENGTH_BINS, REWARD_BINS, _MOST_BINS = 5, 24, 32
_FEW = 12
_N_GRAM = 4


@dataclass(frozen=True)
class AnswerValues:
    """A number per answer: before[prompt][answer], after[seed][prompt][answer]."""

    before: tuple[Array, ...]
    after: tuple[tuple[Array, ...], ...]

    def means(self) -> tuple[Array, Array]:
        """Means over the answers of a prompt: before (1, P) and after (S, P)."""
        return (
            np.array([[one.mean() for one in self.before]]),
            np.array([[one.mean() for one in row] for row in self.after]),
        )

    def pooled(self) -> tuple[Array, Array]:
        """All answers before, and of all seeds after, one after the other."""
        return np.concatenate(self.before), np.concatenate([one for r in self.after for one in r])


def of_answers(
    prompts: Sequence[PromptAnswers], value: Callable[[ScoredAnswer], float]
) -> AnswerValues:
    """`value` of every answer."""
    return AnswerValues(
        tuple(np.array([value(one) for one in p.before], float) for p in prompts),
        tuple(
            tuple(np.array([value(one) for one in p.after[seed]], float) for p in prompts)
            for seed in range(len(prompts[0].after))
        ),
    )


def quantiles(prompts: Sequence[PromptAnswers], column: int, ties: Ties) -> AnswerValues:
    """Quantile of each answer's reward among the reference rewards of its prompt."""
    widest = max(len(p.references) for p in prompts)
    reference_PN = np.full((len(prompts), widest), np.nan)
    for place, prompt in enumerate(prompts):
        reference_PN[place, : len(prompt.references)] = prompt.reference_rewards(column)
    rewards = of_answers(prompts, lambda answer: answer.rewards[column])

    def ranked(rows: Sequence[Array]) -> tuple[Array, ...]:
        sizes = [len(row) for row in rows]
        found = quantile_rewards(
            torch.from_numpy(np.concatenate(rows)),
            torch.from_numpy(np.repeat(reference_PN, sizes, axis=0)),
            ties=ties,
        )
        return tuple(np.split(found.numpy(), np.cumsum(sizes)[:-1]))

    return AnswerValues(ranked(rewards.before), tuple(map(ranked, rewards.after)))


def win_shares(rewards: AnswerValues) -> tuple[Array, Array]:
    """Share of pairs (aligned, start answer) that the aligned one wins, ties as half, and of ties.

    Shape   (S, P) each
    """
    wins, equal = [], []
    for row in rewards.after:
        pairs = [(a[:, None], b[None]) for a, b in zip(row, rewards.before, strict=True)]
        equal.append([(a == b).mean() for a, b in pairs])
        wins.append([(a > b).mean() + (a == b).mean() / 2 for a, b in pairs])
    return np.array(wins), np.array(equal)


def change(bootstrap: Bootstrap, values: AnswerValues) -> dict[str, Any]:
    """Mean before and after, and the paired difference, as an `AnswerChange`."""
    before, after = values.means()
    return ratio_change(bootstrap, (before, np.ones_like(before)), (after, np.ones_like(after)))


def ratio_change(
    bootstrap: Bootstrap, before: tuple[Array, Array], after: tuple[Array, Array]
) -> dict[str, Any]:
    """Ratio before and after, and the paired difference, as an `AnswerChange`."""
    difference = bootstrap.estimate(*after) - bootstrap.estimate(*before)
    draws = bootstrap.draws(*after) - bootstrap.draws(*before)
    return {
        "before": to_plain(bootstrap.ratio(*before)),
        "after": to_plain(bootstrap.ratio(*after)),
        "difference": to_plain(bootstrap.interval(difference, draws)),
    }


def length_slope(
    bootstrap: Bootstrap, tokens: AnswerValues, ranks: AnswerValues
) -> dict[str, Any] | None:
    """Slope of tokens over the quantile within prompts, in tokens from quantile 0 to 1.

    sum (q - mean q) (length - mean length) / sum (q - mean q)^2, means within a prompt, so that a
    prompt that asks for longer answers and has other rewards makes no slope. As an `AnswerChange`;
    None where a model has no prompt with answers of two quantiles.
    """

    def sums(
        lengths: Sequence[Array], quantile: Sequence[Array]
    ) -> tuple[list[float], list[float]]:
        centred = [(q - q.mean(), t) for q, t in zip(quantile, lengths, strict=True)]
        return [float((q * (t - t.mean())).sum()) for q, t in centred], [
            float((q * q).sum()) for q, _ in centred
        ]

    before = [sums(tokens.before, ranks.before)]
    after = [sums(t, q) for t, q in zip(tokens.after, ranks.after, strict=True)]
    first = np.array([one[0] for one in before]), np.array([one[1] for one in before])
    second = np.array([one[0] for one in after]), np.array([one[1] for one in after])
    if not (np.concatenate([first[1], second[1]]).sum(axis=1) > 0).all():
        return None
    return ratio_change(bootstrap, first, second)


def length_bins(
    bootstrap: Bootstrap, tokens: AnswerValues, ranks: AnswerValues
) -> list[dict[str, Any]]:
    """Mean tokens of answers by quantile, in bins of equal width, as `LengthBin`s."""
    found = []
    for number in range(LENGTH_BINS):
        low, high = number / LENGTH_BINS, (number + 1) / LENGTH_BINS

        def inside(
            lengths: Sequence[Sequence[Array]],
            quantile: Sequence[Sequence[Array]],
            low: float = low,
            last: float = np.inf if number == LENGTH_BINS - 1 else high,
        ) -> dict[str, Any] | None:
            masks = [[(q >= low) & (q < last) for q in row] for row in quantile]
            top = [
                [t[m].sum() for t, m in zip(r, s, strict=True)]
                for r, s in zip(lengths, masks, strict=True)
            ]
            bottom = np.array([[m.sum() for m in row] for row in masks], float)
            if not (bottom.sum(axis=1) > 0).all():
                return None
            plain: dict[str, Any] = to_plain(bootstrap.ratio(np.array(top, float), bottom))
            return plain

        found.append(
            {
                "low": low,
                "high": high,
                "before": inside([tokens.before], [ranks.before]),
                "after": inside(tokens.after, ranks.after),
            }
        )
    return found


def quantile_distribution(ranks: AnswerValues, references: int) -> list[dict[str, float]]:
    """Shares of answers by rank among N references, in bins of equal width on [0, 1].

    An answer of the start model is equally likely above 0, 1 .. N references: with a bin for each of
    these N + 1 ranks its distribution is level. A quantile q lies at (q N + 1/2) / (N + 1).
    """

    def placed(quantile: Array) -> Array:
        return np.asarray((quantile * references + 0.5) / (references + 1))

    places = AnswerValues(
        tuple(map(placed, ranks.before)), tuple(tuple(map(placed, row)) for row in ranks.after)
    )
    return _binned(places, np.linspace(0, 1, min(references + 1, _MOST_BINS) + 1))


def reward_distribution(rewards: AnswerValues) -> list[dict[str, float]]:
    """Shares of answers by reward: each value of few, or bins of equal width."""
    before, after = rewards.pooled()
    values = np.unique(np.concatenate([before, after]))
    if len(values) <= _FEW:
        return [
            {
                "low": float(value),
                "high": float(value),
                "before": float((before == value).mean()),
                "after": float((after == value).mean()),
            }
            for value in values
        ]
    return _binned(rewards, np.linspace(values[0], values[-1], REWARD_BINS + 1))


def _binned(values: AnswerValues, edges: Array) -> list[dict[str, float]]:
    shares = [np.histogram(one, edges)[0] / len(one) for one in values.pooled()]
    return [
        {
            "low": float(edges[i]),
            "high": float(edges[i + 1]),
            "before": float(shares[0][i]),
            "after": float(shares[1][i]),
        }
        for i in range(len(edges) - 1)
    ]


def distinct_4(ids: Sequence[int]) -> float:
    """Distinct 4-grams / all 4-grams of an answer's tokens; 1 for fewer than four tokens."""
    grams = [tuple(ids[i : i + _N_GRAM]) for i in range(len(ids) - _N_GRAM + 1)]
    return len(set(grams)) / len(grams) if grams else 1.0


def reward_change(
    bootstrap: Bootstrap, name: str, rewards: AnswerValues, ranks: AnswerValues, references: int
) -> Mapping[str, Any]:
    """One reward before and after, as a `RewardChange`.

    references   of a prompt, in the median
    """
    wins, equal = win_shares(rewards)
    draws = bootstrap.draws(wins)
    return {
        "column": name,
        "reward": change(bootstrap, rewards),
        "quantile": change(bootstrap, ranks),
        "win_rate": to_plain(bootstrap.interval(bootstrap.estimate(wins), draws)),
        "win_p_value": bootstrap.p_value(draws, 0.5),
        "ties": float(equal.mean()),
        "rewards": reward_distribution(rewards),
        "quantiles": quantile_distribution(ranks, references),
    }
