"""The tap contract: named places in a decoder where tensors are read or replaced, and the state that goes back.

| name | inputs | output |
|---|---|---|
| `layers.N.mlp.act_fn` | `pre`; of a gated block `gate`, `up` | `post`; of a gated block `prod`, f(gate) up |
| `layers.N.mlp` | what the layer's second norm gives | what the block adds to the residual stream |
| `layers.N.self_attn` | what the layer's first norm gives, rotation, mask, cache | what attention adds to the residual stream |
| `layers.N` | the residual stream before the layer, rotation, mask, cache | `resid_post`, the residual stream behind the layer |

N counts from 0 at the embedding. The names are those of modules below `decoder.model`, and of transformers' classes below
`model`, so a hook of another library at the same name sees the same tensors.

The contract holds for every form of feed-forward block and every memory policy: under `SavePre` and `Recompute` a module is called
again in the backward pass, so a context sets `SavePost` and turns recomputation of layers off. Both give the same bits.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any

from torch import Tensor, nn

from stamm.base.errors import ConfigError, visible
from stamm.models.config import SavePost
from stamm.models.decoder import Decoder

Hook = Callable[[tuple[Any, ...], Tensor], Tensor | None]
"""Gets the inputs and the output of a tap; returns what replaces the output, or None."""

TAPS = ("layers.{}.mlp.act_fn", "layers.{}.mlp", "layers.{}.self_attn", "layers.{}")


@contextlib.contextmanager
def tapped(decoder: Decoder, hooks: Mapping[str, Hook]) -> Iterator[None]:
    """A context in which each hook is called once in a forward pass, with the tensors of its tap.

    hooks    by the name of the tap

    Inside, the decoder is in evaluation mode and its weights need no gradient. Leaving the context, also by an exception, restores
    memory policies, training modes, `requires_grad` of each parameter, and the hooks that were there. Weights are not touched.

    Edge     contexts nest; the inner ones are left first
    Raises   ConfigError for a name that is not a tap of the decoder, before anything is changed
    Checked  tests/unit/observe/test_taps.py
    """
    modules = {name: _module(decoder, name) for name in hooks}
    layers: list[Any] = list(decoder.model.layers)
    policies = [(layer.mlp.memory, layer.recompute) for layer in layers]
    modes = [(module, module.training) for module in decoder.modules()]
    needs = [(parameter, parameter.requires_grad) for parameter in decoder.parameters()]
    handles = []
    try:
        for layer in layers:
            layer.mlp.memory, layer.recompute = SavePost(), False
        decoder.eval().requires_grad_(requires_grad=False)
        for name, module in modules.items():
            handles.append(module.register_forward_hook(partial(_call, hooks[name])))
        yield
    finally:
        for handle in handles:
            handle.remove()
        for layer, (memory, recompute) in zip(layers, policies, strict=True):
            layer.mlp.memory, layer.recompute = memory, recompute
        for module, training in modes:
            module.training = training
        for parameter, needed in needs:
            parameter.requires_grad_(needed)


def check_layer(decoder: Decoder, layer: int) -> None:
    """Raise ConfigError for a layer that the decoder does not have."""
    layers = len(decoder.model.layers)
    if not 0 <= layer < layers:
        raise ConfigError(
            f"layer {layer} does not exist: the model has {layers} layers",
            fix=f"Choose from 0 to {layers - 1}",
        )


def _module(decoder: Decoder, name: str) -> nn.Module:
    parts = name.split(".")
    number = parts[1] if len(parts) > 1 else ""
    if not (number.isascii() and number.isdecimal()) or name not in [
        tap.format(number) for tap in TAPS
    ]:
        raise ConfigError(
            f"{visible(name)} is not a tap",
            fix=f"Taps of layer 0: {', '.join(tap.format(0) for tap in TAPS)}",
        )
    check_layer(decoder, int(number))
    return decoder.model.get_submodule(".".join((parts[0], str(int(number)), *parts[2:])))


def _call(hook: Hook, module: nn.Module, inputs: tuple[Any, ...], output: Tensor) -> Tensor | None:
    return hook(inputs, output)
