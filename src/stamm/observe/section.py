"""Section "Layers": figures by depth, plasticity over training, and tables of every observed arm (`stamm observe`)."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from stamm.base.schema import read_record
from stamm.observe.records import LayerObservation, ObserveFile, PlasticityFile
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
SATURATED = 0.1
"""Nats after the plasticity probe below which its targets are learned almost entirely."""
_Panels = tuple[tuple[str, Callable[[LayerObservation], float | None]], ...]
_Arms = Sequence[tuple[ArmView, ObserveFile]]
_PANELS: _Panels = (
    ("x below 0, share", lambda layer: layer.negative_share),
    ("nonlinearity", lambda layer: layer.nonlinearity),
    ("effective rank / units", lambda layer: _rank_share(layer)),
)
_OUTLIERS: _Panels = (
    ("skippable units, share", lambda layer: layer.skippable_share),
    ("INT8 per tensor, last matrix, dB", lambda layer: layer.last_int8_tensor_db),
    ("channel ratio, last matrix", lambda layer: layer.last_channel_ratio),
)
_OUTLIER_COLUMNS = (
    "skippable_share", "gradient_dead_share", "one_sided_share", "first_channel_ratio", "first_int8_tensor_db",
    "first_int8_token_db", "first_fp8_tensor_db", "last_channel_ratio", "last_int8_tensor_db",
    "last_int8_token_db", "last_fp8_tensor_db", "massive_count",
)  # fmt: skip


def sections(run: RunView, config: ReportConfig) -> tuple[Section, ...]:
    """The section about the layers; () where none was observed.

    Raises   DataError when a file does not follow its schema, or was made from other weights than
             the arm's model has
    """
    arms = [(arm, observation) for arm in run.arms if (observation := _read(arm))]
    if not arms:
        return ()
    figures, tables = [observation_figure(run, arms)], {"Layer by layer": observation_table(arms)}
    newer = [
        (arm, observation)
        for arm, observation in arms
        if observation.layers[0].massive_count is not None
    ]
    if newer:
        figures.append(outlier_figure(run, newer))
        tables["Outliers and sparsity, layer by layer"] = outlier_table(newer)
    probed = [(arm, files) for arm in run.arms if (files := _plasticity(arm))]
    if probed:
        figures.append(plasticity_figure(run, probed))
    section = section_of(
        "observe", "Layers", heading="What the layers do", figures=figures, tables=tables
    )
    return (section,)


def _read(arm: ArmView) -> ObserveFile | None:
    path = arm.folder / "observe" / "observe.json"
    return read_result_if_present(ObserveFile, path, arm.folder / "model")


def _plasticity(arm: ArmView) -> list[PlasticityFile]:
    """The probes of the checkpoints, by step, then that of the model; [] where the model was not probed."""
    folder = arm.folder / "observe"
    last = read_result_if_present(PlasticityFile, folder / "plasticity.json", arm.folder / "model")
    if last is None:
        return []
    paths = sorted((folder / "steps").glob("step-*-plasticity.json"))
    return [*(read_record(PlasticityFile, path) for path in paths), last]


def observation_table(arms: _Arms) -> DataTable:
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


def outlier_table(arms: _Arms) -> DataTable:
    """Sparsity, units without gradient, outliers and quantization noise of every layer."""
    rows = [
        (one_line(arm.name, 40), str(layer.layer),
         *(_number(getattr(layer, name), 0 if name == "massive_count" else 3) for name in _OUTLIER_COLUMNS))
        for arm, observation in arms
        for layer in observation.layers
    ]  # fmt: skip
    notes = [_sparsity_note(arm, observation) for arm, observation in arms]
    for arm, observation in arms:
        notes += [
            f"{one_line(arm.name, 40)}, layer {layer.layer}: massive {massive.value:.0f} in dimension "
            f"{massive.dimension} at {one_line(repr(massive.token), 30)}, {massive.count:,} times."
            for layer in observation.layers
            for massive in layer.massive[:1]
        ]
    return DataTable(
        columns=(
            "arm", "layer", "skippable units", "units with mean |f\u2032| below 0.01", "units on one side of the knots",
            "channel ratio, first matrix", "INT8 per tensor, dB", "INT8 per token, dB", "FP8 E4M3, dB",
            "channel ratio, last matrix", "INT8 per tensor, dB", "INT8 per token, dB", "FP8 E4M3, dB",
            "massive activations",
        ),
        rows=tuple(rows[:_MOST_ROWS]),
        words=2,
        note=" ".join(notes[:60]),
    )  # fmt: skip


def _sparsity_note(arm: ArmView, observation: ObserveFile) -> str:
    name, sparsity = one_line(arm.name, 40), observation.sparsity
    if sparsity is None:
        return f"{name}: the calibration text was too short for the sparsity ruler."
    return (
        f"{name}: {sparsity.share:.1%} of the units are skippable at perplexity \u00d7 {sparsity.perplexity:g} on "
        f"{sparsity.calibration_tokens:,} tokens of {one_line(sparsity.calibration, 60)}; on the observed text "
        f"this costs {sparsity.skipped_loss - sparsity.loss:+.4f} nats a token."
    )


def _skippable(observation: ObserveFile) -> str:
    sparsity = observation.sparsity
    return "none" if sparsity is None else fixed(sparsity.share, 3)


def observation_figure(run: RunView, arms: _Arms) -> Figure:
    """Occupancy of the negative branch, nonlinearity and effective rank by depth."""
    ends = "; ".join(
        f"{arm.name}: nonlinearity {fixed(observation.layers[0].nonlinearity, 3)} in the first layer, "
        f"{fixed(observation.layers[-1].nonlinearity, 3)} in the last"
        for arm, observation in arms
    )
    caption = (
        "Share of pre-activations below 0; share of the variance of f(x) that the best line in x does "
        "not explain (0: the layer uses f as a line); effective rank of the features over their "
        "number. Of a gated block x is the gate's pre-activation. One model of one seed: intervals "
        "need a comparison."
    )
    return _by_depth(run, arms, _PANELS, "observed", "The layers by depth", caption, ends)


def outlier_figure(run: RunView, arms: _Arms) -> Figure:
    """Skippable units, quantization noise and channel ratio of the last matrix's input by depth."""
    caption = (
        "Units that can be skipped at 1 % more perplexity; signal to quantization noise of the features "
        "in INT8 with one scale (8 bits of a uniform variable have 50 dB); largest over median of the channels' maxima. "
        "One model of one seed."
    )
    ends = "; ".join(
        f"{arm.name}: {_skippable(observation)} skippable" for arm, observation in arms
    )
    return _by_depth(
        run, arms, _OUTLIERS, "outliers", "Sparsity and outliers by depth", caption, ends
    )


