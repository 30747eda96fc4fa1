"""`stamm.compare`: execute or resume a comparison, plan it, or compare finished ones by size."""

from __future__ import annotations

import functools
import math
import os
from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module, resources
from pathlib import Path
from typing import TYPE_CHECKING, Any

from stamm.base.config import assignments, from_plain
from stamm.base.errors import ConfigError
from stamm.base.json_text import parse_json
from stamm.base.units import count_text
from stamm.engine.estimate import checkpoint_bytes
from stamm.models.flops import count_parameters
from stamm.pretrain.config import PretrainConfig
from stamm.recipes.compare import Comparison
from stamm.recipes.execute import (
    Recipe,
    RecipeRun,
    recipe_of_verb,
    run_resolved,
    run_root,
)
from stamm.recipes.matching import training_work
from stamm.recipes.run_folder import RunFolder
from stamm.statistics.power import MOST_SEEDS, POWER, Spread, detectable, seeds_needed

if TYPE_CHECKING:  # a plan needs none of the libraries that results need
    from stamm.compare.prediction import LossPrediction
    from stamm.compare.sizes import SizePoint
    from stamm.compare.verdict import Judgement

_LARGE = 2.0  # standard deviations; a plan that detects only more has too few seeds
_MORE = (8, 16, 32)


class ComparisonFolder(RunFolder):
    """The folder of a comparison.

    others   folders of comparisons that it is compared with by size
    """

    others: tuple[Path, ...]

    def __init__(
        self, root: str | os.PathLike[str], *others: str | os.PathLike[str], execution: Any = None
    ) -> None:
        super().__init__(root, execution)
        object.__setattr__(self, "others", tuple(Path(folder) for folder in others))

    @property
    def judgement(self) -> Judgement:
        """The verdict."""
        judgement: Judgement = import_module("stamm.compare.job").judgement_in(self.root)
        return judgement

    @property
    def sizes(self) -> list[SizePoint]:
        """Differences of this comparison and the others by size."""
        sizes = import_module("stamm.compare.sizes")
        points: list[SizePoint] = sizes.size_points([self.root, *self.others])
        return points

    def predict(self, parameters: float, tokens: float) -> LossPrediction:
        """Losses at a size and a length that were not run, from this comparison and the others."""
        module = import_module("stamm.compare.prediction")
        baseline, points = module.loss_points([self.root, *self.others])
        prediction: LossPrediction = module.predict_losses(points, baseline, parameters, tokens)
        return prediction


def compare(
    recipe: Recipe,
    *changes: str,
    out: str | os.PathLike[str] | None = None,
    quiet: bool = False,
    jobs: int = 1,
    restart: bool = False,
    dry_run: bool = False,
    before: Callable[[RecipeRun], None] | None = None,
    **settings: Any,
) -> ComparisonFolder:
    """Execute or resume a comparison; of folders of finished ones, compare them by size.

        stamm.compare("smoke", seeds=[1, 2, 3]).judgement
        stamm.compare("runs/small", "runs/large").sizes
        stamm.compare(*folders).predict(parameters=2.6e6, tokens=5.2e7)

    recipe      as of `stamm.run`: "smoke" is "compare.smoke" here; or a folder, and `changes` are others
    dry_run     execute nothing; `arm_costs` and `power_lines` of `execution.recipe.config` have the
                costs and the power of the result
    The other arguments are those of `stamm.run`.

    Raises      StammError with what is wrong and the fix
    """
    if isinstance(recipe, str | os.PathLike) and Path(recipe).joinpath("config.json").is_file():
        if settings:
            raise ConfigError(
                f"{next(iter(settings))} is set, but {recipe} is a finished comparison",
                fix="Leave it out, or name a recipe",
            )
        return ComparisonFolder(recipe, *changes)
    named = recipe_of_verb(recipe, assignments(changes, settings), "compare", Comparison)
    root = run_root(recipe, named, out)
    comparison_run = run_resolved(
        named, root, quiet=quiet, jobs=jobs, restart=restart, dry_run=dry_run, before=before
    )
    return ComparisonFolder(comparison_run, execution=comparison_run.execution)


@dataclass(frozen=True, kw_only=True)
class ArmCost:
    """Runs and cost of one arm of a comparison.

    run, short     its training run, and that of its tuning
    trials         number of runs of its tuning
    flops, disk    useful work, and bytes of checkpoints and models, of all its runs
    """

    name: str
    run: PretrainConfig
    short: PretrainConfig
    trials: int
    flops: int
    disk: int


def arm_costs(config: Comparison) -> list[ArmCost]:
    """Costs of the arms of a comparison, tuning included."""
    costs, seeds = [], len(config.seeds)
    for name, run in config.runs().items():
        tuning = config.tuning_of(name)
        trials = tuning.trials(run)
        short = config.short(run, tuning.rates[0])
        costs.append(
            ArmCost(
                name=name,
                run=run,
                short=short,
                trials=trials,
                flops=trials * run_flops(short) + seeds * run_flops(run),
                disk=_disk(run, seeds) + _disk(short, trials),
            )
        )
    return costs


