"""A step of decoding through a decoder's layers by one C++ kernel, and the choice of it.

For few rows each of torch's operations takes longer to call than to compute, and a processor reads a
matrix fastest from its first number to its last, in large pages. The kernel (decode_kernel.h) is for
float32 on a CPU, is compiled at first use, and is used unless torch is measured to be faster.

Letters: as in `decode_layer`; I inputs of a matrix, O outputs.

Checked  tests/unit/models/test_decode_kernel.py
"""

from __future__ import annotations

import contextlib
import ctypes
import mmap
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from stamm.activations.fused import build
from stamm.activations.fused.operation import report_once
from stamm.activations.module import build_activation
from stamm.base.autotune import measured
from stamm.base.errors import ConfigError, RunError
from stamm.models.attention_mask import cache_mask
from stamm.models.decode_layer import (
    DecodeStack,
    Factors,
    HeadShape,
    LayerWeights,
    Norm,
    StackWeights,
    TorchStack,
)
from stamm.models.rope import rotation

_SOURCE = Path(__file__).with_name("decode_kernel.h")
_LANES = 16  # of the widest vector
_BLOCK = 4  # rows of a packed matrix, that alternate
_WIDEST = 512  # head width
_MOST_EXPERTS = 256
_PROBED = (16, 128)  # most rows, and columns, of the measurement
_POINTERS, _WHOLES = ctypes.c_void_p, ctypes.c_int64
_PASS = ctypes.CFUNCTYPE(
    None, *[_POINTERS] * 2, _WHOLES, _WHOLES, *[_POINTERS] * 3, ctypes.c_int
)  # of `pointwise.h`


class AttentionPointers(ctypes.Structure):
    """Attention of a layer, as in the kernel."""

    _fields_ = (
        *((name, _POINTERS) for name in ("norm", "angles", "keys", "values", "scores")),
        *((name, _WHOLES) for name in ("rows", "heads", "kv_heads", "width", "columns")),
        ("eps", ctypes.c_float),
    )


class _MatrixPointers(ctypes.Structure):
    _fields_ = (
        *((name, _POINTERS) for name in ("weight", "bias")),
        *((name, _WHOLES) for name in ("outputs", "inputs", "packed")),
    )


class _FactorPointers(ctypes.Structure):
    _fields_ = tuple((name, _MatrixPointers) for name in ("first", "last"))


class _BlockPointers(ctypes.Structure):
    _fields_ = tuple((name, _FactorPointers) for name in ("gate", "up", "down"))


class _LayerPointers(ctypes.Structure):
    _fields_ = (
        ("attention", AttentionPointers),
        *((name, _POINTERS) for name in ("attention_norm", "ffn_norm")),
        *((name, ctypes.c_float) for name in ("attention_eps", "ffn_eps")),
        *((name, _MatrixPointers) for name in ("q", "k", "v", "out", "router")),
        ("blocks", ctypes.POINTER(_BlockPointers)),
        *((name, _WHOLES) for name in ("shared", "active")),
        *((name, _POINTERS) for name in ("activation", "parameters")),
        ("by_column", _WHOLES),
    )


class _StackPointers(ctypes.Structure):
    _fields_ = (
        ("layers", ctypes.POINTER(_LayerPointers)),
        *((name, _WHOLES) for name in ("count", "rows", "d_model")),
        ("norm", _POINTERS),
        ("eps", ctypes.c_float),
        ("head", _MatrixPointers),
        *(
            (name, _POINTERS)
            for name in ("normal", "added", "qkv", "attended", "gate", "up", "inner")
        ),
        ("multiplied", _POINTERS),
    )


