"""LoRA: the same function at first, the gradients of the dense form, the merged decoder, errors."""

from __future__ import annotations

import copy
from dataclasses import replace

import pytest
import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from stamm.base.errors import ConfigError
from stamm.models.config import (
    BlockDense,
    DecoderConfig,
    GatedFFN,
    PlainFFN,
    SelfGuide,
    Structured,
)
from stamm.models.decoder import Decoder, build_decoder
from stamm.models.flops import training_flops
from stamm.models.lora import (
    LoraLinear,
    add_adapters,
    init_adapters,
    is_adapter,
    lora_sizes,
    merged_decoder,
    merged_weights,
)
from stamm.models.lora_config import TARGETS, Lora

PLAIN = DecoderConfig(vocab_size=61, d_model=32, num_layers=2, ffn=PlainFFN(width=48))
GATED = replace(PLAIN, ffn=GatedFFN(width=32), tied_embeddings=True, qk_norm=False)
STRUCTURED = replace(PLAIN, ffn=PlainFFN(width=48, linear=BlockDense(rank=8)))
ATTENTION = ("q_proj", "k_proj", "v_proj", "o_proj")
TOKENS = torch.randint(0, 61, (2, 9), generator=torch.Generator().manual_seed(3))


def _adapted(config: DecoderConfig, lora: Lora, *, trained: bool = True) -> Decoder:
    """A decoder with adapters; `trained`: B has values, too."""
    decoder = build_decoder(config, seed=1)
    add_adapters(decoder, lora)
    init_adapters(decoder, 5)
    if trained:
        draw = torch.Generator().manual_seed(4)
        for name, parameter in decoder.named_parameters():
            if name.endswith("lora_B"):
                parameter.data.normal_(0, 0.1, generator=draw)
    return decoder


def _loss(decoder: nn.Module) -> torch.Tensor:
    logits: torch.Tensor = decoder(TOKENS)
    return logits.logsumexp(-1).square().mean()


@pytest.mark.parametrize("config", [PLAIN, GATED])
def test_the_first_step_computes_the_start_model_to_the_bit(config: DecoderConfig) -> None:
    expected = build_decoder(config, seed=1)(TOKENS)
    adapted = _adapted(config, Lora(rank=4), trained=False)
    assert torch.equal(adapted(TOKENS), expected)
    names = {name.split(".")[-2] for name, _ in adapted.named_parameters() if is_adapter(name)}
    assert names == {t for t in TARGETS if config is GATED or t != "gate_proj"}


def test_parameters_that_are_trained() -> None:
    lora = Lora(rank=4, targets=("v_proj",))
    for train_activation in (False, True):
        adapted = _adapted(PLAIN, replace(lora, train_activation=train_activation))
        trained = {name for name, p in adapted.named_parameters() if p.requires_grad}
        expected = {
            f"model.layers.{n}.self_attn.v_proj.{factor}"
            for n in (0, 1)
            for factor in ("lora_A", "lora_B")
        }
        if train_activation:
            expected |= {
                f"model.layers.{n}.mlp.act_fn.{alpha}"
                for n in (0, 1)
                for alpha in ("alpha_p", "alpha_n")
            }
        assert trained == expected


def test_names_of_frozen_parameters_do_not_change() -> None:
    adapted = _adapted(PLAIN, Lora())
    names = [name for name, _ in adapted.named_parameters() if not is_adapter(name)]
    assert sorted(names) == sorted(name for name, _ in build_decoder(PLAIN, 1).named_parameters())


def test_a_has_the_deviation_of_pefts_and_depends_on_the_seed() -> None:
    decoder = build_decoder(replace(PLAIN, d_model=128, num_layers=1), seed=1)
    add_adapters(decoder, Lora(rank=64, targets=("q_proj",)))
    drawn = []
    for seed in (5, 5, 6):
        init_adapters(decoder, seed)
        drawn.append(dict(decoder.named_parameters())["model.layers.0.self_attn.q_proj.lora_A"] + 0)
    assert torch.equal(drawn[0], drawn[1]) and not torch.equal(drawn[0], drawn[2])
    assert drawn[0].std().item() == pytest.approx((3 * 128) ** -0.5, rel=0.03)


@pytest.mark.parametrize("config", [PLAIN, GATED])
def test_a_merged_decoder_computes_the_same(config: DecoderConfig) -> None:
    lora = Lora(rank=4, alpha=8.0)
    adapted = _adapted(config, lora)
    weights = {name: p.detach() for name, p in adapted.named_parameters()}
    merged = merged_decoder(config, weights, lora)
    assert not any(isinstance(module, LoraLinear) for module in merged.modules())
    expected, found = adapted(TOKENS), merged(TOKENS)
    assert (expected - build_decoder(config, seed=1)(TOKENS)).abs().max() > 1e-2
    torch.testing.assert_close(found, expected, rtol=0, atol=2e-6)


def test_structured_matrices_stay_beside_adapters_of_attention() -> None:
    lora = Lora(rank=4, targets=ATTENTION)
    adapted = _adapted(STRUCTURED, lora)
    weights = {name: p.detach() for name, p in adapted.named_parameters()}
    merged = merged_decoder(STRUCTURED, weights, lora)
    torch.testing.assert_close(merged(TOKENS), adapted(TOKENS), rtol=0, atol=2e-6)


