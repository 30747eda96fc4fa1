"""Fused causal attention within documents for CPUs, which skips masked keys.

torch's kernel computes the whole T x T square for any attention mask. This one, in C++
(fused_attention.h), starts at the first token of a query's document and ends at the query.

Letters: B batch, T tokens, H heads, K key-value heads, E head width.

Source   Dao 2023 (arXiv 2307.08691) for the order of work.
"""

from __future__ import annotations

import ctypes
import math
from collections.abc import Callable
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from stamm.activations.fused import build
from stamm.base.errors import ConfigError, DataError, RunError
from stamm.models.config import FUSED_HEAD_STEP, WIDEST_FUSED_HEAD

_SOURCE = Path(__file__).with_name("fused_attention.h")
_TROUBLE = {
    1: DataError(
        "the numbers of documents decrease along a row",
        fix="Number documents in their order, or use an attention mask",
    ),
    2: RunError("out of memory in a thread of fused attention"),
}


class _Rows(ctypes.Structure):
    _fields_ = (
        ("data", ctypes.c_void_p),
        ("batch", ctypes.c_int64),
        ("head", ctypes.c_int64),
        ("token", ctypes.c_int64),
    )


def unavailable_reason() -> str | None:
    """Why the kernel cannot be used here; None if it can.

    It is built once and its results are compared with those of plain torch operations.
    """
    return _unavailable_reason()


def source() -> str:
    """The kernel's C++."""
    return _SOURCE.read_text(encoding="utf-8")


def is_supported(q_BHTE: Tensor, k_BKTE: Tensor, v_BKTE: Tensor) -> bool:
    """Whether the kernel supports these tensors: float32 on a CPU, one length, E a multiple of 4."""
    return _refusal(q_BHTE, k_BKTE, v_BKTE) is None


def fused_attention(
    q_BHTE: Tensor, k_BKTE: Tensor, v_BKTE: Tensor, document_BT: Tensor | None = None
) -> Tensor:
    """softmax(q . k / sqrt(E)) v, causal within documents, shape (B, H, T, E).

    document_BT   a number per token, not decreasing along a row; None means one document a row

    Needs    `unavailable_reason()` is None
    Layout   of results and gradients: (B, T, H, E) in memory, so that heads merge without a copy.
             Inputs may have any strides; those whose features are not contiguous are copied.
    Edge     H may be a multiple of K. A query whose scores are all -inf gets 0.
    Bits     the same with any number of threads. Finite values of other documents do not change
             a document's outputs and gradients.
    Memory   two numbers a query are saved, no scores.
    Compile  one opaque operation, without a graph break.
    Raises   ConfigError for tensors that are not supported (`is_supported`), in a backward pass with
             create_graph=True, for gradients of torch.func and for forward mode; DataError for
             documents whose numbers decrease
    Checked  tests/unit/models/test_fused_attention.py
    """
    o_BHTE, _ = torch.ops.stamm.attention(q_BHTE, k_BKTE, v_BKTE, document_BT)
    return o_BHTE  # type: ignore[no-any-return]


def _refusal(q: Tensor, k: Tensor, v: Tensor) -> str | None:
    if {x.dtype for x in (q, k, v)} != {torch.float32}:
        return f"they are {q.dtype}, {k.dtype} and {v.dtype}, not float32"
    if {x.device.type for x in (q, k, v)} != {"cpu"}:
        return f"they are on {q.device}, {k.device} and {v.device}, not on a CPU"
    if q.dim() != 4 or k.dim() != 4 or k.shape != v.shape:
        return f"their shapes are {tuple(q.shape)}, {tuple(k.shape)} and {tuple(v.shape)}"
    batch, heads, length, width = q.shape
    if (batch, length, width) != (k.shape[0], k.shape[2], k.shape[3]):
        return f"queries and keys have shapes {tuple(q.shape)} and {tuple(k.shape)}"
    if not heads or not k.shape[1] or heads % k.shape[1]:
        return f"{heads} heads do not divide among {k.shape[1]} key-value heads"
    if not 0 < width <= WIDEST_FUSED_HEAD or width % FUSED_HEAD_STEP:
        return f"the heads' width is {width}, not a multiple of {FUSED_HEAD_STEP} up to {WIDEST_FUSED_HEAD}"
    return None


