"""Self-guided training: dense guides start as what they guide, withdraw on time, and are drawn alike."""

from __future__ import annotations

import itertools
from dataclasses import replace

import pytest
import torch
from torch import Tensor
from torch._dynamo.testing import CompileCounterWithBackend

from stamm.base.errors import ConfigError
from stamm.models.config import (
    BlockDense,
    BlockShuffle,
    DecoderConfig,
    GatedFFN,
    LowRank,
    PlainFFN,
    SelfGuide,
    Structured,
)
from stamm.models.decoder import build_decoder
from stamm.models.guide_draws import guide_uses, uses_guide
from stamm.models.linear import StructuredLinear, structured_linears
from stamm.models.self_guide import expected_guide_uses, guide_weight, guided_steps
from stamm.optim.build import build_optimizer
from stamm.optim.config import AdamW

Form = LowRank | BlockDense | BlockShuffle
FORMS: tuple[Form, ...] = (LowRank(rank=8), BlockDense(blocks=4, rank=16), BlockShuffle(blocks=4))
GUIDE = SelfGuide(reduce_flop=False)
SMALL = DecoderConfig(
    vocab_size=64, d_model=32, num_layers=3, ffn=PlainFFN(width=48), max_context=64
)


def _config(form: Form, *, gated: bool = False, guide: SelfGuide | None = None) -> DecoderConfig:
    ffn = GatedFFN(width=48, linear=form) if gated else PlainFFN(width=48, linear=form)
    return replace(SMALL, ffn=ffn, structured=Structured(guide=guide))


