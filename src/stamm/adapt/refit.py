"""Refit the last matrix of each feed-forward block to a new activation, by ridge regression.

With h the old and k the new outputs of the activation (of a gated block: times up), on the tokens of a text:

    min over V of   sum_n |W h_n - V k_n|^2 + r |V - c W|^2,   r = RIDGE x the mean square of k x tokens

c is the output scale of `activations.fit`: without the sum over tokens V would be c W.

Letters: N tokens of a batch without padding, C units of a block, D width of the residual stream.
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
from stamm.adapt.blocks import block_samples
from stamm.adapt.sample import multiplies_function, sample_layers, token_batches
from stamm.base.errors import DataError
from stamm.models.decoder import Decoder
from stamm.observe.taps import tapped

RIDGE = 1e-3
_LARGEST = 2 * 2**30  # bytes of the sums of one pass over the text


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

    Memory   three C x C matrices a layer, in float64; the text is read again for each 2 GiB of them
    Checked  tests/unit/adapt/test_refit.py
    """
    width = max(decoder.config.ffn_of(layer).width for layer in range(len(fits)))
    together = max(1, _LARGEST // (3 * 8 * width * width))
    matrices: list[RefitMatrix] = []
    for first in range(0, len(fits), together):
        sums = [
            _Sums(decoder.model.layers[first + offset].mlp, spec, fit)
            for offset, fit in enumerate(fits[first : first + together])
        ]
        hooks = {
            f"layers.{n}.mlp.act_fn": layer_sums.add for n, layer_sums in enumerate(sums, first)
        }
        with tapped(decoder, hooks):
            for batch_BT, real_BT in token_batches(sequences, batch_tokens):
                for layer_sums in sums:
                    layer_sums.real_BT = real_BT
                decoder.model(batch_BT[:, :-1])
        matrices += [layer_sums.result() for layer_sums in sums]
    return matrices


class _Sums:
    """The hook of one block's activation that adds up products of old and new outputs.

    real_BT   the inputs of the next batch that are not padding
    """

    def __init__(self, block: Any, spec: Spec, fit: ActivationFit) -> None:
        self.real_BT = torch.zeros(0, 0, dtype=torch.bool)
        self._is_gated = isinstance(block.act_fn, GatedActivation)
        self._weight_DC = block.down_proj.weight.double()
        self._spec, self._up_scale = spec, fit.up_scale
        self._kernel, self._scale, self._behind = kernel_of(spec), fit.input_scale, fit.output_scale
        self._values = tuple(spec.effective_values(fit.raw).values())
        units = self._weight_DC.shape[1]
        self._old, self._mixed, self._new = (
            torch.zeros(units, units, dtype=torch.float64) for _ in range(3)
        )

    def add(self, inputs: tuple[Tensor, ...], output: Tensor) -> None:
        """Add the products of a batch."""
        h_NC = output[self.real_BT].double()
        k_NC = self._kernel.value(self._scale * inputs[0][self.real_BT].double(), self._values)
        if self._is_gated:
            u_NC = self._up_scale * inputs[1][self.real_BT].double()
            k_NC = k_NC * up_factor(self._spec, u_NC)
        self._old += h_NC.T @ h_NC
        self._mixed += k_NC.T @ h_NC
        self._new += k_NC.T @ k_NC

    def result(self) -> RefitMatrix:
        """The matrix, from all batches."""
        ridge = RIDGE * float(self._new.diagonal().mean())
        eye = torch.eye(len(self._new), dtype=torch.float64)
        target_CD = self._mixed @ self._weight_DC.T + ridge * self._behind * self._weight_DC.T
        refit_DC = torch.linalg.solve(self._new + ridge * eye, target_CD).T
        return RefitMatrix(
            weight=refit_DC.float(),
            error=self._error(refit_DC.float().double()),
            scaled=self._error(self._behind * self._weight_DC),
        )

    def _error(self, refit_DC: Tensor) -> float:
        whole = float(((self._weight_DC @ self._old) * self._weight_DC).sum())
        mixed = float(((refit_DC @ self._mixed) * self._weight_DC).sum())
        new = float(((refit_DC @ self._new) * refit_DC).sum())
        return (whole - 2 * mixed + new) / whole if whole > 0 else 0.0


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
