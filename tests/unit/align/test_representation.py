"""Representation metrics: ranks and norms of known features, dormant units, ratios, and where they are recorded."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch

from stamm.align.losses.dpo import DPO, SimPO
from stamm.align.training import objectives as representation
from stamm.align.training.objectives import feature_metrics, ratio_metrics
from stamm.losses.feature_regularization import feature_distances
from stamm.models.config import DecoderConfig, PlainFFN
from stamm.models.decoder import HiddenStates, build_decoder
from stamm.optim.schedules import BatchStage
from tests.unit.align.finetuned import fine_tune, metrics, pairs

UNITS = torch.tensor([[1.0, -1.0, 0.0, 0.01], [3.0, 1.0, 0.0, -0.01]])
# Mean sizes 2, 1, 0 and 0.01: the scores are those over 0.7525.
NAMES = {
    f"representation/{name}"
    for name in ("feature_norm", "effective_rank", "effective_rank_centred", "pca_rank",
                 "pca_rank_centred", "feature_norm_after_norm", "effective_rank_after_norm",
                 "pca_rank_after_norm", "dormant_share", "tokens")
}  # fmt: skip


def test_features_of_known_singular_values() -> None:
    # Singular values 3 and 1: the larger has 90 % of the squares.
    feature = torch.zeros(4, 7)
    feature[0, 2], feature[3, 5] = 3.0, 1.0
    found = feature_metrics(feature, feature, UNITS)
    assert set(found) == NAMES
    entropy = -0.75 * math.log(0.75) - 0.25 * math.log(0.25)
    assert found["representation/effective_rank"] == pytest.approx(math.exp(entropy))
    assert found["representation/pca_rank"] == 2
    assert found["representation/feature_norm"] == pytest.approx(1.0)
    assert found["representation/tokens"] == 4
    assert found["representation/dormant_share"] == 0.5
    feature[3, 5] = 0.2  # 9 of 9.04: 99.6 %
    assert feature_metrics(feature, feature, UNITS)["representation/pca_rank"] == 1


@pytest.mark.parametrize(("tokens", "width"), [(40, 6), (6, 40)])
def test_tall_and_wide_features_have_the_ranks_of_their_singular_values(
    tokens: int, width: int
) -> None:
    generator = torch.Generator().manual_seed(1)
    feature = torch.randn(tokens, width, generator=generator) + 5.0
    found = feature_metrics(feature, feature, UNITS)
    for name, x in (("", feature), ("_centred", feature - feature.mean(0))):
        singular = torch.linalg.svdvals(x.double())
        share = singular / singular.sum()
        rank = torch.special.entr(share).sum().exp().item()
        assert found[f"representation/effective_rank{name}"] == pytest.approx(rank, rel=1e-5)
        squares = singular.square() / singular.square().sum()
        count = next(k for k in range(1, 99) if float(squares[:k].sum()) >= 0.99)
        assert found[f"representation/pca_rank{name}"] == count
    assert found["representation/pca_rank"] < found["representation/pca_rank_centred"]


def test_a_mean_that_all_tokens_share_is_one_direction() -> None:
    feature = torch.ones(10, 8) * 3.0
    found = feature_metrics(feature, feature, UNITS)
    assert found["representation/effective_rank"] == pytest.approx(1.0, abs=1e-3)
    assert found["representation/pca_rank"] == 1


def test_a_residual_stream_that_grows_is_seen_before_the_final_norm() -> None:
    """Everything that writes into the residual stream times 100: the logits stay, the features grow."""
    config = DecoderConfig(
        vocab_size=32, d_model=16, num_layers=2, num_heads=2, ffn=PlainFFN(width=24), max_context=8,
        init_std=0.5,
    )  # fmt: skip
    decoder = build_decoder(config, seed=1)
    tokens = torch.arange(16).reshape(2, 8)
    targets, completion = tokens + 1, torch.tensor([[0], [1]]).expand(2, 8)

    def metrics() -> tuple[torch.Tensor, dict[str, float], HiddenStates]:
        with torch.no_grad():
            log_probs, hidden = decoder.sequence_log_probs_and_hidden(
                tokens, targets, completion, 2
            )
        return log_probs, feature_metrics(*(x.flatten(0, 1) for x in hidden), None), hidden

    log_probs, before, old = metrics()
    with torch.no_grad():
        decoder.model.embed_tokens.weight.mul_(100.0)
        for layer in decoder.model.layers:
            layer.self_attn.o_proj.weight.mul_(100.0)  # type: ignore[operator, union-attr]
            layer.mlp.down_proj.weight.mul_(100.0)  # type: ignore[operator, union-attr]
    grown_log_probs, grown, new = metrics()
    assert torch.allclose(grown_log_probs, log_probs, rtol=1e-2)
    norm = "representation/feature_norm"
    assert grown[norm] / before[norm] == pytest.approx(100.0, abs=0.1)
    assert grown[f"{norm}_after_norm"] == pytest.approx(before[f"{norm}_after_norm"], rel=1e-2)
    distances = [
        float(feature_distances(x.flatten(0, 1), y.flatten(0, 1)).mean())
        for x, y in zip(new, old, strict=True)
    ]
    assert distances[0] == pytest.approx(99.0**2, rel=2e-2)
    assert distances[1] < 1e-2


def test_without_a_token_there_is_no_metric() -> None:
    assert feature_metrics(torch.zeros(0, 3), torch.zeros(0, 3), torch.zeros(0, 4)) == {}


def test_the_sample_of_tokens_is_bounded_and_evenly_spaced(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(representation, "MOST_FEATURES", 5)
    feature = torch.zeros(50, 3)
    feature[::10, 0] = 2.0
    found = feature_metrics(feature, feature, UNITS)
    assert found["representation/tokens"] == 5
    assert found["representation/feature_norm"] == pytest.approx(2.0)


def test_ratios_above_and_below_one() -> None:
    log_ratio = torch.tensor([2 * math.log(3.0), math.log(2.0), 0.0, -math.log(4.0)])
    length = torch.tensor([2, 1, 5, 1])
    found = ratio_metrics(log_ratio, length)
    assert found["representation/ratio_above"] == pytest.approx(2.5)
    assert found["representation/ratio_below"] == pytest.approx((1.0 + 0.25) / 2)
    assert ratio_metrics(log_ratio[:1], length[:1])["representation/ratio_below"] == 1.0


def test_they_are_recorded_at_the_first_steps_of_intervals_and_the_last(tmp_path: Path) -> None:
    settings = {"batch": (BatchStage(size=8),), "epochs": 5.0}
    arm = fine_tune(tmp_path, pairs(), DPO(), record_shapes_every=3, **settings)
    lines = metrics(arm)
    ratios = {"representation/ratio_above", "representation/ratio_below"}
    found = {
        line["step"]: {name for name in line if name.startswith("representation/")}
        for line in lines
    }
    names = NAMES | ratios
    assert found == {1: names, 2: set(), 3: names, 4: set(), 5: names}
    assert lines[0]["representation/ratio_above"] == pytest.approx(1.0, abs=1e-5)
    assert lines[4]["representation/ratio_below"] < lines[0]["representation/ratio_below"]


@pytest.mark.slow
def test_simpo_has_no_ratios(tmp_path: Path) -> None:
    lines = metrics(fine_tune(tmp_path, pairs(), SimPO(), batch=(BatchStage(size=8),), epochs=1.0))
    assert {name for name in lines[0] if name.startswith("representation/")} == NAMES
