"""Sections of docs/evidence.md over several results: decomposition, ladder, history; all figures from committed JSON."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from stamm.base.units import count_text
from stamm.statistics.intervals import ConfidenceInterval, interval
from stamm.statistics.scaling_law import ScalingLaw

VARIANTS = {
    "plain": "as it is",
    "equal_start": "equal at the start",
    "learned": "learned factor",
    "init": "initial deviation 0.02",
}
PAIRS = (("xielu", "relu2"), ("relu2", "swiglu"), ("xielu", "swiglu"))
SCALES = {"matched": "Equal scale at the start (0.6)", "as_is": "Scale as it is"}
_Bits = Mapping[str, Mapping[int, float]]


def bits_by_seed(found: Mapping[str, Any]) -> dict[str, dict[int, float]]:
    """Held-out bits per byte by arm and seed of a comparison.json."""
    return {
        name: {int(seed): value for seed, value in one["bits_per_byte"].items()}
        for name, one in found["by_seed"].items()
    }


def diverged(lines: Sequence[Mapping[str, Any]]) -> str:
    """ "swiglu diverged": an arm that did has no mean; "" where none did."""
    gone = dict.fromkeys(line["name"] for line in lines if line.get("diverged"))
    return f"{', '.join(gone)} diverged" if gone else ""


def decomposition(folder: Path) -> str:
    """Each pair's difference in the variants of compare.evidence_scale that are there, and its changes."""
    found = {
        name: _read(folder / f"scale_{name}.json")
        for name in VARIANTS
        if (folder / f"scale_{name}.json").is_file()
    }
    text = """
## Decomposition: shape, scale, rate, initialisation

Four comparisons with the same seeds (i1 to i4), each with rates and rates of the shapes tuned for every arm: the scale of the
feed-forward block's output as it is, equal at the start (standard deviation 0.6), with one learned factor a layer at 30 times the rate, and with
matrices of an initial standard deviation of 0.02 instead of 0.04. Each variant changes one thing, so effects of two changes
together are not measured. What remains of a difference with equal scale at the start is not the scale at the start; what remains with a learned
factor is not how fast the scale can grow.
"""
    for name in [name for name, one in found.items() if diverged(one["lines"])]:
        gone = diverged(found.pop(name)["lines"])
        text += f"\nWithout the variant {VARIANTS[name]}, in which {gone}.\n"
    if not found:
        return f"{text}\nNo variant is measured yet: planned.\n"
    bits = {name: bits_by_seed(one) for name, one in found.items()}
    heads = [VARIANTS[name] for name in found]
    text += "\nDifferences in bits per byte; intervals are 95 % for the three pairs of a variant together.\n\n"
    level = 1 - 0.05 / len(PAIRS)
    text += _table(
        ["pair", *heads],
        [
            [f"{a} − {b}", *(_ends(_paired(bits[name], a, b), level) for name in found)]
            for a, b in PAIRS
        ],
    )
    others = [name for name in found if name != "plain"]
    if "plain" in found and others:
        text += (
            "\nChange of the difference, and of each arm's loss, against the scale as it is, seed by seed; intervals are 95 % for all of one "
            "table together.\n\n"
        )
        plain = bits["plain"]
        level = 1 - 0.05 / (len(PAIRS) * len(others))
        rows = []
        for a, b in PAIRS:
            base = _paired(plain, a, b)
            changes = [_minus(_paired(bits[name], a, b), base) for name in others]
            rows.append([f"{a} − {b}", *(_ends(change, level) for change in changes)])
        text += _table(["pair", *(VARIANTS[name] for name in others)], rows)
        arms = list(plain)
        text += "\n" + _table(
            ["arm", *(VARIANTS[name] for name in others)],
            [[arm, *(_ends(_minus(bits[n][arm], plain[arm]), level) for n in others)] for arm in arms],
        )  # fmt: skip
    text += "\nChosen learning rates, with the factor of the shapes' rate where there are shapes; * at the edge of the grid.\n\n"
    text += _table(
        ["arm", *heads],
        [
            [line["name"], *(_rate(one["lines"][number]) for one in found.values())]
            for number, line in enumerate(next(iter(found.values()))["lines"])
        ],
    )
    return text


