"""The verdict of a comparison: a table with a line for each arm, and sentences."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from stamm.base.units import count_text
from stamm.compare.noise import outlying_document
from stamm.compare.plan_job import Registration, registration
from stamm.compare.results import Compared, ComparedArm, read_comparison
from stamm.pages.formatting import ABSENT, fixed, percent, signed, table_lines
from stamm.pages.text import one_line
from stamm.statistics.intervals import ConfidenceInterval, Difference, differences, interval
from stamm.statistics.power import smallest_shown
from stamm.statistics.sequential import reached, shares_of

_DIGITS = 4
_FEWEST_STEPS = 8


@dataclass(frozen=True, kw_only=True)
class ArmLine:
    """One arm's line. None where nothing was measured yet.

    diverged     seeds with which it did; then bits and nats have no mean and no interval
    bits, nats   held-out loss over seeds, in bits per byte and in nats per token
    difference   of bits per byte, against the baseline
    log_tokens   ln of the tokens to an equal loss, over the baseline's (`log_token_ratio`)
    flops, tokens, seconds   of one run that counts, in the mean; seconds are of training alone
    """

    name: str
    number: int
    activation: str | None
    width: int | None
    parameters: int | None
    rate: float | None
    shape_factor: float | None
    at_edge: bool
    factor_at_edge: bool
    diverged: tuple[int, ...]
    bits: ConfidenceInterval | None
    nats: ConfidenceInterval | None
    difference: Difference | None
    log_tokens: ConfidenceInterval | None
    flops: float | None
    tokens: float | None
    seconds: float | None
    tuning_seconds: float


@dataclass(frozen=True, kw_only=True)
class Judgement:
    """The result of a comparison.

    sentences     findings, most important first
    plan_sha256   of plan.json; "" where no plan was written
    exploratory   whether what was run deviates from the plan, or there is none
    """

    baseline: str
    confidence: float
    lines: tuple[ArmLine, ...]
    sentences: tuple[str, ...]
    plan_sha256: str = ""
    exploratory: bool = False

    def columns(self) -> tuple[str, ...]:
        """Headings of the table, in the order of `cells`."""
        level = percent(self.confidence, 0)
        return (
            "arm", "learning rate", "bits per byte, mean", f"interval, {level}", "seeds",
            f"against {one_line(self.baseline, 24)}", "interval, corrected", "p, corrected",
            "difference",
        )  # fmt: skip

    def cells(self, line: ArmLine) -> tuple[str, ...]:
        """The texts of one line."""
        bits, difference = line.bits, line.difference
        base = next((line.diverged for line in self.lines if line.name == self.baseline), ())
        if line.name == self.baseline:
            against = ("baseline", "", "", "")
        elif line.diverged or base:
            said = "neither" if line.diverged and base else "loses" if line.diverged else "wins"
            against = ("no mean", "", "", said)
        else:
            against = _against(difference)
        return (
            one_line(line.name, 40),
            _rate(line),
            "diverged" if line.diverged else fixed(bits.mean if bits else None, _DIGITS),
            span(bits, signs=False),
            str(bits.count) if bits else "0",
            *against,
        )

    def text(self) -> str:
        """The table and the sentences as plain lines for a terminal."""
        head = (
            "arm", "rate", "bits/byte", f"{percent(self.confidence, 0)} interval", "seeds",
            f"vs {one_line(self.baseline, 24)}", "interval", "p (Holm)", "difference",
        )  # fmt: skip
        rows = [head, *(self.cells(line) for line in self.lines)]
        return "\n".join([*table_lines(rows, words=len(head)), "", *self.sentences])

    def table(self) -> list[tuple[int, tuple[str, ...], str]]:
        """Number and texts of each line; none has a mark."""
        return [(line.number, self.cells(line), "") for line in self.lines]


def judged(run_folder: Path) -> tuple[Compared, Judgement]:
    """The comparison in `run_folder` and its verdict, which names its plan.

    Raises   as `read_comparison` and `registration`
    """
    compared = read_comparison(run_folder)
    registered = registration(run_folder, compared)
    return compared, judge_comparison(compared, registered=registered)


def judge_comparison(
    compared: Compared, seeds: int | None = None, registered: Registration | None = None
) -> Judgement:
    """The verdict of a comparison, finished or not, at the last planned look that it reached.

    seeds        take only so many seeds; None: all that are finished
    registered   its plan, named in the sentences; None: not asked
    """
    whole, looks = compared, compared.looks
    finished = compared.finished() if seeds is None else seeds
    compared, look = at_last_look(compared, finished)
    bits = {arm.name: arm.judged() for arm in compared.arms}
    by_arm: dict[str, Difference] = {}
    if bits.get(compared.baseline) and look is not None:
        shares = shares_of(looks) if looks else (1.0,)
        pairs = differences(bits, compared.baseline, compared.confidence, shares, look)
        by_arm = {difference.name: difference for difference in pairs}
    lines = tuple(_line(arm, compared, by_arm.get(arm.name)) for arm in compared.arms)
    sentences = _sentences(compared, lines)
    if looks:
        sentences.insert(len(lines) - 1 if by_arm else 1, _progress(whole, look, finished))
    if registered is not None and by_arm:
        sentences += [*_scale(compared, registered), _planned(registered)]
    return Judgement(
        baseline=compared.baseline,
        confidence=compared.confidence,
        lines=lines,
        sentences=tuple(sentences),
        plan_sha256=registered.sha256 if registered else "",
        exploratory=bool(registered and registered.deviations),
    )


def at_last_look(compared: Compared, finished: int) -> tuple[Compared, int | None]:
    """The comparison up to the last planned look that `finished` seeds reach, and its number from 0.

    Edge     without looks all of it, and 0; before the first look all of it, and None
    """
    looks = compared.looks
    look = reached(looks, finished) if looks else 0
    return (compared.first(looks[look]) if looks and look is not None else compared), look


def span(interval: ConfidenceInterval | None, *, signs: bool) -> str:
    """The ends of an interval as text: "1.2340 to 1.2360"; "no interval" where there is none."""
    if interval is None:
        return ABSENT
    if interval.low is None or interval.high is None:
        return "no interval"
    write = signed if signs else fixed
    return f"{write(interval.low, _DIGITS)} to {write(interval.high, _DIGITS)}"


def _rate(line: ArmLine) -> str:
    """The chosen learning rate, and that of the shapes as its multiple where it was tuned."""
    if line.rate is None:
        return ABSENT
    shapes = "" if line.shape_factor is None else f", shapes x {line.shape_factor:g}"
    factor_edge = " (edge)" if line.factor_at_edge else ""
    return f"{line.rate:.3g}" + (" (edge)" if line.at_edge else "") + shapes + factor_edge


def _against(difference: Difference | None) -> tuple[str, str, str, str]:
    if difference is None:
        return (ABSENT, "", "", "")
    return (
        signed(difference.interval.mean, _DIGITS),
        span(difference.interval, signs=True),
        "" if difference.adjusted is None else f"{difference.adjusted:.3g}",
        "shown" if difference.shown else "not shown",
    )


def _line(arm: ComparedArm, compared: Compared, difference: Difference | None) -> ArmLine:
    bits, nats = arm.judged(), {**arm.nats(), **dict.fromkeys(arm.diverged, math.inf)}
    confidence = compared.confidence
    summaries = [run.training.summary for run in arm.runs if run.training.summary]
    timings = [run.training.timing for run in arm.runs if run.training.timing]
    first = arm.runs[0].training if arm.runs else None
    return ArmLine(
        name=arm.name,
        number=arm.number,
        activation=first.activation if first else None,
        width=first.ffn_width if first else None,
        parameters=summaries[0].parameters if summaries else None,
        rate=arm.rate,
        shape_factor=arm.shape_factor,
        at_edge=arm.at_edge,
        factor_at_edge=arm.factor_at_edge,
        diverged=arm.diverged,
        bits=interval(list(bits.values()), confidence) if bits else None,
        nats=interval(list(nats.values()), confidence) if nats else None,
        difference=difference,
        log_tokens=_log_tokens(arm, compared),
        flops=_mean([summary.flops for summary in summaries]),
        tokens=_mean([summary.trained_tokens for summary in summaries]),
        seconds=_mean([timing.seconds for timing in timings]),
        tuning_seconds=arm.tuning_seconds,
    )


def _log_tokens(arm: ComparedArm, compared: Compared) -> ConfidenceInterval | None:
    """None where a learning rate warms up or decays in the fitted steps of any run (cosine schedules)."""
    base = next(candidate for candidate in compared.arms if candidate.name == compared.baseline)
    if arm.name == base.name:
        return None
    rivals = {run.seed: run for run in base.runs}
    ratios = []
    for run in arm.runs:
        rival = rivals.get(run.seed)
        mine, other = run.plateau(), rival.plateau() if rival else None
        if rival is None or mine is None or other is None:
            continue
        first, last = max(mine[0], other[0]), min(mine[1], other[1])
        if first > last / 2:
            continue
        ratio = log_token_ratio(run.curve(), rival.curve(), last)
        ratios += [] if ratio is None else [ratio]
    return interval(ratios, compared.confidence) if len(ratios) == len(arm.runs) > 1 else None


def log_token_ratio(
    arm: Mapping[int, float], baseline: Mapping[int, float], stable: int
) -> float | None:
    """ln(tokens that the arm needs / tokens that the baseline needs) for an equal loss; below 0: fewer.

    Held-out loss is measured at the end only, so training losses are compared: of arms of one seed, which
    read the same text in the same order, before either learning rate decays. In the second half of those
    steps each loss is fitted by a + b ln(step); noise of the text is in both and leaves the difference.

    arm, baseline   training loss by step
    stable          the last step before either learning rate decays; by half of it both are at their peak

    The better one's curve is followed back to the loss that the other one has at `stable`, so that
    nothing is extrapolated.

    Edge     None with fewer than 8 common steps, where a fitted loss does not fall, and where the
             better one reached that loss before the fitted steps (with fewer than half of the tokens)
    Checked  tests/unit/compare/test_tokens_to_loss.py (curves of known ratio)
    """
    steps = sorted(
        step
        for step in arm.keys() & baseline.keys()
        if stable / 2 < step <= stable and math.isfinite(arm[step] + baseline[step])
    )
    if len(steps) < _FEWEST_STEPS:
        return None
    places = [math.log(step) for step in steps]
    fit, base_fit = (_fitted(places, [curve[step] for step in steps]) for curve in (arm, baseline))
    end = math.log(stable)
    ends = [level + slope * end for level, slope in (fit, base_fit)]
    (level, slope), wanted, sign = (
        (fit, ends[1], 1) if ends[0] <= ends[1] else (base_fit, ends[0], -1)
    )
    if slope >= 0:
        return None
    earlier = (wanted - level) / slope - end
    return sign * earlier if earlier >= -math.log(2) else None


def _fitted(places: Sequence[float], losses: Sequence[float]) -> tuple[float, float]:
    slope, level = statistics.linear_regression(places, losses)
    return level, slope


def _mean(values: Sequence[float]) -> float | None:
    return math.fsum(values) / len(values) if values else None


def _sentences(compared: Compared, lines: Sequence[ArmLine]) -> list[str]:
    judged = [line for line in lines if line.difference is not None]
    if not judged:
        return ["No two arms have been evaluated yet: nothing can be compared."]
    base = next(line for line in lines if line.name == compared.baseline)
    others = len(lines) - 1
    said = _leads(judged, base)
    said += [_divergence(line, base, compared) for line in judged if line.diverged or base.diverged]
    said += _shortfalls(compared, lines)
    said += [_fairness(compared, lines), _certainty(compared, others)]
    if any(line.log_tokens for line in lines):
        said.append(
            "Tokens to an equal loss are read from training losses while both learning rates are at their "
            "peak, of arms that read the same text in the same order, with an interval over seeds: "
            "held-out loss is measured at the end only."
        )
    return said


def _leads(judged: Sequence[ArmLine], base: ArmLine) -> list[str]:
    """The verdict about each arm."""
    if base.diverged:
        reference = one_line(base.name, 40)
        return [f"{reference}, the baseline, diverged: the others cannot be compared with it."]
    order = {"shown": 0, "not shown": 1}
    leads = [(_lead(line, base), line) for line in judged if not line.diverged]
    leads.sort(
        key=lambda lead: order[
            "shown" if lead[1].difference and lead[1].difference.shown else "not shown"
        ]
    )
    gone = [one_line(line.name, 40) for line in judged if line.diverged]
    lost = [f"Diverged, and so lost: {', '.join(gone)}."] if gone else []
    return lost + [said for said, _ in leads]


def _lead(line: ArmLine, base: ArmLine) -> str:
    name, reference, difference = one_line(line.name, 40), one_line(base.name, 40), line.difference
    assert difference is not None
    subject = name + _length_text(line, base)
    ends = difference.interval
    if ends.low is None or ends.high is None or difference.adjusted is None:
        return f"{subject} is not shown to differ from {reference}: two seeds are needed."
    if not difference.shown:
        return (
            f"{subject} is not shown to differ from {reference}: any difference above "
            f"{fixed(max(-ends.low, ends.high), 3)} bits per byte is excluded."
        )
    half = (ends.high - ends.low) / 2
    side = "better" if ends.mean < 0 else "worse"
    at = ""
    if base.parameters is not None and base.tokens is not None:
        at = f" at {count_text(base.parameters)} parameters and {count_text(base.tokens)} tokens"
    holds_0 = (
        "; the interval, which holds together with those of all arms, has 0 in it"
        if ends.low <= 0 <= ends.high
        else ""
    )
    return (
        f"{subject} is {side} than {reference} by {fixed(abs(ends.mean), 3)} ± {fixed(half, 3)} bits "
        f"per byte{at} ({_p_text(difference.adjusted)}{holds_0})"
        f"{_tokens_text(reference, line.log_tokens)}."
    )


def _length_text(line: ArmLine, base: ArmLine) -> str:
    """ ", with 30 % fewer tokens,": of an arm whose length is not the baseline's; "" up to 0.5 %."""
    share = line.tokens / base.tokens - 1 if line.tokens and base.tokens else 0.0
    if abs(share) <= 0.005:
        return ""
    return f", with {percent(abs(share), 0)} {'fewer' if share < 0 else 'more'} tokens,"


