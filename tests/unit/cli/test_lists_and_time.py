"""Lists fit into 80 columns and have groups; dry runs give the expected time."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest

from stamm.align.data.prepare_config import PrepareConfig
from stamm.align.training.finetune_config import FineTuneJobConfig
from stamm.base.config import to_plain
from stamm.base.files import write_json
from stamm.cli import training_time
from stamm.cli.main import main
from stamm.cli.output import print_groups
from stamm.cli.run import _fine_tuning
from stamm.pretrain.plan import plan
from stamm.pretrain.throughput_model import CPU_BALANCE, CPU_SHARE, cpu_throughput
from stamm.recipes.demo import demo
from stamm.runs.job import Step


@pytest.mark.parametrize("kind", ["activations", "recipes"])
def test_lists_fit_into_80_columns_under_headings(
    kind: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    assert main(["ls", kind]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) <= 80
    headings = [line for line in lines if line and not line.startswith(" ")]
    assert len(headings) == len(set(headings)) > 4
    assert all(heading.startswith(kind) for heading in headings)
    if kind == "activations":
        assert re.search(r"^  swiglu .*\[gated\]$", "\n".join(lines), re.MULTILINE)
        assert not re.search(r"^  silu .*\[gated\]$", "\n".join(lines), re.MULTILINE)


def test_a_long_name_is_kept_whole(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "40")
    print_groups({"group": [("a" * 30, "one two three four five six seven eight")]})
    heading, first, second = capsys.readouterr().out.splitlines()
    assert heading == "group"
    assert first == f"  {'a' * 30}  one two three four five six"
    assert second == " " * 34 + "seven eight"


def test_the_expected_time_is_work_over_the_speed_of_products() -> None:
    study = demo()
    run = replace(study.pretrain_of(study.arms[0]), sequences=4642)
    throughput = cpu_throughput(100e9, 2, compiled=True)
    assert throughput.flops_per_s == 2 * CPU_SHARE * 100e9
    assert throughput.bytes_per_s == throughput.flops_per_s / CPU_BALANCE
    planned = plan(run, None, None, throughput)
    seconds = planned["time"]["seconds"]
    assert seconds > planned["flops"]["total"] / throughput.flops_per_s
    assert seconds == pytest.approx(108, rel=0.2)  # 6.31 TFLOP and 0.23 TB, at 180 GFLOP/s


def test_the_line_names_the_number_of_runs_and_divides_by_jobs(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(training_time, "_core_flops", lambda: 100e9)
    monkeypatch.setattr(training_time.os, "cpu_count", lambda: 4)
    study = demo()
    run = replace(study.pretrain_of(study.arms[0]), sequences=4642)
    run = replace(run, engine=replace(run.engine, device="cpu", threads=1))
    line = training_time.time_line([(run, None, 3)])
    assert re.match(r"Training time: about \d+ min \d\d s for 3 runs \(this CPU, expected", line)
    alone = training_time.time_line([(run, None, 1)])
    assert "for 1 run (" in alone
    shared = training_time.time_line([(run, None, 3)], jobs=3)
    assert "for 3 runs, 3 at the same time (" in shared
    assert re.search("about (.*?) for", shared)[1] == re.search("about (.*?) for", alone)[1]  # type: ignore[index]
    assert training_time.time_line([(run, None, 1)], jobs=3) == alone
    wide = replace(run, engine=replace(run.engine, threads=4))  # the whole machine
    assert training_time.time_line([(wide, None, 3)], 3) == training_time.time_line(
        [(wide, None, 3)]
    )
    assert training_time.time_line([]) == ""


def test_fine_tuning_is_timed_from_its_files_and_its_start_model(tmp_path: Path) -> None:
    study = demo()
    model = study.model_of(study.arms[0])
    (tmp_path / "other" / "model").mkdir(parents=True)
    write_json(tmp_path / "other" / "model" / "decoder.json", {"decoder": to_plain(model)})
    (tmp_path / "rows.jsonl").write_text("x" * 2_700_000)  # a million tokens
    prepare = Step(
        name="prepare", job="prepare", config=PrepareConfig(data=("rows.jsonl",), context=128),
        folder="data", outputs=(), external={"rows.jsonl": tmp_path / "rows.jsonl"},
    )  # fmt: skip
    tune = Step(
        name="finetune.sft", job="finetune", config=FineTuneJobConfig(context=128),
        folder="arms/sft", outputs=(), inputs={"start": "../other/model", "data": "data"},
    )  # fmt: skip
    root = tmp_path / "run"  # does not exist
    run = _fine_tuning(tune, [prepare, tune], root)
    assert run is not None and run.model == model
    assert run.sequences == pytest.approx(1e6 / 128, rel=0.01)
    with_reference = replace(tune, inputs={**tune.inputs, "reference": "reference/dpo"})
    longer = _fine_tuning(with_reference, [prepare, tune], root)
    assert longer is not None and longer.sequences == pytest.approx(4e6 / 3 / 128, rel=0.01)
    sampled = replace(prepare, external={})  # rows that an earlier step writes
    assert _fine_tuning(tune, [sampled, tune], root) is None
    absent = replace(tune, inputs={**tune.inputs, "start": "imported/model"})
    assert _fine_tuning(absent, [prepare, absent], root) is None
