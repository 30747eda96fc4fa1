"""docs/evidence.md: written from committed JSON alone."""

from __future__ import annotations

import hashlib
import json
import math
import re
from pathlib import Path

import pytest

from stamm.compare.job import run
from stamm.pages.config import ReportConfig
from stamm.runs.job import Workspace
from tests.unit.compare.test_comparison import LOSSES, write_comparison
from tests.unit.reports.run_folder import write
from tools.evidence import (
    FOLDER,
    PAGE,
    PLOT,
    SPREADS,
    add,
    collected,
    edges,
    estimates,
    measured,
    page,
    plot,
    spreads,
)
from tools.evidence_studies import decomposition, ladder


def test_the_page_is_what_the_committed_results_give() -> None:
    assert PAGE.read_text(encoding="utf-8") == page(), "run `python -m tools.evidence`"
    assert PLOT.read_text(encoding="utf-8") == plot()
    assert json.loads(SPREADS.read_text(encoding="utf-8")) == spreads()
    claims = json.loads((FOLDER / "claims.json").read_text(encoding="utf-8"))
    assert sorted({claim["key"] for claim in claims}) == list("abcdefghij")
    missing = [
        claim
        for claim in claims
        if not all(
            (FOLDER / name).is_file()
            for name in [claim.get("result"), *claim.get("results", ())]
            if name
        )
    ]
    # Once in the list of claims, once with its measurements
    assert page().count("| planned |") == page().count("- verdict: planned") == len(missing)
    links = re.findall(r"\]\(((?:evidence|log|images)/[^)]+)\)", page())
    assert not [link for link in links if not (PAGE.parent / link).is_file()]


@pytest.mark.parametrize(
    ("apart", "verdict"),
    [(-0.1, "shown"), (0.1, "contradicted"), (0.0, "not shown; above 0.0036 excluded")],
)
def test_a_verdict_follows_from_the_result(tmp_path: Path, apart: float, verdict: str) -> None:
    # apart +- 0.001: 6.2053 * 0.001 / sqrt 3, for Holm's first of two comparisons shows nothing at 0.0
    base = LOSSES["swiglu"]
    mine = tuple(bits + apart + off for bits, off in zip(base, (0.001, -0.001, 0.0), strict=True))
    root = write_comparison(tmp_path / "mine", {**LOSSES, "xielu": mine})
    run(ReportConfig(), Workspace(folder=root, inputs={"run": root}))
    claim = {
        "key": "a",
        "claim": "c",
        "source": "s",
        "published": "p",
        "command": "",
        "arm": "xielu",
    }
    found = measured({**claim, "result": "mine/comparison.json"}, tmp_path)
    assert found[1] == f"{verdict} (exploratory)"
    assert " against swiglu, tokens to the same loss " in found[0]
    assert found[0].endswith("; 1M parameters, 246k tokens, 3 seeds")
    write(tmp_path / "claims.json", [{**claim, "result": "mine/comparison.json"}])
    text = page(tmp_path)
    assert f"| a1 | c | {found[1]} | [data](evidence/mine/comparison.json) |\n" in text
    assert f"- measured: {found[0].partition('; ')[0]}\n" in text
    (drawn,) = estimates({**claim, "result": "mine/comparison.json"}, tmp_path)
    assert found[0].startswith(f"{drawn.text()} against swiglu")
    assert drawn.size() == "1M · 0.25"
    # One of the legend, the difference (hollow around 0), and the tokens to the same loss
    assert plot(tmp_path).count('<circle class="t0 open"') >= (apart == 0)
    assert plot(tmp_path).count("<circle") == 2 + (drawn.log_tokens is not None)


