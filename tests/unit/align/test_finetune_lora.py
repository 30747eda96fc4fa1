"""Fine-tuning with LoRA: the run ends with a merged model, and resumes with the same bits."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from stamm.align.data.encoded import EncodedExamples
from stamm.align.losses.qrpo import QRPO
from stamm.align.training.config import (
    SFT,
    FineTuneRun,
    Loss,
)
from stamm.align.training.log_probs import completion_log_probs
from stamm.base.files import sha256_file
from stamm.base.schema import read_record
from stamm.engine import trainer_setup
from stamm.engine.distributed import DistributedContext
from stamm.models.config import BlockDense, PlainFFN, SelfGuide, Structured
from stamm.models.decoder import Decoder, build_decoder
from stamm.models.flops import training_flops
from stamm.models.lora import add_adapters, init_adapters, merged_decoder
from stamm.models.lora_config import Lora
from stamm.models.serialization import load_decoder, save_decoder
from stamm.optim.schedules import ConstantRate
from stamm.pretrain.config import PeriodicEvaluation
from stamm.pretrain.periodic_evaluation import make_evaluator
from stamm.pretrain.records import TrainingSummary
from stamm.runs.job import Workspace
from tests.unit.align.finetuned import (
    CONTEXT,
    MODEL,
    chats,
    config,
    fine_tune,
    metrics,
    pairs,
    start_model,
    trained,
)
from tests.unit.untrained_run import untrained_run

LORA = Lora(rank=8, alpha=16.0)


@pytest.mark.parametrize("loss", [SFT(), QRPO()], ids=str)
def test_adapters_learn_from_the_start_model_on(tmp_path: Path, loss: Loss) -> None:
    rows = chats() if isinstance(loss, SFT) else pairs()
    whole = metrics(fine_tune(tmp_path, rows, loss))
    shutil.rmtree(tmp_path / "arms")
    fast = ConstantRate(peak=1e-2)
    arm = fine_tune(tmp_path, rows, loss, lora=LORA, epochs=6.0, schedule=fast)
    lines = metrics(arm)
    name = "train/loss_nats" if isinstance(loss, SFT) else "train/loss"
    assert lines[0][name] == whole[0][name]
    assert lines[-1][name] < 0.9 * lines[0][name]
    before, after = load_decoder(tmp_path / "start"), trained(arm)
    assert torch.equal(after.lm_head.weight, before.lm_head.weight)
    if isinstance(loss, SFT):
        answers = EncodedExamples.open(tmp_path / "prepared").answers
        gain = completion_log_probs(after, answers) - completion_log_probs(before, answers)
        assert (gain > 0.5).all()
    described = json.loads((arm / "adapter" / "adapter_config.json").read_text())
    assert (described["r"], described["lora_alpha"]) == (8, 16.0)
    summary = read_record(TrainingSummary, arm / "summary.json")
    adapters = load_file(arm / "adapter" / "adapter_model.safetensors")
    assert summary.trainable_parameters == sum(each.numel() for each in adapters.values())
    assert summary.flops < 0.95 * training_flops(MODEL, CONTEXT) * summary.trained_tokens // CONTEXT


def test_a_base_stored_in_bfloat16_trains_with_the_same_bits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The frozen matrices stay in 16 bits; losses and the merged model are those of float32."""
    seen: list[torch.dtype] = []
    keep = trainer_setup.keep_stored_types

    def watched(decoder: Decoder, stored: dict[str, torch.dtype]) -> None:
        keep(decoder, stored)
        seen.append(decoder.model.layers[0].get_parameter("mlp.up_proj.weight").dtype)

    monkeypatch.setattr(trainer_setup, "keep_stored_types", watched)
    losses, merged = [], []
    for name in ("wide", "narrow"):
        root = tmp_path / name
        start_model(root / "start")
        start = load_decoder(root / "start").bfloat16().float()
        matrices = [key for key, tensor in start.state_dict().items() if tensor.dim() > 1]
        types = dict.fromkeys(matrices if name == "narrow" else (), torch.bfloat16)
        save_decoder(start, root / "start", types)
        arm = fine_tune(root, chats(), SFT(), lora=LORA)
        losses.append([line["train/loss_nats"] for line in metrics(arm)])
        merged.append(trained(arm).state_dict())
    assert seen == [torch.float32, torch.bfloat16]
    assert losses[0] == losses[1]
    assert all(torch.equal(merged[0][key], merged[1][key]) for key in merged[0])


