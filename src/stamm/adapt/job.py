"""Replace the activation of a trained decoder by another one, fitted layer by layer.

Reads    start (a stored decoder or a Hugging Face folder), tokenizer; pack (a packed corpus), or the configuration's text
Writes   model/ (the decoder with the new activation), replacement.json, config.json, manifest.json

Checked  tests/unit/adapt/test_replacement.py
"""

from __future__ import annotations

import math
from dataclasses import asdict
from typing import Any

from stamm.activations.fit import ActivationFit
from stamm.activations.module import ActivationModule
from stamm.adapt.change import open_parent, store_change
from stamm.adapt.config import ReplacementConfig, swapped_config
from stamm.adapt.records import ReplacementFile, SwappedLayer
from stamm.adapt.refit import RefitMatrix, copy_weights, fit_layers
from stamm.adapt.sample import mean_loss
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
    progress.begin("replacement", 3, "stages")
    spec = new.config.ffn.spec
    loss = mean_loss(decoder, texts.measured, config.batch_tokens)
    copy_weights(decoder, new, None)
    initial = mean_loss(new, texts.measured, config.batch_tokens)
    progress.advance(1, "measured without the fit")
    fits = fit_layers(decoder, spec, texts.fitted, config.batch_tokens)
    progress.advance(2, "activation fitted")
    copy_weights(decoder, new, fits)
    swapped = mean_loss(new, texts.measured, config.batch_tokens)
    stored = store_change("replacement", config, workspace, parent, new, (loss, swapped))
    record = ReplacementFile(
        model_sha256=stored.model_sha256,
        before=decoder.config.ffn.spec.name,
        after=spec.name,
        calibration=stored.calibration,
        measured=stored.measured,
        loss=loss,
        initial_loss=initial if math.isfinite(initial) else None,
        swapped_loss=swapped,
        layers=tuple(_layer(new, number, fit, matrix) for number, (fit, matrix) in enumerate(fits)),
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
        up_scale=fit.up_scale,
        parameters=values,
        error=fit.error,
        scaled_output_error=matrix.scaled,
        output_error=matrix.error,
        initial_error=fit.initial_error if math.isfinite(fit.initial_error) else None,
    )
