"""Thresholds in the activation of a trained decoder, folded into its matrices.

With f = max(x, 0)^p, column w_i of the last matrix and, in a gated block, the root mean square u_i of up where the
gate acts, a unit is 0 where q_i = f(x_i) |w_i| u_i <= t. The t of all layers are those of `observe.ruler` for
the magnitudes q. Then x_i is multiplied by c_i = (|w_i| u_i / t)^(1/p) and w_i divided by
c_i^p, so that one activation, f where f > 1, else 0, holds the thresholds of all units.

Reads    start (a stored decoder or a Hugging Face folder), tokenizer; pack (a packed corpus), or the configuration's text
Writes   model/ (the decoder with thresholds, change.json), sparsify.json, config.json, manifest.json

Letters: N tokens, C units, D model.

Checked  tests/unit/adapt/test_sparsify.py
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict
from functools import partial
from typing import Any

import torch
from torch import Tensor

from stamm.activations.spec.cut import rectified_power
from stamm.adapt.blocks import block_samples, weighted
from stamm.adapt.change import Parent, check_tokens, open_parent, store_change
from stamm.adapt.config import SparsifyConfig, sparse_config, unthresholded_config
from stamm.adapt.records import SparseLayer, SparsifyFile
from stamm.adapt.refit import copy_weights, fit_layers
from stamm.adapt.sample import mean_loss
from stamm.base.errors import ConfigError
from stamm.base.schema import write_record
from stamm.models.decoder import Decoder
from stamm.observe.ruler import PERPLEXITY, SparsityThresholds, find_thresholds, skipped_units
from stamm.runs.job import Workspace

RECORD = "sparsify.json"
_SEED = 11
_WEAKEST = 1e-6  # |w_i| u_i, and a threshold, over the layer's mean |w_i| u_i


def run(config: SparsifyConfig, workspace: Workspace) -> None:
    """Write the decoder of inputs["start"] with thresholds in its activation, and what they cost.

    Raises   ConfigError when no matrix takes up the thresholds, or the share is below that of zeros; DataError
             when the calibration text has fewer tokens than a block has units
    """
    progress = workspace.progress
    parent = open_parent(config, workspace)
    decoder, texts = parent.decoder, parent.texts
    wanted = sparse_config(decoder.config, config)
    check_tokens(parent, "sparsify.tokens")
    progress.begin("sparsify", 3, "stages")
    batch = config.batch_tokens
    loss = mean_loss(decoder, texts.measured, batch)
    dense = _replaced(decoder, config, texts.fitted)
    dense_loss = loss if dense is decoder else mean_loss(dense, texts.measured, batch)
    progress.advance(1, "dense model measured")
    if config.share == 0:
        new, thresholds = dense, (0.0,) * dense.config.num_layers
    else:
        scales = _unit_scales(dense, texts.fitted, batch)
        thresholds = _thresholds(parent, dense, scales, config)
        new = fold(dense, Decoder(wanted).eval(), scales, thresholds)
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


@torch.no_grad()
def _unit_scales(
    decoder: Decoder, sequences: Sequence[Sequence[int]], batch_tokens: int
) -> list[Tensor]:
    """|w_i| u_i of every layer, (C,); u_i is 1 in a plain block."""
    scales = []
    for layer, sample in enumerate(block_samples(decoder, sequences, batch_tokens)):
        block: Any = decoder.model.layers[layer].mlp
        scale_C = sample.down.norm(dim=0)
        if hasattr(block, "gate_proj"):
            acts_NC = (sample.x @ block.gate_proj.weight.T > 0).to(sample.x.dtype)
            squares_C = ((sample.x @ block.up_proj.weight.T).square() * acts_NC).sum(0)
            scale_C = scale_C * (squares_C / acts_NC.sum(0).clamp_min(1)).sqrt()
        scales.append(scale_C.clamp_min(_WEAKEST * float(scale_C.mean())))
    return scales


def _power(decoder: Decoder) -> int:
    power = rectified_power(decoder.config.ffn.spec)
    assert power is not None  # checked by sparse_config
    return power


def _thresholds(
    parent: Parent, dense: Decoder, scales: Sequence[Tensor], config: SparsifyConfig
) -> tuple[float, ...]:
    """The thresholds by the ruler; a perplexity is that of the parent."""
    fitted, batch, power = parent.texts.fitted, config.batch_tokens, _power(dense)
    factor = PERPLEXITY

    def magnitude(layer: int, inputs: tuple[Tensor, ...], _: Tensor, __: Tensor) -> Tensor:
        return inputs[0].clamp_min(0) ** power * scales[layer]

    if config.share is not None:
        none = SparsityThresholds(cett=0.0, values=(0.0,) * len(scales))
        zeros = skipped_units(dense, fitted, none, batch, magnitude).share
        if config.share <= zeros:
            raise ConfigError(
                f"share = {config.share} is not above the {zeros:.3f} of the units that are 0 already",
                where="share",
                fix=f"Set share above {zeros:.3f}, or perplexity=1.01",
            )
    else:
        before, after = (mean_loss(model, fitted, batch) for model in (parent.decoder, dense))
        factor = (config.perplexity or 1.0) * math.exp(before - after)
        if factor <= 1:
            raise ConfigError(
                f"perplexity = {config.perplexity} is passed by the new activation alone",
                where="perplexity",
                fix="Set a larger perplexity, or train the replaced model first: `stamm run adapt.activation`",
            )
    thresholds = find_thresholds(
        dense,
        fitted,
        perplexity=factor,
        share=config.share,
        batch_tokens=batch,
        magnitude=magnitude,
    )
    return thresholds.values


@torch.no_grad()
def fold(
    dense: Decoder, new: Decoder, scales: Sequence[Tensor], thresholds: Sequence[float]
) -> Decoder:
    """The weights of `dense` in `new`, whose activation is cut at 1, with the thresholds in its matrices."""
    new.load_state_dict(dense.state_dict())
    power = _power(dense)
    for number, (scale_C, threshold) in enumerate(zip(scales, thresholds, strict=True)):
        block: Any = new.model.layers[number].mlp
        first = block.gate_proj if hasattr(block, "gate_proj") else block.up_proj
        least = _WEAKEST * float(scale_C.mean())
        factor_C = (scale_C.double() / max(threshold, least)) ** (1 / power)
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
