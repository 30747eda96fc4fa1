"""Comparison recipe: matched arms, the same rates to choose from, several seeds, a statistical verdict."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated

from stamm.base.bounds import (
    AtLeastOne,
    NotNegative,
    Positive,
    PositiveShare,
    Seed,
    distinct,
    within,
)
from stamm.base.config import to_plain, validate
from stamm.base.errors import ConfigError
from stamm.base.schema import read_record_if_present
from stamm.compare.config import LookConfig, PlanConfig, config_hash
from stamm.compare.records import PlannedArm
from stamm.compare.steps import PAGE, look_step, page_step, plan_step
from stamm.corpus.config import CorpusConfig, PackConfig
from stamm.corpus.ledger import HELD_OUT
from stamm.corpus.records import PackManifest
from stamm.corpus.steps import corpus_steps, reused_steps, token_steps
from stamm.corpus.tokenizer.config import TekkenConfig, TokenizerConfig
from stamm.engine.config import EngineConfig, RollBackAndSkip, SkipUpdate
from stamm.evaluate.config import EvaluateConfig
from stamm.evaluate.steps import evaluate_step
from stamm.models.flops import count_parameters
from stamm.models.parameter_shapes import parameter_shapes
from stamm.optim.param_group_rules import grouped
from stamm.optim.schedules import Schedule, WarmupStableDecay
from stamm.pages.config import ReportConfig
from stamm.pretrain.average_config import WeightAverage
from stamm.pretrain.config import PretrainConfig
from stamm.pretrain.lr_finder import CHOSEN, FINAL, REFINED, SHORT, ChoiceConfig
from stamm.pretrain.step_timing_config import STEP_TIMING, StepTimingConfig, TimedArm
from stamm.pretrain.steps import (
    activation_steps,
    average_step,
    pretrain_step,
    rate_step,
    step_timing_step,
)
from stamm.recipes.arm import Arm
from stamm.recipes.checks import check_evaluation
from stamm.recipes.matching import (
    EqualFlops,
    EqualParameters,
    EqualTime,
    equal_widths,
    equal_work,
    output_deviation,
    scaled_arms,
    scaled_run,
)
from stamm.recipes.study import MANIFEST
from stamm.runs.executors import Execution, LocalExecutor
from stamm.runs.job import Step

_ALL_STEPS = 10**9


@dataclass(frozen=True, kw_only=True)
class Tuning:
    """Learning-rate search of an arm: every arm gets the same rates, one with trained shapes each with each factor.

    rates         initial grid of every arm; a single one, without refinements, is taken as it is
    shape_factors values of optimizer.shape_lr_factor of an arm with trained shapes, each tried with every
                  rate of the grid; refinements keep the best. (): that of the optimizer
    refinements   how often two more rates are tried: next to the best, or beyond an edge
    length        of a short run and its warm-up, as a share of the full run
    margin        nats per token by which the chosen rate may lose to the best one: the lowest such
                  rate is chosen, away from the rates at which training becomes unstable
    seed          of the short runs; must differ from `seeds`, to avoid selection bias
    """

    rates: tuple[Positive, ...] = (1e-3, 2e-3, 4e-3)
    shape_factors: Annotated[tuple[NotNegative, ...], distinct("has a factor twice")] = ()
    refinements: Annotated[int, within("[0, 4]")] = 1
    length: PositiveShare = 0.25
    margin: Annotated[float, within("[0, 1)")] = 0.0
    seed: Seed = 0

    def __post_init__(self) -> None:
        steps = [high / low for low, high in zip(self.rates, self.rates[1:], strict=False) if low]
        validate(
            self,
            (
                "rates",
                len(self.rates) >= (2 if self.refinements else 1),
                "must be at least two, or one with refinements = 0, which is taken as it is",
            ),
            ("rates", all(step >= 1.1 for step in steps), "must rise, each 1.1 times or more"),
            (
                "shape_factors",
                len(self.shape_factors) != 1,
                "has one value: set optimizer.shape_lr_factor to it",
            ),
        )

    def grid(self, run: PretrainConfig) -> list[tuple[float, float | None]]:
        """The initial pairs of rate and shape factor of an arm; () where a single rate is taken as it is.

        A factor of None leaves the optimizer's.
        """
        shaped = bool(self.shape_factors) and _has_shape_factor(run)
        factors: tuple[float | None, ...] = self.shape_factors if shaped else (None,)
        if len(self.rates) == 1 and len(factors) == 1:
            return []
        return [(rate, factor) for factor in factors for rate in self.rates]

    def trials(self, run: PretrainConfig) -> int:
        """Number of short runs of an arm."""
        grid = self.grid(run)
        return len(grid) + 2 * self.refinements if grid else 0


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """Arms that differ in their feed-forward block, or in what they override, with confidence intervals.

    packed       folder of a run whose tokenizer and packed tokens are used; `corpus`, `tokenizer` and
                 `pack` are then not read. "": its own corpus
    pretrain     shared by the arms: its model takes each arm's block, its schedule each arm's rate;
                 non-finite losses do not stop a run: an arm that diverges loses
    arms         two or more, or one where a search adds another, each with its block and `overrides`
                 (optimizer, schedule, rates, Goldfish loss, QK-norm, self-guided training, initial
                 standard deviation, length); self-guided ones need EqualFlops, which counts their guides
    baseline     the arm that the others are compared with; its width and its length are as given
    matched      EqualParameters, EqualFlops or EqualTime
    seeds        of the compared runs; a seed sets data order and initial weights, and parameters
                 that arms share start equal, but for the factor of an arm's own init_std
    looks        numbers of finished seeds after which the comparison may stop (group-sequential,
                 `statistics.sequential`); the last is all seeds. (): one look, at the end
    difference   smallest difference of interest in bits per byte: an arm whose interval excludes it
                 is decided. None: only a shown difference decides
    average      evaluate the mean of the last weights instead of the final ones, which are evaluated
                 beside it; None: the final ones
    pilot        folder of an earlier comparison, whose spread over seeds the plan states; "": none
    confidence   of the intervals, and of all verdicts together (Holm)
    execution    executor of the corpus shards; may change when a run is resumed

    Raises       ConfigError for problems that would otherwise stop it after hours of training
    """

    corpus: CorpusConfig
    tokenizer: TokenizerConfig | TekkenConfig
    pack: PackConfig
    packed: str = ""
    pretrain: PretrainConfig
    arms: tuple[Arm, ...]
    baseline: str = "swiglu"
    matched: EqualParameters | EqualFlops | EqualTime = field(default_factory=EqualParameters)
    tuning: Tuning = field(default_factory=Tuning)
    seeds: Annotated[tuple[Seed, ...], distinct("has one twice")] = (1, 2, 3)
    looks: tuple[AtLeastOne, ...] = ()
    difference: Positive | None = None
    pilot: str = ""
    average: WeightAverage | None = None
    confidence: Annotated[float, within("[0.5, 1)")] = 0.95
    evaluate: EvaluateConfig = field(default_factory=EvaluateConfig)
    report: ReportConfig = field(default_factory=ReportConfig)
    execution: Execution = field(default_factory=LocalExecutor)

    def __post_init__(self) -> None:
        names = [arm.name for arm in self.arms]
        pretrain, vocabulary = self.pretrain, self.pretrain.model.vocab_size
        validate(
            self,
            ("arms", bool(names), "is empty"),
            ("arms", len(set(names)) == len(names), "has two arms of one name"),
            ("baseline", self.baseline in names, f"names no arm; there are {', '.join(names)}"),
            ("seeds", len(self.seeds) >= 2, "must be at least two: one has no variance"),
            (
                "seeds",
                self.tuning.seed not in self.seeds,
                f"holds tuning.seed = {self.tuning.seed}: seeds used for tuning must not be compared",
            ),
            ("looks", list(self.looks) == sorted(set(self.looks)), "must rise"),
            (
                "looks",
                not self.looks or self.looks[-1] == len(self.seeds),
                f"must end with the number of seeds, {len(self.seeds)}",
            ),
            (
                "looks",
                not self.looks or self.looks[0] >= max(2, len(self.seeds) / 4),
                "must begin with two seeds or more, and a quarter of all",
            ),
            (
                "matched",
                isinstance(self.matched, EqualFlops) or not any(map(_is_guided, self.arms)),
                "must be EqualFlops: an arm is self-guided, and its guides add parameters and time in a "
                "part of the run",
            ),
            (
                "matched",
                isinstance(self.matched, EqualParameters) or not any(map(_is_shorter, self.arms)),
                "sets the lengths: overrides.length of an arm needs EqualParameters",
            ),
            (
                "baseline",
                not any(_is_shorter(arm) for arm in self.arms if arm.name == self.baseline),
                "has overrides.length; its length is pretrain.sequences",
            ),
        )
        validate(
            pretrain,
            ("foreign", pretrain.foreign is None, "is set, but a comparison packs its own corpus"),
            ("pack", not pretrain.pack, "is set, but a comparison packs its own corpus"),
            ("begin", pretrain.begin is None, "is set, but arms start from random weights"),
            ("sequences", pretrain.sequences is not None, "must be given: arms are matched by it"),
            ("batch", len(pretrain.batch) == 1, "must have one stage: short runs shorten them all"),
            (
                "model",
                bool(self.packed) or vocabulary == self.tokenizer.vocab_size,
                f"does not have the vocabulary of tokenizer.vocab_size = {self.tokenizer.vocab_size}",
            ),
        )
        rolls = isinstance(pretrain.engine.on_nonfinite, RollBackAndSkip)
        validate(pretrain.engine, ("on_nonfinite", not rolls, "would train arms on different text"))
        check_evaluation(self.evaluate, self.corpus, pretrain.model)
        if self.average is not None:
            shortest = min(arm.overrides.length or 1.0 for arm in self.arms)
            total = pretrain.total_sequences() * shortest
            back = (self.average.last - 1) * self.average.every
            validate(
                self,
                (
                    "average",
                    total > back * pretrain.batch[0].size,
                    f"reaches back {back} steps, more than the run has",
                ),
            )
        self.matched_arms()
        for name in names:
            self.tuning_of(name)
        if self.tuning.shape_factors:
            validate(
                self.tuning,
                (
                    "shape_factors",
                    any(map(_has_shape_factor, self.runs().values())),
                    "are set, but no arm has trained shapes whose rate they change",
                ),
            )

    def baseline_arm(self) -> Arm:
        """The arm that the others are compared with."""
        return next(arm for arm in self.arms if arm.name == self.baseline)

    def tuning_of(self, name: str) -> Tuning:
        """The tuning of the arm called `name`, with its own rates where it has some.

        Raises   ConfigError where `tuning` refuses them
        """
        rates = next(arm.overrides.rates for arm in self.arms if arm.name == name)
        return self.tuning if rates is None else replace(self.tuning, rates=rates)

    def matched_arms(self) -> tuple[Arm, ...]:
        """The arms with their matched widths and scales."""
        arms = self._at_matched_widths()
        return scaled_arms(self.pretrain.model, arms, self.baseline_arm(), self.matched.scale)

    def _at_matched_widths(self) -> tuple[Arm, ...]:
        if not isinstance(self.matched, EqualParameters):
            return self.arms
        base = self.baseline_arm()
        return equal_widths(self.pretrain.model, self.arms, base, self.matched.tolerance)

    def runs(self) -> Mapping[str, PretrainConfig]:
        """Full training configuration of each arm, by name; the peak learning rate is chosen later.

        With EqualTime, lengths are the baseline's until step times are measured.
        """
        arms = self.matched_arms()
        changed = [scaled_run(arm.pretrain_of(self.pretrain), self.matched.scale) for arm in arms]
        models = [run.model for run in changed]
        total, batch = self.pretrain.total_sequences(), self.pretrain.batch[0].size
        lengths: tuple[int, ...] = (total // batch * batch,) * len(arms)
        if isinstance(self.matched, EqualFlops):
            base = models[[arm.name for arm in arms].index(self.baseline)]
            lengths = equal_work(models, base, self.pretrain.context, lengths[0], batch)
        shares = [arm.overrides.length or 1.0 for arm in arms]
        lengths = tuple(
            max(round(length * share / batch), 1) * batch
            for length, share in zip(lengths, shares, strict=True)
        )
        engine = self._engine()
        return {
            arm.name: replace(
                run, sequences=length, engine=engine, schedule=without_peak(run.schedule)
            )
            for arm, run, length in zip(arms, changed, lengths, strict=True)
        }

    def as_run(self) -> Comparison:
        """This comparison with what its runs have in place of settings: matched widths, engine."""
        engine = replace(self.pretrain, engine=self._engine())
        return replace(self, arms=self._at_matched_widths(), pretrain=_to_its_end(engine))

    def _engine(self) -> EngineConfig:
        engine, kept = self.pretrain.engine, self.average
        if kept is None:
            return engine
        return replace(engine, checkpoint_every=kept.every, keep_checkpoints=kept.last)

    def short(self, run: PretrainConfig, rate: float) -> PretrainConfig:
        """The short tuning run of `run` at learning rate `rate`."""
        batch, share = run.batch[0].size, self.tuning.length
        steps = max(int(run.total_sequences() * share / batch + 1e-9), 1)
        schedule = shortened(replace(run.schedule, peak=rate), share)
        run = replace(run, sequences=steps * batch, schedule=schedule, seed=self.tuning.seed)
        return _to_its_end(replace(run, engine=replace(run.engine, keep_checkpoints=1)))

    def steps(self) -> tuple[Step, ...]:
        """Everything to be done, in order: corpus, tuning, the plan, then all arms seed by seed."""
        piloted = not self.pilot or (Path(self.pilot) / PAGE[0]).is_file()
        validate(
            self,
            ("arms", len(self.arms) >= 2, "must be at least two"),
            ("pilot", piloted, "holds no comparison; name a folder that `stamm compare` wrote"),
        )
        runs = self.runs()
        steps = [*activation_steps(arm.ffn for arm in self.matched_arms()), *self._text_steps()]
        if isinstance(self.matched, EqualTime):
            steps.append(self._step_timing(runs, self.matched))
        for arm, run in runs.items():
            steps += self._tuning_steps(arm, run)
        steps.append(self._plan_step(runs))
        gate = ""
        for number, seed in enumerate(self.seeds, start=1):
            for arm, run in runs.items():
                run = replace(_to_its_end(run), seed=seed, tuned=FINAL)
                steps += [replace(step, unless=gate) for step in self._final_steps(arm, run)]
            if number in self.looks[:-1]:
                look = LookConfig(seeds=number, difference=self.difference)
                steps.append(look_step(look, unless=gate))
                gate = steps[-1].name
        return (*steps, page_step(self.report))

    def _text_steps(self) -> Iterable[Step]:
        if not self.packed:
            return (*corpus_steps(self.corpus), *token_steps(self.tokenizer, self.pack))
        pack = read_record_if_present(PackManifest, Path(self.packed) / "pack" / MANIFEST)
        if pack is None:
            raise ConfigError(
                f"packed = {self.packed} holds no packed corpus",
                fix="Set it to the folder of a run that has packed one, with its tokenizer",
            )
        size = self.pretrain.model.vocab_size
        if size < pack.vocabulary:
            raise ConfigError(
                f"pretrain.model.vocab_size = {size} is smaller than the vocabulary of packed = {self.packed}",
                fix=f"Set pretrain.model.vocab_size={pack.vocabulary} or more",
            )
        if "held_out" in self.evaluate.tasks and HELD_OUT not in pack.splits:
            raise ConfigError(
                f"packed = {self.packed} has no held-out text to evaluate the models on",
                fix="Take a run with corpus.held_out above 0, or set evaluate.tasks",
            )
        return reused_steps(Path(self.packed))

    def planned_looks(self) -> tuple[int, ...]:
        """Seeds after which there is a verdict: `looks`, or all seeds."""
        return self.looks or (len(self.seeds),)

    def _plan_step(self, runs: Mapping[str, PretrainConfig]) -> Step:
        arms = tuple(
            PlannedArm(
                name=name,
                activation=run.model.ffn.spec.name,
                width=run.model.ffn.width,
                parameters=count_parameters(run.model).total,
                sequences=run.total_sequences(),
                tokens=run.total_sequences() * run.context,
                rate=run.schedule.peak,
                output_deviation=output_deviation(run.model),
            )
            for name, run in runs.items()
        )
        config = PlanConfig(
            config_sha256=config_hash(to_plain(self)),
            evaluated=_evaluated(self.average),
            baseline=self.baseline,
            matched=type(self.matched).__name__,
            confidence=self.confidence,
            seeds=self.seeds,
            looks=self.planned_looks(),
            arms=arms,
            difference=self.difference,
            pilot=self.pilot,
        )
        return plan_step(config, {name: f"tune/{name}/chosen/{CHOSEN}" for name in runs})

    def _step_timing(self, runs: Mapping[str, PretrainConfig], matched: EqualTime) -> Step:
        config = StepTimingConfig(
            arms=tuple(
                TimedArm(name=name, pretrain=_to_its_end(run)) for name, run in runs.items()
            ),
            baseline=self.baseline,
            short=self.tuning.length,
            rounds=matched.rounds,
            warmup_steps=matched.warmup_steps,
            steps=matched.steps,
        )
        return step_timing_step(config)

    def _tuning_steps(self, arm: str, run: PretrainConfig) -> list[Step]:
        paced = isinstance(self.matched, EqualTime)
        tuning = self.tuning_of(arm)
        grid = tuning.grid(run)
        shaped = any(factor is not None for _, factor in grid)
        trials = [
            _train(
                f"tune.{arm}.{number}",
                f"tune/{arm}/{number}",
                replace(
                    self.short(_with_shape_factor(run, factor), rate),
                    tuned=f"{arm}.{SHORT}" if paced else "",
                ),
                f"step_timing/{STEP_TIMING}" if paced else "",
            )
            for number, (rate, factor) in enumerate(grid)
        ]
        steps = list(trials)
        for turn in range(self.tuning.refinements):
            config = ChoiceConfig(arm=arm, trials=len(trials), shaped=shaped)
            refine = rate_step(
                "refine", f"refine.{arm}.{turn}", f"refined-{turn}", config, trials, timed=paced
            )
            chosen = f"{refine.folder}/{REFINED}"
            more = [
                _train(
                    f"tune.{arm}.{number}",
                    f"tune/{arm}/{number}",
                    replace(self.short(run, tuning.rates[0]), tuned=str(entry)),
                    chosen,
                )
                for entry, number in enumerate((len(trials), len(trials) + 1))
            ]
            trials += more
            steps += [refine, *more]
        if trials:
            config = ChoiceConfig(
                arm=arm, trials=len(trials), margin=self.tuning.margin, shaped=shaped
            )
        else:
            config = ChoiceConfig(arm=arm, trials=0, rate=tuning.rates[0])
        choose = rate_step("choose", f"choose.{arm}", "chosen", config, trials, timed=paced)
        return [*steps, choose]

    def _final_steps(self, arm: str, run: PretrainConfig) -> list[Step]:
        name, folder = f"{arm}.{run.seed}", f"final/{arm}/{run.seed}"
        train = _train(f"pretrain.{name}", folder, run, f"tune/{arm}/chosen/{CHOSEN}")
        train = replace(train, after=("plan",))
        if self.average is None:
            return [train, self._evaluated(f"evaluate.{name}", folder)]
        average = average_step(f"average.{name}", self.average, folder)
        return [
            train,
            self._evaluated(f"evaluate_final.{name}", folder),
            average,
            self._evaluated(f"evaluate.{name}", average.folder),
        ]

    def _evaluated(self, name: str, folder: str) -> Step:
        return evaluate_step(name, f"{folder}/evaluate", f"{folder}/model", self.evaluate)


def _has_shape_factor(run: PretrainConfig) -> bool:
    """Whether optimizer.shape_lr_factor is the rate of any parameter: a rule of `groups` may take all."""
    groups = grouped(run.optimizer, parameter_shapes(run.model))
    return any(group.label == "shapes" for group in groups)


def _with_shape_factor(run: PretrainConfig, factor: float | None) -> PretrainConfig:
    if factor is None:
        return run
    return replace(run, optimizer=replace(run.optimizer, shape_lr_factor=factor))


def without_peak(schedule: Schedule) -> Schedule:
    """The schedule with the default peak, which tuning replaces."""
    return replace(schedule, peak=type(schedule).peak)


def shortened(schedule: Schedule, share: float) -> Schedule:
    """The schedule of a run of `share` of the length: its numbers of sequences times `share`."""
    shorter = replace(schedule, warmup_sequences=round(schedule.warmup_sequences * share))
    if isinstance(shorter, WarmupStableDecay) and shorter.decay_sequences is not None:
        shorter = replace(shorter, decay_sequences=round(shorter.decay_sequences * share))
    return shorter


def _is_guided(arm: Arm) -> bool:
    structured = arm.overrides.structured
    return structured is not None and structured.guide is not None


def _is_shorter(arm: Arm) -> bool:
    return arm.overrides.length is not None


def _evaluated(average: WeightAverage | None) -> str:
    if average is None:
        return "the final weights"
    return f"the mean of {average.last} weights: the final ones and those every {average.every} steps before"


def _to_its_end(run: PretrainConfig) -> PretrainConfig:
    """`run`, not stopped by a non-finite loss: a diverged arm is a result of the comparison."""
    policy = run.engine.on_nonfinite
    skipping = SkipUpdate(window=policy.window, deviations=policy.deviations, at_most=_ALL_STEPS)
    return replace(run, engine=replace(run.engine, on_nonfinite=skipping))


def _train(name: str, folder: str, config: PretrainConfig, chosen: str = "") -> Step:
    """A training step; `chosen`: file with its chosen settings."""
    tuned = {"tuned": chosen} if chosen else {}
    inputs = {"pack": "pack", "tokenizer": "tokenizer", **tuned}
    return pretrain_step(name, folder, config, inputs)
