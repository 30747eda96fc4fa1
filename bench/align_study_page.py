"""Tables and figures of `bench.align_study`: intervals over blocks of prompts and seeds.

An interval is that of `align.results.bootstrap.Bootstrap`, whose prompts are here blocks of ten
consecutive ones. Letters: S seeds, B blocks.
"""

from __future__ import annotations

import functools
import statistics
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import TypeVar

import numpy as np

from bench.align_study_plan import (
    BEST_OF,
    FEW,
    MORE_BETA,
    SETTINGS,
    SWEEP,
    SWEEP_RATE,
    Line,
    chosen,
)
from bench.align_study_run import STEPS
from bench.align_truth_page import interval
from stamm.align.results.answer_metrics import OptimumCurve
from stamm.losses.quantile import optimum_kl, optimum_mean_quantile
from stamm.statistics.bootstrap import Array, Bootstrap
from stamm.statistics.intervals import holm

DRAWS = 4000
BySeed = dict[int, Array]
Key = TypeVar("Key")
_USUAL_HEAD = ("KL, nats", "mean quantile", "below the curve")
CURVE = OptimumCurve()
_USUAL = {
    "rho": 0.0, "noise": 0.0, "references": 16, "source": "own", "answers": 4, "reward": "gold",
    "split": "test", "steps": STEPS,
}  # fmt: skip


def select(lines: Sequence[Line], **conditions: object) -> list[Line]:
    """The runs that are usual except for `conditions`, by seed."""
    wanted = {**_USUAL, **conditions}
    found = [
        x for x in lines if "arm" in x and all(x.get(key) == value for key, value in wanted.items())
    ]
    return sorted(found, key=lambda x: x["seed"])


def at_chosen(lines: Sequence[Line], arm: str, **conditions: object) -> list[Line]:
    """The runs of an arm at its chosen setting."""
    rate, beta = chosen(lines)["dpo" if arm == "dpo, smoothed" else arm]
    return select(lines, arm=arm, rate=rate, beta=beta, **conditions)


def blocks(lines: Sequence[Line], name: str) -> Array:
    """A measure of each seed and block, (S, B); "below" is the distance to the frontier.

    below   frontier(mean KL of the seed) - mean quantile, in blocks to first order
    """
    if name != "below":
        return np.array([x["blocks"][name] for x in lines])
    kl, quantile = blocks(lines, "kl"), blocks(lines, "quantile")
    mean = kl.mean(axis=1, keepdims=True)
    slope = (CURVE.quantile(mean + 1e-3) - CURVE.quantile(mean - 1e-3)) / 2e-3
    return CURVE.quantile(mean) + slope * (kl - mean) - quantile


@functools.cache
def _bootstrap(count: int, seeds: int) -> Bootstrap:
    return Bootstrap(count, seeds, DRAWS, 1, 0.95)


def difference(both: Array) -> tuple[float, float, float]:
    """Mean over seeds and blocks (S, B), half its 95 % interval, and the p of 0."""
    bootstrap = _bootstrap(both.shape[1], len(both))
    draws = bootstrap.draws(both)
    low, high = np.percentile(draws, [2.5, 97.5])
    return float(both.mean()), float(high - low) / 2, bootstrap.p_value(draws, 0.0)


def shown(value: Array | Sequence[Line], name: str = "", digits: int = 3) -> str:
    """Mean ± half the interval."""
    array = value if isinstance(value, np.ndarray) else blocks(value, name)
    mean, half, _ = difference(array)
    return f"{mean:.{digits}f} ± {half:.{digits}f}"


def by_seed(lines: Sequence[Line], name: str) -> BySeed:
    """A measure of the blocks, by seed."""
    return {x["seed"]: row for x, row in zip(lines, blocks(lines, name), strict=True)}


def minus(first: BySeed, second: BySeed) -> BySeed:
    """The differences of the seeds that both have."""
    return {seed: row - second[seed] for seed, row in first.items() if seed in second}


