"""What a pretraining run is. No torch here."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar, Literal

from stamm.base.config import validate
from stamm.base.errors import ConfigError
from stamm.base.user_code import is_reference
from stamm.engine.config import EngineConfig
from stamm.losses.config import Goldfish, Rule
from stamm.models.config import DecoderConfig
from stamm.optim.config import AdEMAMix, OptimizerConfig
from stamm.optim.schedules import BatchPlan, BatchStage, Schedule, WarmupStableDecay
from stamm.runs.tracker_config import TensorBoard, Trackio, WandB

NEXT_TOKEN = "next-token"


@dataclass(frozen=True, kw_only=True)
class ForeignFiles:
    """Token files of others, in the layout of Megatron, to train on instead of a packed corpus.

    prefixes    their paths without .bin and .idx; they are one stream, in this order
    tokenizer   the tokenizer.json they were made with, or the folder that holds it
    end_token   the token that ends each document; None: none does, or it is not known
    """

    prefixes: tuple[str, ...]
    tokenizer: str
    end_token: str | None = "</s>"

    def __post_init__(self) -> None:
        names = [Path(prefix).name for prefix in self.prefixes]
        ended = any(prefix.endswith((".bin", ".idx")) for prefix in self.prefixes)
        validate(
            self,
            ("prefixes", bool(names) and all(names), "names no file"),
            ("prefixes", not ended, "must be without .bin and .idx"),
            ("prefixes", len(set(self.prefixes)) == len(self.prefixes), "names a file twice"),
            ("tokenizer", bool(self.tokenizer), "is empty"),
        )

    def inputs(self) -> dict[str, Path]:
        """What a run on them reads, by the names its job finds it under."""
        files = {f"foreign.{i}": Path(prefix) for i, prefix in enumerate(self.prefixes)}
        return {**files, "tokenizer": Path(self.tokenizer)}


@dataclass(frozen=True, kw_only=True)
class Begin:
    """Where a run begins that goes on from another: with what that one had learned.

    checkpoint   its folder, such as runs/demo/arms/xielu/checkpoints/step-00000120
    moments      "keep": the optimizer goes on, its averages and its count of updates with it.
                 "restart": it begins anew, as at each longer context of the released Apertus runs
                 (their report says that it was kept; arXiv 2509.14233, and its scripts)
    """

    checkpoint: str
    moments: Literal["keep", "restart"] = "keep"

    def __post_init__(self) -> None:
        validate(self, ("checkpoint", bool(self.checkpoint), "is empty"))


@dataclass(frozen=True, kw_only=True)
class PretrainConfig:
    """One model trained once.

    context        tokens of a sequence
    begin          the run from whose checkpoint this one goes on; None: from random weights
    first_sequence   of the corpus' order, where this run begins to read
    sequences      length of the run in sequences; None means `epochs` times the packed corpus
    batch          sequences per step, in stages
    micro_batch    the most sequences that a process has in flight; of those of its step it makes as
                   few parts as fit, alike but for one sequence. None: all at once
    goldfish       None trains on every token
    masks          what is masked between documents: "stamm" the first token of each; "released" what
                   is predicted from an end token, as the code of Apertus does; "report" the end
                   token, as its report says
    z_loss         weight of the mean of log(Z)^2, which keeps logits from drifting; told apart from
                   the loss in the metrics
    objective      "next-token", or the reader's own subclass of it, "mine.py:MyObjective"
                   (docs/extending/objective.md)
    clip_norm      gradient clipping: largest gradient norm
    record_shapes_every   steps between records of the learned activation parameters
    pack           folder of the packed corpus; empty where a recipe packs one itself
    trackers       trackers that receive the metrics; may change when a run is resumed
    foreign        files of others, instead of a packed corpus
    tuned          "", or the entry of a file among the run's inputs that says its peak, its length
                   or both: what an earlier step found out (`pretrain.tuning.told`)
    """

    model: DecoderConfig = field(default_factory=DecoderConfig)
    context: int = 256
    begin: Begin | None = None
    first_sequence: int = 0
    sequences: int | None = None
    epochs: float = 1.0
    batch: tuple[BatchStage, ...] = (BatchStage(),)
    micro_batch: int | None = None
    goldfish: Goldfish | None = field(default_factory=Goldfish)
    masks: Rule = "stamm"
    z_loss: float = 0.0
    objective: str = NEXT_TOKEN
    optimizer: OptimizerConfig = field(default_factory=AdEMAMix)
    schedule: Schedule = field(default_factory=WarmupStableDecay)
    clip_norm: float = 1.0
    seed: int = 28
    record_shapes_every: int = 10
    engine: EngineConfig = field(default_factory=EngineConfig)
    pack: str = ""
    foreign: ForeignFiles | None = None
    tuned: str = ""
    trackers: tuple[TensorBoard | Trackio | WandB, ...] = ()
    FORMER_KEYS: ClassVar = {"mirrors": "trackers"}

    def __post_init__(self) -> None:
        starts = [stage.start for stage in self.batch]
        spans = [
            (b.start - a.start) % a.size for a, b in zip(self.batch, self.batch[1:], strict=False)
        ]
        first = self.batch[0].size if self.batch else 1
        validate(
            self,
            ("context", self.context >= 2, "must be at least 2"),
            (
                "context",
                self.context <= self.model.max_context,
                f"exceeds model.max_context = {self.model.max_context}",
            ),
            (
                "sequences",
                self.sequences is None or self.sequences >= first,
                f"is less than one step: batch.0.size = {first}",
            ),
            ("epochs", 0 < self.epochs < math.inf, "must be positive and finite"),
            ("batch", starts[:1] == [0], "must begin at sequence 0"),
            ("batch", starts == sorted(set(starts)), "must have rising starts"),
            ("batch", not any(spans), "changes in the middle of a step"),
            (
                "micro_batch",
                self.micro_batch is None or self.micro_batch >= 1,
                "must be at least 1",
            ),
            ("clip_norm", self.clip_norm > 0, "must be positive"),
            ("z_loss", 0 <= self.z_loss < math.inf, "must be finite and not negative"),
            ("first_sequence", self.first_sequence >= 0, "must not be negative"),
            (
                "objective",
                self.objective == NEXT_TOKEN or is_reference(self.objective),
                f"is neither {NEXT_TOKEN!r} nor of the form mine.py:MyObjective",
            ),
            ("pack", not (self.pack and self.foreign), "is given, and foreign too"),
            ("record_shapes_every", self.record_shapes_every >= 1, "must be at least 1"),
        )

    def total_sequences(self, corpus_sequences: int | None = None) -> int:
        """Length of the run in sequences, given how many the packed corpus holds.

        Raises   ConfigError when the corpus decides the length and is not known, or is too small.
        """
        if self.sequences is not None:
            return self.sequences
        if corpus_sequences is None:
            raise ConfigError(
                "the length of the run follows from the packed corpus, which is not there yet",
                fix="Set sequences=..., or run the corpus first",
            )
        total = int(corpus_sequences * self.epochs)
        if total < self.batch[0].size:
            raise ConfigError(
                f"the packed corpus gives {total} sequences of {self.context} tokens, "
                f"fewer than one batch of {self.batch[0].size}",
                fix="Add documents, or lower batch.0.size or context",
            )
        return total

    def parts(self, sequences: int) -> int:
        """In how many micro-batches a process trains on its `sequences` of a step."""
        return 1 if self.micro_batch is None else -(-sequences // self.micro_batch)

    def largest_micro_batch(self, sequences: int) -> int:
        """Sequences of the largest micro-batch that a process has in a step with `sequences` for it."""
        return -(-sequences // self.parts(sequences))

    def batches(self, total_sequences: int) -> BatchPlan:
        """Which sequences each step trains on."""
        return BatchPlan(self.batch, total_sequences)
