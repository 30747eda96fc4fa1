"""Continued pretraining from a checkpoint of another run: a cooldown, or longer contexts.

A run with a constant learning rate can be ended at any step by a cooldown, so one run gives models
of many lengths. Source: Hägele et al. 2024 (arXiv 2405.18392).
"""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, Literal

from stamm.base.bounds import AtLeastOne, Natural, Positive, Share, at_least, within
from stamm.base.config import Bounded, from_plain, validate
from stamm.base.errors import ConfigError, DataError
from stamm.base.files import read_json
from stamm.base.user_code import check_stored_code
from stamm.engine.checkpoint_files import STATE
from stamm.models.self_guide import guided_steps, without_guide
from stamm.optim.config import AdEMAMix, OptimizerConfig
from stamm.optim.schedules import BatchStage, WarmupStableDecay
from stamm.pages.config import ReportConfig
from stamm.pretrain.config import InitialWeights, PretrainConfig
from stamm.recipes.length import packed_length
from stamm.recipes.study import MANIFEST
from stamm.reports.steps import report_step
from stamm.runs.job import TRAINED, TRAINING_RECORDS, Step
from stamm.runs.tracker_config import TensorBoard

_CHECKPOINT = re.compile(r"step-(\d{8})")


@dataclass(frozen=True, kw_only=True)
class _Source:
    """A run's arm at one of its checkpoints.

    sequence    sequences read so far
    batch       sequences per step there
    rate        learning rate there
    num_steps   steps of the whole run
    """

    name: str
    config: PretrainConfig
    pack: Path
    checkpoint: Path
    step: int
    sequence: int
    batch: int
    rate: float
    num_steps: int


@dataclass(frozen=True, kw_only=True)
class CooldownRecipe(Bounded):
    """A cooldown from a checkpoint: same model, data and optimizer, decaying learning rate.

    run           folder of the run; read only
    arm           which of its models; optional when there is one
    step          step of the checkpoint; None: the newest before the decay
    tokens        length of the cooldown
    final_share   final learning rate, as a share of that at the checkpoint
    code          references to the user's code that the run names and this one may execute: its
                  objective, optimizer and evaluation tasks
    """

    run: str = ""
    arm: str | None = None
    step: Natural | None = None
    tokens: Natural = 0
    final_share: Share = 0.0
    code: tuple[str, ...] = ()
    report: ReportConfig = field(default_factory=ReportConfig)

    def steps(self, root: Path) -> tuple[Step, ...]:
        """All steps in the run folder `root`, in order.

        Raises   ConfigError when `run` holds no such checkpoint, or `tokens` is less than one step
        """
        source = _source(self.run, self.arm, self.step, self.code, before_decay=True)
        sequences = self.tokens // source.config.context
        if sequences < source.batch:
            least = source.batch * source.config.context
            raise ConfigError(
                f"tokens = {self.tokens} is less than one step of {least}",
                fix=f"Set tokens=N, such as tokens={100 * least}",
            )
        config = replace(
            source.config,
            begin=InitialWeights(checkpoint=str(source.checkpoint)),
            first_sequence=source.sequence,
            sequences=sequences,
            batch=(BatchStage(size=source.batch),),
            schedule=WarmupStableDecay(
                peak=source.rate, final_share=self.final_share, decay_share=1.0
            ),
            optimizer=_kept_warmups(source),
        )
        name = f"{source.name}-cooldown"
        train = _step(name, config, root, source.pack, source.checkpoint)
        return (train, report_step(self.report))


@dataclass(frozen=True, kw_only=True)
class LongerStage:
    """One stage of a longer context.

    context   tokens of a sequence
    theta     base of the rotary frequencies
    tokens    length of the stage
    batch     sequences per step
    """

    context: Annotated[int, at_least(2)]
    theta: Annotated[float, within("[1, inf)")]
    tokens: AtLeastOne
    batch: AtLeastOne

    def __post_init__(self) -> None:
        step = self.batch * self.context
        validate(
            self,
            ("tokens", self.tokens >= step, f"is less than one step, batch * context = {step}"),
        )


