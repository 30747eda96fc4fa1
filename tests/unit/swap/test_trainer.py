"""`StammCallback` in transformers' Trainer: weight decay, logs, resumption, warnings."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

import stamm
from stamm.base.errors import ConfigError
from stamm.swap.shapes import shape_parameters
from tests.unit.swap.small_models import IDS, build, logits, move_shapes


class Rows(torch.utils.data.Dataset[dict[str, torch.Tensor]]):
    """The same few tokens in other orders."""

    def __len__(self) -> int:
        return 16

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        ids = IDS[0].roll(index)
        return {"input_ids": ids, "labels": ids}


def trainer(folder: Path, model: Any, *callbacks: Any, **settings: Any) -> transformers.Trainer:
    """A Trainer of a few steps."""
    given = {
        "max_steps": 6, "per_device_train_batch_size": 2, "learning_rate": 1e-2, "weight_decay": 0.5,
        "logging_steps": 2, "save_steps": 3, "report_to": [], "use_cpu": True, "disable_tqdm": True,
        "dataloader_pin_memory": False, **settings,
    }  # fmt: skip
    arguments = transformers.TrainingArguments(output_dir=str(folder), **given)
    return transformers.Trainer(
        model=model, args=arguments, train_dataset=Rows(), callbacks=list(callbacks)
    )


def swapped() -> Any:
    """A small model with moved shapes."""
    model = build("LlamaForCausalLM")
    stamm.swap(model, "xielu")
    move_shapes(model)
    return model


def _shapes(model: Any) -> dict[str, torch.Tensor]:
    return {name: p.detach().clone() for name, p in shape_parameters(model).items()}


def test_shapes_do_not_decay(tmp_path: Path) -> None:
    """Without gradients of the shapes, decay alone would move them."""
    moved = {}
    for with_callback in (False, True):
        model = swapped()
        for parameter in shape_parameters(model).values():
            parameter.register_hook(torch.zeros_like)
        before = _shapes(model)
        callbacks = [stamm.StammCallback()] if with_callback else []
        trainer(tmp_path / str(with_callback), model, *callbacks).train()
        moved[with_callback] = max(
            float((value - before[name]).abs().max()) for name, value in _shapes(model).items()
        )
    assert moved[False] > 1e-3 and moved[True] == 0


def test_training_equals_that_of_the_groups_of_torch(tmp_path: Path) -> None:
    """The callback in a Trainer, against a Trainer that is given an optimizer over separate groups."""
    models = [swapped() for _ in range(2)]
    trainer(tmp_path / "callback", models[0], stamm.StammCallback()).train()
    own = trainer(tmp_path / "groups", models[1])
    decaying = set(own.get_decay_parameter_names(models[1])) - set(shape_parameters(models[1]))
    named = dict(models[1].named_parameters())
    own.optimizer = torch.optim.AdamW(
        [
            {"params": [p for n, p in named.items() if n in decaying], "weight_decay": 0.5},
            {"params": [p for n, p in named.items() if n not in decaying], "weight_decay": 0.0},
        ],
        lr=1e-2,
        fused=True,
    )
    own.train()
    for (name, ours), theirs in zip(
        models[0].named_parameters(), models[1].parameters(), strict=True
    ):
        torch.testing.assert_close(ours, theirs, rtol=1e-6, atol=1e-8, msg=name)


def test_a_resumed_run_has_the_same_bits(tmp_path: Path) -> None:
    whole, stopped = swapped(), swapped()
    trainer(tmp_path / "whole", whole, stamm.StammCallback()).train()
    trainer(tmp_path / "stopped", stopped, stamm.StammCallback(), max_steps=6).train()
    checkpoint = tmp_path / "stopped" / "checkpoint-3"
    assert (checkpoint / "modeling_stamm.py").is_file()
    fresh = swapped()
    trainer(tmp_path / "stopped", fresh, stamm.StammCallback()).train(
        resume_from_checkpoint=str(checkpoint)
    )
    for (name, ours), theirs in zip(fresh.named_parameters(), whole.parameters(), strict=True):
        assert torch.equal(ours, theirs), name
    loaded = transformers.AutoModelForCausalLM.from_pretrained(
        tmp_path / "whole" / "checkpoint-6", trust_remote_code=True
    )
    assert torch.equal(logits(loaded, "LlamaForCausalLM"), logits(whole.eval(), "LlamaForCausalLM"))


def test_a_loaded_model_trains_on_with_fused_kernels(tmp_path: Path) -> None:
    model = swapped()
    model.save_pretrained(tmp_path / "model")
    loaded = transformers.AutoModelForCausalLM.from_pretrained(
        tmp_path / "model", trust_remote_code=True
    )
    act = loaded.model.layers[0].mlp.act_fn
    assert act.KERNEL is None
    trainer(tmp_path / "run", loaded, stamm.StammCallback()).train()
    assert act.KERNEL is not None
    trainer(tmp_path / "other", model, stamm.StammCallback()).train()
    for (name, ours), theirs in zip(loaded.named_parameters(), model.parameters(), strict=True):
        assert torch.equal(ours, theirs), name


def test_values_are_logged(tmp_path: Path) -> None:
    model = swapped()
    run = trainer(tmp_path, model, stamm.StammCallback())
    run.train()
    rows = [row for row in run.state.log_history if "loss" in row]
    assert len(rows) == 3
    names = shape_parameters(model)
    for row in rows:
        assert {f"activation/{name}" for name in names} <= set(row)
        values = [row[f"activation/{name}"] for name in names if name.endswith("alpha_p")]
        assert row["activation/alpha_p_min"] == min(values)
        assert row["activation/alpha_p_mean"] == pytest.approx(sum(values) / len(values))
    stored = json.loads((tmp_path / "checkpoint-6" / "trainer_state.json").read_text())
    assert "activation/alpha_n_max" in stored["log_history"][0]


def test_a_shape_that_runs_away_is_reported_once(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    model = swapped()
    trainer(tmp_path, model, stamm.StammCallback(limit=0.05), learning_rate=0.1).train()
    lines = [line for line in capfd.readouterr().err.splitlines() if "runs away" in line]
    assert lines and len(lines) == len({line.split("parameter ")[1].split()[0] for line in lines})
    assert "model.layers." in lines[0] and "at the start" in lines[0]


def test_frozen_shapes_are_reported(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    model = swapped()
    for parameter in shape_parameters(model).values():
        parameter.requires_grad_(False)
    trainer(tmp_path, model, stamm.StammCallback(), max_steps=1).train()
    assert "the 4 shape parameters are frozen, model.layers.0.mlp.act_fn" in capfd.readouterr().err


def test_a_model_without_shapes_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="LlamaForCausalLM has no shape parameters"):
        trainer(tmp_path, build("LlamaForCausalLM"), stamm.StammCallback()).train()


def test_autocast_and_gradient_checkpointing(tmp_path: Path) -> None:
    """bf16 autocast, with and without recomputation in the backward pass: the same numbers."""
    results = []
    for reentrant in (None, False, True):
        model = swapped()
        settings: dict[str, Any] = {"bf16": True}
        if reentrant is not None:
            settings |= {
                "gradient_checkpointing": True,
                "gradient_checkpointing_kwargs": {"use_reentrant": reentrant},
            }
        trainer(tmp_path / str(reentrant), model, stamm.StammCallback(), **settings).train()
        results.append([p.detach().clone() for p in model.parameters()])
    for other in results[1:]:
        for ours, theirs in zip(results[0], other, strict=True):
            assert torch.equal(ours, theirs)
