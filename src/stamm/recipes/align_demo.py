"""The alignment demo: a small model is fine-tuned, aligned with four objectives and compared."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated

from stamm.align.data.config import (
    APERTUS_REFUSED,
    OWN_ROWS,
    PrepareConfig,
    PrepareSettings,
    SelectConfig,
)
from stamm.align.losses.dpo import DPO, REBEL, SimPO
from stamm.align.losses.qrpo import QRPO
from stamm.align.results.config import AnswersConfig, ArmCandidates, ChooseConfig
from stamm.align.rewards.config import (
    Language,
    Length,
    RewardConfig,
    ScoreConfig,
    Stopped,
    Weighted,
)
from stamm.align.steps import (
    StartModel,
    answers_step,
    prepare_step,
    reference_step,
    sample_config,
    sample_steps,
    score_step,
    select_step,
    training_steps,
)
from stamm.align.training.config import (
    SFT,
    FineTuneConfig,
    FineTuneJobConfig,
    ReferenceConfig,
)
from stamm.base.bounds import AtLeastOne, at_least
from stamm.base.config import override, validate
from stamm.corpus.contamination.config import ContaminationConfig, EvaluationSet
from stamm.engine.config import EngineConfig
from stamm.evaluate.config import EvaluateConfig
from stamm.export.config import ExportConfig
from stamm.models.sampling_config import SamplingConfig
from stamm.optim.config import AdamW
from stamm.optim.schedules import BatchStage, WarmupStableDecay
from stamm.pages.config import ReportConfig
from stamm.recipes import demo
from stamm.recipes.align_results import arm_evaluation, arm_export
from stamm.recipes.start_model import start_model
from stamm.recipes.study import Study
from stamm.reports.steps import report_step
from stamm.runs.job import Step

_TRUNK = "trunk"
_SFT = "sft"
_REFERENCES = "references"
_TEST = "start"


@dataclass(frozen=True, kw_only=True)
class TunedObjective:
    """One objective of the demo and the settings that are tried for it, as on the command line."""

    train: FineTuneConfig
    settings: tuple[tuple[str, ...], ...]

    @property
    def name(self) -> str:
        """Name of its arm."""
        return type(self.train.loss).__name__.lower()


@dataclass(frozen=True, kw_only=True)
class AlignDemo:
    """Fine-tuning and alignment of a small model, with objectives that start and are tuned alike.

    run          folder of a trained model to start from; "": one is trained, from `trunk`
    trunk        the model that is trained when none is named
    chats        conversations for supervised fine-tuning
    prompts      answered by the fine-tuned model, n times each, to be trained on
    validation   prompts to choose the settings of each objective with, test to compare with
    reward       of an answer; `gold` is a second one, which training does not see
    objectives   each is trained with all of its settings; the best on the validation prompts counts
    context      tokens of a training sequence
    """

    run: str = ""
    arm: str | None = None
    trunk: Study = field(default_factory=lambda: _trunk())
    chats: str = "package:align_chats.jsonl.zst"
    prompts: str = "package:align_prompts.jsonl.zst"
    validation: str = "package:align_validation_prompts.jsonl.zst"
    test: str = "package:align_test_prompts.jsonl.zst"
    prepare: PrepareSettings = field(default_factory=lambda: _prepare())
    sft: FineTuneConfig = field(default_factory=lambda: _settings(SFT(), 2e-3, epochs=3.0))
    n: AtLeastOne = 12
    sampling: SamplingConfig = field(default_factory=lambda: SamplingConfig(max_new_tokens=48))
    validation_n: AtLeastOne = 4
    test_n: Annotated[int, at_least(2)] = 8
    reward: RewardConfig = field(default_factory=lambda: _reward())
    gold: RewardConfig | None = field(default_factory=lambda: _gold())
    select: SelectConfig = field(default_factory=SelectConfig)
    objectives: tuple[TunedObjective, ...] = field(default_factory=lambda: _objectives())
    answers: AnswersConfig = field(default_factory=AnswersConfig)
    evaluate: EvaluateConfig = field(default_factory=lambda: EvaluateConfig(tasks=("held_out",)))
    export: ExportConfig = field(default_factory=ExportConfig)
    context: Annotated[int, at_least(2)] = 256
    report: ReportConfig = field(default_factory=ReportConfig)

    def __post_init__(self) -> None:
        names = [objective.name for objective in self.objectives]
        validate(
            self,
            ("objectives", bool(names), "is empty"),
            ("objectives", len(set(names)) == len(names), "names an objective twice"),
            ("n", self.n > self.select.candidates, "must exceed select.candidates"),
        )

    def steps(self, root: Path) -> tuple[Step, ...]:
        """All steps in the run folder `root`, in order."""
        start = start_model(self.run, self.arm, root) if self.run else self._trained()
        steps = [*start.steps, *self._fine_tuned(start)]
        tuned = StartModel(
            name=_SFT,
            model=f"arms/{_SFT}/model",
            tokenizer=start.tokenizer,
            max_context=start.max_context,
            decoder=start.decoder,
            vocabulary=start.vocabulary,
            steps=(steps[-1],),
            external=start.external,
            pack=start.pack,
        )
        if start.pack:
            steps.append(arm_evaluation(_SFT, self.evaluate, start))
        steps += self._training_data(tuned)
        steps += self._chosen(tuned)
        steps += self._tested(_TEST, tuned.inputs, tuned)
        for objective in self.objectives:
            steps += self._aligned(objective, tuned)
        best = self.objectives[0].name
        return (*steps, arm_export(best, self.export, tuned), report_step(self.report))

    def _trained(self) -> StartModel:
        (arm,) = self.trunk.arms
        made = tuple(step for step in self.trunk.steps() if step.job != "report")
        # The trunk is not an arm that is compared.
        moved = tuple(
            replace(step, folder=_TRUNK) if step.job == "pretrain" else step for step in made
        )
        model = self.trunk.model_of(arm)
        return StartModel(
            name=arm.name,
            model=f"{_TRUNK}/model",
            tokenizer="tokenizer",
            max_context=model.max_context,
            steps=moved,
            pack="pack",
        )

    def _fine_tuned(self, start: StartModel) -> list[Step]:
        prepare = prepare_step(
            PrepareConfig.of(self.prepare, data=(self.chats,), context=self.context, kind="chat"),
            start.tokenizer,
            folder="data/chats",
        )
        return [
            prepare,
            *training_steps(
                FineTuneJobConfig.of(self.sft, context=self.context),
                _SFT,
                start.inputs,
                data=prepare.folder,
                external=start.external,
                reference=ReferenceConfig(),
                pack=start.pack,
            ),
        ]

    def _training_data(self, tuned: StartModel) -> list[Step]:
        """Answers of the fine-tuned model as pairs with rewards, and their log-probabilities."""
        sampled = self._sampled(_REFERENCES, tuned.inputs, tuned.external, self.prompts, self.n)
        selected = select_step("pairs", self.select, _REFERENCES)
        prepared = prepare_step(
            PrepareConfig.of(self.prepare, context=self.context, **OWN_ROWS),
            tuned.tokenizer,
            name="prepare.pairs",
            folder="data/pairs",
            answers=f"{selected.folder}/examples.jsonl",
        )
        reference = reference_step(
            ReferenceConfig(),
            {**tuned.inputs, "data": prepared.folder},
            tuned.external,
        )
        return [*sampled, selected, prepared, reference]

    def _chosen(self, tuned: StartModel) -> list[Step]:
        """Every candidate trained and scored on the validation prompts, and the choice."""
        steps: list[Step] = []
        inputs: dict[str, str] = {}
        for objective in self.objectives:
            for number, settings in enumerate(objective.settings):
                name = f"{objective.name}-{number}"
                training = self._training(objective, tuned, name, f"tuning/{name}", settings)
                policy = {**tuned.inputs, "start": f"tuning/{name}/model"}
                sampled = self._sampled(
                    name, policy, tuned.external, self.validation, self.validation_n
                )
                steps += [training, *sampled]
                inputs[f"{objective.name}.{number}"] = f"scored/{name}/scored.jsonl"
        candidates = tuple(
            ArmCandidates(name=objective.name, settings=objective.settings)
            for objective in self.objectives
        )
        choice = Step(
            name="choose",
            job="choose_settings",
            config=ChooseConfig(arms=candidates),
            folder="chosen",
            inputs=inputs,
            outputs=("chosen.json",),
        )
        return [*steps, choice]

    def _aligned(self, objective: TunedObjective, tuned: StartModel) -> list[Step]:
        name = objective.name
        training = self._training(objective, tuned, name, f"arms/{name}", None)
        policy = {**tuned.inputs, "start": f"arms/{name}/model"}
        steps = [training, *self._tested(name, policy, tuned)]
        if tuned.pack:
            steps.append(arm_evaluation(name, self.evaluate, tuned))
        compare = answers_step(
            name,
            self.answers,
            tuned.inputs,
            before=_TEST,
            gold=self.gold is not None,
            evaluated=arm_evaluation(_SFT, self.evaluate, tuned) if tuned.pack else None,
            external=tuned.external,
        )
        return [*steps, compare]

    def _tested(self, name: str, model: Mapping[str, str], tuned: StartModel) -> list[Step]:
        """Answers to the test prompts, and their rewards."""
        steps = self._sampled(name, model, tuned.external, self.test)
        if self.gold is None:
            return steps
        return [*steps, score_step(name, ScoreConfig(reward=self.gold), gold=True)]

    def _training(
        self,
        objective: TunedObjective,
        tuned: StartModel,
        name: str,
        folder: str,
        settings: tuple[str, ...] | None,
    ) -> Step:
        """Training with these settings; None: with the chosen ones."""
        config = FineTuneJobConfig.of(
            objective.train,
            context=self.context,
            chosen=objective.name if settings is None else "",
        )
        if settings is not None:
            config = override(config, list(settings), f"in objectives, {objective.name}")
        (step,) = training_steps(
            config,
            name,
            tuned.inputs,
            data="data/pairs",
            external=tuned.external,
            reference=ReferenceConfig(),
            pack=tuned.pack,
            chosen="" if settings is not None else "chosen/chosen.json",
            folder=folder,
            shared=True,
        )
        return step

    def _sampled(
        self,
        name: str,
        model: Mapping[str, str],
        external: Mapping[str, Path],
        prompts: str,
        n: int | None = None,
    ) -> list[Step]:
        return sample_steps(
            name,
            sample_config(self.sampling, prompts, self.test_n if n is None else n),
            ScoreConfig(reward=self.reward),
            model,
            external=external,
        )


def align_demo() -> AlignDemo:
    """Fine-tuning, then QRPO, DPO, SimPO and REBEL from the same start on answers of the model; 6 minutes."""
    return AlignDemo()


def _prepare() -> PrepareSettings:
    """Licences as Apertus; no row may contain a prompt that the models are compared with."""
    sets = tuple(
        EvaluationSet(name=name, file=f"package:align_{name}_prompts.jsonl.zst", fields=("prompt",))
        for name in ("validation", "test")
    )
    return PrepareSettings(
        refused_licences=APERTUS_REFUSED,
        without_source="refuse",
        decontaminate=ContaminationConfig(sets=sets),
    )


def _reward() -> RewardConfig:
    # What a model of this size can learn: short answers that it ends itself.
    return Weighted(rewards=(Length(smallest=20, largest=60), Stopped()), combine="mean")


def _gold() -> RewardConfig:
    return Language()


def _trunk() -> Study:
    base = demo.demo()
    return replace(
        base,
        corpus=replace(base.corpus, probes=None),
        arms=tuple(arm for arm in base.arms if arm.name == "xielu"),
        evaluate=None,
        audit=None,
        export=None,
        exported=(),
    )


def _settings(
    loss: SFT | QRPO | DPO | SimPO | REBEL, peak: float, *, epochs: float, size: int = 16
) -> FineTuneConfig:
    return FineTuneConfig(
        loss=loss,
        epochs=epochs,
        batch=(BatchStage(size=size),),
        optimizer=AdamW(beta2=0.99, weight_decay=0.0),
        schedule=WarmupStableDecay(
            peak=peak, warmup_sequences=4 * size, decay_share=1.0, law="linear"
        ),
        engine=EngineConfig(threads=2, compile="off", checkpoint_every=25),
    )


def _objectives() -> tuple[TunedObjective, ...]:
    """Two learning rates of each objective."""
    losses: tuple[QRPO | DPO | SimPO | REBEL, ...] = (
        QRPO(ties="mid", partition="empirical"),
        DPO(),
        SimPO(),
        REBEL(),
    )
    return tuple(
        TunedObjective(
            train=_settings(loss, 3e-4, epochs=2.0),
            settings=tuple((f"schedule.peak={peak}",) for peak in (3e-5, 3e-4)),
        )
        for loss in losses
    )
