"""The CPU kernel of attention against float64, torch's kernel, other documents and other threads."""

from __future__ import annotations

import math
from collections.abc import Iterator

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from stamm.base.errors import ConfigError, DataError
from stamm.models import fused_attention as module
from stamm.models.fused_attention import fused_attention, is_supported

pytestmark = pytest.mark.skipif(
    module.unavailable_reason() is not None, reason=f"no CPU kernels: {module.unavailable_reason()}"
)
Inputs = tuple[Tensor, Tensor, Tensor, Tensor]  # q, k, v and the gradient of the outputs


@pytest.fixture(autouse=True)
def _threads() -> Iterator[None]:
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


def inputs(
    length: int,
    width: int,
    heads: int = 2,
    shared: int = 2,
    rows: int = 2,
    seed: int = 0,
    size: float = 1.0,
) -> Inputs:
    """As the model's attention has them: heads and tokens have changed places."""
    random = torch.Generator().manual_seed(seed)
    counts = (heads, shared, shared, heads)
    made = [torch.randn(rows, length, n, width, generator=random) for n in counts]
    made = [size * x.transpose(1, 2) for x in made]
    return made[0], made[1], made[2], made[3]


def documents(*rows: list[int]) -> Tensor:
    """Numbers of documents of these lengths."""
    return torch.stack([torch.arange(len(r)).repeat_interleave(torch.tensor(r)) for r in rows])


def random_documents(length: int, mean: float, rows: int = 2, seed: int = 0) -> Tensor:
    random = torch.Generator().manual_seed(seed)
    return (torch.rand(rows, length, generator=random) < 1 / mean).cumsum(1)


def mask_of(document: Tensor | None, length: int) -> Tensor:
    open_TT = torch.ones(length, length).tril().bool()
    if document is None:
        return open_TT[None, None]
    return (document[:, None, :, None] == document[:, None, None, :]) & open_TT


def dense(given: Inputs, document: Tensor | None) -> list[Tensor]:
    """Outputs and gradients by all scores at once, in float64."""
    q, k, v = (x.double().requires_grad_() for x in given[:3])
    group = q.shape[1] // k.shape[1]
    scores = q @ k.repeat_interleave(group, 1).mT / math.sqrt(q.shape[-1])
    weights = scores.masked_fill(~mask_of(document, q.shape[2]), -torch.inf).softmax(-1)
    o = weights @ v.repeat_interleave(group, 1)
    return [o.detach(), *torch.autograd.grad(o, (q, k, v), given[3].double())]


def fused(given: Inputs, document: Tensor | None) -> list[Tensor]:
    q, k, v = (x.detach().requires_grad_() for x in given[:3])
    o = fused_attention(q, k, v, document)
    return [o.detach(), *torch.autograd.grad(o, (q, k, v), given[3])]


def of_torch(given: Inputs, document: Tensor | None) -> list[Tensor]:
    q, k, v = (x.detach().requires_grad_() for x in given[:3])
    added = torch.zeros(mask_of(document, q.shape[2]).shape)
    added.masked_fill_(~mask_of(document, q.shape[2]), -torch.inf)
    o = F.scaled_dot_product_attention(q, k, v, added, enable_gqa=q.shape[1] != k.shape[1])
    return [o.detach(), *torch.autograd.grad(o, (q, k, v), given[3])]


def errors(found: list[Tensor], wanted: list[Tensor]) -> list[float]:
    """The largest errors, relative to the largest number, or to the inputs' size if that is more.

    Gradients may be much smaller than what they are the differences of.
    """
    pairs = zip(found, wanted, strict=True)
    return [float((a - b).abs().max() / b.abs().max().clamp(min=1.0)) for a, b in pairs]


def spread(found: list[Tensor], wanted: list[Tensor]) -> float:
    """The root of the mean squared error, all results together, each relative to its own size."""
    pairs = zip(found, wanted, strict=True)
    return math.hypot(*(float((a - b).norm() / b.norm()) for a, b in pairs))


