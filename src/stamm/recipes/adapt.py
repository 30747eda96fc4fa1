"""Change a trained model, another activation or experts, fitted to what it computed; and train on."""

from __future__ import annotations

import os
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, ClassVar

from stamm.activations.catalog.registry import named_activation
from stamm.activations.spec import Spec
from stamm.adapt.config import (
    CarveConfig,
    ReplacementConfig,
    SparsifyConfig,
    TextConfig,
    carved_config,
    sparse_config,
    swapped_config,
)
from stamm.align.steps import StartModel
from stamm.base.bounds import AtLeastOne, Natural, Positive, at_least, within
from stamm.base.config import validate
from stamm.base.errors import ConfigError
from stamm.evaluate.config import EvaluateConfig
from stamm.evaluate.steps import evaluate_step
from stamm.models.config import DecoderConfig, Experts
from stamm.models.self_guide import without_guide
from stamm.optim.schedules import BatchStage, WarmupStableDecay
from stamm.pages.config import ReportConfig
from stamm.pretrain.config import InitialWeights, PretrainConfig
from stamm.pretrain.steps import activation_steps, pretrain_step
from stamm.recipes.branches import pretraining_of
from stamm.recipes.length import packed_length
from stamm.recipes.start_model import start_model
from stamm.recipes.study import MANIFEST
from stamm.reports.steps import report_step
from stamm.runs.job import Step

_CONTROL = "control"


