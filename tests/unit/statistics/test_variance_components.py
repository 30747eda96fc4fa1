"""Noise of seeds and of texts, told apart on simulated differences whose components are known."""

from __future__ import annotations

import math

import numpy as np
import pytest

from stamm.statistics.variance_components import Documents, most_influential, noise_components

SEEDS, DOCUMENTS = 8, 100


def simulated(
    draw: np.random.Generator, seed: float, text: float, both: float
) -> tuple[list[Documents], list[Documents]]:
    """Differences in bits per byte of -0.02 with these deviations, of documents of unequal size."""
    sizes = draw.integers(500, 6000, DOCUMENTS)
    hard = draw.normal(2.0, 0.5, DOCUMENTS)
    apart = -0.02 + draw.normal(0, seed, (SEEDS, 1)) + draw.normal(0, text, (1, DOCUMENTS))
    apart = apart + draw.normal(0, both, (SEEDS, DOCUMENTS))
    bits = (np.broadcast_to(hard, apart.shape), hard + apart)
    base, arm = (
        [
            {f"d{i}": (int(size), float(rate * size * math.log(2))) for i, (size, rate) in enumerate(zip(sizes, row, strict=True))}
            for row in rates
        ]
        for rates in bits
    )  # fmt: skip
    return arm, base


@pytest.mark.parametrize(
    ("seed", "text", "both"),
    [(0.01, 0.2, 0.05), (0.03, 0.0, 0.0), (0.0, 0.2, 0.1), (0.01, 0.0, 0.2)],
)
def test_components_are_found(seed: float, text: float, both: float) -> None:
    draw = np.random.default_rng(2)
    squares = np.zeros(3)
    repeats = 60
    for _ in range(repeats):
        found = noise_components(*simulated(draw, seed, text, both))
        assert found is not None
        squares += np.square([found.seed, found.text, found.interaction]) / repeats
    # Over documents of unequal size the mean of T has sqrt(sum sizes^2) / sum sizes of its deviation
    share = math.sqrt((3250**2 + 5500**2 / 12) / DOCUMENTS) / 3250
    wanted = (seed, text * share, both * share)
    for got, want in zip(np.sqrt(squares), wanted, strict=True):
        assert got == pytest.approx(want, rel=0.15, abs=0.006)


def test_more_seeds_do_not_remove_the_noise_of_texts() -> None:
    found = noise_components(*simulated(np.random.default_rng(4), 0.0, 0.3, 0.0))
    assert found is not None and (found.seeds, found.documents) == (SEEDS, DOCUMENTS)
    assert found.standard_error() == pytest.approx(found.text, rel=0.01)
    found = noise_components(*simulated(np.random.default_rng(4), 0.05, 0.0, 0.0))
    assert found is not None
    assert found.standard_error() == pytest.approx(found.seed / math.sqrt(SEEDS), rel=0.05)


def test_what_cannot_be_paired_has_no_components() -> None:
    arm, base = simulated(np.random.default_rng(1), 0.1, 0.1, 0.1)
    assert noise_components(arm[:1], base[:1]) is None
    assert noise_components(arm, base[1:]) is None
    assert noise_components([], []) is None
    fewer = {name: value for name, value in arm[0].items() if name != "d3"}
    assert noise_components([fewer, *arm[1:]], base) is None
    longer = {**arm[0], "d3": (1, arm[0]["d3"][1])}
    assert noise_components([longer, *arm[1:]], base) is None
    lost = {**arm[0], "d3": (arm[0]["d3"][0], math.inf)}
    assert noise_components([lost, *arm[1:]], base) is None
    without = [{name: (0, nats) for name, (_, nats) in one.items()} for one in arm]
    assert noise_components(without, without) is None


def test_the_document_that_makes_the_spread_is_found() -> None:
    arm, base = simulated(np.random.default_rng(3), 0.001, 0.0, 0.0)
    seeds = [dict(one) for one in arm]
    size, nats = seeds[4]["d17"]
    seeds[4]["d17"] = (size, nats + 25 * size * math.log(2))  # 25 bits per byte, with one seed
    found = most_influential(seeds, base)
    assert found is not None
    assert found.document == "d17"
    assert found.deviation == pytest.approx(0.001, rel=0.8)
    assert found.mean == pytest.approx(-0.02, abs=0.002)
    assert most_influential(arm[:1], base[:1]) is None
    assert most_influential([{"a": (5, 1.0)}] * 2, [{"a": (5, 1.5)}] * 2) is None
