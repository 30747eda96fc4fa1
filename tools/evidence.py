"""Write docs/evidence.md, docs/images/evidence.svg and compare/spreads.json from docs/evidence/claims.json and the committed results that it names.

    python -m tools.evidence
    python -m tools.evidence memorization RUN [RUN ...] > docs/evidence/memorization.json

The second line collects the audits of finished runs of audit.goldfish, one for each seed.

A row of claims.json: key, claim, source, published, command, arm (whose difference to the baseline of the
comparison is the claim, lower meaning that it holds) and result: "", or the path below docs/evidence of the
comparison.json that `stamm compare` wrote, or, for a claim with `measure`, of the observe_comparison.json that
`stamm observe` wrote: the claim holds if the slope of that measure over depth is negative. A claim with `pairs` has an
arm and its rival in each, at the planned `looks`; all pairs together have the level (Bonferroni). A claim with
`repeats` is about passages planted so often, in the collected audits; one with `results` is the trend of an arm's
difference to `rival` (the baseline, where none is named) over several comparisons, by parameters or tokens; one with `search` is the verdict of the
search.json that `stamm search` wrote. A claim with `why` cannot be tried. Every figure of ours on the page comes from those files.
"""

from __future__ import annotations

import html
import json
import math
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from stamm.base.files import write_text
from stamm.base.units import count_text
from stamm.compare.sizes import SizePoint, slope_of
from stamm.statistics.intervals import differences, interval
from stamm.statistics.power import pooled_spread
from stamm.statistics.sequential import shares_of
from stamm.statistics.student_t import t_quantile

ROOT = Path(__file__).parents[1]
PAGE, FOLDER = ROOT / "docs" / "evidence.md", ROOT / "docs" / "evidence"
PLOT = ROOT / "docs" / "images" / "evidence.svg"
SPREADS = ROOT / "src" / "stamm" / "compare" / "spreads.json"
_PLOT_STYLE = (
    "text{font:12px system-ui,sans-serif;fill:#222}.claim{font-weight:600}.head{fill:#f0f2f5}"
    ".tick{text-anchor:middle;fill:#555}path,circle{stroke-width:2;fill:none}.grid{stroke:#e3e6ea;stroke-width:1}"
    ".zero{stroke:#555;stroke-width:1}.lower{stroke:#0a6e8a;fill:#0a6e8a}.higher{stroke:#b3470f;fill:#b3470f}"
    ".open{stroke:#777}circle.open{fill:#fff}text.lower,text.higher{stroke:none}"
)
HEAD = """# Evidence

The claims of the papers behind stamm, and what was measured here.

![Differences in held-out loss with their 95 % intervals, one line each.](images/evidence.svg)

The plot has the differences in bits per byte of held-out text, of the arm that is named first from the other: left of 0 it
has the lower loss. Intervals are 95 % over seeds, corrected for arms and looks ([comparisons.md](comparisons.md)).
`python -m tools.evidence` writes this page and the plot from the committed results in `evidence/`.

**Orders of activations (rows a, c, g, h) hold at these recipes' initialisation and learning rates only.** At 0.6 tokens a parameter the
arms differ mostly in how fast the output of the feed-forward block can grow: in exploratory runs (one or two seeds, not registered) a
constant factor of 4 on that output at the start, at the rate 2e-3, made SwiGLU, the worst arm of row a, equal to ReLU² or better, and one
learned scale with a fast rate moved ReLU² by 0.06 to 0.11 bits per byte, several times the differences between the functions. Which part
is shape and which is scale is an open question ([log](log/2026-11-26-scale-of-the-block.md)).

## Claims

| | claim | verdict |
|---|---|---|
"""
DETAILS = """
The verdict is *shown*, *not shown* with the differences that are excluded, or *contradicted*; of pairs of arms, which loss is *lower* or
*higher*.

## Measurements

Trends by length, tokens to the same loss and slopes over depth ([observe.md](observe.md)) have plain 95 % intervals, without the correction
for arms and looks.
"""


def page(folder: Path = FOLDER) -> str:
    """The page as Markdown."""
    claims = _read(folder / "claims.json")
    results = [(claim, *measured(claim, folder)) for claim in claims]
    rows = [f"| {claim['key']} | {claim['claim']} | {verdict} |\n" for claim, _, verdict in results]
    return HEAD + "".join(rows) + DETAILS + "".join(_detail(*result) for result in results)


