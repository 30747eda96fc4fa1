"""Figures of preference training by step: log-ratios of answers, targets of QRPO, rewards of reward models."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from stamm.pages.config import ReportConfig
from stamm.pages.figure import Figure, thinned
from stamm.pages.formatting import fixed, smoothed, spaced
from stamm.pages.svg_figure import Axes, draw_panels, legend, legend_name, whole_steps
from stamm.pages.text import one_line
from stamm.pages.theme import drawn, series
from stamm.pretrain.results import ArmTraining
from stamm.runs.metric_series import Series
from stamm.runs.run_view import ArmView, RunView

_MOST_POINTS = 600
_CHOSEN, _REJECTED = "reward/chosen_log_ratio", "reward/rejected_log_ratio"
_ACCURACY = "reward/accuracy"
_CHOSEN_REWARD, _REJECTED_REWARD = "reward/chosen", "reward/rejected"
_KL = "reward/kl"
_MEAN, _EQUAL, _KL_PER_TOKEN = "reward/mean", "reward/equal_groups", "reward/kl_per_token"
_RATIO, _TARGET, _QUANTILE = "reward/log_ratio", "reward/target", "reward/quantile"
_RANK, _CENTRED = "representation/effective_rank", "representation/effective_rank_centred"
_DORMANT = "representation/dormant_share"
_OF_STATES = (
    "tokens", "feature_norm", "pca_rank", "pca_rank_centred", "feature_norm_after_norm",
    "effective_rank_after_norm", "pca_rank_after_norm", "ratio_above", "ratio_below",
)  # fmt: skip

_ArmCurves = tuple[ArmView, ArmTraining, Mapping[str, Series]]


@dataclass(frozen=True, kw_only=True)
class _Panels:
    """A figure of two panels over the steps of every arm that recorded `needed`.

    metrics   solid and dashed curve of the left panel, and the share in the right one; "" for none
    more      further metrics of the table
    alt       text on an arm and the ends of its solid and dashed curve, after `lead`
    lines     where a dotted line crosses the left and the right panel
    """

    key: str
    title: str
    caption: str
    needed: str
    metrics: tuple[str, str, str]
    headings: tuple[str, str]
    alt: str
    lead: str = ""
    digits: int = 2
    more: tuple[str, ...] = ()
    unit: str = ""
    lines: tuple[float | None, float | None] = (None, None)

    @property
    def columns(self) -> tuple[str, ...]:
        """The metrics of the table; every arm has the first."""
        return (*filter(None, self.metrics), *self.more)


_FIGURES = (
    _Panels(
        key="log-ratios",
        title="Chosen and rejected answers during training",
        caption=(
            "How much likelier the model finds the answers of the training data than the start "
            "model did, smoothed. Both may fall: an objective of differences, such as DPO, does "
            "not ask the chosen answer to become likelier."
        ),
        needed=_CHOSEN,
        metrics=(_CHOSEN, _REJECTED, _ACCURACY),
        headings=(
            "log π/π_ref: chosen, and rejected (dashed)",
            "Pairs in the right order, share",
        ),
        alt="{arm} ends at {solid[last]} nats for chosen and {dashed[last]} for rejected answers",
        unit="nats",
        lines=(0.0, None),
    ),
    _Panels(
        key="targets",
        title="QRPO: log-ratios and their targets during training",
        caption=(
            "Means over the answers of a step, smoothed. QRPO regresses the log-ratio of each "
            "answer on a target that follows from its quantile. A small beta makes most targets "
            "negative: then most answers of the training data are to become less likely."
        ),
        needed=_TARGET,
        metrics=(_RATIO, _TARGET, _QUANTILE),
        headings=("log π/π_ref, and its target (dashed)", "Quantile of the answers trained on"),
        alt="{arm} ends at {solid[last]} nats, its target at {dashed[last]}",
        unit="nats",
    ),
    _Panels(
        key="kto",
        title="KTO: log-ratios and KL during training",
        caption=(
            "Means over the answers of a step, smoothed. KTO raises the log-ratio of desirable "
            "answers above the KL to the reference policy, which it estimates from prompts with "
            "answers to others, and lowers that of undesirable ones below it."
        ),
        needed=_KL,
        metrics=(_RATIO, _KL, _ACCURACY),
        headings=("log π/π_ref, and KL (dashed)", "Answers on the right side of KL, share"),
        alt="{arm} ends at {solid[last]} nats, KL at {dashed[last]}",
        unit="nats",
        lines=(None, 0.5),
    ),
    _Panels(
        key="grpo",
        title="GRPO: rewards during training",
        caption=(
            "Answers of the model to the prompts of each rollout, smoothed. Groups of equal rewards have "
            "no advantages: all answers are right, or all are wrong. The table has the KL to the start "
            "model in nats per token, the share of tokens that the clipping stopped, the length of the answers "
            "in tokens, and the shares of answers that were cut or could not be rated."
        ),
        needed=_EQUAL,
        metrics=(_MEAN, "", _EQUAL),
        headings=("Mean reward of the sampled answers", "Groups of equal rewards, share"),
        alt="{arm} begins at a mean reward of {solid[first]} and ends at {solid[last]}",
        more=(
            _KL_PER_TOKEN,
            "reward/clip_share",
            "reward/length",
            "reward/cut",
            "reward/unrated",
        ),
    ),
    _Panels(
        key="rewards",
        title="Rewards during the training of the reward model",
        caption=(
            "Mean rewards of the training pairs of each step, before its update, smoothed. Only the "
            "difference of the two curves is trained; the dotted line is chance. The accuracy on "
            "held-out pairs is in the verdict."
        ),
        needed=_CHOSEN_REWARD,
        metrics=(_CHOSEN_REWARD, _REJECTED_REWARD, _ACCURACY),
        headings=("Reward: chosen, and rejected (dashed)", "Pairs in the right order, share"),
        alt="{arm} ends at {solid[last]} for chosen and {dashed[last]} for rejected answers",
        lines=(None, 0.5),
    ),
    _Panels(
        key="representation",
        title="Representations during training",
        caption=(
            "Last hidden states, before the final norm, of the same answers at every record: a falling rank means that "
            "they differ in fewer directions. Ranks are at most the tokens in the table. Dormant "
            "units have at most 2.5 % of the layer's mean output."
        ),
        needed=_RANK,
        metrics=(_RANK, _CENTRED, _DORMANT),
        headings=("Effective rank; centred (dashed)", "Dormant units of the last layer, share"),
        alt="{arm} from {solid[first]} to {solid[last]}",
        digits=1,
        lead="Effective rank: ",
        more=tuple(f"representation/{name}" for name in _OF_STATES),
    ),
)


def preference_figures(
    run: RunView, trained: Sequence[tuple[ArmView, ArmTraining]], config: ReportConfig
) -> Iterator[Figure]:
    """The figures of the metrics that arms recorded; none of arms without any."""
    for panels in _FIGURES:
        curves = [
            (arm, training, _smooth(metrics.preference, config.smoothing))
            for arm, training in trained
            if (metrics := training.metrics) and panels.needed in metrics.preference
        ]
        if curves:
            yield _figure(run, panels, curves, config)


def _figure(
    run: RunView, panels: _Panels, curves: Sequence[_ArmCurves], config: ReportConfig
) -> Figure:
    rows = [
        (
            one_line(arm.name, 60),
            f"{step:,}",
            *(_at(metrics.get(name), index) for name in panels.columns),
        )
        for arm, _, metrics in curves
        for index, step in enumerate(metrics[panels.columns[0]].steps)
    ]
    names = (name.partition("/")[2].replace("_", " ") for name in panels.columns)
    simpo = ", ".join(one_line(a.name, 40) for a, training, _ in curves if training.loss == "SimPO")
    has_ratios = panels.needed == _CHOSEN
    per_token = f" {simpo}: log π per token, since SimPO has no reference."
    return Figure(
        key=panels.key,
        title=panels.title,
        caption=panels.caption + (per_token if simpo and has_ratios else ""),
        alt=panels.lead + "; ".join(_alt(panels, arm, metrics) for arm, _, metrics in curves),
        svg=draw_panels(panels.key, 3.2, lambda axes: _paint(axes, panels, curves), 2),
        data=thinned(("arm", "step", *names), rows, config.rows, "metrics.jsonl"),
        source=run.files([arm for arm, _, _ in curves], "metrics.jsonl"),
        command=run.made_by(),
    )


def _paint(panels: Sequence[Axes], figure: _Panels, curves: Sequence[_ArmCurves]) -> None:
    for axes, heading, line in zip(panels, figure.headings, figure.lines, strict=True):
        axes.set_title(heading, pad=36)
        if line is not None:
            axes.axhline(line, color=drawn("muted"), lw=0.9, ls=(0, (2, 2)))
    panels[0].set_ylabel(figure.unit)
    solid, dashed, share = figure.metrics
    for arm, _, metrics in curves:
        colour = series(arm.number)
        _curve(panels[0], metrics.get(solid), colour, "-", legend_name(arm.name))
        _curve(panels[0], metrics.get(dashed), colour, (0, (4, 1.6)), "")
        _curve(panels[1], metrics.get(share), colour, "-", "")
    legend(panels[0], columns=3)
    panels[1].set_ylim(0, 1.02)
    for axes in panels:
        whole_steps(axes)


def _smooth(metrics: Mapping[str, Series], share: float) -> Mapping[str, Series]:
    return {
        name: Series(
            steps=curve.steps,
            values=tuple(smoothed(curve.values, round(share * len(curve.values)))),
        )
        for name, curve in metrics.items()
    }


def _curve(axes: Axes, curve: Series | None, colour: str, style: object, name: str) -> None:
    if curve is None:
        return
    indexes = [
        index
        for index in spaced(len(curve.steps), _MOST_POINTS)
        if math.isfinite(curve.values[index])
    ]
    axes.plot(
        [curve.steps[index] for index in indexes], [curve.values[index] for index in indexes],
        color=colour, ls=style, lw=1.5, label=name or None,
    )  # fmt: skip


def _at(curve: Series | None, index: int) -> str:
    return fixed(curve.values[index], 3) if curve and index < len(curve.values) else ""


def _alt(panels: _Panels, arm: ArmView, metrics: Mapping[str, Series]) -> str:
    def ends(name: str) -> dict[str, str]:
        values = metrics[name].values if name in metrics else ()
        shown = [fixed(value, panels.digits) for value in values] or ["nothing"]
        return {"first": shown[0], "last": shown[-1]}

    solid, dashed = panels.metrics[:2]
    return panels.alt.format(arm=arm.name, solid=ends(solid), dashed=ends(dashed))
