"""Search recipe: a family of gradients, screened, trained in rounds, the best one confirmed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from stamm.activations.spec import Spec
from stamm.base.bounds import AtLeastOne, Positive, PositiveShare, Seed
from stamm.base.config import Bounded, to_plain, validate
from stamm.base.errors import ConfigError
from stamm.base.files import sha256_file
from stamm.compare.config import config_hash
from stamm.corpus.inputs import expand
from stamm.models.config import PlainFFN
from stamm.pages.config import ReportConfig
from stamm.recipes.arm import Arm
from stamm.recipes.compare import Comparison, shortened
from stamm.recipes.matching import EqualParameters
from stamm.runs.job import Step
from stamm.search.config import CostConfig, ScreenLimits, SearchPlanConfig
from stamm.search.families import Family, Proposal, proposals
from stamm.search.records import PlannedCandidate
from stamm.search.steps import cost_step, plan_step, screen_steps

RULE = (
    "After each round a candidate is dropped when its corrected interval shows that it is worse than the "
    "baseline, and of the others the best are kept, by their mean over seeds. The best of the last "
    "round is the finalist. It is the winner when every confirmation shows that it is better than the "
    "baseline, each at its own confidence, on seeds and text that the search did not use."
)
CONFIRMED = 0.99  # smallest confidence of a confirmation


@dataclass(frozen=True, kw_only=True)
class Round(Bounded):
    """A round of successive halving: a comparison of the remaining candidates.

    length   of its runs, as a share of those of `compare`
    seeds    of its runs
    rates    learning rates of its tuning, as a shorter run takes higher ones; (): those of `compare`.
             A single one is taken as it is
    keep     largest number of candidates that remain
    """

    length: PositiveShare = 1.0
    seeds: tuple[Seed, ...] = (1, 2)
    rates: tuple[Positive, ...] = ()
    keep: AtLeastOne = 1


@dataclass(frozen=True, kw_only=True)
class Confirmation:
    """A comparison of the finalist with the baseline, in the folder confirm/NAME."""

    name: str
    compare: Comparison

    def __post_init__(self) -> None:
        plain = self.name.replace("_", "")
        validate(
            self, ("name", plain.isalnum() and plain.isascii(), "must be letters, digits and _")
        )


@dataclass(frozen=True, kw_only=True)
class Search:
    """Candidates from families of gradients, and the comparisons that judge them.

    screen    limits of certificate and cost
    compare   the comparison of the rounds; its arms, the baseline among them, are references that
              each round trains beside the candidates, which take the baseline's place
    rounds    of successive halving, the shortest first; the last keeps one
    confirm   comparisons of the finalist, with seeds and text that `compare` does not have

    Raises    ConfigError for a plan whose confirmation would not be one
    """

    families: tuple[Family, ...]
    screen: ScreenLimits = field(default_factory=ScreenLimits)
    compare: Comparison
    rounds: tuple[Round, ...]
    confirm: tuple[Confirmation, ...]
    report: ReportConfig = field(default_factory=ReportConfig)

    def __post_init__(self) -> None:
        names = [confirmation.name for confirmation in self.confirm]
        comparisons = [confirmation.compare for confirmation in self.confirm]
        used = {self.compare.tuning.seed}.union(
            *(search_round.seeds for search_round in self.rounds)
        )
        fresh = {
            seed
            for comparison in comparisons
            for seed in (*comparison.seeds, comparison.tuning.seed)
        }
        sure = all(comparison.confidence >= CONFIRMED for comparison in comparisons)
        plain = all(
            isinstance(comparison.baseline_arm().ffn, PlainFFN)
            for comparison in self._comparisons()
        )
        baselines = {comparison.baseline for comparison in self._comparisons()}
        for broken, problem in (
            (not self.families, "families is empty"),
            (not self.rounds, "rounds is empty"),
            (bool(self.rounds) and self.rounds[-1].keep != 1, "the last round must have keep = 1"),
            (not self.confirm, "confirm is empty: nothing found would be confirmed"),
            (len(set(names)) != len(names), "two confirmations have the same name"),
            (bool(used & fresh), f"confirm has seeds of the search: {sorted(used & fresh)}"),
            (not sure, f"each confirmation must have a confidence of {CONFIRMED:g} or more"),
            (
                any(comparison.packed for comparison in self._comparisons()),
                "a comparison has packed = RUN, but a search and its confirmations read texts of their own",
            ),
            (not plain, "the baseline is gated, and candidates have one input"),
            (
                len(baselines) != 1,
                f"the comparisons differ in baseline: {', '.join(sorted(baselines))}",
            ),
        ):
            if broken:
                raise ConfigError(problem, where="Search", fix="docs/comparisons.md, Search")
        for number in range(len(self.rounds)):
            self.round_of(number, [])  # raises for looks or averages that do not fit the round

    def _comparisons(self) -> tuple[Comparison, ...]:
        return (self.compare, *(confirmation.compare for confirmation in self.confirm))

    def comparisons(self) -> tuple[Comparison, ...]:
        """The comparisons of rounds and confirmations, with one candidate, to see which settings they read."""
        names = [proposal.name for proposal in self.proposals() if proposal.spec is not None][:1]
        if not names:
            return ()
        rounds = [self.round_of(number, names) for number in range(len(self.rounds))]
        confirmations = [self.confirmation(number, names[0]) for number in range(len(self.confirm))]
        return tuple(
            replace(comparison, report=self.report) for comparison in (*rounds, *confirmations)
        )

    def as_run(self) -> Search:
        """This search with the values that the runs of its comparisons use in place of settings."""
        confirm = tuple(
            replace(confirmation, compare=confirmation.compare.as_run())
            for confirmation in self.confirm
        )
        return replace(self, compare=self.compare.as_run(), confirm=confirm)

    def proposals(self) -> tuple[Proposal, ...]:
        """All candidates; some are refused already.

        Raises   ConfigError when one has the name of a reference arm.
        """
        proposed = proposals(self.families)
        taken = {arm.name for comparison in self._comparisons() for arm in comparison.arms}
        both = sorted(taken & {proposal.name for proposal in proposed if proposal.spec is not None})
        if both:
            raise ConfigError(
                f"the families propose {', '.join(both)}, an arm of compare already",
                where="Search",
                fix="Leave it out of one of them",
            )
        return proposed

    def specs(self, names: Sequence[str]) -> list[Spec]:
        """The specs of candidates by name."""
        if not names:
            return []
        known = {proposal.name: proposal.spec for proposal in self.proposals()}
        return [spec for name in names if (spec := known[name]) is not None]

    def steps(self) -> tuple[Step, ...]:
        """Everything before the first training run: the screen, the timing, the plan."""
        self._check_texts()
        proposed = self.proposals()
        specs = tuple(proposal.spec for proposal in proposed if proposal.spec is not None)
        cost = CostConfig(
            baseline=self.compare.baseline_arm().ffn.spec,
            candidates=specs,
            slower=self.screen.slower,
            threads=self.compare.pretrain.engine.threads,
        )
        plan = SearchPlanConfig(
            config_sha256=config_hash(to_plain(self)),
            baseline=self.compare.baseline,
            candidates=tuple(
                PlannedCandidate(name=spec.name, content_hash=spec.content_hash) for spec in specs
            ),
            rounds=tuple(search_round.keep for search_round in self.rounds),
            confirmations=tuple(map(_sentence, self.confirm)),
            rule=RULE,
        )
        return (*screen_steps(proposed, self.screen), cost_step(cost), plan_step(plan))

    def _check_texts(self) -> None:
        """Raise ConfigError where a confirmation reads a file of the search, by whatever name."""
        used = expand(self.compare.corpus.inputs, "compare.corpus.inputs").values()
        for number, confirmation in enumerate(self.confirm):
            where = f"confirm.{number}.compare.corpus.inputs"
            for name, path in expand(confirmation.compare.corpus.inputs, where).items():
                if any(_same_content(path, other) for other in used):
                    raise ConfigError(
                        f"{name} holds a text of the search", where=where, fix="Name other text"
                    )

    def round_of(self, number: int, names: Sequence[str]) -> Comparison:
        """The comparison of round `number`, from 0, among the candidates called `names`."""
        this, base = self.rounds[number], self.compare
        batch = base.pretrain.batch[0].size
        total = max(1, round(base.pretrain.total_sequences() * this.length / batch)) * batch
        share = total / base.pretrain.total_sequences()
        schedule = shortened(base.pretrain.schedule, share)
        pretrain = replace(base.pretrain, sequences=total, schedule=schedule)
        tuning = replace(base.tuning, rates=this.rates or base.tuning.rates)
        arms = tuple(
            replace(
                arm,
                overrides=replace(
                    own,
                    schedule=None if own.schedule is None else shortened(own.schedule, share),
                    rates=None if this.rates else own.rates,
                ),
            )
            for arm in base.arms
            for own in (arm.overrides,)
        )
        comparison = replace(base, arms=arms, pretrain=pretrain, seeds=this.seeds, tuning=tuning)
        return self._with(comparison, names)

    def confirmation(self, number: int, finalist: str) -> Comparison:
        """Comparison `number` of the finalist, from 0."""
        return self._with(self.confirm[number].compare, [finalist])

    def _with(self, comparison: Comparison, names: Sequence[str]) -> Comparison:
        ffn = comparison.baseline_arm().ffn
        arms = [Arm(name=s.name, ffn=replace(ffn, activation=s)) for s in self.specs(names)]
        return replace(comparison, arms=(*comparison.arms, *arms))


def _same_content(path: Path, other: Path) -> bool:
    if path.samefile(other):
        return True
    return path.stat().st_size == other.stat().st_size and sha256_file(path) == sha256_file(other)


def _sentence(confirmation: Confirmation) -> str:
    compare = confirmation.compare
    matched = type(compare.matched).__name__
    tokens = compare.pretrain.total_sequences() * compare.pretrain.context
    size = "" if not isinstance(compare.matched, EqualParameters) else ", equal parameters"
    return (
        f"{confirmation.name}: {matched}{size}, {tokens:,} tokens a run, seeds "
        f"{', '.join(map(str, compare.seeds))}, looks after {', '.join(map(str, compare.planned_looks()))}, "
        f"confidence {compare.confidence:g}"
    )