@dataclass(frozen=True)
class Estimate:
    """A difference in bits per byte with its interval: a line of the plot."""

    label: str
    mean: float
    low: float
    high: float

    def text(self) -> str:
        """ "+0.0162 (+0.0130 to +0.0194)"."""
        return f"{self.mean:+.4f} ({self.low:+.4f} to {self.high:+.4f})"


def estimates(claim: Mapping[str, Any], folder: Path) -> list[Estimate]:
    """The differences in held-out loss that a claim is about; none of a trend, a slope or memorization."""
    if not claim.get("result") or claim.keys() & {"why", "measure", "repeats"}:
        return []
    found = _read(folder / claim["result"])
    if "search" in claim:
        return [
            Estimate(
                f"{found['finalist']} against {found['baseline']}, {one['name'].replace('_', ' ')}",
                one["difference"],
                one["low"],
                one["high"],
            )
            for one in found["confirmations"]
        ]
    if "pairs" in claim:
        return [estimate for estimate, _ in _differences(claim, found)]
    line = next(line for line in found["lines"] if line["name"] == claim["arm"])
    if line.get("diverged") or not line["difference"]:
        return []
    ends = line["difference"]["interval"]
    return [
        Estimate(
            f"{claim['arm']} against {found['baseline']}", ends["mean"], ends["low"], ends["high"]
        )
    ]


def plot(folder: Path = FOLDER) -> str:
    """The forest plot of all differences in held-out loss, as SVG."""
    rows: list[Estimate | str] = []
    for claim in _read(folder / "claims.json"):
        if lines := estimates(claim, folder):
            rows += [f"{claim['key']}  {claim['claim']}", *lines]
    numbers = [end for row in rows if isinstance(row, Estimate) for end in (row.low, row.high)]
    low, high = math.floor(min(numbers) * 20) / 20, math.ceil(max(numbers) * 20) / 20
    bottom = 30 + 20 * len(rows)

    def x(value: float) -> float:
        return round(270 + (value - low) / (high - low) * 380, 1)

    parts = []
    for i in range(round((high - low) * 20) + 1):
        tick = low + i / 20
        parts.append(
            f'<path class="{"zero" if abs(tick) < 1e-9 else "grid"}" d="M{x(tick)} 24V{bottom}"/>'
        )
        parts.append(f'<text class="tick" x="{x(tick)}" y="{bottom + 16}">{tick:+.2f}</text>')
    for number, row in enumerate(rows):
        y = 40 + 20 * number
        if isinstance(row, str):
            shown = row if len(row) <= 118 else f"{row[:117].rsplit(' ', 1)[0]} …"
            parts.append(f'<rect x="8" y="{y - 11}" width="844" height="17" class="head"/>')
            parts.append(f'<text class="claim" x="14" y="{y + 2}">{html.escape(shown)}</text>')
            continue
        side = "lower" if row.high < 0 else "higher" if row.low > 0 else "open"
        parts.append(f'<text x="24" y="{y + 2}">{html.escape(row.label)}</text>')
        parts.append(f'<path class="{side}" d="M{x(row.low)} {y - 2}H{x(row.high)}"/>')
        parts.append(f'<circle class="{side}" cx="{x(row.mean)}" cy="{y - 2}" r="4"/>')
        parts.append(f'<text x="656" y="{y + 2}">{row.text()}</text>')
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 860 {bottom + 48}" role="img">\n'
        "<title>Differences in held-out loss, in bits per byte, with their 95 % intervals</title>\n"
        f"<style>{_PLOT_STYLE}</style>\n"
        f'<rect width="860" height="{bottom + 48}" fill="#fff"/>\n'
        '<text class="lower" x="270" y="16">← lower loss</text>'
        '<text class="higher" x="650" y="16" text-anchor="end">higher loss →</text>\n'
        + "\n".join(parts)
        + f'\n<text class="tick" x="460" y="{bottom + 36}">difference, bits per byte; hollow: the interval has 0 in it</text>\n</svg>\n'
    )


