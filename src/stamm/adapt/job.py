"""Replace the activation of a trained decoder by another one, fitted layer by layer.

Reads    start (a stored decoder or a Hugging Face folder), tokenizer; pack (a packed corpus), or the configuration's text
Writes   model/ (the decoder with the new activation), replacement.json, config.json, manifest.json

Checked  tests/unit/adapt/test_replacement.py
"""

from __future__ import annotations

import math
from dataclasses import asdict
from typing import Any

import torch
from torch import Tensor

from stamm.activations.fit import ActivationFit, fit_activation
from stamm.activations.module import ActivationModule
from stamm.adapt.change import open_parent, store_change
from stamm.adapt.config import ReplacementConfig, swapped_config
from stamm.adapt.records import ReplacementFile, SwappedLayer
from stamm.adapt.refit import RefitMatrix, refit_layers
from stamm.adapt.sample import mean_loss, sample_layers
from stamm.base.errors import DataError
from stamm.base.schema import write_record
from stamm.models.decoder import Decoder
from stamm.runs.job import Workspace

RECORD = "replacement.json"


def run(config: ReplacementConfig, workspace: Workspace) -> None:
    """Write the decoder of inputs["start"] with the activation of the configuration.

    Raises   ConfigError when the activation does not fit the model's blocks, or there is no text;
             DataError when the text or the model is damaged
    """
    folder, progress = workspace.folder, workspace.progress
    parent = open_parent(config, workspace)
    decoder, texts = parent.decoder, parent.texts
    new = Decoder(swapped_config(decoder.config, config.activation)).eval()
    progress.begin("replacement", 4, "stages")
    samples = sample_layers(decoder, texts.fitted, config.batch_tokens)
    progress.advance(1, "pre-activations sampled")
    spec = new.config.ffn.spec
    fits = [fit_activation(spec, sample.x, sample.f, sample.weight) for sample in samples]
    matrices = refit_layers(decoder, spec, fits, texts.fitted, config.batch_tokens)
    progress.advance(2, "activation fitted")
    loss = mean_loss(decoder, texts.measured, config.batch_tokens)
    _copy_weights(decoder, new, None)
    initial = mean_loss(new, texts.measured, config.batch_tokens)
    progress.advance(3, "measured without the fit")
    _copy_weights(decoder, new, list(zip(fits, matrices, strict=True)))
    swapped = mean_loss(new, texts.measured, config.batch_tokens)
    stored = store_change("replacement", config, workspace, parent, new, (loss, swapped))
    record = ReplacementFile(
        model_sha256=stored.model_sha256,
        before=decoder.config.ffn.spec.name,
        after=spec.name,
        text=texts.name,
        tokens=texts.calibration.tokens,
        measured=texts.reported.tokens,
        loss=loss,
        initial_loss=initial if math.isfinite(initial) else None,
        swapped_loss=swapped,
        layers=tuple(
            _layer(new, number, fit, matrix)
            for number, (fit, matrix) in enumerate(zip(fits, matrices, strict=True))
        ),
    )
    write_record(folder / RECORD, ReplacementFile, asdict(record))
    progress.end(f"loss {loss:.4f} -> {swapped:.4f}, {initial:.4f} without the fit")


def _layer(new: Decoder, number: int, fit: ActivationFit, matrix: RefitMatrix) -> SwappedLayer:
    block: Any = new.model.layers[number].mlp
    module: ActivationModule = block.act_fn
    names = {parameter.name for parameter in module.spec.trainable}
    values = {name: value for name, value in module.effective().items() if name in names}
    return SwappedLayer(
        layer=number,
        input_scale=fit.input_scale,
        output_scale=fit.output_scale,
        parameters=values,
        error=fit.error,
        scaled_output_error=matrix.scaled,
        output_error=matrix.error,
        initial_error=fit.initial_error if math.isfinite(fit.initial_error) else None,
    )


@torch.no_grad()
def _copy_weights(
    old: Decoder, new: Decoder, fits: list[tuple[ActivationFit, RefitMatrix]] | None
) -> None:
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
        block.down_proj.weight.copy_(matrix.weight)
        block.act_fn.load_values(fit.raw, raw=True)
