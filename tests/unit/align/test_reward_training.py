"""Reward models: trained on pairs, they order answers; what is stored gives the rewards of training."""

from __future__ import annotations

import json
import math
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from stamm.align.data.encoded import EncodedExamples
from stamm.align.records import RewardAccuracyFile
from stamm.align.training import job, reward_accuracy
from stamm.align.training.answer_dataset import AnswerSequences
from stamm.align.training.config import SFT, BradleyTerry, RewardAccuracyConfig
from stamm.align.training.objectives import RewardObjective, answers_at_stop
from stamm.align.training.reward_model import answer_rewards
from stamm.base.errors import ConfigError, DataError
from stamm.base.files import sha256_file
from stamm.base.schema import read_record
from stamm.engine.distributed import DistributedContext
from stamm.models.decoder import Decoder, build_decoder
from stamm.models.lora_config import Lora
from stamm.models.reward_head import load_head
from stamm.models.serialization import load_decoder, save_decoder
from stamm.optim.schedules import BatchStage, ConstantRate
from stamm.runs.job import Workspace
from stamm.runs.model_outputs import HEAD, weights_sha256
from tests.unit.align import finetuned
from tests.unit.align.finetuned import MODEL, fine_tune, metrics, pairs, trained
from tests.unit.align.prepared import prepare

LORA = Lora(rank=8, alpha=16.0)
NAMES = ("metrics.jsonl", "model/model.safetensors", f"model/{HEAD}")


def rewards_of(arm: Path, data: EncodedExamples, batch_tokens: int = 16_384) -> torch.Tensor:
    model = arm / "model"
    weight_D = load_head(model, MODEL.d_model, weights_sha256(model))
    return answer_rewards(load_decoder(model), weight_D, list(data.answers), batch_tokens)


@pytest.mark.parametrize("lora", [None, LORA], ids=["full", "lora"])
def test_a_reward_model_learns_to_order_pairs(tmp_path: Path, lora: Lora | None) -> None:
    whole = (BatchStage(size=8),)
    rate = ConstantRate(peak=3e-3 if lora is None else 1e-2)
    arm = fine_tune(
        tmp_path, pairs(), BradleyTerry(), lora=lora, epochs=12.0, batch=whole, schedule=rate
    )
    lines = metrics(arm)
    # The head is 0 at first: every pair is a tie.
    assert lines[0]["train/loss"] == pytest.approx(math.log(2), abs=1e-12)
    assert lines[0]["reward/accuracy"] == 0.5
    last = lines[-1]
    assert last["train/loss"] < 0.3
    assert last["reward/accuracy"] == 1.0
    assert last["reward/margin"] == pytest.approx(last["reward/chosen"] - last["reward/rejected"])
    found = rewards_of(arm, EncodedExamples.open(tmp_path / "prepared"))
    assert (found[0::2] > found[1::2]).all()
    start = load_decoder(tmp_path / "start")
    assert torch.equal(trained(arm).lm_head.weight, start.lm_head.weight)
    assert (arm / "adapter").is_dir() == (lora is not None)


@pytest.mark.parametrize("lora", [None, LORA], ids=["full", "lora"])
def test_a_resumed_run_has_the_same_bits(tmp_path: Path, lora: Lora | None) -> None:
    arm = fine_tune(tmp_path, pairs(), BradleyTerry(), lora=lora)
    whole = {name: sha256_file(arm / name) for name in NAMES}
    shutil.rmtree(arm / "model")
    found = sorted((arm / "checkpoints").iterdir())
    assert len(found) == 2
    shutil.rmtree(found[-1])
    resumed = fine_tune(tmp_path, pairs(), BradleyTerry(), lora=lora)
    assert {name: sha256_file(resumed / name) for name in NAMES} == whole


def objective(
    folder: Path, loss: BradleyTerry
) -> tuple[RewardObjective, Decoder, EncodedExamples, AnswerSequences]:
    """An objective over the pairs of `folder`, of a decoder with a random head."""
    data = EncodedExamples.open(folder / "prepared")
    decoder = build_decoder(MODEL, seed=5)
    decoder.add_reward_head()
    head = decoder.reward_head
    assert head is not None
    with torch.no_grad():
        head.weight.normal_(generator=torch.Generator().manual_seed(1))
    sequences = AnswerSequences(
        answers_at_stop(list(data.answers), 3),
        None,
        paired=True,
        context=finetuned.CONTEXT,
        seed=0,
        pad=3,
    )
    world = DistributedContext(torch.device("cpu"))
    made = RewardObjective(finetuned.run_config(loss), decoder, sequences, world)
    return made, decoder, data, sequences


