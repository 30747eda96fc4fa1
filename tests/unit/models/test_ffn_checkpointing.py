"""Memory policies of the feed-forward block: the same bits, what is kept, what is multiplied."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint
from torch.utils.flop_counter import FlopCounterMode

from stamm.activations import catalog
from stamm.activations.codegen.kernel_lookup import kernel_of
from stamm.activations.describe import certificate
from stamm.activations.module import build_activation
from stamm.activations.spec import Spec
from stamm.base.config import from_plain, override, to_plain
from stamm.base.errors import ConfigError
from stamm.engine.estimate import estimate_memory
from stamm.models.config import (
    DecoderConfig,
    FewBit,
    GatedFFN,
    MemoryPolicy,
    PlainFFN,
    Recompute,
    SavePost,
    SavePre,
    few_bit_refusal,
)
from stamm.models.few_bit import QuantizedSlope, _packed, _unpacked, coded, quantized_slope
from stamm.models.ffn import build_ffn
from stamm.models.flops import ffn_cost
from stamm.optim.config import AdamW
from stamm.pretrain.plan import plan
from stamm.recipes.demo import demo

pytestmark = pytest.mark.slow  # compiles layers

FFN = PlainFFN | GatedFFN
D = 64
FFNS: tuple[FFN, ...] = (
    PlainFFN(width=96, activation="xielu"),
    PlainFFN(width=96, activation="xielu", compat="eps"),
    PlainFFN(width=92, activation="silu"),
    GatedFFN(width=92, activation="swiglu"),
    GatedFFN(width=96, activation="xielu_glu"),
)
FIXED: tuple[FFN, ...] = (
    PlainFFN(width=92, activation="silu"),
    GatedFFN(width=92, activation="swiglu"),
)
EXACT: tuple[MemoryPolicy, ...] = (SavePre(), Recompute())
POLICIES: tuple[MemoryPolicy, ...] = (SavePost(), *EXACT, FewBit(bits=2), FewBit(bits=5))
# FewBit refuses the others: their shapes are trained.
CASES = [(f, m) for f in FFNS for m in POLICIES if f in FIXED or not isinstance(m, FewBit)]
DTYPES = (torch.float32, torch.bfloat16)
# Tokens below and above the size from which one compiled pass computes an activation.
SIZES = (24, 512)


def _block(ffn: FFN, memory: MemoryPolicy, dtype: torch.dtype = torch.float32) -> nn.Module:
    """A block whose pre-activations are N(0, 1) for inputs that are."""
    block = build_ffn(D, replace(ffn, memory=memory))
    generator = torch.Generator().manual_seed(1)
    for weight in block.parameters():
        if weight.dim() == 2:
            drawn = torch.empty(weight.shape).normal_(generator=generator)
            weight.data.copy_(drawn / weight.shape[1] ** 0.5)
    return block.to(dtype)


def _drawn(seed: int, rows: int, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.randn(rows, D, generator=torch.Generator().manual_seed(seed)).to(dtype)


def _trained(
    block: nn.Module,
    rows: int,
    dtype: torch.dtype,
    run: Callable[[Tensor], Tensor] | None = None,
) -> list[Tensor]:
    """The output and every gradient, of the input too, after two accumulated backward passes."""
    block.zero_grad(set_to_none=True)
    for seed in (2, 3):
        x = _drawn(seed, rows, dtype).requires_grad_()
        y = (block if run is None else run)(x)
        y.backward(_drawn(seed + 10, rows).to(y.dtype))
    assert x.grad is not None
    return [y.detach(), x.grad, *(p.grad for p in block.parameters() if p.grad is not None)]


def _same(left: list[Tensor], right: list[Tensor]) -> bool:
    return len(left) == len(right) and all(map(torch.equal, left, right))


def _total(ffn: FFN) -> int:
    """The output, the input's gradient and one for each parameter."""
    return 2 + sum(1 for _ in build_ffn(D, ffn).parameters())