def compared(family: Mapping[Key, BySeed], digits: int = 3) -> dict[Key, str]:
    """Mean ± half the interval of each; * where 0 is refused after Holm's correction over all."""
    found = {
        key: difference(np.stack(list(of.values()))) for key, of in family.items() if len(of) > 1
    }
    names = {str(key): p for key, (_, _, p) in found.items()}
    adjusted = holm(names)
    return {
        key: f"{mean:+.{digits}f} ± {half:.{digits}f}{' *' if adjusted[str(key)] < 0.05 else ''}"
        for key, (mean, half, _) in found.items()
    }


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table in Markdown."""
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(row) + " |" for row in lines)


def page(lines: Sequence[Line]) -> str:
    """The table of each question that has lines, with its name."""
    found = {name: make(lines) for name, make in TABLES.items()}
    return "\n\n".join(f"{name}\n\n{text}" for name, text in found.items() if text)


def _tuning(lines: Sequence[Line]) -> str:
    best, rows = chosen(lines), []
    for arm, settings in SETTINGS.items():
        cells = []
        for rate, beta in settings:
            (x,) = select(lines, arm=arm, rate=rate, beta=beta, split="validation")
            mark = "**" if (rate, beta) == best[arm] else ""
            name = f"{rate:g}" if arm == "sft on best" else f"{rate:g}, {beta:g}"
            cells.append(f"{mark}{name}: {x['quantile']:.3f} at {x['kl']:.2f}{mark}")
        rows.append([arm, *cells])
    return table(["arm", *["learning rate, β: mean quantile at KL"] * 4], rows)


def _curve(lines: Sequence[Line]) -> str:
    rate, rows = chosen(lines)["qrpo"][0], []
    every = select(lines, arm="qrpo", rate=rate)
    groups = [[x for x in every if x["beta"] == b] for b in sorted({x["beta"] for x in every})]
    groups.append(select(lines, arm="qrpo", rate=rate, beta=MORE_BETA, answers=32, steps=200))
    for of in groups:
        if len(of) < 2:
            continue
        beta = of[0]["beta"]
        kl, goal = optimum_kl(beta), optimum_mean_quantile(beta)
        q, q_half, _ = difference(blocks(of, "quantile") - goal)
        r, r_half, _ = difference(blocks(of, "kl") / kl)
        lands = abs(q) + q_half < 0.02 and abs(r - 1) + r_half < 0.15
        near, half, _ = difference(blocks(of, "below"))
        rows.append(
            [
                f"{beta:g}", str(of[0]["answers"]), str(len(of)), shown(of, "kl"), f"{kl:.3f}", shown(of, "quantile"),
                f"{goal:.3f}", "yes" if lands else "no", f"{near:.3f} ± {half:.3f}",
                "yes" if near + half < 0.02 else "no",
            ]
        )  # fmt: skip
    head = [
        "β", "answers", "seeds", "KL, nats", "closed form", "mean quantile", "closed form",
        "lands on the point", "below the curve", "lands on the curve",
    ]  # fmt: skip
    return table(head, rows) if rows else ""


def _usual(lines: Sequence[Line]) -> list[str]:
    return [shown(lines, "kl"), shown(lines, "quantile"), shown(lines, "below")]


def _arms(lines: Sequence[Line]) -> str:
    of = {arm: at_chosen(lines, arm) for arm in SETTINGS}
    of = {arm: x for arm, x in of.items() if len(x) > 1}
    if len(of) < 2:
        return ""
    below = {arm: by_seed(x, "below") for arm, x in of.items()}
    gaps = compared({arm: minus(x, below["qrpo"]) for arm, x in below.items() if arm != "qrpo"})
    rows = [
        [
            arm, *_usual(x), gaps.get(arm, ""), _over_seeds(x, "length", 2),
            f"{statistics.fmean(y['stopped'] for y in x):.3f}",
            f"{statistics.fmean(y['distinct_4'] for y in x):.2f}",
        ]
        for arm, x in of.items()
    ]  # fmt: skip
    head = ["arm", *_USUAL_HEAD, "minus QRPO's", "length", "stopped", "distinct 4-grams"]
    return table(head, rows)


def _over_seeds(lines: Sequence[Line], name: str, digits: int) -> str:
    mean, half = interval([x[name] for x in lines])
    return f"{mean:+.{digits}f} ± {half:.{digits}f}"


def _length(lines: Sequence[Line]) -> str:
    of = {(rho, arm): at_chosen(lines, arm, rho=rho) for rho in (0.0, 0.3, 0.6) for arm in SETTINGS}
    of = {key: x for key, x in of.items() if len(x) > 1}
    if not any(rho for rho, _ in of):
        return ""
    excess = {key: by_seed(x, "excess") for key, x in of.items()}
    zero = compared(excess, 2)
    against = compared(
        {(rho, arm): minus(x, excess[rho, "qrpo"]) for (rho, arm), x in excess.items() if arm != "qrpo"},
        2,
    )  # fmt: skip
    rows = [
        [
            f"{rho:g}", arm, shown(x, "kl", 2), shown(x, "quantile"), shown(x, "gold"),
            _over_seeds(x, "length", 2), zero[rho, arm], against.get((rho, arm), ""),
        ]
        for (rho, arm), x in of.items()
    ]  # fmt: skip
    head = [
        "correlation", "arm", "KL, nats", "mean quantile", "gold quantile", "length",
        "excess length", "minus QRPO's",
    ]  # fmt: skip
    return table(head, rows)


def peaks(lines: Sequence[Line], arm: str) -> tuple[list[list[Line]], Array, list[Line]]:
    """The runs of a sweep by rising KL; gold at the peak minus gold at the largest KL; the peak.

    The peak of a seed is where the mean of the *other* seeds is largest, so that choosing it does
    not bias the difference.
    """
    every = select(lines, arm=arm, rate=SWEEP_RATE, reward="proxy")
    done = Counter(x["seed"] for x in every)
    every = [x for x in every if done[x["seed"]] == len(SWEEP[arm])]
    of = [[x for x in every if x["beta"] == beta] for beta in SWEEP[arm]]
    if len(of[0]) < 2:
        return of, np.zeros((0, 1)), []
    of = sorted(of, key=lambda x: statistics.fmean(y["kl"] for y in x))
    gold = np.array([[y["gold"] for y in x] for x in of])  # (settings, S)
    found = []
    for seed in range(gold.shape[1]):
        best = int(np.delete(gold, seed, axis=1).mean(axis=1).argmax())
        first, last = of[best][seed], of[-1][seed]
        found.append(np.array(first["blocks"]["gold"]) - np.array(last["blocks"]["gold"]))
    peak = of[int(gold.mean(axis=1).argmax())]
    return of, np.array(found), peak


def _proxy(lines: Sequence[Line]) -> str:
    if any(len(peaks(lines, arm)[1]) < 2 for arm in SWEEP):
        return ""
    rows, ends = [], []
    fall = compared({arm: dict(enumerate(peaks(lines, arm)[1])) for arm in SWEEP})
    for arm in SWEEP:
        of, _, top = peaks(lines, arm)
        for x in of:
            three = [shown(x, "kl", 2), shown(x, "quantile"), shown(x, "gold")]
            rows.append([arm, f"{x[0]['beta']:g}", *three])
        three = [shown(top, "kl", 2), shown(top, "gold"), shown(of[-1], "gold")]
        ends.append([arm, *three, fall[arm]])
    for n in BEST_OF:
        x = [y for y in lines if y.get("n") == n]
        if not x:
            continue
        two = [f"{x[0]['kl']:.2f}", f"{x[0]['quantile']:.3f}"]
        rows.append(["best of N", f"N = {n}", *two, shown(x, "gold")])
    head = ["arm", "β", "KL, nats", "proxy quantile", "gold quantile"]
    last = ["arm", "KL at the peak of gold", "gold there", "gold at the largest KL", "fall"]
    return table(head, rows) + "\n\n" + table(last, ends)


def few(lines: Sequence[Line], arm: str, **conditions: object) -> list[Line]:
    """The runs at the chosen setting of the first 5 seeds."""
    return [x for x in at_chosen(lines, arm, **conditions) if x["seed"] < FEW]


def _noise(lines: Sequence[Line]) -> str:
    arms = ("qrpo", "dpo", "dpo, smoothed", "simpo", "rebel")
    of = {}
    for arm in arms:
        for noise in (0.0, 0.1, 0.2, 0.4):
            same = "dpo" if arm == "dpo, smoothed" and not noise else arm
            of[arm, noise] = few(lines, same, noise=noise)
    of = {key: x for key, x in of.items() if len(x) > 1}
    value = {key: by_seed(x, "quantile") for key, x in of.items()}
    lost = {(arm, noise): minus(x, value[arm, 0.0]) for (arm, noise), x in value.items() if noise}
    if not lost:
        return ""
    apart = compared(
        {(arm, noise): minus(x, lost["qrpo", noise]) for (arm, noise), x in lost.items() if arm != "qrpo"}
    )  # fmt: skip
    losses = compared(lost)
    rows = [
        [key[0], f"{key[1]:.0%}", *_usual(x), losses.get(key, ""), apart.get(key, "")]
        for key, x in of.items()
    ]
    head = ["arm", "pairs turned round", *_USUAL_HEAD, "quantile minus that at 0 %", "minus QRPO's"]
    return table(head, rows)


def _references(lines: Sequence[Line]) -> str:
    names = {"own": "off-policy: own answers", "other": "offline: another model's"}
    of = {
        (source, n): few(lines, "qrpo", references=n, source=source)
        for source in names
        for n in BEST_OF
    }
    of = {key: x for key, x in of.items() if len(x) > 1 and len(of[key[0], 1]) > 1}
    below = {key: by_seed(x, "below") for key, x in of.items()}
    apart = compared({key: minus(x, below[key[0], 1]) for key, x in below.items() if key[1] > 1})
    rows = [[names[key[0]], str(key[1]), *_usual(x), apart.get(key, "")] for key, x in of.items()]
    return table(["answers", "n", *_USUAL_HEAD, "minus that at n = 1"], rows) if rows else ""


def _single(lines: Sequence[Line]) -> str:
    of = {arm: few(lines, arm, answers=1) for arm in ("qrpo", "sft on best")}
    of = {arm: x for arm, x in of.items() if len(x) > 1}
    apart = compared(
        {
            arm: minus(by_seed(x, "below"), by_seed(few(lines, arm), "below"))
            for arm, x in of.items()
        }
    )
    rows = [[arm, *_usual(x), apart.get(arm, "")] for arm, x in of.items()]
    return table(["arm", *_USUAL_HEAD, "minus that with 4 answers"], rows) if rows else ""


TABLES: dict[str, Callable[[Sequence[Line]], str]] = {
    "tuning": _tuning,
    "curve": _curve,
    "arms": _arms,
    "length": _length,
    "proxy": _proxy,
    "noise": _noise,
    "references": _references,
    "single": _single,
}