def measured(claim: Mapping[str, Any], folder: Path) -> tuple[str, str]:
    """What was measured, and the verdict."""
    if claim.get("why"):
        return "", f"cannot be tried: {claim['why']}"
    if not claim.get("result") and not claim.get("results"):
        return "", "not yet measured"
    if "results" in claim:
        return _trend(claim, [_read(folder / name) for name in claim["results"]])
    found = _read(folder / claim["result"])
    if "measure" in claim:
        return _slope(claim, found)
    if "repeats" in claim:
        return _memorization(claim, found)
    if "pairs" in claim:
        return _pairs(claim, found)
    if "search" in claim:
        return _search(found)
    lines = {line["name"]: line for line in found["lines"]}
    line, base = lines[claim["arm"]], lines[found["baseline"]]
    if gone := _diverged([line, base]):
        return "", gone
    ends, seeds = line["difference"]["interval"], line["bits"]["count"]
    said = (
        f"{ends['mean']:+.4f} ({ends['low']:+.4f} to {ends['high']:+.4f}) against {base['name']}"
        f"{_tokens(line)}; {count_text(base['parameters'])} parameters, {count_text(base['tokens'])} tokens, {seeds} seeds"
    )
    if line["difference"]["shown"]:
        verdict = "shown" if ends["mean"] < 0 else "contradicted"
    else:
        verdict = f"not shown; above {max(-ends['low'], ends['high']):.4f} excluded"
    return said, f"{verdict} (exploratory)" if found["exploratory"] else verdict


def _pairs(claim: Mapping[str, Any], found: Mapping[str, Any]) -> tuple[str, str]:
    """Every pair of arms, paired by seed, at the level of the look that ended the comparison."""
    lines = {line["name"]: line for line in found["lines"]}
    said, verdicts = [], []
    if gone := _diverged([lines[name] for pair in claim["pairs"] for name in pair]):
        return "", gone
    for (arm, rival), (estimate, shown) in zip(
        claim["pairs"], _differences(claim, found), strict=True
    ):
        tokens = _tokens(lines[arm]) if rival == found["baseline"] else ""
        share = _share(lines[arm], lines[rival])
        said.append(f"{arm}{share} {estimate.text()} against {rival}{tokens}")
        side = "lower" if estimate.mean < 0 else "higher"
        verdicts.append(f"{arm} {side if shown else 'not shown to differ'}")
    base, seeds = lines[found["baseline"]], _seeds_of_pair(claim, found)
    size = f"{count_text(base['parameters'])} parameters, {count_text(base['tokens'])} tokens, {seeds} seeds"
    end = " (exploratory)" if found["exploratory"] else ""
    return f"{'; '.join(said)}; {size}", f"{', '.join(verdicts)}{end}"


def _differences(claim: Mapping[str, Any], found: Mapping[str, Any]) -> list[tuple[Estimate, bool]]:
    """The difference of each pair of arms, and whether it is shown."""
    bits = _bits_by_seed(found)
    looks, level = tuple(claim["looks"]), 1 - (1 - found["confidence"]) / len(claim["pairs"])
    estimated = []
    for arm, rival in claim["pairs"]:
        both = {name: bits[name] for name in (rival, arm)}
        seeds = len(both[arm].keys() & both[rival].keys())
        (one,) = differences(both, rival, level, shares_of(looks), looks.index(seeds))
        ends = one.interval
        if ends.low is None or ends.high is None:
            raise ValueError(f"{arm} against {rival} has no interval")
        label = f"{arm} against {rival}"
        estimated.append((Estimate(label, ends.mean, ends.low, ends.high), one.shown))
    return estimated


def _bits_by_seed(found: Mapping[str, Any]) -> dict[str, dict[int, float]]:
    return {
        name: {int(seed): value for seed, value in one["bits_per_byte"].items()}
        for name, one in found["by_seed"].items()
    }


def spreads(folder: Path = FOLDER) -> list[dict[str, Any]]:
    """Rows of compare/spreads.json: the pooled spread over seeds of each comparison that claims.json names."""
    rows = []
    for name in sorted(
        {name for claim in _read(folder / "claims.json") for name in _results(claim)}
    ):
        read = _read(folder / name)
        lines = read.get("lines", []) if isinstance(read, dict) else []
        if not lines or "by_seed" not in read:
            continue
        spread = pooled_spread(_bits_by_seed(read), read["baseline"], ())
        if spread is None:
            continue
        base = next(line for line in lines if line["name"] == read["baseline"])
        rows.append(
            {
                "study": name.removesuffix(".json"),
                "parameters": base["parameters"],
                "tokens": round(base["tokens"]),
                "seeds": spread.seeds,
                "arms": [read["baseline"], *spread.arms],
                "value": spread.value,
                "low": spread.low,
                "high": spread.high,
            }
        )
    return rows