@pytest.mark.parametrize("rows", SIZES)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("memory", EXACT)
@pytest.mark.parametrize("ffn", FFNS)
def test_exact_policies_change_no_bit(
    ffn: FFN, memory: MemoryPolicy, dtype: torch.dtype, rows: int
) -> None:
    """Of the output and of the gradients of weights, input and shape, accumulated twice."""
    found = _trained(_block(ffn, memory, dtype), rows, dtype)
    assert len(found) == _total(ffn)
    assert _same(found, _trained(_block(ffn, SavePost(), dtype), rows, dtype))


@pytest.mark.parametrize("memory", EXACT)
def test_exact_policies_change_no_bit_under_autocast(memory: MemoryPolicy) -> None:
    with torch.autocast("cpu", torch.bfloat16):
        found, wanted = (
            _trained(_block(FFNS[0], m), SIZES[1], torch.float32) for m in (memory, SavePost())
        )
    assert found[0].dtype == torch.bfloat16
    assert _same(found, wanted)


@pytest.mark.parametrize("memory", POLICIES)
@pytest.mark.parametrize("ffn", FIXED)
def test_without_gradients_the_result_is_the_same_and_nothing_is_kept(
    ffn: FFN, memory: MemoryPolicy
) -> None:
    x = _drawn(2, SIZES[1])
    block = _block(ffn, memory).eval()
    with torch.no_grad():
        assert torch.equal(block(x), _block(ffn, SavePost())(x))
        assert _kept_bytes(block, x) == 0


def _kept_bytes(block: nn.Module, x: Tensor) -> int:
    """Bytes of the distinct storages saved for the backward pass, parameters left out."""
    own = {p.untyped_storage().data_ptr() for p in block.parameters()}
    kept: dict[int, Tensor] = {}

    def pack(tensor: Tensor) -> Tensor:
        address = tensor.untyped_storage().data_ptr()
        if address not in own:
            kept[address] = tensor  # held, so that no later tensor gets the same address
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        block(x)
    return sum(tensor.untyped_storage().nbytes() for tensor in kept.values())


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("ffn", "memory"), CASES)
def test_a_block_keeps_what_is_counted(ffn: FFN, memory: MemoryPolicy, dtype: torch.dtype) -> None:
    """Exactly, for each token: two lengths, so that the few bytes a block keeps drop out."""
    block = _block(ffn, memory, dtype)
    short, long = (_kept_bytes(block, _drawn(2, n, dtype).requires_grad_()) for n in (400, 912))
    counted = ffn_cost(D, replace(ffn, memory=memory), dtype.itemsize)
    assert long - short == 512 * counted.saved_bytes
    assert 0 <= short - 400 * counted.saved_bytes < 256


@pytest.mark.parametrize(("ffn", "memory"), CASES)
def test_a_block_multiplies_what_is_counted(ffn: FFN, memory: MemoryPolicy) -> None:
    block = _block(ffn, memory)
    with FlopCounterMode(display=False) as counter:
        block(_drawn(2, 40).requires_grad_()).sum().backward()
    products = ffn_cost(D, replace(ffn, memory=memory), 4).products
    assert counter.get_total_flops() == products * 2 * 40 * D * ffn.width


def test_the_products_of_each_policy() -> None:
    plain, gated = PlainFFN(activation="silu"), GatedFFN()
    for ffn, once, again in ((plain, 6, 7), (gated, 9, 11)):
        found = {type(m): ffn_cost(D, replace(ffn, memory=m), 2).products for m in POLICIES}
        assert found == {SavePost: once, SavePre: once, Recompute: again, FewBit: once}


