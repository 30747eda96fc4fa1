"""Tables and figures of `bench.align_study`: intervals over blocks of prompts and seeds.

An interval is that of `align.results.bootstrap.Bootstrap`, whose prompts are here blocks of ten
consecutive ones. Letters: S seeds, B blocks.
"""

from __future__ import annotations

import functools
import statistics
from collections.abc import Callable, Mapping, Sequence

import numpy as np

from bench.align_study_plan import MORE_BETA, SETTINGS, SWEEP, SWEEP_RATE, Line, chosen
from bench.align_study_run import STEPS
from bench.align_truth_page import interval
from stamm.align.results.bootstrap import Array, Bootstrap
from stamm.align.results.kl_divergence import OptimumCurve
from stamm.losses.quantile import optimum_kl, optimum_mean_quantile
from stamm.reports.intervals import holm

DRAWS = 4000
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


def difference(first: Array, second: Array | None = None) -> tuple[float, float, float]:
    """Mean of first - second over seeds and blocks, half its 95 % interval, and the p of 0."""
    bootstrap = _bootstrap(first.shape[1], len(first))
    both = first if second is None else first - second
    draws = bootstrap.draws(both)
    low, high = np.percentile(draws, [2.5, 97.5])
    return float(both.mean()), float(high - low) / 2, bootstrap.p_value(draws, 0.0)


def shown(value: Array | Sequence[Line], name: str = "", digits: int = 3) -> str:
    """Mean ± half the interval."""
    array = value if isinstance(value, np.ndarray) else blocks(value, name)
    mean, half, _ = difference(array)
    return f"{mean:.{digits}f} ± {half:.{digits}f}"


