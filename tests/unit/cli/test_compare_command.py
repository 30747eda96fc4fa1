"""What `stamm compare --dry-run` prints about the power of a plan."""

from __future__ import annotations

import json
import statistics
from dataclasses import replace
from pathlib import Path

import pytest

from stamm.compare import verb
from stamm.recipes.comparisons import evidence_activations
from stamm.statistics.power import Spread, detectable

ROOT = Path(__file__).parents[3]


def test_without_a_pilot_the_difference_is_in_standard_deviations() -> None:
    config = evidence_activations()
    first, second = verb.power_lines(config)
    units = detectable((8, 16), 2, 0.95)
    assert first.startswith(
        f"With 16 seeds, looks after 8, 16, a difference of {units:.2f} standard deviations"
    )
    assert first.endswith("with power 0.8 after Holm over 2 comparisons.")
    # The standard deviation of the nearest study, from its differences seed by seed.
    by_seed = json.loads((ROOT / "docs/evidence/activations_36.json").read_text())["by_seed"]
    bits = {name: arm["bits_per_byte"] for name, arm in by_seed.items()}
    variances = [
        statistics.variance(bits[name][seed] - bits["swiglu"][seed] for seed in bits["swiglu"])
        for name in ("relu2", "xielu")
    ]
    deviation = statistics.fmean(variances) ** 0.5
    assert second.startswith(
        "The nearest finished study, activations_36 (1.28M parameters, 786k tokens, 36 seeds)"
    )
    assert f"a standard deviation of {deviation:.4f} bits per byte" in second
    assert f"the plan shows {units * deviation:.4f}. pilot=FOLDER" in second


def test_a_plan_of_another_size_states_how_far_the_study_is() -> None:
    config = evidence_activations()
    longer = replace(config.pretrain, sequences=20 * config.pretrain.sequences)
    _, second = verb.power_lines(replace(config, pretrain=longer))
    assert "times its parameters and" in second


def test_a_pilot_gives_the_difference_and_the_seeds(monkeypatch: pytest.MonkeyPatch) -> None:
    spread = Spread(value=0.02, low=0.01, high=0.071, seeds=3, arms=("xielu",))
    monkeypatch.setattr(verb, "_spread", lambda config: spread)
    config = replace(
        evidence_activations(), seeds=(1, 2, 3), looks=(), pilot="runs/x", difference=0.05
    )
    _, pilot, needed = verb.power_lines(config)
    assert pilot.startswith(
        "Pilot runs/x: 0.0200 bits per byte over 3 seeds (95 % interval 0.0100 to"
    )
    # 5 seeds for a deviation of 0.02, 3 for 0.01, 22 for 0.071; 5 runs of 786,432 tokens
    assert needed == ("A difference of 0.05 needs 5 seeds (3 to 22), 3.93M tokens of each arm.")
