"""Arms of a comparison by depth: t intervals over seeds, slopes over depth."""

from __future__ import annotations

from pathlib import Path

import pytest

from stamm.base.schema import read_record, write_record
from stamm.observe.comparison import by_depth, comparison_record
from stamm.observe.records import (
    LayerObservation,
    LearnedParameter,
    ObserveComparisonFile,
    ObserveFile,
)


def file(nonlinearity: list[float | None]) -> ObserveFile:
    layers = tuple(
        LayerObservation(
            layer=number,
            activation="xielu",
            observed="pre-activation",
            units=4,
            parameters={"alpha_p": LearnedParameter(mean=number, low=0.0, high=9.0, count=4)},
            negative_share=0.5,
            mean_abs_slope=1.0,
            nonlinearity=value,
            dead_share=0.0,
            effective_rank=2.0,
            rank_units=4,
            kurtosis=1.0,
            max_median=1.0,
        )
        for number, value in enumerate(nonlinearity)
    )
    return ObserveFile(model_sha256="", identity="", text="t", documents=1, tokens=9, layers=layers)


def test_slopes_are_fitted_seed_by_seed() -> None:
    seeds = {1: file([0.9, 0.7, 0.5]), 2: file([0.8, 0.7, 0.6]), 3: file([1.0, 0.6, 0.4])}
    found = {one.name: one for one in by_depth("xielu", seeds, 0.95).measures}
    slope = found["nonlinearity"].slope
    assert slope is not None
    assert slope.mean == pytest.approx((-0.2 - 0.1 - 0.3) / 3)
    # t = 4.3027, standard deviation 0.1, 3 seeds
    assert slope.low is not None
    assert slope.mean - slope.low == pytest.approx(4.3027 * 0.1 / 3**0.5, rel=1e-4)
    first = found["nonlinearity"].layers[0]
    assert first is not None
    assert first.mean == pytest.approx(0.9)
    assert found["alpha_p"].slope is not None
    assert found["alpha_p"].slope.mean == pytest.approx(1.0)


def test_a_layer_without_a_value_has_no_interval_and_the_arm_no_slope() -> None:
    seeds = {1: file([0.9, None]), 2: file([0.8, 0.7])}
    found = {one.name: one for one in by_depth("xielu", seeds, 0.95).measures}
    assert found["nonlinearity"].layers[1] is None
    assert found["nonlinearity"].slope is None


def test_the_file_follows_its_schema(tmp_path: Path) -> None:
    content = comparison_record({"a": {1: file([0.5])}, "b": {}}, ["b/1"], 0.95)
    write_record(tmp_path / "o.json", ObserveComparisonFile, content)
    stored = read_record(ObserveComparisonFile, tmp_path / "o.json")
    assert [arm.name for arm in stored.arms] == ["a"]
    assert stored.arms[0].measures[0].slope is None
