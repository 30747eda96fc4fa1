"""Alignment recipes: supervised fine-tuning and preference optimization of a trained model."""

from __future__ import annotations

import math
import types
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any

from stamm.align.data.config import (
    OWN_ROWS,
    DataSource,
    PrepareConfig,
    PrepareSettings,
    SelectConfig,
)
from stamm.align.losses.dpo import DPO, REBEL, SimPO
from stamm.align.losses.kto import KTO
from stamm.align.losses.preference_loss import OwnPreferenceLoss, PreferenceLoss
from stamm.align.losses.qrpo import QRPO
from stamm.align.results.config import AnswersConfig, SampleAnswersConfig
from stamm.align.rewards.config import RewardConfig, ScoreConfig
from stamm.align.sampling.config import EngineSampling
from stamm.align.steps import (
    StartModel,
    answers_step,
    grpo_step,
    offline_steps,
    prepare_step,
    sample_answers_steps,
    sample_config,
    sample_steps,
    score_step,
    select_step,
    training_steps,
)
from stamm.align.training.config import (
    GRPO,
    SFT,
    BradleyTerry,
    FineTuneConfig,
    FineTuneJobConfig,
    GRPOJobConfig,
    Loss,
    OnPolicySchedule,
    Preference,
    ReferenceConfig,
    loss_name,
    preference_loss,
)
from stamm.audit.config import AuditConfig
from stamm.base.bounds import AtLeastOne, at_least
from stamm.base.config import validate
from stamm.base.errors import ConfigError
from stamm.engine.config import EngineConfig
from stamm.evaluate.config import EvaluateConfig
from stamm.export.config import ExportConfig
from stamm.models.sampling_config import SamplingConfig
from stamm.optim.config import AdamW
from stamm.pages.config import ReportConfig
from stamm.recipes.align_results import arm_evaluation, arm_export, audit_steps
from stamm.recipes.start_model import LONGEST_CONTEXT, start_model
from stamm.reports.steps import report_step
from stamm.runs.job import Step

_BEFORE = "start"
_GRPO = "grpo"


def held_out_rows() -> PrepareSettings:
    """Prepared data of which the rows of 5 % of the prompts are held out."""
    return PrepareSettings(held_out=0.05)


@dataclass(frozen=True, kw_only=True)
class SFTRecipe:
    """Supervised fine-tuning of a trained model on conversations.

    run        folder of a run or of one of its arms, or a Hugging Face folder; required
    arm        of a run with several
    data       files of rows with messages, or with prompt and completion; or
    mixture    sources of such files with weights
    context    longest conversation in tokens; None: the model's, at most 4,096
    prepare    how rows become training sequences
    sample_answers   to prompts of the data before and after; None: none
    evaluate   of the tuned model, where the run has held-out text; None: none
    audit      of memorization before and after, where passages were planted in the run's corpus and
               the settings fit into the model's context; None: none
    export     None: the model is not exported
    """

    run: str = ""
    arm: str | None = None
    data: tuple[str, ...] = ()
    mixture: tuple[DataSource, ...] = ()
    context: Annotated[int, at_least(2)] | None = None
    prepare: PrepareSettings = field(default_factory=held_out_rows)
    train: FineTuneConfig = field(default_factory=FineTuneConfig)
    sample_answers: SampleAnswersConfig | None = field(default_factory=SampleAnswersConfig)
    evaluate: EvaluateConfig | None = field(
        default_factory=lambda: EvaluateConfig(tasks=("held_out",))
    )
    audit: AuditConfig | None = field(default_factory=AuditConfig)
    export: ExportConfig | None = field(default_factory=ExportConfig)
    report: ReportConfig = field(default_factory=ReportConfig)

    def __post_init__(self) -> None:
        validate(self, loss_check(self.train.loss, SFT))

    def steps(self, root: Path) -> tuple[Step, ...]:
        """All steps in the run folder `root`, in order.

        Raises   ConfigError when run or data is empty; what finding the model raises
        """
        start = start_model(self.run, self.arm, root)
        context = context_of(self.context, start)
        prepare = PrepareConfig.of(
            self.prepare, data=self.data, mixture=self.mixture, context=context, kind="chat"
        )
        training = offline_steps(self.train, "sft", start, prepare, ReferenceConfig())
        sampled = sample_answers_steps("sft", self.sample_answers, start, training)
        audits = audit_steps("sft", self.audit, start)
        ends = _finish("sft", start, self)
        steps = [*start.steps, *training, *sampled, *audits, *ends]
        return (*steps, report_step(self.report))