def test_activations_are_trained_alone(tmp_path: Path) -> None:
    shapes = Lora(targets=(), train_activation=True)
    arm = fine_tune(tmp_path, chats(), SFT(), lora=shapes, schedule=ConstantRate(peak=1e-2))
    before, after = (load_decoder(path) for path in (tmp_path / "start", arm / "model"))
    changed = {
        name for name, tensor in after.state_dict().items()
        if not torch.equal(tensor, before.state_dict()[name])
    }  # fmt: skip
    assert changed == {name for name in after.state_dict() if ".act_fn." in name}
    assert not (arm / "adapter").exists()


def test_a_resumed_run_has_the_same_bits(tmp_path: Path) -> None:
    arm = fine_tune(tmp_path, chats(), lora=LORA)
    names = ("metrics.jsonl", "model/model.safetensors", "adapter/adapter_model.safetensors")
    whole = {name: sha256_file(arm / name) for name in names}
    shutil.rmtree(arm / "model")
    shutil.rmtree(arm / "adapter")
    found = sorted((arm / "checkpoints").iterdir())
    assert len(found) == 2
    shutil.rmtree(found[-1])
    resumed = fine_tune(tmp_path, chats(), lora=LORA)
    assert {name: sha256_file(resumed / name) for name in names} == whole


@pytest.mark.parametrize("lora", [None, replace(LORA, targets=("q_proj", "v_proj"))], ids=str)
def test_a_model_of_self_guided_training_is_trained_without_guides(
    tmp_path: Path, lora: Lora | None
) -> None:
    ffn = PlainFFN(width=48, linear=BlockDense(rank=8))
    guided = replace(MODEL, ffn=ffn, structured=Structured(guide=SelfGuide()))
    save_decoder(build_decoder(guided, seed=5), tmp_path / "start")
    lines = metrics(fine_tune(tmp_path, chats(), lora=lora))
    assert lines[-1]["train/loss_nats"] < lines[0]["train/loss_nats"]


def test_evaluation_during_training_measures_the_adapters(tmp_path: Path) -> None:
    """As it measures the merged model; before, it measured the frozen weights."""
    inputs = untrained_run(tmp_path)
    start = load_decoder(inputs["model"])
    decoder = load_decoder(inputs["model"])
    add_adapters(decoder, LORA)
    init_adapters(decoder, seed=1)
    with torch.no_grad():
        for name, parameter in decoder.named_parameters():
            if name.endswith("lora_B"):
                parameter.normal_(std=0.1)
    weights = dict(decoder.named_parameters())
    wanted = PeriodicEvaluation(every=20, share=1.0)
    settings = FineTuneRun.of(
        config(SFT(), lora=LORA, evaluate=wanted, context=16), model=start.config
    )
    place = Workspace(folder=tmp_path / "arm", inputs=inputs)
    alone = DistributedContext(torch.device("cpu"))
    bits = {}
    for name, lora, model in (
        ("start", None, start),
        ("adapters", LORA, decoder),
        ("merged", None, merged_decoder(start.config, weights, LORA)),
    ):
        evaluate = make_evaluator(replace(settings, lora=lora), model, 20, place, alone)
        assert evaluate is not None
        bits[name] = evaluate(20)["evaluate/held_out/bits_per_byte"]
    assert bits["adapters"] == bits["merged"] != bits["start"]


def test_checkpoints_of_adapters_are_small(tmp_path: Path) -> None:
    def size(arm: Path) -> int:
        newest = max((arm / "checkpoints").iterdir())
        return sum(path.stat().st_size for path in newest.glob("*.safetensors"))

    whole = size(fine_tune(tmp_path, chats()))
    shutil.rmtree(tmp_path / "arms")
    arm = fine_tune(tmp_path, chats(), lora=Lora(rank=1))
    assert size(arm) < whole / 5