@pytest.mark.parametrize("config", [PLAIN, GATED])
def test_gradients_are_those_of_the_dense_form(config: DecoderConfig) -> None:
    """dL/dA = scale B^T G and dL/dB = scale G A^T, with G the gradient of the merged matrix; float64."""
    lora = Lora(rank=4, alpha=8.0)
    adapted = _adapted(config, lora).double()
    dense = build_decoder(config, seed=1).double()
    matrices = dict(dense.named_parameters())
    for name, module in adapted.named_modules():
        if isinstance(module, LoraLinear):
            product = module.lora_B.detach() @ module.lora_A.detach()
            matrices[f"{name}.weight"].data += lora.scale * product
    _loss(dense).backward()
    _loss(adapted).backward()
    checked = 0
    for name, module in adapted.named_modules():
        if isinstance(module, LoraLinear):
            gradient = matrices[f"{name}.weight"].grad
            assert gradient is not None and module.weight.grad is None
            of_a = lora.scale * module.lora_B.T @ gradient
            of_b = lora.scale * gradient @ module.lora_A.T
            torch.testing.assert_close(module.lora_A.grad, of_a, rtol=1e-9, atol=1e-12)
            torch.testing.assert_close(module.lora_B.grad, of_b, rtol=1e-9, atol=1e-12)
            checked += 1
    assert checked == 2 * (len(TARGETS) - (config is PLAIN))


@pytest.mark.parametrize(
    ("config", "lora", "told"),
    [
        (
            STRUCTURED,
            Lora(),
            r"lora.targets has up_proj, which is a structured matrix \(BlockDense\)",
        ),
        (
            replace(STRUCTURED, structured=Structured(guide=SelfGuide())),
            Lora(targets=ATTENTION),
            "exclude each other",
        ),
        (
            replace(PLAIN, ffn=PlainFFN(width=48, activation="gelu")),
            Lora(train_activation=True),
            "lora.train_activation is set, and gelu has no parameters",
        ),
    ],
)
def test_a_model_that_adapters_do_not_fit_is_refused(
    config: DecoderConfig, lora: Lora, told: str
) -> None:
    with pytest.raises(ConfigError, match=told):
        add_adapters(build_decoder(config, seed=1), lora)


@pytest.mark.parametrize(
    ("values", "told"),
    [
        ({"rank": 0}, r"Lora.rank = 0 must be at least 1"),
        ({"alpha": float("nan")}, r"Lora.alpha = nan must be positive"),
        ({"targets": ()}, r"Lora.targets = \(\) names no matrix"),
        ({"targets": ("q_proj", "lm_head")}, r"has names other than q_proj, .*down_proj"),
        ({"targets": ("q_proj", "q_proj")}, r"names a matrix twice"),
    ],
)
def test_a_wrong_setting_is_refused(values: dict[str, object], told: str) -> None:
    with pytest.raises(ConfigError, match=told):
        Lora(**values)  # type: ignore[arg-type]


@pytest.mark.parametrize("config", [PLAIN, GATED])
def test_gradients_of_frozen_matrices_are_no_flops(config: DecoderConfig) -> None:
    """Against torch's count. Gradients of the first layer's inputs, which it leaves out, are ours."""

    def counted(decoder: Decoder) -> int:
        with FlopCounterMode(display=False) as counter:
            _loss(decoder).backward()
        return int(counter.get_total_flops())

    config = replace(config, num_layers=8)
    whole, adapted = build_decoder(config, seed=1), _adapted(config, Lora(rank=2))
    assert lora_sizes(whole) == {"frozen": 0, "adapters": 0}
    sizes = lora_sizes(adapted)
    matrices = sum(p.numel() for p in whole.parameters() if p.ndim > 1)
    embedding = 0 if config.tied_embeddings else whole.model.embed_tokens.weight.numel()
    assert sizes["frozen"] == matrices - embedding
    ratio = training_flops(config, 9, **sizes) / training_flops(config, 9)
    assert counted(adapted) / counted(whole) == pytest.approx(ratio, rel=0.05)
    assert ratio < 0.85


@pytest.mark.parametrize(("rows", "columns", "length"), [(16, 24, 5), (128, 896, 90)])
def test_a_base_in_bfloat16_gives_the_bits_of_float32(rows: int, columns: int, length: int) -> None:
    """Products, gradients and the merged matrix; the base itself stays in 16 bits, also in the graph."""
    torch.manual_seed(1)
    linear = torch.nn.Linear(columns, rows)
    linear.weight.data = linear.weight.data.bfloat16().float()
    linear.requires_grad_(requires_grad=False)
    wide, narrow = (LoraLinear(copy.deepcopy(linear), Lora(rank=4)) for _ in range(2))
    drawn = torch.randn(4, columns), torch.randn(rows, 4)
    for module in (wide, narrow):
        for parameter, values in zip((module.lora_A, module.lora_B), drawn, strict=True):
            parameter.data.copy_(values)
    narrow.weight.data = narrow.weight.data.bfloat16()
    x = torch.randn(3, length, columns)
    results = []
    for module in (wide, narrow):
        given = x.clone().requires_grad_()
        y = module(given)
        y.square().sum().backward()
        results.append((y, given.grad, module.lora_A.grad, module.lora_B.grad))
    for ours, theirs in zip(*results, strict=True):
        assert ours is not None
        assert theirs is not None
        assert torch.equal(ours, theirs)
    assert narrow.weight.dtype == torch.bfloat16
    merged = [
        merged_weights(
            {f"up.{name}": value for name, value in module.state_dict().items()}, Lora(rank=4)
        )
        for module in (wide, narrow)
    ]
    assert torch.equal(merged[0]["up.weight"], merged[1]["up.weight"])