class FusedStack:
    """The step by the kernel.

    Needs    `unavailable_reason()` is None, and `is_supported` for the weights
    Memory   of a model that `is_small` the matrices again, in another order; else of experts the last ones
    Bits     of a row the same whatever other rows hold and however many there are, with any number of
             threads
    Raises   ConfigError for tensors that do not fit what is bound
    """

    def __init__(self, weights: StackWeights) -> None:
        self._weights, self._pages = weights, _Pages(weights)
        self._kept: list[Any] = []  # what the structures point to
        self._raised: list[BaseException] = []
        self._multiplied = ctypes.c_int64()
        self._layers = (_LayerPointers * len(weights.layers))(*map(self._layer, weights.layers))
        self._head = self._matrix(weights.head)

    @property
    def multiplied_experts(self) -> int:
        """Experts multiplied so far, over all rows, steps and layers."""
        return self._multiplied.value

    def bind(self, keys: Sequence[Tensor], values: Sequence[Tensor]) -> None:
        """Use this KV cache, which must stay where it is in memory."""
        rows, _, columns, _ = keys[0].shape
        shape = self._weights.shape
        cache = torch.Size((rows, shape.kv_heads, max(columns, _LANES), shape.width))
        self._caches = [_checked(x, cache) for x in (*keys, *values)]
        self._columns = columns
        halves = rotation(self._weights.frequencies, torch.arange(columns))
        angles = torch.cat([half[:, : shape.width // 2] for half in halves], dim=-1)
        scores = torch.empty(rows * shape.heads, columns + 2 * _LANES)
        first, d_model = self._layers[0], len(self._norm.weight)
        # Zeros: behind an odd number of hidden neurons are inputs of the last matrix.
        width = _padded(self._weights.layers[0].width) * first.active
        gate, up = (torch.zeros(rows, width) for _ in range(2))
        inner = torch.zeros(2, rows, _padded(max(layer.rank for layer in self._weights.layers)))
        normal, added = (torch.empty(rows, d_model) for _ in range(2))
        qkv = torch.empty(rows, shape.heads + 2 * shape.kv_heads, shape.width)
        attended = torch.empty(rows, shape.heads, shape.width)
        buffers = (normal, added, qkv, attended, gate, up, inner)
        self._buffers = (angles, scores, *buffers)
        self._gate, self._up = gate, up
        rest = angles.data_ptr(), scores.data_ptr()
        sizes = rows, shape.heads, shape.kv_heads, shape.width, columns
        for layer, weights, k, v in zip(
            self._layers, self._weights.layers, keys, values, strict=True
        ):
            norm = _qk_norm(weights.qk_norm, shape)
            pointers = norm[0], rest[0], k.data_ptr(), v.data_ptr(), rest[1]
            layer.attention = AttentionPointers(*pointers, *sizes, norm[1])
        self._x_shape = torch.Size((rows, d_model))
        self._stack = _StackPointers(
            self._layers,
            len(self._layers),
            rows,
            d_model,
            _checked(self._norm.weight, torch.Size((d_model,))).data_ptr(),
            self._norm.eps,
            self._head,
            *(buffer.data_ptr() for buffer in buffers),
            ctypes.addressof(self._multiplied),
        )

    def __call__(
        self, x_BD: Tensor, position_B: Tensor, mask_BC: Tensor, column: int, longest: int
    ) -> Tensor:
        """The logits, as in `DecodeStack`; the mask is not read."""
        if not (0 <= column < mask_BC.shape[1] == self._columns):
            raise ConfigError(f"no column {column} in a KV cache of {self._columns}")
        logits_BV = x_BD.new_empty(len(x_BD), len(self._weights.head))
        function("decode_step")(
            ctypes.byref(self._stack),
            _checked(x_BD, self._x_shape).data_ptr(),
            _checked(position_B, self._x_shape[:1], torch.int64).data_ptr(),
            column,
            logits_BV.data_ptr(),
            torch.get_num_threads(),
        )
        if self._raised:
            raise self._raised.pop()
        return logits_BV

    @property
    def _norm(self) -> Norm:
        return self._weights.norm

    def _layer(self, weights: LayerWeights) -> _LayerPointers:
        d_model = self._norm.weight.shape
        norms = weights.attention_norm, weights.ffn_norm
        biases = weights.biases or (None,) * 3
        qkv = [self._matrix(w, b) for w, b in zip(weights.projections, biases, strict=True)]
        router = weights.router
        blocks = [
            _BlockPointers(
                *(
                    _FactorPointers() if factors is None else self._factors(factors)
                    for factors in block
                )
            )
            for block in weights.blocks
        ]
        return _LayerPointers(
            AttentionPointers(),
            *(_checked(norm.weight, d_model).data_ptr() for norm in norms),
            *(norm.eps for norm in norms),
            *qkv,
            self._matrix(weights.out),
            _MatrixPointers() if router is None else self._matrix(router.weight.detach()),
            (_BlockPointers * len(blocks))(*blocks),
            *((0, 1) if router is None else (router.experts.shared, router.experts.active)),
            *self._activation(weights),
        )

    def _factors(self, factors: Factors) -> _FactorPointers:
        *first, last = map(self._matrix, factors)
        return _FactorPointers(first[0] if first else _MatrixPointers(), last)

    def _matrix(self, weight_OI: Tensor, bias_O: Tensor | None = None) -> _MatrixPointers:
        kept, packed = self._pages.packed(weight_OI), True
        if kept is None:
            kept, packed = _checked(weight_OI, weight_OI.shape), False
        bias = None if bias_O is None else _checked(bias_O, weight_OI.shape[:1]).data_ptr()
        self._kept.append(kept)
        return _MatrixPointers(
            kept.data_ptr(), bias, len(weight_OI), _padded(weight_OI.shape[1]), packed
        )

    def _activation(self, weights: LayerWeights) -> tuple[Any, int | None, bool]:
        """Function, parameters, and whether each column has its own."""
        compiled = weights.activation.frozen_pass()
        if compiled is not None:
            self._kept.append(compiled)
            return compiled.address, compiled.parameters.data_ptr(), compiled.by_column
        # An order of evaluation that only torch has: called back.
        by_torch = weights.activation.frozen()

        def activate(_: int, __: int, rows: int, columns: int, *___: object) -> None:
            try:
                buffers = [self._up] if weights.gate is None else [self._gate, self._up]
                whole = [buffer.flatten()[: rows * _padded(columns)] for buffer in buffers]
                inputs = [buffer.view(rows, -1)[:, :columns] for buffer in whole]
                with torch.no_grad():
                    inputs[-1].copy_(by_torch(*inputs))
            except BaseException as error:  # raised by the step: C++ cannot
                self._raised.append(error)

        callback = _PASS(activate)
        self._kept.append(callback)
        return ctypes.cast(callback, _POINTERS).value, None, False


class _Pages:
    """Packed matrices, one after another in large pages of memory.

    Packed are those of a small model, and those that the kernel cannot read as they are.
    """

    def __init__(self, weights: StackWeights) -> None:
        chosen = [
            w
            for w in weights.matrices
            if weights.is_small or w.shape[1] % _LANES or not w.is_contiguous()
        ]
        self._chosen = {w.data_ptr() for w in chosen}
        self._used = 0
        size = 4 * sum(_packed_size(w) for w in chosen) or mmap.PAGESIZE
        pages = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        with contextlib.suppress(OSError):  # a system without them
            pages.madvise(mmap.MADV_HUGEPAGE)
        self._numbers = torch.frombuffer(pages, dtype=torch.float32)

    def packed(self, weight_OI: Tensor) -> Tensor | None:
        """A copy in the kernel's order, or None for one that is read as it is."""
        if weight_OI.data_ptr() not in self._chosen:
            return None
        (outputs, inputs), size = weight_OI.shape, _packed_size(weight_OI)
        copied = self._numbers[self._used : self._used + size]
        self._used += size
        missing = (0, -inputs % _LANES, 0, -outputs % _BLOCK)
        whole = F.pad(weight_OI, missing) if any(missing) else weight_OI
        blocks = whole.view(-1, _BLOCK, whole.shape[1] // _LANES, _LANES)
        copied.view(blocks.shape[0], -1, _BLOCK, _LANES).copy_(blocks.transpose(1, 2))
        return copied


def _packed_size(weight_OI: Tensor) -> int:
    outputs, inputs = weight_OI.shape
    return -(-outputs // _BLOCK) * _BLOCK * _padded(inputs)


def _padded(inputs: int) -> int:
    return -(-inputs // _LANES) * _LANES


def build_stack(weights: StackWeights, rows: int) -> DecodeStack:
    """The faster step for a decoder and a number of rows; torch's where the kernel cannot be used.

    Edge     measured once on a machine for each shape and number of rows, of at most 16; kept in the
             cache folder. Where the kernel cannot be built, the reason is reported once
    """
    if not is_supported(weights):
        return TorchStack(weights, rows)
    if (reason := unavailable_reason()) is not None:
        report_once(f"torch computes the steps of decoding, more slowly: {reason}")
        return TorchStack(weights, rows)
    return _KINDS[_chosen(weights, rows)](weights, rows)


_KINDS: dict[str, Callable[[StackWeights, int], DecodeStack]] = {
    "stamm": lambda weights, _: FusedStack(weights),
    "torch": TorchStack,
}


def is_supported(weights: StackWeights) -> bool:
    """Whether the kernel supports a decoder: float32 on a CPU, widths that are multiples of 16, no steering."""
    width, like = weights.shape.width, weights.head
    whole = width % _LANES == 0 and like.shape[1] % _LANES == 0
    plain = all(
        layer.steering is None and len(layer.blocks) <= _MOST_EXPERTS for layer in weights.layers
    )
    return like.dtype == torch.float32 and like.is_cpu and whole and width <= _WIDEST and plain


@lru_cache(maxsize=1)
def unavailable_reason() -> str | None:
    """Why the kernel cannot be used here; None if it can.

    It is built once and its results are compared with those of torch's operations.
    """
    why = build.unavailable_reason()
    if why is not None:
        return why
    try:
        arms = _arms(_example(), 5)
        output, expected = (arm() for arm in arms.values())
    except RunError as error:
        return error.line()
    agree = torch.allclose(output, expected, rtol=1e-4, atol=1e-4)
    return None if agree else "its results differ from torch's on this machine"


def _example() -> StackWeights:
    """Random weights of one layer, with grouped heads and widths that do not fill vectors."""
    normal = partial(torch.randn, generator=torch.Generator().manual_seed(0))
    layer = LayerWeights(
        attention_norm=Norm(normal(64), 1e-5),
        projections=[normal(64, 64), normal(32, 64), normal(32, 64)],
        biases=[],
        qk_norm=Norm(normal(6, 16), 1e-5),
        out=normal(64, 64) / 8,
        ffn_norm=Norm(normal(64), 1e-5),
        gate=None,
        up=(normal(39, 64) / 8,),
        down=(normal(21, 39) / 8, normal(64, 21) / 4),
        activation=build_activation("relu"),
    )
    return StackWeights(
        shape=HeadShape(4, 2, 16),
        layers=[layer],
        norm=Norm(normal(64), 1e-5),
        head=normal(50, 64) / 8,
        frequencies=normal(8).abs(),
    )


def _chosen(weights: StackWeights, rows: int) -> str:
    shape, first = weights.shape, weights.layers[-1]
    rows = min(1 << (rows - 1).bit_length(), _PROBED[0])
    norm = ", QK norm" if first.qk_norm is not None else ""
    gated = ", gated" if first.gate is not None else ""
    rank = f", rank {first.rank}" if first.rank else ""
    router = first.router
    acting = f", {router.experts.active} of {len(first.blocks)} experts" if router else ""
    return measured(
        f"decoding float32 B={rows} H={shape.heads} K={shape.kv_heads} E={shape.width}"
        f" D={weights.head.shape[1]} F={first.width} {first.activation.spec.name}{gated}{rank}{acting}{norm}",
        _arms(weights, rows),
        content=build.content([_SOURCE.read_text(encoding="utf-8")]),
        processor=build.processor(),
    ).chosen


def _arms(weights: StackWeights, rows: int) -> dict[str, Callable[[], Tensor]]:
    """The last layer, as the first may be kept dense, by both, for rows whose caches are half full on average."""
    random = torch.Generator().manual_seed(0)
    columns, shape = _PROBED[1], weights.shape
    probed = replace(weights, layers=weights.layers[-1:], head=weights.head[:64])
    cache = rows, shape.kv_heads, columns, shape.width
    keys, values = (torch.randn(cache, generator=random) for _ in range(2))
    x_BD = torch.randn(rows, weights.head.shape[1], generator=random)
    position_B = torch.randint(columns, (rows,), generator=random)
    mask_BC = cache_mask(columns - 1 - position_B, columns, torch.float32)

    def arm(stack: DecodeStack) -> Tensor:
        return stack(x_BD.clone(), position_B, mask_BC, columns - 1, columns - 1)

    stacks = {name: kind(probed, rows) for name, kind in _KINDS.items()}
    for stack in stacks.values():
        stack.bind([keys.clone()], [values.clone()])
    return {name: partial(arm, stack) for name, stack in stacks.items()}


@lru_cache(maxsize=4)
def function(name: str) -> Callable[..., None]:
    """A function of the kernel: decode_step, attend_step or add_norm."""
    pointer, whole = _POINTERS, _WHOLES
    built = build.function(_SOURCE.read_text(encoding="utf-8"), name)
    built.argtypes = {  # type: ignore[attr-defined]
        "decode_step": (*[pointer] * 3, whole, pointer, ctypes.c_int),
        "attend_step": (*[pointer] * 3, whole, pointer, ctypes.c_int),
        "add_norm": (*[pointer] * 4, whole, whole, ctypes.c_float),
    }[name]
    return built


def _qk_norm(norm: Norm | None, shape: HeadShape) -> tuple[int | None, float]:
    if norm is None:
        return None, 0.0
    heads = torch.Size((shape.heads + shape.kv_heads, shape.width))
    return _checked(norm.weight, heads).data_ptr(), norm.eps


def _checked(x: Tensor, shape: torch.Size, dtype: torch.dtype = torch.float32) -> Tensor:
    """The same tensor, which the kernel may read."""
    if x.shape != shape or x.dtype != dtype or not (x.is_contiguous() and x.is_cpu):
        raise ConfigError(
            f"the decoding kernel got {x.dtype} of shape {tuple(x.shape)} on {x.device}, and needs"
            f" contiguous {dtype} of shape {tuple(shape)} on a CPU"
        )
    return x
