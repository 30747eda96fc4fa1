"""What `stamm.swap` refuses, in one line, with nothing changed."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import transformers
from torch import nn

import stamm
from stamm.activations.spec.command_line import spec_from_arguments
from stamm.base.errors import ConfigError
from tests.unit.swap.small_models import build


class InlineMLP(nn.Module):
    """A block that calls its activation itself."""

    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(32, 48), nn.Linear(48, 32)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """The block's output."""
        result: torch.Tensor = self.down(nn.functional.gelu(self.up(x)))
        return result


def _refused(model: Any, *arguments: Any, **settings: Any) -> str:
    kind, config = type(model), model.config.to_dict() if hasattr(model, "config") else None
    names = [name for name, _ in model.named_parameters()]
    with pytest.raises(ConfigError) as refused:
        stamm.swap(model, *arguments, **settings)
    assert type(model) is kind and [name for name, _ in model.named_parameters()] == names
    assert config is None or model.config.to_dict() == config
    line = refused.value.line()
    assert "\n" not in line and len(line) < 500
    return line


def test_a_block_that_computes_inline() -> None:
    model = build("LlamaForCausalLM")
    for layer in model.model.layers:
        layer.mlp = InlineMLP()
    assert "InlineMLP computes nn.functional.gelu in its own code" in _refused(model, "xielu")


def test_a_block_whose_forward_was_replaced_by_a_kernel() -> None:
    def forward(self: Any, x: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = self.down_proj(
            torch.ops.aten.silu(self.gate_proj(x)) * self.up_proj(x)
        )
        return result

    model = build("LlamaForCausalLM")
    for layer in model.model.layers:
        layer.mlp.forward = forward.__get__(layer.mlp)
    assert "does not call its act_fn: a fused kernel" in _refused(model, "xielu")


def test_mamba_and_models_without_activations() -> None:
    mamba = transformers.MambaForCausalLM(
        transformers.MambaConfig(vocab_size=97, hidden_size=32, num_hidden_layers=2)
    )
    assert "no activation in a feed-forward block" in _refused(mamba, "xielu")
    assert "MambaMixer" in _refused(mamba, "xielu", where="*.mixer.act")
    model = build("LlamaForCausalLM")
    for layer in model.model.layers:
        layer.mlp = nn.Linear(32, 32)
    assert "no activation in a feed-forward block" in _refused(model, "xielu")


def test_gated_names_and_plain_blocks() -> None:
    plain, gated = build("GPT2LMHeadModel"), build("LlamaForCausalLM")
    assert "the block of transformer.h.0.mlp.act has no gate" in _refused(plain, "swiglu")
    assert "changes its second input as well" in _refused(gated, "swiglu_oai")
    stamm.swap(gated, "xsilu_glu")


def test_names_and_settings() -> None:
    model = build("GPT2LMHeadModel")
    assert "'xielo' is not a known activation" in _refused(model, "xielo")
    assert "no_such/folder does not exist" in _refused(model, "no_such/folder")
    assert "where = '*.nothing' matches no activation" in _refused(
        model, "xielu", where="*.nothing"
    )
    assert "where = [] is not a name" in _refused(model, "xielu", where=[])
    assert "where = 3 is not a name" in _refused(model, "xielu", where=3)
    assert "fit is a str" in _refused(model, "xielu", fit="We the people")
    assert "no activation but 3 is named" in _refused(model, 3)
    assert "parameters = 'head'" in _refused(model, "xielu", parameters="head")
    assert "no activation is named" in _refused(model)
    assert "has no swapped activation" in _refused(model, back=True)
    assert "back=True takes the model alone" in _refused(model, "xielu", back=True)
    assert "silu has no shape parameters to fit" in _refused(model, "silu", fit=torch.ones(1, 4))


def test_a_gradient_without_a_formula_of_its_integral() -> None:
    spec = spec_from_arguments(["exp(-a*x**4)"], ["a=1:softplus"], name="steep")
    assert "bends too sharply for a table" in _refused(build("GPT2LMHeadModel"), spec)


def test_a_second_swap() -> None:
    model = build("GPT2LMHeadModel")
    stamm.swap(model, "xielu")
    assert "was swapped already, for xielu" in _refused(model, "xsilu")


def test_layers_that_share_a_block() -> None:
    model = build("GPT2LMHeadModel")
    model.transformer.h[1].mlp = model.transformer.h[0].mlp
    line = _refused(model, "xielu")
    assert "transformer.h.0.mlp.act and transformer.h.1.mlp.act are one module" in line
    assert (
        len(stamm.swap(model, "silu").sites) == 1
    )  # without shape parameters there is nothing to share


def test_what_is_not_a_model_of_transformers() -> None:
    assert "Linear is not a model of transformers" in _refused(nn.Linear(3, 3), "xielu")
    compiled = torch.compile(build("GPT2LMHeadModel"))
    with pytest.raises(ConfigError, match=r"give model\._orig_mod"):
        stamm.swap(compiled, "xielu")


class OwnLlama(transformers.LlamaForCausalLM):
    """A class that a saved folder could not import."""


def test_a_class_from_outside_transformers() -> None:
    model = OwnLlama(build("LlamaForCausalLM").config)
    assert "outside of transformers" in _refused(model, "xielu")


def test_a_batch_that_does_not_reach_a_place(monkeypatch: pytest.MonkeyPatch) -> None:
    model = build("T5ForConditionalGeneration")
    acts = [type(module) for module in model.modules()]
    monkeypatch.setattr(model, "forward", lambda **_: None)
    assert "does not reach encoder.block.0" in _refused(model, "xielu", fit={})
    assert [type(module) for module in model.modules()] == acts
