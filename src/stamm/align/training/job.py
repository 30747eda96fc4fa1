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
import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from stamm.align.data.encoded import EncodedAnswer, EncodedExamples
from stamm.align.hf_chat_format import load_folder_chat
from stamm.align.model_source import check_vocabulary
from stamm.align.training.answer_dataset import AnswerSequences
from stamm.align.training.answer_objective import PREFERENCE_LOSS
from stamm.align.training.chat_dataset import ChatWindows, copy_numbers
from stamm.align.training.chosen_settings import apply_chosen
from stamm.align.training.finetune_config import FineTuneJobConfig, FineTuneRun
from stamm.align.training.loss_config import KTO, SFT, BradleyTerry, Loss, needs_reference
from stamm.align.training.loss_data import (
    balance_remark,
    check_data,
    desirable_answers,
    with_tie_rules,
)
from stamm.align.training.mismatched_answers import MismatchedAnswers, have_other_prompts
from stamm.align.training.preference_objective import PreferenceObjective
from stamm.align.training.reference_job import (
    HELD_OUT,
    TRAIN,
    Split,
    check_chat_format,
    read_mismatched,
    read_reference,
)
from stamm.align.training.reward_objective import RewardObjective, answers_at_stop
from stamm.base.console import Progress
from stamm.base.errors import ConfigError
from stamm.base.files import sha256_value
from stamm.corpus.shuffle import Proof
from stamm.engine.distributed import DistributedContext
from stamm.engine.trainer import EarlyStopping, Evaluator, InitialCheckpoint
from stamm.models.config import DecoderConfig
from stamm.models.decoder import Decoder
from stamm.models.peft_adapter import save_adapted
from stamm.models.reward_head import REWARD_HEAD, save_head
from stamm.models.self_guide import without_guide
from stamm.models.serialization import checked_config
from stamm.pretrain.dataset import TrainingSequences
from stamm.pretrain.next_token import LOSS
from stamm.pretrain.sequence_objective import SequenceObjective
from stamm.pretrain.train import MakeObjective, MakeValidation, load_objective
from stamm.pretrain.training_run import TrainingData, TrainingKind, save_trained, train_run
from stamm.runs.job import Workspace
from stamm.runs.model_outputs import weights_sha256, write_chat_record
from stamm.runs.schemas.training import HELD_OUT_ROWS

VALIDATION = f"evaluate/{HELD_OUT_ROWS}/"
_SHOWN = ("loss_nats", "loss", "accuracy", "margin")
_HOLD_OUT = "prepare.held_out is the share of the prompts to keep from training, such as 0.05"


def _metric(loss: Loss) -> str:
    """The metric of validation that decides early stopping."""
    name = LOSS if isinstance(loss, SFT) else PREFERENCE_LOSS
    return f"{VALIDATION}{name.rpartition('/')[2]}"


