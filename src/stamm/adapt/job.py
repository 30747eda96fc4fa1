"""Replace the activation of a trained decoder by another one, fitted layer by layer.

Reads    start (a stored decoder or a Hugging Face folder), tokenizer; pack (a packed corpus), or the configuration's text
Writes   model/ (the decoder with the new activation), replacement.json, config.json, manifest.json

Checked  tests/unit/adapt/test_replacement.py
"""

from __future__ import annotations

import math
import os
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from stamm.activations.fit import ActivationFit, fit_activation
from stamm.activations.module import ActivationModule
from stamm.adapt.config import ReplacementConfig, swapped_config
from stamm.adapt.records import ReplacementFile, SwappedLayer
from stamm.adapt.refit import RefitMatrix, refit_layers
from stamm.adapt.sample import mean_loss, sample_layers
from stamm.base.config import to_plain
from stamm.base.errors import ConfigError, DataError
from stamm.base.files import remove_leftovers
from stamm.base.schema import write_record
from stamm.models.decoder import Decoder
from stamm.models.determinism import set_determinism
from stamm.models.loading import OpenModel, open_model
from stamm.models.model_source import ModelSource
from stamm.models.serialization import save_decoder
from stamm.observe.config import ObserveConfig
from stamm.observe.model import packed_text, text_of_file
from stamm.runs.job import Workspace
from stamm.runs.manifest import new_manifest
from stamm.runs.model_outputs import (
    HEAD,
    read_chat_record,
    weights_sha256,
    write_chat_record,
)
from stamm.runs.records import ConfigFile, ManifestFile

RECORD = "replacement.json"
_LISTS = tuple[list[int], ...]


@dataclass(frozen=True, kw_only=True)
class _Texts:
    """Token sequences that are fitted on, and those that losses are measured on."""

    name: str
    fitted: _LISTS
    measured: _LISTS


def run(config: ReplacementConfig, workspace: Workspace) -> None:
    """Write the decoder of inputs["start"] with the activation of the configuration.

    Raises   ConfigError when the activation does not fit the model's blocks, or there is no text;
             DataError when the text or the model is damaged
    """
    folder, progress, inputs = workspace.folder, workspace.progress, workspace.inputs
    remove_leftovers(folder)
    set_determinism(config.threads)
    start = open_model(ModelSource(model=inputs["start"], tokenizer=inputs["tokenizer"]))
    decoder = start.decoder
    if (inputs["start"] / HEAD).is_file():
        raise ConfigError(f"{inputs['start']} is a reward model", fix="Name a language model")
    new = Decoder(swapped_config(decoder.config, config.activation)).eval()
    texts = _texts(config, workspace, start)
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
    if not math.isfinite(swapped):
        raise ConfigError(
            f"the loss with {spec.name} is not finite", fix="Choose another activation"
        )
    save_decoder(new, folder / "model")
    if chat := read_chat_record(inputs["start"]):
        write_chat_record(folder / "model", chat.format, chat.sha256)
    record = ReplacementFile(
        model_sha256=weights_sha256(folder / "model"),
        before=decoder.config.ffn.spec.name,
        after=spec.name,
        text=texts.name,
        tokens=sum(len(sequence) - 1 for sequence in texts.fitted),
        measured=sum(len(sequence) - 1 for sequence in texts.measured),
        loss=loss,
        initial_loss=initial if math.isfinite(initial) else None,
        swapped_loss=swapped,
        layers=tuple(
            _layer(new, number, fit, matrix)
            for number, (fit, matrix) in enumerate(zip(fits, matrices, strict=True))
        ),
    )
    write_record(folder / RECORD, ReplacementFile, asdict(record))
    described = {"kind": "replacement", "config": to_plain(config)}
    write_record(folder / "config.json", ConfigFile, described)
    places = {name: {"path": os.path.relpath(path, folder)} for name, path in inputs.items()}
    manifest = new_manifest(kind="replacement", threads=config.threads, inputs=places)
    write_record(folder / "manifest.json", ManifestFile, manifest)
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


def _texts(config: ReplacementConfig, workspace: Workspace, start: OpenModel) -> _Texts:
    inputs, context = workspace.inputs, start.decoder.config.max_context
    if config.text is None:
        if "pack" not in inputs:
            raise ConfigError(
                "the model has no packed corpus",
                fix='Name a file with replacement.text=FILE: a .txt file, or JSONL with "text"',
            )
        wanted = ObserveConfig(tokens=config.tokens)
        fitted, measured = (
            packed_text(wanted, inputs["pack"], context, split, most_contexts=1)
            for split in ("train", "held_out")
        )
        return _Texts(
            name=f"{fitted.name}, {measured.name}",
            fitted=fitted.sequences,
            measured=measured.sequences,
        )
    path = Path(config.text)
    both = ObserveConfig(tokens=2 * config.tokens)
    # One context of a text: no text is in both halves.
    sequences = text_of_file(both, path, start.tokenizer.encode, start.prefix, context, 1).sequences
    middle = (len(sequences) + 1) // 2
    if len(sequences) < 2:
        raise DataError(
            f"{path} holds one text, and one half is fitted on, the other measured",
            fix='Name JSONL with several lines with "text"',
        )
    return _Texts(name=path.name, fitted=sequences[:middle], measured=sequences[middle:])