CASES: dict[str, tuple[Inputs, Tensor | None]] = {
    "one block": (inputs(64, 32), documents([64], [20, 44])),
    "three blocks and a rest": (inputs(200, 64), documents([1, 1, 62, 70, 66], [129, 71])),
    "every token alone but two": (inputs(131, 32), documents([1] * 129 + [2], [2] + [1] * 129)),
    "random": (inputs(333, 32), random_documents(333, 40)),
    "short": (inputs(300, 16), random_documents(300, 3)),
    "no documents": (inputs(197, 64), None),
    "one head for three": (inputs(150, 32, heads=6), random_documents(150, 50)),
    "one head for all": (inputs(90, 20, heads=4, shared=1), random_documents(90, 30)),
    "narrow": (inputs(130, 4), random_documents(130, 50)),
    "wide": (inputs(100, 128), random_documents(100, 50)),
    "widest": (inputs(70, 256, heads=1, shared=1), random_documents(70, 50)),
    "large scores": (inputs(150, 32, size=5.0), random_documents(150, 50)),
}


@pytest.mark.parametrize("name", CASES)
def test_outputs_and_gradients_are_those_of_float64(name: str) -> None:
    given, document = CASES[name]
    wanted, found, theirs = (
        dense(given, document),
        fused(given, document),
        of_torch(given, document),
    )
    # Scores of 600 are known to 3e-5. A token alone has the difference of two equal sums as slope.
    largest = {"large scores": 2e-5, "every token alone but two": 4e-6}.get(name, 2e-6)
    assert max(errors(found, wanted)) <= largest
    assert spread(found, wanted) <= 1.25 * spread(theirs, wanted)


def test_one_token_gets_its_own_value() -> None:
    given = inputs(1, 32)
    o, d_q, d_k, d_v = fused(given, documents([1], [1]))
    assert torch.equal(o, given[2])
    assert torch.equal(d_v, given[3])
    assert d_q.abs().max() < 1e-6 * given[1].abs().max()
    assert d_k.abs().max() < 1e-6 * given[0].abs().max()


@pytest.mark.parametrize("seed", range(12))
def test_any_lengths_and_shapes(seed: int) -> None:
    random = torch.Generator().manual_seed(100 + seed)

    def draw(low: int, high: int) -> int:
        return int(torch.randint(low, high, (), generator=random))

    length, shared = draw(1, 400) if seed % 3 else draw(1, 6), draw(1, 3)
    given = inputs(length, 4 * draw(1, 25), shared * draw(1, 4), shared, draw(1, 4), seed)
    document = random_documents(length, draw(1, 200), len(given[0]), seed)
    assert max(errors(fused(given, document), dense(given, document))) <= 2e-6


def test_results_lie_as_heads_are_merged() -> None:
    given = inputs(70, 32)
    for made in fused(given, None):
        assert made.transpose(1, 2).is_contiguous()


@pytest.mark.parametrize("layout", ["heads first", "features apart", "every second token"])
def test_inputs_may_have_any_strides(layout: str) -> None:
    given, document = inputs(140, 32), random_documents(140, 50)
    wanted = fused(given, document)
    if layout == "heads first":
        moved = tuple(x.contiguous() for x in given)
    elif layout == "features apart":
        moved = tuple(x.mT.contiguous().mT for x in given)
    else:
        moved = tuple(x.repeat_interleave(2, 2)[:, :, ::2] for x in given)
    document = document.repeat_interleave(2, 1)[:, ::2]
    for a, b in zip(fused(moved, document), wanted, strict=True):  # type: ignore[arg-type]
        assert torch.equal(a, b)


def test_the_gradient_of_a_sum_has_no_strides() -> None:
    q, k, v, _ = (x.requires_grad_() for x in inputs(80, 32))
    fused_attention(q, k, v).sum().backward()  # type: ignore[no-untyped-call]
    ones = torch.ones(q.shape)
    for a, b in zip((q, k, v), fused((q, k, v, ones), None)[1:], strict=True):
        assert a.grad is not None
        assert torch.equal(a.grad, b)