def compared(
    pairs: Mapping[str, tuple[Array, Array | None]], digits: int = 3
) -> dict[str, tuple[str, bool]]:
    """Differences of one family as text, and whether each is shown after Holm's correction."""
    found = {name: difference(*pair) for name, pair in pairs.items()}
    adjusted = holm({name: p for name, (_, _, p) in found.items()})
    return {
        name: (
            f"{mean:+.{digits}f} ± {half:.{digits}f}{' *' if adjusted[name] < 0.05 else ''}",
            adjusted[name] < 0.05,
        )
        for name, (mean, half, _) in found.items()
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


def _arms(lines: Sequence[Line]) -> str:
    of = {arm: at_chosen(lines, arm) for arm in SETTINGS}
    if any(len(x) < 2 for x in of.values()):
        return ""
    rivals = [arm for arm in SETTINGS if arm != "qrpo"]
    gaps = compared(
        {arm: (blocks(of[arm], "below"), blocks(of["qrpo"], "below")) for arm in rivals}
    )
    rows = [
        [
            arm, shown(x, "quantile"), shown(x, "kl"), shown(x, "below"),
            gaps[arm][0] if arm in gaps else "", _over_seeds(x, "length", 2),
            f"{statistics.fmean(y['stopped'] for y in x):.3f}",
            f"{statistics.fmean(y['distinct_4'] for y in x):.2f}",
        ]
        for arm, x in of.items()
    ]  # fmt: skip
    head = [
        "arm", "mean quantile", "KL, nats", "below the curve", "minus QRPO's", "length, tokens more",
        "stopped", "distinct 4-grams",
    ]  # fmt: skip
    return table(head, rows)


def _over_seeds(lines: Sequence[Line], name: str, digits: int) -> str:
    mean, half = interval([x[name] for x in lines])
    return f"{mean:+.{digits}f} ± {half:.{digits}f}"


def _length(lines: Sequence[Line]) -> str:
    of = {(arm, rho): at_chosen(lines, arm, rho=rho) for rho in (0.0, 0.3, 0.6) for arm in SETTINGS}
    of = {key: x for key, x in of.items() if len(x) > 1}
    if not any(rho for _, rho in of):
        return ""
    names = {f"{arm} {rho}": x for (arm, rho), x in of.items()}
    zero = compared({name: (blocks(x, "excess"), None) for name, x in names.items()}, 2)
    against = compared(
        {
            f"{arm} {rho}": (blocks(x, "excess"), blocks(of["qrpo", rho], "excess"))
            for (arm, rho), x in of.items()
            if arm != "qrpo" and ("qrpo", rho) in of
        },
        2,
    )
    rows = [
        [
            f"{rho:g}", arm, shown(x, "kl", 2), shown(x, "quantile"), shown(x, "gold"),
            _over_seeds(x, "length", 2), zero[f"{arm} {rho}"][0],
            against.get(f"{arm} {rho}", ("", False))[0],
        ]
        for (arm, rho), x in of.items()
    ]  # fmt: skip
    head = [
        "correlation", "arm", "KL, nats", "mean quantile", "gold quantile", "length, tokens more",
        "excess length", "minus QRPO's",
    ]  # fmt: skip
    return table(head, rows)


def peaks(lines: Sequence[Line], arm: str) -> tuple[list[list[Line]], Array, list[Line]]:
    """The runs of a sweep by rising KL; gold at the peak minus gold at the largest KL; the peak.

    The peak of a seed is where the mean of the *other* seeds is largest, so that choosing it does
    not bias the difference.
    """
    every = select(lines, arm=arm, rate=SWEEP_RATE, reward="proxy")
    of = [[x for x in every if x["beta"] == beta] for beta in SWEEP[arm]]
    of = sorted((x for x in of if x), key=lambda x: statistics.fmean(y["kl"] for y in x))
    gold = np.array([[y["gold"] for y in x] for x in of])  # (settings, S)
    found = []
    for seed in range(gold.shape[1]):
        best = int(np.delete(gold, seed, axis=1).mean(axis=1).argmax())
        first, last = of[best][seed], of[-1][seed]
        found.append(np.array(first["blocks"]["gold"]) - np.array(last["blocks"]["gold"]))
    peak = of[int(gold.mean(axis=1).argmax())]
    return of, np.array(found), peak


def _proxy(lines: Sequence[Line]) -> str:
    if len(select(lines, arm="qrpo", reward="proxy")) < 2:
        return ""
    rows, ends = [], []
    fall = compared({arm: (peaks(lines, arm)[1], None) for arm in SWEEP})
    for arm in SWEEP:
        of, _, top = peaks(lines, arm)
        rows += [
            [arm, f"{x[0]['beta']:g}", shown(x, "kl", 2), shown(x, "quantile"), shown(x, "gold")]
            for x in of
        ]
        ends.append(
            [arm, shown(top, "kl", 2), shown(top, "gold"), shown(of[-1], "gold"), fall[arm][0]]
        )
    for n in sorted({x["n"] for x in lines if x.get("arm") == "best of N"}):
        x = [y for y in lines if y.get("n") == n]
        rows.append(
            [
                "best of N",
                f"N = {n}",
                f"{x[0]['kl']:.2f}",
                f"{x[0]['quantile']:.3f}",
                shown(x, "gold"),
            ]
        )
    head = ["arm", "β", "KL, nats", "proxy quantile", "gold quantile"]
    last = ["arm", "KL at the peak of gold", "gold there", "gold at the largest KL", "fall"]
    return table(head, rows) + "\n\n" + table(last, ends)


def _noise(lines: Sequence[Line]) -> str:
    arms, levels = ("qrpo", "dpo", "dpo, smoothed", "simpo", "rebel"), (0.0, 0.1, 0.2, 0.4)
    of = {}
    for arm in arms:
        for noise in levels:
            name = "dpo" if arm == "dpo, smoothed" and not noise else arm
            x = [y for y in at_chosen(lines, name, noise=noise) if y["seed"] < 5]
            if len(x) > 1:
                of[arm, noise] = x
    if not any(noise for _, noise in of):
        return ""
    lost = {
        f"{arm} {noise}": (blocks(x, "quantile"), blocks(of[arm, 0.0], "quantile"))
        for (arm, noise), x in of.items()
        if noise
    }
    against = {
        f"{arm} {noise}": (first - second, np.subtract(*lost[f"qrpo {noise}"]))
        for (arm, noise), (first, second) in zip(
            [key for key in of if key[1]], lost.values(), strict=True
        )
        if arm != "qrpo" and f"qrpo {noise}" in lost
    }
    losses, apart = compared(lost), compared(against)
    rows = [
        [
            arm, f"{noise:.0%}", shown(x, "kl", 2), shown(x, "quantile"), shown(x, "below"),
            losses.get(f"{arm} {noise}", ("", 0))[0], apart.get(f"{arm} {noise}", ("", 0))[0],
        ]
        for (arm, noise), x in of.items()
    ]  # fmt: skip
    head = [
        "arm", "pairs turned round", "KL, nats", "mean quantile", "below the curve",
        "minus that at 0 %", "and minus QRPO's",
    ]  # fmt: skip
    return table(head, rows)


def _references(lines: Sequence[Line]) -> str:
    rows = []
    pairs: dict[str, tuple[Array, Array | None]] = {}
    of = {}
    for source in ("own", "other"):
        for n in (1, 2, 4, 8, 16, 32):
            x = [y for y in at_chosen(lines, "qrpo", references=n, source=source) if y["seed"] < 5]
            if len(x) > 1:
                of[source, n] = x
        if (source, 1) in of:
            for n in (2, 4, 8, 16, 32):
                if (source, n) in of:
                    pairs[f"{source} {n}"] = (
                        blocks(of[source, n], "below"), blocks(of[source, 1], "below"),
                    )  # fmt: skip
    if not pairs:
        return ""
    apart = compared(pairs)
    names = {"own": "off-policy: own answers", "other": "offline: another model's"}
    for (source, n), x in of.items():
        rows.append(
            [
                names[source], str(n), shown(x, "kl"), shown(x, "quantile"), shown(x, "below"),
                apart.get(f"{source} {n}", ("", 0))[0],
            ]
        )  # fmt: skip
    head = ["answers", "n", "KL, nats", "mean quantile", "below the curve", "minus that at n = 1"]
    return table(head, rows)


def _single(lines: Sequence[Line]) -> str:
    of = {arm: at_chosen(lines, arm, answers=1) for arm in ("qrpo", "sft on best")}
    if any(len(x) < 2 for x in of.values()):
        return ""
    four = {arm: [y for y in at_chosen(lines, arm) if y["seed"] < 5] for arm in of}
    apart = compared(
        {arm: (blocks(x, "below"), blocks(four[arm], "below")) for arm, x in of.items()}
    )
    rows = [
        [arm, shown(x, "kl"), shown(x, "quantile"), shown(x, "below"), apart[arm][0]]
        for arm, x in of.items()
    ]
    head = ["arm", "KL, nats", "mean quantile", "below the curve", "minus that with 4 answers"]
    return table(head, rows)


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