@pytest.mark.parametrize("reentrant", [True, False])
@pytest.mark.parametrize("memory", POLICIES)
@pytest.mark.parametrize("ffn", FIXED)
def test_a_checkpoint_around_the_block_changes_no_bit(
    ffn: FFN, memory: MemoryPolicy, reentrant: bool
) -> None:
    block = _block(ffn, memory)

    def around(x: Tensor) -> Tensor:
        y: Tensor = checkpoint(block, x, use_reentrant=reentrant)
        return y

    found = _trained(block, SIZES[1], torch.float32, around)
    assert _same(found, _trained(block, SIZES[1], torch.float32))


@pytest.mark.parametrize("memory", POLICIES)
@pytest.mark.parametrize("ffn", FIXED)
def test_a_compiler_traces_the_block_whole(ffn: FFN, memory: MemoryPolicy) -> None:
    block = _block(ffn, memory)
    torch.compiler.reset()
    compiled = torch.compile(block, fullgraph=True, backend="aot_eager")
    found = _trained(block, SIZES[1], torch.float32, compiled)
    for a, b in zip(found, _trained(block, SIZES[1], torch.float32), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-5)


def _second(block: nn.Module, rows: int) -> list[Tensor]:
    x = _drawn(2, rows).requires_grad_()
    y = block(x)
    (first,) = torch.autograd.grad(y, x, _drawn(12, rows), create_graph=True)
    return list(torch.autograd.grad(first.square().sum(), [x, *block.parameters()]))


@pytest.mark.parametrize("rows", SIZES)
@pytest.mark.parametrize("memory", EXACT)
@pytest.mark.parametrize("ffn", FFNS)
def test_exact_policies_change_no_bit_of_second_derivatives(
    ffn: FFN, memory: MemoryPolicy, rows: int
) -> None:
    found, wanted = (_second(_block(ffn, m), rows) for m in (memory, SavePost()))
    assert any(g.abs().max() > 0 for g in wanted)
    assert _same(found, wanted)


@pytest.mark.parametrize("ffn", FIXED)
def test_few_bit_refuses_a_second_derivative(ffn: FFN) -> None:
    with pytest.raises(RuntimeError, match="cannot be differentiated again"):
        _second(_block(ffn, FewBit()), SIZES[0])


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("xielu", "its parameters are trained (alpha_p, alpha_n)"),
        ("relu2", "f' >= 0 for all x, without an upper bound"),
        ("gcu", "no certificate proves that its f' is bounded"),
        ("helu", "its backward pass uses a surrogate"),
        ("swiglu_oai", "but over a function of it"),
        ("relu2_glu", "f' >= 0 for all x, without an upper bound"),
    ],
)
def test_few_bit_says_whom_it_cannot_serve(name: str, reason: str) -> None:
    kind = GatedFFN if "glu" in name else PlainFFN
    kind(activation=name, memory=SavePre())
    with pytest.raises(ConfigError) as error:
        kind(activation=name, memory=FewBit())
    assert reason in str(error.value)
    assert f"{kind.__name__}.memory = FewBit(bits=4) does not support {name}" in str(error.value)


@pytest.mark.parametrize("bits", [-1, 1, 9])
def test_few_bit_has_two_to_eight_bits(bits: int) -> None:
    with pytest.raises(ConfigError, match="must be 2 to 8"):
        FewBit(bits=bits)


def _slope(spec: Spec, x: Tensor) -> Tensor:
    return kernel_of(spec).slopes(x, tuple(p.initial for p in spec.parameters))[0].expand_as(x)


def _read(code: QuantizedSlope, x: Tensor) -> Tensor:
    """The piecewise constant, read without packing."""
    place = torch.zeros_like(x, dtype=torch.long)
    for knot in code.knots:
        place += x > torch.tensor(knot, dtype=x.dtype)
    return torch.tensor(code.levels, dtype=x.dtype)[place]


def _error(spec: Spec, bits: int, deviation: float = 1.0) -> float:
    """Relative error of the code in the mean square on N(0, deviation**2)."""
    even = (torch.arange(200_000, dtype=torch.float64) + 0.5) / 200_000
    x = torch.special.ndtri(even) * deviation
    slope = _slope(spec, x)
    return float((_read(quantized_slope(spec, bits), x) - slope).norm() / slope.norm())