@pytest.mark.parametrize("heads", [4, 12])
def test_any_number_of_threads_gives_the_same_bits(heads: int) -> None:
    given, document = inputs(401, 64, heads, 4, rows=4), random_documents(401, 100, rows=4)
    results = []
    for threads in (1, 2, 3):
        torch.set_num_threads(threads)
        results.append(fused(given, document))
    for other in results[1:]:
        assert all(torch.equal(a, b) for a, b in zip(results[0], other, strict=True))


@pytest.mark.parametrize("size", [1.0, 1e15])
def test_documents_do_not_leak(size: float) -> None:
    """What stands in other documents, and how it is cut, does not change a bit of one's own."""
    lengths = [37, 5, 90, 1, 83]
    given, document = inputs(216, 32), documents(lengths, lengths)
    before = fused(given, document)
    other = inputs(216, 32, seed=1)
    own = (document == 2)[:, None, :, None]
    mixed = tuple(torch.where(own, x, size * y) for x, y in zip(given, other, strict=True))
    cut = documents([10, 32, 90, 20, 64], [42, 90, 84])
    for numbers in (document, cut):
        after = fused(mixed, numbers)  # type: ignore[arg-type]
        for a, b in zip(before, after, strict=True):
            assert torch.equal(a[:, :, 42:132], b[:, :, 42:132])
            assert not torch.equal(a[:, :, :42], b[:, :, :42])


def test_a_token_does_not_see_the_future() -> None:
    given = inputs(200, 32)
    before = fused_attention(*given[:3])
    for stop in (1, 63, 64, 100, 199):
        later = [torch.cat((x[:, :, :stop], 9 * x[:, :, stop:]), 2) for x in given[:3]]
        after = fused_attention(later[0], later[1], later[2])
        assert torch.equal(before[:, :, :stop], after[:, :, :stop])


@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_huge_scores_are_numbers(sign: float) -> None:
    q, k, v, d_o = inputs(150, 16)
    q[..., 0], k[..., 0] = sign * 200, 200  # scores of 10,000, which are known to 1e-3
    given, document = (q, k, v, d_o), random_documents(150, 60)
    wanted, found = dense(given, document), fused(given, document)
    assert all(x.isfinite().all() for x in found)
    assert errors(found, wanted)[0] <= 5e-3
    assert errors(found, wanted)[3] <= 5e-3
    q[..., 0] += sign * torch.arange(150.0) * 100  # and of 10,000,000, far apart
    k[..., 0] += torch.arange(150.0) * 100
    assert all(x.isfinite().all() for x in fused(given, document))


def test_scores_of_minus_infinity_count_as_nothing() -> None:
    q, k, v, d_o = inputs(150, 16)
    q[..., 0], k[..., 0] = 1e30, 0.0
    k[:, :, 3:140:3, 0] = -1e30
    mask = mask_of(None, 150) & (k[:, :, None, :, 0] == 0)
    o, d_q, d_k, d_v = fused((q, k, v, d_o), None)
    q[..., 0], k[..., 0] = 0.0, 0.0
    wanted = F.scaled_dot_product_attention(q, k, v, mask)
    assert (o - wanted).abs().max() < 2e-6 * wanted.abs().max()
    assert all(x.isfinite().all() for x in (d_q, d_k, d_v))
    assert not d_v[:, :, 3:140:3].any()


def test_a_query_with_no_score_gets_nothing() -> None:
    q, k, v, d_o = inputs(70, 16)
    q[:, :, 0, 0], k[:, :, 0, 0] = 1e30, -1e30
    o, *gradients = fused((q, k, v, d_o), None)
    assert not o[:, :, 0].any()
    assert all(x.isfinite().all() for x in gradients)