def _tokens_text(reference: str, ratio: ConfidenceInterval | None) -> str:
    """ "; to reach swiglu's loss it needs 12 % fewer tokens (95 % interval 9 % to 15 %)"."""
    if ratio is None or ratio.low is None or ratio.high is None:
        return ""
    fewer = ratio.mean < 0
    ends = sorted(
        -math.expm1(-abs(ratio.mean) + sign * (ratio.high - ratio.mean)) for sign in (1, -1)
    )
    told = f"{percent(-math.expm1(-abs(ratio.mean)), 0)} fewer tokens"
    who = f"to reach {reference}'s loss it" if fewer else f"to reach its loss {reference}"
    return f"; {who} needs {told} ({percent(ends[0], 0)} to {percent(ends[1], 0)})"


def _p_text(chance: float) -> str:
    return next((f"p < {edge}" for edge in (0.001, 0.01) if chance < edge), f"p = {chance:.2g}")


def _progress(compared: Compared, look: int | None, finished: int) -> str:
    looks = compared.looks
    if look is None:
        return f"No verdict yet: the first look is after {looks[0]} seeds, and {finished} are finished."
    said = f"This is look {look + 1} of {len(looks)}, after {looks[look]} of at most {looks[-1]} seeds."
    if compared.stopped == looks[look] != looks[-1]:
        return f"{said} The comparison stopped here, as planned: every arm is decided."
    waiting = finished - looks[look]
    return f"{said} Finished seeds that the next look will count: {waiting}." if waiting else said


