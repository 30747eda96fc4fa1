"""Float8 training: matrix products of the layers in 8 bits, through torchao.

Embedding, output matrix, norms, attention scores and activation parameters are computed as in
bfloat16 training. Master weights stay float32; FSDP casts them to bfloat16, and each product scales
its operands to 8 bits.

Source   Micikevicius et al. 2022 (arXiv 2209.05433) for the two formats: e4m3 and e5m2
"""

from __future__ import annotations

import dataclasses

import torch
from torch import nn

from stamm.base.errors import ConfigError, RunError
from stamm.engine.config import EIGHT_BITS, EngineConfig
from stamm.engine.float8_support import refusals
from stamm.models.decoder import Decoder

_RECIPES = {"float8": "tensorwise", "float8_rows": "rowwise"}


def use_float8(decoder: Decoder, config: EngineConfig, context: int, device: torch.device) -> None:
    """Convert the layers of `decoder` to products in 8 bits, if `config.precision` is float8.

    Parameters and their names do not change: checkpoints are the same.

    Needs    to be called before the decoder is sharded and compiled
    Raises   ConfigError for an unsupported device or model; RunError without torchao
    """
    if config.precision not in EIGHT_BITS:
        return
    capability = torch.cuda.get_device_capability(device) if device.type == "cuda" else None
    for what, fix in refusals(config, decoder.config, context, capability):
        raise ConfigError(what, fix=fix)
    convert(decoder.model.layers, config.precision)


def convert(layers: nn.ModuleList, precision: str, *, emulated: bool = False) -> None:
    """Replace every nn.Linear in `layers` by one that multiplies in 8 bits, with the same weight.

    emulated   round to 8 bits and multiply in float32: the same numbers on any device, slowly
    Checked    tests/unit/engine/test_float8.py
    """
    try:
        from torchao.float8 import Float8LinearConfig, convert_to_float8_training
    except ImportError as error:
        raise RunError(
            f"engine.precision = {precision!r} needs {error.name}, which is not installed",
            fix="pip install 'stamm[float8]', or set engine.precision=bfloat16",
        ) from error
    recipe = Float8LinearConfig.from_recipe_name(_RECIPES[precision])
    convert_to_float8_training(layers, config=dataclasses.replace(recipe, emulate=emulated))
