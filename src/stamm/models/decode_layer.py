"""A layer's step of decoding between its matrix products: torch's operations, or one C++ kernel.

These are sums of the residual stream with their RMS norms, and attention of one new token of each row:
norm of queries and keys, rotation, KV cache, softmax. For a few rows each of torch's operations takes
longer to call than to compute. The kernel (decode_layer.h) is for float32 on a CPU, is compiled at
first use, and is used unless torch is measured to be faster.

Letters: B rows (sequences), C columns of the cache, H heads, K key-value heads, E head width, D model,
F features of queries, keys and values together, (H + 2 K) E.

Checked  tests/unit/models/test_decode_layer.py
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor

from stamm.activations.fused import build
from stamm.base.autotune import measured
from stamm.base.errors import ConfigError, RunError
from stamm.models.attention_mask import cache_mask
from stamm.models.rope import rotation

_SOURCE = Path(__file__).with_name("decode_layer.h")
_LANES = 16  # of the widest vector
_WIDEST = 512  # head width
_PROBED = (16, 128)  # rows and columns of the measurement
QKNorm = tuple[Tensor, float]  # weights of each head of queries and keys, (H + K, E), and epsilon


@dataclass(frozen=True)
class HeadShape:
    """Heads of attention: of queries, of keys and values, and their width."""

    heads: int
    kv_heads: int
    width: int


class DecodeOperations:
    """Operations of a decoder's layers between their products, by torch.

    norms         of each layer's queries and keys
    frequencies   radians per token, (E / 2,)
    """

    def __init__(
        self, shape: HeadShape, norms: Sequence[QKNorm | None], frequencies: Tensor
    ) -> None:
        self._shape, self._norms, self._frequencies = shape, norms, frequencies
        self._sign_E = torch.ones(shape.width, device=frequencies.device)
        self._sign_E[: shape.width // 2] = -1

    def bind(self, keys: Sequence[Tensor], values: Sequence[Tensor]) -> None:
        """Use this KV cache: for each layer (B, K, C, E)."""
        self._keys, self._values = keys, values

    def begin(self, position_B: Tensor, mask_BC: Tensor, column: int, longest: int) -> None:
        """Begin a step, which writes `column` of the cache.

        position_B   number of earlier tokens of each row, so of earlier columns that it attends to
        mask_BC      the same, added to scores: 0 or -inf
        longest      the most tokens of a row before this one
        """
        self._column, self._seen = column, slice(column - longest, column + 1)
        self._mask_BGC = mask_BC[:, None, None, self._seen]
        cosine_BE, sine_BE = rotation(self._frequencies, position_B, mask_BC.dtype)
        self._turn = cosine_BE[:, None], (sine_BE * self._sign_E.to(sine_BE.dtype))[:, None]

    def add_norm(
        self, x_BD: Tensor, added_BD: Tensor | None, weight_D: Tensor, eps: float
    ) -> tuple[Tensor, Tensor]:
        """x + added and its RMS norm, valid until the next call; `x_BD` may be overwritten."""
        x_BD = x_BD if added_BD is None else x_BD + added_BD
        return x_BD, F.rms_norm(x_BD, weight_D.shape, weight_D, eps)

    def attend(self, layer: int, qkv_BF: Tensor) -> Tensor:
        """Append to a layer's cache and attend, (B, H E), valid until the next call.

        qkv_BF   queries, keys and values of the new tokens; may be overwritten
        """
        rows, shape = qkv_BF.shape[0], self._shape
        keys_BKCE, values_BKCE = self._keys[layer], self._values[layer]
        qkv_BHE = qkv_BF.view(rows, -1, shape.width)
        qk_BHE = qkv_BHE[:, : shape.heads + shape.kv_heads]
        norm = self._norms[layer]
        if norm is not None:
            qk_BHE = F.rms_norm(qk_BHE, (shape.width,), None, norm[1]) * norm[0]
        cosine, sine = self._turn
        qk_BHE = torch.addcmul(qk_BHE * cosine, qk_BHE.roll(shape.width // 2, -1), sine)
        keys_BKCE[:, :, self._column] = qk_BHE[:, shape.heads :]
        values_BKCE[:, :, self._column] = qkv_BHE[:, shape.heads + shape.kv_heads :]
        y_BKGE = F.scaled_dot_product_attention(
            qk_BHE[:, : shape.heads].view(rows, shape.kv_heads, -1, shape.width),
            keys_BKCE[:, :, self._seen],
            values_BKCE[:, :, self._seen],
            attn_mask=self._mask_BGC,
        )
        return y_BKGE.reshape(rows, -1)


class _Attention(ctypes.Structure):
    _fields_ = (
        *((name, ctypes.c_void_p) for name in ("norm", "angles", "keys", "values", "scores")),
        *((n, ctypes.c_int64) for n in ("rows", "heads", "kv_heads", "width", "columns")),
        ("eps", ctypes.c_float),
    )


class FusedDecodeOperations(DecodeOperations):
    """The same by the kernel.

    Needs    `unavailable_reason()` is None, and `is_supported` for the decoder
    Bits     of a row the same whatever other rows hold, with any number of threads
    Raises   ConfigError for tensors that do not fit what is bound
    """

    _normal_BD = torch.empty(0)

    def bind(self, keys: Sequence[Tensor], values: Sequence[Tensor]) -> None:
        """Use this KV cache, which must stay where it is in memory."""
        rows, _, columns, _ = keys[0].shape
        shape = self._shape
        cache = torch.Size((rows, shape.kv_heads, max(columns, _LANES), shape.width))
        heads = shape.heads + shape.kv_heads
        self._held = [_checked(x, cache) for x in (*keys, *values)]
        halves = rotation(self._frequencies, torch.arange(columns))
        self._angles = torch.cat([half[:, : shape.width // 2] for half in halves], dim=-1)
        self._scores = torch.empty(rows * shape.heads, columns + 2 * _LANES)
        self._y_BF = torch.empty(rows, shape.heads * shape.width)
        self._qkv_shape = torch.Size((rows, (heads + shape.kv_heads) * shape.width))
        self._layers = []
        for norm, k, v in zip(self._norms, keys, values, strict=True):
            weight, eps = None, 0.0
            if norm is not None:
                weight = _checked(norm[0], torch.Size((heads, shape.width))).data_ptr()
                eps = norm[1]
            rest = self._angles.data_ptr(), k.data_ptr(), v.data_ptr(), self._scores.data_ptr()
            sizes = rows, shape.heads, shape.kv_heads, shape.width, columns
            self._layers.append(_Attention(weight, *rest, *sizes, eps))

    def begin(self, position_B: Tensor, mask_BC: Tensor, column: int, longest: int) -> None:
        """Begin a step, as above; the mask is not read."""
        if not (0 <= column < mask_BC.shape[1] == self._held[0].shape[2]):
            raise ConfigError(f"no column {column} in a KV cache of {self._held[0].shape[2]}")
        self._column = column
        self._position_B = _checked(position_B, self._qkv_shape[:1], torch.int64)

    def add_norm(
        self, x_BD: Tensor, added_BD: Tensor | None, weight_D: Tensor, eps: float
    ) -> tuple[Tensor, Tensor]:
        """x + added, in the memory of x, and its RMS norm."""
        shape = x_BD.shape
        if self._normal_BD.shape != shape:
            self._normal_BD = torch.empty(shape)
        added = None if added_BD is None else _checked(added_BD, shape).data_ptr()
        given = _checked(x_BD, shape).data_ptr(), added, _checked(weight_D, shape[1:]).data_ptr()
        _function("add_norm")(*given, self._normal_BD.data_ptr(), *shape, eps)
        return x_BD, self._normal_BD

    def attend(self, layer: int, qkv_BF: Tensor) -> Tensor:
        """Append to a layer's cache and attend; `qkv_BF` is not changed."""
        _function("attend_step")(
            self._layers[layer],
            _checked(qkv_BF, self._qkv_shape).data_ptr(),
            self._position_B.data_ptr(),
            self._column,
            self._y_BF.data_ptr(),
            torch.get_num_threads(),
        )
        return self._y_BF