@pytest.mark.parametrize(
    ("low", "high", "verdict"),
    [(-0.03, -0.01, "shown"), (0.01, 0.03, "contradicted"), (-0.01, 0.03, "not shown")],
)
def test_a_verdict_on_a_slope_over_depth(
    tmp_path: Path, low: float, high: float, verdict: str
) -> None:
    slope = {"mean": (low + high) / 2, "low": low, "high": high}
    layers = [{"mean": 0.5}, {"mean": 0.25}]
    measure = {"name": "nonlinearity", "layers": layers, "slope": slope}
    arm = {"name": "xielu", "seeds": [1, 2, 3], "measures": [measure]}
    write(tmp_path / "observed.json", {"arms": [arm]})
    claim = {"arm": "xielu", "measure": "nonlinearity", "result": "observed.json"}
    said, found = measured(claim, tmp_path)
    assert found == verdict
    assert "from 0.500 to 0.250 over 2 layers, 3 seeds" in said


def test_pairs_of_arms_are_judged_at_the_level_of_the_look(tmp_path: Path) -> None:
    bits = {
        "child": (2.201, 2.249, 2.15),
        "parent": (2.30, 2.35, 2.25),
        "other": (2.31, 2.34, 2.25),
    }
    by_seed = {
        name: {"bits_per_byte": {str(n): v for n, v in enumerate(values, 1)}}
        for name, values in bits.items()
    }
    base = {"name": "parent", "parameters": 1_000_000, "tokens": 245_760}
    ratio = {"mean": math.log(0.8), "low": math.log(0.75), "high": math.log(0.85)}
    lines = [base, {**base, "name": "child", "log_tokens": ratio}]
    lines.append({**base, "name": "other", "log_tokens": None})
    result = {
        "by_seed": by_seed, "confidence": 0.95, "baseline": "parent", "lines": lines,
        "exploratory": False,
    }  # fmt: skip
    write(tmp_path / "c.json", result)
    pairs = [["child", "parent"], ["other", "parent"]]
    claim = {"pairs": pairs, "looks": [3], "result": "c.json"}
    said, verdict = measured(claim, tmp_path)
    # -0.099, -0.101, -0.1: s / sqrt 3 = 0.000577, t of 1 - 0.05 / 4 and 2 degrees: 6.2053
    told = "child -0.1000 (-0.1036 to -0.0964) against parent, tokens to the same loss "
    assert told + "-20.0 % (-25.0 to -15.0); other" in said
    assert verdict == "child lower, other not shown to differ"
    base["tokens"] = 245_760 / 0.7
    lines[1]["tokens"] = 245_760
    write(tmp_path / "c.json", result)
    assert measured(claim, tmp_path)[0].startswith("child with 70 % of the tokens -0.1000 ")
    # The first of two looks has less of the error rate, so its interval is wider.
    wider, _ = measured({**claim, "looks": [3, 6]}, tmp_path)
    assert "(-0.1036" not in wider
    # An arm that diverged has no mean, whatever its held-out loss.
    lines[2]["diverged"] = [2]
    write(tmp_path / "c.json", result)
    assert measured(claim, tmp_path) == ("", "other diverged")


def test_rates_at_an_edge_of_the_grid_are_told(tmp_path: Path) -> None:
    lines = [{"name": "swiglu", "at_edge": True}, {"name": "xielu", "factor_at_edge": True}]
    write(tmp_path / "a.json", {"lines": [*lines, {"name": "relu2", "at_edge": False}]})
    write(tmp_path / "b.json", {"lines": lines[:1]})
    assert edges({"result": "a.json"}, tmp_path) == ["learning rate of swiglu", "rate of the shapes of xielu"]  # fmt: skip
    assert edges({"results": ["a.json", "b.json"]}, tmp_path)[-1] == "learning rate of swiglu (b)"  # fmt: skip
    assert edges({"result": "missing.json"}, tmp_path) == []
    rows = [line for line in page().splitlines() if line.startswith("| i1 ")]
    assert "†" in rows[0]