def _results(claim: Mapping[str, Any]) -> list[str]:
    named = [claim.get("result") or "", *claim.get("results", ())]
    return [name for name in named if name]


def _seeds_of_pair(claim: Mapping[str, Any], found: Mapping[str, Any]) -> int:
    """Seeds of the last pair."""
    bits = _bits_by_seed(found)
    arm, rival = claim["pairs"][-1]
    return len(bits[arm].keys() & bits[rival].keys())


def _share(line: Mapping[str, Any], rival: Mapping[str, Any]) -> str:
    """ " with 70 % of the tokens": of an arm that was given fewer."""
    share = line["tokens"] / rival["tokens"]
    return f" with {100 * share:.0f} % of the tokens" if share < 0.9 else ""


def _diverged(lines: Sequence[Mapping[str, Any]]) -> str:
    """ "swiglu diverged": an arm that did has no mean; "" where none did."""
    gone = dict.fromkeys(line["name"] for line in lines if line.get("diverged"))
    return f"{', '.join(gone)} diverged" if gone else ""


def _search(found: Mapping[str, Any]) -> tuple[str, str]:
    """The finalist of a search against its baseline, in every confirmation.

    Raises   ValueError for an unfinished search whose verdict the missing confirmations could change
    """
    if found["state"] != "complete" and all(one["better"] for one in found["confirmations"]):
        raise ValueError(f"the search is {found['state']}, not complete")
    trained = len(found["rounds"][0]["ranking"])
    if not found["finalist"]:
        return f"{trained} gradients trained; none was left to be confirmed", "not shown"
    said = [f"{trained} gradients trained; finalist {found['finalist']}"]
    said += [
        f"{one['name']}: {one['difference']:+.4f} ({one['low']:+.4f} to {one['high']:+.4f}, p = {one['p_value']:.2g}) "
        f"against {found['baseline']}, equal {one['matched']}, {count_text(one['parameters'])} parameters"
        for one in found["confirmations"]
    ]
    if found["winner"]:
        return "; ".join(said), "shown"
    left = [
        f"above {one['excluded']:.4f} excluded ({one['name']})"
        for one in found["confirmations"]
        if not one["better"]
    ]
    return "; ".join(said), f"not shown; {', '.join(left)}"


def _tokens(line: Mapping[str, Any]) -> str:
    """Tokens to an equal training loss, relative to the baseline's, with their 95 % interval."""
    found = line["log_tokens"]
    if not found:
        return ""
    mean, low, high = (100 * math.expm1(found[end]) for end in ("mean", "low", "high"))
    return f", tokens to the same loss {mean:+.1f} % ({low:+.1f} to {high:+.1f})"


def _read(path: Path) -> Any:
    return json.loads(path.read_text(encoding="utf-8"))


def _trend(claim: Mapping[str, Any], results: Sequence[Mapping[str, Any]]) -> tuple[str, str]:
    """Difference of an arm to its rival by size, and the slope over its logarithm."""
    points = []
    for found in results:
        bits = {name: one["bits_per_byte"] for name, one in found["by_seed"].items()}
        line = next(one for one in found["lines"] if one["name"] == claim["arm"])
        rival = claim.get("rival", found["baseline"])
        base = bits[rival]
        if gone := _diverged(
            [one for one in found["lines"] if one["name"] in (claim["arm"], rival)]
        ):
            return "", gone
        arm = bits[claim["arm"]]
        points.append(
            SizePoint(
                comparison="",
                exploratory=found["exploratory"],
                arm=claim["arm"],
                parameters=line["parameters"],
                tokens=line["tokens"],
                by_seed={int(seed): arm[seed] - base[seed] for seed in arm if seed in base},
                tokens_ratio=None,
            )
        )
    size = "parameters" if len({point.parameters for point in points}) > 1 else "tokens"
    places = [math.log10(getattr(point, size)) for point in points]
    slope, half = slope_of(places, points)
    said = [
        f"{point.mean:+.4f} ± {t_quantile(0.95, point.seeds - 1) * point.error:.4f} at "
        f"{count_text(getattr(point, size))} {size} ({point.seeds} seeds)"
        for point in points
    ]
    said.append(f"{slope:+.4f} ± {half:.4f} for ten times the {size}")
    end = " (exploratory)" if any(point.exploratory for point in points) else ""
    if abs(slope) <= half:
        return "; ".join(said), f"no trend shown{end}"
    return "; ".join(said), f"the difference {'rises' if slope > 0 else 'falls'}{end}"


