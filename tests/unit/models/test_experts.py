"""Blocks with experts: training multiplies densely and masks, decoding multiplies slices, exports are stock classes."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor

from stamm.base.errors import ConfigError, ExportError
from stamm.base.files import write_json
from stamm.export.runtime_support import gguf_reasons, onnx_reasons
from stamm.models.config import (
    DecoderConfig,
    Experts,
    GatedFFN,
    LowRank,
    PlainFFN,
    Recompute,
    SavePre,
)
from stamm.models.decode_step import DecodeStep, run_prompts
from stamm.models.decoder import Decoder, build_decoder
from stamm.models.flops import count_parameters, forward_flops, training_flops
from stamm.models.hf_architecture import hub_class
from stamm.models.hub import HubSpecialIds, hub_config, hub_state, quiet_transformers
from stamm.models.parameter_shapes import parameter_shapes

BLOCKS = {
    "gated": GatedFFN(width=48, experts=Experts(count=6, active=2)),
    "plain": PlainFFN(width=48, experts=Experts(count=6, active=3, shared=1)),
}


def config_of(ffn: PlainFFN | GatedFFN, **options: Any) -> DecoderConfig:
    return DecoderConfig(
        vocab_size=61, d_model=32, num_layers=2, num_heads=4, ffn=ffn, init_std=0.3, **options
    )


def by_hand(decoder: Decoder, layer: int, x_ND: Tensor) -> Tensor:
    """The block's output, expert by expert and token by token, from the definition."""
    block: Any = decoder.model.layers[layer].mlp
    experts = decoder.config.ffn.experts
    assert experts is not None
    width = decoder.config.ffn.width // experts.count
    rows = []
    for x_D in x_ND:
        scores = (block.router.weight @ x_D).tolist()
        best = sorted(range(len(scores)), key=lambda e: -scores[e])[: experts.chosen]
        exponentials = {e: 2.718281828459045 ** scores[e] for e in best}
        weight = {
            experts.shared + e: experts.chosen * value / sum(exponentials.values())
            for e, value in exponentials.items()
        } | dict.fromkeys(range(experts.shared), 1.0)
        y_D = torch.zeros_like(x_D)
        for expert, factor in weight.items():
            own = slice(expert * width, (expert + 1) * width)
            gates = [block.gate_proj] if hasattr(block, "gate_proj") else []
            units = block.act_fn(*(p.weight[own] @ x_D for p in (*gates, block.up_proj)))
            y_D = y_D + factor * (block.down_proj.weight[:, own] @ units)
        rows.append(y_D)
    return torch.stack(rows)


@pytest.mark.parametrize("name", BLOCKS)
@torch.no_grad()
def test_the_block_is_the_weighted_sum_of_its_experts(name: str) -> None:
    decoder = build_decoder(config_of(BLOCKS[name]), seed=1)
    x_ND = torch.randn(9, 32, generator=torch.Generator().manual_seed(0))
    for layer in range(2):
        torch.testing.assert_close(
            decoder.model.layers[layer].mlp(x_ND), by_hand(decoder, layer, x_ND), rtol=1e-4, atol=1e-4
        )  # fmt: skip


@pytest.mark.parametrize("name", BLOCKS)
@torch.no_grad()
def test_decoding_multiplies_the_acting_slices_only(name: str) -> None:
    """Rows choose other experts at the same step; a slice of an expert that does not act is never read."""
    decoder = build_decoder(config_of(BLOCKS[name]), seed=2).double()
    tokens_BT = torch.randint(61, (3, 20), generator=torch.Generator().manual_seed(1))
    whole_BTV = decoder(tokens_BT)
    step = DecodeStep(decoder, 3)
    states = run_prompts(decoder, tokens_BT[:, :4].tolist())
    for row in range(3):
        step.fill(row, states, row)
    for place in range(4, 20):
        torch.testing.assert_close(step(tokens_BT[:, place]), whole_BTV[:, place])
    experts = BLOCKS[name].experts
    assert experts is not None
    assert step.multiplied_experts == 16 * 3 * 2 * experts.active


@torch.no_grad()
def test_all_experts_with_equal_scores_are_the_dense_block() -> None:
    dense = build_decoder(config_of(GatedFFN(width=48)), seed=3)
    experts = config_of(GatedFFN(width=48, experts=Experts(count=6, active=6)))
    decoder = Decoder(experts)
    missing = decoder.load_state_dict(dense.state_dict(), strict=False).missing_keys
    assert {name.rpartition(".router")[2] for name in missing} == {".weight"}
    for layer in decoder.model.layers:
        router: Any = layer.mlp.router
        router.weight.zero_()
    tokens_BT = torch.arange(30)[None]
    logits = dense(tokens_BT)
    torch.testing.assert_close(
        decoder(tokens_BT), logits, rtol=0, atol=1e-6 * float(logits.abs().max())
    )


