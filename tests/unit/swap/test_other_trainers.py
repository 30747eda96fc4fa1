"""Swapped models in TRL, Lightning, PEFT, torch.compile and with quantized matrices."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

import stamm
from stamm.swap.shapes import shape_parameters
from tests.unit.swap.small_models import IDS, build, logits, move_shapes


def swapped(name: str = "LlamaForCausalLM", **settings: Any) -> Any:
    """A small model with moved shapes."""
    model = build(name)
    stamm.swap(model, "xielu", **settings)
    move_shapes(model)
    return model


def _stopped(model: Any) -> dict[str, torch.Tensor]:
    """The shapes, which from now on get no gradient: decay alone would move them."""
    for parameter in shape_parameters(model).values():
        parameter.register_hook(torch.zeros_like)
    return {name: p.detach().clone() for name, p in shape_parameters(model).items()}


def test_trl(tmp_path: Path) -> None:
    trl = pytest.importorskip("trl", reason="TRL is not installed")
    datasets = pytest.importorskip("datasets")
    tokens = {"input_ids": [IDS[0].roll(k).tolist() for k in range(8)]}
    tokenizer = transformers.PreTrainedTokenizerFast(
        tokenizer_object=_word_tokenizer(), pad_token="w0", eos_token="w1"
    )
    model = swapped()
    before = _stopped(model)
    arguments = trl.SFTConfig(
        output_dir=str(tmp_path), max_steps=4, per_device_train_batch_size=2, weight_decay=0.5,
        learning_rate=1e-2, logging_steps=2, report_to=[], use_cpu=True, bf16=False, max_length=16,
        dataloader_pin_memory=False, gradient_checkpointing=True,
    )  # fmt: skip
    trainer = trl.SFTTrainer(
        model=model,
        args=arguments,
        train_dataset=datasets.Dataset.from_dict(tokens),
        processing_class=tokenizer,
        callbacks=[stamm.StammCallback()],
    )
    trainer.train()
    for name, parameter in shape_parameters(model).items():
        assert torch.equal(parameter, before[name]), name
    assert "activation/alpha_p_mean" in trainer.state.log_history[0]
    trainer.save_model(str(tmp_path / "model"))
    loaded = transformers.AutoModelForCausalLM.from_pretrained(
        tmp_path / "model", trust_remote_code=True
    )
    assert torch.equal(logits(loaded, "LlamaForCausalLM"), logits(model.eval(), "LlamaForCausalLM"))


def _word_tokenizer() -> Any:
    tokenizers = pytest.importorskip("tokenizers")
    words = {f"w{k}": k for k in range(97)}
    return tokenizers.Tokenizer(tokenizers.models.WordLevel(words, unk_token="w2"))


def test_lightning(tmp_path: Path) -> None:
    lightning = pytest.importorskip("pytorch_lightning", reason="Lightning is not installed")

    class Module(lightning.LightningModule):  # type: ignore[name-defined, misc]
        """A language model."""

        def __init__(self, model: Any) -> None:
            super().__init__()
            self.model = model

        def training_step(self, batch: torch.Tensor) -> torch.Tensor:
            """The loss."""
            loss: torch.Tensor = self.model(input_ids=batch, labels=batch).loss
            return loss

        def configure_optimizers(self) -> Any:
            """One group that decays."""
            return torch.optim.AdamW(self.parameters(), lr=1e-2, weight_decay=0.5)

    model = swapped()
    module, before = Module(model), _stopped(model)
    logged: list[str] = []
    callback = stamm.StammCallback()
    trainer = lightning.Trainer(
        max_steps=4, accelerator="cpu", callbacks=[callback], default_root_dir=str(tmp_path),
        enable_progress_bar=False, enable_model_summary=False, log_every_n_steps=1, logger=False,
    )  # fmt: skip
    rows = torch.stack([IDS[0].roll(k) for k in range(8)])
    trainer.fit(module, torch.utils.data.DataLoader(rows, batch_size=2))
    logged += [name for name in trainer.callback_metrics if "activation/" in name]
    assert "activation/alpha_p_mean" in logged
    for name, parameter in shape_parameters(model).items():
        assert torch.equal(parameter, before[name]), name
    model.eval().save_pretrained(tmp_path / "model")
    loaded = transformers.AutoModelForCausalLM.from_pretrained(
        tmp_path / "model", trust_remote_code=True
    )
    assert torch.equal(logits(loaded, "LlamaForCausalLM"), logits(model, "LlamaForCausalLM"))


def test_lora_trains_and_keeps_the_shapes(tmp_path: Path) -> None:
    peft = pytest.importorskip("peft", reason="PEFT is not installed")
    model = swapped()
    model.save_pretrained(tmp_path / "base")
    config = peft.LoraConfig(
        r=2,
        target_modules=["q_proj", "v_proj"],
        modules_to_save=["act_fn"],
        init_lora_weights=False,
    )
    adapted = peft.get_peft_model(model, config)
    trained = {n: p for n, p in shape_parameters(adapted).items() if p.requires_grad}
    assert len(trained) == 4
    before = {name: p.detach().clone() for name, p in trained.items()}
    groups = stamm.parameter_groups(adapted, weight_decay=0.1)
    optimizer = torch.optim.AdamW(groups, lr=1e-2)
    adapted.train()(input_ids=IDS, labels=IDS).loss.backward()
    optimizer.step()
    assert all(not torch.equal(p, before[name]) for name, p in trained.items())
    result = logits(adapted.eval(), "LlamaForCausalLM")
    adapted.save_pretrained(tmp_path / "adapter")
    base = transformers.AutoModelForCausalLM.from_pretrained(
        tmp_path / "base", trust_remote_code=True
    )
    again = peft.PeftModel.from_pretrained(base, tmp_path / "adapter").eval()
    assert torch.equal(logits(again, "LlamaForCausalLM"), result)
    merged = adapted.merge_and_unload()
    merged.save_pretrained(tmp_path / "merged")
    loaded = transformers.AutoModelForCausalLM.from_pretrained(
        tmp_path / "merged", trust_remote_code=True
    )
    assert torch.equal(logits(loaded, "LlamaForCausalLM"), logits(merged, "LlamaForCausalLM"))
    torch.testing.assert_close(logits(merged, "LlamaForCausalLM"), result, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("training", [False, True])
@pytest.mark.slow
def test_a_compiled_model_computes_the_same(training: bool) -> None:
    model = swapped().train(training)
    other = copy.deepcopy(model)
    compiled = torch.compile(other)
    for each_model in (model, compiled):
        each_model(input_ids=IDS, labels=IDS).loss.backward()
    for (name, ours), theirs in zip(model.named_parameters(), other.parameters(), strict=True):
        torch.testing.assert_close(theirs.grad, ours.grad, rtol=1e-3, atol=1e-5, msg=name)


@pytest.mark.parametrize("library", ["bitsandbytes", "torchao"])
def test_quantized_matrices_beside_the_shapes(library: str, tmp_path: Path) -> None:
    pytest.importorskip(library, reason=f"{library} is not installed")
    model = build("LlamaForCausalLM", hidden_size=128, intermediate_size=256)
    stamm.swap(model, "xielu")
    move_shapes(model)
    model.save_pretrained(tmp_path)
    quantized = transformers.AutoModelForCausalLM.from_pretrained(
        tmp_path, trust_remote_code=True, quantization_config=_quantization(library)
    ).eval()
    for name, parameter in shape_parameters(model).items():
        assert torch.equal(quantized.get_parameter(name), parameter), name
    kind = type(quantized.model.layers[0].mlp.down_proj.weight)
    assert kind is not torch.nn.Parameter
    first, second = logits(quantized, "LlamaForCausalLM"), logits(model, "LlamaForCausalLM")
    assert torch.corrcoef(torch.stack([first.flatten().float(), second.flatten()]))[0, 1] > 0.8
    before = copy.deepcopy({n: p.detach() for n, p in shape_parameters(quantized).items()})
    stamm.swap(quantized, back=True)
    again = stamm.swap(quantized, "xielu")
    assert again.numbers == len(before)


def _quantization(library: str) -> Any:
    if library == "bitsandbytes":
        return transformers.BitsAndBytesConfig(load_in_4bit=True)
    from torchao.quantization import Int8WeightOnlyConfig

    return transformers.TorchAoConfig(Int8WeightOnlyConfig())