@dataclass(frozen=True, kw_only=True)
class PreferenceRecipe:
    """Preference optimization of a trained model, on rated answers or on its own completions.

    Offline, `data` names files with prompt, chosen and rejected, or prompt, completion, reward and
    ref_rewards, or `mixture` sources of such files with weights. Otherwise the model answers `prompts` n times, `reward` scores the answers, and
    `select` makes training examples of them; `rounds` repeats this, each time with answers of the
    model that the round before trained. The reference policy is always the start model.

    run, arm, context, prepare, sample_answers, evaluate, audit, export   as in `SFTRecipe`
    reference      log-probabilities of the answers under the start model
    n              completions of each prompt
    sampling       how they are drawn, and by which engine
    reward         of an answer; only with prompts
    rounds         of sampling and training
    test_prompts   prompts whose answers are compared before and after, with `reward`; "": none
    test_n         answers of each; half of the start model's are references for quantiles
    gold           a second reward for the comparison, which training does not see; None: none
    answers        how they are compared
    """

    run: str = ""
    arm: str | None = None
    data: tuple[str, ...] = ()
    mixture: tuple[DataSource, ...] = ()
    prompts: str = ""
    n: AtLeastOne = 12
    sampling: EngineSampling = field(default_factory=EngineSampling)
    reward: RewardConfig | None = None
    select: SelectConfig = field(default_factory=SelectConfig)
    rounds: AtLeastOne = 1
    context: Annotated[int, at_least(2)] | None = None
    prepare: PrepareSettings = field(default_factory=held_out_rows)
    reference: ReferenceConfig = field(default_factory=ReferenceConfig)
    train: FineTuneConfig
    sample_answers: SampleAnswersConfig | None = field(default_factory=SampleAnswersConfig)
    test_prompts: str = ""
    test_n: Annotated[int, at_least(2)] = 8
    gold: RewardConfig | None = None
    answers: AnswersConfig = field(default_factory=AnswersConfig)
    evaluate: EvaluateConfig | None = field(
        default_factory=lambda: EvaluateConfig(tasks=("held_out",))
    )
    audit: AuditConfig | None = field(default_factory=AuditConfig)
    export: ExportConfig | None = field(default_factory=ExportConfig)
    report: ReportConfig = field(default_factory=ReportConfig)

    def __post_init__(self) -> None:
        sampled = bool(self.prompts)
        loss = self.train.loss
        # A user's loss is loaded when the steps are built: reading a configuration runs no user code.
        paired = isinstance(loss, PreferenceLoss) and "rated" not in loss.ROWS
        validate(
            self,
            loss_check(loss, Preference),
            ("prompts", not (sampled and self.data), "is given, and data too: choose one"),
            ("prompts", not (sampled and self.mixture), "is given, and mixture too: choose one"),
            ("rounds", self.rounds == 1 or sampled, "needs prompts=FILE"),
            ("reward", self.reward is not None or not sampled, "is needed with prompts=FILE"),
            (
                "reward",
                self.reward is not None or not self.test_prompts,
                "is needed with test_prompts",
            ),
            ("n", self.n > self.select.candidates, "must exceed select.candidates"),
            ("select", not (paired and self.select.take == "all"), _needs_pairs(loss)),
        )

    @property
    def name(self) -> str:
        """Name of the arm: "qrpo"."""
        return loss_name(self.train.loss).lower()

    @property
    def _loss(self) -> PreferenceLoss:
        loss = self.train.loss
        assert isinstance(loss, Preference)
        return preference_loss(loss)

    def steps(self, root: Path) -> tuple[Step, ...]:
        """All steps in the run folder `root`, in order.

        Raises   ConfigError when run is empty, or both data and prompts are
        """
        if not (self.data or self.mixture or self.prompts):
            raise ConfigError(
                "there is nothing to train on: data and prompts are empty",
                fix="Set data=FILE, or prompts=FILE and reward=NAME",
            )
        start = start_model(self.run, self.arm, root)
        context = context_of(self.context, start)
        steps = [*start.steps]
        steps += self._sampled(start, context) if self.prompts else self._offline(start, context)
        steps += sample_answers_steps(self.name, self.sample_answers, start, steps)
        audits = audit_steps(self.name, self.audit, start)
        steps += [*audits, *_finish(self.name, start, self)]
        if self.test_prompts:
            beta = self._loss.closed_form_beta
            steps += _compared(self, self.name, start, beta, audited=bool(audits))
        return (*steps, report_step(self.report))

    def _offline(self, start: StartModel, context: int) -> list[Step]:
        paired = "rated" not in self._loss.ROWS
        prepare = replace(
            self._prepare(context),
            data=self.data,
            mixture=self.mixture,
            kind="preference" if paired else self.prepare.kind,
        )
        return offline_steps(self.train, self.name, start, prepare, self._reference)

    @property
    def _reference(self) -> ReferenceConfig:
        return replace(self.reference, mismatched=self._loss.NEEDS_MISMATCHED)

    def _prepare(self, context: int) -> PrepareConfig:
        """With the columns that the loss reads of each row."""
        train = self.train
        examples = math.ceil(1 / train.epochs) if train.sequences is None else 1
        return PrepareConfig.of(
            self.prepare,
            context=context,
            needs=self._loss.needs,
            min_references=self._loss.min_references,
            min_examples=max(self.prepare.min_examples, examples),
        )

    def _sampled(self, start: StartModel, context: int) -> list[Step]:
        assert self.reward is not None
        if self.select.take == "all" and "rated" not in self._loss.ROWS:
            raise ConfigError(f"select.take = all: {_needs_pairs(self.train.loss)}")
        steps: list[Step] = []
        reward = ScoreConfig(reward=self.reward)
        policy = start.inputs
        for number in range(1, self.rounds + 1):
            name = f"round{number}"
            settings = replace(self.sampling, seed=self.sampling.seed + number - 1)
            sampled = sample_steps(
                name,
                sample_config(settings, self.prompts, self.n),
                reward,
                policy,
                external=start.external,
            )
            selected = select_step(name, self.select, name, "round1")
            prepared = prepare_step(
                replace(self._prepare(context), **OWN_ROWS),
                start.tokenizer,
                name=f"prepare.{name}",
                folder=f"data/{name}",
                answers=f"{selected.folder}/examples.jsonl",
            )
            last = number == self.rounds
            arm = self.name if last else f"{self.name}-{name}"
            training = training_steps(
                FineTuneJobConfig.of(self.train, imported=start.imported, context=context),
                arm,
                policy,
                data=prepared.folder,
                external=start.external,
                reference=self._reference,
                pack=start.pack,
                base=start.inputs,
            )
            steps += [*sampled, selected, prepared, *training]
            policy = {**start.inputs, "start": f"arms/{arm}/model"}
        return steps


