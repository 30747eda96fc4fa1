"""Measure how often a reward model prefers the chosen answer of held-out pairs.

Reads    model (a stored decoder with a head), tokenizer, data (prepared pairs)
Writes   accuracy.json (`runs.schemas.reward_model`)

Checked  tests/unit/align/test_reward_training.py
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from stamm.align.data.encoded import CHOSEN, REJECTED, EncodedAnswer, EncodedExamples
from stamm.align.judge.validation import wilson
from stamm.align.training.answer_rewards import answer_rewards
from stamm.align.training.reference_job import check_chat_format
from stamm.align.training.reward_accuracy_config import RewardAccuracyConfig
from stamm.base.errors import DataError
from stamm.base.files import sha256_file
from stamm.base.schema import write_record
from stamm.engine.distributed import select_device
from stamm.losses.bradley_terry import bradley_terry_accuracy, bradley_terry_loss
from stamm.models.determinism import set_determinism
from stamm.models.reward_head import load_head
from stamm.models.serialization import load_decoder
from stamm.runs.job import Workspace
from stamm.runs.model_outputs import HEAD, weights_sha256
from stamm.runs.schemas.reward_model import RewardAccuracyFile

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
    pairs = _pairs(answers)
    rewards = answer_rewards(decoder, weight_D, answers, config.batch_tokens)
    places = torch.tensor(pairs, dtype=torch.int64).reshape(-1, 2)
    measured = _measured(rewards[places[:, 0]], rewards[places[:, 1]])
    lengths = torch.tensor([float(len(answer.ids)) for answer in answers])
    longer = bradley_terry_accuracy(lengths[places[:, 0]], lengths[places[:, 1]])
    found = {
        **measured,
        "longer": _share(longer),
        "data_sha256": data.sha256,
        "model_sha256": sha256,
        "head_sha256": sha256_file(model / HEAD),
    }
    write_record(workspace.folder / ACCURACY, RewardAccuracyFile, found)
    workspace.progress.log(_sentence(found))


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


def _sentence(found: dict[str, Any]) -> str:
    """The result as one line."""
    if not found["pairs"]:
        return "No pairs are held out: set prepare.held_out above 0, or give more data."
    shown = {
        name: f"{100 * found[name]['share']:.1f} % ({100 * found[name]['low']:.1f} to"
        f" {100 * found[name]['high']:.1f})"
        for name in ("accuracy", "longer")
    }
    return (
        f"Held-out accuracy {shown['accuracy']} on {found['pairs']:,} pairs; a rule that prefers the "
        f"longer answer: {shown['longer']}."
    )


def _pairs(answers: Sequence[EncodedAnswer]) -> list[tuple[int, int]]:
    """Places of the chosen and the rejected answer of each example.

    Raises   DataError for an example that is not a pair
    """
    by_example: dict[int, dict[str, int]] = {}
    for place, answer in enumerate(answers):
        by_example.setdefault(answer.example, {})[answer.role] = place
    for example, roles in by_example.items():
        if roles.keys() != {CHOSEN, REJECTED}:
            raise DataError(
                f"held-out example {example} is not a pair: it has {', '.join(sorted(roles))}"
            )
    return [(roles[CHOSEN], roles[REJECTED]) for roles in by_example.values()]
