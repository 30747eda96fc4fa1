"""Losses predicted at a size and a length that were not run, from several comparisons of the same arms.

Each arm's losses are fitted by L(N, D) = E + A / N^alpha + B / D^beta. Intervals are those of a bootstrap over seeds, in
which all arms of a comparison take the same seeds, so that what a seed does to all of them cancels in differences. They
hold if the law does: they are not wider where it is wrong.
"""

from __future__ import annotations

import math
import re
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from stamm.base.errors import ConfigError, RunError
from stamm.compare.results import Compared
from stamm.compare.verdict import at_last_look, judged
from stamm.statistics.estimates import MeanInterval
from stamm.statistics.scaling_law import LEAST_POINTS, ScalingLaw, fit_scaling_law
from stamm.statistics.student_t import t_quantile

DRAWS = 400
_SEED = 20_261_127
_LAW = ("floor", "parameter_power", "token_power")
_POINT = re.compile(r"(\d[\d.e+]*)x(\d[\d.e+]*)")


@dataclass(frozen=True, kw_only=True)
class LossPoint:
    """Bits per byte of every arm in one comparison, by seed.

    parameters, tokens   by arm
    """

    comparison: str
    parameters: dict[str, float]
    tokens: dict[str, float]
    bits: dict[str, dict[int, float]]


@dataclass(frozen=True, kw_only=True)
class ArmPrediction:
    """The loss of an arm, and its difference to the baseline, in bits per byte with 95 % intervals.

    law          fitted to the means over seeds
    law_ends     its floor and powers with the middle 95 % of the draws
    residual     root mean square of means minus law
    """

    arm: str
    loss: MeanInterval
    difference: MeanInterval | None
    law: ScalingLaw
    law_ends: dict[str, MeanInterval]
    residual: float


@dataclass(frozen=True, kw_only=True)
class LossPrediction:
    """Losses that several comparisons predict at one point; no measurement of it has been read."""

    schema: int = 1
    comparisons: tuple[str, ...]
    baseline: str
    parameters: float
    tokens: float
    arms: tuple[ArmPrediction, ...]


def point_of(text: str) -> tuple[float, float]:
    """Parameters and tokens of "2.6e6x5.2e7".

    Raises   ConfigError for another text
    """
    match = _POINT.fullmatch(text)
    try:
        values = [float(part) for part in match.groups()] if match else []
    except ValueError:
        values = []
    if not values or not all(1 <= value <= 1e18 for value in values):
        raise ConfigError(
            f"predict = {text!r} is not PARAMETERSxTOKENS", fix="Set it as predict=2.6e6x5.2e7"
        )
    return values[0], values[1]


def loss_points(folders: Sequence[Path]) -> tuple[str, list[LossPoint]]:
    """The baseline, and the losses of these comparisons.

    Raises   RunError where one has diverged runs or not two finished seeds, or where they differ in the baseline,
             in what is matched, or in the held-out text
    """
    points: list[LossPoint] = []
    kinds: dict[tuple[str, ...], Path] = {}
    for folder in folders:
        compared, verdict = judged(folder)
        compared, _ = at_last_look(compared, compared.finished())
        seeds = compared.seeds[: compared.finished()]
        if len(seeds) < 2:
            raise RunError(f"{folder} has not two finished seeds", fix="Resume it")
        bad = [
            arm.name for arm in compared.arms if not all(map(math.isfinite, arm.judged().values()))
        ]
        if bad:
            raise RunError(f"{folder}: runs of {', '.join(bad)} diverged", fix="Leave it out")
        kinds.setdefault(_kind(compared), folder)
        bits = {arm.name: {s: arm.bits()[s] for s in seeds} for arm in compared.arms}
        points.append(
            LossPoint(
                comparison=folder.name,
                parameters={line.name: float(line.parameters or 0) for line in verdict.lines},
                tokens={line.name: float(line.tokens or 0) for line in verdict.lines},
                bits=bits,
            )
        )
    if len(kinds) > 1:
        (kind, first), (other_kind, second) = list(kinds.items())[:2]
        what = next(f"{a} and {b}" for a, b in zip(kind, other_kind, strict=True) if a != b)
        raise RunError(f"{first} and {second} differ: {what}", fix="Name comparisons of one kind")
    return compared.baseline, points