def plasticity_figure(
    run: RunView, arms: Sequence[tuple[ArmView, Sequence[PlasticityFile]]]
) -> Figure:
    """Loss on random targets after the steps of the probe, from every checkpoint."""

    def name_of(file: PlasticityFile, files: Sequence[PlasticityFile]) -> str:
        return "model" if file is files[-1] else f"{file.step or 0:,}"

    def paint(panels: list[Axes]) -> None:
        for arm, files in arms:
            values = [file.final_loss for file in files]
            colour = series(arm.number)
            panels[0].plot(
                range(1, len(values) + 1),
                values,
                "o-",
                ms=4,
                lw=1.2,
                color=colour,
                label=legend_name(arm.name),
            )
            if (fresh := files[-1].fresh_loss) is not None:
                panels[0].axhline(fresh, color=colour, lw=0.8, ls=":")
        panels[0].set_xlabel("checkpoint, by step; the model last")
        panels[0].set_ylabel("nats")
        legend(panels[0], columns=3)

    rows = tuple(
        (one_line(arm.name, 40), name_of(file, files), fixed(file.initial_loss, 4), fixed(file.final_loss, 4),
         fixed(file.mean_loss, 4), _number(file.fresh_loss, 4))
        for arm, files in arms
        for file in files
    )  # fmt: skip
    first = arms[0][1][-1]
    saturated = ", ".join(
        one_line(arm.name, 40)
        for arm, files in arms
        if any(file.final_loss < SATURATED for file in files)
    )
    warning = (
        f" Saturated (a loss below {SATURATED:g} nats: the targets are learned almost entirely): {saturated}. There the loss "
        "afterwards does not tell checkpoints apart; compare the mean of the steps in the table."
    )
    return Figure(
        key="plasticity",
        title="Plasticity",
        caption=(
            f"Loss on {first.tokens:,} fixed random targets after {first.steps} steps of a new AdamW, from each "
            "checkpoint: lower is more plastic. Dotted: from newly drawn weights."
            + (warning if saturated else "")
        ),
        alt="; ".join(
            f"{arm.name}: {files[0].final_loss:.3f} first, {files[-1].final_loss:.3f} last"
            for arm, files in arms
        ),
        svg=draw_panels("plasticity", 2.6, paint, 1),
        data=DataTable(
            columns=(
                "arm",
                "step",
                "loss before",
                "loss after",
                "mean of the steps",
                "after, from new weights",
            ),
            rows=rows[:_MOST_ROWS],
            words=1,
        ),
        source=run.files([arm for arm, _ in arms], "observe/plasticity.json"),
        command=f"stamm observe {run.name} probe=plasticity checkpoints=all",
    )


def _by_depth(
    run: RunView, arms: _Arms, shown: _Panels, key: str, title: str, caption: str, alt: str
) -> Figure:
    """A panel for each of `shown`: a curve over the layers for each arm."""

    def paint(panels: list[Axes]) -> None:
        for axes, (title, value) in zip(panels, shown, strict=True):
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
            *(_number(value(layer), 4) for _, value in shown),
        )
        for arm, observation in arms
        for layer in observation.layers
    ]
    return Figure(
        key=key,
        title=title,
        caption=caption,
        alt=alt,
        svg=draw_panels(key, 2.8, paint, len(shown)),
        data=DataTable(
            columns=("arm", "layer", *(title for title, _ in shown)),
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
