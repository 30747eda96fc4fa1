"""Fused linear cross-entropy: loss of a linear layer's output without the logits of a whole batch.

The forward pass processes a chunk of tokens at a time: logits, losses, and the gradients of both
factors; then the logits are freed. The backward pass only scales.

Letters: N tokens given, C of them in a chunk, D model, V vocabulary.

Source   Hsu et al. 2024 (arXiv 2410.10989) for the order of work; Chowdhery et al. 2022
         (arXiv 2204.02311, section 5) for the z-loss.
"""

from __future__ import annotations

import importlib
import importlib.util
from typing import Any, NamedTuple

import torch
from torch import Tensor

from stamm.base.errors import ConfigError, DataError

CACHE_BYTES = 2**20  # a chunk's logits stay in the second-level cache of a CPU core
# Fewer tokens read and write a matrix of 131,072 rows too often: 8 took 4.9 times as long as 128,
# and 2, which are what fits into the cache, 8.6 times (one thread, D = 256, 2026-11).
FEWEST_TOKENS = 128
MOST_BYTES = {"cpu": 64 * 2**20, "cuda": 2**30}


class TokenLosses(NamedTuple):
    """The loss of a batch, and its values per token.

    loss     what to differentiate, shape ()
    nats_N   negative log-likelihood of every target in nats, without z-loss, scale or gradient;
             0 where the token is dropped
    log_z_N  log Z of every token, without gradient; 0 where the token is dropped
    """

    loss: Tensor
    nats_N: Tensor
    log_z_N: Tensor


def linear_cross_entropy(
    hidden_ND: Tensor,
    weight_VD: Tensor,
    target_N: Tensor,
    scale_N: Tensor | None = None,
    *,
    ignore_index: int | None = -100,
    z_loss: float = 0.0,
) -> TokenLosses:
    """Weighted sum of the tokens' cross-entropies, and the cross-entropy of each.

    loss = sum_n scale[n] (log Z[n] - logits[n, target[n]] + z_loss log(Z[n])^2)
    logits = hidden @ weight^T, Z[n] = sum_v exp(logits[n, v])

    scale_N        1 / kept for a mean, 0 for a token that is not learned; None means ones
    ignore_index   a target that drops its token, too; None means that every target is a token

    Dtypes   hidden and weight alike. Log-sum-exp, losses, the sum and the weight's gradient while
             it is added up: float32, or float64 for float64; both gradients have their tensor's.
    Edge     a dropped token is left out of every product and gets exactly zero gradient; its target
             may be any number, and its hidden state may be NaN. With no token kept, or none
             given, the loss is 0 and so are all gradients. Rows that only pad the vocabulary are
             left out by passing weight_VD[:vocabulary].
    Order    fixed: the same bits every time.
    Memory   the logits of `chunk_tokens` tokens at a time. Gradients are computed only when they
             are needed.
    Device   the number of kept tokens is read once, for which the CPU waits on a GPU.
    Compile  one opaque operation, without a graph break.
    Raises   ConfigError when shapes or dtypes do not fit, when scale_N wants a gradient, under
             torch.autocast, for gradients in float16, which has no room for those of a mean, in
             a backward pass with create_graph=True: there is no second derivative; for gradients
             of torch.func and for forward mode. DataError on a CPU for a target that is learned
             and is not in the vocabulary; on a GPU, which nothing waits for, torch asserts it.
    Checked  tests/unit/losses/test_linear_cross_entropy.py
    """
    grad = torch.is_grad_enabled()
    wants = (grad and hidden_ND.requires_grad, grad and weight_VD.requires_grad)
    _check(hidden_ND, weight_VD, target_N, scale_N, any(wants))
    wide = torch.promote_types(weight_VD.dtype, torch.float32)
    scale_N = torch.ones_like(target_N, dtype=wide) if scale_N is None else scale_N.to(wide)
    if ignore_index is not None:
        scale_N = scale_N.masked_fill(target_N == ignore_index, 0.0)
    chunk = chunk_tokens(weight_VD.shape[0], hidden_ND.device)
    loss, nats_N, log_z_N, _, _ = torch.ops.stamm.linear_cross_entropy(
        hidden_ND, weight_VD, target_N, scale_N, float(z_loss), chunk, *wants
    )
    return TokenLosses(loss, nats_N, log_z_N)