def _check(q: Tensor, k: Tensor, v: Tensor, document: Tensor | None) -> None:
    why = _refusal(q, k, v)
    if why is not None:
        raise ConfigError(
            f"fused attention does not support these queries, keys and values: {why}",
            fix="Check is_supported(q, k, v) first, and use an attention mask otherwise",
        )
    if document is None:
        return
    if document.shape != (q.shape[0], q.shape[2]) or document.dtype != torch.int64:
        raise ConfigError(
            f"the documents' numbers are {document.dtype} of shape {tuple(document.shape)}",
            fix=f"Pass int64 of shape {(q.shape[0], q.shape[2])}",
        )
    if document.device.type != "cpu":
        raise ConfigError(
            f"the documents' numbers are on {document.device}", fix="Move them to the CPU"
        )


_NAME = "stamm::attention"
# Defined piece by piece: torch.library.custom_op loads torch's compiler at the first call, 1 to 2 s.
torch.library.define(
    _NAME,
    "(Tensor q, Tensor k, Tensor v, Tensor? document) -> (Tensor, Tensor)",
    tags=torch.Tag.pt2_compliant_tag,
)
torch.library.define(
    f"{_NAME}_backward",
    "(Tensor d_o, Tensor q, Tensor k, Tensor v, Tensor? document, Tensor o, Tensor kept)"
    " -> (Tensor, Tensor, Tensor)",
    tags=torch.Tag.pt2_compliant_tag,
)


@torch.library.impl(_NAME, "CPU")
def _forward(q: Tensor, k: Tensor, v: Tensor, document: Tensor | None) -> tuple[Tensor, Tensor]:
    """Outputs, and each query's highest score and 1/sum, (B, H, 2, T)."""
    o, kept = _results(q, k, v, document)
    _call("attention", (q, k, v, o), document, kept)
    return o, kept


