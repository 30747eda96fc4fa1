"""Refit the last matrix of each feed-forward block to a new activation, by ridge regression.

With h the old and k the new outputs of the activation (of a gated block: times up), on the tokens of a text:

    min over V of   sum_n |W h_n - V k_n|^2 + r |V - c W|^2,   r = RIDGE x the mean square of k x tokens

c is the output scale of `activations.fit`: without the sum over tokens V would be c W.

Letters: N tokens without padding, C units of a block, D width of the residual stream.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from stamm.activations.codegen.kernel_lookup import kernel_of
from stamm.activations.fit import ActivationFit, fit_activation, up_factor
from stamm.activations.module import GatedActivation
from stamm.activations.spec import Spec
from stamm.adapt.blocks import BlockSample, block_samples
from stamm.adapt.sample import multiplies_function, sample_layers
from stamm.base.errors import DataError
from stamm.models.decoder import Decoder

RIDGE = 1e-3
_CHUNK = 1024


@dataclass(frozen=True, kw_only=True)
class RefitMatrix:
    """The last matrix of one block.

    weight   V, (D, C), float32
    error    share of the mean square of W h that V k misses, on the text of the fit
    scaled   the same with V = c W
    """

    weight: Tensor
    error: float
    scaled: float


Fits = list[tuple[ActivationFit, RefitMatrix]]


def fit_layers(
    decoder: Decoder, spec: Spec, sequences: Sequence[Sequence[int]], batch_tokens: int
) -> Fits:
    """The fit of `spec` to the activation of every block, with its last matrix.

    Edge     where a function of up replaces up, units of `decoder` may change signs, which its outputs do not
    Raises   DataError when a pre-activation is not finite; ConfigError when `spec` is not finite on them
    """
    if multiplies_function(spec) and not multiplies_function(decoder.config.ffn.spec):
        _turn_units(decoder, spec, sequences, batch_tokens)
    samples = sample_layers(decoder, spec, sequences, batch_tokens)
    fits = [fit_activation(spec, s.x, s.f, s.weight, up_N=s.up) for s in samples]
    matrices = refit_layers(decoder, spec, fits, sequences, batch_tokens)
    return list(zip(fits, matrices, strict=True))


@torch.no_grad()
def _turn_units(
    decoder: Decoder, spec: Spec, sequences: Sequence[Sequence[int]], batch_tokens: int
) -> None:
    """Change the signs of up and of the column of the last matrix, where g(x) h(-u) is nearer to -f(x) u.

    Products of both are exactly the same: so is the function of the decoder.
    """
    kernel, values = kernel_of(spec), tuple(spec.initial_values().values())
    for layer, sample in enumerate(block_samples(decoder, sequences, batch_tokens)):
        block: Any = decoder.model.layers[layer].mlp
        gate_NC, up_NC = (sample.x @ p.weight.T for p in (block.gate_proj, block.up_proj))
        g_NC = kernel.value(gate_NC, values)
        kept_C, turned_C = (
            (sample.h - sign * g_NC * up_factor(spec, sign * up_NC)).square().sum(0)
            for sign in (1, -1)
        )
        sign_C = torch.where(turned_C < kept_C, -1.0, 1.0)
        block.up_proj.weight.mul_(sign_C[:, None])
        block.down_proj.weight.mul_(sign_C)


@torch.no_grad()
def refit_layers(
    decoder: Decoder,
    spec: Spec,
    fits: Sequence[ActivationFit],
    sequences: Sequence[Sequence[int]],
    batch_tokens: int,
) -> list[RefitMatrix]:
    """The last matrix of every block of `decoder`, for the activation `spec` with the shapes of `fits`.

    Memory   three C x C matrices in float64, beside those of `block_samples`
    Checked  tests/unit/adapt/test_refit.py
    """
    samples = zip(
        decoder.model.layers, block_samples(decoder, sequences, batch_tokens), strict=True
    )
    return [
        _refit(layer.mlp, sample, spec, fit)
        for (layer, sample), fit in zip(samples, fits, strict=True)
    ]


def _refit(block: Any, sample: BlockSample, spec: Spec, fit: ActivationFit) -> RefitMatrix:
    kernel, values = kernel_of(spec), tuple(spec.effective_values(fit.raw).values())
    is_gated, down_DC = isinstance(block.act_fn, GatedActivation), sample.down.double()
    first = block.gate_proj if is_gated else block.up_proj
    old_CC, mixed_CC, new_CC = torch.zeros(3, *2 * (down_DC.shape[1],), dtype=torch.float64)
    for x_ND, h_NC in zip(
        torch.split(sample.x, _CHUNK), torch.split(sample.h, _CHUNK), strict=True
    ):
        wide_NC = h_NC.double()
        k_NC = kernel.value(fit.input_scale * first(x_ND).double(), values)
        if is_gated:
            k_NC = k_NC * up_factor(spec, fit.up_scale * block.up_proj(x_ND).double())
        old_CC += wide_NC.T @ wide_NC
        mixed_CC += k_NC.T @ wide_NC
        new_CC += k_NC.T @ k_NC
    ridge = RIDGE * float(new_CC.diagonal().mean())
    eye = torch.eye(len(new_CC), dtype=torch.float64)
    target_CD = mixed_CC @ down_DC.T + ridge * fit.output_scale * down_DC.T
    refit_DC = torch.linalg.solve(new_CC + ridge * eye, target_CD).T.float()
    whole = float(((down_DC @ old_CC) * down_DC).sum())

    def error(matrix_DC: Tensor) -> float:
        mixed = float(((matrix_DC @ mixed_CC) * down_DC).sum())
        new = float(((matrix_DC @ new_CC) * matrix_DC).sum())
        return (whole - 2 * mixed + new) / whole if whole > 0 else 0.0

    scaled = error(fit.output_scale * down_DC)
    return RefitMatrix(weight=refit_DC, error=error(refit_DC.double()), scaled=scaled)


@torch.no_grad()
def copy_weights(old: Decoder, new: Decoder, fits: Fits | None) -> None:
    """The weights of `old` in `new`, with the shapes and matrices of `fits`; None: initial shapes."""
    shapes = {
        f"model.layers.{layer}.mlp.act_fn.{name}"
        for layer in range(old.config.num_layers)
        for spec in (old.config.ffn.spec, new.config.ffn.spec)
        for name in [parameter.name for parameter in spec.trainable]
    }
    kept = {name: tensor for name, tensor in old.state_dict().items() if name not in shapes}
    missing = new.load_state_dict(kept, strict=False)
    if set(missing.missing_keys) - shapes or missing.unexpected_keys:
        raise DataError(
            f"the decoders differ in {[*missing.missing_keys, *missing.unexpected_keys]}"
        )
    for layer, (fit, matrix) in enumerate(fits or ()):
        block: Any = new.model.layers[layer].mlp
        first: Tensor = (block.gate_proj if hasattr(block, "gate_proj") else block.up_proj).weight
        first.mul_(fit.input_scale)
        if hasattr(block, "gate_proj"):
            block.up_proj.weight.mul_(fit.up_scale)
        block.down_proj.weight.copy_(matrix.weight)
        block.act_fn.load_values(fit.raw, raw=True)