def power_lines(config: Comparison) -> list[str]:
    """Lines on the difference that the plan shows, and on the seeds that `config.difference` needs."""
    looks, others = config.planned_looks(), len(config.arms) - 1
    units = detectable(looks, others, config.confidence)
    family = f"after Holm over {others} comparisons" if others > 1 else "in one comparison"
    planned = f"{looks[-1]} seeds" + (
        f", looks after {', '.join(map(str, looks))}" if looks[1:] else ""
    )
    said = [
        f"With {planned}, a difference of {units:.2f} standard deviations of the paired difference is "
        f"shown with power {POWER:g} {family}."
    ]
    if units > _LARGE:
        more = [(n, detectable((n,), others, config.confidence)) for n in _MORE if n > looks[-1]]
        shown = "; ".join(f"{n} seeds show {least:.1f}" for n, least in more)
        said[0] += f" {looks[-1]} seeds are few: {shown}."
    spread = _spread(config)
    if spread is None:
        return [*said, _nearest_line(config, units)]
    said.append(
        f"Pilot {config.pilot}: {spread.value:.4f} bits per byte over {spread.seeds} seeds (95 % interval "
        f"{spread.low:.4f} to {spread.high:.4f}), so the plan shows {units * spread.value:.4f} "
        f"({units * spread.low:.4f} to {units * spread.high:.4f})."
    )
    if config.difference is not None:
        counts = [
            seeds_needed(config.difference / deviation, looks, others, config.confidence)
            for deviation in (spread.value, spread.low, spread.high)
        ]
        needed, low, high = (f"more than {MOST_SEEDS:,}" if n is None else f"{n:,}" for n in counts)
        tokens = config.pretrain.total_sequences() * config.pretrain.context * (counts[0] or 0)
        cost = f", {count_text(tokens)} tokens of each arm" if tokens else ""
        said.append(
            f"A difference of {config.difference:g} needs {needed} seeds ({low} to {high}){cost}."
        )
    return said


def _nearest_line(config: Comparison, units: float) -> str:
    """The difference in bits per byte by the spread of the nearest finished study."""
    run = config.runs()[config.baseline]
    parameters = count_parameters(run.model).total
    tokens = run.total_sequences() * run.context
    if not tokens:
        return (
            "Without a length the difference in bits per byte is unknown: set pretrain.sequences."
        )
    study = _nearest_study(parameters, tokens, tuple(arm.name for arm in config.arms))
    size, length = parameters / study.parameters, tokens / study.tokens
    away = f"; this plan has {size:.2g} times its parameters and {length:.2g} times its tokens"
    return (
        f"The nearest finished study, {study.study} ({count_text(study.parameters)} parameters, "
        f"{count_text(study.tokens)} tokens, {study.seeds} seeds), has a standard deviation of "
        f"{study.value:.4f} bits per byte ({study.low:.4f} to {study.high:.4f}), with which the plan shows "
        f"{units * study.value:.4f}{'' if 0.9 < size < 1.1 and 0.9 < length < 1.1 else away}. "
        "pilot=FOLDER takes a comparison of your own."
    )


def _spread(config: Comparison) -> Spread | None:
    if not config.pilot:
        return None
    names = [arm.name for arm in config.arms]
    plan_job = import_module("stamm.compare.plan_job")
    spread: Spread = plan_job.pilot_spread(config.pilot, config.baseline, names)
    return spread


def run_flops(run: PretrainConfig) -> int:
    """Useful work of a training run, in FLOPs."""
    sequences, batch = run.total_sequences(), run.batch[0].size
    return round(training_work(run.model, run.context, sequences // batch, batch))


def _disk(run: PretrainConfig, times: int) -> int:
    """Bytes written by `times` runs: kept checkpoints, the one before the decay, and the model."""
    steps = run.batches(run.total_sequences()).num_steps
    kept = min(run.engine.keep_checkpoints, -(-steps // run.engine.checkpoint_every)) + 1
    model = 4 * count_parameters(run.model).total
    return times * (kept * checkpoint_bytes(run.model, run.optimizer) + model)


@dataclass(frozen=True, kw_only=True)
class StudySpread:
    """Standard deviation of the paired difference over seeds in a finished study, in bits per byte.

    value       pooled over its arms against its baseline
    low, high   95 % interval of the value
    """

    study: str
    parameters: int
    tokens: int
    seeds: int
    arms: tuple[str, ...]
    value: float
    low: float
    high: float


@functools.cache
def _finished_studies() -> tuple[StudySpread, ...]:
    """The committed studies: compare/spreads.json, which `python -m tools.evidence` writes from docs/evidence."""
    rows = parse_json((resources.files(__package__) / "spreads.json").read_bytes())
    return tuple(from_plain(StudySpread, row) for row in rows)


def _nearest_study(parameters: int, tokens: int, arms: tuple[str, ...]) -> StudySpread:
    """The finished study nearest to a plan in size and length; of equally near ones, that with most of its arms.

    parameters, tokens   of an arm of the plan
    """

    def distance(study: StudySpread) -> tuple[float, int, int]:
        away = abs(math.log(study.parameters / parameters)) + abs(math.log(study.tokens / tokens))
        # Arms of one study differ by a few parameters.
        return round(away, 2), -len(set(study.arms) & set(arms)), -study.seeds

    return min(_finished_studies(), key=distance)