SCALES = {
    "EqualStart": "equal scale at the start",
    "LearnedScale": "a learned scale in every arm",
}


def _scale(compared: Compared, registered: Registration) -> list[str]:
    """The sentence on the scale of the blocks, which changes losses of short runs more than the function does."""
    if compared.scale == "LearnedScale":
        return [
            "Every arm has one trained factor a layer on its activation, whose rate is the same multiple "
            "of the arm's own."
        ]
    if not registered.output_deviations:
        return []
    values = {name: f"{value:.3g}" for name, value in registered.output_deviations.items()}
    if compared.scale == "EqualStart":
        return [
            "Constants on the activations give the outputs of all blocks the standard deviation "
            f"{next(iter(values.values()))} at the start."
        ]
    if len(set(values.values())) == 1:
        return []
    by_arm = ", ".join(f"{one_line(name, 40)} {value}" for name, value in values.items())
    return [
        f"Scale is not matched: the outputs of blocks start with the standard deviations {by_arm}. A "
        "difference may be one of scale, not of functions: matched.scale separates them."
    ]


def _planned(registered: Registration) -> str:
    if registered.deviations:
        return f"Exploratory: {'; '.join(registered.deviations)}."
    return (
        "Arms, rates, seeds, looks and the primary measure were planned before the first counted "
        f"run: plan.json, SHA-256 {registered.sha256}."
    )


