"""Measures of answers before and after alignment: rewards, quantiles, wins, length, repetition.

Letters: S seeds, P prompts. A measure is a pair of arrays (top, bottom) of shape (S, P), whose ratio
of sums is taken; those of the start model have one row.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from stamm.align.results.completions import PromptAnswers, ScoredAnswer, answer_text, prompt_text
from stamm.align.results.config import AnswersConfig
from stamm.base.config import to_plain
from stamm.base.errors import DataError
from stamm.base.schema import read_lines, read_record
from stamm.evaluate.records import (
    DocumentLoss,
    MemorizationFile,
    RepeatBucket,
)
from stamm.losses.preference_types import Ties
from stamm.losses.quantile import optimum_kl, optimum_mean_quantile, quantile_rewards
from stamm.statistics.bootstrap import Array, Bootstrap
from stamm.statistics.estimates import MeanInterval
from stamm.statistics.intervals import interval

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
            np.array([[values.mean() for values in self.before]]),
            np.array([[values.mean() for values in row] for row in self.after]),
        )

    def pooled(self) -> tuple[Array, Array]:
        """Values of all answers before, and of all answers of all seeds after, concatenated."""
        return np.concatenate(self.before), np.concatenate(
            [values for r in self.after for values in r]
        )


def of_answers(
    prompts: Sequence[PromptAnswers], value: Callable[[ScoredAnswer], float]
) -> AnswerValues:
    """`value` of every answer."""
    return AnswerValues(
        tuple(np.array([value(answer) for answer in p.before], float) for p in prompts),
        tuple(
            tuple(np.array([value(answer) for answer in p.after[seed]], float) for p in prompts)
            for seed in range(len(prompts[0].after))
        ),
    )


def quantiles(prompts: Sequence[PromptAnswers], column: int, ties: Ties) -> AnswerValues:
    """Quantile of each answer's reward among the reference rewards of its prompt."""
    widest = max(len(p.references) for p in prompts)
    reference_PN = np.full((len(prompts), widest), np.nan)
    for index, prompt in enumerate(prompts):
        reference_PN[index, : len(prompt.references)] = prompt.reference_rewards(column)
    rewards = of_answers(prompts, lambda answer: answer.rewards[column])

    def ranked(rows: Sequence[Array]) -> tuple[Array, ...]:
        sizes = [len(row) for row in rows]
        ranks = quantile_rewards(
            torch.from_numpy(np.concatenate(rows)),
            torch.from_numpy(np.repeat(reference_PN, sizes, axis=0)),
            ties=ties,
        )
        return tuple(np.split(ranks.numpy(), np.cumsum(sizes)[:-1]))

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
        lengths: Sequence[Sequence[Array]], quantile: Sequence[Sequence[Array]]
    ) -> tuple[Array, Array]:
        rows = [list(zip(*pair, strict=True)) for pair in zip(lengths, quantile, strict=True)]
        centred = [[(t - t.mean(), q - q.mean()) for t, q in row] for row in rows]
        return (
            np.array([[float((q * t).sum()) for t, q in row] for row in centred]),
            np.array([[float((q * q).sum()) for _, q in row] for row in centred]),
        )

    first = sums([tokens.before], [ranks.before])
    second = sums(tokens.after, ranks.after)
    if not (np.concatenate([first[1], second[1]]).sum(axis=1) > 0).all():
        return None
    return ratio_change(bootstrap, first, second)


def length_bins(
    bootstrap: Bootstrap, tokens: AnswerValues, ranks: AnswerValues
) -> list[dict[str, Any]]:
    """Mean tokens of answers by quantile, in bins of equal width, as `LengthBin`s."""

    def inside(
        lengths: Sequence[Sequence[Array]],
        quantile: Sequence[Sequence[Array]],
        low: float,
        high: float,
    ) -> dict[str, Any] | None:
        masks = [[(q >= low) & (q < high) for q in row] for row in quantile]
        bottom = np.array([[m.sum() for m in row] for row in masks], float)
        if not (bottom.sum(axis=1) > 0).all():
            return None
        rows = [zip(*pair, strict=True) for pair in zip(lengths, masks, strict=True)]
        top = np.array([[t[m].sum() for t, m in row] for row in rows], float)
        plain: dict[str, Any] = to_plain(bootstrap.ratio(top, bottom))
        return plain

    edges = [number / LENGTH_BINS for number in range(LENGTH_BINS + 1)]
    return [
        {
            "low": low,
            "high": high,
            "before": inside([tokens.before], [ranks.before], low, last),
            "after": inside(tokens.after, ranks.after, low, last),
        }
        for low, high, last in zip(edges, edges[1:], [*edges[1:-1], np.inf], strict=False)
    ]


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
        return [_bin(value, value, before == value, after == value) for value in values]
    return _binned(rewards, np.linspace(values[0], values[-1], REWARD_BINS + 1))


