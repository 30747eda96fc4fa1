"""Lists fit into 80 columns and have groups; dry runs give the expected time."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path

import pytest

from stamm.align.data.config import PrepareConfig
from stamm.align.training.config import FineTuneJobConfig
from stamm.base.config import to_plain
from stamm.base.files import write_json
from stamm.cli import training_time
from stamm.cli.main import main
from stamm.cli.output import print_groups
from stamm.cli.run import _fine_tuning
from stamm.models.hub_folder import load_hub_config
from stamm.pretrain.plan import plan
from stamm.pretrain.throughput_model import CPU_BALANCE, CPU_SHARE, cpu_throughput
from stamm.recipes.demo import demo
from stamm.recipes.execute import steps_of
from stamm.recipes.resolve import resolve
from stamm.runs.job import Step
from tests.unit.models.hub_models import SIZES


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
    assert capsys.readouterr().out.splitlines() == [
        "group", f"  {'a' * 30}", "    one two three four five six seven", "    eight",
    ]  # fmt: skip


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
    second = replace(tune, folder="arms/dpo", inputs={"start": "arms/sft/model", "data": "data"})
    after = _fine_tuning(
        second, [prepare, tune, second], root
    )  # of a model that is yet to be tuned
    assert after is not None and after.model == model


def test_fine_tuning_of_a_hugging_face_folder_is_timed_from_its_config(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    described = {"model_type": "llama", "architectures": ["LlamaForCausalLM"], **SIZES}
    write_json(Path("base/config.json"), described)
    for name in ("model.safetensors", "tokenizer.json"):  # a dry run reads neither
        Path("base", name).touch()
    Path("rows.jsonl").write_text(json.dumps({"prompt": "2+2?", "completion": "4" * 200}) + "\n")
    words = ["run=base", "data=rows.jsonl", "audit=none", "export=none", "--dry-run"]
    times = []
    for more in ([], ["train.epochs=1000"], ["train.epochs=2000"]):
        assert main(["run", "align.sft", *words, *more]) == 0
        said = capsys.readouterr().out
        assert "not known" not in said
        times.append(re.search(r"Training time: about (.*) for 1 run \(", said))
    assert all(times) and len({time[1] for time in times if time}) == 3
    model = load_hub_config(Path("base"))
    steps = steps_of(resolve("align.sft", words[:-1]).config, "align.sft", tmp_path / "runs/x")
    (tune,) = (step for step in steps if step.job == "finetune")
    run = _fine_tuning(tune, list(steps), tmp_path / "runs/x")
    assert run is not None and run.model == model
    words[1] = "prompts=rows.jsonl"
    words += ["reward=Length", "sampling.max_new_tokens=64"]
    assert main(["run", "align.grpo", *words]) == 0
    assert "Fine-tuning time of GRPO: not known" in capsys.readouterr().out