def _divergence(line: ArmLine, base: ArmLine, compared: Compared) -> str:
    name, reference = one_line(line.name, 40), one_line(base.name, 40)
    told = f"{name} diverged {_with(line.diverged, compared)}"
    if not base.diverged:
        return f"{told}: it loses to {reference}, which did not. No mean is given for it."
    if line.diverged:
        return f"{told}, and so did {reference}: neither is better."
    return (
        f"{name} did not diverge, and {reference} did {_with(base.diverged, compared)}: "
        f"{reference} loses. No mean is given for it."
    )


def _with(seeds: Sequence[int], compared: Compared) -> str:
    named = f"seed{'s' * (len(seeds) > 1)} {', '.join(map(str, seeds))}"
    return f"with {named} of {len(compared.seeds)}"


def _certainty(compared: Compared, others: int) -> str:
    seeds, confidence = len(compared.seeds), compared.confidence
    looks = compared.looks or (seeds,)
    smallest = smallest_shown(looks, others, confidence, looks.index(seeds))
    first = f"the clearest of {others} differences" if others > 1 else "a difference"
    freedom = f"{seeds - 1} degree{'s' * (seeds > 2)} of freedom"
    return (
        f"Intervals are over {seeds} seeds, arms paired seed by seed: Student's t with {freedom}, "
        "which takes differences to be normal over seeds, and so few seeds cannot tell whether "
        "they are. Of all these comparisons together, one that shows a difference where there is "
        f"none is then expected in at most {percent(1 - confidence, 0)} of such experiments. Not "
        f"shown is not equal: {first} is shown from "
        f"{fixed(smallest, 1)} times its standard deviation over seeds. "
        "All of it is about other seeds of this corpus, size, length, initialisation and these "
        "learning rates, not about other ones: an order of activations can change with the scale of "
        "the feed-forward block's output at the start."
    )