@pytest.mark.parametrize(
    ("last", "verdict"),
    [(0.01, "the difference rises"), (-0.5, "the difference falls"), (-0.1, "no trend shown")],
)
def test_a_trend_over_lengths(tmp_path: Path, last: float, verdict: str) -> None:
    for name, tokens, apart, noise in (("a", 1e5, -0.1, 0.002), ("b", 1e6, last, -0.002)):
        by_seed = {
            "swiglu": {"bits_per_byte": {"1": 2.0, "2": 2.1, "3": 2.2}},
            "relu2": {"bits_per_byte": {"1": 2.5, "2": 2.6, "3": 2.7}},
            "xielu": {
                "bits_per_byte": {
                    "1": 2.0 + apart,
                    "2": 2.1 + noise + apart,
                    "3": 2.2 - noise + apart,
                },
            },
        }
        line = {"name": "xielu", "parameters": 10, "tokens": tokens, "log_tokens": None}
        result = {
            "baseline": "swiglu", "exploratory": False, "lines": [line], "by_seed": by_seed,
        }  # fmt: skip
        write(tmp_path / f"{name}.json", result)
    said, found = measured({"arm": "xielu", "results": ["a.json", "b.json"]}, tmp_path)
    # 0, 0.002, -0.002: s / sqrt 3 = 0.001155, t of 0.95 and 2 degrees: 4.3027
    assert "-0.1000 ± 0.0050 at 100k tokens (3 seeds)" in said
    assert found == verdict
    # The same seeds, whose slopes are 0, -0.004 and 0.004.
    assert said.endswith(f"{last + 0.1:+.4f} ± 0.0099 for ten times the tokens")
    # A rival that is not the baseline, half a bit above it.
    claim = {"arm": "xielu", "rival": "relu2", "results": ["a.json", "b.json"]}
    rival, same = measured(claim, tmp_path)
    assert rival.startswith("-0.6000 ± 0.0050 at 100k tokens")
    assert same == verdict


def test_memorization_is_paired_by_seed(tmp_path: Path) -> None:
    def bucket(repeats: int, extracted: int, rouge: float) -> dict[str, object]:
        return {
            "repeats": repeats,
            "passages": 6,
            "extracted": extracted,
            "rouge_l": {"mean": rouge},
        }

    for seed, (none, mine) in enumerate(((1.0, 0.70), (0.9, 0.61), (0.8, 0.49)), start=1):
        run = tmp_path / f"run{seed}"
        write(run / "config.json", {"config": {"pretrain": {"seed": seed}}})
        for arm, rouge, extracted in (("none", none, 6), ("stamm", mine, 1)):
            buckets = [bucket(0, 5, 0.1), bucket(128, extracted, rouge)]
            write(run / f"arms/{arm}/audit/memorization.json", {"buckets": buckets})
    found = collected([tmp_path / f"run{seed}" for seed in (3, 1, 2)])
    assert list(found["seeds"]) == ["1", "2", "3"]
    write(tmp_path / "m.json", found)
    claim = {"repeats": 128, "pairs": [["stamm", "none"]], "result": "m.json"}
    said, verdict = measured(claim, tmp_path)
    # -0.30, -0.29, -0.31: s / sqrt 3 = 0.00577, t of 0.95 and 2 degrees: 4.3027
    assert "none continues 18 of 18 passages word for word; stamm continues 3 of 18" in said
    assert "Rouge-L of stamm -0.300 (-0.325 to -0.275) against none; 3 seeds" in said
    assert verdict == "stamm lower"


def test_a_claim_that_cannot_be_tried_has_its_reason(tmp_path: Path) -> None:
    assert measured({"why": "not built"}, tmp_path) == ("", "cannot be tried: not built")


@pytest.mark.parametrize("winner", ["linear_0_1", ""])
def test_the_verdict_of_a_search(tmp_path: Path, winner: str) -> None:
    one = {
        "name": "small", "difference": -0.01, "low": -0.015, "high": -0.005, "p_value": 0.004,
        "matched": "parameters", "parameters": 1_280_000, "better": True, "excluded": None,
    }  # fmt: skip
    other = {**one, "name": "large", "low": -0.03, "better": False, "excluded": 0.03}
    result = {
        "state": "complete", "baseline": "xielu", "finalist": "linear_0_1", "winner": winner,
        "rounds": [{"ranking": [1, 2]}, {"ranking": [1]}],
        "confirmations": [one] if winner else [one, other],
    }  # fmt: skip
    write(tmp_path / "search.json", result)
    said, verdict = measured({"search": True, "result": "search.json"}, tmp_path)
    assert said.startswith(
        "2 gradients trained; finalist linear_0_1; small: -0.0100 (-0.0150 to -0.0050, p = 0.004) "
        "against xielu, equal parameters, 1.28M parameters"
    )
    assert verdict == ("shown" if winner else "not shown; above 0.0300 excluded (large)")
    # One confirmation that shows nothing decides; without one the search is not finished.
    write(tmp_path / "search.json", {**result, "state": "confirming", "confirmations": [one]})
    with pytest.raises(ValueError, match="confirming, not complete"):
        measured({"search": True, "result": "search.json"}, tmp_path)