@dataclass(frozen=True, kw_only=True)
class GRPORecipe:
    """Policy gradient on a model's own answers, which it gives while it is trained, and their rewards.

    run, arm, evaluate, audit, export                      as in `SFTRecipe`
    prompts        a file with a prompt per row, and the columns that the reward reads; required
    n              answers to each prompt, which are compared with each other
    sampling       max_new_tokens, slots and seed
    reward         of an answer; required
    context        longest prompt and answer in tokens; None: the model's, at most 4,096
    train          epochs, sequences, batch and micro_batch count prompts
    test_prompts, test_n, gold, answers                    as in `PreferenceRecipe`
    """

    run: str = ""
    arm: str | None = None
    prompts: str = ""
    n: Annotated[int, at_least(2)] = 8
    sampling: SamplingConfig = field(default_factory=SamplingConfig)
    reward: RewardConfig | None = None
    context: Annotated[int, at_least(2)] | None = None
    train: FineTuneConfig = field(default_factory=lambda: _on_policy())
    test_prompts: str = ""
    test_n: Annotated[int, at_least(2)] = 8
    gold: RewardConfig | None = None
    answers: AnswersConfig = field(default_factory=AnswersConfig)
    evaluate: EvaluateConfig | None = field(
        default_factory=lambda: EvaluateConfig(tasks=("held_out",))
    )
    audit: AuditConfig | None = field(default_factory=AuditConfig)
    export: ExportConfig | None = field(default_factory=ExportConfig)
    report: ReportConfig = field(default_factory=ReportConfig)

    def __post_init__(self) -> None:
        validate(self, loss_check(self.train.loss, GRPO))

    def steps(self, root: Path) -> tuple[Step, ...]:
        """All steps in the run folder `root`, in order.

        Raises   ConfigError when run, prompts or reward is missing; what finding the model raises
        """
        if not self.prompts or self.reward is None:
            raise ConfigError(
                "there is nothing to train on: prompts or reward is missing",
                fix="Set prompts=FILE and reward=NAME, such as reward=Number",
            )
        start = start_model(self.run, self.arm, root)
        context = context_of(self.context, start)
        given: dict[str, Any] = {"prompts": self.prompts, "n": self.n, "sampling": self.sampling}
        config = GRPOJobConfig.of(self.train, context=context, reward=self.reward, **given)
        if (longest := self.sampling.max_new_tokens) >= context:
            raise ConfigError(
                f"sampling.max_new_tokens = {longest} leaves no room for a prompt in the context of "
                f"{context} tokens",
                fix="Lower it",
            )
        steps = [*start.steps, grpo_step(config, _GRPO, start)]
        audits = audit_steps(_GRPO, self.audit, start)
        steps += [*audits, *_finish(_GRPO, start, self)]
        if self.test_prompts:
            steps += _compared(self, _GRPO, start, None, audited=bool(audits))
        return (*steps, report_step(self.report))


