"""The screen: limits on certificates, and facts about a candidate."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from stamm.activations import catalog
from stamm.activations.describe import certificate
from stamm.base.errors import ConfigError
from stamm.pretrain.activation_check_config import ActivationCheckConfig
from stamm.search.config import ScreenLimits
from stamm.search.families import Listed, Pieces, proposals
from stamm.search.screen_job import NUM_INPUTS, broken_limits, screened


def _certified(name: str) -> dict[str, Any]:
    found = certificate(catalog.get(name))
    assert found is not None
    return found


@pytest.mark.parametrize(
    ("name", "screen", "said"),
    [
        ("xielu", ScreenLimits(), ()),
        ("relu2", ScreenLimits(), ("flat: f' is 0 on (-infinity, 0)",)),
        ("relu2", ScreenLimits(flat=True), ()),
        ("xielu", ScreenLimits(degree=1.5), ("growth: f grows like 0.8 |x|^2 far to the right",)),
        ("xielu", ScreenLimits(gain=(0.8, 2.0)), ("gain: 0.759",)),
        ("xielu", ScreenLimits(nonlinearity=0.4), ("nonlinearity: 0.383",)),
        ("cube", ScreenLimits(), ("growth: ", "growth: ")),
    ],
)
def test_limits_of_a_certificate(name: str, screen: ScreenLimits, said: tuple[str, ...]) -> None:
    found = tuple(broken_limits(_certified(name), screen))
    assert len(found) == len(said)
    for sentence, start in zip(found, said, strict=True):
        assert sentence.startswith(start)


@pytest.mark.parametrize(("degree", "kept"), [(2.0, False), (2.5, True)])
def test_a_logarithm_grows_beyond_its_power(degree: float, kept: bool) -> None:
    changed = _certified("xielu")
    changed["bounds"]["growth_right"] = {
        "claim": "f grows like |x|^2 log|x| far to the right", "status": "proved",
        "kind": "power and logarithm", "degree": 2.0, "coefficient": None, "logs": 1.0,
    }  # fmt: skip
    found = list(broken_limits(changed, ScreenLimits(degree=degree)))
    assert bool(found) is not kept
    assert all("which is more than |x|^2" in sentence for sentence in found)


def test_what_is_not_proved_does_not_pass() -> None:
    changed = _certified("xielu")
    changed["bounds"]["growth_left"] = {
        "claim": "growth on the left", "status": "not proved", "reason": "no expansion",
    }  # fmt: skip
    changed["gaussian"]["moments"] = {
        "claim": "moments", "status": "not proved", "reason": "the integrals do not settle",
    }  # fmt: skip
    first, second = broken_limits(changed, ScreenLimits())
    assert first == "growth: growth on the left: no expansion"
    assert second == "signal propagation: moments: the integrals do not settle"


@pytest.mark.slow
def test_xielu_in_other_words_is_known_and_a_new_function_passes() -> None:
    family = Pieces(
        right=("2*alpha_p*x + beta",),
        left=("alpha_n*expm1(x) + beta", "alpha_n*tanh(x) + beta"),
        parameters=("alpha_p=0.8:softplus", "alpha_n=0.8:softplus>beta", "beta=0.5:fixed"),
    )
    old, new = (screened(one.spec, ScreenLimits()) for one in proposals((family,)) if one.spec)
    assert len(old.reasons) == 1
    assert old.reasons[0].startswith("known: pieces_0_0 is the function xielu")
    assert new.reasons == ()
    assert new.gradient == ("x > 0: 2*alpha_p*x + beta", "x <= 0: alpha_n*tanh(x) + beta")
    assert new.nonlinearity == pytest.approx(0.413, abs=1e-3)
    free = replace(
        family,
        left=("fall*expm1(x) + beta*exp(x)",),
        parameters=("alpha_p=0.8:softplus", "fall=0.3:softplus", "beta=0.5:softplus"),
    )
    learned = proposals((free,))[0].spec
    assert learned is not None
    assert screened(learned, ScreenLimits()).reasons == ()
    (allowed,) = proposals((Listed(activations=("xielu",)),))
    assert allowed.spec is not None
    assert screened(allowed.spec, ScreenLimits(known=True)).reasons == ()


@pytest.mark.slow
def test_a_kernel_beyond_its_error_budget_does_not_pass() -> None:
    # The slope in beta is x + (2*x*atan(x) - log(1 + x**2))/pi: far to the left two large terms cancel.
    family = Pieces(
        right=("alpha_p*x + beta",),
        left=("fall*tanh(x) + beta*(1 + 2*atan(x)/pi)",),
        parameters=("alpha_p=0.8:softplus", "fall=0.3:softplus", "beta=0.5:softplus"),
    )
    spec = proposals((family,))[0].spec
    assert spec is not None
    (reason,) = screened(spec, ScreenLimits()).reasons
    assert reason.startswith("accuracy: pieces_0_0 does not hold its accuracy budget")
    assert "slope_in_beta" in reason


def test_accuracy_is_checked_on_the_inputs_of_the_check_before_training() -> None:
    assert ActivationCheckConfig(spec=catalog.get("xielu")).inputs == NUM_INPUTS


def test_bad_limits_are_errors() -> None:
    for bad in ({"degree": 0.0}, {"gain": (2.0, 1.0)}, {"nonlinearity": 1.0}, {"slower": 0.0}):
        with pytest.raises(ConfigError):
            ScreenLimits(**bad)  # type: ignore[arg-type]
