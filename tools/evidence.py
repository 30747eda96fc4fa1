"""Write docs/evidence.md, docs/images/evidence.svg and compare/spreads.json from docs/evidence/claims.json and the committed results that it names.

    python -m tools.evidence
    python -m tools.evidence add RUN NAME
    python -m tools.evidence memorization RUN [RUN ...] > docs/evidence/memorization.json

The second line copies the comparison.json and the plan of a finished comparison to docs/evidence/NAME.json and NAME_plan.json, and
writes the page; `tools.ladder` writes the results of the ladder. The third collects the audits of finished runs of
audit.goldfish, one for each seed.

A row of claims.json: key, claim, source, published, command, arm (whose difference to the baseline of the
comparison is the claim, lower meaning that it holds) and result: the path below docs/evidence of the
comparison.json that `stamm compare` wrote, or, for a claim with `measure`, of the observe_comparison.json that
`stamm observe` wrote: the claim holds if the slope of that measure over depth is negative. A claim with `pairs` has an
arm and its rival in each, at the planned `looks`; all pairs together have the level (Bonferroni). A claim with
`repeats` is about passages planted so often, in the collected audits; one with `results` is the trend of an arm's
difference to `rival` (the baseline, where none is named) over several comparisons, by parameters or tokens; one with `search` is the verdict of the
search.json that `stamm search` wrote. A claim with `ladder` is about ladder.json; one with `why` cannot be tried; one
whose result is not there is planned. history.json has what was superseded. Every figure of ours on the page comes from those files.
"""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Any

from stamm.base.files import write_text
from stamm.base.units import count_text
from stamm.compare.sizes import SizePoint, slope_of
from stamm.statistics.intervals import differences, interval
from stamm.statistics.power import pooled_spread
from stamm.statistics.sequential import shares_of
from stamm.statistics.student_t import t_quantile
from tools.evidence_plot import Estimate, draw
from tools.evidence_studies import (
    PAIRS,
    SCALES,
    bits_by_seed,
    decomposition,
    diverged,
    history,
    hits,
    ladder,
    ladder_bits,
)

ROOT = Path(__file__).parents[1]
PAGE, FOLDER = ROOT / "docs" / "evidence.md", ROOT / "docs" / "evidence"
PLOT = ROOT / "docs" / "images" / "evidence.svg"
SPREADS = ROOT / "src" / "stamm" / "compare" / "spreads.json"
HEAD = """# Evidence

The claims of the papers behind stamm, and what was measured here.

![Differences in held-out loss and in tokens to the same loss, with 95 % intervals.](images/evidence.svg)

Left: differences in bits per byte of held-out text, of the arm that is named first from the other; left of 0 it has the lower loss.
Right: tokens that it needs for the same training loss, where that was computed. The marker's form is the size, its colour the
tokens a parameter, and the last column has both. Intervals are 95 % over seeds, corrected for arms and looks
([comparisons.md](comparisons.md)). `python -m tools.evidence` writes this page and the plot from the committed results in `evidence/`.

**Orders of activations (a, c, g, h) hold at these recipes' initialisation and learning rates only.** At 0.6 tokens a parameter the
arms differ mostly in how fast the output of the feed-forward block can grow, as exploratory runs show
([log](log/2026-11-26-scale-of-the-block.md)); claims i separate this scale from the shape of the function, and claim j follows the differences over
sizes and lengths.

## Claims

| | claim | verdict | files |
|---|---|---|---|
"""
DETAILS = """
The verdict is *shown*, *not shown* with the differences that are excluded, or *contradicted*; of pairs of arms, which loss is *lower* or
*higher*. † A learning rate, or the rate of the shapes, lies at the edge of what was tried: there may be a better one. *Planned* claims have a recipe and no result yet. Where the file of a plan is not kept, its SHA-256 begins as given.

## Measurements

Trends by length, tokens to the same loss and slopes over depth ([observe.md](observe.md)) have plain 95 % intervals, without the correction
for arms and looks.
"""


def page(folder: Path = FOLDER) -> str:
    """The page as Markdown."""
    results = [
        (number, claim, *measured(claim, folder))
        for number, claim in numbered(_read(folder / "claims.json"))
    ]
    rows = [
        f"| {number} | {claim['claim']} | {verdict}{' †' * bool(edges(claim, folder))} | {_links(number, claim, folder)} |\n"
        for number, claim, _, verdict in results
    ]
    details = "".join(_detail(*result, edges(result[1], folder)) for result in results)
    text = HEAD + "".join(rows) + DETAILS + details
    if (folder / "history.json").is_file():
        text += decomposition(folder) + ladder(folder) + history(folder, partial(_was, folder))
    return text


def numbered(claims: Sequence[Mapping[str, Any]]) -> list[tuple[str, Mapping[str, Any]]]:
    """Claims with their numbers: a1, a2, b1."""
    counts: dict[str, int] = {}
    named = []
    for claim in claims:
        counts[claim["key"]] = counts.get(claim["key"], 0) + 1
        named.append((f"{claim['key']}{counts[claim['key']]}", claim))
    return named