def context_of(context: int | None, start: StartModel) -> int:
    """The longest example: as configured, or the model's longest context, at most 4,096 tokens.

    Raises   ConfigError when the model has a shorter one
    """
    if context is not None and context > start.max_context:
        raise ConfigError(
            f"context = {context} exceeds the model's max_context = {start.max_context}",
            fix=f"Set context={start.max_context} or less",
        )
    return min(start.max_context, LONGEST_CONTEXT) if context is None else context


def sft() -> SFTRecipe:
    """Supervised fine-tuning of a trained model; set run=FOLDER data=FILE."""
    return SFTRecipe()


def qrpo() -> PreferenceRecipe:
    """QRPO on rated answers or the model's own; set run=FOLDER, and data=FILE or prompts=FILE reward=NAME."""
    return PreferenceRecipe(train=on_answers(QRPO()))


def dpo() -> PreferenceRecipe:
    """DPO on pairs of answers; set run=FOLDER, and data=FILE or prompts=FILE reward=NAME."""
    return PreferenceRecipe(train=on_answers(DPO()))


def simpo() -> PreferenceRecipe:
    """SimPO on pairs of answers; set run=FOLDER, and data=FILE or prompts=FILE reward=NAME."""
    return PreferenceRecipe(train=on_answers(SimPO()))


