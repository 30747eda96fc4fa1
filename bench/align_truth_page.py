"""Tables of `bench.align_truth`: means over seeds with Student's t intervals."""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import Any

from stamm.statistics.student_t import t_quantile

Line = dict[str, Any]


def interval(values: Sequence[float], confidence: float = 0.95) -> tuple[float, float]:
    """Mean over seeds, and the half width of its interval (0 for one seed)."""
    mean = statistics.fmean(values)
    if len(values) < 2:
        return mean, 0.0
    error = statistics.stdev(values) / len(values) ** 0.5
    return mean, t_quantile(confidence, len(values) - 1) * error


def page(lines: Sequence[Line]) -> str:
    """The table of each question that has lines."""
    makers: dict[str, Callable[[list[Line]], str]] = {
        "curve": _curve,
        "binary": _binary,
        "outlier": _outlier,
    }
    found = {name: [line for line in lines if line["question"] == name] for name in makers}
    return "\n\n".join(makers[name](of) for name, of in found.items() if of)


def _groups(lines: Sequence[Line], *keys: str) -> dict[tuple[Any, ...], list[Line]]:
    found: dict[tuple[Any, ...], list[Line]] = defaultdict(list)
    for line in lines:
        found[tuple(line[key] for key in keys)].append(line)
    return found


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(row) + " |" for row in lines)


def _shown(values: Sequence[float], digits: int = 3) -> str:
    mean, half = interval(values)
    return f"{mean:.{digits}f} ± {half:.{digits}f}"


def _curve(lines: list[Line]) -> str:
    rows = []
    for (arm, beta), of in sorted(_groups(lines, "arm", "beta").items()):
        quantile = [line["mean_quantile"] - line["closed_quantile"] for line in of]
        ratio = [line["kl"] / line["closed_kl"] for line in of]
        lands = ""
        if arm.startswith("qrpo"):
            (q, q_half), (r, r_half) = interval(quantile), interval(ratio)
            lands = "yes" if abs(q) + q_half < 0.01 and abs(r - 1) + r_half < 0.1 else "no"
        own = [line["kl_from_own_optimum"] for line in of if "kl_from_own_optimum" in line]
        rows.append(
            [
                arm,
                f"{beta:g}",
                str(len(of)),
                _shown([line["kl"] for line in of]),
                f"{of[0]['closed_kl']:.3f}",
                _shown([line["mean_quantile"] for line in of]),
                f"{of[0]['closed_quantile']:.3f}",
                lands,
                _shown([line["gap"] for line in of]),
                _shown(own) if own else "",
                _shown([line["kl_from_qrpo_optimum"] for line in of]),
            ]
        )
    head = [
        "arm", "β", "seeds", "KL, nats", "closed form", "mean quantile", "closed form", "lands",
        "below the curve", "KL(own optimum, policy)", "KL(QRPO's optimum, policy)",
    ]  # fmt: skip
    return _table(head, rows)


def _binary(lines: list[Line]) -> str:
    rows = []
    rates = sorted({line["rate"] for line in lines})
    for (arm,), of in _groups(lines, "arm").items():
        cells = []
        for rate in rates:
            by_seed = _groups([line for line in of if line["rate"] == rate], "seed").values()
            means = [statistics.fmean(line["lift"] for line in seed) for seed in by_seed]
            cells.append(_shown(means, 2))
        rows.append([arm, *cells])
    for name, number in (("le, predicted p/β", 0), ("mid, predicted 1/(2β)", 1)):
        beta = lines[0]["beta"]
        rows.append([name, *[f"{(rate / beta, 1 / (2 * beta))[number]:.2f}" for rate in rates]])
    return _table(["ties, partition", *[f"p = {rate:g}" for rate in rates]], rows)


def _outlier(lines: list[Line]) -> str:
    rows = []
    for (arm,), of in _groups(lines, "arm").items():
        case = {
            name: sorted((line for line in of if line["case"] == name), key=lambda x: x["seed"])
            for name in ("clean", "outlier")
        }
        pairs = list(zip(case["clean"], case["outlier"], strict=True))
        same = sum(line["same_bits"] for line in case["outlier"])
        rows.append(
            [
                arm,
                f"{same} of {len(pairs)}",
                *[_shown([x["mean_quantile"] for x in case[n]]) for n in ("clean", "outlier")],
                _shown([b["mean_quantile"] - a["mean_quantile"] for a, b in pairs]),
                *[_shown([x["kl"] for x in case[n]], 2) for n in ("clean", "outlier")],
            ]
        )
    head = [
        "arm", "seeds with the same bits", "mean quantile, clean", "with the outlier", "difference",
        "KL, clean", "with the outlier",
    ]  # fmt: skip
    return _table(head, rows)
