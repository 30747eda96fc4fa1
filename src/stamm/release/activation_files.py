"""The activation of a released model: its page, and golden vectors at the learned parameters."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from stamm.activations.codegen.kernel import kernel_source
from stamm.activations.codegen.write import texts
from stamm.activations.conformance.golden import write_golden
from stamm.activations.derivation.derive import derive
from stamm.activations.describe import cost, describe_spec, shipped, shipped_source
from stamm.activations.module import Activation, GatedActivation
from stamm.activations.page.page import activation_page
from stamm.activations.spec import Spec
from stamm.base.errors import ConfigError
from stamm.base.files import write_text
from stamm.models.serialization import load_decoder
from stamm.release.layout import ACTIVATION

_INPUTS = 2_000
_DTYPES = (torch.float32, torch.bfloat16)


def write_activation(model: Path, folder: Path) -> None:
    """Write activation/NAME.html and activation/golden/ below `folder`.

    Golden vectors are written for the learned parameters of the first and the last layer, in
    float32 and bfloat16.

    model   folder of the stored decoder
    """
    decoder = load_decoder(model)
    spec = decoder.config.ffn.spec
    activation_folder = folder / ACTIVATION
    write_text(activation_folder / f"{spec.name}.html", activation_page(spec, _description(spec)))
    last = decoder.config.num_layers - 1
    sets = {}
    for name, index in {"first": 0, "last": last}.items():
        module = decoder.model.layers[index].get_submodule("mlp.act_fn")
        if isinstance(module, (Activation, GatedActivation)):
            sets[name] = _values(module)
    sets = {name: values for name, values in sets.items() if values}
    write_golden(spec, activation_folder / "golden", sets or None, dtypes=_DTYPES, count=_INPUTS)


def _values(module: Activation | GatedActivation) -> dict[str, float]:
    """Effective values of the trained parameters; {} without any, or with values for each neuron."""
    try:
        values = module.effective()
    except ConfigError:
        return {}
    return {p.name: values[p.name] for p in module.spec.trainable}


def _description(spec: Spec) -> dict[str, Any]:
    source = shipped_source(spec)
    if source is not None:
        return {**describe_spec(spec, shipped(spec.name)), "cost": cost(spec, source)}
    derived = derive(spec)
    return {**describe_spec(spec, texts(derived)), "cost": cost(spec, kernel_source(derived))}
