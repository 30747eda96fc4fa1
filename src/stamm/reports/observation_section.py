"""The layers of observed arms: a figure by depth and a table (`stamm observe`)."""

from __future__ import annotations

from collections.abc import Callable

from stamm.reports.figure import DataTable, Figure
from stamm.reports.formatting import fixed, spaced
from stamm.reports.run_data import ArmResults, RunResults
from stamm.reports.svg_figure import Axes, draw_panels, legend, legend_name
from stamm.reports.text import one_line
from stamm.reports.theme import series
from stamm.runs.schemas.observation import LayerObservation, ObserveFile

_MOST_ROWS = 400
_PANELS: tuple[tuple[str, Callable[[LayerObservation], float | None]], ...] = (
    ("x below 0, share", lambda one: one.negative_share),
    ("nonlinearity", lambda one: one.nonlinearity),
    ("effective rank / units", lambda one: _rank_share(one)),
)


def observed_arms(study: RunResults) -> list[tuple[ArmResults, ObserveFile]]:
    """The arms with an observation."""
    return [(arm, found) for arm in study.arms if (found := arm.measured.observed)]


def observation_table(study: RunResults) -> DataTable | None:
    """Every number of every layer; None where nothing was observed."""
    arms = observed_arms(study)
    if not arms:
        return None
    rows = [_row(arm, layer) for arm, found in arms for layer in found.layers]
    said = [
        f"{one_line(arm.name, 40)}: {found.tokens:,} tokens of {found.documents:,} documents, "
        f"{one_line(found.text, 60)}; x is the {one_line(found.layers[0].observed, 40)}."
        for arm, found in arms
    ]
    if len(rows) > _MOST_ROWS:
        said.append(f"{len(rows) - _MOST_ROWS:,} more rows are in observe/observe.json.")
    return DataTable(
        columns=(
            "arm", "layer", "learned shape", "x below 0", "gradient, through x below 0",
            "gradient, where f\u2032 is negative", "mean |f\u2032|", "nonlinearity",
            "nonlinearity, unit by unit", "dead units", "zero features", "effective rank, of units",
            "kurtosis, of the residual stream", "max / median, of the residual stream",
        ),
        rows=tuple(rows[:_MOST_ROWS]),
        words=3,
        note=" ".join(said),
    )  # fmt: skip


def observation_figure(study: RunResults) -> Figure | None:
    """Occupancy of the negative branch, nonlinearity and effective rank by depth."""
    arms = observed_arms(study)
    if not arms:
        return None

    def paint(panels: list[Axes]) -> None:
        for axes, (title, value) in zip(panels, _PANELS, strict=True):
            for arm, found in arms:
                points = [
                    (n, v) for n, one in enumerate(found.layers) if (v := value(one)) is not None
                ]
                axes.plot(
                    [n for n, _ in points], [v for _, v in points], "o-", ms=4, lw=1.2,
                    color=series(arm.number), label=legend_name(arm.name),
                )  # fmt: skip
            axes.set_title(title, pad=22)
            axes.set_xlabel("layer, from the input (0) upwards")
            layers = max(len(found.layers) for _, found in arms)
            axes.set_xticks(spaced(layers, 8))
        legend(panels[0], columns=3)

    rows = [
        (one_line(arm.name, 40), str(one.layer), *(_number(value(one), 4) for _, value in _PANELS))
        for arm, found in arms
        for one in found.layers
    ]
    ends = "; ".join(
        f"{arm.name}: nonlinearity {fixed(found.layers[0].nonlinearity, 3)} in the first layer, "
        f"{fixed(found.layers[-1].nonlinearity, 3)} in the last"
        for arm, found in arms
    )
    return Figure(
        key="observed",
        title="The layers by depth",
        caption=(
            "Share of pre-activations below 0; share of the variance of f(x) that the best line in x does "
            "not explain (0: the layer uses f as a line); effective rank of the features over their "
            "number. Of a gated block x is the gate's pre-activation. One model of one seed: intervals "
            "need a comparison."
        ),
        alt=ends,
        svg=draw_panels("observed", 2.8, paint, len(_PANELS)),
        data=DataTable(
            columns=("arm", "layer", *(title for title, _ in _PANELS)),
            rows=tuple(rows[:_MOST_ROWS]),
            words=1,
        ),
        source=study.files([arm for arm, _ in arms], "observe/observe.json"),
        command=f"stamm observe {study.name}",
    )


def _row(arm: ArmResults, one: LayerObservation) -> tuple[str, ...]:
    learned = ", ".join(
        f"{one_line(name, 30)} {fixed(value.mean, 3)}"
        + ("" if value.count == 1 else f" ({fixed(value.low, 3)} to {fixed(value.high, 3)})")
        for name, value in list(one.parameters.items())[:4]
    )
    return (
        one_line(arm.name, 40),
        str(one.layer),
        learned or "none",
        fixed(one.negative_share, 3),
        _number(one.negative_gradient_share, 3),
        _number(one.negative_slope_share, 3),
        fixed(one.mean_abs_slope, 3),
        _number(one.nonlinearity, 4),
        _number(one.unit_nonlinearity, 4),
        fixed(one.dead_share, 3),
        _number(one.zero_share, 3),
        "too few tokens"
        if one.effective_rank is None
        else f"{fixed(one.effective_rank, 1)} / {one.rank_units}",
        fixed(one.kurtosis, 2),
        fixed(one.max_median, 1),
    )


def _rank_share(one: LayerObservation) -> float | None:
    return None if one.effective_rank is None else one.effective_rank / one.rank_units


def _number(value: float | None, digits: int) -> str:
    return "none" if value is None else fixed(value, digits)
