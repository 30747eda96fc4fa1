"""The layers' matrices multiplied in 8 bits: the door to torchao.

Embedding and output matrix, norms, attention's own products and the shapes of activations stay as
they are in bfloat16. What the optimizer changes stays float32; it is cast to bfloat16 as it is
gathered, and scaled to 8 bits by the product that reads it.

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
    """Where `config` asks for it, let the matrices of the layers of `decoder` multiply in 8 bits.

    Parameters and their names stay what they are: checkpoints know no difference.

    Needs    to come before the decoder is divided and compiled
    Raises   ConfigError for a device or a model that this is not for; RunError without torchao
    """
    if config.precision not in EIGHT_BITS:
        return
    capability = torch.cuda.get_device_capability(device) if device.type == "cuda" else None
    for what, fix in refusals(config, decoder.config, context, capability):
        raise ConfigError(what, fix=fix)
    convert(decoder.model.layers, config.precision)


def convert(layers: nn.ModuleList, precision: str, *, emulated: bool = False) -> None:
    """Exchange every nn.Linear in `layers` for one that multiplies in 8 bits, with the same weight.

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
