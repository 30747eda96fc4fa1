"""The observations of a comparison's arms by depth: means over seeds with t intervals, slopes over depth."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from stamm.observe.records import (
    MEASURES,
    LayerObservation,
    MeasureByDepth,
    ObservedArm,
    ObserveFile,
)
from stamm.statistics.estimates import MeanInterval
from stamm.statistics.intervals import interval


def by_depth(name: str, observed: Mapping[int, ObserveFile], confidence: float) -> ObservedArm:
    """Every measure of an arm by depth.

    observed   observations by seed, at least one

    slope      least squares over the layer's number, fitted for each seed by itself; the interval is
               Student's t over the slopes of the seeds, which are independent, as layers are not
    Checked    tests/unit/observe/test_observe_comparison.py
    """
    files = [observed[seed].layers for seed in sorted(observed)]
    measures = [
        _measure(
            measure, [[getattr(layer, measure) for layer in layers] for layers in files], confidence
        )
        for measure in MEASURES
    ]
    learned = sorted({name for layers in files for layer in layers for name in layer.parameters})
    measures += [
        _measure(
            name, [[_mean_of(layer, name) for layer in layers] for layers in files], confidence
        )
        for name in learned
    ]
    return ObservedArm(
        name=name,
        activation=files[0][0].activation,
        seeds=tuple(sorted(observed)),
        measures=tuple(measures),
    )


def comparison_record(
    arms: Mapping[str, Mapping[int, ObserveFile]],
    diverged: Sequence[str],
    confidence: float,
) -> dict[str, Any]:
    """The content of observe_comparison.json; `arms` without an observation are left out."""
    by_arm = {name: observed for name, observed in arms.items() if observed}
    first = next(file for observed in by_arm.values() for file in observed.values())
    return {
        "confidence": confidence,
        "text": first.text,
        "tokens": first.tokens,
        "identities": {
            f"{name}/{seed}": file.identity
            for name, by_seed in by_arm.items()
            for seed, file in by_seed.items()
        },
        "diverged": list(diverged),
        "arms": [asdict(by_depth(name, by_seed, confidence)) for name, by_seed in by_arm.items()],
    }


def _mean_of(layer: LayerObservation, name: str) -> float | None:
    learned = layer.parameters.get(name)
    return None if learned is None else learned.mean


def _measure(name: str, seeds: Sequence[list[float | None]], confidence: float) -> MeasureByDepth:
    """`seeds`: the values of the layers for each seed."""
    complete = [[v for v in values if v is not None] for values in seeds]
    whole = [
        values for values, all_ in zip(complete, seeds, strict=True) if len(values) == len(all_)
    ]
    slopes = [
        statistics.linear_regression(range(len(values)), values).slope
        for values in whole
        if len(values) > 1
    ]
    return MeasureByDepth(
        name=name,
        layers=tuple(_interval(layer, confidence) for layer in zip(*seeds, strict=True)),
        slope=_interval(slopes, confidence) if len(slopes) == len(seeds) else None,
    )


def _interval(values: Sequence[float | None], confidence: float) -> MeanInterval | None:
    given = [value for value in values if value is not None]
    if len(given) < len(values):
        return None
    mean_interval = interval(given, confidence)
    return MeanInterval(mean=mean_interval.mean, low=mean_interval.low, high=mean_interval.high)
