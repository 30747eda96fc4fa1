"""Figures of preference training by step: log-ratios of answers, targets of QRPO, rewards of reward models."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from stamm.reports.config import ReportConfig
from stamm.reports.figure import Figure, thinned
from stamm.reports.formatting import fixed, smoothed, spaced
from stamm.reports.run_data import ArmResults, RunResults
from stamm.reports.svg_figure import Axes, draw_panels, legend, legend_name, whole_steps
from stamm.reports.text import one_line
from stamm.reports.theme import drawn, series
from stamm.reports.training import Series

_MOST_POINTS = 600
_CHOSEN, _REJECTED = "reward/chosen_log_ratio", "reward/rejected_log_ratio"
_ACCURACY = "reward/accuracy"
_CHOSEN_REWARD, _REJECTED_REWARD = "reward/chosen", "reward/rejected"
_KL = "reward/kl"
_MEAN, _EQUAL, _KL_PER_TOKEN = "reward/mean", "reward/equal_groups", "reward/kl_per_token"
_RATIO, _TARGET, _QUANTILE = "reward/log_ratio", "reward/target", "reward/quantile"
_RANK, _CENTRED = "representation/effective_rank", "representation/effective_rank_centred"
_DORMANT = "representation/dormant_share"


def log_ratio_figure(study: RunResults, config: ReportConfig) -> Figure | None:
    """Log-ratios of chosen and rejected answers by step; None without an arm trained on pairs."""
    curves = _preference_curves(study, config, _CHOSEN)
    if not curves:
        return None

    def paint(panels: list[Axes]) -> None:
        panels[0].axhline(0.0, color=drawn("muted"), lw=0.9, ls=(0, (2, 2)))
        panels[0].set_ylabel("nats")
        panels[0].set_title("log π/π_ref: chosen, and rejected (dashed)", pad=36)
        panels[1].set_title("Pairs in the right order, share", pad=36)
        _paint_curves(panels, curves, (_CHOSEN, _REJECTED, _ACCURACY))

    simpo = [one_line(arm.name, 40) for arm, _ in curves if arm.training.loss == "SimPO"]
    per_token = (
        f" {', '.join(simpo)}: log π per token, since SimPO has no reference." if simpo else ""
    )
    return _training_figure(
        study,
        config,
        curves,
        (_CHOSEN, _REJECTED, _ACCURACY),
        paint,
        key="log-ratios",
        title="Chosen and rejected answers during training",
        caption=(
            "How much likelier the model finds the answers of the training data than the start "
            "model did, smoothed. Both may fall: an objective of differences, such as DPO, does "
            f"not ask the chosen answer to become likelier.{per_token}"
        ),
        alt="; ".join(
            f"{arm.name} ends at {_last(found.get(_CHOSEN))} nats for chosen and "
            f"{_last(found.get(_REJECTED))} for rejected answers"
            for arm, found in curves
        ),
    )


def target_figure(study: RunResults, config: ReportConfig) -> Figure | None:
    """Log-ratios of QRPO beside their targets, and training quantiles; None without QRPO."""
    curves = _preference_curves(study, config, _TARGET)
    if not curves:
        return None

    def paint(panels: list[Axes]) -> None:
        panels[0].set_ylabel("nats")
        panels[0].set_title("log π/π_ref, and its target (dashed)", pad=36)
        panels[1].set_title("Quantile of the answers trained on", pad=36)
        _paint_curves(panels, curves, (_RATIO, _TARGET, _QUANTILE))

    return _training_figure(
        study,
        config,
        curves,
        (_RATIO, _TARGET, _QUANTILE),
        paint,
        key="targets",
        title="QRPO: log-ratios and their targets during training",
        caption=(
            "Means over the answers of a step, smoothed. QRPO regresses the log-ratio of each "
            "answer on a target that follows from its quantile. A small beta makes most targets "
            "negative: then most answers of the training data are to become less likely."
        ),
        alt="; ".join(
            f"{arm.name} ends at {_last(found.get(_RATIO))} nats, its target at "
            f"{_last(found.get(_TARGET))}"
            for arm, found in curves
        ),
    )


def kto_figure(study: RunResults, config: ReportConfig) -> Figure | None:
    """Log-ratios of KTO beside the estimate of KL; None without KTO."""
    curves = _preference_curves(study, config, _KL)
    if not curves:
        return None

    def paint(panels: list[Axes]) -> None:
        panels[0].set_ylabel("nats")
        panels[0].set_title("log π/π_ref, and KL (dashed)", pad=36)
        panels[1].axhline(0.5, color=drawn("muted"), lw=0.9, ls=(0, (2, 2)))
        panels[1].set_title("Answers on the right side of KL, share", pad=36)
        _paint_curves(panels, curves, (_RATIO, _KL, _ACCURACY))

    return _training_figure(
        study,
        config,
        curves,
        (_RATIO, _KL, _ACCURACY),
        paint,
        key="kto",
        title="KTO: log-ratios and KL during training",
        caption=(
            "Means over the answers of a step, smoothed. KTO raises the log-ratio of desirable "
            "answers above the KL to the reference policy, which it estimates from prompts with "
            "answers to others, and lowers that of undesirable ones below it."
        ),
        alt="; ".join(
            f"{arm.name} ends at {_last(found.get(_RATIO))} nats, KL at {_last(found.get(_KL))}"
            for arm, found in curves
        ),
    )


def grpo_figure(study: RunResults, config: ReportConfig) -> Figure | None:
    """Rewards of the answers that GRPO trains on, and what dynamic sampling drops; None without GRPO."""
    curves = _preference_curves(study, config, _EQUAL)
    if not curves:
        return None

    def paint(panels: list[Axes]) -> None:
        panels[0].set_title("Mean reward of the sampled answers", pad=36)
        panels[1].set_title("Groups of equal rewards, share", pad=36)
        _paint_curves(panels, curves, (_MEAN, "", _EQUAL))

    names = ("clip_share", "length", "cut", "unrated")
    keys = (_MEAN, _EQUAL, _KL_PER_TOKEN, *(f"reward/{name}" for name in names))
    return _training_figure(
        study,
        config,
        curves,
        keys,
        paint,
        key="grpo",
        title="GRPO: rewards during training",
        caption=(
            "Answers of the model to the prompts of each rollout, smoothed. Groups of equal rewards have "
            "no advantages: all answers are right, or all are wrong. The table has the KL to the start "
            "model in nats per token, the share of tokens that the clipping stopped, the length of the answers "
            "in tokens, and the shares of answers that were cut or could not be rated."
        ),
        alt="; ".join(
            f"{arm.name} begins at a mean reward of {_first(found.get(_MEAN))} and ends at "
            f"{_last(found.get(_MEAN))}"
            for arm, found in curves
        ),
    )


def reward_figure(study: RunResults, config: ReportConfig) -> Figure | None:
    """Rewards of chosen and rejected answers by step; None without a reward model."""
    curves = _preference_curves(study, config, _CHOSEN_REWARD)
    if not curves:
        return None

    def paint(panels: list[Axes]) -> None:
        panels[0].set_title("Reward: chosen, and rejected (dashed)", pad=36)
        panels[1].axhline(0.5, color=drawn("muted"), lw=0.9, ls=(0, (2, 2)))
        panels[1].set_title("Pairs in the right order, share", pad=36)
        _paint_curves(panels, curves, (_CHOSEN_REWARD, _REJECTED_REWARD, _ACCURACY))

    return _training_figure(
        study,
        config,
        curves,
        (_CHOSEN_REWARD, _REJECTED_REWARD, _ACCURACY),
        paint,
        key="rewards",
        title="Rewards during the training of the reward model",
        caption=(
            "Mean rewards of the training pairs of each step, before its update, smoothed. Only the "
            "difference of the two curves is trained; the dotted line is chance. The accuracy on "
            "held-out pairs is in the verdict."
        ),
        alt="; ".join(
            f"{arm.name} ends at {_last(found.get(_CHOSEN_REWARD))} for chosen and "
            f"{_last(found.get(_REJECTED_REWARD))} for rejected answers"
            for arm, found in curves
        ),
    )


def representation_figure(study: RunResults, config: ReportConfig) -> Figure | None:
    """Effective rank of the last hidden states, and dormant units, by step; None without a record."""
    curves = _preference_curves(study, config, _RANK)
    if not curves:
        return None

    def paint(panels: list[Axes]) -> None:
        panels[0].set_title("Effective rank; centred (dashed)", pad=36)
        panels[1].set_title("Dormant units of the last layer, share", pad=36)
        _paint_curves(panels, curves, (_RANK, _CENTRED, _DORMANT))

    def fell(arm: ArmResults, found: dict[str, Series]) -> str:
        first = fixed(found[_RANK].values[0], 1)
        return f"{arm.name} from {first} to {fixed(found[_RANK].values[-1], 1)}"

    names = (
        "tokens", "feature_norm", "pca_rank", "pca_rank_centred", "feature_norm_after_norm",
        "effective_rank_after_norm", "pca_rank_after_norm", "ratio_above", "ratio_below",
    )  # fmt: skip
    keys = (_RANK, _CENTRED, _DORMANT, *(f"representation/{name}" for name in names))
    return _training_figure(
        study,
        config,
        curves,
        keys,
        paint,
        key="representation",
        title="Representations during training",
        caption=(
            "Last hidden states, before the final norm, of the same answers at every record: a falling rank means that "
            "they differ in fewer directions. Ranks are at most the tokens in the table. Dormant "
            "units have at most 2.5 % of the layer's mean output."
        ),
        alt="Effective rank: " + "; ".join(fell(*each) for each in curves),
    )


def _preference_curves(
    study: RunResults, config: ReportConfig, needed: str
) -> list[tuple[ArmResults, dict[str, Series]]]:
    """Smoothed metrics of the arms that recorded `needed`."""
    return [
        (arm, {key: _smooth(one, config.smoothing) for key, one in metrics.preference.items()})
        for arm in study.arms
        if (metrics := arm.training.metrics) and needed in metrics.preference
    ]


def _paint_curves(
    panels: Sequence[Axes],
    curves: Sequence[tuple[ArmResults, dict[str, Series]]],
    keys: tuple[str, str, str],
) -> None:
    """The first two metrics in the first panel, the second of them dashed; a share in the other."""
    solid, dashed, share = keys
    for arm, found in curves:
        colour = series(arm.number)
        _curve(panels[0], found.get(solid), colour, "-", legend_name(arm.name))
        _curve(panels[0], found.get(dashed), colour, (0, (4, 1.6)), "")
        _curve(panels[1], found.get(share), colour, "-", "")
    legend(panels[0], columns=3)
    panels[1].set_ylim(0, 1.02)
    for axes in panels:
        whole_steps(axes)


def _training_figure(
    study: RunResults,
    config: ReportConfig,
    curves: Sequence[tuple[ArmResults, dict[str, Series]]],
    keys: Sequence[str],
    paint: Callable[[list[Axes]], None],
    *,
    key: str,
    title: str,
    caption: str,
    alt: str,
) -> Figure:
    """Two panels and the table of their curves.

    keys    metrics of the table, the first of which every arm of `curves` has
    paint   draws into the panels
    """
    rows = [
        (one_line(arm.name, 60), f"{step:,}", *(_at(found.get(name), place) for name in keys))
        for arm, found in curves
        for place, step in enumerate(found[keys[0]].steps)
    ]
    columns = ("arm", "step", *(name.partition("/")[2].replace("_", " ") for name in keys))
    return Figure(
        key=key,
        title=title,
        caption=caption,
        alt=alt,
        svg=draw_panels(key, 3.2, paint, 2),
        data=thinned(columns, rows, config.rows, "metrics.jsonl"),
        source=study.files([arm for arm, _ in curves], "metrics.jsonl"),
        command=study.made_by(),
    )


def _smooth(curve: Series, share: float) -> Series:
    return Series(
        steps=curve.steps, values=tuple(smoothed(curve.values, round(share * len(curve.values))))
    )


def _curve(axes: Axes, curve: Series | None, colour: str, style: object, name: str) -> None:
    if curve is None:
        return
    places = [
        place
        for place in spaced(len(curve.steps), _MOST_POINTS)
        if math.isfinite(curve.values[place])
    ]
    axes.plot(
        [curve.steps[place] for place in places], [curve.values[place] for place in places],
        color=colour, ls=style, lw=1.5, label=name or None,
    )  # fmt: skip


def _at(curve: Series | None, place: int) -> str:
    return fixed(curve.values[place], 3) if curve and place < len(curve.values) else ""


def _first(curve: Series | None) -> str:
    return fixed(curve.values[0], 2) if curve and curve.values else "nothing"


def _last(curve: Series | None) -> str:
    return fixed(curve.values[-1], 2) if curve and curve.values else "nothing"
