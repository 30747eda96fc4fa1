"""Fine-tune a trained model: SFT on conversations; QRPO, DPO, SimPO and REBEL on answers; reward models.

Reads    start (a stored decoder), tokenizer, data (prepared examples); reference (log-probabilities
         under the start model, or under reference_model where that is another) for losses with a
         reference policy; chosen, where the configuration names an entry of it
Writes   what `pretrain.training_run` writes; with LoRA, model/ is the merged decoder and adapter/
         holds the adapters in PEFT's layout; model/ of a reward model also has head.safetensors

Checked  tests/unit/align/test_finetune.py
"""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from stamm.align.data.encoded import CHOSEN, REJECTED, EncodedAnswer, EncodedExamples
from stamm.align.hf_chat_format import load_folder_chat
from stamm.align.model_source import check_vocabulary
from stamm.align.training.answer_dataset import AnswerBatch, AnswerSequences
from stamm.align.training.answer_rewards import save_head
from stamm.align.training.chat_dataset import ChatWindows
from stamm.align.training.chosen_settings import apply_chosen
from stamm.align.training.finetune_config import FineTuneConfig
from stamm.align.training.loss_config import (
    QRPO,
    REBEL,
    SFT,
    BradleyTerry,
    Loss,
    needs_reference,
)
from stamm.align.training.preference_objective import PreferenceObjective
from stamm.align.training.reference_job import check_chat_format, read_reference
from stamm.align.training.reward_objective import RewardObjective, answers_at_stop
from stamm.base.errors import DataError
from stamm.base.files import sha256_value
from stamm.corpus.shuffle import Proof
from stamm.engine.distributed import DistributedContext
from stamm.engine.objective import Objective
from stamm.engine.trainer import InitialCheckpoint
from stamm.losses.quantile import quantile_rewards, transformed
from stamm.models.config import DecoderConfig
from stamm.models.decoder import Decoder
from stamm.models.peft_adapter import save_adapted
from stamm.models.reward_head import REWARD_HEAD
from stamm.models.serialization import checked_config
from stamm.pretrain.config import PretrainConfig
from stamm.pretrain.dataset import TrainingSequences
from stamm.pretrain.train import MakeObjective
from stamm.pretrain.training_run import TrainingData, TrainingKind, save_trained, train_run
from stamm.runs.job import Workspace
from stamm.runs.model_outputs import weights_sha256, write_chat_record

_MANY_TIES = 0.1  # share of equal pairs of reference rewards from which on it matters


def run(config: FineTuneConfig, workspace: Workspace) -> None:
    """Train the start model on the prepared examples, from the newest checkpoint when there is one.

    Raises   DataError when the data does not fit the loss, or was encoded with another chat format,
             or the tokenizer has more ids than the start model, or the reference
             log-probabilities are those of another model
    """
    inputs = workspace.inputs
    start = inputs["start"]
    config = apply_chosen(config, inputs)
    model = checked_config(start)
    # Guides serve the first part of pretraining, and a stored decoder has none.
    unguided = dataclasses.replace(model.structured, guide=None)
    config = dataclasses.replace(config, model=dataclasses.replace(model, structured=unguided))
    data = EncodedExamples.open(inputs["data"])
    check_chat_format(data, inputs["tokenizer"])
    check_data(config.loss, data)
    if warning := tie_warning(config.loss, data):
        workspace.progress.log(warning)
    loaded = load_folder_chat(inputs["tokenizer"])
    check_vocabulary(model, loaded.tokenizer.size, inputs["tokenizer"])
    chat = loaded.chat
    identity = [data.sha256, weights_sha256(start)]
    sequences: TrainingSequences[Any]
    if isinstance(config.loss, SFT):
        sequences = ChatWindows(list(data.answers), config.context, config.seed, chat.pad_id)
    else:
        reference = None
        if needs_reference(config.loss):
            policy = inputs.get("reference_model", start)
            reference = read_reference(inputs["reference"], data, policy).tolist()
        answers = list(data.answers)
        if isinstance(config.loss, BradleyTerry):
            answers = answers_at_stop(answers, chat.pad_id)
        sequences = AnswerSequences(
            answers,
            reference,
            paired=data.kind == "preference",
            context=config.context,
            seed=config.seed,
            pad=chat.pad_id,
        )
    proof = Proof(sha256=sha256_value(identity), facts={"examples": data.sha256})

    def open_data(_: DistributedContext) -> TrainingData:
        return TrainingData(name="data", sequences=sequences, proof=proof)

    def save(model: DecoderConfig, weights: dict[str, torch.Tensor], folder: Path) -> None:
        head = weights.pop(REWARD_HEAD, None)
        if config.lora is None:
            save_trained(model, weights, folder)
        else:
            save_adapted(model, weights, folder, lora=config.lora)
        if head is not None:
            save_head(head, folder, weights_sha256(folder))
        write_chat_record(folder, chat.name, chat.sha256)

    kind = TrainingKind(
        name="finetune",
        open_data=open_data,
        make_objective=_maker(config.loss),
        start=InitialCheckpoint(start, optimizer_state=False),
        save=save,
    )
    train_run(config, workspace, kind)