@pytest.mark.parametrize("memory", [SavePre(), Recompute()])
def test_memory_policies_change_no_gradient(memory: SavePre | Recompute) -> None:
    found = []
    for policy in (None, memory):
        ffn = BLOCKS["gated"] if policy is None else replace(BLOCKS["gated"], memory=policy)
        decoder = build_decoder(config_of(ffn), seed=4)
        decoder(torch.arange(12)[None]).square().sum().backward()
        found.append({n: p.grad for n, p in decoder.named_parameters()})
    router = found[0]["model.layers.0.mlp.router.weight"]
    assert router is not None and float(router.abs().max()) > 0
    for name, gradient in found[0].items():
        assert torch.equal(gradient, found[1][name]), name


def test_counts_and_names_are_the_modules() -> None:
    for ffn in BLOCKS.values():
        config = config_of(ffn)
        decoder = Decoder(config)
        shapes = [(name, tuple(p.shape)) for name, p in decoder.named_parameters()]
        assert list(parameter_shapes(config).items()) == shapes
        assert count_parameters(config).total == sum(p.numel() for p in decoder.parameters())
    matrices, routers = 3 * 32 * 48 * 2, 6 * 32 * 2
    flops = forward_flops(config_of(BLOCKS["gated"]), 7)
    assert flops.ffn == 2 * 7 * (matrices + routers)
    assert flops.ffn_active == 2 * 7 * (matrices // 3 + routers)
    executed = flops.useful - flops.ffn_active + flops.ffn
    assert training_flops(config_of(BLOCKS["gated"]), 7) == 3 * executed


@pytest.mark.parametrize("qk_norm", [True, False])
@torch.no_grad()
def test_logits_are_those_of_the_stock_class(qk_norm: bool, tmp_path: Path) -> None:
    """Where the margin between the last chosen and the first other score is above 1e-5; others are counted."""
    ffn = GatedFFN(width=64, experts=Experts(count=8, active=3))
    decoder = build_decoder(config_of(ffn, qk_norm=qk_norm), seed=6)
    write_json(
        tmp_path / "config.json", hub_config(decoder.config, HubSpecialIds(begin=1, end=2, pad=0))
    )
    state = {name: tensor.clone() for name, tensor in hub_state(decoder).items()}
    save_file(state, tmp_path / "model.safetensors", metadata={"format": "pt"})
    margins: list[Tensor] = []
    for layer in decoder.model.layers:
        router: Any = layer.mlp.router

        def margin(module: Any, inputs: Any, output: Tensor) -> None:
            ordered = (inputs[0] @ module.weight.T).sort(-1, descending=True).values
            margins.append(ordered[..., 2] - ordered[..., 3])

        router.register_forward_hook(margin)
    tokens_BT = torch.randint(61, (4, 60), generator=torch.Generator().manual_seed(2))
    ours = decoder(tokens_BT)
    with quiet_transformers() as transformers:
        theirs, report = transformers.AutoModelForCausalLM.from_pretrained(
            tmp_path, output_loading_info=True
        )
        logits = theirs(tokens_BT).logits
    assert type(theirs).__name__ == ("Qwen3MoeForCausalLM" if qk_norm else "MixtralForCausalLM")
    assert not any(report.values())
    clear_BT = torch.stack(margins).amin(0) > 1e-5
    assert float(clear_BT.double().mean()) > 0.95
    difference = (ours - logits).abs().amax(-1)[clear_BT]
    assert float(difference.max()) <= 1e-5 * float(ours.abs().max())


@pytest.mark.parametrize(
    ("ffn", "options", "what"),
    [
        (BLOCKS["plain"], {}, "no class of transformers has experts without a gate"),
        (GatedFFN(width=48, experts=Experts(count=6, active=3, shared=1)), {}, "no shared experts"),
        (GatedFFN(width=48, activation="xielu_glu", experts=Experts()), {}, "no activation 'xielu_glu'"),
        (BLOCKS["gated"], {"qkv_bias": True, "qk_norm": False}, "no biases"),
    ],
)  # fmt: skip
def test_what_no_class_holds_is_refused(
    ffn: PlainFFN | GatedFFN, options: dict[str, Any], what: str
) -> None:
    with pytest.raises(ExportError, match=what):
        hub_class(config_of(ffn, **options))


def test_other_formats_refuse_experts() -> None:
    config = config_of(BLOCKS["gated"])
    assert "models with experts" in " ".join(gguf_reasons(config))
    assert "no experts" in " ".join(onnx_reasons(config))


@pytest.mark.parametrize(
    ("make", "what"),
    [
        (lambda: GatedFFN(width=50, experts=Experts(count=8)), "does not divide into experts.count = 8"),
        (lambda: Experts(count=4, active=5), "active = 5 is more than count = 4"),
        (lambda: Experts(count=4, active=2, shared=2), "leaves none to choose"),
        (lambda: PlainFFN(linear=LowRank(rank=8), experts=Experts()), "LowRank cannot be divided"),
        (lambda: PlainFFN(shapes="neuron", experts=Experts()), "must be 'layer' with experts"),
    ],
)  # fmt: skip
def test_experts_that_do_not_fit_are_refused(make: Any, what: str) -> None:
    with pytest.raises(ConfigError, match=what):
        make()