def scale_result(shift: float, noise: float) -> dict[str, object]:
    """A comparison.json of three arms and two seeds, xielu `shift` above the others."""
    bits = {"swiglu": (2.0, 2.2), "relu2": (2.0, 2.2), "xielu": (2.0 + shift, 2.2 + shift + noise)}
    lines = [
        {
            "name": name, "parameters": 1_280_000, "tokens": 786_432, "log_tokens": None, "rate": 2e-3,
            "at_edge": name == "relu2", "shape_factor": 30.0 if name == "xielu" else None, "factor_at_edge": False,
        }
        for name in bits
    ]  # fmt: skip
    by_seed = {
        name: {"bits_per_byte": dict(zip(("101", "102"), values, strict=True))}
        for name, values in bits.items()
    }
    return {
        "lines": lines, "by_seed": by_seed, "baseline": "swiglu", "confidence": 0.95,
        "exploratory": False,
    }  # fmt: skip


def test_the_decomposition_has_every_variant_that_is_there(tmp_path: Path) -> None:
    assert "planned" in decomposition(tmp_path)
    write(tmp_path / "scale_plain.json", scale_result(0.1, 0.0))
    text = decomposition(tmp_path)
    assert "| xielu − relu2 | +0.1000 (+0.1000 to +0.1000) |\n" in text
    assert "| relu2 | 0.002* |\n" in text
    assert "| xielu | 0.002 × 30 |\n" in text
    assert "Change of the difference" not in text
    write(tmp_path / "scale_learned.json", scale_result(0.02, 0.01))
    text = decomposition(tmp_path)
    # 0.02 and 0.03: t of 1 - 0.05 / 6 and 1 degree of freedom is 38.19, so 0.025 +- 0.191
    assert (
        "| xielu − relu2 | +0.1000 (+0.1000 to +0.1000) | +0.0250 (-0.1659 to +0.2159) |\n" in text
    )
    # -0.08 and -0.07, and one variant beside the plain one: the same quantile
    assert "| xielu − relu2 | -0.0750 (-0.2659 to +0.1159) |\n" in text
    assert "| xielu | -0.0750 (-0.2659 to +0.1159) |\n" in text
    assert "| swiglu | +0.0000 (+0.0000 to +0.0000) |\n" in text
    gone = scale_result(0.1, 0.0)
    gone["lines"][0]["diverged"] = [101]  # type: ignore[index]
    write(tmp_path / "scale_init.json", gone)
    text = decomposition(tmp_path)
    assert "Without the variant initial deviation 0.02, in which swiglu diverged." in text
    assert text.count("initial deviation 0.02") == 1