@pytest.mark.parametrize(
    ("name", "bits", "best"),
    [
        ("gelu", 2, 0.13),
        ("gelu", 3, 0.065),
        ("gelu", 4, 0.036),
        ("gelu", 8, 0.0026),
        ("silu", 2, 0.14),
        ("silu", 3, 0.071),
        ("silu", 4, 0.035),
        ("silu", 8, 0.0024),
        ("golu", 2, 0.15),
        ("golu", 3, 0.075),
        ("golu", 4, 0.038),
    ],
)
def test_levels_come_near_the_best(name: str, bits: int, best: float) -> None:
    """The best that 2 to 4 bits can do on N(0, 1) was computed apart; 8 bits were measured."""
    assert _error(catalog.get(name), bits) == pytest.approx(best, rel=0.04)


@pytest.mark.parametrize("bits", [2, 3, 4])
@pytest.mark.parametrize("deviation", [0.25, 4.0])
def test_levels_hold_at_other_scales(bits: int, deviation: float) -> None:
    silu = catalog.get("silu")
    assert _error(silu, bits, deviation) < 1.5 * _error(silu, bits)


def test_every_code_lies_between_the_proved_bounds_and_gets_better_with_bits() -> None:
    served = [spec for spec in catalog.ENTRIES if not few_bit_refusal(spec)]
    assert len(served) > 50
    for spec in served:
        proofs = certificate(spec)
        assert proofs is not None
        slope = proofs["bounds"]["slope"]
        for bits in (2, 4):
            code = quantized_slope(spec, bits)
            assert 1 <= len(code.levels) == len(code.knots) + 1 <= 2**bits, spec.name
            assert list(code.knots) == sorted(set(code.knots)), spec.name
            for level in code.levels:
                assert slope["low"] - 1e-9 <= level <= slope["high"] + 1e-9, spec.name
        coarse, fine = _error(spec, 2), _error(spec, 4)
        # What is left of softmodulus_t after two levels lies in the cells beside 0.
        share = 0.9 if spec.name == "softmodulus_t" else 0.5
        assert fine <= share * coarse or coarse < 1e-6, (spec.name, coarse, fine)