def run(settings: FineTuneJobConfig, workspace: Workspace) -> None:
    """Train the start model on the prepared examples, from the newest checkpoint when there is one.

    Raises   DataError when the data does not fit the loss, or was encoded with another chat format,
             or the tokenizer has more ids than the start model, or the reference
             log-probabilities are those of another model
    """
    inputs = workspace.inputs
    start = inputs["start"]
    settings = FineTuneJobConfig.of(apply_chosen(settings, inputs))
    model = checked_config(start)
    data = EncodedExamples.open(inputs["data"])
    check_chat_format(data, inputs["tokenizer"])
    check_data(settings.loss, data)
    loss, remark = with_tie_rules(settings.loss, data)
    # Guides serve the first part of pretraining, and a stored decoder has none.
    config = FineTuneRun.of(settings, model=without_guide(model), loss=loss)
    for line in filter(None, (settings.rate_remark(), remark, balance_remark(loss, data))):
        workspace.progress.log(line)
    if config.pfo is not None and config.pfo.weight:
        workspace.progress.log(
            "PFO: a frozen copy of the start model, and one more forward pass of every micro-batch."
        )
    loaded = load_folder_chat(inputs["tokenizer"])
    check_vocabulary(model, loaded.tokenizer.size, inputs["tokenizer"])
    chat = loaded.chat
    identity = [data.sha256, weights_sha256(start)]
    if needs_reference(loss):
        identity.append(weights_sha256(inputs.get("reference_model", start)))
    sequences = _sequences(config, data, inputs, TRAIN, chat.pad_id)
    held_out = EncodedExamples.open(inputs["data"], HELD_OUT)
    validated = None
    lacking = "" if len(held_out.answers) else "no rows are held out to evaluate on"
    if not lacking and isinstance(loss, KTO) and not have_other_prompts(held_out.answers):
        lacking = "all held-out answers are to one prompt, and KTO compares with those to others"
    if not lacking:
        validated = _sequences(config, held_out, inputs, HELD_OUT, chat.pad_id)
        identity.append(held_out.sha256)
    elif settings.patience is not None or settings.validate_every is not None:
        name = "validate_every" if settings.patience is None else "patience"
        raise ConfigError(
            f"train.{name} = {getattr(settings, name)}, and {lacking}",
            fix=f"Raise prepare.held_out, such as to 0.05, or leave train.{name} out",
        )
    else:
        workspace.progress.log(
            f"{lacking[0].upper()}{lacking[1:]}: no validation loss. {_HOLD_OUT}."
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

    make = _maker(config, start)
    kind = TrainingKind(
        name="finetune",
        open_data=open_data,
        make_objective=make,
        validation=_validation(validated, make, workspace.progress) if validated else None,
        stopping=None
        if settings.patience is None
        else EarlyStopping(_metric(loss), settings.patience),
        start=InitialCheckpoint(start, optimizer_state=False),
        save=save,
    )
    train_run(config, workspace, kind)


def _sequences(
    config: FineTuneRun, data: EncodedExamples, inputs: Mapping[str, Path], split: Split, pad: int
) -> TrainingSequences[Any]:
    """The training sequences of a split of the prepared data."""
    loss = config.loss
    if isinstance(loss, SFT):
        repeated = any(share.epochs > 1 for share in data.summary.mixture)
        copies = copy_numbers(data.answers) if repeated else None
        return ChatWindows(data.answers, config.context, config.seed, pad, copies)
    reference = labels = mismatched = None
    if needs_reference(loss):
        policy = inputs.get("reference_model", inputs["start"])
        reference = read_reference(inputs["reference"], data, policy, split).tolist()
    answers: Sequence[EncodedAnswer] = data.answers
    if isinstance(loss, BradleyTerry):
        answers = answers_at_stop(list(answers), pad)
    if isinstance(loss, KTO):
        labels = desirable_answers(loss, data, check=split == TRAIN)
        what = "answers" if split == TRAIN else "held-out answers"
        others = MismatchedAnswers(answers, data.summary.context, what)
        mismatched = (others, read_mismatched(inputs["reference"], split).tolist())
    return AnswerSequences(
        answers,
        reference,
        paired=data.kind == "preference" and not isinstance(loss, KTO),
        context=config.context,
        seed=config.seed,
        pad=pad,
        labels=labels,
        mismatched=mismatched,
    )


def _maker(config: FineTuneRun, start: Path) -> MakeObjective:
    """The function that makes the objective of a loss."""
    if isinstance(config.loss, SFT):
        return load_objective(config.objective)
    if isinstance(config.loss, BradleyTerry):
        return RewardObjective
    return functools.partial(PreferenceObjective, start=start)


def _validation(
    held_out: TrainingSequences[Any], make: MakeObjective, progress: Progress
) -> MakeValidation:
    """Evaluates the loss on held-out rows: before training, at intervals, and after the last step.

    The objective is that of training without PFO, whose distance is not part of the loss, and the rows
    are one step of it: the KL of KTO is that of all of them.
    """

    def made(
        config: FineTuneRun, decoder: Decoder, num_steps: int, world: DistributedContext
    ) -> Evaluator:
        plain = replace(config, pfo=None)
        objective: SequenceObjective[Any] | None = None
        every = config.validate_every or _interval(
            num_steps, config.batch[0].size, held_out.per_epoch
        )

        def validate(step: int) -> dict[str, float]:
            nonlocal objective
            if step % every and step != num_steps:
                return {}
            if objective is None:
                found = make(plain, decoder, held_out, world)
                assert isinstance(found, SequenceObjective)
                objective = found
            # Layers were compiled for training; a second compilation would take longer than this.
            with torch.compiler.set_stance("force_eager"):
                metrics = objective.mean_metrics()
            values = {name.rpartition("/")[2]: value for name, value in metrics.items()}
            if "chosen_log_ratio" in values:
                values["margin"] = values["chosen_log_ratio"] - values["rejected_log_ratio"]
            shown = [(name, values[name]) for name in _SHOWN if name in values]
            told = ", ".join(f"{name.removesuffix('_nats')} {value:.4f}" for name, value in shown)
            when = f"after step {step}" if step else "before training"
            if world.is_main_process:
                progress.log(f"Held-out rows {when}: {told}.")
            return {f"{VALIDATION}{name}": value for name, value in values.items()}

        return validate

    return made


def _interval(num_steps: int, batch: int, held_out: int) -> int:
    """Steps between evaluations: at most ten, which take at most about 5 % of the training's time.

    A forward pass takes about a third of a training step of the same size.
    """
    return max(math.ceil(num_steps / 10), math.ceil(held_out / (3 * 0.05 * batch)))
