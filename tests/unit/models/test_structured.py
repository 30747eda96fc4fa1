"""Structured feed-forward matrices: the op is a matrix, guides withdraw, counts are exact."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from stamm.base.config import from_plain, override, to_plain
from stamm.base.errors import ConfigError, ExportError
from stamm.engine.config import EngineConfig, Parallel
from stamm.engine.distributed import DistributedContext
from stamm.engine.estimate import parse_devices
from stamm.engine.parallel import apply_tensor_parallel
from stamm.models.config import (
    BlockDense,
    BlockShuffle,
    DecoderConfig,
    Dense,
    GatedFFN,
    LowRank,
    MemoryPolicy,
    PlainFFN,
    Recompute,
    SavePost,
    SavePre,
    SelfGuide,
    Structured,
)
from stamm.models.decoder import Decoder, build_decoder
from stamm.models.ffn import build_ffn
from stamm.models.flops import (
    count_parameters,
    ffn_cost,
    forward_flops,
    guide_flops,
    guide_parameters,
    training_flops,
)
from stamm.models.hf_architecture import hub_class
from stamm.models.hub import HubSpecialIds, hub_config, hub_state
from stamm.models.hub_folder import load_hub
from stamm.models.linear import StructuredLinear, structured_linears
from stamm.models.serialization import load_decoder, save_decoder
from stamm.pretrain.config import PretrainConfig
from stamm.pretrain.plan import plan

Form = LowRank | BlockDense | BlockShuffle
FORMS: tuple[Form, ...] = (LowRank(rank=8), BlockDense(blocks=4, rank=16), BlockShuffle(blocks=4))
SHAPES = ((32, 48), (48, 32), (32, 32))
GUIDE = SelfGuide(reduce_flop=False)
SMALL = DecoderConfig(
    vocab_size=64, d_model=32, num_layers=3, ffn=PlainFFN(width=48), max_context=64
)


def _config(form: Form, *, gated: bool = False, guide: SelfGuide | None = None) -> DecoderConfig:
    ffn = GatedFFN(width=48, linear=form) if gated else PlainFFN(width=48, linear=form)
    return replace(SMALL, ffn=ffn, structured=Structured(guide=guide))


def _linear(form: Form, inputs: int, outputs: int, seed: int = 0) -> StructuredLinear:
    linear = StructuredLinear(form, inputs, outputs)
    generator = torch.Generator().manual_seed(seed)
    linear.initialise("w", lambda _, shape: torch.randn(tuple(shape), generator=generator), 0.02)
    return linear


def _tokens(rows: int = 2, length: int = 20) -> Tensor:
    return torch.randint(0, 64, (rows, length), generator=torch.Generator().manual_seed(0))


def _diagonal(factor: Tensor, blocks: int) -> Tensor:
    return torch.block_diag(*factor.double().chunk(blocks))


def _shuffle(size: int, blocks: int) -> Tensor:
    """The matrix that puts number i * blocks + b at place b * (size / blocks) + i."""
    moved = torch.zeros(size, size, dtype=torch.float64)
    for i in range(size // blocks):
        for b in range(blocks):
            moved[b * (size // blocks) + i, i * blocks + b] = 1
    return moved


def _written_out(linear: StructuredLinear) -> Tensor:
    """The factors as a matrix, from the definition: block-diagonal matrices and permutations."""
    form, first, second = linear.form, linear.first.detach(), linear.second.detach()
    if isinstance(form, LowRank):
        return second.double() @ first.double()
    d1 = _diagonal(first, form.blocks)
    if isinstance(form, BlockDense):
        return second.double() @ d1
    d2 = _diagonal(second, form.blocks)
    gathered = _shuffle(d1.shape[0], form.blocks) @ d1
    return _shuffle(d2.shape[0], form.blocks).T @ d2 @ gathered


@pytest.mark.parametrize(("inputs", "outputs"), SHAPES)
@pytest.mark.parametrize("form", FORMS)
def test_the_op_is_its_matrix(form: Form, inputs: int, outputs: int) -> None:
    linear = _linear(form, inputs, outputs)
    expected = _written_out(linear)
    assert torch.equal(linear.dense_weight(), expected.float())
    x = torch.randn(3, 5, inputs, generator=torch.Generator().manual_seed(1))
    torch.testing.assert_close(linear(x).double(), x.double() @ expected.T, rtol=1e-4, atol=1e-5)
    assert linear(x[0, 0]).shape == (outputs,)
    assert linear(x[:0]).shape == (0, 5, outputs)
    strided = linear(x.transpose(0, 1).contiguous().transpose(0, 1))
    torch.testing.assert_close(strided, linear(x), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("form", FORMS)
def test_gradients_are_those_of_the_matrix(form: Form) -> None:
    linear = _linear(form, 32, 48).double()
    x = torch.randn(2, 3, 32, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(
        lambda x, *_: linear(x), (x, *linear.parameters()), fast_mode=True
    )


@pytest.mark.parametrize(("inputs", "outputs"), SHAPES)
def test_a_shuffle_reaches_every_output_from_every_input(inputs: int, outputs: int) -> None:
    """The product of the blocks without their permutations, as the release guided by, does not."""
    linear = _linear(BlockShuffle(blocks=2), inputs, outputs)
    true = linear.dense_weight().double()
    unshuffled = _diagonal(linear.second, 2) @ _diagonal(linear.first, 2)
    assert (true != 0).all()
    assert (unshuffled == 0).sum() * 2 == unshuffled.numel()
    assert not torch.allclose(true, unshuffled, atol=1e-3)


def test_low_rank_starts_from_the_dense_arms_matrix() -> None:
    form = LowRank(rank=8)
    dense = build_decoder(SMALL, seed=3)
    low = build_decoder(_config(form), seed=3)
    name = "model.layers.1.mlp.up_proj"
    a = dense.get_parameter(f"{name}.weight").double()
    found = low.get_submodule(name)
    assert isinstance(found, StructuredLinear)
    values = torch.linalg.svdvals(a)
    missing = (found.dense_weight() - a).square().sum()
    assert missing.item() == pytest.approx(values[8:].square().sum().item(), rel=1e-5)
    # The singular values are shared between the factors by their roots.
    for gram in (found.first @ found.first.T, found.second.T @ found.second):
        torch.testing.assert_close(gram, values[:8].diag().float(), rtol=1e-4, atol=1e-6)
    # Signs are nobody's choice: the largest number of each row is positive, whatever library it is.
    largest = found.first.abs().argmax(dim=1, keepdim=True)
    assert (found.first.gather(1, largest) > 0).all()
    other = "model.layers.1.self_attn.q_proj.weight"
    assert torch.equal(dense.get_parameter(other), low.get_parameter(other))


@pytest.mark.parametrize("form", FORMS[1:])
def test_blocks_start_orthonormal(form: BlockDense | BlockShuffle) -> None:
    linear = _linear(form, 32, 48)
    second = form.blocks if isinstance(form, BlockShuffle) else 1
    for factor, blocks in ((linear.first, form.blocks), (linear.second, second)):
        values = torch.linalg.svdvals(factor.detach().view(blocks, -1, factor.shape[1]))
        torch.testing.assert_close(values, torch.ones_like(values))


@pytest.mark.parametrize("form", FORMS)
def test_a_seed_gives_the_same_numbers(form: Form) -> None:
    first, again, other = (
        build_decoder(_config(form), seed=seed).state_dict() for seed in (3, 3, 4)
    )
    assert all(torch.equal(first[name], again[name]) for name in first)
    name = "model.layers.1.mlp.up_proj.first"
    assert not torch.equal(first[name], other[name])
    assert not torch.equal(first[name], first["model.layers.2.mlp.up_proj.first"])


def test_the_first_layer_stays_dense_unless_told() -> None:
    config = _config(LowRank(rank=8), gated=True)
    kept = Decoder(config)
    whole = Decoder(replace(config, structured=Structured(keep_first=False)))
    assert [len(structured_linears(layer)) for layer in kept.model.layers] == [0, 3, 3]
    assert [len(structured_linears(layer)) for layer in whole.model.layers] == [3, 3, 3]


@pytest.mark.parametrize("gated", [False, True])
@pytest.mark.parametrize("form", FORMS)
def test_counts_equal_the_module(form: Form, gated: bool) -> None:
    config = _config(form, gated=gated, guide=GUIDE)
    tokens, length = _tokens(1, 24), 24
    with torch.device("meta"), FlopCounterMode(display=False) as counter:
        Decoder(config)(tokens.to("meta"))
    decoder = build_decoder(config, seed=1)
    own = sum(p.numel() for p in decoder.parameters())
    assert count_parameters(config).total == own
    assert forward_flops(config, length).executed == counter.get_total_flops()
    decoder.add_guides()
    assert guide_parameters(config) == sum(p.numel() for p in decoder.parameters()) - own
    totals = []
    for step in (1, 51):
        decoder.begin_step(step, 100, seed=0)
        with FlopCounterMode(display=False) as counter:
            decoder(tokens).sum().backward()
        totals.append(counter.get_total_flops())
    assert totals[0] - totals[1] == 2 * guide_flops(config, length)
    masked = forward_flops(config, length)
    assert training_flops(config, length) == 3 * masked.useful
    assert guide_parameters(_config(form)) == guide_flops(_config(form), length) == 0


@pytest.mark.parametrize(
    ("memory", "activation"),
    [(SavePost(), "xielu"), (SavePre(), "xielu"), (Recompute(), "xielu")],
)
@pytest.mark.parametrize("gated", [False, True])
@pytest.mark.parametrize("form", FORMS)
def test_a_block_keeps_and_multiplies_what_is_counted(
    form: Form, gated: bool, memory: MemoryPolicy, activation: str
) -> None:
    ffn: PlainFFN | GatedFFN = (
        GatedFFN(width=96, memory=memory, linear=form)
        if gated
        else PlainFFN(width=96, activation=activation, memory=memory, linear=form)
    )
    block = build_ffn(64, ffn)
    for _, linear in structured_linears(block):
        for parameter in linear.parameters():
            nn.init.normal_(parameter)
    cost = ffn_cost(64, ffn, 4)
    short, long = (_kept_bytes(block, tokens) for tokens in (400, 912))
    assert long - short == 512 * cost.saved_bytes
    with FlopCounterMode(display=False) as counter:
        block(torch.randn(2, 40, 64, requires_grad=True)).sum().backward()
    assert counter.get_total_flops() == 80 * cost.flops
    dense = ffn_cost(64, replace(ffn, linear=Dense()), 4)
    assert dense.flops == dense.products * 2 * 64 * 96


def _kept_bytes(block: nn.Module, tokens: int) -> int:
    kept: dict[int, Tensor] = {}
    parameters = {p.untyped_storage().data_ptr() for p in block.parameters()}

    def pack(tensor: Tensor) -> Tensor:
        place = tensor.untyped_storage().data_ptr()
        if place not in parameters:
            kept[place] = tensor
        return tensor

    x = torch.randn(1, tokens, 64, requires_grad=True)
    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        y = block(x)
    total = sum(tensor.untyped_storage().nbytes() for tensor in kept.values())
    del y
    return total


@pytest.mark.parametrize(
    ("d_model", "form", "percent"),
    [
        (768, LowRank(rank=384), 62.5),
        (768, LowRank(rank=192), 31.25),
        (1536, BlockShuffle(blocks=2), 62.5),
        (1536, BlockShuffle(blocks=4), 31.25),
        (768, BlockDense(blocks=2, rank=512), 62.5),
        (1024, BlockDense(blocks=4, rank=768), 58.59375),
        (1536, BlockDense(blocks=2, rank=1024), 62.5),
        (2048, BlockDense(blocks=4, rank=1536), 58.59375),
        (2048, BlockDense(blocks=4, rank=768), 29.296875),
    ],
)
def test_the_published_budgets(d_model: int, form: Form, percent: float) -> None:
    up = form.parameters(d_model, 4 * d_model)
    down = form.parameters(4 * d_model, d_model)
    assert 100 * (up + down) / (8 * d_model**2) == percent


@pytest.mark.parametrize(
    ("form", "ffn_millions", "millions"),
    [
        (Dense(), 805, 1274),
        (LowRank(rank=1024), 516, 985),
        (BlockDense(blocks=4, rank=1536), 486, 955),
        (BlockShuffle(blocks=2), 516, 985),
        (LowRank(rank=512), 275, 744),
        (BlockDense(blocks=4, rank=768), 260, 728),
        (BlockShuffle(blocks=4), 275, 744),
    ],
)
def test_the_published_sizes(form: Form | Dense, ffn_millions: int, millions: int) -> None:
    """Wei et al. 2024, Transformer-xl; theirs has biases besides, 0.65 million."""
    config = DecoderConfig(
        vocab_size=32_000,
        d_model=2048,
        num_layers=24,
        num_heads=16,
        num_kv_heads=16,
        ffn=PlainFFN(width=8192, activation="gelu", linear=form),
        tied_embeddings=True,
    )
    found = count_parameters(config)
    assert round(found.ffn / 1e6) == ffn_millions
    assert found.total / 1e6 == pytest.approx(millions, abs=1.1)


@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("gated", [False, True])
@pytest.mark.parametrize("form", FORMS)
def test_a_merged_decoder_says_the_same(form: Form, gated: bool, tied: bool) -> None:
    config = replace(_config(form, gated=gated, guide=GUIDE), tied_embeddings=tied)
    decoder = build_decoder(config, seed=2).eval()
    decoder.add_guides()
    merged = decoder.merged()
    assert merged.config == replace(
        config, ffn=replace(config.ffn, linear=Dense()), structured=Structured()
    )
    assert not structured_linears(merged) and not merged.training
    assert len(list(merged.parameters())) == len(list(Decoder(merged.config).parameters()))
    torch.testing.assert_close(merged(_tokens()), decoder(_tokens()), rtol=1e-4, atol=1e-5)
    assert merged.merged() is merged
    exact = decoder.double()
    torch.testing.assert_close(exact.merged()(_tokens()), exact(_tokens()), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("form", FORMS)
def test_a_structured_decoder_is_exported_merged(form: Form, tmp_path: Path) -> None:
    from safetensors.torch import save_file

    decoder = build_decoder(_config(form), seed=2).eval()
    with pytest.raises(
        ExportError, match=rf"has matrices of the form {type(form).__name__}.*merged"
    ):
        hub_class(decoder.config)
    merged = decoder.merged()
    plain = hub_config(merged.config, HubSpecialIds(begin=1, end=2, pad=3))
    (tmp_path / "config.json").write_text(json.dumps(plain))
    save_file(hub_state(merged), tmp_path / "model.safetensors")
    assert plain["architectures"] == ["ApertusForCausalLM"]
    assert torch.equal(load_hub(tmp_path)(_tokens()), merged(_tokens()))


@pytest.mark.parametrize("form", FORMS)
def test_a_stored_structured_decoder_comes_back(form: Form, tmp_path: Path) -> None:
    decoder = build_decoder(_config(form, gated=True, guide=SelfGuide()), seed=5)
    alone = decoder.eval()(_tokens())
    decoder.add_guides()
    save_decoder(decoder, tmp_path)
    assert not [name for name in load_file(tmp_path / "model.safetensors") if "guide" in name]
    loaded = load_decoder(tmp_path)
    assert loaded.config == decoder.config
    assert torch.equal(loaded(_tokens()), alone)


def test_names_and_sizes_suit_sharding_by_rows() -> None:
    """Every matrix has as many rows as outputs: it divides over many processes, not over blocks."""
    decoder = build_decoder(_config(BlockShuffle(blocks=4), guide=GUIDE), seed=1)
    decoder.add_guides()
    found = {
        name.rpartition("model.layers.1.mlp.")[2]: tuple(p.shape)
        for name, p in decoder.named_parameters()
        if "layers.1.mlp" in name and p.dim() > 1
    }
    assert found == {
        "up_proj.first": (32, 8),
        "up_proj.second": (48, 8),
        "up_proj.guide": (48, 32),
        "down_proj.first": (32, 12),
        "down_proj.second": (32, 8),
        "down_proj.guide": (32, 48),
    }


@pytest.mark.parametrize(
    ("ffn", "words"),
    [
        (PlainFFN(width=48, linear=LowRank(rank=20)), "rank = 20 saves nothing"),
        (PlainFFN(width=48, linear=LowRank(rank=20)), "it may be at most 19"),
        (PlainFFN(width=48, linear=BlockDense(blocks=3, rank=9)), "does not divide d_model = 32"),
        (PlainFFN(width=50, linear=BlockDense(blocks=4, rank=8)), "does not divide width = 50"),
        (PlainFFN(width=48, linear=BlockDense(blocks=4, rank=28)), "rank = 28 saves nothing"),
        (PlainFFN(width=48, linear=BlockShuffle(blocks=8)), "do not depend on all inputs"),
        (PlainFFN(width=32, linear=BlockShuffle(blocks=2)), "blocks = 2 saves nothing"),
    ],
)
def test_matrices_that_do_not_fit_are_refused(ffn: PlainFFN, words: str) -> None:
    with pytest.raises(ConfigError) as caught:
        replace(SMALL, ffn=ffn)
    assert words in caught.value.line()


def test_other_nonsense_is_refused() -> None:
    with pytest.raises(ConfigError, match="does not divide into blocks = 4"):
        BlockDense(blocks=4, rank=6)
    with pytest.raises(ConfigError, match="at least 2"):
        BlockShuffle(blocks=1)
    with pytest.raises(ConfigError, match="rank = 0 must be at least 1"):
        LowRank(rank=0)
    with pytest.raises(ConfigError, match=r"must lie in \(0, 1\]"):
        SelfGuide(until_share=0.0)
    with pytest.raises(ConfigError, match="does not use"):
        replace(SMALL, structured=Structured(guide=SelfGuide()))
    with pytest.raises(ConfigError, match="leaves no structured layer"):
        replace(_config(LowRank(rank=8)), num_layers=1)


def test_a_command_line_chooses_them() -> None:
    config = override(
        SMALL,
        [
            "ffn.linear=BlockDense",
            "ffn.linear.rank=16",
            "structured.guide=SelfGuide",
            "structured.guide.law=linear",
        ],
    )
    assert config.ffn.linear == BlockDense(rank=16)
    assert config.structured == Structured(guide=SelfGuide(law="linear"))
    assert from_plain(DecoderConfig, json.loads(json.dumps(to_plain(config)))) == config


@pytest.mark.parametrize("form", FORMS)
def test_rows_of_neurons_are_not_cut_from_them_and_a_plan_says_so_in_the_words_of_a_run(
    form: Form,
) -> None:
    config = _config(form)
    # It is refused before the grid is looked at: any object stands for one.
    world = DistributedContext(torch.device("cpu"), size=2, tensor=2, mesh=object())  # type: ignore[arg-type]
    engine = EngineConfig(parallel=Parallel(tensor=2))
    with pytest.raises(ConfigError) as caught:
        apply_tensor_parallel(Decoder(config), world, engine)
    assert caught.value.line() == (
        f"engine.parallel.tensor = 2 cannot split {type(form).__name__} matrices."
        " Divide the work over engine.parallel.data or context."
    )
    run = PretrainConfig(model=config, context=64, sequences=64, engine=engine)
    told = [f"{w['what']}. {w['fix']}." for w in plan(run, parse_devices("2xH100"))["warnings"]]
    assert told.count(caught.value.line()) == 1
