"""KL estimators against a divergence in closed form, and the curve against its own points."""

from __future__ import annotations

import math

import numpy as np
import pytest

from stamm.align.results.answer_metrics import OptimumCurve, kl_estimate, optimum_gap
from stamm.losses.quantile import optimum_kl, optimum_mean_quantile
from stamm.statistics.bootstrap import Bootstrap


def test_both_estimators_meet_the_kl_of_two_categorical_policies() -> None:
    random = np.random.default_rng(0)
    pi, reference = np.array([0.6, 0.3, 0.1]), np.array([0.2, 0.3, 0.5])
    exact = float((pi * np.log(pi / reference)).sum())
    answers = random.choice(3, size=(1, 400, 50), p=pi)
    ratios = np.log(pi / reference)[answers].tolist()
    tokens = np.full((1, 400, 50), 4).tolist()
    found = kl_estimate(Bootstrap(400, 1, 500, 0, 0.95), ratios, tokens, 0.25)
    for name in ("k1", "k3"):
        assert found[name]["mean"] == pytest.approx(exact, abs=0.02)
        assert found[name]["low"] < exact < found[name]["high"]
    assert found["per_token"]["mean"] == pytest.approx(found["k1"]["mean"] / 4)
    assert found["recoded"] == 0.25


def test_k3_is_left_out_where_it_overflows() -> None:
    found = kl_estimate(Bootstrap(2, 1, 100, 0, 0.95), [[[-900.0], [1.0]]], [[[9], [9]]], 0.0)
    assert found["k3"] is None
    assert found["k1"]["mean"] == pytest.approx(-449.5)


def test_a_prompt_without_an_answer_counts_for_nothing() -> None:
    found = kl_estimate(Bootstrap(3, 1, 100, 0, 0.95), [[[2.0], [], [4.0]]], [[[1], [], [3]]], 0.3)
    assert found["k1"]["mean"] == pytest.approx(3.0)
    assert found["per_token"]["mean"] == pytest.approx(6 / 4)


@pytest.mark.parametrize("beta", [50.0, 5.0, 1.0, 0.3, 0.1, 0.01, 1e-4])
def test_the_curve_goes_through_the_optimum_of_every_beta(beta: float) -> None:
    curve = OptimumCurve()
    kl, mean = optimum_kl(beta), optimum_mean_quantile(beta)
    assert curve.quantile(np.array([kl]))[0] == pytest.approx(mean, abs=2e-5)
    assert curve.kl(mean) == pytest.approx(kl, rel=2e-3, abs=1e-6)


def test_the_ends_of_the_curve() -> None:
    curve = OptimumCurve()
    found = curve.quantile(np.array([-0.3, 0.0, 1e-6, 40.0]))
    assert found == pytest.approx([0.5, 0.5, 0.5 + math.sqrt(1e-6 / 6), 1.0], abs=1e-6)
    assert curve.kl(0.4) == 0.0
    assert curve.kl(1.0) is None
    kls = [point["kl"] for point in curve.points()]
    assert kls == sorted(kls)


def test_an_arm_at_the_optimum_has_no_gap_and_one_below_has() -> None:
    beta = 0.2
    kl, mean = optimum_kl(beta), optimum_mean_quantile(beta)
    bootstrap = Bootstrap(200, 1, 400, 0, 0.95)
    noise = np.random.default_rng(0).standard_normal((1, 200)) * 0.05
    noise -= noise.mean()
    ratios = (kl + noise)[..., None].tolist()
    at = optimum_gap(bootstrap, ratios, mean + noise, beta)
    assert at["below"]["mean"] == pytest.approx(0.0, abs=2e-5)
    assert at["below"]["low"] < 0 < at["below"]["high"]
    assert at["excess_kl"] == pytest.approx(0.0, abs=1e-3)
    assert at["target"] == {"beta": beta, "kl": kl, "quantile": mean}
    worse = optimum_gap(bootstrap, ratios, mean - 0.2 + noise, None)
    assert worse["below"]["mean"] == pytest.approx(0.2, abs=2e-5)
    assert worse["below"]["low"] > 0.1
    assert worse["target"] is None and worse["excess_kl"] > 0