_KINDS = {"stamm": FusedDecodeOperations, "torch": DecodeOperations}


def build_operations(
    shape: HeadShape, norms: Sequence[QKNorm | None], frequencies: Tensor, like_D: Tensor
) -> DecodeOperations:
    """The faster operations for a decoder; torch's where the kernel cannot be used.

    like_D   weight of a norm: the decoder's width, dtype and device

    Edge     measured once on a machine for each shape, at 16 rows; kept in the cache folder
    """
    usable = is_supported(shape, like_D) and unavailable_reason() is None
    name = _chosen(shape, like_D.shape[0], norms[0] is not None) if usable else "torch"
    return _KINDS[name](shape, norms, frequencies)


def is_supported(shape: HeadShape, like_D: Tensor) -> bool:
    """Whether the kernel supports a decoder: float32 on a CPU, widths that are multiples of 16."""
    whole = shape.width % _LANES == 0 and like_D.shape[0] % _LANES == 0
    return like_D.dtype == torch.float32 and like_D.is_cpu and whole and shape.width <= _WIDEST


@lru_cache(maxsize=1)
def unavailable_reason() -> str | None:
    """Why the kernel cannot be used here; None if it can.

    It is built once and its results are compared with those of torch's operations.
    """
    why = build.unavailable_reason()
    if why is not None:
        return why
    try:
        output, expected = (arm() for arm in _arms(HeadShape(4, 2, 48), 64, True).values())
    except RunError as error:
        return error.line()
    agree = torch.allclose(output, expected, rtol=1e-4, atol=1e-4)
    return None if agree else "its results differ from torch's on this machine"


