"""Fine-tune a trained model: SFT on conversations; QRPO, DPO, SimPO, REBEL, KTO on answers; reward models.

Reads    start (a stored decoder), tokenizer, data (prepared examples); reference (log-probabilities
         under the start model, or under reference_model where that is another) for losses with a
         reference policy; chosen, where the configuration names an entry of it
Writes   what `pretrain.training_run` writes; with LoRA, model/ is the merged decoder and adapter/
         holds the adapters in PEFT's layout; model/ of a reward model also has head.safetensors

Checked  tests/unit/align/test_finetune.py
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from stamm.align.data.encoded import EncodedAnswer, EncodedExamples
from stamm.align.hf_chat_format import load_folder_chat
from stamm.align.model_source import check_vocabulary
from stamm.align.training.answer_dataset import AnswerSequences
from stamm.align.training.chat_dataset import ChatWindows
from stamm.align.training.chosen_settings import apply_chosen
from stamm.align.training.finetune_config import FineTuneJobConfig, FineTuneRun
from stamm.align.training.loss_config import KTO, SFT, BradleyTerry, needs_reference
from stamm.align.training.loss_data import check_data, desirable_answers, with_tie_rules
from stamm.align.training.mismatched_answers import MismatchedAnswers
from stamm.align.training.preference_objective import PreferenceObjective
from stamm.align.training.reference_job import check_chat_format, read_mismatched, read_reference
from stamm.align.training.reward_objective import RewardObjective, answers_at_stop
from stamm.base.files import sha256_value
from stamm.corpus.shuffle import Proof
from stamm.engine.distributed import DistributedContext
from stamm.engine.trainer import InitialCheckpoint
from stamm.models.config import DecoderConfig
from stamm.models.peft_adapter import save_adapted
from stamm.models.reward_head import REWARD_HEAD, save_head
from stamm.models.self_guide import without_guide
from stamm.models.serialization import checked_config
from stamm.pretrain.dataset import TrainingSequences
from stamm.pretrain.train import MakeObjective, load_objective
from stamm.pretrain.training_run import TrainingData, TrainingKind, save_trained, train_run
from stamm.runs.job import Workspace
from stamm.runs.model_outputs import weights_sha256, write_chat_record


def run(settings: FineTuneJobConfig, workspace: Workspace) -> None:
    """Train the start model on the prepared examples, from the newest checkpoint when there is one.

    Raises   DataError when the data does not fit the loss, or was encoded with another chat format,
             or the tokenizer has more ids than the start model, or the reference
             log-probabilities are those of another model
    """
    inputs = workspace.inputs
    start = inputs["start"]
    settings = apply_chosen(settings, inputs)
    model = checked_config(start)
    data = EncodedExamples.open(inputs["data"])
    check_chat_format(data, inputs["tokenizer"])
    check_data(settings.loss, data)
    loss, remark = with_tie_rules(settings.loss, data)
    # Guides serve the first part of pretraining, and a stored decoder has none.
    config = FineTuneRun.of(settings, model=without_guide(model), loss=loss)
    if remark:
        workspace.progress.log(remark)
    if config.pfo is not None and config.pfo.weight:
        workspace.progress.log(
            "PFO: a frozen copy of the start model, and one more forward pass of every micro-batch."
        )
    loaded = load_folder_chat(inputs["tokenizer"])
    check_vocabulary(model, loaded.tokenizer.size, inputs["tokenizer"])
    chat = loaded.chat
    identity = [data.sha256, weights_sha256(start)]
    sequences: TrainingSequences[Any]
    if isinstance(config.loss, SFT):
        sequences = ChatWindows(data.answers, config.context, config.seed, chat.pad_id)
    else:
        reference = labels = mismatched = None
        if needs_reference(loss):
            policy = inputs.get("reference_model", start)
            reference = read_reference(inputs["reference"], data, policy).tolist()
            identity.append(weights_sha256(policy))
        answers: Sequence[EncodedAnswer] = data.answers
        if isinstance(loss, BradleyTerry):
            answers = answers_at_stop(list(answers), chat.pad_id)
        if isinstance(loss, KTO):
            labels = desirable_answers(loss, data)
            others = MismatchedAnswers(answers, data.summary.context)
            mismatched = (others, read_mismatched(inputs["reference"]).tolist())
        sequences = AnswerSequences(
            answers,
            reference,
            paired=data.kind == "preference" and not isinstance(loss, KTO),
            context=config.context,
            seed=config.seed,
            pad=chat.pad_id,
            labels=labels,
            mismatched=mismatched,
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
        make_objective=_maker(config, start),
        start=InitialCheckpoint(start, optimizer_state=False),
        save=save,
    )
    train_run(config, workspace, kind)


def _maker(config: FineTuneRun, start: Path) -> MakeObjective:
    """The function that makes the objective of a loss."""
    if isinstance(config.loss, SFT):
        return load_objective(config.objective)
    if isinstance(config.loss, BradleyTerry):
        return RewardObjective
    return functools.partial(PreferenceObjective, start=start)
