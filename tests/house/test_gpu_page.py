"""docs/gpu.md shows the results that are there, no others, and the limits that are held."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from bench import gpu_page, gpu_work
from bench.gpu_work import ALL_PASS, Limit, Result
from stamm.activations.benchmark import Quantiles

FACTS = {"device": "A GPU", "driver": "1", "torch": "2", "triton": "3", "commit": "c" * 40}


def _lines(path: Path, *results: Result) -> Path:
    lines = [{**r.line(), **FACTS, "dirty": None, "part": "any"} for r in results]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


def _share(case: str, seconds: float, ratio: float, benchmark: str = "xielu") -> Result:
    return Result(
        benchmark=benchmark,
        case=case,
        shape=(16, 32),
        seconds=Quantiles(p20=seconds / 2, p50=seconds, p80=seconds * 2),
        ratio=ratio,
        told="of the bandwidth of a copy",
        limit=Limit(at_least=0.9),
    )


def test_the_page_shows_the_results_that_are_there() -> None:
    _, shown, _ = gpu_page.parts(gpu_page.PAGE.read_text())
    assert shown == gpu_page.table(gpu_page.found()), "run python -m bench.gpu_page"


def test_a_result_that_is_there_is_shown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    page = tmp_path / "gpu.md"
    page.write_text(gpu_page.PAGE.read_text())
    monkeypatch.setattr(gpu_page, "PAGE", page)
    monkeypatch.setattr(gpu_page, "RESULTS", tmp_path)
    gpu_page.main()
    assert gpu_page.NONE in page.read_text()
    results = [
        _share("xielu forward", 0.004, 0.91),
        _share("xielu backward", 0.006, 0.89),
        _share("silu forward", 0.003, 0.95, "every entry"),
        _share("mish forward", 0.005, 0.5, "every entry"),
        Result(
            benchmark="tests", case="races", limit=Limit(at_most=0), not_run="no tool | is there"
        ),
    ]
    _lines(tmp_path / "gpu-a.jsonl", *results)
    _, shown, _ = gpu_page.parts(page.read_text())
    assert shown != gpu_page.table(gpu_page.found())
    gpu_page.main()
    _, shown, after = gpu_page.parts(page.read_text())
    assert shown == gpu_page.table(gpu_page.found())
    assert after == gpu_page.parts(gpu_page.PAGE.read_text())[2]
    rows = [line for line in shown.split("\n") if line.startswith("| ")]
    assert shown.startswith("### A GPU\n\nDriver 1, torch 2, Triton 3, commit cccccccccccc.")
    assert rows[1:] == [
        "| xielu | xielu forward | 16 × 32 | 4 (2 - 8) ms | 0.910 of the bandwidth of a copy"
        " | at least 0.9 | yes |",
        "| xielu | xielu backward | 16 × 32 | 6 (3 - 12) ms | 0.890 of the bandwidth of a copy"
        " | at least 0.9 | **no** |",
        "| tests | races |  |  | no tool / is there | at most 0 | not run |",
        "| every entry | forward | 16 × 32 | 3 (1.5 - 6) ms to 5 (2.5 - 10) ms | median 0.950,"
        " lowest 0.500 (mish) of the bandwidth of a copy | at least 0.9 | 1 of 2 |",
    ]


@pytest.mark.parametrize(
    ("limit", "value", "met"),
    [
        (Limit(at_least=0.9), 0.9, True),
        (Limit(at_least=0.9), 0.89, False),
        (Limit(at_most=1.05), 1.05, True),
        (Limit(at_most=1.05), 1.06, False),
        (Limit(at_least=0.9), float("nan"), False),
        (Limit(at_most=0.9), float("nan"), False),
    ],
)
def test_a_limit_is_kept_or_not(limit: Limit, value: float, met: bool) -> None:
    assert limit.met(value) is met
    assert _share("any", 1.0, value).line()["ratio"] is value


def test_a_line_says_what_it_is_held_to() -> None:
    line: dict[str, Any] = _share("any", 2.0, 0.8).line()
    assert (line["p20"], line["p50"], line["p80"]) == (1.0, 2.0, 4.0)
    assert line["limit"] == {"of": "ratio", "at_least": 0.9} and line["met"] is False
    first = Result(benchmark="b", case="c", seconds=Quantiles(p20=1, p50=3, p80=4))
    assert first.line()["met"] is None
    for failed, why, met in ((0, None, True), (0, "no room", None), (1, "no room", False)):
        tests = Result(
            benchmark="b", case="c", limit=ALL_PASS, not_run=why, more={"failed": failed}
        )
        assert tests.line()["met"] is met
    held = Result(benchmark="b", case="c", seconds=first.seconds, limit=gpu_work.FIRST)
    assert held.line()["met"] is False


def test_the_page_states_the_limits_that_are_held() -> None:
    page = gpu_page.PAGE.read_text()
    for limit in (gpu_work.SHARE, gpu_work.EVERY_SHARE):
        assert f"at least {limit.at_least:.2f}" in page
    for limit in (gpu_work.PRICE, gpu_work.BLOCK):
        assert f"at most {limit.at_most:.2f}" in page
    assert f"at most {gpu_work.NOT_SLOWER.at_most:.1f}" in page
    assert f"at most {gpu_work.HALF.at_most:.1f}" in page
    assert f"at most {gpu_work.FIRST.at_most:.0f} s" in page
    assert all(f"| `{part}` |" in page for part in gpu_work.BENCHMARKS)