@pytest.mark.parametrize(
    "loss", [BradleyTerry(), BradleyTerry(margin=True), BradleyTerry(margin=True, centre=0.1)]
)
def test_the_loss_is_that_of_the_hidden_states(tmp_path: Path, loss: BradleyTerry) -> None:
    """Packed rows in float32 against each answer alone in float64, rewards and gradients too."""
    rows = pairs()
    del rows[2]["chosen_reward"], rows[2]["rejected_reward"], rows[2]["ref_rewards"]
    prepare(tmp_path, rows, context=finetuned.CONTEXT)
    made, decoder, data, sequences = objective(tmp_path, loss)
    batch = sequences.batch(0, 8)
    assert batch.num_rows < 16
    found = made.step_loss(batch, 8.0)
    found.loss.backward()  # type: ignore[no-untyped-call]
    exact, head = build_decoder(MODEL, seed=5).double(), decoder.reward_head
    assert head is not None
    weight_D = head.weight.detach().double().requires_grad_()
    rewards = [
        exact.model(torch.tensor([answer.ids[: last + 1]]))[0, last] @ weight_D
        for answer in data.answers
        for last in [max(i for i, counted in enumerate(answer.supervised) if counted)]
    ]
    wanted = torch.zeros((), dtype=torch.float64)
    for number, answer in enumerate(data.answers):
        if number % 2:
            continue
        chosen, rejected = rewards[number], rewards[number + 1]
        given = answer.reward, data.answers[number + 1].reward
        margin = given[0] - given[1] if loss.margin and None not in given else 0.0  # type: ignore[operator]
        wanted = wanted + torch.log1p(torch.exp(rejected - chosen + margin)) / 8
        wanted = wanted + loss.centre * (chosen + rejected) ** 2 / 8
    wanted.backward()  # type: ignore[no-untyped-call]
    assert found.loss.item() == pytest.approx(wanted.item(), rel=1e-5)
    assert float(found.metrics["train/loss"]) == pytest.approx(wanted.item(), rel=1e-5)
    mean = sum(reward.item() for reward in rewards[0::2]) / 8
    assert float(found.metrics["reward/chosen"]) == pytest.approx(mean, rel=1e-4, abs=1e-5)
    assert weight_D.grad is not None and head.weight.grad is not None
    torch.testing.assert_close(head.weight.grad.double(), weight_D.grad, rtol=1e-4, atol=1e-6)
    for name, parameter in exact.named_parameters():
        gradient = decoder.get_parameter(name).grad
        if name == "lm_head.weight":
            assert gradient is None
            continue
        assert parameter.grad is not None and gradient is not None, name
        scale = float(parameter.grad.abs().max())
        torch.testing.assert_close(
            gradient.double(), parameter.grad, rtol=1e-3, atol=1e-5 * scale + 1e-9
        )


def test_stored_rewards_are_those_of_training(tmp_path: Path) -> None:
    still = ConstantRate(peak=1e-3)
    whole = (BatchStage(size=8),)
    arm = fine_tune(tmp_path, pairs(), BradleyTerry(), epochs=2.0, batch=whole, schedule=still)
    # The rewards of the last step are those of the checkpoint before it.
    short = fine_tune(
        tmp_path / "short", pairs(), BradleyTerry(), epochs=1.0, batch=whole, schedule=still
    )
    found = rewards_of(short, EncodedExamples.open(tmp_path / "prepared"))
    alone = rewards_of(short, EncodedExamples.open(tmp_path / "prepared"), batch_tokens=1)
    assert torch.allclose(found, alone, atol=1e-5, rtol=0)
    line = metrics(arm)[1]
    assert float(found[0::2].mean()) == pytest.approx(line["reward/chosen"], abs=1e-5)
    assert float(found[1::2].mean()) == pytest.approx(line["reward/rejected"], abs=1e-5)


def test_other_starts_and_data_are_refused(tmp_path: Path) -> None:
    save_decoder(build_decoder(replace(MODEL, vocab_size=17), seed=5), tmp_path / "start")
    with pytest.raises(DataError, match=r"the tokenizer has \d+ ids, and the model 17"):
        fine_tune(tmp_path, pairs(), BradleyTerry())
    with pytest.raises(DataError, match="BradleyTerry is trained on preference rows"):
        fine_tune(tmp_path / "chats", finetuned.chats(), BradleyTerry())
    with pytest.raises(ConfigError, match="centre"):
        BradleyTerry(centre=-1.0)
    with pytest.raises(ConfigError, match="has no reward head"):
        build_decoder(MODEL, 1).sequence_rewards(
            torch.ones(1, 2, dtype=torch.int64), torch.zeros(1, 2, dtype=torch.int64), 1
        )