def _memorization(claim: Mapping[str, Any], found: Mapping[str, Any]) -> tuple[str, str]:
    """Rouge-L of the continuations of planted passages, every pair of arms paired by seed (Bonferroni)."""
    repeats, pairs = claim["repeats"], claim["pairs"]
    level = 1 - 0.05 / len(pairs)
    buckets = {
        seed: {
            name: next(one for one in arm["buckets"] if one["repeats"] == repeats)
            for name, arm in run.items()
        }
        for seed, run in found["seeds"].items()
    }
    said, verdicts = [], []
    for name in dict.fromkeys(name for pair in reversed(pairs) for name in reversed(pair)):
        of_all = [run[name] for run in buckets.values()]
        total, whole = (sum(one[key] for one in of_all) for key in ("passages", "extracted"))
        said.append(f"{name} continues {whole} of {total} passages word for word")
    for arm, rival in pairs:
        apart = [
            run[arm]["rouge_l"]["mean"] - run[rival]["rouge_l"]["mean"] for run in buckets.values()
        ]
        ends = interval(apart, level)
        if ends.low is None or ends.high is None:
            raise ValueError("memorization needs the audits of two seeds or more")
        said.append(
            f"Rouge-L of {arm} {ends.mean:+.3f} ({ends.low:+.3f} to {ends.high:+.3f}) against {rival}"
        )
        side = "lower" if ends.high < 0 else "higher" if ends.low > 0 else "not shown to differ"
        verdicts.append(f"{arm} {side}")
    return f"{'; '.join(said)}; {len(buckets)} seeds", ", ".join(verdicts)


def collected(runs: Sequence[Path]) -> dict[str, Any]:
    """Memorization by repeats in finished runs of audit.goldfish, by seed and arm."""
    seeds: dict[str, Any] = {}
    for run in runs:
        recipe = _read(run / "config.json")
        files = sorted(run.glob("arms/*/audit/memorization.json"))
        seeds[str(recipe["config"]["pretrain"]["seed"])] = {
            file.parents[1].name: _audited(_read(file)) for file in files
        }
    return {"schema": 1, "seeds": dict(sorted(seeds.items(), key=lambda item: int(item[0])))}


def _audited(found: Mapping[str, Any]) -> dict[str, Any]:
    kept = ("repeats", "passages", "extracted", "rouge_l", "exact_prefix_tokens", "minus_control")
    buckets = [{k: v for k, v in one.items() if k in kept} for one in found["buckets"]]
    return {"model_sha256": found.get("model_sha256"), "buckets": buckets}


def _slope(claim: Mapping[str, Any], found: Mapping[str, Any]) -> tuple[str, str]:
    arm = next(one for one in found["arms"] if one["name"] == claim["arm"])
    measure = next(one for one in arm["measures"] if one["name"] == claim["measure"])
    slope, layers, seeds = measure["slope"], measure["layers"], len(arm["seeds"])
    said = (
        f"{claim['measure']} changes by {slope['mean']:+.4f} a layer ({slope['low']:+.4f} to {slope['high']:+.4f}), "
        f"from {layers[0]['mean']:.3f} to {layers[-1]['mean']:.3f} over {len(layers)} layers, {seeds} seeds"
    )
    if slope["high"] < 0 or slope["low"] > 0:
        return said, "shown" if slope["mean"] < 0 else "contradicted"
    return said, "not shown"


def _detail(claim: Mapping[str, Any], said: str, verdict: str) -> str:
    """Heading, numbers and command of a claim."""
    published = ": ".join(part for part in (claim["source"], claim["published"]) if part)
    lines = [f"- published: {published}\n"] if published else []
    lines += [f"- measured: {part}\n" for part in said.split("; ") if part]
    command = f"\n```\n{claim['command']}\n```\n" if claim["command"] else ""
    return (
        f"\n### {claim['key']}: {claim['claim']}\n\n{''.join(lines)}- verdict: {verdict}\n{command}"
    )


if __name__ == "__main__":
    if sys.argv[1:2] == ["memorization"]:
        print(json.dumps(collected([Path(word) for word in sys.argv[2:]]), indent=1))
    else:
        write_text(PAGE, page())
        write_text(PLOT, plot())
        write_text(SPREADS, json.dumps(spreads(), indent=1) + "\n")