def _binned(values: AnswerValues, edges: Array) -> list[dict[str, float]]:
    shares = [np.histogram(values, edges)[0] / len(values) for values in values.pooled()]
    return [_bin(*bin_fields) for bin_fields in zip(edges[:-1], edges[1:], *shares, strict=True)]


def _bin(low: float, high: float, before: Any, after: Any) -> dict[str, float]:
    """A `DistributionBin`; of arrays of booleans the shares that are true."""
    shares = {"before": float(np.mean(before)), "after": float(np.mean(after))}
    return {"low": float(low), "high": float(high), **shares}


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


DOCUMENTS, AUDIT = "held_out_documents.jsonl", "memorization.json"


def bits_change(
    config: AnswersConfig, start: Path | None, aligned: Sequence[Path]
) -> dict[str, Any] | None:
    """Bits per byte of the same held-out documents, as an `AnswerChange`; None without results.

    start, aligned   evaluate/ folders, the latter by seed

    Raises   DataError when the models were evaluated on other documents
    """
    paths = [folder / DOCUMENTS for folder in ((start, *aligned) if start else ())]
    if len(paths) < 2 or not all(path.is_file() for path in paths):
        return None
    losses = [{loss.document_id: loss for loss in read_lines(DocumentLoss, path)} for path in paths]
    sizes = [{name: loss.bytes for name, loss in table.items()} for table in losses]
    for path, size in zip(paths[1:], sizes[1:], strict=True):
        if size != sizes[0]:
            raise DataError(
                f"{path} is about other documents than {paths[0]}",
                fix="Evaluate both models on the same held-out text",
            )
    names = sorted(sizes[0])
    bits = np.array([[table[n].nats / math.log(2) for n in names] for table in losses])
    bytes_1D = np.array([[float(sizes[0][n]) for n in names]])
    bootstrap = Bootstrap(len(names), len(aligned), config.draws, config.seed, config.confidence)
    return ratio_change(
        bootstrap, (bits[:1], bytes_1D), (bits[1:], np.repeat(bytes_1D, len(aligned), axis=0))
    )


def memorization_changes(
    config: AnswersConfig, start: Path | None, aligned: Sequence[Path]
) -> list[dict[str, Any]]:
    """Memorization of planted passages by repeats, as `MemorizationChange`s; [] without results.

    The interval of one seed is over passages, that of several over seeds.
    """
    paths = [folder / AUDIT for folder in ((start, *aligned) if start else ())]
    if len(paths) < 2 or not all(path.is_file() for path in paths):
        return []
    tables = [_by_repeats(path) for path in paths]
    changes = []
    for repeats, first in tables[0].items():
        others = [table[repeats] for table in tables[1:] if repeats in table]
        costs = [bucket.nll_minus_control for bucket in others if bucket.nll_minus_control]
        if first.nll_minus_control is None or not costs or len(costs) < len(tables) - 1:
            continue
        changes.append(
            {
                "repeats": repeats,
                "before": to_plain(first.nll_minus_control),
                "after": to_plain(_over_seeds(costs, config.confidence)),
                "rouge_before": first.rouge_l.mean,
                "rouge_after": math.fsum(bucket.rouge_l.mean for bucket in others) / len(others),
            }
        )
    return changes


def _by_repeats(path: Path) -> Mapping[int, RepeatBucket]:
    return {bucket.repeats: bucket for bucket in read_record(MemorizationFile, path).buckets}


def _over_seeds(costs: Sequence[MeanInterval], confidence: float) -> MeanInterval:
    if len(costs) == 1:
        return costs[0]
    bounds = interval([cost.mean for cost in costs], confidence)
    return MeanInterval(mean=bounds.mean, low=bounds.low, high=bounds.high)


_POINTS = 400
_SHOWN = 60
_BETAS = (100.0, 1e-5)


def kl_estimate(
    bootstrap: Bootstrap,
    log_ratios: Sequence[Sequence[Sequence[float]]],
    tokens: Sequence[Sequence[Sequence[int]]],
    recoded: float,
) -> dict[str, Any]:
    """The estimators of KL from log pi(y|x) - log pi_ref(y|x) of sampled answers, as a `KlEstimate`.

    log_ratios, tokens   [seed][prompt][answer]; a prompt may have none

    Source   J. Schulman, "Approximating KL divergence" (2020): k1 and k3
    """
    ratios = [[np.asarray(answer_ratios, float) for answer_ratios in row] for row in log_ratios]
    count = np.array([[len(answer_ratios) for answer_ratios in row] for row in ratios], float)
    total = np.array([[answer_ratios.sum() for answer_ratios in row] for row in ratios])
    with np.errstate(over="ignore"):
        third = np.array(
            [
                [(np.exp(-answer_ratios) - 1 + answer_ratios).sum() for answer_ratios in row]
                for row in ratios
            ]
        )
    length = np.array([[sum(answer_tokens) for answer_tokens in row] for row in tokens], float)
    return {
        "k1": to_plain(bootstrap.ratio(total, count)),
        "k3": to_plain(bootstrap.ratio(third, count)) if np.isfinite(third).all() else None,
        "per_token": to_plain(bootstrap.ratio(total, length)),
        "recoded": recoded,
    }