def _links(number: str, claim: Mapping[str, Any], folder: Path) -> str:
    """The plan, the results and the command of a claim; the hash of a plan whose file is not kept."""
    links = []
    for name in _results(claim):
        plan = name.removesuffix(".json") + "_plan.json"
        found = _read(folder / name) if (folder / name).is_file() else {}
        if (folder / plan).is_file():
            links.append(f"[plan](evidence/{plan})")
        elif sha256 := found.get("plan_sha256"):
            links.append(f"plan {sha256[:8]}")
        if found:
            links.append(f"[data](evidence/{name})")
    if "plan" in claim and not links:
        links.append(f"[plan]({claim['plan']})")
    return " · ".join([*links, f"[command](#{number})"] if claim["command"] else links)


def _was(folder: Path, entry: Mapping[str, Any]) -> str:
    """The differences of a superseded result."""
    found = _differences(entry, _read(folder / entry["result"]))
    return "; ".join(
        f"{arm} {estimate.text()} against {rival}"
        for (arm, rival), (estimate, _) in zip(entry["pairs"], found, strict=True)
    )


def estimates(claim: Mapping[str, Any], folder: Path) -> list[Estimate]:
    """The differences in held-out loss that a claim is about; none of a trend, a slope or memorization."""
    if not _is_there(claim, folder) or claim.keys() & {"why", "measure", "repeats", "results"}:
        return []
    found = _read(folder / claim["result"])
    if "search" in claim:
        return [
            Estimate(
                f"finalist, {one['name'].replace('_', ' ')}",
                one["difference"],
                one["low"],
                one["high"],
                one["parameters"],
                None,
            )
            for one in found["confirmations"]
        ]
    if "ladder" in claim:
        return _largest(found)
    if "pairs" in claim:
        return [estimate for estimate, _ in _differences(claim, found)]
    line = next(line for line in found["lines"] if line["name"] == claim["arm"])
    if line.get("diverged") or not line["difference"]:
        return []
    return [_estimate(line, found["baseline"], line["difference"]["interval"], found["baseline"])]


def _estimate(
    line: Mapping[str, Any], rival: str, ends: Mapping[str, float], baseline: str
) -> Estimate:
    tokens = line.get("log_tokens") if rival == baseline else None
    return Estimate(
        f"{line['name']} − {rival}",
        ends["mean"],
        ends["low"],
        ends["high"],
        line["parameters"],
        line["tokens"],
        (tokens["mean"], tokens["low"], tokens["high"]) if tokens else None,
    )


def _largest(found: Mapping[str, Any]) -> list[Estimate]:
    """The pairs of arms at the point of the ladder with the most work, of each scale."""
    estimated = []
    for scale in SCALES:
        mine = [point for point in found["points"] if point["scale"] == scale]
        if not mine:
            continue
        point = max(mine, key=lambda p: p["parameters"][p["baseline"]] * p["tokens"][p["baseline"]])
        bits = ladder_bits(point)
        for arm, rival in PAIRS:
            apart = [bits[arm][seed] - bits[rival][seed] for seed in bits[arm]]
            keys = ("parameters", "tokens", "log_tokens")
            line = {"name": arm, **{key: point[key][arm] for key in keys}}
            ends = asdict(interval(apart, 1 - 0.05 / len(PAIRS)))
            one = _estimate(line, rival, ends, point["baseline"])
            estimated.append(replace(one, label=f"{one.label}, {scale.replace('_', ' ')}"))
    return estimated


def _is_there(claim: Mapping[str, Any], folder: Path) -> bool:
    names = _results(claim)
    return bool(names) and all((folder / name).is_file() for name in names)


def edges(claim: Mapping[str, Any], folder: Path) -> list[str]:
    """What was tuned to the end of its grid in the comparisons of a claim: "learning rate of swiglu"."""
    names = _results(claim) if _is_there(claim, folder) else []
    told = [
        f"{what} of {line['name']}" + (f" ({name.removesuffix('.json')})" if names[1:] else "")
        for name in names
        for line in _read(folder / name).get("lines", ())
        for key, what in (("at_edge", "learning rate"), ("factor_at_edge", "rate of the shapes"))
        if line.get(key)
    ]
    return list(dict.fromkeys(told))


def plot(folder: Path = FOLDER) -> str:
    """The forest plot of all differences in held-out loss, as SVG."""
    rows: list[Estimate | str] = []
    for number, claim in numbered(_read(folder / "claims.json")):
        if lines := estimates(claim, folder):
            rows += [f"{number}  {claim['claim']}", *lines]
    return draw(rows)


def measured(claim: Mapping[str, Any], folder: Path) -> tuple[str, str]:
    """What was measured, and the verdict."""
    if claim.get("why"):
        return "", f"cannot be tried: {claim['why']}"
    if not _is_there(claim, folder):
        return "", "planned"
    if "results" in claim:
        return _trend(claim, [_read(folder / name) for name in claim["results"]])
    found = _read(folder / claim["result"])
    if "measure" in claim:
        return _slope(claim, found)
    if "repeats" in claim:
        return _memorization(claim, found)
    if "ladder" in claim:
        return _ladder(found, folder)
    if "pairs" in claim:
        return _pairs(claim, found)
    if "search" in claim:
        return _search(found)
    lines = {line["name"]: line for line in found["lines"]}
    line, base = lines[claim["arm"]], lines[found["baseline"]]
    if gone := diverged([line, base]):
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