@pytest.mark.parametrize(
    ("rewards", "problem"),
    [
        ((1.0, 2.0), "chosen answer of example 0 has the reward 1.0, and the rejected one 2.0"),
        (None, "margin is set, and no pair has rewards"),
    ],
)
def test_margins_that_cannot_be_used_are_refused(
    tmp_path: Path, rewards: tuple[float, float] | None, problem: str
) -> None:
    rows: list[dict[str, Any]] = [
        {key: row[key] for key in ("prompt", "chosen", "rejected")} for row in pairs()
    ]
    if rewards is not None:
        rows[0] |= {"chosen_reward": rewards[0], "rejected_reward": rewards[1]}
    prepare(tmp_path, rows, context=finetuned.CONTEXT)
    data = EncodedExamples.open(tmp_path / "prepared")
    job.check_data(BradleyTerry(), data)
    with pytest.raises(DataError, match=problem):
        job.check_data(BradleyTerry(margin=True), data)


def test_a_changed_head_is_refused(tmp_path: Path) -> None:
    arm = fine_tune(tmp_path, pairs(), BradleyTerry(), epochs=1.0)
    path = arm / "model" / HEAD
    content = bytearray(path.read_bytes())
    content[-2] ^= 1
    path.write_bytes(content)
    with pytest.raises(DataError, match="its header names"):
        load_head(arm / "model", MODEL.d_model, weights_sha256(arm / "model"))


def test_sft_starts_from_a_reward_model_without_its_head(tmp_path: Path) -> None:
    arm = fine_tune(tmp_path, pairs(), BradleyTerry(), epochs=1.0)
    shutil.copytree(arm / "model", tmp_path / "sft" / "start")
    tuned = fine_tune(tmp_path / "sft", finetuned.chats(), SFT(), epochs=4.0)
    lines = metrics(tuned)
    assert lines[-1]["train/loss_nats"] < lines[0]["train/loss_nats"]
    assert not (tuned / "model" / HEAD).exists()


def test_held_out_accuracy_has_an_interval(tmp_path: Path) -> None:
    # Questions are held out, not rows: other questions with the same answers.
    rows = [
        {**row, "prompt": f"{row['prompt']} {number}"} for number in range(5) for row in pairs()
    ]
    prepare(tmp_path, rows, context=finetuned.CONTEXT, held_out=0.4)
    arm = fine_tune(tmp_path, rows, BradleyTerry(), batch=(BatchStage(size=4),))
    out = arm / "accuracy"
    out.mkdir()
    inputs = {
        "model": arm / "model",
        "tokenizer": tmp_path / "tokenizer",
        "data": tmp_path / "prepared",
    }
    reward_accuracy.run(RewardAccuracyConfig(), Workspace(folder=out, inputs=inputs))
    found = read_record(RewardAccuracyFile, out / "accuracy.json")
    data = EncodedExamples.open(tmp_path / "prepared", "held_out")
    rewards = rewards_of(arm, data)
    margin = rewards[0::2] - rewards[1::2]
    assert found.pairs == len(margin) >= 10
    share = found.accuracy.share
    assert share == float((margin > 0).double().mean())
    assert share > 0.8
    assert found.accuracy.low < share
    assert share <= found.accuracy.high
    assert found.mean_margin == pytest.approx(float(margin.mean()), abs=1e-6)
    assert found.loss_nats is not None and found.loss_nats < math.log(2)
    longer = [len(chosen.ids) > len(rejected.ids) for chosen, rejected in zip(
        data.answers[0::2], data.answers[1::2], strict=True)]  # fmt: skip
    ties = [len(chosen.ids) == len(rejected.ids) for chosen, rejected in zip(
        data.answers[0::2], data.answers[1::2], strict=True)]  # fmt: skip
    assert found.longer.share == pytest.approx((sum(longer) + sum(ties) / 2) / found.pairs)
    assert found.head_sha256 == sha256_file(arm / "model" / HEAD)
    described = json.loads((arm / "model" / "decoder.json").read_text())
    assert found.model_sha256 == described["weights_sha256"]


def test_without_held_out_pairs_the_accuracy_is_unknown(tmp_path: Path) -> None:
    arm = fine_tune(tmp_path, pairs(), BradleyTerry(), epochs=1.0)
    inputs = {
        "model": arm / "model",
        "tokenizer": tmp_path / "tokenizer",
        "data": tmp_path / "prepared",
    }
    reward_accuracy.run(RewardAccuracyConfig(), Workspace(folder=arm, inputs=inputs))
    found = read_record(RewardAccuracyFile, arm / "accuracy.json")
    assert (found.pairs, found.accuracy.share, found.mean_margin) == (0, None, None)
    assert (found.accuracy.low, found.accuracy.high) == (0.0, 1.0)