@pytest.mark.parametrize("bits", range(2, 9))
@pytest.mark.parametrize("shape", [(5, 1), (3, 7), (2, 3, 8), (13,), (0, 9)])
def test_codes_are_packed_and_read_back(bits: int, shape: tuple[int, ...]) -> None:
    codes = torch.randint(2**bits, shape, generator=torch.Generator().manual_seed(0))
    packed = _packed(codes.to(torch.uint8), bits)
    assert packed.dtype == torch.uint8
    assert packed.shape == (*shape[:-1], bits, -(-shape[-1] // 8))
    assert torch.equal(_unpacked(packed, shape[-1]), codes.to(torch.uint8))


@pytest.mark.parametrize("rows", SIZES)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("ffn", FIXED)
def test_few_bit_changes_no_bit_of_the_result_and_of_the_last_matrix(
    ffn: FFN, dtype: torch.dtype, rows: int
) -> None:
    blocks = [_block(ffn, memory, dtype) for memory in (FewBit(), SavePost())]
    found, wanted = (_trained(block, rows, dtype) for block in blocks)
    assert torch.equal(found[0], wanted[0])
    coded, exact = (block.get_parameter("down_proj.weight").grad for block in blocks)
    assert coded is not None
    assert exact is not None
    assert torch.equal(coded, exact)
    assert not torch.equal(found[1], wanted[1])


@pytest.mark.parametrize("bits", [2, 4, 8])
def test_few_bit_gradients_are_those_of_the_levels(bits: int) -> None:
    ffn = PlainFFN(width=92, activation="silu", memory=FewBit(bits=bits))
    block = _block(ffn, ffn.memory)
    up, down = (block.get_parameter(f"{name}_proj.weight").detach() for name in ("up", "down"))
    x, into = _drawn(3, 200), _drawn(13, 200)
    levels = _read(quantized_slope(catalog.get("silu"), bits), x @ up.T)
    wanted = (into @ down * levels) @ up
    torch.testing.assert_close(_trained(block, 200, torch.float32)[1], wanted)


@pytest.mark.parametrize("bits", [2, 4, 8])
def test_gated_few_bit_gradients_are_those_of_the_levels(bits: int) -> None:
    ffn = GatedFFN(width=92, activation="swiglu", memory=FewBit(bits=bits))
    block = _block(ffn, ffn.memory)
    gate, up, down = (
        block.get_parameter(f"{name}_proj.weight").detach() for name in ("gate", "up", "down")
    )
    x, into = _drawn(3, 200), _drawn(13, 200)
    levels = _read(quantized_slope(catalog.get("swiglu"), bits), x @ gate.T)
    back = into @ down
    wanted = (back * (x @ up.T) * levels) @ gate + (back * nn.functional.silu(x @ gate.T)) @ up
    torch.testing.assert_close(_trained(block, 200, torch.float32)[1], wanted)


@pytest.mark.parametrize("deviation", [0.25, 1.0, 4.0])
def test_few_bit_gradients_are_off_by_about_the_error_of_the_slope(deviation: float) -> None:
    """The weight's gradient sums products with f': its relative error is that of f', or less."""
    ffn = PlainFFN(width=92, activation="silu")
    gradients = []
    for memory in (FewBit(bits=4), SavePost()):
        block = _block(ffn, memory)
        block.get_parameter("up_proj.weight").data.mul_(deviation)
        _trained(block, 2048, torch.float32)
        gradients.append(block.get_parameter("up_proj.weight").grad)
    found, wanted = gradients
    assert found is not None
    assert wanted is not None
    off = float((found - wanted).norm() / wanted.norm())
    error = _error(catalog.get("silu"), 4, deviation)
    assert 0.5 * error < off < 1.5 * error


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", ["relu", "relu6", "hard_tanh"])
def test_few_bit_is_exact_where_the_slope_is_a_step(name: str, dtype: torch.dtype) -> None:
    ffn = PlainFFN(width=92, activation=name)
    found, wanted = (
        _trained(_block(ffn, m, dtype), SIZES[1], dtype) for m in (FewBit(bits=2), SavePost())
    )
    assert _same(found, wanted)


def test_where_up_is_zero_few_bit_gives_it_no_gradient() -> None:
    block = _block(GatedFFN(width=8), FewBit(bits=8))
    block.get_parameter("up_proj.weight").data.zero_()
    block(_drawn(2, 16).requires_grad_()).sum().backward()
    gradient = block.get_parameter("up_proj.weight").grad
    assert gradient is not None
    assert torch.equal(gradient, torch.zeros(8, D))


def _coded(name: str, *inputs: Tensor) -> Tensor:
    act = build_activation(name)
    return coded(quantized_slope(catalog.get(name), 4), act, *inputs)


def test_few_bit_hides_no_nan() -> None:
    x = torch.tensor([torch.nan, 1.0, torch.inf, -torch.inf], requires_grad=True)
    (plain,) = torch.autograd.grad(_coded("silu", x).sum(), x)
    assert plain.isnan().tolist() == [True, False, False, True]  # silu(-inf) is inf times 0
    torch.testing.assert_close(plain[2].item(), quantized_slope(catalog.get("silu"), 4).levels[-1])
    gate = torch.tensor([torch.nan, torch.nan, 1.0, 1.0, 1.0], requires_grad=True)
    up = torch.tensor([0.0, 2.0, torch.nan, torch.inf, 0.0], requires_grad=True)
    found = torch.autograd.grad(_coded("swiglu", gate, up).sum(), (gate, up))
    assert found[0].isfinite().tolist() == [False, False, False, False, True]
    assert found[1].isnan().tolist() == [True, True, True, True, False]
    assert found[1][4] == 0


@pytest.mark.parametrize("shape", [(), (3, 0), (0, 8), (3, 1)])
def test_few_bit_takes_every_shape(shape: tuple[int, ...]) -> None:
    x = torch.full(shape, 0.5, requires_grad=True)
    y = _coded("silu", x)
    y.sum().backward()
    assert y.shape == shape and x.grad is not None and x.grad.shape == shape
    assert torch.equal(y, build_activation("silu")(x))
    (level,) = _read(quantized_slope(catalog.get("silu"), 4), torch.tensor([0.5])).tolist()
    assert (x.grad == level).all()


@pytest.mark.parametrize("backend", [None, "eager", "aot_eager"])
def test_few_bit_refuses_to_be_transformed(backend: str | None) -> None:
    torch.compiler.reset()

    def gradient(x: Tensor) -> Tensor:
        return torch.func.grad(lambda t: _coded("silu", t).sum())(x)

    call = gradient if backend is None else torch.compile(gradient, backend=backend)
    with pytest.raises(ConfigError, match=r"which torch\.func cannot transform"):
        call(torch.ones(3))
    with torch.no_grad():
        many = torch.vmap(lambda t: _coded("silu", t))(torch.ones(2, 3))
    assert torch.equal(many, build_activation("silu")(torch.ones(2, 3)))


@pytest.mark.parametrize("memory", POLICIES)
def test_a_block_can_be_copied(memory: MemoryPolicy) -> None:
    block = _block(FIXED[1], memory)
    twin = copy.deepcopy(block)
    assert block.state_dict().keys() == _block(FIXED[1], SavePost()).state_dict().keys()
    assert _same(_trained(twin, 24, torch.float32), _trained(block, 24, torch.float32))


def test_a_policy_is_chosen_by_name_and_travels_with_the_configuration() -> None:
    changed = override(
        DecoderConfig(), ["ffn.activation=silu", "ffn.memory=FewBit", "ffn.memory.bits=3"]
    )
    assert changed.ffn.memory == FewBit(bits=3)
    plain = to_plain(changed)
    assert from_plain(DecoderConfig, plain) == changed
    del plain["ffn"]["memory"]  # as written before there was a choice
    assert from_plain(DecoderConfig, plain).ffn.memory == SavePost()
    with pytest.raises(ConfigError, match="Known: FewBit, Recompute, SavePost, SavePre"):
        override(DecoderConfig(), ["ffn.memory=SaveNothing"])


def test_a_plan_tells_every_policy_and_estimates_the_one_in_use() -> None:
    base = demo().pretrain
    model = replace(base.model, ffn=PlainFFN(width=96, activation="silu"))
    lean = replace(model, ffn=replace(model.ffn, memory=SavePre()))
    config = replace(base, model=lean, sequences=1000)
    told = {policy["policy"]: policy for policy in plan(config, None)["ffn_memory"]}
    assert [name for name, policy in told.items() if policy["in_use"]] == ["SavePre"]
    for memory in (SavePost(), *EXACT, FewBit()):
        cost = ffn_cost(model.d_model, replace(model.ffn, memory=memory), 4)
        policy = told[type(memory).__name__]
        assert (policy["saved_bytes"], policy["products"]) == (cost.saved_bytes, cost.products)
    assert told["FewBit"]["bits"] == 4
    kept, more = (estimate_memory(m, AdamW(), 1, 10, "float32").activations for m in (lean, model))
    assert more - kept == 10 * model.num_layers * 4 * 96


def test_a_plan_says_why_a_policy_is_refused() -> None:
    told = plan(replace(demo().pretrain, sequences=1000), None)["ffn_memory"][-1]
    assert told["policy"] == "FewBit"
    assert told["saved_bytes"] is None
    assert "its parameters are trained" in told["refused"]
