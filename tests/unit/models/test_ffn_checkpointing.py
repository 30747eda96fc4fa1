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

from stamm.base.config import from_plain, override, to_plain
from stamm.base.errors import ConfigError
from stamm.engine.estimate import estimate_memory
from stamm.models.config import (
    DecoderConfig,
    GatedFFN,
    MemoryPolicy,
    PlainFFN,
    Recompute,
    SavePost,
    SavePre,
)
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
POLICIES: tuple[MemoryPolicy, ...] = (SavePost(), *EXACT)
CASES = [(f, m) for f in FFNS for m in POLICIES]
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
        assert found == {SavePost: once, SavePre: once, Recompute: again}


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


@pytest.mark.parametrize("memory", POLICIES)
def test_a_block_can_be_copied(memory: MemoryPolicy) -> None:
    block = _block(FIXED[1], memory)
    twin = copy.deepcopy(block)
    assert block.state_dict().keys() == _block(FIXED[1], SavePost()).state_dict().keys()
    assert _same(_trained(twin, 24, torch.float32), _trained(block, 24, torch.float32))


def test_a_policy_is_chosen_by_name_and_travels_with_the_configuration() -> None:
    changed = override(DecoderConfig(), ["ffn.activation=silu", "ffn.memory=Recompute"])
    assert changed.ffn.memory == Recompute()
    plain = to_plain(changed)
    assert from_plain(DecoderConfig, plain) == changed
    del plain["ffn"]["memory"]  # as written before there was a choice
    assert from_plain(DecoderConfig, plain).ffn.memory == SavePost()
    with pytest.raises(ConfigError, match="Known: Recompute, SavePost, SavePre"):
        override(DecoderConfig(), ["ffn.memory=SaveNothing"])


def test_a_plan_tells_every_policy_and_estimates_the_one_in_use() -> None:
    base = demo().pretrain
    model = replace(base.model, ffn=PlainFFN(width=96, activation="silu"))
    lean = replace(model, ffn=replace(model.ffn, memory=SavePre()))
    config = replace(base, model=lean, sequences=1000)
    told = {policy["policy"]: policy for policy in plan(config, None)["ffn_memory"]}
    assert [name for name, policy in told.items() if policy["in_use"]] == ["SavePre"]
    for memory in POLICIES:
        cost = ffn_cost(model.d_model, replace(model.ffn, memory=memory), 4)
        policy = told[type(memory).__name__]
        assert (policy["saved_bytes"], policy["products"]) == (cost.saved_bytes, cost.products)
    kept, more = (estimate_memory(m, AdamW(), 1, 10, "float32").activations for m in (lean, model))
    assert more - kept == 10 * model.num_layers * 4 * 96
