"""Every verb through the real command line, on a finished run."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.conftest import Stamm

VERBS = ("ls", "show", "cp", "plan", "run", "evaluate", "audit", "export", "report", "diff", "env")


def test_help_lists_every_verb(stamm: Stamm) -> None:
    text = stamm("--help").stdout
    for verb in VERBS:
        assert f"\n  {verb} " in text


@pytest.mark.parametrize("verb", VERBS)
def test_a_verbs_help_ends_with_three_examples(stamm: Stamm, verb: str) -> None:
    done = stamm(verb, "-h")
    assert done.returncode == 0
    examples = done.stdout.partition("examples:\n")[2].strip().splitlines()
    assert len(examples) == 3
    assert all(line.strip().startswith("stamm ") for line in examples)


def test_the_run_ends_with_the_verdict_and_the_path_of_the_report(smoke_run: Path) -> None:
    text = (smoke_run.parents[1] / "stdout.txt").read_text()
    assert text.rstrip().endswith("Report: runs/smoke/report.html")
    for arm in ("swiglu", "relu2", "xielu"):
        assert arm in text


def test_progress_goes_to_stderr_with_the_time_left(smoke_run: Path) -> None:
    text = (smoke_run.parents[1] / "stderr.txt").read_text()
    assert "[4/13] train swiglu" in text
    assert "\x1b" not in text


def test_ls_and_show(smoke_run: Path, stamm: Stamm) -> None:
    runs = json.loads(stamm("ls", "runs", "--in", str(smoke_run.parent), "--json").stdout)
    assert runs[0]["state"] == "complete"
    assert "xielu" in stamm("ls", "activations").stdout
    names = [row["name"] for row in json.loads(stamm("ls", "recipes", "--json").stdout)]
    assert {"demo", "pretrain.apertus_70b"} <= set(names)
    page = stamm("show", "xielu").stdout
    assert "alpha_p" in page
    assert "2411.13010" in page
    shown = json.loads(stamm("show", "smoke", "--json").stdout)
    stored = json.loads((smoke_run / "config.json").read_text())
    assert shown["config"] == stored["config"]
    assert "pretrain.xielu" in stamm("show", str(smoke_run)).stdout


def test_diff_exits_with_one_when_there_is_a_difference(smoke_run: Path, stamm: Stamm) -> None:
    same = stamm("diff", "smoke", str(smoke_run))
    assert (same.returncode, same.stdout) == (0, "no difference\n")
    other = stamm("diff", "smoke", "demo", "--json")
    assert other.returncode == 1
    assert {"key": "tokenizer.vocab_size", "left": 512, "right": 4096} in json.loads(other.stdout)


def test_a_copied_recipe_is_the_recipe(stamm: Stamm, tmp_path: Path) -> None:
    done = stamm("cp", "smoke", "mine.py")
    assert done.returncode == 0, done.stderr
    assert stamm("diff", "smoke", "mine.py:smoke").stdout == "no difference\n"
    assert "exists already" in stamm("cp", "smoke", "mine.py").stderr
    assert stamm("run", "mine.py:smoke", "--dry-run").returncode == 0
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize("verb", ["evaluate", "audit"])
def test_measuring_again_gives_the_same_bytes(smoke_run: Path, stamm: Stamm, verb: str) -> None:
    arm = smoke_run / "arms" / "relu2"
    before = {p.name: p.read_bytes() for p in (arm / verb).iterdir()}
    done = stamm(verb, str(arm))
    assert done.returncode == 0, done.stderr
    assert {p.name: p.read_bytes() for p in (arm / verb).iterdir()} == before


def test_a_swiglu_arm_exports_to_its_closest_stock_class(
    smoke_run: Path, stamm: Stamm, tmp_path: Path
) -> None:
    done = stamm("export", str(smoke_run / "arms" / "swiglu"), "--out", "swiglu-hf")
    assert done.returncode == 0, done.stderr
    config = json.loads(next((tmp_path / "swiglu-hf").rglob("config.json")).read_text())
    assert config["architectures"] == ["Qwen3ForCausalLM"]


def test_the_exported_folder_is_apertus(smoke_run: Path) -> None:
    folder = smoke_run / "arms" / "xielu" / "export"
    config = json.loads(next(folder.rglob("config.json")).read_text())
    assert config["architectures"] == ["ApertusForCausalLM"]
    assert list(folder.rglob("parity.json"))


def test_a_report_can_be_written_elsewhere_and_for_one_arm(
    smoke_run: Path, stamm: Stamm, tmp_path: Path
) -> None:
    done = stamm("report", str(smoke_run / "arms" / "xielu"), "--out", "arm.html")
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "arm.html").read_text().lower().startswith("<!doctype html>")


@pytest.mark.parametrize("verb", ["evaluate", "audit", "export", "report"])
def test_a_dry_run_writes_nothing(smoke_run: Path, stamm: Stamm, verb: str) -> None:
    before = {p: p.stat().st_mtime_ns for p in smoke_run.rglob("*")}
    assert stamm(verb, str(smoke_run), "--dry-run").returncode == 0
    assert {p: p.stat().st_mtime_ns for p in smoke_run.rglob("*")} == before


def test_plan_lays_out_the_full_size_recipes(stamm: Stamm) -> None:
    facts = json.loads(stamm("plan", "apertus_8b", "--gpus", "1024xGH200", "--json").stdout)
    assert facts["steps"] == 2_627_139
    assert facts["tokens"] == 3_662_109_375 * 4096
    assert 8.0e9 < facts["parameters"]["total"] < 8.1e9
    assert facts["learning_rate"][-1]["rate"] == pytest.approx(1.1e-5)
    text = stamm("plan", "apertus_70b", "--gpus", "4096xGH200").stdout
    for word in ("parameters", "memory", "moments", "work", "time", "disk", "learning rate"):
        assert word in text


def test_env_names_versions(stamm: Stamm) -> None:
    facts = json.loads(stamm("env", "--json").stdout)
    assert facts["libraries"]["torch"] != "missing"
    assert facts["compiler"]