@torch.library.impl(f"{_NAME}_backward", "CPU")
def _backward(
    d_o: Tensor, q: Tensor, k: Tensor, v: Tensor, document: Tensor | None, o: Tensor, kept: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of q, k and v."""
    made = _gradients(d_o, q, k, v, document, o, kept)
    _call("attention_backward", (q, k, v, o, d_o, *made), document, kept)
    return made


def _results(q: Tensor, k: Tensor, v: Tensor, document: Tensor | None) -> tuple[Tensor, Tensor]:
    """Empty tensors for the results."""
    _check(q, k, v, document)
    batch, heads, length, _ = q.shape
    return _empty(q), q.new_empty(batch, heads, 2, length)


def _gradients(
    d_o: Tensor, q: Tensor, k: Tensor, v: Tensor, document: Tensor | None, o: Tensor, kept: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Empty tensors for the gradients."""
    return _empty(q), _empty(k), _empty(v)


def _empty(like_BHTE: Tensor) -> Tensor:
    batch, heads, length, width = like_BHTE.shape
    return like_BHTE.new_empty(batch, length, heads, width).transpose(1, 2)


torch.library.register_fake(_NAME, _results)
torch.library.register_fake(f"{_NAME}_backward", _gradients)


def _call(name: str, tensors: tuple[Tensor, ...], document: Tensor | None, kept: Tensor) -> None:
    q, k = tensors[:2]
    if q.numel() == 0:
        return
    # Outputs are allocated here with contiguous features, so only inputs are copied.
    held = [x if x.stride(3) == 1 else x.contiguous() for x in tensors]
    rows = [_Rows(x.data_ptr(), *x.stride()[:3]) for x in held]
    if document is not None:
        document = document.contiguous()
    trouble = ctypes.c_int(0)
    _function(name)(
        (_Rows * len(rows))(*rows),
        (ctypes.c_int64 * 5)(q.shape[0], q.shape[1], k.shape[1], q.shape[2], q.shape[3]),
        ctypes.c_void_p(None if document is None else document.data_ptr()),
        ctypes.c_int64(q.shape[2]),
        ctypes.c_void_p(kept.data_ptr()),
        ctypes.c_int(torch.get_num_threads()),
        ctypes.byref(trouble),
    )
    if trouble.value:
        raise _TROUBLE[trouble.value]


@lru_cache(maxsize=2)
def _function(name: str) -> Callable[..., None]:
    return build.function(source(), name)


class _Attention(torch.autograd.Function):
    """The operation with its gradients."""

    @staticmethod
    def forward(*inputs: Any) -> Any:
        return _below(*inputs)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
        ctx.mark_non_differentiable(output[1])
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(*inputs, *output)

    @staticmethod
    def backward(ctx: Any, d_o: Tensor | None, _: None) -> Any:
        if torch.is_grad_enabled():
            raise ConfigError(
                "fused attention has no second derivative, and was differentiated with"
                " create_graph=True",
                fix="Use torch.nn.functional.scaled_dot_product_attention",
            )
        if d_o is None:
            return (None,) * 4
        return *torch.ops.stamm.attention_backward(d_o, *ctx.saved_tensors), None


@torch.library.impl(_NAME, "Autograd")
def _(q: Tensor, k: Tensor, v: Tensor, document: Tensor | None) -> Any:
    """Autograd kernel. torch.library.register_autograd would ignore a tangent without an error."""
    followed = torch.is_grad_enabled() and any(x.requires_grad for x in (q, k, v))
    transformed = followed and torch._C._functorch.get_dynamic_layer_stack_depth() > 0
    if transformed or any(_has_tangent(x) for x in (q, k, v)):
        raise ConfigError(
            "fused attention has no forward mode and no gradients of torch.func",
            fix="Use torch.autograd.grad or backward, or an attention mask",
        )
    if followed:
        return _Attention.apply(q, k, v, document)  # type: ignore[no-untyped-call]
    return _below(q, k, v, document)


def _below(*inputs: Any) -> Any:
    with torch._C._AutoDispatchBelowAutograd():
        return torch.ops.stamm.attention(*inputs)


def _has_tangent(x: Tensor) -> bool:
    return torch._VF._unpack_dual(x, level=0).tangent is not None


@lru_cache(maxsize=1)
def _unavailable_reason() -> str | None:
    why = build.unavailable_reason()
    if why is not None:
        return why
    try:
        return None if _agrees() else "its results differ from torch's attention on this machine"
    except RunError as error:
        return error.line()


def _agrees() -> bool:
    """Outputs and gradients on two rows of documents of several lengths, to float32's accuracy."""
    random = torch.Generator().manual_seed(0)
    shapes = [(2, 2, 83, 20), (2, 1, 83, 20), (2, 1, 83, 20), (2, 2, 83, 20)]
    q, k, v, d_o = (torch.randn(shape, generator=random) for shape in shapes)
    document = (torch.arange(83) >= torch.tensor([[30], [71]])).long()
    mask = (document[:, None, :, None] == document[:, None, None, :]).tril()
    ours = torch.ops.stamm.attention(q, k, v, document)
    computed = [ours[0], *torch.ops.stamm.attention_backward(d_o, q, k, v, document, *ours)]
    with torch.enable_grad():
        given = [x.double().requires_grad_() for x in (q, k, v)]
        scores = given[0] @ given[1].mT / math.sqrt(20)
        o = scores.masked_fill(~mask, -torch.inf).softmax(-1) @ given[2]
        expected = [o, *torch.autograd.grad(o, given, d_o.double())]
    return all(
        bool((a - b).abs().max() < 1e-5 * b.abs().max())
        for a, b in zip(computed, expected, strict=True)
    )
