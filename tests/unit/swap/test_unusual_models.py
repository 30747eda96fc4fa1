"""Swaps of models, specs and optimizers that are not the usual ones."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

import stamm
from stamm.activations.spec import Piece, Spec
from stamm.activations.spec.parameters import Identity, Parameter, Softplus
from stamm.base.errors import ConfigError
from tests.unit.swap.small_models import IDS, build, logits

LLAMA = {
    "vocab_size": 97, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2,
    "num_attention_heads": 4, "num_key_value_heads": 2,
}  # fmt: skip


def spec(name: str, initial: Any = 1.0) -> Spec:
    """A learned slope right of 0."""
    return Spec(
        name="own",
        title="A learned slope",
        pieces=(Piece(where="x > 0", formula=name), Piece(where="x <= 0", formula="0")),
        parameters=(Parameter(name=name, initial=initial, bijection=Softplus()),),
        continuity="jump",
        source="this test",
    )


def test_functions_of_attention_stay() -> None:
    config = transformers.MiniMaxConfig(
        **LLAMA, layer_types=["linear_attention", "full_attention"], num_local_experts=2,
        num_experts_per_tok=1, head_dim=8, block_size=4,
    )  # fmt: skip
    model = transformers.MiniMaxForCausalLM(config).eval()
    done = stamm.swap(model, "silu")
    assert done.sites
    assert not [site for site in done.sites if "self_attn" in site]


def test_a_spec_of_whole_numbers_trains_with_its_kernels(tmp_path: Path) -> None:
    from stamm.swap.callback import train_fused

    model = build("LlamaForCausalLM")
    stamm.swap(model, spec("a", 2))
    train_fused(model)
    model.save_pretrained(tmp_path)
    loaded = transformers.AutoModelForCausalLM.from_pretrained(tmp_path, trust_remote_code=True)
    train_fused(loaded)
    assert "initial=2.0" in repr(Parameter(name="a", initial=2.0, bijection=Identity()))


def test_a_configuration_of_two_models_is_changed_for_one(tmp_path: Path) -> None:
    config = transformers.LlamaConfig(**LLAMA)
    swapped, other = transformers.LlamaForCausalLM(config), transformers.LlamaForCausalLM(config)
    stamm.swap(swapped, "xielu")
    assert other.config.hidden_act == "silu"
    other.save_pretrained(tmp_path)
    loaded = transformers.AutoModelForCausalLM.from_pretrained(tmp_path)
    assert type(loaded) is transformers.LlamaForCausalLM
    assert swapped.config is swapped.model.config


def test_the_undo_of_a_folder_without_the_old_weights_is_refused(tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = transformers.ApertusForCausalLM(transformers.ApertusConfig(**LLAMA)).eval()
    stamm.swap(model, "silu")
    model.save_pretrained(tmp_path)
    loaded = transformers.AutoModelForCausalLM.from_pretrained(tmp_path, trust_remote_code=True)
    before = loaded(IDS).logits
    with pytest.raises(ConfigError, match="had weights, which the folder does not hold"):
        stamm.swap(loaded, back=True)
    assert torch.equal(loaded(IDS).logits, before)


def test_offloaded_weights_have_no_place_for_shapes() -> None:
    accelerate = pytest.importorskip("accelerate")
    model = accelerate.cpu_offload(build("LlamaForCausalLM"), execution_device="cpu")
    with pytest.raises(ConfigError, match="are offloaded"):
        stamm.swap(model, "xielu")


@pytest.mark.parametrize("name", ["forward", "training", "to"])
def test_a_parameter_with_the_name_of_something_in_a_module_is_refused(name: str) -> None:
    with pytest.raises(ConfigError, match=f"the parameter name '{name}' is taken"):
        stamm.swap(build("LlamaForCausalLM"), spec(name))


def test_the_number_of_processes_may_be_given_by_position(tmp_path: Path) -> None:
    model = build("LlamaForCausalLM")
    stamm.swap(model, "xielu")
    model.save_pretrained(tmp_path, True)
    loaded = transformers.AutoModelForCausalLM.from_pretrained(tmp_path, trust_remote_code=True)
    assert torch.equal(logits(loaded, "LlamaForCausalLM"), logits(model, "LlamaForCausalLM"))


def test_a_length_may_be_dynamic_in_an_exported_program() -> None:
    model = build("LlamaForCausalLM")
    stamm.swap(model, "xielu")
    activation = model.model.layers[0].mlp.act_fn
    length = torch.export.Dim("length", min=2, max=100_000)
    x = torch.randn(2, 5, 48, generator=torch.Generator().manual_seed(1))
    program = torch.export.export(activation, (x,), dynamic_shapes=({1: length},))
    longer = x.repeat(1, 7, 1)
    assert torch.equal(program.module()(longer), activation(longer))


def test_an_optimizer_from_before_the_swap_is_reported(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model = build("LlamaForCausalLM")
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    stamm.swap(model, "xielu")
    settings = transformers.TrainingArguments(
        str(tmp_path), max_steps=1, per_device_train_batch_size=1, report_to=[]
    )
    rows = [{"input_ids": IDS[0], "labels": IDS[0]}]
    transformers.Trainer(
        model, settings, train_dataset=rows, callbacks=[stamm.StammCallback()],
        optimizers=(optimizer, None),
    ).train()  # fmt: skip
    said = capsys.readouterr()
    assert "the optimizer does not have the shape parameter" in said.out + said.err