def ladder(folder: Path) -> str:
    """Losses by size and length, their laws, and predictions with what was measured."""
    plan = _read(folder / "ladder_plan.json")
    points = len(plan["points"])
    text = f"""
## Ladder of sizes

[The plan](evidence/ladder_plan.json), committed before the first counted run: {points} points, {plan["core_hours"]:g} hours of a core. Rates are
those of the smallest point, transferred by a rule that a further point tests ([comparisons.md](comparisons.md#ladder)).
"""
    if (path := folder / "ladder_rates.json").is_file():
        rule = _read(path)["rule"]
        text += f"\nRates fall with width^{rule['width_power']:.2f} and tokens^{rule['length_power']:.2f}."
        worst = max((one["excess_nats"] for one in rule["test"]), default=None)
        if worst is not None:
            allowed = plan["rule"]["test_nats"]
            kept = "" if worst <= allowed else ": it is rejected, and its successor is being tuned"
            text += f" At the point of the test the rule costs at most {worst:.4f} nats against the best rate that was tried, where {allowed:g} is allowed{kept}."
        text += "\n"
    if not (folder / "ladder.json").is_file():
        return f"{text}\nNo point is measured yet: planned.\n"
    found = _read(folder / "ladder.json")
    for scale, title in SCALES.items():
        mine = [point for point in found["points"] if point["scale"] == scale]
        if not mine:
            continue
        text += (
            f"\n### {title}\n\nBits per byte; intervals are 95 % for the three pairs of a point together. "
            "Tokens to the same loss are against swiglu's.\n\n"
        )
        text += _table(
            ["parameters", "tokens", "a parameter", "seeds", "swiglu", *(f"{a} − {b}" for a, b in PAIRS), "tokens of relu2", "tokens of xielu"],
            [_point_row(point) for point in mine],
        )  # fmt: skip
        laws = found["laws"].get(scale) or []
        if laws:
            text += "\nL(N, D) = E + A / N^alpha + B / D^beta, with the middle 95 % of a bootstrap over seeds:\n\n"
            text += _table(
                ["arm", "E", "alpha", "beta", "residual"],
                [
                    [law["arm"], *(_span(law["law_ends"][name], 3) for name in ("floor", "parameter_power", "token_power")), f"{law['residual']:.4f}"]
                    for law in laws
                ],
            )  # fmt: skip
            text += "\n" + _crossings(laws, mine)
    return text + _predictions(folder, found["points"])


def _point_row(point: Mapping[str, Any]) -> list[str]:
    bits = ladder_bits(point)
    base = point["baseline"]
    parameters, tokens = point["parameters"][base], point["tokens"][base]
    level = 1 - 0.05 / len(PAIRS)
    ratios = []
    for arm in ("relu2", "xielu"):
        ends = point["log_tokens"][arm]
        ratios.append(
            "" if not ends or ends["low"] is None
            else f"{100 * math.expm1(ends['mean']):+.1f} % ({100 * math.expm1(ends['low']):+.1f} to {100 * math.expm1(ends['high']):+.1f})"
        )  # fmt: skip
    mean = math.fsum(bits[base].values()) / len(bits[base])
    return [
        count_text(parameters), count_text(tokens), f"{tokens / parameters:.3g}", str(len(bits[base])), f"{mean:.4f}",
        *(_ends(_paired(bits, a, b), level) for a, b in PAIRS), *ratios,
    ]  # fmt: skip


def ladder_bits(point: Mapping[str, Any]) -> dict[str, dict[int, float]]:
    """Bits per byte of a point of ladder.json by arm and seed."""
    return {a: {int(s): v for s, v in seeds.items()} for a, seeds in point["bits"].items()}


def _crossings(laws: Sequence[Mapping[str, Any]], points: Sequence[Mapping[str, Any]]) -> str:
    """Where the laws of two arms cross within the lengths of the ladder, by size."""
    by_arm = {law["arm"]: ScalingLaw(**law["law"]) for law in laws}
    sizes = sorted({point["parameters"][point["baseline"]] for point in points})
    shares = [10 ** (step / 100) for step in range(131)]  # 1 to 20 tokens a parameter
    said = []
    for a, b in PAIRS:
        for size in sizes:
            apart = [
                by_arm[a].loss(size, s * size) - by_arm[b].loss(size, s * size) for s in shares
            ]
            said += [
                f"{a} and {b} at {count_text(size)} parameters and {shares[i]:.2g} tokens a parameter"
                for i in range(len(shares) - 1)
                if apart[i] * apart[i + 1] < 0
            ]  # fmt: skip
    return f"Fitted laws cross between 1 and 20 tokens a parameter: {'; '.join(said) or 'none'}.\n"


