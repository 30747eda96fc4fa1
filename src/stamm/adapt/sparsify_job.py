"""Thresholds in the activation of a trained decoder, folded into its matrices.

With f = max(x, 0)^p, column w_i of the last matrix and, in a gated block, the root mean square u_i of up where the
gate acts, a unit is 0 where q_i = f(x_i) |w_i| u_i <= t. t of every layer follows from one number: the share of
the sum of q^2 that the layer loses. Then x_i is multiplied by c_i = (|w_i| u_i / t)^(1/p) and w_i divided by
c_i^p, so that one activation, f where f > 1, else 0, holds the thresholds of all units.

Reads    start (a stored decoder or a Hugging Face folder), tokenizer; pack (a packed corpus), or the configuration's text
Writes   model/ (the decoder with thresholds, change.json), sparsify.json, config.json, manifest.json

Letters: N tokens, C units, D model.

Source   one relative error for all layers: CETT, Zhang et al. 2024 (arXiv 2402.03804)
Checked  tests/unit/adapt/test_sparsify.py
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor

from stamm.activations.spec.cut import rectified_power
from stamm.adapt.blocks import BlockSample, block_samples, weighted
from stamm.adapt.change import Parent, open_parent, store_change
from stamm.adapt.config import SparsifyConfig, sparse_config, unthresholded_config
from stamm.adapt.records import SparseLayer, SparsifyFile
from stamm.adapt.refit import copy_weights, fit_layers
from stamm.adapt.sample import mean_loss
from stamm.base.errors import ConfigError, DataError
from stamm.base.schema import write_record
from stamm.models.decoder import Decoder
from stamm.runs.job import Workspace

RECORD = "sparsify.json"
_SAMPLE = 2**20  # numbers of a layer
_SEED = 11
_LOST = (1e-9, 0.25)  # shares of the sum of squares, between which is searched
_HALVINGS = 12
_WEAKEST = 1e-6  # |w_i| u_i, over the layer's mean


@dataclass(frozen=True, kw_only=True)
class LayerStrength:
    """Strength of the units of one layer.

    scale_C    |w_i| u_i
    sorted_N   a sample of q, ascending, and `lost_N` the share of the sum of squares up to each
    """

    scale_C: Tensor
    sorted_N: Tensor
    lost_N: Tensor

    def threshold(self, lost: float) -> float:
        """t with which the layer loses the share `lost` of the sum of squares."""
        index = int(torch.searchsorted(self.lost_N, lost)) - 1
        return float(self.sorted_N[max(index, 0)])

    def skipped(self, threshold: float) -> float:
        """Share of the sample that is at most the threshold."""
        return float((self.sorted_N <= threshold).double().mean())


def run(config: SparsifyConfig, workspace: Workspace) -> None:
    """Write the decoder of inputs["start"] with thresholds in its activation, and what they cost.

    Raises   ConfigError when no matrix takes up the thresholds, or the share is below that of zeros; DataError
             when the calibration text has fewer tokens than a block has units
    """
    progress = workspace.progress
    parent = open_parent(config, workspace)
    decoder, texts = parent.decoder, parent.texts
    wanted = sparse_config(decoder.config, config)
    width, tokens = decoder.config.ffn.width, texts.calibration.tokens
    if tokens < width:
        raise DataError(
            f"the {texts.fitted_name} has {tokens} tokens, fewer than the {width} units of a block",
            fix="Name more text, or raise sparsify.tokens",
        )
    progress.begin("sparsify", 3, "stages")
    batch = config.batch_tokens
    loss = mean_loss(decoder, texts.measured, batch)
    dense = _replaced(decoder, config, texts.fitted)
    dense_loss = loss if dense is decoder else mean_loss(dense, texts.measured, batch)
    progress.advance(1, "dense model measured")
    if config.share == 0:
        new, thresholds = dense, [0.0] * dense.config.num_layers
    else:
        layers = [
            _strength(dense, n, s) for n, s in enumerate(block_samples(dense, texts.fitted, batch))
        ]
        lost = _by_share(layers, config.share) if config.share else _by_loss(
            dense, Decoder(wanted).eval(), layers, parent, config
        )  # fmt: skip
        thresholds = [layer.threshold(lost) for layer in layers]
        new = fold(dense, Decoder(wanted).eval(), layers, thresholds)
    progress.advance(2, "thresholds folded")
    sparse_loss = mean_loss(new, texts.measured, batch) if new is not dense else dense_loss
    zeros, skipped = (zero_shares(model, texts.measured, batch) for model in (dense, new))
    random_loss = _random_loss(dense, zeros, skipped, parent, batch)
    stored = store_change("sparsify", config, workspace, parent, new, (loss, sparse_loss))
    record = SparsifyFile(
        model_sha256=stored.model_sha256,
        parent_sha256=stored.parent_sha256,
        before=decoder.config.ffn.spec.name,
        after=new.config.ffn.spec.name,
        calibration=stored.calibration,
        measured=stored.measured,
        loss=loss,
        unthresholded_loss=None if dense is decoder else dense_loss,
        sparse_loss=sparse_loss,
        random_loss=random_loss,
        layers=tuple(
            SparseLayer(layer=number, threshold=t, zeros=z, skipped=s)
            for number, (t, z, s) in enumerate(zip(thresholds, zeros, skipped, strict=True))
        ),
    )
    write_record(workspace.folder / RECORD, SparsifyFile, asdict(record))
    share = sum(skipped) / len(skipped)
    progress.end(f"loss {loss:.4f} -> {sparse_loss:.4f}, {share:.1%} of the units are 0")


def _replaced(decoder: Decoder, config: SparsifyConfig, fitted: Sequence[Sequence[int]]) -> Decoder:
    """The decoder with the activation of the configuration, fitted as by adapt.activation."""
    dense = unthresholded_config(decoder.config, config)
    if dense == decoder.config:
        return decoder
    new, spec = Decoder(dense).eval(), dense.ffn.spec
    copy_weights(decoder, new, fit_layers(decoder, spec, fitted, config.batch_tokens))
    return new


def _strength(decoder: Decoder, layer: int, sample: BlockSample) -> LayerStrength:
    block: Any = decoder.model.layers[layer].mlp
    power = _power(decoder)
    scale_C = sample.down.norm(dim=0)
    if hasattr(block, "gate_proj"):
        x_NC = sample.x @ block.gate_proj.weight.detach().T
        up_NC = sample.x @ block.up_proj.weight.detach().T
        acts_NC = (x_NC > 0).to(up_NC.dtype)
        scale_C = scale_C * ((up_NC.square() * acts_NC).sum(0) / acts_NC.sum(0).clamp_min(1)).sqrt()
    else:
        x_NC = sample.x @ block.up_proj.weight.detach().T
    scale_C = scale_C.clamp_min(_WEAKEST * float(scale_C.mean()))
    q = (x_NC.clamp_min(0) ** power * scale_C).flatten()
    if len(q) > _SAMPLE:
        random = torch.Generator().manual_seed(_SEED + layer)
        q = q[torch.randint(len(q), (_SAMPLE,), generator=random)]
    sorted_N = q.sort().values.double()
    squares_N = sorted_N.square().cumsum(0)
    if not float(squares_N[-1]) > 0:
        raise DataError(f"all units of layer {layer} are 0 on the text", fix="Use more text")
    return LayerStrength(scale_C=scale_C, sorted_N=sorted_N, lost_N=squares_N / squares_N[-1])


def _power(decoder: Decoder) -> int:
    power = rectified_power(decoder.config.ffn.spec)
    assert power is not None  # checked by sparse_config
    return power


def _by_share(layers: Sequence[LayerStrength], share: float) -> float:
    """The lost share of squares at which the mean share of zeros is `share`."""

    def skipped(lost: float) -> float:
        return sum(layer.skipped(layer.threshold(lost)) for layer in layers) / len(layers)

    least, most = (skipped(lost) for lost in (0.0, 1.0))
    if not least < share < most:
        raise ConfigError(
            f"share = {share} is not above the {least:.3f} of the units that are 0 already",
            where="share",
            fix=f"Set share above {least:.3f}, or perplexity=1.01",
        )
    return _bisect(lambda lost: skipped(lost) <= share, (1e-12, 1.0), 40)


def _by_loss(
    dense: Decoder,
    new: Decoder,
    layers: Sequence[LayerStrength],
    parent: Parent,
    config: SparsifyConfig,
) -> float:
    """The largest lost share of squares with which the calibration text's perplexity grows by the factor."""
    fitted, batch = parent.texts.fitted, config.batch_tokens
    allowed = mean_loss(parent.decoder, fitted, batch) + math.log(config.perplexity or 1.0)

    def holds(lost: float) -> bool:
        fold(dense, new, layers, [layer.threshold(lost) for layer in layers])
        return mean_loss(new, fitted, batch) <= allowed

    if not holds(_LOST[0]):
        raise ConfigError(
            f"perplexity = {config.perplexity} is passed by the new activation alone",
            where="perplexity",
            fix="Set a larger perplexity, or train the replaced model first: `stamm run adapt.activation`",
        )
    return _bisect(holds, _LOST, _HALVINGS)