def check_data(loss: Loss, data: EncodedExamples) -> None:
    """Check that prepared examples have what a loss needs.

    Raises   DataError naming the first example that does not
    """
    name = type(loss).__name__
    kinds: tuple[str, ...] = ("chat",) if isinstance(loss, SFT) else ("preference",)
    kinds = ("preference", "rated") if isinstance(loss, QRPO) else kinds
    if data.kind not in kinds:
        raise DataError(
            f"{name} is trained on {' or '.join(kinds)} rows, and the data has {data.kind} rows",
            fix="Choose another data file, or another recipe",
        )
    if isinstance(loss, BradleyTerry) and loss.margin:
        _check_margins(list(data.answers))
    if not isinstance(loss, QRPO | REBEL):
        return
    answers = list(data.answers)
    for answer in answers:
        if answer.reward is None:
            raise _lacking(name, answer, "no reward")
        if isinstance(loss, QRPO) and not answer.ref_rewards:
            raise _lacking(name, answer, "no ref_rewards, rewards of reference completions")
    rewards = {answer.reward for answer in answers}
    references = {reward for answer in answers for reward in answer.ref_rewards}
    if len(rewards | references) == 1:
        raise DataError(
            f"all rewards are {rewards.pop()}: there is nothing to learn from",
            fix="Score the answers with a reward that differs between them",
        )
    if isinstance(loss, QRPO):
        _check_quantiles(loss, answers)


def tie_warning(loss: Loss, data: EncodedExamples) -> str:
    """Advice where rewards tie often and the closed-form partition function is used; "" without.

    With equal rewards quantiles are not uniform, and the closed form is wrong: measured in
    docs/log/2026-11-23-alignment-truth.md, question 7.
    """
    if not isinstance(loss, QRPO) or loss.partition == "empirical":
        return ""
    pairs = ties = 0
    for answer in data.answers:
        for count in Counter(answer.ref_rewards).values():
            ties += count * (count - 1)
        pairs += len(answer.ref_rewards) * (len(answer.ref_rewards) - 1)
    if not pairs or ties / pairs <= _MANY_TIES:
        return ""
    return (
        f"{ties / pairs:.0%} of the pairs of reference rewards are equal, as with pass or fail: "
        "train.loss.ties=mid train.loss.partition=empirical is exact for such rewards."
    )


def _check_margins(answers: Sequence[EncodedAnswer]) -> None:
    """Check that some pair has a margin, and that none contradicts its order."""
    rewards: dict[int, dict[str, float | None]] = {}
    for answer in answers:
        rewards.setdefault(answer.example, {})[answer.role] = answer.reward
    found = 0
    for example, pair in rewards.items():
        chosen, rejected = pair.get(CHOSEN), pair.get(REJECTED)
        if chosen is None or rejected is None:
            continue
        found += 1
        if chosen < rejected:
            raise DataError(
                f"the chosen answer of example {example} has the reward {chosen}, and the rejected one"
                f" {rejected}: a margin cannot be negative",
                fix="Swap the two answers, leave the row out, or set train.loss.margin=false",
            )
    if not found:
        raise DataError(
            "margin is set, and no pair has rewards",
            fix="Give rows chosen_reward and rejected_reward, or set train.loss.margin=false",
        )


def _check_quantiles(loss: QRPO, answers: Sequence[EncodedAnswer]) -> None:
    """Check every quantile and its transform before training starts, by number of references."""
    groups: dict[int, list[EncodedAnswer]] = {}
    for answer in answers:
        groups.setdefault(len(answer.ref_rewards), []).append(answer)
    for count, group in groups.items():
        quantile_B = quantile_rewards(
            torch.tensor([answer.reward for answer in group], dtype=torch.float64),
            torch.tensor([answer.ref_rewards for answer in group], dtype=torch.float64),
            ties=loss.ties,
            leave_one_out=loss.leave_one_out,
        )
        transformed(quantile_B, loss.transform, count)


def _lacking(name: str, answer: EncodedAnswer, what: str) -> DataError:
    identifier = f" (id {answer.id[:80]!r})" if answer.id else ""
    return DataError(
        f"{name} needs rewards, and example {answer.example}{identifier} has {what}",
        fix="`stamm score` adds rewards; the columns are in docs/alignment.md",
    )


def _maker(loss: Loss) -> MakeObjective | None:
    """The function that makes the objective of a loss; None: next-token prediction."""
    if isinstance(loss, SFT):
        return None
    return _reward_objective if isinstance(loss, BradleyTerry) else _objective


def _objective(
    config: PretrainConfig,
    decoder: Decoder,
    sequences: TrainingSequences[AnswerBatch],
    world: DistributedContext,
) -> Objective:
    assert isinstance(config, FineTuneConfig)
    return PreferenceObjective(config, decoder, sequences, world)


def _reward_objective(
    config: PretrainConfig,
    decoder: Decoder,
    sequences: TrainingSequences[AnswerBatch],
    world: DistributedContext,
) -> Objective:
    assert isinstance(config, FineTuneConfig)
    return RewardObjective(config, decoder, sequences, world)