@dataclass(frozen=True, kw_only=True)
class LongerRecipe:
    """Context extension of a trained model, in stages.

    run, arm, step, code   as in `CooldownRecipe`; step None: the last checkpoint
    pack             folder of the packed corpus of these stages; None: the run's own
    moments          "keep" restores optimizer state and step count, as in the Apertus report;
                     "restart" initializes them in each stage, as in its scripts, which restarts
                     the warm-ups of AdEMAMix
    peak             learning rate; None: that of the checkpoint
    warmup_sequences   of each stage
    """

    run: str = ""
    arm: str | None = None
    step: Natural | None = None
    pack: str | None = None
    stages: tuple[LongerStage, ...] = ()
    moments: Literal["keep", "restart"] = "keep"
    peak: Positive | None = None
    warmup_sequences: Natural = 0
    code: tuple[str, ...] = ()
    report: ReportConfig = field(default_factory=ReportConfig)

    def __post_init__(self) -> None:
        lengths = [stage.context for stage in self.stages]
        validate(self, ("stages", lengths == sorted(set(lengths)), "must have rising contexts"))

    def steps(self, root: Path) -> tuple[Step, ...]:
        """All steps in the run folder `root`, in order.

        Raises   ConfigError when `run` holds no such checkpoint or there is no stage
        """
        if not self.stages:
            raise ConfigError(
                "there is no stage",
                fix="Set stages.0.context=8192 stages.0.theta=1e6 stages.0.tokens=N stages.0.batch=N",
            )
        source = _source(self.run, self.arm, self.step, self.code, before_decay=False)
        if not (self.peak or source.rate):
            raise ConfigError(
                f"the learning rate was 0 at step {source.step}, where this would start",
                fix="Set peak=RATE",
            )
        pack = source.pack if self.pack is None else Path(self.pack)
        checkpoint, done = str(source.checkpoint), source.sequence * source.config.context
        steps: list[Step] = []
        for stage in self.stages:
            config = self._stage(source, stage, checkpoint, done)
            step = _step(f"{source.name}-{stage.context}", config, root, pack, source.checkpoint)
            if steps:
                # The checkpoint is an output of the previous stage.
                external = step.external.keys() - {str(source.checkpoint / STATE)}
                step = replace(
                    step,
                    inputs={**step.inputs, "begin": checkpoint},
                    external={name: step.external[name] for name in sorted(external)},
                )
            steps.append(step)
            last = config.batches(config.total_sequences()).num_steps
            checkpoint = f"{step.folder}/checkpoints/step-{last:08d}"
            done += stage.tokens if self.pack is None else 0
        return (*steps, report_step(self.report))

    def _stage(
        self, source: _Source, stage: LongerStage, checkpoint: str, done: int
    ) -> PretrainConfig:
        model = source.config.model
        rope = replace(model.rope, theta=stage.theta)
        keep = self.moments == "keep"
        return replace(
            source.config,
            model=replace(model, rope=rope, max_context=stage.context),
            context=stage.context,
            begin=InitialWeights(checkpoint=checkpoint, moments=self.moments),
            # The run's own corpus continues after what was read; another one starts at 0.
            first_sequence=-(-done // stage.context) if self.pack is None else 0,
            sequences=stage.tokens // stage.context,
            batch=(BatchStage(size=stage.batch),),
            schedule=WarmupStableDecay(
                peak=self.peak or source.rate,
                final_share=1.0,
                warmup_sequences=self.warmup_sequences,
                decay_share=0.0,
            ),
            optimizer=_kept_warmups(source) if keep else source.config.optimizer,
        )


def cooldown() -> CooldownRecipe:
    """Learning-rate cooldown from any checkpoint of a run; set run=FOLDER tokens=N."""
    return CooldownRecipe()


def longer() -> LongerRecipe:
    """Context extension of a trained model, in stages; set run=FOLDER and stages."""
    return LongerRecipe()


def apertus_8b_longer() -> LongerRecipe:
    """Apertus 8B from 4,096 to 65,536 tokens in four stages, as released; set run=FOLDER pack=FOLDER."""
    return LongerRecipe(
        stages=tuple(
            LongerStage(context=context, theta=theta, tokens=steps * batch * context, batch=batch)
            for context, theta, steps, batch in (
                (8_192, 1e6, 9350, 1024),
                (16_384, 2e6, 6930, 512),
                (32_768, 4e6, 7000, 256),
                (65_536, 12e6, 3480, 128),
            )
        ),
        moments="restart",
    )


def _source(
    run: str, arm: str | None, step: int | None, code: Sequence[str], *, before_decay: bool
) -> _Source:
    if not run:
        raise ConfigError(
            "run is empty: there is no run to continue", fix="Set run=FOLDER, such as run=runs/demo"
        )
    arms = sorted(path.parent for path in Path(run).glob("arms/*/config.json"))
    named = [path for path in arms if arm in (None, path.name)]
    if len(named) != 1:
        listed = ", ".join(path.name for path in arms) or "none"
        raise ConfigError(
            f"run = {run} has no arm {arm!r}"
            if arm
            else f"run = {run} holds {len(arms) or 'no'} arms",
            fix=f"Set arm=NAME; there are: {listed}" if arms else "Name the folder of a run",
        )
    folder = named[0]
    config = pretraining_of(folder, code)
    pack = Path(config.pack) if config.pack else Path(run) / "pack"
    if config.foreign is not None or not (pack / MANIFEST).is_file():
        raise ConfigError(
            f"run = {run} has no packed corpus at {pack}",
            fix="Runs on Megatron files cannot be continued by this recipe",
        )
    total = config.total_sequences(packed_length(pack).sequences(config.context))
    plan = config.batches(total)
    saved_steps = sorted(
        int(match.group(1))
        for path in (folder / "checkpoints").glob("step-*")
        if (match := _CHECKPOINT.fullmatch(path.name)) and (path / STATE).is_file()
    )
    ends = {number: plan.step(number - 1) for number in saved_steps if number}
    start = config.schedule.decay_start(total)
    fitting = [
        number
        for number, span in ends.items()
        if step in (None, number) and not (before_decay and span.first + span.size > start)
    ]
    if not fitting:
        falls = f"; the learning rate decays from sequence {start} on" if before_decay else ""
        listed = ", ".join(map(str, saved_steps)) or "none"
        asked = "such checkpoint" if step is None else f"checkpoint of step {step} that fits"
        raise ConfigError(
            f"{folder} has no {asked}: there are {listed}{falls}",
            fix="Set step=N to another, or train with engine.keep_every=N",
        )
    chosen = fitting[-1]
    guided = guided_steps(config.model.structured.guide, plan.num_steps)
    if chosen < guided:
        raise ConfigError(
            f"the checkpoint of step {chosen} in {folder} has the dense guides of self-guided training, "
            f"which end at step {guided}",
            fix=f"Set step=N to a checkpoint of step {guided} or later",
        )
    span = ends[chosen]
    arrived = span.first + span.size
    return _Source(
        name=folder.name,
        config=replace(config, model=without_guide(config.model)),
        pack=pack,
        checkpoint=folder / "checkpoints" / f"step-{chosen:08d}",
        step=chosen,
        sequence=config.first_sequence + arrived,
        batch=span.size,
        rate=config.schedule.rate(arrived, total),
        num_steps=plan.num_steps,
    )


def pretraining_of(folder: Path, code: Sequence[str]) -> PretrainConfig:
    """The configuration of the pretraining run in `folder`, without trackers that send data elsewhere.

    code   references to code that it may name, as the user gave them

    Raises   DataError when it is none, and ConfigError for other code
    """
    path = folder / "config.json"
    try:
        plain = read_json(path)["config"]
        if "rule" in plain:
            raise ConfigError(
                f"{folder} was trained without documents that it forgot",
                fix="Name the run with them; documents=a.txt,b.txt forgets those of several requests",
            )
        config = from_plain(PretrainConfig, plain, str(path))
    except (KeyError, TypeError):
        raise DataError(f"{path} is not the configuration of a pretraining run") from None
    check_stored_code(config, str(path), code, "set code=mine.py:Name")
    local = tuple(tracker for tracker in config.trackers if isinstance(tracker, TensorBoard))
    return replace(config, trackers=local)


def _kept_warmups(source: _Source) -> OptimizerConfig:
    """The optimizer with warm-ups of the same length as in the source run."""
    optimizer = source.config.optimizer
    if not isinstance(optimizer, AdEMAMix):
        return optimizer
    alpha, beta3 = optimizer.alpha_warmup_steps, optimizer.beta3_warmup_steps
    return replace(
        optimizer,
        alpha_warmup_steps=source.num_steps if alpha is None else alpha,
        beta3_warmup_steps=source.num_steps if beta3 is None else beta3,
    )


def _step(name: str, config: PretrainConfig, root: Path, pack: Path, checkpoint: Path) -> Step:
    state = checkpoint / STATE
    return Step(
        name=f"pretrain.{name}",
        job="pretrain",
        config=config,
        folder=f"arms/{name}",
        inputs={"pack": os.path.relpath(pack, root), "begin": os.path.relpath(checkpoint, root)},
        external={str(path): path for path in (pack / MANIFEST, state)} | config.user_files(),
        outputs=TRAINED,
        records=TRAINING_RECORDS,
        costly=True,
    )
