"""Change a trained model, another activation or experts, fitted to what it computed; and train on."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Annotated

from stamm.activations.catalog.registry import named_activation
from stamm.activations.spec import Spec
from stamm.adapt.config import (
    CarveConfig,
    ReplacementConfig,
    SparsifyConfig,
    StressConfig,
    TextConfig,
    carved_config,
    require_dense,
    sparse_config,
    swapped_config,
)
from stamm.align.steps import StartModel
from stamm.base.bounds import AtLeastOne, Natural, Positive, at_least, within
from stamm.base.config import Bounded, validate
from stamm.base.errors import ConfigError
from stamm.evaluate.config import EvaluateConfig
from stamm.evaluate.steps import evaluate_step
from stamm.losses.config import Density
from stamm.models.config import DecoderConfig, Experts
from stamm.models.self_guide import without_guide
from stamm.optim.config import GroupRule
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

FROZEN_ROUTER = GroupRule(pattern=r"\.router\.", lr_factor=0.0)
"""Scores of a carved router are small: updates of the size of the learning rate would choose other experts."""


@dataclass(frozen=True, kw_only=True)
class FurtherTraining(Bounded):
    """Training of the changed model, and of the unchanged one beside it, on `tokens` of the recipe.

    peak         peak learning rate; None: a quarter of that of the run
    warmup_share   share of the tokens in which the rate rises; then it falls linearly to 0
    control      whether the unchanged model is trained on alike, for the cost of the change
    pack         packed corpus; None: the run's own, from where it stopped reading
    density      density loss of the changed model; beside it `arms/no_density`, the same training with
                 weight 0. None: none
    """

    peak: Positive | None = None
    warmup_share: Annotated[float, within("[0, 1)")] = 0.05
    control: bool = True
    pack: str | None = None
    density: Density | None = None


def _held_out() -> EvaluateConfig:
    return EvaluateConfig(tasks=("held_out",))


@dataclass(frozen=True, kw_only=True)
class AdaptRecipe:
    """Replace the activation of a trained model, then train on at the same tokens with and without it.

    Each layer's new activation is fitted to the old one on the pre-activations of the model, with a
    scale before and behind it that the matrices take up (`activations.fit`).

    run, arm     the model: a run folder, one of its arms, or a Hugging Face folder; required
    activation   the new one, as in `PlainFFN`
    tokens       of further training; 0: none. It needs a pretraining run, whose model, optimizer,
                 batch and masks it keeps
    code         references to the user's code that the run names and further training may execute
    evaluate     of the model before, after the change, and after training, where the run has held-out
                 text; None: none
    """

    run: str = ""
    arm: str | None = None
    activation: str | Spec = "xielu"
    replacement: ReplacementConfig = field(default_factory=ReplacementConfig)
    tokens: Natural = 0
    training: FurtherTraining = field(default_factory=FurtherTraining)
    code: tuple[str, ...] = ()
    evaluate: EvaluateConfig | None = field(default_factory=_held_out)
    report: ReportConfig = field(default_factory=ReportConfig)

    def __post_init__(self) -> None:
        object.__setattr__(self, "activation", named_activation(self.activation))
        own = self.replacement.activation in ("xielu", self.activation)
        validate(self, ("replacement", own, "has another activation: set activation=NAME alone"))

    def steps(self, root: Path) -> tuple[Step, ...]:
        """All steps in the run folder `root`, in order.

        Raises   ConfigError when the change does not fit the model's blocks, or the model cannot
                 be trained on; what finding the model raises
        """
        config = replace(self.replacement, activation=self.activation)
        wanted = partial(swapped_config, activation=self.activation)
        change = _Change(name="replacement", arm="replaced", config=config, wanted=wanted)
        return _steps(self, change, root)


@dataclass(frozen=True, kw_only=True)
class CarveRecipe:
    """Divide the feed-forward blocks of a trained model into experts, then train on, with the dense model beside.

    Units that act on the same tokens become one expert; a linear router is fitted to the experts'
    contributions (`adapt.carve`).

    experts      of a block
    active       experts that act on a token
    shared       experts of these that act on every token
    The rest is as in `AdaptRecipe`.
    """

    run: str = ""
    arm: str | None = None
    experts: Annotated[int, at_least(2)] = 8
    active: AtLeastOne = 4
    shared: Natural = 0
    carve: CarveConfig = field(default_factory=CarveConfig)
    tokens: Natural = 0
    training: FurtherTraining = field(default_factory=FurtherTraining)
    code: tuple[str, ...] = ()
    evaluate: EvaluateConfig | None = field(default_factory=_held_out)
    report: ReportConfig = field(default_factory=ReportConfig)

    def __post_init__(self) -> None:
        own = self.carve.experts == Experts()
        message = "has experts: set experts=N active=N shared=N alone"
        validate(self, ("carve", own, message))
        self._experts()

    def _experts(self) -> Experts:
        return Experts(count=self.experts, active=self.active, shared=self.shared)

    def steps(self, root: Path) -> tuple[Step, ...]:
        """As in `AdaptRecipe`."""
        config = replace(self.carve, experts=self._experts())
        wanted = partial(carved_config, experts=config.experts)
        change = _Change(
            name="carve", arm="carved", config=config, wanted=wanted, rules=(FROZEN_ROUTER,)
        )
        return _steps(self, change, root)


@dataclass(frozen=True, kw_only=True)
class SparsifyRecipe:
    """Thresholds in the activation of a trained model, then train on, with the unchanged model beside.

    Outputs of a rectifier below a threshold of their layer become 0; the matrices take the thresholds up
    (`adapt.sparsify`).

    share        of units that are 0, over all layers; None: as many as `perplexity` allows
    perplexity   the largest factor of the calibration text's perplexity; None with `share`
    activation   that replaces the model's first, such as reglu or relu2; None: its own
    The rest is as in `AdaptRecipe`.
    """

    run: str = ""
    arm: str | None = None
    share: Annotated[float, within("[0, 1)")] | None = None
    perplexity: Annotated[float, within("(1, 10]")] | None = None
    activation: str | Spec | None = None
    sparsify: SparsifyConfig = field(default_factory=SparsifyConfig)
    tokens: Natural = 0
    training: FurtherTraining = field(default_factory=FurtherTraining)
    code: tuple[str, ...] = ()
    evaluate: EvaluateConfig | None = field(default_factory=_held_out)
    report: ReportConfig = field(default_factory=ReportConfig)

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

    def steps(self, root: Path) -> tuple[Step, ...]:
        """As in `AdaptRecipe`."""
        factor = None if self.share is not None else self.perplexity or self.sparsify.perplexity
        config = replace(
            self.sparsify, share=self.share, perplexity=factor, activation=self.activation
        )
        wanted = partial(sparse_config, wanted=config)
        change = _Change(name="sparsify", arm="sparse", config=config, wanted=wanted)
        return _steps(self, change, root)


@dataclass(frozen=True, kw_only=True)
class StressRecipe(Bounded):
    """The loss of a trained model, as in `AdaptRecipe`, with flipped bits and noise, and with a clip against them."""

    run: str = ""
    arm: str | None = None
    stress: StressConfig = field(default_factory=StressConfig)
    report: ReportConfig = field(default_factory=ReportConfig)

    def steps(self, root: Path) -> tuple[Step, ...]:
        """As in `AdaptRecipe`."""
        start = start_model(self.run, self.arm, root)
        if start.decoder:
            require_dense(start.decoder, "have bits flipped")
        step = _text_step("stress", self.stress, start, ("stress.json",))
        return (*start.steps, step, report_step(self.report))


@dataclass(frozen=True, kw_only=True)
class _Change:
    """The step that changes the model.

    name     its kind and folder
    arm      the changed model that was trained on
    wanted   the decoder after the change; ConfigError when the change does not fit it
    rules    of the optimizer that trains the changed model on
    """

    name: str
    arm: str
    config: ReplacementConfig | CarveConfig | SparsifyConfig
    wanted: Callable[[DecoderConfig], DecoderConfig]
    rules: tuple[GroupRule, ...] = ()


_Recipe = AdaptRecipe | CarveRecipe | SparsifyRecipe


def _steps(recipe: _Recipe, change: _Change, root: Path) -> tuple[Step, ...]:
    start = start_model(recipe.run, recipe.arm, root)
    if recipe.training.density is not None and not recipe.tokens:
        raise ConfigError(
            "training.density is a part of further training, and tokens = 0", fix="Set tokens=N"
        )
    trained = _pretraining(recipe, start, root) if recipe.tokens else None
    changed = [change.wanted(config).ffn for config in (start.decoder,) if config]
    checks = activation_steps(changed if trained else [])
    name = change.name
    step = _text_step(name, change.config, start, ("model", f"{name}.json"))
    step = replace(step, after=tuple(check.name for check in checks))
    steps = [*start.steps, *checks, step]
    steps += _evaluations(recipe, start, "start", "start_evaluate", start.model)
    steps += _evaluations(recipe, start, name, f"{name}/evaluate", f"{name}/model")
    if trained is not None:
        steps += _training(recipe, change, start, trained, root)
    return (*steps, report_step(recipe.report))


def _text_step(name: str, config: TextConfig, start: StartModel, outputs: tuple[str, ...]) -> Step:
    text = {config.text: Path(config.text)} if config.text else {}
    return Step(
        name=name,
        job=name,
        config=config,
        folder=name,
        inputs={**start.inputs, **({"pack": start.pack} if start.pack else {})},
        external={**start.external, **text},
        outputs=outputs,
    )


def _pretraining(recipe: _Recipe, start: StartModel, root: Path) -> PretrainConfig:
    if start.steps:
        raise ConfigError(
            f"run = {recipe.run} is a Hugging Face folder, which has no corpus to train on",
            fix="Leave out tokens, and train the changed model with a recipe of your own",
        )
    source = pretraining_of(Path(os.path.normpath(root / start.model)).parent, recipe.code)
    return replace(source, model=without_guide(source.model))  # a stored decoder has none


def _training(
    recipe: _Recipe, change: _Change, start: StartModel, source: PretrainConfig, root: Path
) -> list[Step]:
    further = recipe.training
    pack = further.pack or (start.pack and os.path.normpath(root / start.pack))
    if not pack or not (Path(pack) / MANIFEST).is_file():
        raise ConfigError(
            f"run = {recipe.run} has no packed corpus", fix="Set training.pack=FOLDER"
        )
    batch = source.batch[-1].size
    sequences = recipe.tokens // source.context
    if sequences < batch:
        least = batch * source.context
        raise ConfigError(
            f"tokens = {recipe.tokens} is less than one step of {least}",
            fix=f"Set tokens=N, such as tokens={100 * least}",
        )
    read = source.total_sequences(packed_length(Path(pack)).sequences(source.context))
    config = replace(
        source,
        first_sequence=0 if further.pack else source.first_sequence + read,
        sequences=sequences,
        batch=(BatchStage(size=batch),),
        schedule=WarmupStableDecay(
            peak=further.peak or source.schedule.peak / 4,
            warmup_sequences=round(further.warmup_share * sequences),
            decay_share=1 - further.warmup_share,
            law="linear",
        ),
    )
    groups, weights = (*change.rules, *source.optimizer.groups), f"{change.name}/model"
    optimizer = replace(source.optimizer, groups=groups)
    changed = replace(config, model=change.wanted(source.model), optimizer=optimizer)
    arms = {change.arm: (replace(changed, density=further.density), weights)}
    if further.density is not None:
        control = replace(further.density, weight=0.0)
        arms["no_density"] = (replace(changed, density=control), weights)
    if further.control:
        arms["control"] = (config, start.model)
    steps: list[Step] = []
    for name, (settings, weights) in arms.items():
        arm, begin = f"arms/{name}", InitialWeights(checkpoint=weights, moments="restart")
        inputs = {
            "pack": os.path.relpath(pack, root), "begin": weights, "tokenizer": start.tokenizer
        }  # fmt: skip
        steps.append(
            pretrain_step(
                f"pretrain.{name}",
                arm,
                replace(settings, begin=begin),
                inputs,
                external=start.external,
                costly=True,
            )
        )
        steps += _evaluations(recipe, start, name, f"{arm}/evaluate", f"{arm}/model")
    return steps


def _evaluations(
    recipe: _Recipe, start: StartModel, name: str, folder: str, model: str
) -> list[Step]:
    if recipe.evaluate is None or not start.pack:
        return []
    step = evaluate_step(
        f"evaluate.{name}",
        folder,
        model,
        recipe.evaluate,
        tokenizer=start.tokenizer,
        pack=start.pack,
        external=start.external,
    )
    return [step]


def sparsify() -> SparsifyRecipe:
    """A trained model whose small activations are 0; set run=FOLDER share=S or perplexity=1.01, activation=reglu."""
    return SparsifyRecipe()


def stress() -> StressRecipe:
    """The loss of a trained model with flipped bits and with noise; set run=FOLDER stress.rate=0.001."""
    return StressRecipe()


def carve() -> CarveRecipe:
    """A trained model with experts in its feed-forward blocks; set run=FOLDER experts=8 active=4 tokens=N."""
    return CarveRecipe()


def activation() -> AdaptRecipe:
    """Another activation in a trained model, fitted to the old one; set run=FOLDER activation=NAME tokens=N."""
    return AdaptRecipe()