def rebel() -> PreferenceRecipe:
    """REBEL on pairs of answers with rewards; set run=FOLDER, and data=FILE or prompts=FILE reward=NAME."""
    return PreferenceRecipe(train=on_answers(REBEL()))


def kto() -> PreferenceRecipe:
    """KTO on labelled answers or pairs; set run=FOLDER, and data=FILE or prompts=FILE reward=NAME."""
    return PreferenceRecipe(train=on_answers(KTO()))


def grpo() -> GRPORecipe:
    """GRPO on answers of the model during training; set run=FOLDER prompts=FILE reward=NAME."""
    return GRPORecipe()


def _needs_pairs(loss: Loss) -> str:
    return f"take=all makes single answers, and {loss_name(loss)} needs pairs"


def loss_check(loss: Loss, kinds: type | types.UnionType) -> tuple[str, bool, str]:
    """For `validate`: whether a recipe trains with this loss, and which one does."""
    kind = type(loss)
    recipe = "reward" if kind is BradleyTerry else kind.__name__.lower()
    if isinstance(loss, OwnPreferenceLoss):
        recipe = "dpo"
    return "train.loss", isinstance(loss, kinds), f"is {kind.__name__}: use align.{recipe}"


def on_answers(loss: Preference | BradleyTerry | GRPO) -> FineTuneConfig:
    """Training on answers, not compiled: packed answers have a different number of rows in each step."""
    return FineTuneConfig(loss=loss, engine=EngineConfig(compile="off"))


def _compared(
    recipe: PreferenceRecipe | GRPORecipe,
    arm: str,
    start: StartModel,
    beta: float | None,
    *,
    audited: bool,
) -> list[Step]:
    """Answers of the start model and of an arm to the test prompts, and their comparison."""
    assert recipe.reward is not None
    config = sample_config(recipe.sampling, recipe.test_prompts, recipe.test_n)
    reward = ScoreConfig(reward=recipe.reward)
    tuned = {**start.inputs, "start": f"arms/{arm}/model"}
    steps = [
        *sample_steps(_BEFORE, config, reward, start.inputs, external=start.external),
        *sample_steps(
            arm,
            config,
            reward,
            tuned,
            external=start.external,
        ),
    ]
    evaluated = None
    if recipe.evaluate is not None and start.pack:
        evaluated = arm_evaluation(arm, recipe.evaluate, start, of_start=True)
        steps.append(evaluated)
    if recipe.gold is not None:
        gold = ScoreConfig(reward=recipe.gold)
        steps += [score_step(name, gold, gold=True) for name in (_BEFORE, arm)]
    compare = replace(recipe.answers, beta=beta)
    steps.append(
        answers_step(
            arm,
            compare,
            start.inputs,
            before=_BEFORE,
            gold=recipe.gold is not None,
            evaluated=evaluated,
            external=start.external,
            audited=audited,
        )
    )
    return steps


def _on_policy() -> FineTuneConfig:
    """AdamW and a constant rate after ten steps of warm-up, as DAPO (arXiv 2503.14476, section 4.1)."""
    return replace(
        on_answers(GRPO()),
        optimizer=AdamW(weight_decay=0.0),
        schedule=OnPolicySchedule(),
    )


def _finish(
    arm: str, start: StartModel, recipe: SFTRecipe | PreferenceRecipe | GRPORecipe
) -> list[Step]:
    """Evaluation, where there is held-out text, and export of an arm."""
    steps = []
    if recipe.evaluate is not None and start.pack:
        steps.append(arm_evaluation(arm, recipe.evaluate, start))
    if recipe.export is not None:
        own_rows = not isinstance(recipe, GRPORecipe) and recipe.prepare.held_out > 0
        steps.append(arm_export(arm, recipe.export, start, own_rows=own_rows))
    return steps
