"""Matrix products whose bits do not depend on the processor: `torch.mm` and its kin in float32 on a CPU.

MKL chooses code, and with it the order of additions, by the vendor and the vectors of the processor. The
kernel here (fixed_order_products.h) has one order, whatever the vectors' width, layouts and number of threads.
MKL's square root starts from an approximation by the processor, which differs by vendor; here it is exactly rounded.

Letters: N matrices of a batch, R rows, C columns, K inner.
"""

from __future__ import annotations

import ctypes
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from stamm.activations.fused import build
from stamm.base.processor import cpu_flags

_SOURCE = Path(__file__).with_name("fixed_order_products.h")
# GCC takes the first, Clang the second: no product and sum become one rounding, unless it is written so.
_APART = '#pragma GCC optimize("fp-contract=off")\n#pragma STDC FP_CONTRACT OFF\n'
# Clang ignores it, and keeps to AVX2.
_WIDE = '#pragma GCC target("avx512f,avx512dq,avx512vl,avx512bw")\n'
_WIDE_FLAGS = {"avx512f", "avx512dq", "avx512vl", "avx512bw"}
_PLAIN = ("mm", "mm.out", "bmm", "bmm.out")
_ADDED = ("addmm", "addmm.out", "addmm_", "baddbmm", "baddbmm.out", "baddbmm_")


class _Matrices(ctypes.Structure):
    _fields_ = (
        ("data", ctypes.c_void_p),
        *((name, ctypes.c_int64) for name in ("batch", "row", "column")),
    )


@contextmanager
def fixed_order_products() -> Iterator[None]:
    """Context in which products and square roots of the whole process have these bits, in all its threads.

    Products are torch.mm, addmm, bmm, baddbmm and all that torch computes by them (matmul, linear, einsum)
    for float32 on a CPU. `alpha A B` is a sum of chains of 256 fused multiply-adds; `beta` times the added
    matrix comes before them.

    Edge     other dtypes and empty factors: torch's own kernel
    Raises   RunError where the kernel cannot be built
    Checked  tests/unit/models/test_fixed_order_products.py
    """
    kernel_function("products")
    library: Any = torch.library.Library("aten", "IMPL")  # type: ignore[no-untyped-call]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that a kernel of torch is replaced
        for name in (*_PLAIN, *_ADDED):
            original = torch.library.get_kernel(f"aten::{name}", "CPU")
            library.impl(name, partial(_product, name, original), "CPU", with_keyset=True)
        for form in ("", ".out", "_"):
            original = torch.library.get_kernel(f"aten::sqrt{form}", "CPU")
            library.impl(f"sqrt{form}", partial(_sqrt, form, original), "CPU", with_keyset=True)
    try:
        yield
    finally:
        del library  # the last reference: torch's kernels are back


def _sqrt(form: str, original: Any, keyset: Any, x: Tensor, *, out: Tensor | None = None) -> Tensor:
    """Rounded to the nearest, by the processor's instruction."""
    if x.dtype not in (torch.float32, torch.float64):
        options = {} if out is None else {"out": out}
        result: Tensor = original.call_boxed(keyset, x, **options)
        return result
    held = x.contiguous()
    y = torch.empty_like(held)
    kernel_function("roots" if x.dtype == torch.float32 else "wide_roots")(
        *(ctypes.c_void_p(tensor.data_ptr()) for tensor in (held, y)), ctypes.c_int64(x.numel())
    )
    given = x if form == "_" else out
    return y if given is None else given.resize_(x.shape).copy_(y)


def _product(name: str, original: Any, keyset: Any, *tensors: Tensor, **options: Any) -> Tensor:
    """One of torch's products, with its arguments."""
    *added, left, right = tensors
    given: Tensor | None = added[0] if name.endswith("_") else options.get("out")
    misfits = name.endswith("_") and added[0].shape[-2:] != (left.shape[-2], right.shape[-1])
    if misfits or not _is_supported(left, right, (*added, *([] if given is None else [given]))):
        result: Tensor = original.call_boxed(keyset, *tensors, **options)
        return result
    shape = torch.Size((*left.shape[:-1], right.shape[-1]))
    others = [left, right, *(x for x in added if x is not given)]
    writes = given is not None and _is_writable(given, shape, others)
    y = given if writes and given is not None else left.new_empty(shape)
    beta, alpha = float(options.get("beta", 1)), float(options.get("alpha", 1))
    adds = bool(added) and beta != 0
    if adds:
        if added[0] is not y:
            y.copy_(added[0].expand(shape))
        if beta != 1:
            y.mul_(beta)
    _multiply(left, right, y, alpha, adds)
    return y if given is None or writes else given.resize_(shape).copy_(y)


def _is_supported(left: Tensor, right: Tensor, others: Sequence[Tensor]) -> bool:
    """Whether factors of one of torch's products are float32, fit and are not empty."""
    return (
        left.dtype == right.dtype == torch.float32
        and all(x.dtype == torch.float32 for x in others)
        and left.dim() == right.dim()
        and left.shape[-1] == right.shape[-2]
        and left.shape[:-2] == right.shape[:-2]
        and left.numel() != 0
        and right.numel() != 0
    )


def _is_writable(given: Tensor, shape: torch.Size, others: Sequence[Tensor]) -> bool:
    """Whether the result can be added up in `given`, which shares no memory with `others`."""
    storage = given.untyped_storage().data_ptr()
    shared = any(x.untyped_storage().data_ptr() == storage for x in others)
    return (
        given.shape == shape and (given.is_contiguous() or given.mT.is_contiguous()) and not shared
    )


def _multiply(left: Tensor, right: Tensor, y: Tensor, alpha: float, adds: bool) -> None:
    tensors = [x if x.dim() == 3 else x[None] for x in (left, right, y)]
    sizes = *tensors[2].shape, left.shape[-1]
    kernel_function("products")(
        (_Matrices * 3)(*(_Matrices(x.data_ptr(), *x.stride()) for x in tensors)),
        (ctypes.c_int64 * 4)(*sizes),
        ctypes.c_float(alpha),
        ctypes.c_int(adds),
        ctypes.c_int(torch.get_num_threads()),
    )


def source(*, wide: bool) -> str:
    """The kernel's C++, for vectors of 64 bytes or for those of the process; results are the same."""
    return (_WIDE if wide else "") + _APART + _SOURCE.read_text(encoding="utf-8")


@lru_cache(maxsize=3)
def kernel_function(name: str) -> Callable[..., None]:
    """A compiled function: with AVX-512 where the processor has it, even if torch may not use it."""
    return build.function(source(wide=cpu_flags() >= _WIDE_FLAGS), name)