def _shortfalls(compared: Compared, lines: Sequence[ArmLine]) -> list[str]:
    said = []
    edge = [one_line(line.name, 40) for line in lines if line.at_edge]
    if edge:
        said.append(
            f"The best learning rate lies at the edge of what was tried for {', '.join(edge)}: "
            "there may be a better one beyond it."
        )
    factor_edge = [one_line(line.name, 40) for line in lines if line.factor_at_edge]
    if factor_edge:
        said.append(
            "The best factor of the shapes' rate lies at the edge of what was tried for "
            f"{', '.join(factor_edge)}: there may be a better one beyond it."
        )
    lost = [
        one_line(arm.name, 40)
        for arm in compared.arms
        if arm.trials and all(trial.loss_nats is None for trial in arm.trials)
    ]
    if lost:
        said.append(
            f"No short run ended with a finite loss for {', '.join(lost)}: the lowest rate was taken."
        )
    if any(line.diverged for line in lines):
        said.append(
            "A run diverged when its loss ended non-finite, or above that of its first step."
        )
    skipped = _left_out(compared)
    if skipped:
        said.append(f"Updates skipped for a non-finite loss: {', '.join(skipped)}.")
    short = [
        f"{one_line(line.name, 40)}: {line.bits.count if line.bits else 0}"
        for line in lines
        if (line.bits.count if line.bits else 0) < len(compared.seeds)
    ]
    if short:
        said.append(f"Not all of {len(compared.seeds)} seeds are there ({', '.join(short)}).")
    return [*said, *_outliers(compared)]


def _outliers(compared: Compared) -> list[str]:
    """A sentence for each arm whose spread over seeds is mostly that of one held-out document."""
    return [
        f"Most of the spread over seeds of {one_line(arm.name, 40)}'s difference is one held-out document, "
        f"{one_line(document.document, 40)}: without it the difference is {signed(document.mean, 4)}, with a "
        f"standard deviation of {fixed(document.deviation, 4)}."
        for arm in compared.arms
        if arm.name != compared.baseline and (document := outlying_document(compared, arm))
    ]


def _left_out(compared: Compared) -> list[str]:
    skipped = []
    for arm in compared.arms:
        summaries = [run.training.summary for run in arm.runs]
        events = [
            e.kind for summary in summaries if summary is not None for e in summary.events or ()
        ]
        if count := events.count("non-finite loss"):
            skipped.append(f"{one_line(arm.name, 40)} {count:,}")
    return skipped


def _fairness(compared: Compared, lines: Sequence[ArmLine]) -> str:
    trials = {len(arm.trials) for arm in compared.arms}
    effort = (
        f"Each arm's learning rate was chosen from {min(trials)} short runs"
        if len(trials) == 1
        else f"Arms were tuned with {min(trials)} to {max(trials)} short runs"
    )
    if compared.matched == "parameters":
        sizes = [line.parameters for line in lines if line.parameters is not None]
        equal = f"Parameters differ by at most {max(sizes) - min(sizes):,} of {max(sizes):,}"
    elif compared.matched == "FLOPs":
        equal = f"Work differs by at most {_spread([line.flops for line in lines])}"
    else:
        equal = (
            "Lengths were set so that training takes the same time; the times measured in the end "
            f"differ by at most {_spread([line.seconds for line in lines])}"
        )
    if trials == {0}:
        return f"{equal}. Learning rates are those of the configuration; none was tuned here."
    return (
        f"{equal}. {effort} of {percent(compared.short, 0)} of the length, by the training loss at "
        "their ends, with a seed of their own."
    )


def _spread(values: Sequence[float | None]) -> str:
    there = [value for value in values if value is not None]
    largest = max(there, default=0.0)
    return percent((largest - min(there)) / largest, 2) if largest else ABSENT