def _tokens(rows: int = 2, length: int = 20) -> Tensor:
    return torch.randint(0, 64, (rows, length), generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize("gated", [False, True])
@pytest.mark.parametrize("form", FORMS)
def test_a_guide_changes_nothing_at_first(form: Form, gated: bool) -> None:
    """At step 1 the guides alone speak, and say what the factors would; half way both do."""
    decoder = build_decoder(_config(form, gated=gated, guide=GUIDE), seed=1).double()
    alone = decoder(_tokens())
    decoder.add_guides()
    decoder.begin_step(1, 100, seed=0)
    torch.testing.assert_close(decoder(_tokens()), alone, rtol=1e-12, atol=1e-12)
    guides = [linear.guide for _, linear in structured_linears(decoder)]
    for guide in guides:
        assert guide is not None
        guide.data.mul_(2.0)
    first, half, over = [], [], []
    for step, seen in ((1, first), (26, half), (51, over)):
        decoder.begin_step(step, 100, seed=0)
        for _, linear in structured_linears(decoder):
            x = torch.ones(linear.in_features, dtype=torch.float64)
            seen.append((linear(x) / (linear.dense_weight() @ x)).mean())
    for seen, factor in ((first, 2.0), (half, 1.5), (over, 1.0)):
        torch.testing.assert_close(torch.stack(seen), torch.full((len(seen),), factor).double())


@pytest.mark.parametrize("form", FORMS)
def test_evaluation_measures_the_structured_matrix(form: Form) -> None:
    decoder = build_decoder(_config(form, guide=GUIDE), seed=1)
    alone = decoder(_tokens())
    decoder.add_guides()
    decoder.begin_step(1, 100, seed=0)
    for _, linear in structured_linears(decoder):
        assert linear.guide is not None
        linear.guide.data.zero_()
    assert torch.equal(decoder.eval()(_tokens()), alone)
    assert not torch.equal(decoder.train()(_tokens()), alone)


def test_the_factors_learn_as_the_guide_withdraws() -> None:
    """At a = 1 their gradient is exactly zero; without the guide in the step, the guide has none."""
    decoder = build_decoder(_config(LowRank(rank=8), guide=GUIDE), seed=1)
    decoder.add_guides()
    linear = decoder.get_submodule("model.layers.1.mlp.up_proj")
    assert isinstance(linear, StructuredLinear) and linear.guide is not None
    sizes = []
    for step in (1, 25, 51):
        decoder.begin_step(step, 100, seed=0)
        decoder.zero_grad()
        decoder(_tokens()).square().sum().backward()
        sizes.append([p.grad if p.grad is None else p.grad.norm() for p in linear.parameters()])
    (first, second, guide), mixed, (*_, after) = sizes
    assert first == second == 0 and guide > 0
    assert all(size > 0 for size in mixed)
    assert after is None


def test_the_weight_falls_from_one_to_zero() -> None:
    for law in ("cosine", "linear"):
        guide = SelfGuide(law=law)  # type: ignore[arg-type]
        weights = [guide_weight(guide, step, 200) for step in range(1, 202)]
        assert guided_steps(guide, 200) == 100
        assert weights[0] == 1.0
        assert weights[50] == pytest.approx(0.5)
        assert weights[100:] == [0.0] * 101
        assert all(a > b for a, b in itertools.pairwise(weights[:101]))
        # Both laws are point-symmetric, so reducing FLOP saves the same half.
        assert sum(weights) == pytest.approx(50.5)
    assert guide_weight(SelfGuide(), 26, 100) == pytest.approx(0.5)
    assert guide_weight(SelfGuide(law="linear"), 11, 100) == pytest.approx(0.8)
    assert guide_weight(None, 1, 100) == 0.0
    assert guided_steps(SelfGuide(until_share=0.29), 100) == 29
    assert guide_weight(SelfGuide(until_share=0.1), 1, 3) == 0.0  # no step at all
    assert guide_weight(SelfGuide(until_share=1.0), 100, 100) > 0


def test_draws_follow_the_weight() -> None:
    guide = SelfGuide(until_share=1.0)
    steps, layers = 400, 30
    drawn = [
        [uses_guide(guide, layer, step, steps, seed=7) for layer in range(layers)]
        for step in range(1, steps + 1)
    ]
    for start in range(0, steps, 100):
        hundred = [used for row in drawn[start : start + 100] for used in row]
        mean = sum(guide_weight(guide, start + k + 1, steps) for k in range(100)) / 100
        assert abs(sum(hundred) / len(hundred) - mean) < 4 * 0.5 / len(hundred) ** 0.5
    # Layers, steps and seeds draw apart from each other.
    middle = drawn[150:250]
    assert len({tuple(row) for row in middle}) == 100
    assert len({tuple(column) for column in zip(*middle, strict=True)}) == layers
    other = [uses_guide(guide, 0, step, steps, seed=8) for step in range(150, 250)]
    assert other != [row[0] for row in drawn[149:249]]
    assert all(uses_guide(replace(guide, reduce_flop=False), 0, step, 400, 7) for step in (1, 400))


def test_every_process_and_library_draws_this() -> None:
    """SplitMix64 in whole numbers: no release of numpy or torch changes who is guided."""

    def mix(z: int) -> int:
        z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9 % 2**64
        z = (z ^ z >> 27) * 0x94D049BB133111EB % 2**64
        return z ^ z >> 31

    for seed in (0, 2026, 2**63 + 5):
        for layer in range(24):
            state = seed ^ int.from_bytes(b"SGUIDE", "big")
            for part in (51, layer):
                state = mix((mix(state) + part + 0x9E3779B97F4A7C15) % 2**64)
            used = uses_guide(SelfGuide(until_share=1.0), layer, 51, 100, seed)
            assert used == (state / 2**64 < 0.5)


def test_uses_are_counted_and_expected() -> None:
    config = replace(_config(LowRank(rank=8), guide=SelfGuide()), num_layers=9)
    uses = [guide_uses(config, step, 400, seed=1) for step in range(1, 401)]
    assert uses[0] == 8 and uses[200:] == [0] * 200
    expected = sum(expected_guide_uses(config, step, 400) for step in range(1, 401))
    assert expected == pytest.approx(8 * 100.5)
    assert sum(uses) == pytest.approx(expected, rel=0.1)
    always = replace(config, structured=Structured(guide=GUIDE, keep_first=False))
    assert guide_uses(always, 200, 400, seed=1) == expected_guide_uses(always, 200, 400) == 9
    decoder = build_decoder(config, seed=1)
    decoder.add_guides()
    for step in (1, 40, 90, 150, 201):
        decoder.begin_step(step, 400, seed=1)
        guided = sum(linear.guided for _, linear in structured_linears(decoder))
        assert guided == 2 * uses[step - 1]


def test_a_guided_step_without_guides_is_refused() -> None:
    decoder = build_decoder(_config(LowRank(rank=8), guide=GUIDE), seed=1)
    with pytest.raises(ConfigError, match="step 50 of 100 is self-guided"):
        decoder.begin_step(50, 100, seed=0)
    decoder.begin_step(51, 100, seed=0)
    build_decoder(SMALL, seed=1).begin_step(1, 100, seed=0)


def test_dropping_guides_leaves_what_was_learned() -> None:
    config = _config(BlockShuffle(blocks=4), guide=GUIDE)
    decoder = build_decoder(config, seed=1)
    names = set(decoder.state_dict())
    decoder.add_guides()
    optimizer = build_optimizer(AdamW(), decoder, 10)
    for step in (1, 2, 3):
        decoder.begin_step(step, 6, seed=0)
        decoder(_tokens()).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    decoder.begin_step(4, 6, seed=0)
    before = decoder(_tokens())
    decoder.drop_guides()
    assert set(decoder.state_dict()) == names
    assert torch.equal(decoder(_tokens()), before)
    decoder.begin_step(5, 6, seed=0)
    decoder.drop_guides()  # a second time is no error
    assert not torch.equal(before, build_decoder(config, seed=1)(_tokens()))


@pytest.mark.parametrize(
    ("form", "backend"), [(FORMS[0], "eager"), (FORMS[1], "eager"), (FORMS[2], "aot_eager")]
)
def test_guided_layers_compile_whole_and_once(form: Form, backend: str) -> None:
    """Two compilations: with the guide and without. A new weight of it needs none."""
    config = replace(_config(form, guide=SelfGuide()), num_layers=4)
    decoder = build_decoder(config, seed=1)
    decoder.add_guides()
    torch._dynamo.reset()
    counter = CompileCounterWithBackend(backend)
    for layer in decoder.model.layers[1:]:
        layer.compile(fullgraph=True, backend=counter)
    eager = build_decoder(config, seed=1)
    eager.add_guides()
    used = []
    for step in range(1, 21):
        for model in (decoder, eager):
            model.begin_step(step, 30, seed=0)
        used.append(guide_uses(config, step, 30, seed=0))
        y = decoder(_tokens())
        torch.testing.assert_close(y, eager(_tokens()), rtol=1e-5, atol=1e-6)
        y.sum().backward()
    assert {0, 3} < set(used)  # none, all and some layers guided
    assert counter.frame_count == 2
    decoder.drop_guides()
    torch.testing.assert_close(decoder(_tokens()), eager(_tokens()), rtol=1e-5, atol=1e-6)
    assert counter.frame_count == 3
