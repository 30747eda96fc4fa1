"""The CPU kernel of a decoding step against torch's operations, float64, other rows and threads."""

from __future__ import annotations

import math
from collections.abc import Iterator

import pytest
import torch
from torch import Tensor

from stamm.base.errors import ConfigError
from stamm.models import decode_layer as module
from stamm.models.config import DecoderConfig, GatedFFN, PlainFFN
from stamm.models.decode_layer import DecodeOperations, FusedDecodeOperations, HeadShape, QKNorm
from stamm.models.decode_step import DecodeStep, run_prompts
from stamm.models.decoder import build_decoder

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
        self.norm: QKNorm | None = None
        if qk_norm:
            self.norm = torch.randn(heads, shape.width, generator=random), 1e-5
        self.frequencies = torch.rand(shape.width // 2, generator=random)
        self.lengths = torch.tensor(lengths)

    def kept(self, rows: list[int]) -> Given:
        """The same with these rows alone."""
        other = object.__new__(Given)
        vars(other).update(vars(self))
        for name in ("keys", "values", "qkv", "lengths"):
            setattr(other, name, getattr(self, name)[rows])
        return other


def attended(
    kind: type[DecodeOperations], given: Given, dtype: torch.dtype = torch.float32
) -> tuple[Tensor, Tensor, Tensor]:
    """Outputs, and the keys and values that were appended."""
    keys, values = given.keys.to(dtype, copy=True), given.values.to(dtype, copy=True)
    norm = None if given.norm is None else (given.norm[0].to(dtype), given.norm[1])
    operations = kind(given.shape, [norm], given.frequencies)
    operations.bind([keys], [values])
    unseen = torch.arange(given.columns) < given.column - given.lengths[:, None]
    mask = torch.zeros(unseen.shape, dtype=dtype).masked_fill(unseen, -math.inf)
    operations.begin(given.lengths, mask, given.column, int(given.lengths.max()))
    y = operations.attend(0, given.qkv.to(dtype)).clone()
    untouched = torch.arange(given.columns) != given.column
    assert torch.equal(keys[:, :, untouched], given.keys.to(dtype)[:, :, untouched])
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
    wanted = attended(DecodeOperations, given, torch.float64)
    theirs, ours = (attended(kind, given) for kind in (DecodeOperations, FusedDecodeOperations))
    for right, by_torch, by_us in zip(wanted, theirs, ours, strict=True):
        error, theirs_error = ((x - right).norm() / right.norm() for x in (by_us, by_torch))
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
    wanted = attended(DecodeOperations, given, torch.float64)
    for right, found in zip(wanted, attended(FusedDecodeOperations, given), strict=True):
        torch.testing.assert_close(found.double(), right, rtol=2e-5, atol=2e-5)


@needs_kernel
def test_a_row_has_the_same_bits_alone_and_with_any_number_of_threads() -> None:
    given = Given(HeadShape(4, 2, 32), [60, 3, 99, 41, 17], 120, free=20)
    torch.set_num_threads(1)
    whole = attended(FusedDecodeOperations, given)
    for row in range(5):
        alone = attended(FusedDecodeOperations, given.kept([row]))
        assert all(torch.equal(a[0], b[row]) for a, b in zip(alone, whole, strict=True))
    torch.set_num_threads(3)
    again = attended(FusedDecodeOperations, given)
    assert all(torch.equal(a, b) for a, b in zip(again, whole, strict=True))


@needs_kernel
def test_columns_that_are_not_attended_to_may_hold_anything() -> None:
    given = Given(HeadShape(4, 2, 32), [60, 3, 0], 120, free=7)
    clean = attended(FusedDecodeOperations, given)[0]
    first = given.column - given.lengths[:, None, None]
    place = torch.arange(120)
    unseen = ((place < first) | (place > given.column)).expand(3, 2, 120)
    given.keys[unseen] = math.inf
    given.values[unseen] = math.inf
    keys = given.keys.clone()
    operations = FusedDecodeOperations(given.shape, [given.norm], given.frequencies)
    operations.bind([keys], [given.values])
    operations.begin(given.lengths, torch.zeros(3, 120), given.column, 60)
    assert torch.equal(operations.attend(0, given.qkv), clean)


@needs_kernel
@pytest.mark.parametrize(("rows", "width"), [(1, 16), (5, 48), (16, 384), (3, 4096)])
def test_sums_and_norms_are_those_of_torch(rows: int, width: int) -> None:
    random = torch.Generator().manual_seed(width)
    x, added = (torch.randn(rows, width, generator=random) for _ in range(2))
    weight = torch.randn(width, generator=random)
    both = [kind(HeadShape(1, 1, 16), [], torch.ones(8)) for kind in module._KINDS.values()]
    for second in (None, added):
        (ours, found), (theirs, expected) = (
            each.add_norm(x.clone(), second, weight, 1e-5) for each in both
        )
        assert torch.equal(ours, theirs)
        torch.testing.assert_close(found, expected, rtol=1e-6, atol=1e-7)


@needs_kernel
def test_tensors_that_do_not_fit_are_refused() -> None:
    given = CASES["one head each"]
    operations = FusedDecodeOperations(given.shape, [given.norm], given.frequencies)
    for keys in (
        given.keys.double(),
        given.keys[:, :3],
        given.keys[..., :16],
        given.keys[:, :, :8],
    ):
        with pytest.raises(ConfigError, match="needs contiguous"):
            operations.bind([keys], [given.values])
    operations.bind([given.keys.clone()], [given.values.clone()])
    mask = torch.zeros(4, 41)
    with pytest.raises(ConfigError, match="no column 41"):
        operations.begin(given.lengths, mask, 41, 40)
    with pytest.raises(ConfigError, match="int64"):
        operations.begin(given.lengths.float(), mask, 40, 40)
    operations.begin(given.lengths, mask, 40, 40)
    for qkv in (given.qkv[:3], given.qkv.double(), given.qkv[:, ::2], given.qkv[:, 1:]):
        with pytest.raises(ConfigError, match="needs contiguous"):
            operations.attend(0, qkv)
    x = torch.zeros(4, 32)
    for bad, weight in ((x.mT, x[0]), (x, x[0, :16]), (x, x[0].double())):
        with pytest.raises(ConfigError, match="needs contiguous"):
            operations.add_norm(bad, None, weight, 1e-5)
    with pytest.raises(ConfigError, match="needs contiguous"):
        operations.add_norm(x, x[:2], x[0], 1e-5)


MODELS = {
    "xielu, grouped, qk norm": {"ffn": PlainFFN(width=48), "num_kv_heads": 2},
    "swiglu": {"ffn": GatedFFN(width=24), "qk_norm": False, "num_kv_heads": 4},
}


def config(**options: object) -> DecoderConfig:
    sizes = {"vocab_size": 61, "d_model": 64, "num_layers": 2, "num_heads": 4, "max_context": 700}
    return DecoderConfig(**{**sizes, "init_std": 0.2, **options})  # type: ignore[arg-type]


@needs_kernel
@pytest.mark.parametrize("name", MODELS)
def test_a_decoder_gives_the_logits_of_whole_passes(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rows begin at different steps, the cache grows, a row is dropped."""
    monkeypatch.setattr(module, "_chosen", lambda *_: "stamm")
    model = build_decoder(config(**MODELS[name]), seed=5).eval()
    random = torch.Generator().manual_seed(3)
    prompts = [torch.randint(61, (n,), generator=random).tolist() for n in (1, 40, 7)]
    step, states = DecodeStep(model, 3), run_prompts(model, prompts)
    assert isinstance(step._operations, FusedDecodeOperations)
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


def test_torchs_operations_remain(monkeypatch: pytest.MonkeyPatch) -> None:
    """For other dtypes and widths, where torch was faster, and where nothing can be compiled."""

    def kind(dtype: torch.dtype = torch.float32, **options: object) -> type:
        model = build_decoder(config(ffn=PlainFFN(width=40), **options), seed=5)
        return type(DecodeStep(model.to(dtype), 2)._operations)

    assert kind(torch.float64) is kind(torch.bfloat16) is DecodeOperations
    assert kind(d_model=72) is DecodeOperations
    monkeypatch.setattr(module, "unavailable_reason", lambda: None)
    monkeypatch.setattr(module, "_chosen", lambda *_: "torch")
    assert kind() is DecodeOperations
    monkeypatch.setattr(module, "_chosen", lambda *_: "stamm")
    assert kind() is FusedDecodeOperations
    monkeypatch.setattr(module, "unavailable_reason", lambda: "no compiler")
    assert kind() is DecodeOperations