@dataclass(frozen=True, kw_only=True)
class ChangeRecipe:
    """Change a trained model, then train on at the same tokens with and without the change.

    run, arm     the model: a run folder, one of its arms, or a Hugging Face folder; required
    tokens       of further training; 0: none. It needs a pretraining run, whose model, optimizer,
                 batch and masks it keeps
    peak         peak learning rate; None: a quarter of that run's
    warmup_share   share of further training in which the rate rises; then it falls linearly to 0
    control      whether the unchanged model is trained on alike, for the cost of the change
    pack         packed corpus of further training; None: the run's own, from where it stopped reading
    code         references to the user's code that the run names and further training may execute
    evaluate     of the model before, after the change, and after training, where the run has held-out
                 text; None: none
    """

    STEP: ClassVar[str]
    """Kind and folder of the step that changes the model."""
    ARM: ClassVar[str]
    """Name of the changed model that was trained on."""

    run: str = ""
    arm: str | None = None
    tokens: Natural = 0
    peak: Positive | None = None
    warmup_share: Annotated[float, within("[0, 1)")] = 0.05
    control: bool = True
    pack: str | None = None
    code: tuple[str, ...] = ()
    evaluate: EvaluateConfig | None = field(
        default_factory=lambda: EvaluateConfig(tasks=("held_out",))
    )
    report: ReportConfig = field(default_factory=ReportConfig)

    def change(self) -> TextConfig:
        """The configuration of the step that changes the model."""
        raise NotImplementedError

    def changed(self, config: DecoderConfig) -> DecoderConfig:
        """The decoder after the change.

        Raises   ConfigError when the change does not fit it
        """
        raise NotImplementedError

    def steps(self, root: Path) -> tuple[Step, ...]:
        """All steps in the run folder `root`, in order.

        Raises   ConfigError when the change does not fit the model's blocks, or the model cannot
                 be trained on; what finding the model raises
        """
        start = start_model(self.run, self.arm, root)
        trained = self._pretraining(start, root) if self.tokens else None
        changed = [self.changed(config).ffn for config in (start.decoder,) if config]
        checks = activation_steps(changed if trained else [])
        config, name = self.change(), self.STEP
        change = Step(
            name=name,
            job=name,
            config=config,
            folder=name,
            inputs={**start.inputs, **({"pack": start.pack} if start.pack else {})},
            after=tuple(step.name for step in checks),
            external={
                **start.external,
                **({config.text: Path(config.text)} if config.text else {}),
            },
            outputs=("model", f"{name}.json"),
        )
        steps = [*start.steps, *checks, change]
        steps += self._evaluations(start, "start", start.model)
        steps += self._evaluations(start, name, f"{name}/model")
        if trained is not None:
            steps += self._training(start, trained, root)
        return (*steps, report_step(self.report))

    def _pretraining(self, start: StartModel, root: Path) -> PretrainConfig:
        if start.steps:
            raise ConfigError(
                f"run = {self.run} is a Hugging Face folder, which has no corpus to train on",
                fix="Leave out tokens, and train the changed model with a recipe of your own",
            )
        source = pretraining_of(Path(os.path.normpath(root / start.model)).parent, self.code)
        return replace(source, model=without_guide(source.model))  # a stored decoder has none

    def _training(self, start: StartModel, source: PretrainConfig, root: Path) -> list[Step]:
        pack = self.pack or (start.pack and os.path.normpath(root / start.pack))
        if not pack or not (Path(pack) / MANIFEST).is_file():
            raise ConfigError(f"run = {self.run} has no packed corpus", fix="Set pack=FOLDER")
        batch = source.batch[-1].size
        sequences = self.tokens // source.context
        if sequences < batch:
            least = batch * source.context
            raise ConfigError(
                f"tokens = {self.tokens} is less than one step of {least}",
                fix=f"Set tokens=N, such as tokens={100 * least}",
            )
        read = source.total_sequences(packed_length(Path(pack)).sequences(source.context))
        config = replace(
            source,
            first_sequence=0 if self.pack else source.first_sequence + read,
            sequences=sequences,
            batch=(BatchStage(size=batch),),
            schedule=WarmupStableDecay(
                peak=self.peak or source.schedule.peak / 4,
                warmup_sequences=round(self.warmup_share * sequences),
                decay_share=1 - self.warmup_share,
                law="linear",
            ),
        )
        models = {self.ARM: (self.changed(source.model), f"{self.STEP}/model")}
        if self.control:
            models[_CONTROL] = (source.model, start.model)
        steps: list[Step] = []
        for name, (model, weights) in models.items():
            train = self._train(name, config, model, weights, start, os.path.relpath(pack, root))
            steps += [train, *self._evaluations(start, name, f"arms/{name}/model")]
        return steps

    def _train(
        self,
        name: str,
        config: PretrainConfig,
        model: DecoderConfig,
        weights: str,
        start: StartModel,
        pack: str,
    ) -> Step:
        begin = InitialWeights(checkpoint=weights, moments="restart")
        return pretrain_step(
            f"pretrain.{name}",
            f"arms/{name}",
            replace(config, model=model, begin=begin),
            {"pack": pack, "begin": weights, "tokenizer": start.tokenizer},
            external=start.external,
            costly=True,
        )

    def _evaluations(self, start: StartModel, name: str, model: str) -> list[Step]:
        if self.evaluate is None or not start.pack:
            return []
        folders = {"start": "start_evaluate", self.STEP: f"{self.STEP}/evaluate"}
        return [
            evaluate_step(
                f"evaluate.{name}",
                folders.get(name, f"arms/{name}/evaluate"),
                model,
                self.evaluate,
                tokenizer=start.tokenizer,
                pack=start.pack,
                external=start.external,
            )
        ]


@dataclass(frozen=True, kw_only=True)
class AdaptRecipe(ChangeRecipe):
    """Replace the activation of a trained model, then train on at the same tokens with and without it.

    Each layer's new activation is fitted to the old one on the pre-activations of the model, with a
    scale before and behind it that the matrices take up (`activations.fit`).

    activation   the new one, as in `PlainFFN`
    The rest is as in `ChangeRecipe`.
    """

    STEP: ClassVar = "replacement"
    ARM: ClassVar = "replaced"

    activation: str | Spec = "xielu"
    replacement: ReplacementConfig = field(default_factory=ReplacementConfig)

    def __post_init__(self) -> None:
        object.__setattr__(self, "activation", named_activation(self.activation))
        own = self.replacement.activation in ("xielu", self.activation)
        validate(self, ("replacement", own, "has another activation: set activation=NAME alone"))

    def change(self) -> ReplacementConfig:
        """As in ChangeRecipe."""
        return replace(self.replacement, activation=self.activation)

    def changed(self, config: DecoderConfig) -> DecoderConfig:
        """As in ChangeRecipe."""
        return swapped_config(config, self.activation)