def test_what_is_not_a_number_stays_so() -> None:
    q, k, v, d_o = inputs(150, 16)
    q[:, :, 100, 3] = torch.nan
    o, d_q, d_k, _ = fused((q, k, v, d_o), None)
    assert o[:, :, 100].isnan().all()
    assert o[:, :, :100].isfinite().all()
    assert o[:, :, 101:].isfinite().all()
    assert d_q[:, :, 100].isnan().all()
    assert d_k[:, :, :101].isnan().all()


def test_compiled_code_calls_it_whole() -> None:
    given, document = inputs(90, 32), random_documents(90, 30)
    compiled = torch.compile(
        lambda q, k, v: 2 * fused_attention(q, k, v, document), backend="aot_eager", fullgraph=True
    )
    q, k, v = (x.detach().requires_grad_() for x in given[:3])
    o = compiled(q, k, v)
    found = [o.detach(), *torch.autograd.grad(o, (q, k, v), given[3] / 2)]
    wanted = fused(given, document)
    assert torch.equal(found[0], 2 * wanted[0])
    assert all(torch.equal(a, b) for a, b in zip(found[1:], wanted[1:], strict=True))


def test_torch_finds_nothing_wrong_with_the_operation() -> None:
    q, k, v, d_o = (x.requires_grad_() for x in inputs(20, 8))
    document = documents([20], [7, 13])
    torch.library.opcheck(torch.ops.stamm.attention.default, (q, k, v, document))
    kept = torch.ops.stamm.attention(q, k, v, document)
    told = [x.detach() for x in (d_o, q, k, v, document, *kept)]
    torch.library.opcheck(torch.ops.stamm.attention_backward.default, tuple(told))


def test_checkpointing_gives_the_same_bits() -> None:
    given = inputs(90, 32)
    q, k, v = (x.detach().requires_grad_() for x in given[:3])
    o = torch.utils.checkpoint.checkpoint(fused_attention, q, k, v, use_reentrant=False)
    found = torch.autograd.grad(o, (q, k, v), given[3])
    assert all(torch.equal(a, b) for a, b in zip(found, fused(given, None)[1:], strict=True))


def test_nothing_to_attend_to() -> None:
    for rows, length in ((0, 5), (2, 0)):
        for made in fused(inputs(length, 8, rows=rows), None):
            assert made.numel() == 0


def test_decreasing_documents_are_refused() -> None:
    q, k, v, _ = inputs(5, 8)
    document = torch.tensor([[0, 0, 1, 1, 1], [2, 2, 2, 1, 1]])
    with pytest.raises(DataError, match="decrease"):
        fused_attention(q, k, v, document)


def test_it_tells_what_it_does_not_take() -> None:
    q, k, v, _ = inputs(5, 8, heads=6)
    assert is_supported(q, k, v)
    for wrong in (
        (q.double(), k.double(), v.double()),
        (q, k.bfloat16(), v),
        (q.to("meta"), k, v),
        (q[..., :6], k[..., :6], v[..., :6]),
        (q[:, :5], k, v),
        (q[:, :0], k, v),
        (q[:, :, :4], k, v),
        (q, k, v[:, :, :4]),
        (q[0], k[0], v[0]),
    ):
        assert not is_supported(*wrong)
    for call in (
        lambda: fused_attention(q.double(), k.double(), v.double()),
        lambda: fused_attention(q, k, v, torch.zeros(2, 4).long()),
        lambda: fused_attention(q, k, v, torch.zeros(2, 5)),
    ):
        with pytest.raises(ConfigError):
            call()  # type: ignore[no-untyped-call]


def test_other_derivatives_are_refused() -> None:
    q, k, v, d_o = inputs(5, 8)
    q.requires_grad_()
    with pytest.raises(ConfigError, match="create_graph"):
        torch.autograd.grad(fused_attention(q, k, v), q, d_o, create_graph=True)
    with pytest.raises(ConfigError, match=r"torch\.func"):
        torch.func.grad(lambda x: fused_attention(x, k, v).sum())(q.detach())
    with pytest.raises(ConfigError, match="forward mode"):
        torch.func.jvp(lambda x: fused_attention(x, k, v), (q.detach(),), (d_o,))
