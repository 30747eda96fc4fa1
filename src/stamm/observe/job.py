"""Observations of one open model: layers with the sparsity ruler, or the plasticity probe."""

from __future__ import annotations

from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from stamm.base.console import Progress
from stamm.base.files import sha256_value
from stamm.models.decoder import build_decoder
from stamm.models.loading import OpenModel
from stamm.observe.config import ObserveConfig
from stamm.observe.model import ObservedText, observe_layers, packed_text, text_of_file
from stamm.observe.outliers import observe_outliers
from stamm.observe.plasticity import SEED, STEPS, plasticity_loss
from stamm.observe.records import LayerObservation, SparsityObservation
from stamm.observe.ruler import (
    PERPLEXITY,
    SparsityThresholds,
    find_thresholds,
    skipped_units,
    widest,
)

CALIBRATION_TOKENS = 8192


def observed_model(
    config: ObserveConfig,
    model: OpenModel,
    pack: Path | None,
    progress: Progress,
    *,
    checkpoint: bool = False,
) -> dict[str, Any]:
    """The content of the file of one model, of the kind that `config.probe` names.

    pack         the packed corpus of the model's run: held-out text without text=FILE, and calibration text
    checkpoint   whether it is one: the plasticity probe of new weights is that of the final model alone

    Raises   DataError when the text cannot be read, or activations are not finite
    """
    text = _text(config, model, pack)
    content = {"model_sha256": model.sha256, "text": text.name}
    if config.probe == "plasticity":
        return {**content, **_plasticity(model, text, progress, with_fresh=not checkpoint)}
    layers = observe_layers(config, model.decoder, text, progress)
    progress.begin("outliers and sparsity", 2, "stages")
    decode, size = model.tokenizer.decode, config.batch_tokens
    outliers = observe_outliers(model.decoder, text.sequences, decode, size)
    layers = tuple(replace(layer, **more) for layer, more in zip(layers, outliers, strict=True))
    progress.advance(1)
    layers, sparsity = _sparsity(config, model, pack, text, layers, progress)
    progress.end()
    return {
        **content,
        "documents": text.documents,
        "tokens": text.tokens,
        "layers": [asdict(layer) for layer in layers],
        "sparsity": None if sparsity is None else asdict(sparsity),
    }


def _text(config: ObserveConfig, model: OpenModel, pack: Path | None) -> ObservedText:
    context = model.decoder.config.max_context
    if config.text is None and pack is not None:
        return packed_text(config, pack, context)
    path = Path(config.text or "")
    return text_of_file(config, path, model.tokenizer.encode, model.prefix, context)


def _plasticity(
    model: OpenModel, text: ObservedText, progress: Progress, *, with_fresh: bool
) -> dict[str, Any]:
    progress.begin("plasticity", 1 + with_fresh, "models")
    probed = plasticity_loss(model.decoder, text.sequences)
    progress.advance(1)
    fresh = None
    if with_fresh:
        drawn = build_decoder(model.decoder.config, SEED)
        fresh = plasticity_loss(drawn, text.sequences).final
    progress.end(f"{probed.final:.4f} nats after {STEPS} steps")
    return {
        "tokens": probed.tokens,
        "steps": STEPS,
        "initial_loss": probed.initial,
        "final_loss": probed.final,
        "mean_loss": probed.mean,
        "fresh_loss": fresh,
    }


def _sparsity(
    config: ObserveConfig,
    model: OpenModel,
    pack: Path | None,
    text: ObservedText,
    layers: tuple[LayerObservation, ...],
    progress: Progress,
) -> tuple[tuple[LayerObservation, ...], SparsityObservation | None]:
    """The layers with their skippable shares; calibration text is never the text that is reported."""
    decoder, size = model.decoder, config.batch_tokens
    if pack is None:
        middle = len(text.sequences) // 2
        name, reported = f"first half of {text.name}", text.sequences[middle:]
        calibration = ObservedText(name=name, sequences=text.sequences[:middle], documents=0)
    else:
        most = min(config.tokens or CALIBRATION_TOKENS, CALIBRATION_TOKENS)
        wanted, context = replace(config, tokens=most), decoder.config.max_context
        calibration = packed_text(wanted, pack, context, "train", most_contexts=1)
        reported = text.sequences
    if calibration.tokens < widest(decoder):
        progress.log(
            f"No sparsity: the calibration text ({calibration.name}) has {calibration.tokens:,} tokens, and "
            f"a layer {widest(decoder):,} units"
        )
        return layers, None
    thresholds = find_thresholds(decoder, calibration.sequences, batch_tokens=size)
    nothing = SparsityThresholds(cett=0.0, values=(0.0,) * len(layers))
    dense = skipped_units(decoder, reported, nothing, size)
    skipped = skipped_units(decoder, reported, thresholds, size)
    sparsity = SparsityObservation(
        perplexity=PERPLEXITY,
        calibration=calibration.name,
        calibration_tokens=calibration.tokens,
        calibration_sha256=sha256_value([list(s) for s in calibration.sequences]),
        cett=thresholds.cett,
        thresholds=thresholds.values,
        share=skipped.share,
        loss=dense.loss,
        skipped_loss=skipped.loss,
    )
    shares = zip(layers, skipped.shares, strict=True)
    return tuple(replace(layer, skippable_share=share) for layer, share in shares), sparsity