def _ladder(found: Mapping[str, Any], folder: Path) -> tuple[str, str]:
    points = found["points"]
    sizes = sorted({point["parameters"][point["baseline"]] for point in points})
    lengths = sorted({point["tokens"][point["baseline"]] for point in points})
    said = (
        f"{len(points)} points, {count_text(sizes[0])} to {count_text(sizes[-1])} parameters, "
        f"{count_text(lengths[0])} to {count_text(lengths[-1])} tokens"
    )
    hit, of_all = hits(folder)
    if not of_all:
        return said, "measured, no prediction"
    return said, f"{hit} of {of_all} predicted values in their intervals"


def _pairs(claim: Mapping[str, Any], found: Mapping[str, Any]) -> tuple[str, str]:
    """Every pair of arms, paired by seed, at the level of the look that ended the comparison."""
    lines = {line["name"]: line for line in found["lines"]}
    said, verdicts = [], []
    if gone := diverged([lines[name] for pair in claim["pairs"] for name in pair]):
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
    bits = bits_by_seed(found)
    looks, level = tuple(claim["looks"]), 1 - (1 - found["confidence"]) / len(claim["pairs"])
    estimated = []
    for arm, rival in claim["pairs"]:
        both = {name: bits[name] for name in (rival, arm)}
        seeds = len(both[arm].keys() & both[rival].keys())
        (one,) = differences(both, rival, level, shares_of(looks), looks.index(seeds))
        ends = one.interval
        if ends.low is None or ends.high is None:
            raise ValueError(f"{arm} against {rival} has no interval")
        line = next(line for line in found["lines"] if line["name"] == arm)
        ends_of = {"mean": ends.mean, "low": ends.low, "high": ends.high}
        estimated.append((_estimate(line, rival, ends_of, found["baseline"]), one.shown))
    return estimated


def spreads(folder: Path = FOLDER) -> list[dict[str, Any]]:
    """Rows of compare/spreads.json: the pooled spread over seeds of each comparison that claims.json names."""
    rows = []
    for name in sorted(
        {name for claim in _read(folder / "claims.json") for name in _results(claim)}
    ):
        if not (folder / name).is_file():
            continue
        read = _read(folder / name)
        lines = read.get("lines", []) if isinstance(read, dict) else []
        if not lines or "by_seed" not in read:
            continue
        spread = pooled_spread(bits_by_seed(read), read["baseline"], ())
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
    bits = bits_by_seed(found)
    arm, rival = claim["pairs"][-1]
    return len(bits[arm].keys() & bits[rival].keys())


def _share(line: Mapping[str, Any], rival: Mapping[str, Any]) -> str:
    """ " with 70 % of the tokens": of an arm that was given fewer."""
    share = line["tokens"] / rival["tokens"]
    return f" with {100 * share:.0f} % of the tokens" if share < 0.9 else ""


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
        if gone := diverged(
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


def _detail(
    number: str, claim: Mapping[str, Any], said: str, verdict: str, edge: Sequence[str]
) -> str:
    """Heading, claim, numbers and command."""
    published = ": ".join(part for part in (claim["source"], claim["published"]) if part)
    lines = [f"- published: {published}\n"] if published else []
    lines += [f"- measured: {part}\n" for part in said.split("; ") if part]
    lines += [f"- † at the edge of what was tried: {', '.join(edge)}\n"] if edge else []
    command = f"\n```\n{claim['command']}\n```\n" if claim["command"] else ""
    return f"\n### {number}\n\n{claim['claim']}\n\n{''.join(lines)}- verdict: {verdict}\n{command}"


def add(run: Path, name: str, folder: Path = FOLDER) -> None:
    """Copy the result and the plan of a finished comparison.

    Raises   ValueError where its arms do not have the seeds of one planned look
    """
    found, plan = _read(run / "comparison.json"), _read(run / "plan" / "plan.json")
    counts = {line["bits"]["count"] if line["bits"] else 0 for line in found["lines"]}
    if len(counts) > 1 or not counts <= set(plan["looks"]):
        raise ValueError(f"{run} has {sorted(counts)} seeds, and looks after {plan['looks']}")
    for source, target in (("comparison.json", ""), ("plan/plan.json", "_plan")):
        (folder / f"{name}{target}.json").write_bytes((run / source).read_bytes())


if __name__ == "__main__":
    if sys.argv[1:2] == ["memorization"]:
        print(json.dumps(collected([Path(word) for word in sys.argv[2:]]), indent=1))
    else:
        if sys.argv[1:2] == ["add"]:
            add(Path(sys.argv[2]), sys.argv[3])
        write_text(PAGE, page())
        write_text(PLOT, plot())
        write_text(SPREADS, json.dumps(spreads(), indent=1) + "\n")
