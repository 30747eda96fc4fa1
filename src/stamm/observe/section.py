"""Section "Layers": a figure by depth and a table of every observed arm (`stamm observe`)."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from stamm.observe.records import LayerObservation, ObserveFile
from stamm.pages.config import ReportConfig
from stamm.pages.figure import DataTable, Figure
from stamm.pages.formatting import fixed, spaced
from stamm.pages.section import Section, section_of
from stamm.pages.svg_figure import Axes, draw_panels, legend, legend_name
from stamm.pages.text import one_line
from stamm.pages.theme import series
from stamm.runs.model_outputs import read_result_if_present
from stamm.runs.run_view import ArmView, RunView

_MOST_ROWS = 400
_PANELS: tuple[tuple[str, Callable[[LayerObservation], float | None]], ...] = (
    ("x below 0, share", lambda layer: layer.negative_share),
    ("nonlinearity", lambda layer: layer.nonlinearity),
    ("effective rank / units", lambda layer: _rank_share(layer)),
)


def sections(run: RunView, config: ReportConfig) -> tuple[Section, ...]:
    """The section about the layers; () where none was observed.

    Raises   DataError when a file does not follow its schema, or was made from other weights than
             the arm's model has
    """
    arms = [(arm, observation) for arm in run.arms if (observation := _read(arm))]
    if not arms:
        return ()
    section = section_of(
        "observe",
        "Layers",
        heading="What the layers do",
        figures=(observation_figure(run, arms),),
        tables={"Layer by layer": observation_table(arms)},
    )
    return (section,)


def _read(arm: ArmView) -> ObserveFile | None:
    path = arm.folder / "observe" / "observe.json"
    return read_result_if_present(ObserveFile, path, arm.folder / "model")


def observation_table(arms: Sequence[tuple[ArmView, ObserveFile]]) -> DataTable:
    """Every number of every layer."""
    rows = [_row(arm, layer) for arm, observation in arms for layer in observation.layers]
    said = [
        f"{one_line(arm.name, 40)}: {observation.tokens:,} tokens of {observation.documents:,} documents, "
        f"{one_line(observation.text, 60)}; x is the {one_line(observation.layers[0].observed, 40)}."
        for arm, observation in arms
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


def observation_figure(run: RunView, arms: Sequence[tuple[ArmView, ObserveFile]]) -> Figure:
    """Occupancy of the negative branch, nonlinearity and effective rank by depth."""

    def paint(panels: list[Axes]) -> None:
        for axes, (title, value) in zip(panels, _PANELS, strict=True):
            for arm, observation in arms:
                points = [
                    (n, v)
                    for n, layer in enumerate(observation.layers)
                    if (v := value(layer)) is not None
                ]
                axes.plot(
                    [n for n, _ in points], [v for _, v in points], "o-", ms=4, lw=1.2,
                    color=series(arm.number), label=legend_name(arm.name),
                )  # fmt: skip
            axes.set_title(title, pad=22)
            axes.set_xlabel("layer, from the input (0) upwards")
            layers = max(len(observation.layers) for _, observation in arms)
            axes.set_xticks(spaced(layers, 8))
        legend(panels[0], columns=3)

    rows = [
        (
            one_line(arm.name, 40),
            str(layer.layer),
            *(_number(value(layer), 4) for _, value in _PANELS),
        )
        for arm, observation in arms
        for layer in observation.layers
    ]
    ends = "; ".join(
        f"{arm.name}: nonlinearity {fixed(observation.layers[0].nonlinearity, 3)} in the first layer, "
        f"{fixed(observation.layers[-1].nonlinearity, 3)} in the last"
        for arm, observation in arms
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
        source=run.files([arm for arm, _ in arms], "observe/observe.json"),
        command=f"stamm observe {run.name}",
    )


def _row(arm: ArmView, layer: LayerObservation) -> tuple[str, ...]:
    learned = ", ".join(
        f"{one_line(name, 30)} {fixed(value.mean, 3)}"
        + ("" if value.count == 1 else f" ({fixed(value.low, 3)} to {fixed(value.high, 3)})")
        for name, value in list(layer.parameters.items())[:4]
    )
    return (
        one_line(arm.name, 40),
        str(layer.layer),
        learned or "none",
        fixed(layer.negative_share, 3),
        _number(layer.negative_gradient_share, 3),
        _number(layer.negative_slope_share, 3),
        fixed(layer.mean_abs_slope, 3),
        _number(layer.nonlinearity, 4),
        _number(layer.unit_nonlinearity, 4),
        fixed(layer.dead_share, 3),
        _number(layer.zero_share, 3),
        "too few tokens"
        if layer.effective_rank is None
        else f"{fixed(layer.effective_rank, 1)} / {layer.rank_units}",
        fixed(layer.kurtosis, 2),
        fixed(layer.max_median, 1),
    )


def _rank_share(layer: LayerObservation) -> float | None:
    return None if layer.effective_rank is None else layer.effective_rank / layer.rank_units


def _number(value: float | None, digits: int) -> str:
    return "none" if value is None else fixed(value, digits)