def test_a_prediction_is_held_against_its_measurement(tmp_path: Path) -> None:
    for name in ("ladder_plan.json", "claims.json"):
        (tmp_path / name).write_bytes((FOLDER / name).read_bytes())
    assert "No point is measured yet: planned." in ladder(tmp_path)
    arms = ("swiglu", "relu2", "xielu")
    point = {
        "comparison": "p", "scale": "matched", "baseline": "swiglu", "plan_sha256": "",
        "parameters": dict.fromkeys(arms, 1e6), "tokens": dict.fromkeys(arms, 2e7),
        "rates": dict.fromkeys(arms, 1e-3),
        "log_tokens": {"swiglu": None, "relu2": {"mean": math.log(0.9), "low": math.log(0.8), "high": 0.0}, "xielu": None},
        "bits": {"swiglu": {"1": 1.5, "2": 1.6}, "relu2": {"1": 1.4, "2": 1.5}, "xielu": {"1": 1.5, "2": 1.7}},
    }  # fmt: skip
    law = {
        "floor": 1.0, "parameter_term": 0.5, "parameter_power": 0.3, "token_term": 0.4, "token_power": 0.2,
        "parameters": 1e6, "tokens": 2e7,
    }  # fmt: skip
    ends = {key: {"mean": 0.3, "low": 0.2, "high": 0.4} for key in ("floor", "parameter_power", "token_power")}  # fmt: skip
    laws = [
        {"arm": "swiglu", "law": law, "law_ends": ends, "residual": 0.001},
        # Better where runs are short: the laws cross where both token terms are equal, at 2e7 tokens.
        {"arm": "relu2", "law": {**law, "token_power": 0.1}, "law_ends": ends, "residual": 0.001},
        {"arm": "xielu", "law": {**law, "floor": 1.1, "token_power": 0.3}, "law_ends": ends, "residual": 0.001},
    ]  # fmt: skip
    half = {**point, "tokens": dict.fromkeys(arms, 1e7)}
    write(
        tmp_path / "ladder.json",
        {"points": [half, point], "laws": {"matched": laws, "as_is": []}},
    )
    prediction = {
        "comparisons": ["a", "b", "c", "d", "e"], "baseline": "swiglu", "parameters": 1e6, "tokens": 2e7,
        "arms": [
            {"arm": "swiglu", "loss": {"mean": 1.5, "low": 1.4, "high": 1.6}, "difference": None},
            {"arm": "relu2", "loss": {"mean": 1.6, "low": 1.5, "high": 1.7}, "difference": {"mean": -0.1, "low": -0.2, "high": 0.0}},
        ],
    }  # fmt: skip
    write(tmp_path / "ladder_prediction_matched_1.json", prediction)
    text = ladder(tmp_path)
    assert "| 1M | 20M | 20 | 2 | 1.5500 | +0.1500 (-1.7594 to +2.0594) | -0.1000" in text
    assert "| -10.0 % (-20.0 to +0.0) |" in text
    assert "| relu2 | 0.300 (0.200 to 0.400) |" in text
    assert "Fitted laws cross" in text
    sha256 = hashlib.sha256((tmp_path / "ladder_prediction_matched_1.json").read_bytes())
    assert sha256.hexdigest() in text
    assert re.search(
        r"\| swiglu \| 1.5000 \(1.4000 to 1.6000\) \| 1.5500 \([^)]*\) \| yes \|", text
    )
    assert re.search(r"\| relu2 \| 1.6000 [^|]*\| 1.4500 [^|]*\| no \|", text)
    assert re.search(r"\| relu2 − swiglu \| -0.1000 [^|]*\| -0.1000 [^|]*\| yes \|", text)
    claim = {"ladder": True, "result": "ladder.json"}
    said, verdict = measured(claim, tmp_path)
    assert said == "2 points, 1M to 1M parameters, 10M to 20M tokens"
    assert verdict == "2 of 3 predicted values in their intervals"
    labels = [estimate.label for estimate in estimates(claim, tmp_path)]
    assert labels == [f"{pair}, matched" for pair in ("xielu − relu2", "relu2 − swiglu", "xielu − swiglu")]  # fmt: skip


def test_a_finished_comparison_is_added_with_its_plan(tmp_path: Path) -> None:
    bits = {"count": 8}
    write(tmp_path / "run/comparison.json", {"lines": [{"bits": bits}, {"bits": bits}]})
    write(tmp_path / "run/plan/plan.json", {"looks": [8, 16]})
    add(tmp_path / "run", "mine", tmp_path)
    assert (tmp_path / "mine.json").read_bytes() == (tmp_path / "run/comparison.json").read_bytes()
    assert (tmp_path / "mine_plan.json").is_file()
    write(tmp_path / "run/comparison.json", {"lines": [{"bits": bits}, {"bits": {"count": 7}}]})
    with pytest.raises(ValueError, match=r"has \[7, 8\] seeds, and looks after \[8, 16\]"):
        add(tmp_path / "run", "mine", tmp_path)