def _bisect(holds: Any, between: tuple[float, float], halvings: int) -> float:
    """The largest number for which `holds`, on a logarithmic scale."""
    low, high = (math.log(end) for end in between)
    for _ in range(halvings):
        middle = (low + high) / 2
        low, high = (middle, high) if holds(math.exp(middle)) else (low, middle)
    return math.exp(low)


@torch.no_grad()
def fold(
    dense: Decoder, new: Decoder, layers: Sequence[LayerStrength], thresholds: Sequence[float]
) -> Decoder:
    """The weights of `dense` in `new`, whose activation is cut at 1, with the thresholds in its matrices."""
    new.load_state_dict(dense.state_dict())
    power = _power(dense)
    for number, (layer, threshold) in enumerate(zip(layers, thresholds, strict=True)):
        block: Any = new.model.layers[number].mlp
        first = block.gate_proj if hasattr(block, "gate_proj") else block.up_proj
        # Below the smallest output nothing is cut.
        least = float(layer.sorted_N[layer.sorted_N > 0][0]) / 2
        factor_C = (layer.scale_C.double() / max(threshold, least)) ** (1 / power)
        first.weight.copy_(first.weight.double() * factor_C[:, None])
        block.down_proj.weight.copy_(block.down_proj.weight.double() / factor_C**power)
    return new


def zero_shares(
    decoder: Decoder, sequences: Sequence[Sequence[int]], batch_tokens: int
) -> list[float]:
    """Share of the outputs of each layer's units that are exactly 0, counted in the model."""
    samples = block_samples(decoder, sequences, batch_tokens)
    return [float((sample.h == 0).double().mean()) for sample in samples]


def _random_loss(
    dense: Decoder,
    zeros: Sequence[float],
    skipped: Sequence[float],
    parent: Parent,
    batch_tokens: int,
) -> float:
    """The loss when as many of the acting units are 0 at random."""

    def weigh(kept: float, random: torch.Generator, h: Tensor) -> Tensor:
        return (torch.rand(h.shape, generator=random) < kept).to(h.dtype)

    shares = [(1 - s) / (1 - z) if z < 1 else 1.0 for z, s in zip(zeros, skipped, strict=True)]
    seeds = [torch.Generator().manual_seed(_SEED + layer) for layer in range(len(shares))]
    with weighted(dense, [partial(weigh, k, g) for k, g in zip(shares, seeds, strict=True)]):
        return mean_loss(dense, parent.texts.measured, batch_tokens)
