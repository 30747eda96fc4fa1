"""Configuration of a pretraining run. No torch here."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Literal

from stamm.base.bounds import (
    AtLeastOne,
    Natural,
    NotNegative,
    Positive,
    PositiveShare,
    Seed,
    Text,
    at_least,
    distinct,
    not_empty,
    within,
)
from stamm.base.config import Bounded, validate
from stamm.base.errors import ConfigError
from stamm.base.user_code import NAMES_CODE, code_files, is_reference
from stamm.engine.config import EngineConfig
from stamm.evaluate.config import BuiltInTask, is_task_file, task_inputs
from stamm.losses.config import Density, Goldfish, Rule
from stamm.models.config import DecoderConfig
from stamm.models.lora_config import Lora
from stamm.optim.config import AdEMAMix, CustomOptimizer, Muon, OptimizerConfig
from stamm.optim.schedules import BatchPlan, BatchStage, Schedule, WarmupStableDecay
from stamm.runs.tracker_config import TensorBoard, Trackio, WandB

NEXT_TOKEN = "next-token"
HELD_OUT: BuiltInTask = "held_out"


@dataclass(frozen=True, kw_only=True)
class MegatronFiles:
    """Token files in Megatron's format, to train on instead of a packed corpus.

    prefixes    paths without .bin and .idx; the files are one stream, in this order
    tokenizer   the tokenizer.json that the files were tokenized with, or its folder
    end_token   the token that ends each document; None: none, or unknown
    """

    prefixes: Annotated[tuple[str, ...], distinct("names a file twice")]
    tokenizer: Text
    end_token: str | None = "</s>"

    def __post_init__(self) -> None:
        names = [Path(prefix).name for prefix in self.prefixes]
        ended = any(prefix.endswith((".bin", ".idx")) for prefix in self.prefixes)
        validate(
            self,
            ("prefixes", bool(names) and all(names), "does not name a file"),
            ("prefixes", not ended, "must be without .bin and .idx"),
        )

    def inputs(self) -> dict[str, Path]:
        """Input files of a run, by input name."""
        files = {f"foreign.{i}": Path(prefix) for i, prefix in enumerate(self.prefixes)}
        return {**files, "tokenizer": Path(self.tokenizer)}


@dataclass(frozen=True, kw_only=True)
class InitialWeights(Bounded):
    """Continued pretraining: start from the checkpoint of another run instead of random weights.

    checkpoint   its folder, such as runs/demo/arms/xielu/checkpoints/step-00000120
    moments      "keep": load the optimizer state and step count, too. "restart": start with a new
                 optimizer state, as at each longer context of the released Apertus runs (by their
                 scripts; their report states that it was kept, arXiv 2509.14233)
    """

    checkpoint: Text
    moments: Literal["keep", "restart"] = "keep"


@dataclass(frozen=True, kw_only=True)
class PeriodicEvaluation:
    """Evaluation during training, on a sample of each task.

    every         steps between evaluations; the last step is evaluated, too
    tasks         "held_out", and tasks from files whose answers are not generated
    task_folder   folder with the data of tasks that are shipped without them, or one above it
    share         largest share of the training's computation: it determines the size of the samples
    """

    every: AtLeastOne = 100
    tasks: Annotated[tuple[str, ...], not_empty(), distinct("names a task twice")] = field(
        default=(HELD_OUT,), metadata=NAMES_CODE
    )
    task_folder: str | None = None
    share: PositiveShare = 0.02

    def __post_init__(self) -> None:
        known = all(name == HELD_OUT or is_task_file(name) for name in self.tasks)
        validate(
            self, ("tasks", known, f"may name {HELD_OUT}, shipped tasks, and files .jsonl or .json")
        )


@dataclass(frozen=True, kw_only=True)
class TrainingConfig:
    """Settings of a training run that hold for pretraining and for fine-tuning.

    first_sequence   position in the order of the data at which this run starts to read
    sequences      length of the run in sequences; None: `epochs` times the data
    batch          sequences per step, in stages
    micro_batch    largest number of sequences of a process per forward pass; a step is divided into
                   as few micro-batches as possible, of equal size up to one sequence. None: one
    optimizer      AdamW, AdEMAMix, Muon, or your own, "mine.py:MyOptimizer"
                   (docs/extending/optimizer.md)
    clip_norm      gradient clipping: largest gradient norm; inf: no clipping
    evaluate       evaluation during training; None: none. It changes no weight
    record_shapes_every   steps between records of the learned activation parameters, and of
                   representation metrics in preference optimization
    trackers       trackers that receive the metrics; may change when a run resumes
    """

    first_sequence: Natural = 0
    sequences: AtLeastOne | None = None
    epochs: Positive = 1.0
    batch: tuple[BatchStage, ...] = (BatchStage(),)
    micro_batch: AtLeastOne | None = None
    optimizer: OptimizerConfig = field(default_factory=AdEMAMix)
    schedule: Schedule = field(default_factory=WarmupStableDecay)
    clip_norm: Annotated[float, within("(0, inf]")] = 1.0
    seed: Seed = 28
    evaluate: PeriodicEvaluation | None = None
    record_shapes_every: AtLeastOne = 10
    engine: EngineConfig = field(default_factory=EngineConfig)
    trackers: tuple[TensorBoard | Trackio | WandB, ...] = ()

    def __post_init__(self) -> None:
        starts = [stage.start for stage in self.batch]
        spans = [
            (b.start - a.start) % a.size for a, b in zip(self.batch, self.batch[1:], strict=False)
        ]
        validate(
            self,
            ("batch", starts[:1] == [0], "must begin at sequence 0"),
            ("batch", starts == sorted(set(starts)), "must have rising starts"),
            ("batch", not any(spans), "changes in the middle of a step"),
            (
                "engine.portable_bits",
                not (self.engine.portable_bits and isinstance(self.optimizer, Muon)),
                "is not for Muon, whose products are in bfloat16; set optimizer=AdamW",
            ),
        )

    def unread(self) -> tuple[str, ...]:
        """Fields that the others leave unread."""
        return () if self.sequences is None else ("epochs",)

    def user_code(self) -> dict[str, str]:
        """References to the user's code that training calls, by what it is; {} without any."""
        optimizer = self.optimizer
        return {"optimizer": optimizer.reference} if isinstance(optimizer, CustomOptimizer) else {}

    def user_files(self) -> dict[str, Path]:
        """The user's code and data that training reads: optimizer, objective, evaluation tasks."""
        code = code_files(self.user_code().values())
        given = self.evaluate
        return code if given is None else code | task_inputs(given.tasks, given.task_folder)

    def total_sequences(self, per_epoch: int | None = None) -> int:
        """Length of the run in sequences, given how many the data hold.

        Raises   ConfigError when the length depends on the data and is unknown.
        """
        if self.sequences is not None:
            return self.sequences
        if per_epoch is None:
            raise ConfigError(
                "the length of the run depends on the packed corpus, which does not exist yet",
                fix="Set sequences=..., or run the corpus first",
            )
        return int(per_epoch * self.epochs)

    def parts(self, sequences: int) -> int:
        """Number of micro-batches of a process that has `sequences` of a step."""
        return 1 if self.micro_batch is None else -(-sequences // self.micro_batch)

    def largest_micro_batch(self, sequences: int) -> int:
        """Sequences of the largest micro-batch of a process that has `sequences` of a step."""
        return -(-sequences // self.parts(sequences))

    def batches(self, total_sequences: int) -> BatchPlan:
        """Sequences of each step."""
        return BatchPlan(self.batch, total_sequences)


@dataclass(frozen=True, kw_only=True)
class DecoderTrainingConfig(TrainingConfig):
    """Training of one decoder on sequences of one length.

    context        tokens of a sequence
    """

    model: DecoderConfig = field(default_factory=DecoderConfig)
    context: Annotated[int, at_least(2)] = 256

    def __post_init__(self) -> None:
        super().__post_init__()
        validate(
            self,
            (
                "context",
                self.context <= self.model.max_context,
                f"exceeds model.max_context = {self.model.max_context}",
            ),
        )

    @property
    def task(self) -> str:
        """Name of the training for the progress bar."""
        return f"train {self.model.ffn.spec.name}"

    @property
    def lora(self) -> Lora | None:
        """None: all parameters are trained. Configurations of fine-tuning have a field in its place."""
        return None

    @property
    def reward_head(self) -> bool:
        """False: a language model is trained."""
        return False

    @property
    def z_loss(self) -> float:
        """Weight of the mean of log(Z)^2 in next-token prediction."""
        return 0.0

    @property
    def density(self) -> Density | None:
        """Density loss of the feed-forward units in next-token prediction; None: none."""
        return None


@dataclass(frozen=True, kw_only=True)
class PretrainConfig(DecoderTrainingConfig):
    """Pretraining of one model.

    begin          checkpoint to start from; None: random weights
    goldfish       Goldfish loss mask; None trains on every token
    masks          loss mask between documents: "stamm" masks the first token of each; "released"
                   what is predicted from an end token, as the code of Apertus does; "report" the
                   end token, as in its report
    z_loss         weight of the mean of log(Z)^2, which keeps logits from drifting; recorded as a
                   separate metric
    density        density loss of the feed-forward units, recorded as a separate metric; None: none
    objective      "next-token", or a subclass of it, "mine.py:MyObjective"
                   (docs/extending/objective.md)
    pack           folder of the packed corpus; empty where a recipe packs one itself
    foreign        token files in Megatron's format, instead of a packed corpus
    tuned          "", or the entry of an input file with the peak learning rate, the length or both
                   that an earlier step found (`pretrain.lr_finder.apply_tuning`)

    The other fields are those of `TrainingConfig`.
    """

    begin: InitialWeights | None = None
    goldfish: Goldfish | None = field(default_factory=Goldfish)
    masks: Rule = "stamm"
    z_loss: NotNegative = 0.0
    density: Density | None = None
    objective: str = field(default=NEXT_TOKEN, metadata=NAMES_CODE)
    pack: str = ""
    foreign: MegatronFiles | None = None
    tuned: str = ""

    def __post_init__(self) -> None:
        super().__post_init__()
        first = self.batch[0].size
        validate(
            self,
            (
                "sequences",
                self.sequences is None or self.sequences >= first,
                f"is less than one step: batch.0.size = {first}",
            ),
            ("objective", *objective_check(self.objective)),
            ("pack", not (self.pack and self.foreign), "is given, and foreign too"),
            *density_checks(self),
        )

    def user_code(self) -> dict[str, str]:
        """As in `TrainingConfig`, with the objective."""
        own = {} if self.objective == NEXT_TOKEN else {"objective": self.objective}
        return {**own, **super().user_code()}

    def total_sequences(self, per_epoch: int | None = None) -> int:
        """Length of the run in sequences, given how many the packed corpus holds.

        Raises   ConfigError when the length depends on the corpus and it is unknown or too small.
        """
        total = super().total_sequences(per_epoch)
        if total < self.batch[0].size:
            raise ConfigError(
                f"the data gives {total} sequences of at most {self.context} tokens, "
                f"fewer than one batch of {self.batch[0].size}",
                fix="Add documents, or lower batch.0.size or context",
            )
        return total


def density_checks(config: PretrainConfig) -> list[tuple[str, bool, str]]:
    """Where the density loss cannot be computed, for `validate`."""
    if config.density is None:
        return []
    dense, own = config.model.ffn.experts is None, config.objective != NEXT_TOKEN
    ways = config.engine.parallel.tensor
    return [
        ("density", dense, "is of dense blocks, and the model has experts: set density=none"),
        ("density", not own, f"is part of next-token prediction, not of {config.objective}"),
        ("density", ways == 1, f"needs all units of a block: engine.parallel.tensor = {ways}"),
    ]


def objective_check(name: str) -> tuple[bool, str]:
    """Whether a field names an objective, and the message otherwise, for `validate`."""
    is_one = name == NEXT_TOKEN or is_reference(name)
    return is_one, f"is neither {NEXT_TOKEN!r} nor of the form mine.py:MyObjective"