def _predictions(folder: Path, points: Sequence[Mapping[str, Any]]) -> str:
    """Committed predictions, each with its measurement where that is there."""
    text = ""
    for path in sorted(folder.glob("ladder_prediction_*.json")):
        found, scale = _read(path), path.stem.removeprefix("ladder_prediction_")
        measured = next((p for p in points if _is_predicted(p, found, scale)), None)
        sha256 = hashlib.sha256(path.read_bytes()).hexdigest()
        text += (
            f"\n### Prediction: {count_text(found['parameters'])} parameters, {count_text(found['tokens'])} tokens "
            f"({scale.replace('_', ' ')})\n\n[{path.name}](evidence/{path.name}), SHA-256 {sha256}, from {len(found['comparisons'])} points.\n\n"
        )
        rows = []
        bits = ladder_bits(measured) if measured else None
        for arm in found["arms"]:
            for label, wanted, rival in ((arm["arm"], arm["loss"], None), (f"{arm['arm']} − {found['baseline']}", arm["difference"], found["baseline"])):  # fmt: skip
                if wanted is None:
                    continue
                result, hit = "planned", ""
                if bits is not None:
                    values = bits[arm["arm"]] if rival is None else _paired(bits, arm["arm"], rival)
                    mean = math.fsum(values.values()) / len(values)
                    result = _ends(values, 0.95, signs=rival is not None)
                    hit = "yes" if wanted["low"] <= mean <= wanted["high"] else "no"
                rows.append([label, _span(wanted, 4), result, hit])
        text += _table(["", "predicted", "measured", "hit"], rows)
    return text


def hits(folder: Path) -> tuple[int, int]:
    """How many of the predicted losses and differences lie in their intervals, and how many were measured."""
    text = _predictions(folder, _read(folder / "ladder.json")["points"])
    return text.count("| yes |"), text.count("| yes |") + text.count("| no |")


def _is_predicted(point: Mapping[str, Any], found: Mapping[str, Any], scale: str) -> bool:
    base = found["baseline"]
    near = (point[key][base] / found[key] for key in ("parameters", "tokens"))
    return scale.startswith(point["scale"]) and all(0.98 < ratio < 1.02 for ratio in near)


def history(folder: Path, detail: Any) -> str:
    """What was superseded, when and why; `detail` gives the differences of a superseded result."""
    text = """
## What was superseded

| date | claims | was | now | why |
|---|---|---|---|---|
"""
    for entry in _read(folder / "history.json"):
        was = entry["was"]
        if "result" in entry:
            was += f": {detail(entry)} ([data](evidence/{entry['result']}))"
        why = f"{entry['why']} ([log](log/{entry['log']}))"
        text += (
            f"| {entry['date']} | {', '.join(entry['claims'])} | {was} | {entry['now']} | {why} |\n"
        )
    return text


def _paired(bits: _Bits, arm: str, rival: str) -> dict[int, float]:
    return _minus(bits[arm], bits[rival])


def _minus(values: Mapping[int, float], others: Mapping[int, float]) -> dict[int, float]:
    return {seed: value - others[seed] for seed, value in values.items() if seed in others}


def _ends(values: Mapping[int, float], level: float, *, signs: bool = True) -> str:
    found: ConfidenceInterval = interval(list(values.values()), level)
    if found.low is None or found.high is None:
        return "no interval"
    form = "+.4f" if signs else ".4f"
    return f"{found.mean:{form}} ({found.low:{form}} to {found.high:{form}})"


def _span(ends: Mapping[str, float], digits: int) -> str:
    return f"{ends['mean']:.{digits}f} ({ends['low']:.{digits}f} to {ends['high']:.{digits}f})"


def _rate(line: Mapping[str, Any]) -> str:
    factor = line.get("shape_factor")
    shapes = "" if factor is None else f" × {factor:g}{'*' * line['factor_at_edge']}"
    return f"{line['rate']:.3g}{'*' * line['at_edge']}{shapes}"


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "".join(f"| {' | '.join(cells)} |\n" for cells in lines)


def _read(path: Path) -> Any:
    return json.loads(path.read_text(encoding="utf-8"))