@lru_cache(maxsize=64)
def _chosen(shape: HeadShape, width: int, qk_norm: bool) -> str:
    name = f"decoding float32 H={shape.heads} K={shape.kv_heads} E={shape.width} D={width}"
    return measured(
        f"{name}, QK norm" if qk_norm else name,
        _arms(shape, width, qk_norm),
        content=build.content([_SOURCE.read_text(encoding="utf-8")]),
        processor=build.processor(),
    ).chosen


def _arms(shape: HeadShape, width: int, qk_norm: bool) -> dict[str, Callable[[], Tensor]]:
    """One layer's operations by both, for rows whose caches are half full on average."""
    random = torch.Generator().manual_seed(0)
    normal = partial(torch.randn, generator=random)
    (rows, columns), heads = _PROBED, shape.heads + shape.kv_heads
    norm = (normal(heads, shape.width), 1e-5) if qk_norm else None
    frequencies = torch.rand(shape.width // 2, generator=random)
    keys, values = (normal(rows, shape.kv_heads, columns, shape.width) for _ in range(2))
    qkv_BF = normal(rows, (heads + shape.kv_heads) * shape.width)
    x_BD, weight_D = normal(rows, width), normal(width)
    position_B = torch.randint(columns, (rows,), generator=random)
    mask_BC = cache_mask(columns - 1 - position_B, columns, torch.float32)

    def layer(operations: DecodeOperations) -> Tensor:
        operations.begin(position_B, mask_BC, columns - 1, columns - 1)
        y_BF = operations.attend(0, qkv_BF)
        for _ in range(2):
            summed_BD, normal_BD = operations.add_norm(x_BD.clone(), x_BD, weight_D, 1e-5)
        return torch.cat((y_BF, summed_BD, normal_BD), dim=1)

    made = {name: kind(shape, [norm], frequencies) for name, kind in _KINDS.items()}
    for operations in made.values():
        operations.bind([keys.clone()], [values.clone()])
    return {name: partial(layer, operations) for name, operations in made.items()}


@lru_cache(maxsize=2)
def _function(name: str) -> Callable[..., None]:
    pointer, whole, single = ctypes.c_void_p, ctypes.c_int64, ctypes.c_float
    function = build.function(_SOURCE.read_text(encoding="utf-8"), name)
    attend = ctypes.POINTER(_Attention), pointer, pointer, whole, pointer, ctypes.c_int
    add_norm = *[pointer] * 4, whole, whole, single
    function.argtypes = add_norm if name == "add_norm" else attend  # type: ignore[attr-defined]
    return function


def _checked(x: Tensor, shape: torch.Size, dtype: torch.dtype = torch.float32) -> Tensor:
    """The same tensor, which the kernel may read."""
    if x.shape != shape or x.dtype != dtype or not (x.is_contiguous() and x.is_cpu):
        raise ConfigError(
            f"the decoding kernel got {x.dtype} of shape {tuple(x.shape)} on {x.device}, and needs"
            f" contiguous {dtype} of shape {tuple(shape)} on a CPU"
        )
    return x
