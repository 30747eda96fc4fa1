"""Attention backend of training, from the configuration alone. No torch here."""

from __future__ import annotations

from collections.abc import Iterator

from stamm.engine.config import AttentionKernel, EngineConfig
from stamm.models.config import (
    FUSED_HEAD_STEP,
    SMALLEST_FLEX_HEAD,
    WIDEST_FUSED_HEAD,
    DecoderConfig,
)


def kernel_of(engine: EngineConfig, model: DecoderConfig, *, gpu: bool) -> AttentionKernel:
    """The attention backend that "auto" chooses, given a C++ compiler on a CPU.

    Edge   a measurement may choose "dense" instead of "fused" (`engine.kernels="auto"`)
    """
    if engine.attention != "auto":
        return engine.attention
    if gpu:
        return "flex" if model.head_width >= SMALLEST_FLEX_HEAD else "dense"
    return "fused" if may_fuse(engine, model) and engine.kernels != "torch" else "dense"


def may_fuse(engine: EngineConfig, model: DecoderConfig) -> bool:
    """Whether engine.attention is "auto" and the fused kernel can train the model on a CPU."""
    return engine.attention == "auto" and not any(_unfused(engine, model))


def refusals(engine: EngineConfig, model: DecoderConfig, *, gpu: bool) -> Iterator[tuple[str, str]]:
    """Reasons why a model cannot be trained with this `engine.attention`, each with a fix."""
    asked = f"engine.attention = {engine.attention!r}"
    if engine.attention == "flex" and not gpu:
        yield (
            f"{asked} has no backward pass on a CPU",
            'Set engine.attention="auto"',
        )
    elif engine.attention == "flex" and model.head_width < SMALLEST_FLEX_HEAD:
        yield (
            f"{asked} takes heads of at least {SMALLEST_FLEX_HEAD}, and these have"
            f" {model.head_width}",
            'Set engine.attention="auto", or fewer and wider heads (model.num_heads)',
        )
    elif engine.attention == "fused" and gpu:
        yield f"{asked} is for CPUs", 'Set engine.attention="auto"'
    elif engine.attention == "fused":
        for why in _unfused(engine, model):
            yield f"{asked}: {why}", 'Set engine.attention="auto"'


def _unfused(engine: EngineConfig, model: DecoderConfig) -> Iterator[str]:
    if engine.precision != "float32":
        yield f"it computes in float32, and engine.precision is {engine.precision!r}"
    width = model.head_width
    if width % FUSED_HEAD_STEP or width > WIDEST_FUSED_HEAD:
        yield f"heads are {width} wide, not a multiple of {FUSED_HEAD_STEP} up to {WIDEST_FUSED_HEAD}"
    if engine.parallel.context > 1:
        yield "it needs whole sequences, and engine.parallel.context divides them"
