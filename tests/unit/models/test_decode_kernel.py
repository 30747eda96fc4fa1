"""The CPU kernel of a decoding step against torch's operations, float64, other rows and threads."""

from __future__ import annotations

import ctypes
import math
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from stamm.activations.module import Activation
from stamm.base.errors import ConfigError
from stamm.models import decode_kernel as module
from stamm.models import decode_layer
from stamm.models.config import (
    DecoderConfig,
    Experts,
    GatedFFN,
    LowRank,
    PlainFFN,
    Structured,
)
from stamm.models.decode_kernel import AttentionPointers, FusedStack
from stamm.models.decode_layer import HeadShape, Norm, TorchStack
from stamm.models.decode_step import DecodeStep, PromptStates, run_prompts, stack_weights
from stamm.models.decoder import Decoder, build_decoder
from stamm.models.rope import rotation

WHY = module.unavailable_reason()
needs_kernel = pytest.mark.skipif(WHY is not None, reason=f"no CPU kernels: {WHY}")


@pytest.fixture(autouse=True)
def _threads() -> Iterator[None]:
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


class Given:
    """A layer's random inputs: a cache, rows of several lengths, and what the step adds."""

    def __init__(
        self,
        shape: HeadShape,
        lengths: list[int],
        columns: int,
        *,
        free: int = 0,
        qk_norm: bool = True,
        size: float = 1.0,
        seed: int = 0,
    ) -> None:
        random = torch.Generator().manual_seed(seed)
        self.shape, self.column, self.columns = shape, columns - 1 - free, columns
        rows, heads = len(lengths), shape.heads + shape.kv_heads
        cache = (rows, shape.kv_heads, columns, shape.width)
        self.keys = torch.randn(cache, generator=random) * size
        self.values = torch.randn(cache, generator=random)
        self.qkv = torch.randn(rows, (heads + shape.kv_heads) * shape.width, generator=random)
        self.qkv *= size
        self.norm: Norm | None = None
        if qk_norm:
            self.norm = Norm(torch.randn(heads, shape.width, generator=random), 1e-5)
        self.frequencies = torch.rand(shape.width // 2, generator=random)
        self.lengths = torch.tensor(lengths)

    def kept(self, rows: list[int]) -> Given:
        """The same with these rows alone."""
        other = object.__new__(Given)
        vars(other).update(vars(self))
        for name in ("keys", "values", "qkv", "lengths"):
            setattr(other, name, getattr(self, name)[rows])
        return other


Attended = tuple[Tensor, Tensor, Tensor]


def by_torch(given: Given, dtype: torch.dtype = torch.float32) -> Attended:
    """Outputs, and the keys and values that are appended."""
    shape, rows = given.shape, len(given.lengths)
    heads = given.qkv.to(dtype).view(rows, -1, shape.width)
    count = shape.heads + shape.kv_heads
    turned, values = heads[:, :count], heads[:, count:]
    if given.norm is not None:
        turned = F.rms_norm(turned, (shape.width,), None, given.norm.eps)
        turned = turned * given.norm.weight.to(dtype)
    cosine, sine = (x[:, None] for x in rotation(given.frequencies, given.lengths, dtype))
    low, high = turned.chunk(2, dim=-1)
    turned = turned * cosine + torch.cat((-high, low), dim=-1) * sine
    queries, keys = turned[:, : shape.heads], turned[:, shape.heads :]
    y = torch.empty(rows, shape.heads, shape.width, dtype=dtype)
    for row, length in enumerate(given.lengths.tolist()):
        seen, group = slice(given.column - length, given.column), shape.heads // shape.kv_heads
        both = ((given.keys, keys), (given.values, values))
        k, v = (torch.cat((x[row, :, seen].to(dtype), new[row, :, None]), 1) for x, new in both)
        k, v = (x.repeat_interleave(group, dim=0) for x in (k, v))
        scores = (k @ queries[row, :, :, None])[..., 0] / math.sqrt(shape.width)
        y[row] = (scores.softmax(-1)[:, None] @ v)[:, 0]
    return y.flatten(1), keys, values


def attended(given: Given) -> Attended:
    """The same by the kernel."""
    shape, columns, rows = given.shape, given.columns, len(given.lengths)
    keys, values = given.keys.clone(), given.values.clone()
    halves = rotation(given.frequencies, torch.arange(columns))
    angles = torch.cat([half[:, : shape.width // 2] for half in halves], dim=-1)
    scores = torch.empty(rows * shape.heads, columns + 32)
    norm = (None, 0.0) if given.norm is None else (given.norm[0].data_ptr(), given.norm[1])
    tensors = [x.data_ptr() for x in (angles, keys, values, scores)]
    sizes = rows, shape.heads, shape.kv_heads, shape.width, columns
    y = torch.empty(rows, shape.heads * shape.width)
    module.function("attend_step")(
        ctypes.byref(AttentionPointers(norm[0], *tensors, *sizes, norm[1])),
        given.qkv.data_ptr(),
        given.lengths.data_ptr(),
        given.column,
        y.data_ptr(),
        torch.get_num_threads(),
    )
    untouched = torch.arange(given.columns) != given.column
    assert torch.equal(keys[:, :, untouched], given.keys[:, :, untouched])
    return y, keys[:, :, given.column], values[:, :, given.column]


CASES = {
    "one head each": Given(HeadShape(4, 4, 32), [9, 40, 0, 23], 41),
    "grouped, free columns": Given(HeadShape(6, 2, 64), [1, 70, 33], 90, free=13, qk_norm=False),
    "one for all": Given(HeadShape(5, 1, 16), [130, 3], 131, qk_norm=False),
    "odd counts": Given(HeadShape(3, 3, 48), [15, 16, 17, 18, 19], 20),
    "wide": Given(HeadShape(2, 1, 128), [31, 5], 160, free=100),
    "widest": Given(HeadShape(1, 1, 512), [12], 20, qk_norm=False),
    "large scores": Given(HeadShape(2, 2, 80), [50, 49], 51, qk_norm=False, size=6.0),
    "one row, long": Given(HeadShape(4, 2, 32), [2000], 2100, free=64),
}


@needs_kernel
@pytest.mark.parametrize("name", CASES)
def test_attention_is_as_exact_as_torchs(name: str) -> None:
    given = CASES[name]
    wanted = by_torch(given, torch.float64)
    theirs, ours = by_torch(given), attended(given)
    for right, in_torch, by_us in zip(wanted, theirs, ours, strict=True):
        error, theirs_error = ((x - right).norm() / right.norm() for x in (by_us, in_torch))
        assert error <= max(2 * float(theirs_error), 3e-7), (error, theirs_error)
    assert torch.equal(ours[2], theirs[2])


@needs_kernel
@pytest.mark.parametrize("seed", range(12))
def test_attention_agrees_for_random_shapes(seed: int) -> None:
    random = torch.Generator().manual_seed(seed)

    def drawn(least: int, most: int) -> int:
        return int(torch.randint(least, most + 1, (), generator=random))

    kv_heads, free = drawn(1, 4), drawn(0, 40)
    shape = HeadShape(kv_heads * drawn(1, 4), kv_heads, 16 * drawn(1, 9))
    columns = drawn(16, 150) + free
    lengths = [drawn(0, columns - 1 - free) for _ in range(drawn(1, 9))]
    given = Given(shape, lengths, columns, free=free, qk_norm=bool(seed % 2), seed=seed)
    wanted = by_torch(given, torch.float64)
    for right, found in zip(wanted, attended(given), strict=True):
        torch.testing.assert_close(found.double(), right, rtol=2e-5, atol=2e-5)


@needs_kernel
def test_a_row_has_the_same_bits_alone_and_with_any_number_of_threads() -> None:
    given = Given(HeadShape(4, 2, 32), [60, 3, 99, 41, 17], 120, free=20)
    torch.set_num_threads(1)
    whole = attended(given)
    for row in range(5):
        alone = attended(given.kept([row]))
        assert all(torch.equal(a[0], b[row]) for a, b in zip(alone, whole, strict=True))
    torch.set_num_threads(3)
    again = attended(given)
    assert all(torch.equal(a, b) for a, b in zip(again, whole, strict=True))


@needs_kernel
def test_columns_that_are_not_attended_to_may_hold_anything() -> None:
    given = Given(HeadShape(4, 2, 32), [60, 3, 0], 120, free=7)
    clean = attended(given)[0]
    first = given.column - given.lengths[:, None, None]
    place = torch.arange(120)
    unseen = ((place < first) | (place > given.column)).expand(3, 2, 120)
    given.keys[unseen] = math.inf
    given.values[unseen] = math.inf
    given.qkv = given.qkv.clone()
    keys, values = given.keys, given.values
    given.keys, given.values = keys.nan_to_num(posinf=0), values.nan_to_num(posinf=0)
    assert torch.equal(attended(given)[0], clean)
    given.keys, given.values = keys, values
    assert torch.equal(attended(given)[0], clean)


@needs_kernel
@pytest.mark.parametrize(("rows", "width"), [(1, 16), (5, 48), (16, 384), (3, 4096)])
def test_sums_and_norms_are_those_of_torch(rows: int, width: int) -> None:
    random = torch.Generator().manual_seed(width)
    x, added = (torch.randn(rows, width, generator=random) for _ in range(2))
    weight = torch.randn(width, generator=random)
    for second in (None, added):
        ours, found = x.clone(), torch.empty(rows, width)
        pointers = (t if t is None else t.data_ptr() for t in (ours, second, weight, found))
        module.function("add_norm")(*pointers, rows, width, 1e-5)
        theirs = x if second is None else x + second
        assert torch.equal(ours, theirs)
        expected = F.rms_norm(theirs, (width,), weight, 1e-5)
        torch.testing.assert_close(found, expected, rtol=1e-6, atol=1e-7)


@needs_kernel
def test_tensors_that_do_not_fit_are_refused() -> None:
    weights = stack_weights(build_decoder(config(ffn=PlainFFN(width=48)), seed=5))
    stack, cache = FusedStack(weights), [torch.zeros(4, 2, 41, 16) for _ in range(2)]
    for wrong in (cache[0].double(), cache[0][:, :1], cache[0][..., :8], cache[0][:, :, :8]):
        with pytest.raises(ConfigError, match="needs contiguous"):
            stack.bind([wrong, cache[0]], cache)
    stack.bind(cache, [x.clone() for x in cache])
    x, lengths, mask = torch.zeros(4, 64), torch.tensor([3, 0, 40, 1]), torch.zeros(4, 41)
    with pytest.raises(ConfigError, match="no column 41"):
        stack(x, lengths, mask, 41, 40)
    for bad in (lengths.float(), lengths[:3]):
        with pytest.raises(ConfigError, match="int64"):
            stack(x, bad, mask, 40, 40)
    for bad in (x[:3], x.double(), torch.zeros(64, 4).mT, x[:, ::2]):
        with pytest.raises(ConfigError, match="needs contiguous"):
            stack(bad, lengths, mask, 40, 40)
    assert bool(stack(x, lengths, mask, 40, 40).isfinite().all())


ALL = Structured(keep_first=False)
MODELS: dict[str, dict[str, Any]] = {
    "xielu, grouped, qk norm": {"ffn": PlainFFN(width=48), "num_kv_heads": 2},
    "swiglu": {"ffn": GatedFFN(width=24), "qk_norm": False, "num_kv_heads": 4},
    "swiglu, odd width, biases": {"ffn": GatedFFN(width=23), "qkv_bias": True, "qk_norm": False},
    "eps, by torch": {"ffn": PlainFFN(width=40, compat="eps"), "num_kv_heads": 1},
    "neurons, tied": {"ffn": PlainFFN(width=40, shapes="neuron"), "tied_embeddings": True},
    "experts": {"ffn": GatedFFN(width=120, experts=Experts(count=5, active=2)), "qk_norm": False},
    "shared experts": {"ffn": PlainFFN(width=96, experts=Experts(count=6, active=3, shared=1))},
    "experts, eps, by torch": {"ffn": PlainFFN(width=84, compat="eps", experts=Experts(count=4))},
    "low rank": {"ffn": PlainFFN(width=48, linear=LowRank(rank=16))},
    "low rank, odd, gated": {"ffn": GatedFFN(width=43, linear=LowRank(rank=9)), "structured": ALL},
    "low rank, eps, by torch": {"ffn": PlainFFN(width=41, compat="eps", linear=LowRank(rank=7))},
}


def config(**options: object) -> DecoderConfig:
    sizes = {"vocab_size": 61, "d_model": 64, "num_layers": 2, "num_heads": 4, "max_context": 700}
    return DecoderConfig(**{**sizes, "init_std": 0.2, **options})  # type: ignore[arg-type]


def varied(name: str) -> Decoder:
    """The decoder with norms, biases and shapes other than at the start."""
    model = build_decoder(config(**MODELS[name]), seed=5).eval()
    random = torch.Generator().manual_seed(9)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() < 2:
                parameter.add_(0.2 * torch.randn(parameter.shape, generator=random))
    return model


@needs_kernel
@pytest.mark.parametrize("name", MODELS)
def test_a_decoder_gives_the_logits_of_whole_passes(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rows begin at different steps, the cache grows, a row is dropped."""
    monkeypatch.setattr(module, "_chosen", lambda *_: "stamm")
    model = varied(name)
    random = torch.Generator().manual_seed(3)
    prompts = [torch.randint(61, (n,), generator=random).tolist() for n in (1, 40, 7)]
    step, states = DecodeStep(model, 3), run_prompts(model, prompts)
    assert isinstance(step._stack, FusedStack)
    sequences = [list(prompt) for prompt in prompts]
    for row in (0, 1):
        step.fill(row, states, row)
    for turn in range(150):
        if turn == 9:
            step.fill(2, states, 2)
        if turn == 140:
            step.keep([2, 1])
            sequences = [sequences[2], sequences[1]]
        new = torch.randint(61, (len(sequences),), generator=random)
        logits = step(new)
        for row, sequence in enumerate(sequences):
            if turn >= 9 or row < 2:
                sequence.append(int(new[row]))
                if turn in (0, 9, 139, 140, 149):
                    with torch.no_grad():
                        expected = model(torch.tensor([sequence]))[0, -1]
                    torch.testing.assert_close(logits[row], expected, rtol=1e-4, atol=2e-5)
    experts = model.config.ffn.experts
    assert step.multiplied_experts == (2 * (140 * 3 + 10 * 2) * experts.active if experts else 0)


def logits_of(model: Decoder, states: PromptStates, rows: int) -> Tensor:
    """Logits after some steps of the first rows."""
    step = DecodeStep(model, rows)
    for row in range(rows):
        step.fill(row, states, row)
    for token in (5, 60, 7):
        logits = step(torch.full((rows,), token))
    return logits


@needs_kernel
@pytest.mark.parametrize("name", MODELS)
def test_logits_have_the_same_bits_in_any_batch_packed_or_not(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_chosen", lambda *_: "stamm")
    model = varied(name)
    states = run_prompts(model, [list(range(n)) for n in (3, 30, 17, 9, 1, 20, 11, 5, 2)])
    torch.set_num_threads(1)
    whole = logits_of(model, states, 9)
    torch.set_num_threads(3)
    for count in (1, 2, 3, 4, 6, 9):
        assert torch.equal(logits_of(model, states, count), whole[:count])
    monkeypatch.setattr(decode_layer, "_PACKED_MODEL", 0)
    assert torch.equal(logits_of(model, states, 9), whole)
    assert torch.equal(logits_of(model, states, 1), whole[:1])


@needs_kernel
def test_an_error_of_an_activation_that_torch_computes_is_raised(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """C++ calls it, which cannot raise."""

    def fail(*_: object) -> Callable[[Tensor], Tensor]:
        def activation(_: Tensor) -> Tensor:
            raise KeyboardInterrupt

        return activation

    monkeypatch.setattr(module, "_chosen", lambda *_: "stamm")
    monkeypatch.setattr(Activation, "frozen", fail)
    model = build_decoder(config(ffn=PlainFFN(width=40, compat="eps")), seed=5).eval()
    with pytest.raises(KeyboardInterrupt):
        logits_of(model, run_prompts(model, [[1, 2]]), 1)


def test_torch_decodes_what_the_kernel_does_not(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Other dtypes and widths, where torch was faster, and where nothing can be compiled: reported once."""

    def kind(dtype: torch.dtype = torch.float32, **options: object) -> type:
        model = build_decoder(config(ffn=PlainFFN(width=40), **options), seed=5)
        return type(DecodeStep(model.to(dtype), 2)._stack)

    assert kind(torch.float64) is kind(torch.bfloat16) is TorchStack
    assert kind(d_model=72) is TorchStack
    monkeypatch.setattr(module, "unavailable_reason", lambda: None)
    monkeypatch.setattr(module, "_chosen", lambda *_: "torch")
    assert kind() is TorchStack
    if WHY is None:
        monkeypatch.setattr(module, "_chosen", lambda *_: "stamm")
        assert kind() is FusedStack
    monkeypatch.setattr(module, "unavailable_reason", lambda: "no compiler")
    capsys.readouterr()
    assert kind() is kind() is TorchStack
    told = "".join(capsys.readouterr())
    assert told.count("torch computes the steps of decoding, more slowly: no compiler") == 1