@dataclass(frozen=True, kw_only=True)
class CarveRecipe(ChangeRecipe):
    """Divide the feed-forward blocks of a trained model into experts, then train on, with the dense model beside.

    Units that act on the same tokens become one expert; a linear router is fitted to the experts'
    contributions (`adapt.carve`).

    experts      of a block
    active       experts that act on a token
    shared       experts of these that act on every token
    The rest is as in `ChangeRecipe`.
    """

    STEP: ClassVar = "carve"
    ARM: ClassVar = "carved"

    experts: Annotated[int, at_least(2)] = 8
    active: AtLeastOne = 4
    shared: Natural = 0
    carve: CarveConfig = field(default_factory=CarveConfig)

    def __post_init__(self) -> None:
        own = self.carve.experts == Experts()
        message = "has experts: set experts=N active=N shared=N alone"
        validate(self, ("carve", own, message))
        self._experts()

    def _experts(self) -> Experts:
        return Experts(count=self.experts, active=self.active, shared=self.shared)

    def change(self) -> CarveConfig:
        """As in ChangeRecipe."""
        return replace(self.carve, experts=self._experts())

    def changed(self, config: DecoderConfig) -> DecoderConfig:
        """As in ChangeRecipe."""
        return carved_config(config, self._experts())


@dataclass(frozen=True, kw_only=True)
class SparsifyRecipe(ChangeRecipe):
    """Thresholds in the activation of a trained model, then train on, with the unchanged model beside.

    Outputs of a rectifier below a threshold of their layer become 0; the matrices take the thresholds up
    (`adapt.sparsify`).

    share        of units that are 0, over all layers; None: as many as `perplexity` allows
    perplexity   the largest factor of the calibration text's perplexity; None with `share`
    activation   that replaces the model's first, such as reglu or relu2; None: its own
    The rest is as in `ChangeRecipe`.
    """

    STEP: ClassVar = "sparsify"
    ARM: ClassVar = "sparse"

    share: Annotated[float, within("[0, 1)")] | None = None
    perplexity: Annotated[float, within("(1, 10]")] | None = None
    activation: str | Spec | None = None
    sparsify: SparsifyConfig = field(default_factory=SparsifyConfig)

    def __post_init__(self) -> None:
        if self.activation is not None:
            object.__setattr__(self, "activation", named_activation(self.activation))
        given = (self.sparsify.share, self.sparsify.perplexity, self.sparsify.activation)
        own = given == (None, 1.01, None)
        both = self.share is not None and self.perplexity is not None
        validate(
            self,
            ("sparsify", own, "has a goal: set share=S or perplexity=P, and activation=NAME alone"),
            ("share", not both, "is set beside perplexity: set one of them"),
        )

    def change(self) -> SparsifyConfig:
        """As in ChangeRecipe."""
        by_share = self.share is not None
        factor = None if by_share else self.perplexity or self.sparsify.perplexity
        return replace(
            self.sparsify, share=self.share, perplexity=factor, activation=self.activation
        )

    def changed(self, config: DecoderConfig) -> DecoderConfig:
        """As in ChangeRecipe."""
        return sparse_config(config, self.change())


def sparsify() -> SparsifyRecipe:
    """A trained model whose small activations are 0; set run=FOLDER share=S or perplexity=1.01, activation=reglu."""
    return SparsifyRecipe()


def carve() -> CarveRecipe:
    """A trained model with experts in its feed-forward blocks; set run=FOLDER experts=8 active=4 tokens=N."""
    return CarveRecipe()


def activation() -> AdaptRecipe:
    """Another activation in a trained model, fitted to the old one; set run=FOLDER activation=NAME tokens=N."""
    return AdaptRecipe()