class OptimumCurve:
    """Mean quantile of the optimal policy as a function of its KL, identity transform.

    Tabulated over beta, and interpolated between; from (0, 1/2), with quantile 1/2 + sqrt(KL / 6) near it.
    """

    def __init__(self) -> None:
        first, last = map(math.log, _BETAS)
        self._betas = [math.exp(first + (last - first) * i / _POINTS) for i in range(_POINTS + 1)]
        self._kl = np.array([optimum_kl(beta) for beta in self._betas])
        self._quantile = np.array([optimum_mean_quantile(beta) for beta in self._betas])

    def quantile(self, kl: Array) -> Array:
        """The largest mean quantile at a KL; 1/2 for a KL below 0, as a sampled one may be."""
        # Between points of the table, the square root of KL is nearly linear in the quantile.
        root = np.sqrt(np.maximum(kl, 0.0))
        inside = np.interp(root, [0.0, *np.sqrt(self._kl)], [0.5, *self._quantile])
        # A small beta has KL = log(1 / beta) - 1 and mean quantile 1 - beta.
        far = 1 - np.exp(-1 - np.maximum(kl, 0.0))
        return np.asarray(np.where(kl > self._kl[-1], far, inside), dtype=np.float64)

    def kl(self, quantile: float) -> float | None:
        """The smallest KL of a mean quantile above 1/2; 0 below; None beyond the table."""
        if quantile > self._quantile[-1]:
            return None
        return float(np.interp(quantile, [0.5, *self._quantile], [0.0, *np.sqrt(self._kl)])) ** 2

    def points(self) -> list[dict[str, float]]:
        """Points of the curve for drawing, from the start model on."""
        step = _POINTS // _SHOWN
        return [
            {"beta": b, "kl": float(k), "quantile": float(q)}
            for b, k, q in list(zip(self._betas, self._kl, self._quantile, strict=True))[::step]
        ]


def optimum_gap(
    bootstrap: Bootstrap,
    log_ratios: Sequence[Sequence[Sequence[float]]],
    quantile_SP: Array,
    beta: float | None,
) -> dict[str, Any]:
    """Distance of (KL by k1, mean quantile) to the curve, as an `OptimumGap`."""
    curve = OptimumCurve()
    total = np.array([[sum(answer_ratios) for answer_ratios in row] for row in log_ratios])
    count = np.array([[len(answer_ratios) for answer_ratios in row] for row in log_ratios], float)
    kl, mean = bootstrap.estimate(total, count), bootstrap.estimate(quantile_SP)
    best = float(curve.quantile(np.array([kl]))[0])
    below = curve.quantile(bootstrap.draws(total, count)) - bootstrap.draws(quantile_SP)
    least = curve.kl(mean)
    target = None
    if beta is not None:
        target = {
            "beta": beta, "kl": optimum_kl(beta), "quantile": optimum_mean_quantile(beta),
        }  # fmt: skip
    return {
        "best_quantile": best,
        "below": to_plain(bootstrap.interval(best - mean, below)),
        "excess_kl": None if least is None else kl - least,
        "target": target,
    }


_LONGEST = 4000
EXAMPLE_RULE = (
    "Test prompts are ordered by the quantile of the aligned model's first answer, and by their place in"
    " the file where it is equal; of this order every k-th prompt is taken, from the lowest to the"
    " highest. Each model shows its first sampled answer."
)


def example_pairs(
    prompts: Sequence[PromptAnswers], ranks: AnswerValues, number: int
) -> list[dict[str, Any]]:
    """`number` prompts spread over the quantiles of the first seed's first answers, as `AnswerPair`s."""
    order = sorted(range(len(prompts)), key=lambda index: (ranks.after[0][index][0], index))
    if len(order) > number:
        last = len(order) - 1
        order = [order[round(i * last / max(number - 1, 1))] for i in range(number)]
    return [_pair(prompts[index], ranks, index) for index in order]


def _pair(prompt: PromptAnswers, ranks: AnswerValues, index: int) -> dict[str, Any]:
    before, after = prompt.before[0], prompt.after[0][0]
    return {
        "id": prompt.id[:200],
        "prompt": prompt_text(before.line.prompt)[:_LONGEST],
        "before": answer_text(before.line.completion)[:_LONGEST],
        "after": answer_text(after.line.completion)[:_LONGEST],
        "reward_before": before.rewards[0],
        "reward_after": after.rewards[0],
        "quantile_before": float(ranks.before[index][0]),
        "quantile_after": float(ranks.after[0][index][0]),
    }