def _kind(compared: Compared) -> tuple[str, ...]:
    """Text of all that comparisons of one law have in common."""
    overall = next(run.held_out.overall for run in compared.arms[0].runs if run.held_out)
    return (
        f"baseline {compared.baseline}",
        f"equal {compared.matched}",
        f"scale {compared.scale or 'not matched'}",
        f"{overall.documents:,} held-out documents of {overall.bytes:,} bytes",
    )


def predict_losses(
    points: Sequence[LossPoint], baseline: str, parameters: float, tokens: float
) -> LossPrediction:
    """The losses of the arms that all comparisons have, at a size and a length.

    Raises   RunError for fewer than five comparisons, or fewer than two sizes or lengths
    """
    arms = [arm for arm in points[0].bits if all(arm in point.bits for point in points)]
    draw = np.random.default_rng(_SEED)
    losses: dict[str, list[float]] = {arm: [] for arm in arms}
    drawn: dict[str, list[ScalingLaw]] = {arm: [] for arm in arms}
    laws = {arm: _fitted(points, arm, None) for arm in arms}
    for _ in range(DRAWS):
        taken = [draw.integers(0, len(next(iter(p.bits.values()))), len(next(iter(p.bits.values())))) for p in points]  # fmt: skip
        for arm in arms:
            drawn[arm].append(_fitted(points, arm, taken))
            losses[arm].append(drawn[arm][-1].loss(parameters, tokens))
    # Few comparisons determine a point beyond all of them.
    freedom = sum(sorted(len(point.bits[baseline]) - 1 for point in points)[:3])
    best = {arm: laws[arm].loss(parameters, tokens) for arm in arms}
    return LossPrediction(
        comparisons=tuple(point.comparison for point in points),
        baseline=baseline,
        parameters=parameters,
        tokens=tokens,
        arms=tuple(
            ArmPrediction(
                arm=arm,
                loss=_interval(best[arm], losses[arm], freedom),
                difference=None
                if arm == baseline
                else _interval(
                    best[arm] - best[baseline],
                    [a - b for a, b in zip(losses[arm], losses[baseline], strict=True)],
                    freedom,
                ),
                law=laws[arm],
                law_ends={name: _middle(laws[arm], drawn[arm], name) for name in _LAW},
                residual=math.sqrt(
                    statistics.fmean(
                        (_mean(p, arm) - laws[arm].loss(p.parameters[arm], p.tokens[arm])) ** 2
                        for p in points
                    )
                ),
            )
            for arm in arms
        ),
    )


def _middle(law: ScalingLaw, drawn: Sequence[ScalingLaw], name: str) -> MeanInterval:
    low, high = np.percentile([getattr(fitted, name) for fitted in drawn], (2.5, 97.5))
    best: float = getattr(law, name)
    return MeanInterval(mean=best, low=min(float(low), best), high=max(float(high), best))


def _mean(point: LossPoint, arm: str) -> float:
    return statistics.fmean(point.bits[arm].values())


def _fitted(
    points: Sequence[LossPoint], arm: str, taken: Sequence[np.ndarray] | None
) -> ScalingLaw:
    """The law of an arm; with `taken`, places of the seeds of each comparison, those of a draw."""
    means, errors = [], []
    for number, point in enumerate(points):
        values = np.array(list(point.bits[arm].values()))
        count = len(values)
        errors.append(float(values.std(ddof=1)) / math.sqrt(count))
        mean = float(values.mean())
        if taken is not None:
            # A draw from n values has (n - 1) / n of their variance.
            mean += math.sqrt(count / (count - 1)) * (float(values[taken[number]].mean()) - mean)
        means.append(mean)
    # Of few seeds: weights by the error of each would follow its noise.
    shared = math.sqrt(statistics.fmean(error**2 * len(p.bits[arm]) for error, p in zip(errors, points, strict=True))) or 1e-6  # fmt: skip
    try:
        return fit_scaling_law(
            [point.parameters[arm] for point in points],
            [point.tokens[arm] for point in points],
            means,
            [shared / math.sqrt(len(point.bits[arm])) for point in points],
        )
    except ValueError as error:
        raise RunError(
            f"{len(points)} comparisons: {error}",
            fix=f"Name {LEAST_POINTS} or more, of other sizes and other lengths",
        ) from None


def _interval(best: float, drawn: Sequence[float], freedom: int) -> MeanInterval:
    """Student's interval around the fit, with the spread of the draws."""
    reach = t_quantile(0.95, freedom) * statistics.stdev(drawn)
    return MeanInterval(mean=best, low=best - reach, high=best + reach)
