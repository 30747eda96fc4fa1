"""Fine-tune a trained model: SFT on conversations; preference losses on answers; reward models.

Reads    start (a stored decoder), tokenizer, data (prepared examples); reference (log-probabilities
         under the start model, or under reference_model where that is another) for losses with a
         reference policy; chosen, where the configuration names an entry of it
Writes   what `pretrain.training_run` writes; with LoRA, model/ is the merged decoder and adapter/
         holds the adapters in PEFT's layout; model/ of a reward model also has head.safetensors

Checked  tests/unit/align/test_finetune.py
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from stamm.align.data.encoded import CHOSEN, REJECTED, EncodedAnswer, EncodedExamples
from stamm.align.losses.preference_loss import OwnPreferenceLoss, PreferenceLoss
from stamm.align.records import ChosenFile
from stamm.align.training.answer_dataset import (
    AnswerSequences,
    MismatchedAnswers,
    have_other_prompts,
)
from stamm.align.training.chat_dataset import ChatWindows, copy_numbers
from stamm.align.training.config import (
    SFT,
    BradleyTerry,
    FineTuneJobConfig,
    FineTuneRun,
    Loss,
    Preference,
    loss_name,
    needs_reference,
    preference_loss,
)
from stamm.align.training.objectives import (
    PREFERENCE_LOSS,
    PreferenceObjective,
    RewardObjective,
    answers_at_stop,
)
from stamm.align.training.reference_job import (
    HELD_OUT,
    TRAIN,
    Split,
    check_chat_format,
    read_mismatched,
    read_reference,
)
from stamm.base.config import override
from stamm.base.console import Progress
from stamm.base.errors import ConfigError, DataError
from stamm.base.files import sha256_value
from stamm.base.schema import read_record
from stamm.corpus.shuffle import Proof
from stamm.engine.distributed import DistributedContext
from stamm.engine.trainer import EarlyStopping, Evaluator, InitialCheckpoint
from stamm.models.config import DecoderConfig
from stamm.models.decoder import Decoder
from stamm.models.hf_chat_format import load_folder_chat
from stamm.models.loading import check_vocabulary
from stamm.models.peft_adapter import save_adapted
from stamm.models.reward_head import REWARD_HEAD, save_head
from stamm.models.self_guide import without_guide
from stamm.models.serialization import checked_config
from stamm.pretrain.dataset import TrainingSequences
from stamm.pretrain.next_token import LOSS
from stamm.pretrain.records import HELD_OUT_ROWS
from stamm.pretrain.sequence_objective import SequenceObjective
from stamm.pretrain.train import MakeObjective, MakeValidation, load_objective
from stamm.pretrain.training_run import TrainingData, TrainingKind, save_trained, train_run
from stamm.runs.job import Workspace
from stamm.runs.model_outputs import weights_sha256, write_chat_record


def apply_chosen(config: FineTuneJobConfig, inputs: Mapping[str, Path]) -> FineTuneJobConfig:
    """`config` with the settings of the entry `config.chosen` of the input "chosen".

    Raises   DataError when the file has no such entry
    """
    if not config.chosen:
        return config
    path = inputs["chosen"]
    entry = read_record(ChosenFile, path, "Run the step that writes it again").arms.get(
        config.chosen
    )
    if entry is None:
        raise DataError(f"{path} has no entry {config.chosen!r}")
    changed = override(config, list(entry.settings), f"in {path.name}")
    same_rate = changed.schedule == config.schedule
    return dataclasses.replace(changed, chosen="", rate_from=config.rate_from if same_rate else "")


def check_data(loss: Loss, data: EncodedExamples) -> None:
    """Check that prepared examples have what a loss needs.

    The prepare step of a recipe has checked the rewards of the rows (`PrepareConfig.needs`).

    Raises   DataError naming the first example that does not
    """
    own_loss = preference_loss(loss) if isinstance(loss, Preference) else None
    kinds: tuple[str, ...] = ("chat",) if isinstance(loss, SFT) else ("preference",)
    kinds = kinds if own_loss is None else own_loss.ROWS
    if data.kind not in kinds:
        raise DataError(
            f"{loss_name(loss)} is trained on {' or '.join(kinds)} rows, and the data has {data.kind} "
            "rows",
            fix="Choose another data file, or another recipe",
        )
    if isinstance(loss, BradleyTerry) and loss.margin:
        _check_margins(data)
    if own_loss is not None:
        own_loss.check(data)


def _check_margins(data: EncodedExamples) -> None:
    """Check that some pair has a margin, and that none contradicts its order."""
    rewards: dict[int, dict[str, float | None]] = {}
    for answer in data.answers:
        rewards.setdefault(answer.example, {})[answer.role] = answer.reward
    num_pairs = 0
    for example, pair in rewards.items():
        chosen, rejected = pair.get(CHOSEN), pair.get(REJECTED)
        if chosen is None or rejected is None:
            continue
        num_pairs += 1
        if chosen < rejected:
            raise DataError(
                f"the chosen answer of example {example} has the reward {chosen}, and the rejected one"
                f" {rejected}: a margin cannot be negative",
                fix="Swap the two answers, leave the row out, or set train.loss.margin=false",
            )
    if not num_pairs:
        raise DataError(
            "margin is set, and no pair has rewards",
            fix="Give rows chosen_reward and rejected_reward, or set train.loss.margin=false",
        )


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
    loss: Loss = settings.loss
    own: PreferenceLoss | None = None
    remarks: tuple[str, ...] = ()
    if isinstance(loss, OwnPreferenceLoss):
        user, remarks = loss.loaded().fitted(data)
        own, loss = user, loss.with_values(user.inner)
    elif isinstance(loss, Preference):
        loss, remarks = loss.fitted(data)
        own = loss
    # Guides serve the first part of pretraining, and a stored decoder has none.
    config = FineTuneRun.of(settings, model=without_guide(model), loss=loss)
    for line in filter(None, (settings.rate_remark(), *remarks)):
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
    compares = own is not None and own.NEEDS_MISMATCHED
    if not lacking and compares and not have_other_prompts(held_out.answers):
        name = loss_name(loss)
        lacking = (
            f"all held-out answers are to one prompt, and {name} compares with those to others"
        )
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
    loss, parallel = config.loss, config.engine.parallel
    padded = parallel.context * parallel.tensor > 1
    if isinstance(loss, SFT):
        repeated = any(share.epochs > 1 for share in data.summary.mixture)
        copies = copy_numbers(data.answers) if repeated else None
        return ChatWindows(data.answers, config.context, config.seed, pad, copies, padded=padded)
    own_loss = preference_loss(loss) if isinstance(loss, Preference) else None
    reference = labels = mismatched = None
    if needs_reference(loss):
        policy = inputs.get("reference_model", inputs["start"])
        reference = read_reference(inputs["reference"], data, policy, split).tolist()
    answers: Sequence[EncodedAnswer] = data.answers
    if isinstance(loss, BradleyTerry):
        answers = answers_at_stop(list(answers), pad)
    if own_loss is not None:
        labels = own_loss.labels(data, check=split == TRAIN)
    if own_loss is not None and own_loss.NEEDS_MISMATCHED:
        what = "answers" if split == TRAIN else "held-out answers"
        others = MismatchedAnswers(answers, data.summary.context, what)
        mismatched = (others, read_mismatched(inputs["reference"], split).tolist())
    return AnswerSequences(
        answers,
        reference,
        paired=data.kind == "preference" and not (own_loss and own_loss.SINGLE_ANSWERS),
        context=config.context,
        seed=config.seed,
        pad=pad,
        padded=padded,
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
    are one step of it: the KL that a loss reads is that of all of them.
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
                new_objective = make(plain, decoder, held_out, world)
                assert isinstance(new_objective, SequenceObjective)
                objective = new_objective
            # Layers were compiled for training; a second compilation would take longer than this.
            with torch.compiler.set_stance("force_eager"):
                metrics = objective.mean_metrics()
            values = {name.rpartition("/")[2]: value for name, value in metrics.items()}
            if "chosen_log_ratio" in values:
                values["margin"] = values["chosen_log_ratio"] - values["rejected_log_ratio"]
            shown = [(name, values[name]) for name in _SHOWN if name in values]
            measures = ", ".join(
                f"{name.removesuffix('_nats')} {value:.4f}" for name, value in shown
            )
            when = f"after step {step}" if step else "before training"
            if world.is_main_process:
                progress.log(f"Held-out rows {when}: {measures}.")
            return {f"{VALIDATION}{name}": value for name, value in values.items()}

        return validate

    return made


def _interval(num_steps: int, batch: int, held_out: int) -> int:
    """Steps between evaluations: at most ten, which take at most about 5 % of the training's time.

    A forward pass takes about a third of a training step of the same size.
    """
    return max(math.ceil(num_steps / 10), math.ceil(held_out / (3 * 0.05 * batch)))
