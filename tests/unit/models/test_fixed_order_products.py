"""Products in a fixed order: values, bits with any vectors and threads, and torch's conventions."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from stamm.activations.fused import build
from stamm.base.processor import cpu_flags
from stamm.models import fixed_order_products as products
from stamm.models.determinism import operation_threads

pytestmark = pytest.mark.skipif(
    build.unavailable_reason() is not None, reason="CPU kernels cannot be built"
)
SHAPES = [
    (1, 1, 1), (7, 5, 3), (6, 16, 256), (12, 32, 257), (13, 33, 600), (100, 1, 40), (1, 90, 513),
    (97, 515, 31), (200, 70, 300),
]  # fmt: skip


@pytest.fixture(autouse=True)
def in_context() -> Iterator[None]:
    """Every test runs in the context, and after it torch's products are back."""
    a = normal(64, 300)
    before = a @ a.T
    with products.fixed_order_products():
        yield
    assert (a @ a.T).equal(before)


def normal(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def laid_out(x: Tensor, layout: str) -> Tensor:
    """The same numbers: rows or columns contiguous, or with gaps."""
    if layout == "columns":
        return x.mT.contiguous().mT
    if layout == "gaps":
        wider = torch.zeros(*x.shape[:-1], 2 * x.shape[-1] + 1)
        wider[..., 1::2] = x
        return wider[..., 1::2]
    return x.contiguous()


def assert_close(computed: Tensor, expected: Tensor, inner: int) -> None:
    """Within the error of chains of 256 steps, for numbers of size 1."""
    assert computed.dtype == torch.float32 and computed.shape == expected.shape
    error = (computed.double() - expected).abs().max() if computed.numel() else torch.zeros(())
    assert float(error) < 3e-6 * (inner + 1) ** 0.5 * 4


@pytest.mark.parametrize("shape", SHAPES)
def test_products_are_right_and_have_one_order_in_every_layout(shape: tuple[int, int, int]) -> None:
    rows, columns, inner = shape
    a, b = normal(rows, inner), normal(inner, columns, seed=1)
    expected = a @ b
    assert_close(expected, (a.double() @ b.double()), inner)
    for left, right in itertools.product(("rows", "columns", "gaps"), repeat=2):
        assert (laid_out(a, left) @ laid_out(b, right)).equal(expected)
    for count in (2, 3):
        with operation_threads(count):
            assert (a @ b).equal(expected)
    # A row has the bits that it has alone, and each is the chain of its definition.
    assert (a[-1:] @ b[:, -1:]).equal(expected[-1:, -1:])
    total = np.float32(0)
    for first in range(0, inner, 256):
        chain = np.float32(0)
        for x, y in zip(a[-1, first : first + 256], b[first : first + 256, -1], strict=True):
            chain = np.float32(np.longdouble(float(x)) * np.longdouble(float(y)) + chain)
        total = chain if first == 0 else total + chain
    assert float(total) == float(expected[-1, -1])


@pytest.mark.skipif(not cpu_flags() >= products._WIDE_FLAGS, reason="no AVX-512")
@pytest.mark.parametrize("shape", SHAPES)
def test_both_vector_widths_have_the_same_bits(
    shape: tuple[int, int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    rows, columns, inner = shape
    a, b, c = normal(rows, inner), normal(inner, columns, seed=1), normal(rows, columns, seed=2)
    wide = (a @ b, torch.addmm(c, a, b, beta=0.7, alpha=-1.3))
    narrow = build.function(products.source(wide=False), "products")
    assert narrow is not products.kernel_function("products")
    monkeypatch.setattr(products, "kernel_function", lambda _: narrow)
    assert (a @ b).equal(wide[0])
    assert torch.addmm(c, a, b, beta=0.7, alpha=-1.3).equal(wide[1])


FORMS: dict[str, Callable[[Tensor, Tensor, Tensor, float, float], Tensor]] = {
    "new": lambda c, a, b, beta, alpha: torch.addmm(c, a, b, beta=beta, alpha=alpha),
    "in place": lambda c, a, b, beta, alpha: c.clone().addmm_(a, b, beta=beta, alpha=alpha),
    "out": lambda c, a, b, beta, alpha: torch.addmm(
        c, a, b, beta=beta, alpha=alpha, out=torch.empty(b.shape[1], a.shape[0]).T
    ),
    "batch": lambda c, a, b, beta, alpha: torch.baddbmm(
        c.expand(3, *c.shape), a.expand(3, -1, -1), b.expand(3, -1, -1), beta=beta, alpha=alpha
    )[2],
}


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize(("beta", "alpha"), [(1, 1), (0, 2), (0.5, -1.5), (1, 0)])
def test_added_matrices_follow_beta_and_alpha(form: str, beta: float, alpha: float) -> None:
    a, b, c = normal(30, 300), normal(300, 50, seed=1), normal(30, 50, seed=2)
    expected = beta * c.double() + alpha * (a.double() @ b.double())
    assert_close(FORMS[form](c, a, b, beta, alpha), expected, 600)
    c[3, 4] = torch.nan  # is ignored where beta is 0
    assert bool(FORMS[form](c, a, b, beta, alpha).isnan().any()) == (beta != 0)


def test_what_torch_computes_by_products_has_these_bits() -> None:
    x, weight, bias = normal(4, 9, 40), normal(24, 40, seed=1), normal(24, seed=2)
    expected = x.flatten(0, 1) @ weight.T
    assert F.linear(x, weight).flatten(0, 1).equal(expected)
    assert torch.einsum("abk,ck->abc", x, weight).flatten(0, 1).equal(expected)
    assert_close(F.linear(x, weight, bias), (x.double() @ weight.double().T + bias), 40)
    x.requires_grad_()
    weight.requires_grad_()
    d_x, d_weight = torch.autograd.grad(F.linear(x, weight).sum(), (x, weight))
    assert d_x.equal((torch.ones(36, 24) @ weight.detach()).view_as(x))
    assert d_weight.equal(torch.ones(24, 36) @ x.detach().flatten(0, 1))


def test_infinities_and_nan_stay_in_their_rows_and_columns() -> None:
    a, b = torch.ones(13, 20), torch.ones(20, 35)
    a[2, 3], b[7, 30] = torch.inf, torch.nan
    y = a @ b
    assert bool(y[2, :30].isposinf().all()) and bool(y[:, 30].isnan().all())
    rest = torch.ones(13, 35, dtype=torch.bool)
    rest[2], rest[:, 30] = False, False
    assert bool((y[rest] == 20).all())


def test_empty_factors_other_dtypes_and_errors_are_torchs() -> None:
    assert torch.empty(0, 4).mm(torch.empty(4, 3)).shape == (0, 3)
    assert normal(2, 0).mm(normal(0, 3)).equal(torch.zeros(2, 3))
    assert torch.addmm(torch.ones(3), normal(2, 0), normal(0, 3)).equal(torch.ones(2, 3))
    assert torch.bmm(torch.empty(0, 2, 4), torch.empty(0, 4, 3)).shape == (0, 2, 3)
    whole = torch.arange(6).view(2, 3)
    assert (whole @ whole.T).tolist() == [[5, 14], [14, 50]]
    double = normal(5, 6).double()
    assert (double @ double.T).dtype == torch.float64
    square = normal(8, 8)
    with pytest.raises(RuntimeError, match="shapes cannot be multiplied"):
        normal(2, 3) @ normal(4, 5)
    with pytest.raises(RuntimeError, match="should match"):
        normal(1, 8).addmm_(square, square)
    resized = torch.empty(0)
    assert torch.mm(square, square, out=resized).equal(square @ square)


IN_PLACE: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "addmm_ left": lambda x, y: x.addmm_(x, y),
    "addmm_ both": lambda x, _: x.addmm_(x, x),
    "mm left": lambda x, y: torch.mm(x, y, out=x),
    "mm transposed": lambda x, y: torch.mm(y, x.mT, out=x),
    "addmm right": lambda x, y: torch.addmm(y, y, x, out=x),
    "addmm added": lambda x, y: torch.addmm(x, y, y, out=x),
    "addmm view": lambda x, y: torch.addmm(x.mT, y, y, out=x),
}


@pytest.mark.parametrize("form", IN_PLACE)
def test_a_result_may_be_written_over_any_argument(form: str) -> None:
    x, y = normal(300, 300), normal(300, 300, seed=1)
    expected = {
        "addmm_ left": x + x @ y, "addmm_ both": x + x @ x, "mm left": x @ y, "mm transposed": y @ x.T,
        "addmm right": y + y @ x, "addmm added": x + y @ y, "addmm view": x.T + y @ y,
    }[form]  # fmt: skip
    assert torch.allclose(IN_PLACE[form](x, y), expected, atol=1e-3)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_square_roots_are_rounded_to_the_nearest(dtype: torch.dtype) -> None:
    x = torch.cat((normal(10_007).abs(), torch.tensor([0.0, -0.0, torch.inf, 1e-42]))).to(dtype)
    expected = torch.from_numpy(np.sqrt(x.numpy()))
    assert x.sqrt().equal(expected) and torch._foreach_sqrt([x])[0].equal(expected)
    assert x.clone()[::3].sqrt_().equal(expected[::3])
    assert torch.sqrt(x, out=torch.empty(0, dtype=dtype)).equal(expected)
    assert torch.tensor(-1.0, dtype=dtype).sqrt().isnan()
    assert torch.tensor([4]).sqrt().equal(torch.tensor([2.0]))


def test_only_the_context_has_these_products(monkeypatch: pytest.MonkeyPatch) -> None:
    called: list[str] = []
    function = products.kernel_function

    def noted(name: str) -> Callable[..., None]:
        called.append(name)
        return function(name)

    a = normal(64, 300)
    monkeypatch.setattr(products, "kernel_function", noted)
    assert len(a @ a.T) == 64 and called == ["products"]
