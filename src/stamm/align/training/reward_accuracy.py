"""Measure how often a reward model prefers the chosen answer of held-out pairs.

Reads    model (a stored decoder with a head), tokenizer, data (prepared pairs)
Writes   accuracy.json (`align.records.RewardAccuracyFile`)

Checked  tests/unit/align/test_reward_training.py
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from stamm.align.data.encoded import EncodedExamples
from stamm.align.records import RewardAccuracyFile
from stamm.align.training.answer_dataset import pairs_of
from stamm.align.training.config import RewardAccuracyConfig
from stamm.align.training.reference_job import check_chat_format
from stamm.align.training.reward_model import answer_rewards
from stamm.base.files import sha256_file
from stamm.base.schema import write_record
from stamm.engine.distributed import select_device
from stamm.losses.bradley_terry import bradley_terry_accuracy, bradley_terry_loss
from stamm.models.determinism import set_determinism
from stamm.models.reward_head import load_head
from stamm.models.serialization import load_decoder
from stamm.runs.job import Workspace
from stamm.runs.model_outputs import HEAD, weights_sha256
from stamm.statistics.intervals import wilson

ACCURACY = "accuracy.json"


def run(config: RewardAccuracyConfig, workspace: Workspace) -> None:
    """Score the held-out pairs and write the share in order, with a Wilson interval.

    Raises   DataError when the data has no pairs, or another chat format than the tokenizer, and for a
             model without a head
    """
    model, folder = workspace.inputs["model"], workspace.inputs["data"]
    data = EncodedExamples.open(folder, "held_out")
    check_chat_format(data, workspace.inputs["tokenizer"])
    set_determinism(1)
    device, sha256 = select_device(config.device, "accuracy.device"), weights_sha256(model)
    decoder = load_decoder(model).to(device)
    weight_D = load_head(model, decoder.config.d_model, sha256).to(device)
    answers = list(data.answers)
    rewards = answer_rewards(decoder, weight_D, answers, config.batch_tokens)
    pair_positions = torch.tensor(pairs_of(answers), dtype=torch.int64).reshape(-1, 2)
    measured = _measured(rewards[pair_positions[:, 0]], rewards[pair_positions[:, 1]])
    lengths = torch.tensor([float(len(answer.ids)) for answer in answers])
    longer = bradley_terry_accuracy(lengths[pair_positions[:, 0]], lengths[pair_positions[:, 1]])
    fields = {
        **measured,
        "longer": _share(longer),
        "data_sha256": data.sha256,
        "model_sha256": sha256,
        "head_sha256": sha256_file(model / HEAD),
    }
    write_record(workspace.folder / ACCURACY, RewardAccuracyFile, fields)
    workspace.progress.log(_sentence(fields))


def _measured(chosen_P: Tensor, rejected_P: Tensor) -> dict[str, Any]:
    margin_P = chosen_P - rejected_P
    return {
        "pairs": len(margin_P),
        "accuracy": _share(bradley_terry_accuracy(chosen_P, rejected_P)),
        "ties": int((margin_P == 0).sum()),
        "mean_margin": float(margin_P.mean()) if len(margin_P) else None,
        "loss_nats": float(bradley_terry_loss(chosen_P, rejected_P).mean())
        if len(margin_P)
        else None,
    }


def _share(right_P: Tensor) -> dict[str, float | None]:
    right, pairs = float(right_P.sum()), len(right_P)
    low, high = wilson(right, pairs)
    return {"share": right / pairs if pairs else None, "low": low, "high": high}


def _sentence(accuracy: dict[str, Any]) -> str:
    """The result as one line."""
    if not accuracy["pairs"]:
        return "No pairs are held out: set prepare.held_out above 0, or give more data."
    shown = {
        name: f"{100 * accuracy[name]['share']:.1f} % ({100 * accuracy[name]['low']:.1f} to"
        f" {100 * accuracy[name]['high']:.1f})"
        for name in ("accuracy", "longer")
    }
    return (
        f"Held-out accuracy {shown['accuracy']} on {accuracy['pairs']:,} pairs; a rule that prefers the "
        f"longer answer: {shown['longer']}."
    )
