"""`stamm plan`: what it prints, and whose speed it plans by."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from stamm.base.config import to_plain
from stamm.cli.main import main
from stamm.engine.config import EngineConfig
from stamm.models.flops import training_flops
from stamm.pretrain.config import PretrainConfig
from stamm.recipes.apertus import apertus_8b

TIMING = {
    "device": "cuda:0",
    "devices": {"NVIDIA GH200 120GB": 8},
    "processes": {"data": 4, "context": 1, "tensor": 2},
    "tokens_per_s_median": 40_000.0,
}


def _finished(folder: Path, config: PretrainConfig, **timing: Any) -> Path:
    (folder / "log").mkdir(parents=True)
    plain = {"schema": 1, "kind": "pretrain", "config": to_plain(config)}
    (folder / "config.json").write_text(json.dumps(plain))
    told = TIMING | timing
    speed = told["tokens_per_s_median"]
    seconds = config.batch[0].size * config.context / speed if speed else 1.0
    first = {"step": 1, "speed/seconds": seconds, "speed/tokens_per_s": speed}
    (folder / "log" / "speed.jsonl").write_text(json.dumps(first) + "\n")
    (folder / "log" / "timing.json").write_text(json.dumps(told))
    return folder


def _facts(capsys: pytest.CaptureFixture[str], *words: str) -> dict[str, Any]:
    assert main(["plan", *words, "--json"]) == 0
    facts: dict[str, Any] = json.loads(capsys.readouterr().out)
    return facts


def _words(capsys: pytest.CaptureFixture[str]) -> str:
    """What was printed, without its line breaks."""
    return " ".join(capsys.readouterr().out.split())


def test_a_plan_is_told_in_words(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", "apertus_8b", "engine.precision=bfloat16", "--gpus", "1024xGH200"]) == 0
    said = _words(capsys)
    for line in (
        "per device of 89.4 GiB (NVIDIA GH200 data sheet, with HBM3)",
        "512 x 1 x 2 processes (data x context x tensor), bfloat16",
        "matrices: 8.05B by ademamix, weight decay 0.1, learning rate x 1",
        "24 d 8 h on 1024xGH200 at 34% of peak (assumed: MFU of Apertus 8B)",
        'warning goldfish.hash = "apertus" with h = 50 wraps to 0',
        "1.86k a parameter",
    ):
        assert line in said, said


def test_a_plan_says_how_replicas_divide_the_processes(capsys: pytest.CaptureFixture[str]) -> None:
    words = ("apertus_8b", "engine.precision=bfloat16", "--gpus", "1024xGH200")
    assert main(["plan", *words, "engine.parallel.replicas=16"]) == 0
    line = "(data x context x tensor) in 16 replicas, each sharded over 64 processes, bfloat16"
    assert line in _words(capsys)


def test_a_plan_goes_by_the_speed_of_a_finished_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    small = replace(apertus_8b(), sequences=1_000_000)
    run = _finished(tmp_path / "runs" / "small", small)
    facts = _facts(capsys, "apertus_8b", "--gpus", "16xGH200", "--like", str(run))
    achieved = 40_000 / 8 * training_flops(small.model, 4096) / 4096
    assert facts["time"]["seconds"] == pytest.approx(
        facts["flops"]["total"] / (16 * achieved), rel=1e-3
    )
    assert facts["time"]["utilisation"] == pytest.approx(achieved / 989e12, rel=1e-3)
    assert str(run) in facts["time"]["source"]


def test_an_arm_goes_by_the_arm_of_its_name(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    alone = {"device": "cpu", "devices": {"A processor": 1}, "processes": {"data": 1}}
    for name, speed in (("swiglu", 100.0), ("relu2", 200.0), ("xielu", 300.0)):
        engine = EngineConfig(compile="off", threads=1)
        config = PretrainConfig(engine=engine)
        _finished(tmp_path / "arms" / name, config, **alone, tokens_per_s_median=speed)
    facts = _facts(capsys, "smoke", "--like", str(tmp_path))
    rates = {name: arm["flops"]["total"] / arm["time"]["seconds"] for name, arm in facts.items()}
    assert rates["xielu"] == pytest.approx(3 * rates["swiglu"], rel=0.02)  # not one work
    assert main(["plan", "llama_1b_xielu", "--like", str(tmp_path)]) == 1
    assert "Name an arm; there are:" in capsys.readouterr().err


@pytest.mark.parametrize(
    "timing",
    [
        {"tokens_per_s_median": None},
        {"tokens_per_s_median": 0.0},
        {"tokens_per_s_median": float("nan")},
        {"processes": {"data": 0}},
        {"processes": 3},
        {"processes": {"data": "many"}},
        {"devices": None},
    ],
)
def test_a_run_that_does_not_say_how_fast_it_was_is_refused(
    timing: dict[str, Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = _finished(tmp_path / "run", PretrainConfig(), **timing)
    assert main(["plan", "apertus_8b", "--gpus", "8xH100", "--like", str(run)]) == 1
    assert "has no recorded throughput" in capsys.readouterr().err


def test_a_speed_is_not_carried_from_one_kind_of_device_to_another(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = _finished(tmp_path / "run", PretrainConfig())
    assert main(["plan", "apertus_8b", "--like", str(run)]) == 2
    assert (
        "was trained on NVIDIA GH200 120GB, and this is planned for this machine's CPU"
        in capsys.readouterr().err
    )
    assert main(["plan", "apertus_8b", "--like", str(tmp_path / "none")]) == 1
    assert "is not one finished run" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--gpus", "0xH100"], "'0xH100' is not a number and a known device"),
        (["--gpus=-8xH100"], "'-8xH100' is not a number and a known device"),
        (["--gpus", "1.5xH100"], "is not a number and a known device"),
        (["--gpus", "8xV100"], "Known: A100, B200, GH200, H100, H200"),
        (["--gpus", "9" * 5000 + "xH100"], "is not a number and a known device"),
        (["--gpus", "1\u0663xH100"], "is not a number and a known device"),
        (["--gpus", ""], "'' is not a number and a known device"),
        (["--gpus", "8xH100\n"], "is not a number and a known device"),
        (["--sequences", ""], "'' is not a whole number below 2^64 (--sequences)"),
        (["--sequences", "-5"], "'-5' is not a whole number below 2^64 (--sequences)"),
        (["--sequences", "nan"], "(--sequences)"),
        (["--sequences", "0"], "(--sequences)"),
        (["--like", ""], "(--like)"),
        (["--like", "/dev/null"], "/dev/null is not one finished run (--like)"),
    ],
)
def test_what_is_no_number_and_no_run_is_answered_in_one_line(
    words: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["plan", "apertus_8b", *words]) in (1, 2)
    line = capsys.readouterr().err
    assert said in line and line.count("\n") == 1 and len(line) < 400


@pytest.mark.parametrize("gpus", [None, "1xA100", "1xB200", "8xgh200", "100000000xH200"])
def test_every_shipped_recipe_has_a_plan(
    gpus: str | None, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("apertus_8b", "apertus_70b", "llama_1b_xielu", "llama_3b_xielu"):
        facts = _facts(capsys, name, *(["--gpus", gpus] if gpus else []))
        if gpus is not None or not torch.cuda.is_available():
            assert facts["time"]["seconds"] > 0
            assert ("on an idle machine" in facts["time"]["source"]) == (gpus is None)
        assert facts["memory"]["per_device"] > 0 and facts["steps"] > 0


def test_products_in_8_bits_are_planned_for_gpus_that_have_them(
    capsys: pytest.CaptureFixture[str],
) -> None:
    eight = ["llama_1b_xielu", "engine.precision=float8"]
    assert main(["plan", *eight, "--gpus", "8xH100"]) == 0
    said = _words(capsys)
    assert "compute capability" not in said
    assert "as in bfloat16: unknown for 8 bits" in said
    assert "unsharded weights in use, bfloat16" in said
    for where in (["--gpus", "8xA100"], []):
        assert main(["plan", *eight, *where]) == 0
        assert "needs a GPU of compute capability 8.9 or newer" in _words(capsys)