def chunk_tokens(vocabulary: int, device: torch.device) -> int:
    """Number of tokens per chunk, whose float32 logits are in memory at once.

    CPU      what fits into CACHE_BYTES, but at least FEWEST_TOKENS, and never above MOST_BYTES.
    Others   what fits into MOST_BYTES: large products are faster there.
    Edge     one token when even that is too much.
    """
    row = 4 * vocabulary
    if device.type != "cpu":
        return max(MOST_BYTES["cuda"] // row, 1)
    return max(min(max(CACHE_BYTES // row, FEWEST_TOKENS), MOST_BYTES["cpu"] // row), 1)


def _check(
    hidden_ND: Tensor, weight_VD: Tensor, target_N: Tensor, scale_N: Tensor | None, grad: bool
) -> None:
    shapes = [tuple(x.shape) for x in (hidden_ND, weight_VD, target_N)]
    n, d = shapes[0] if len(shapes[0]) == 2 else (-1, -1)
    if len(shapes[1]) != 2 or shapes[1][1] != d or shapes[2] != (n,):
        raise ConfigError(
            "hidden states, matrix and targets have shapes {}, {} and {}".format(*shapes),
            fix="Pass (N, D), (V, D) and (N,)",
        )
    if scale_N is not None and (tuple(scale_N.shape) != (n,) or scale_N.requires_grad):
        raise ConfigError(
            f"the tokens' scale has shape {tuple(scale_N.shape)}, "
            f"requires_grad = {scale_N.requires_grad}",
            fix=f"Pass {n} numbers that want no gradient",
        )
    devices = {x.device for x in (hidden_ND, weight_VD, target_N, scale_N) if x is not None}
    if len(devices) > 1:
        raise ConfigError(
            f"hidden states, matrix, targets and scale are on {sorted(map(str, devices))}",
            fix="Move them to one device",
        )
    if len(weight_VD) == 0 or target_N.dtype not in (torch.int32, torch.int64):
        raise ConfigError(
            f"the vocabulary has {len(weight_VD)} rows, the targets are {target_N.dtype}",
            fix="Pass at least one row, and the numbers of rows: target.long()",
        )
    if not hidden_ND.dtype.is_floating_point or hidden_ND.dtype.itemsize < 2:
        raise ConfigError(
            f"hidden states are {hidden_ND.dtype}",
            fix="Use bfloat16, float32 or float64; without gradients float16, too",
        )
    if hidden_ND.dtype != weight_VD.dtype or (grad and weight_VD.dtype == torch.float16):
        raise ConfigError(
            f"hidden states are {hidden_ND.dtype}, the matrix is {weight_VD.dtype}",
            fix="Use one dtype for both; gradients need bfloat16, float32 or float64",
        )
    if torch.is_autocast_enabled(hidden_ND.device.type):
        raise ConfigError(
            "linear_cross_entropy was called under torch.autocast, and chooses its dtypes itself",
            fix="Put the loss under torch.autocast(enabled=False), with both factors in one dtype",
        )


_NAME = "stamm::linear_cross_entropy"
# Defined piece by piece: torch.library.custom_op loads torch's compiler at the first call, 1 to 2 s.
torch.library.define(
    _NAME,
    "(Tensor hidden, Tensor weight, Tensor target, Tensor scale, float z_loss, SymInt chunk,"
    " bool hidden_wanted, bool weight_wanted) -> (Tensor, Tensor, Tensor, Tensor, Tensor)",
    tags=torch.Tag.pt2_compliant_tag,
)


@torch.library.impl(_NAME, "CompositeExplicitAutograd")
def _losses_and_gradients(
    hidden_ND: Tensor,
    weight_VD: Tensor,
    target_N: Tensor,
    scale_N: Tensor,
    z_loss: float,
    chunk: int,
    hidden_wanted: bool,
    weight_wanted: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Loss, nats, log Z and both gradients; a gradient that is not wanted has no rows."""
    loss, nats_N, log_z_N, d_hidden_ND, d_weight_VD = _results(
        hidden_ND, weight_VD, target_N, scale_N, hidden_wanted, weight_wanted
    )
    learned = scale_N.nonzero()[:, 0]
    _check_targets(target_N, learned, weight_VD.shape[0])
    wanted = hidden_wanted or weight_wanted
    rows = _rows_in_place if _has_kernel(hidden_ND) else _rows
    for index_C in torch.split(learned, chunk):
        hidden_CD, target_C = hidden_ND[index_C], target_N[index_C, None]
        scale_C = scale_N[index_C, None]
        nats_C, log_z_C, d_logits_CV = rows(
            hidden_CD @ weight_VD.T, target_C, scale_C, z_loss, wanted
        )
        nats_N[index_C], log_z_N[index_C] = nats_C[:, 0], log_z_C[:, 0]
        loss += (scale_C * (nats_C + z_loss * log_z_C**2)).sum()
        if hidden_wanted:
            d_hidden_ND[index_C] = d_logits_CV.to(weight_VD.dtype) @ weight_VD
        if weight_wanted:
            _add_product(d_weight_VD, d_logits_CV.T, hidden_CD)
    return loss, nats_N, log_z_N, d_hidden_ND, d_weight_VD


def _rows(
    short_CV: Tensor, target_C: Tensor, scale_C: Tensor, z_loss: float, wanted: bool
) -> tuple[Tensor, Tensor, Tensor]:
    """Nats and log Z of every row, (C, 1), and the gradient in the logits, in the dtype of the scale."""
    logits_CV = short_CV.to(scale_C.dtype)
    peak_C = logits_CV.amax(dim=1, keepdim=True)
    correct_C = logits_CV.gather(1, target_C) - peak_C
    exponential_CV = logits_CV.sub_(peak_C).exp_()
    sum_C = exponential_CV.sum(dim=1, keepdim=True)
    nats_C, log_z_C = sum_C.log() - correct_C, sum_C.log() + peak_C
    if not wanted:
        return nats_C, log_z_C, logits_CV
    slope_C = scale_C * (1 + 2 * z_loss * log_z_C)
    d_logits_CV = exponential_CV.mul_(slope_C / sum_C).scatter_add_(1, target_C, -scale_C)
    return nats_C, log_z_C, d_logits_CV


def _rows_in_place(
    logits_CV: Tensor, target_C: Tensor, scale_C: Tensor, z_loss: float, wanted: bool
) -> tuple[Tensor, Tensor, Tensor]:
    """The same by a Triton kernel; the gradient has the dtype and the memory of the logits."""
    # Loaded here, since it needs Triton.
    kernel = importlib.import_module("stamm.losses.softmax_rows")
    torch._assert_async(((target_C >= 0) & (target_C < logits_CV.shape[1])).all())
    labels = target_C[:, 0].clamp(0, logits_CV.shape[1] - 1)
    nats_C, log_z_C = kernel.softmax_rows(logits_CV, labels, scale_C[:, 0], z_loss, wanted=wanted)
    return nats_C[:, None], log_z_C[:, None], logits_CV


def _has_kernel(hidden_ND: Tensor) -> bool:
    """Whether `softmax_rows` runs here: NVIDIA's GPUs; AMD's never ran it."""
    return (
        hidden_ND.is_cuda
        and hidden_ND.dtype != torch.float64
        and torch.version.hip is None
        and torch.cuda.get_device_capability(hidden_ND.device) >= (8, 0)
        and importlib.util.find_spec("triton") is not None
    )


def _add_product(sum_VD: Tensor, left_VC: Tensor, right_CD: Tensor) -> None:
    """sum += left @ right, added up in the dtype of the sum."""
    if left_VC.dtype == sum_VD.dtype:
        sum_VD.addmm_(left_VC, right_CD.to(sum_VD.dtype))
    else:  # 16-bit factors, on a GPU: their products are exact in float32
        torch.addmm(sum_VD, left_VC, right_CD, out_dtype=sum_VD.dtype, out=sum_VD)


def _check_targets(target_N: Tensor, learned: Tensor, vocabulary: int) -> None:
    """Raise DataError for targets outside of the vocabulary; on CPUs only, where it needs no wait."""
    if target_N.device.type != "cpu":
        return
    outside = learned[(target_N[learned] < 0) | (target_N[learned] >= vocabulary)]
    if outside.numel():
        token = int(outside[0])
        raise DataError(
            f"the target of token {token} is {int(target_N[token])}, and the vocabulary has"
            f" {vocabulary} rows",
            fix="Drop such tokens by ignore_index or a scale of 0, or pass the whole matrix",
        )


def _results(
    hidden_ND: Tensor, weight_VD: Tensor, target_N: Tensor, scale_N: Tensor, *settings: Any
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Zeros for the results; the last two settings decide which gradients have rows."""
    *_, hidden_wanted, weight_wanted = settings
    (n, d), v = hidden_ND.shape, weight_VD.shape[0]
    return (
        scale_N.new_zeros(()),
        scale_N.new_zeros(n),
        scale_N.new_zeros(n),
        hidden_ND.new_zeros(n if hidden_wanted else 0, d),
        scale_N.new_zeros(v if weight_wanted else 0, d),
    )


class _Loss(torch.autograd.Function):
    """The operation, with its gradients."""

    @staticmethod
    def forward(*inputs: Any) -> Any:
        return _below(*inputs)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
        _keep(ctx, inputs, output)

    @staticmethod
    def backward(ctx: Any, *into: Any) -> Any:
        return _scale(ctx, *into)


@torch.library.impl(_NAME, "Autograd")
def _(hidden_ND: Tensor, weight_VD: Tensor, *rest: Any) -> Any:
    """Not torch.library.register_autograd: it ignores a forward-mode tangent silently."""
    factors = (hidden_ND, weight_VD)
    followed = torch.is_grad_enabled() and any(x.requires_grad for x in factors)
    transformed = followed and torch._C._functorch.get_dynamic_layer_stack_depth() > 0
    if transformed or any(_has_tangent(x) for x in factors):
        raise ConfigError(
            "linear_cross_entropy has no forward mode and no gradients of torch.func",
            fix="Use torch.autograd.grad or backward, or form all logits",
        )
    if followed:
        return _Loss.apply(hidden_ND, weight_VD, *rest)  # type: ignore[no-untyped-call]
    return _below(hidden_ND, weight_VD, *rest)


def _below(*inputs: Any) -> Any:
    with torch._C._AutoDispatchBelowAutograd():
        return torch.ops.stamm.linear_cross_entropy(*inputs)


def _has_tangent(x: Tensor) -> bool:
    return torch._VF._unpack_dual(x, level=0).tangent is not None


def _keep(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    _, nats_N, log_z_N, d_hidden_ND, d_weight_VD = output
    ctx.mark_non_differentiable(nats_N, log_z_N, d_hidden_ND, d_weight_VD)
    ctx.set_materialize_grads(False)  # else autograd creates zeros as large as the matrix
    ctx.save_for_backward(d_hidden_ND, d_weight_VD)
    ctx.dtype = inputs[1].dtype
    ctx.wanted = inputs[-2:]


def _scale(ctx: Any, d_loss: Tensor | None, *_: None) -> tuple[Tensor | None, ...]:
    if torch.is_grad_enabled():  # the graph of these gradients does not exist
        raise ConfigError(
            "linear_cross_entropy was differentiated with create_graph=True, and has no second"
            " derivative",
            fix="Use torch.nn.functional.cross_entropy(hidden @ weight.T, target)",
        )
    d_hidden_ND, d_weight_VD = ctx.saved_tensors
    hidden_wanted, weight_wanted = ctx.wanted
    known = d_loss is not None
    return (
        d_hidden_ND * d_loss if known and hidden_wanted else None,
        (d_weight_VD * d_loss).to(ctx.dtype) if known and weight_wanted else None,
        *[None] * 6,
    )


torch.library.register_fake(_NAME, _results)
