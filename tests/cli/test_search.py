"""`stamm search` from families to a verdict, resumed, and its errors."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from stamm.corpus.inputs import locate
from stamm.recipes import searches
from tests.conftest import Stamm

pytestmark = pytest.mark.slow  # derives activations and trains


@pytest.mark.timeout(900)  # 100 CPU seconds, and several processes
def test_a_search_ends_with_a_verdict_and_is_resumed(stamm: Stamm, tmp_path: Path) -> None:
    done = stamm("search", "smoke", "--out", "found", timeout=600)
    assert done.returncode == 0, done.stderr
    root = tmp_path / "found"
    result = json.loads((root / "search.json").read_text())
    assert result["state"] == "complete"
    assert [one["name"] for one in result["confirmations"]] == ["small", "deep"]
    first, second = result["rounds"]
    # xIELU in other words is found by the detector and never trained.
    assert sorted(one["name"] for one in first["ranking"]) == ["pieces_0_1", "pieces_0_2"]
    assert len(second["ranking"]) == sum(one["kept"] for one in first["ranking"]) <= 2
    assert result["finalist"] == second["ranking"][0]["name"]
    assert "pieces_0_0 is the function xielu" in (root / "search.html").read_text()
    assert result["sentences"][0] in done.stdout
    # The plan is older than the first training run, and names the candidates.
    plan = root / "plan" / "plan.json"
    assert plan.stat().st_mtime < (root / "rounds" / "1" / "config.json").stat().st_mtime
    assert len(json.loads(plan.read_text())["candidates"]) == 2
    # A lost confirmation is made again, with the same numbers; all else is kept.
    before = (root / "search.json").read_bytes()
    (root / "confirm" / "deep" / "comparison.json").unlink()
    again = stamm("search", "smoke", "--out", "found")
    assert again.returncode == 0, again.stderr
    assert (root / "search.json").read_bytes() == before
    assert "train" not in again.stderr
    page = (root / "search.html").read_bytes()
    (root / "search.html").unlink()
    assert stamm("report", "found").returncode == 0
    assert (root / "search.html").read_bytes() == page
    other = stamm("search", "smoke", "compare.seeds=3,4", "--out", "found")
    assert other.returncode != 0
    assert "seeds" in other.stderr


def _copy(folder: Path) -> Path:
    """The search's own text under another name."""
    (name,) = searches.smoke().compare.corpus.inputs
    return Path(shutil.copy(locate(name, "inputs"), folder / "other.jsonl.zst"))


def test_errors_and_the_plan(stamm: Stamm, tmp_path: Path) -> None:
    for words, said in (
        (("smoke", "confirm.0.compare.seeds=1,2"), "seeds of the search: [1, 2]"),
        (("smoke", "confirm.1.compare.confidence=0.9"), "confidence of 0.99"),
        (
            ("smoke", f"confirm.0.compare.corpus.inputs={_copy(tmp_path)}"),
            "holds a text of the search",
        ),
        (
            ("smoke", "confirm.1.compare.corpus.inputs=package:guides.jsonl.zst"),
            "package:guides.jsonl.zst holds a text of the search",
        ),
        (("smoke", "rounds.1.keep=2"), "the last round must have keep = 1"),
        (("demo",), "demo is not a search"),
    ):
        done = stamm("search", *words)
        assert done.returncode == 2, done.stdout
        assert said in done.stderr
        assert "Traceback" not in done.stderr
    done = stamm("run", "search.smoke")
    assert (done.returncode, "`stamm search search.smoke`" in done.stderr) == (2, True)
    done = stamm("search", "smoke", "--dry-run")
    assert done.returncode == 0, done.stderr
    assert "x <= 0: alpha_n*tanh(x) + beta" in " ".join(done.stdout.split())
    assert "confirm deep" in done.stdout
    assert not (tmp_path / "runs").exists()
