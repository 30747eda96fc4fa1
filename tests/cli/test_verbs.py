"""Every verb through the real command line, on a finished run."""

from __future__ import annotations

import io
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import stamm as package
from stamm.base.console import Console
from stamm.base.errors import RunError
from stamm.base.receipts import seal
from stamm.cli import main
from stamm.recipes.apertus import apertus_8b
from stamm.runs.job import Workspace
from stamm.runs.run import Run
from tests.conftest import Stamm, command, environment

VERBS = [
    "ls",
    "show",
    "cp",
    "check",
    "derive",
    "bench",
    "plan",
    "run",
    "compare",
    "evaluate",
    "audit",
    "export",
    "report",
    "diff",
    "env",
]


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
    assert "[8/18] train swiglu" in text
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


def test_diff_says_that_a_run_is_not_there(stamm: Stamm, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    for word, why in (
        ("runs/gone", "does not exist"),
        ("empty", "is not a run folder: it has no config"),
    ):
        done = stamm("diff", word, "demo")
        assert done.returncode != 0 and f"stamm: {word} {why}" in done.stderr
    gone = stamm("diff", "gone", "demo").stderr
    assert "'gone' is neither a run folder nor a recipe" in gone and "`stamm ls runs`" in gone


def test_a_copied_recipe_is_the_recipe(stamm: Stamm, tmp_path: Path) -> None:
    done = stamm("cp", "smoke", "mine.py")
    assert done.returncode == 0, done.stderr
    assert stamm("diff", "smoke", "mine.py:smoke").stdout == "no difference\n"
    assert "exists already" in stamm("cp", "smoke", "mine.py").stderr
    assert stamm("run", "mine.py:smoke", "--dry-run").returncode == 0
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize("verb", ["evaluate", "audit"])
def test_measuring_again_gives_the_same_bytes(
    smoke_run: Path, stamm: Stamm, tmp_path: Path, verb: str
) -> None:
    arm = shutil.copytree(smoke_run, tmp_path / "run") / "arms" / "relu2"
    before = {p.name: p.read_bytes() for p in (arm / verb).iterdir()}
    done = stamm(verb, str(arm))
    assert done.returncode == 0, done.stderr
    assert {p.name: p.read_bytes() for p in (arm / verb).iterdir()} == before


def test_measuring_again_keeps_to_the_settings_of_the_run(
    smoke_run: Path, stamm: Stamm, tmp_path: Path
) -> None:
    """The same trained model under a run that was told to audit ten tokens."""
    run = tmp_path / "run"
    shutil.copytree(smoke_run / "arms" / "relu2", run / "arms" / "relu2")
    for name in ("corpus", "tokenizer", "pack"):
        (run / name).symlink_to(smoke_run / name)
    request = json.loads((smoke_run / "config.json").read_text())
    request["config"]["audit"]["new_tokens"] = 10
    (run / "config.json").write_text(json.dumps(seal(request)))
    found = run / "arms" / "relu2" / "audit" / "memorization.json"
    for words, expected in ((), 10), (("new_tokens=12",), 12):
        done = stamm("audit", str(run / "arms" / "relu2"), *words)
        assert done.returncode == 0, done.stderr
        assert json.loads(found.read_text())["new_tokens"] == expected


def test_several_arms_are_exported_into_a_folder_each(
    smoke_run: Path, stamm: Stamm, tmp_path: Path
) -> None:
    (tmp_path / "taken").write_text("")
    refused = stamm("export", str(smoke_run), "--out", "taken")
    assert (refused.returncode, refused.stdout) == (1, "")
    assert "taken is a file" in refused.stderr
    done = stamm("export", str(smoke_run), "--out", "all")
    assert done.returncode == 0, done.stderr
    assert not [word for word in ("torchao", "_pytree", "Failed") if word in done.stderr]
    models = {
        arm: json.loads((tmp_path / "all" / arm / "transformers" / "config.json").read_text())
        for arm in ("swiglu", "relu2", "xielu")
    }
    assert {model["hidden_act"] for model in models.values()} == {"silu", "relu2", "xielu"}


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
    total = 3_662_109_375
    last = apertus_8b().batches(total).step(2_627_138)  # 703 sequences do not fill another
    rate = apertus_8b().schedule.rate(last.first + last.size, total)
    assert facts["learning_rate"][-1]["rate"] == rate == pytest.approx(1.1e-5, rel=1e-5)
    text = stamm("plan", "apertus_70b", "--gpus", "4096xGH200").stdout
    for word in ("parameters", "memory", "moments", "work", "time", "disk", "learning rate"):
        assert word in text


def test_plan_of_the_demo_guesses_the_length_and_says_so(stamm: Stamm) -> None:
    done = stamm("plan", "demo")
    assert done.returncode == 0, done.stderr
    for word in (
        "arm swiglu",
        "arm xielu",
        "estimated from the sizes of 6 inputs",
        "learning rate",
    ):
        assert word in " ".join(done.stdout.split())


def test_plan_counts_what_the_run_has_packed(smoke_run: Path, stamm: Stamm, tmp_path: Path) -> None:
    (tmp_path / "runs").mkdir()
    (tmp_path / "runs" / "smoke").symlink_to(smoke_run)
    manifest = json.loads((smoke_run / "pack" / "manifest.json").read_text())
    tokens = manifest["splits"]["train"]["tokens"]
    done = stamm("plan", "smoke", "pretrain.sequences=none", "--json")
    facts = json.loads(done.stdout)["xielu"]
    assert facts["sequences"] == (tokens - 1) // 256
    assert f"{tokens:,} tokens packed in runs/smoke/pack" in facts["length"]


@pytest.mark.parametrize(
    "words", [("smoke", "pretrain.epochs=3"), ("demo", "pretrain.epochs=3"), ("apertus_8b",)]
)
def test_plan_takes_the_length_it_is_given(stamm: Stamm, words: tuple[str, ...]) -> None:
    facts = json.loads(stamm("plan", *words, "--sequences", "8192", "--json").stdout)
    assert facts.get("xielu", facts)["sequences"] == 8192


def test_plan_refuses_a_length_below_one_step(stamm: Stamm) -> None:
    done = stamm("plan", "demo", "--sequences", "3")
    assert done.returncode == 2
    assert "sequences = 3 is less than one step: batch.0.size = 16 (--sequences)" in done.stderr


def test_a_dry_run_refuses_what_the_run_would_refuse(
    smoke_run: Path, stamm: Stamm, tmp_path: Path
) -> None:
    (tmp_path / "file").write_text("")
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "letter.txt").write_text("")
    for words, code, said in (
        (["demo", "--out", str(smoke_run)], 2, "has a run of another configuration: recipe"),
        (["smoke", "--out", "file"], 1, "file is a file"),
        (["smoke", "--out", "other"], 1, "not empty and is not a run folder"),
    ):
        for dry in (["--dry-run"], []):
            done = stamm("run", *words, *dry)
            assert (done.returncode, done.stdout) == (code, ""), done.stderr
            assert said in done.stderr
    assert sorted(path.name for path in tmp_path.rglob("*")) == ["file", "letter.txt", "other"]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["corpus.inputs=a\udcff.jsonl"], "'corpus.inputs=a\\udcff.jsonl' is not valid UTF-8"),
        (["--out", "a\udcff"], "'a\\udcff' is not valid UTF-8"),
        (["arms.².ffn.width=3"], "'²' is not a position in a list of 3"),
        (["pretrain.model.qk_norm=false"], "arm 'xielu' cannot be exported"),
        (["pretrain.sequences=3"], "sequences = 3 is less than one step"),
        (["pretrain.epochs=inf"], "epochs = inf must be positive and finite"),
    ],
)
def test_what_cannot_be_run_is_refused_before_a_folder_is_made(
    stamm: Stamm, tmp_path: Path, words: list[str], said: str
) -> None:
    done = stamm("run", "smoke", *words)
    assert done.returncode == 2
    assert said in done.stderr
    assert done.stderr.count("\n") == 1
    assert list(tmp_path.iterdir()) == []


def test_values_that_must_agree_are_set_together(stamm: Stamm) -> None:
    both = ["pretrain.model.vocab_size=4096", "tokenizer.vocab_size=4096"]
    for words in (both, both[::-1]):
        done = stamm("show", "smoke", *words, "--json")
        assert json.loads(done.stdout)["config"]["tokenizer"]["vocab_size"] == 4096


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ("ProbesConfig(book='x')", "unexpected keyword argument 'book' (mine.py, line 4)"),
        ("ProbesConfig(books='x', repeats=())", "repeats = () is empty"),
        ("1 / 0", "ZeroDivisionError: division by zero (mine.py, line 4)"),
    ],
)
def test_a_mistake_in_a_file_of_ones_own_is_told_with_its_line(
    stamm: Stamm, tmp_path: Path, body: str, said: str
) -> None:
    text = f"from stamm.corpus.config import ProbesConfig\n\ndef mine():\n    return {body}\n"
    (tmp_path / "mine.py").write_text(text)
    done = stamm("run", "mine.py")
    assert done.returncode == 2
    assert said in done.stderr
    assert done.stderr.count("\n") == 1


class _Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def _cursor_is_shown(stream: io.StringIO) -> bool:
    text = stream.getvalue()
    return text.rindex("\x1b[?25h") > text.rindex("\x1b[?25l")


@pytest.mark.parametrize("error", [RunError("broken"), KeyboardInterrupt(), OSError("disk")])
def test_a_run_that_ends_badly_shows_the_cursor_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: BaseException
) -> None:
    def execute(self: Run, steps: Any, jobs: Any, progress: Console, *_: Any) -> None:
        progress.begin("train", 10, "steps")
        raise error

    monkeypatch.setattr(Run, "execute", execute)
    stream = _Terminal()
    monkeypatch.setattr(sys, "stderr", stream)
    with pytest.raises(type(error)):
        package.run("smoke", out=tmp_path / "run")
    assert _cursor_is_shown(stream)


def test_a_measure_that_is_stopped_shows_the_cursor_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stopped(config: Any, workspace: Workspace, usual: Any) -> None:
        workspace.progress.begin("held-out text", 10, "tokens")
        raise KeyboardInterrupt

    for name in ("model", "pack", "tokenizer"):
        (tmp_path / name).mkdir()
    (tmp_path / "model" / "decoder.json").write_text("{}")
    (tmp_path / "config.json").write_text('{"config": {}}')
    monkeypatch.setattr("stamm.evaluate.job.run", stopped)
    stream = _Terminal()
    monkeypatch.setattr(sys, "stderr", stream)
    assert main.main(["evaluate", str(tmp_path)]) == 130
    assert _cursor_is_shown(stream)


def test_env_names_versions(stamm: Stamm) -> None:
    facts = json.loads(stamm("env", "--json").stdout)
    assert facts["libraries"]["torch"] != "missing"
    assert facts["compiler"]


def test_a_broken_run_does_not_hide_the_others(
    smoke_run: Path, stamm: Stamm, tmp_path: Path
) -> None:
    (tmp_path / "runs" / "broken").mkdir(parents=True)
    (tmp_path / "runs" / "broken" / "manifest.json").write_text("[]")
    (tmp_path / "runs" / "good").symlink_to(smoke_run)
    states = [row["state"] for row in json.loads(stamm("ls", "runs", "--json").stdout)]
    assert states == ["unreadable", "complete"]


@pytest.mark.parametrize("words", [("plan", "smoke"), ("ls", "activations", "--json")])
def test_a_terminal_without_unicode_is_given_escapes(
    words: tuple[str, ...], tmp_path: Path
) -> None:
    variables = {**environment(), "PYTHONIOENCODING": "ascii"}
    done = subprocess.run(
        command(*words), capture_output=True, cwd=tmp_path, env=variables, timeout=120, check=False
    )
    assert done.returncode == 0 and done.stderr == b""
    text = done.stdout.decode("ascii")
    assert "\\" in text
    if "--json" in words:
        json.loads(text)


@pytest.mark.parametrize("damage", ["{", "[]", '{"schema": 1}'])
def test_the_advice_for_a_damaged_manifest_works(
    damage: str, smoke_run: Path, stamm: Stamm, tmp_path: Path
) -> None:
    run = shutil.copytree(smoke_run, tmp_path / "runs" / "smoke")
    before = (run / "report.html").read_bytes()
    (run / "manifest.json").write_text(damage)
    refused = stamm("run", "smoke")
    assert refused.returncode == 1
    assert "Delete it and repeat the same `stamm run`" in refused.stderr
    (run / "manifest.json").unlink()
    again = stamm("run", "smoke")
    assert again.returncode == 0, again.stderr
    assert "is complete: 18 steps" in again.stdout
    assert (run / "report.html").read_bytes() == before
    assert "complete" in stamm("show", "runs/smoke").stdout


def test_the_advice_for_a_damaged_manifest_of_an_arm_works(
    smoke_run: Path, stamm: Stamm, tmp_path: Path
) -> None:
    run = shutil.copytree(smoke_run, tmp_path / "runs" / "smoke")
    manifest = run / "arms" / "xielu" / "manifest.json"
    manifest.write_text("{")
    refused = stamm("report", "runs/smoke")
    assert refused.returncode == 1
    assert (
        "xielu/manifest.json" in refused.stderr
        and "repeat the command that wrote it" in refused.stderr
    )
    refused = stamm("run", "smoke")
    assert refused.returncode == 1
    assert "Delete it and repeat the same `stamm run`: finished steps are kept" in refused.stderr
    manifest.unlink()
    assert stamm("run", "smoke").returncode == 0
    assert stamm("report", "runs/smoke").returncode == 0


@pytest.mark.slow
def test_a_resumed_training_with_a_damaged_manifest_tells_what_to_do(
    smoke_run: Path, stamm: Stamm, tmp_path: Path
) -> None:
    run = shutil.copytree(smoke_run, tmp_path / "runs" / "smoke")
    arm = run / "arms" / "xielu"
    shutil.rmtree(arm / "model")
    (arm / "manifest.json").write_text("{")
    refused = stamm("run", "smoke")
    assert refused.returncode == 1
    assert "Delete it and repeat the same `stamm run`: finished steps are kept" in refused.stderr
    (arm / "manifest.json").unlink()
    again = stamm("run", "smoke")
    assert again.returncode == 0, again.stderr
    assert (arm / "model").is_dir()


def test_files_of_a_run_have_the_mode_of_the_umask(smoke_run: Path) -> None:
    umask = os.umask(0)
    os.umask(umask)
    files = [path for path in smoke_run.rglob("*") if path.is_file()]
    assert any(path.suffix == ".safetensors" for path in files)
    assert {path.stat().st_mode & 0o777 for path in files} == {0o666 & ~umask}


def test_an_export_prints_its_progress_and_no_warnings(
    smoke_run: Path, stamm: Stamm, tmp_path: Path
) -> None:
    shutil.copytree(smoke_run, tmp_path / "run")
    done = stamm("export", "run/arms/xielu")
    assert done.returncode == 0
    assert [line.partition(":")[0] for line in done.stderr.splitlines() if line] == [
        "export",
        "export",
    ]


@pytest.mark.parametrize(
    "variables",
    [{"PYTHONIOENCODING": "ascii"}, {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}],
)
def test_a_finished_run_prints_its_result_on_a_terminal_without_unicode(
    variables: dict[str, str], smoke_run: Path, tmp_path: Path
) -> None:
    """The minus signs and ± of the table become escapes; the run is complete, and so is the exit code."""
    shutil.copytree(smoke_run, tmp_path / "runs" / "smoke")
    done = subprocess.run(
        command("run", "smoke"),
        capture_output=True,
        cwd=tmp_path,
        env={**environment(), **variables},
        timeout=120,
        check=False,
    )
    assert done.returncode == 0 and done.stderr == b""
    assert "\\xb1" in done.stdout.decode("ascii")


@pytest.mark.parametrize(
    ("words", "hint"),
    [
        (["show", "nosuch"], "`stamm ls` lists them"),
        (["show", "xeilu"], "Did you mean 'xielu'? `stamm ls`"),
        (["run", "demoo"], "Did you mean 'demo'?"),
        (["run", "nowhere"], "`stamm ls recipes` lists them"),
        (["plan", "apertus_8"], "Did you mean 'apertus_8b'?"),
    ],
)
def test_only_a_close_name_is_suggested_for_an_unknown_one(
    words: list[str], hint: str, stamm: Stamm
) -> None:
    done = stamm(*words)
    assert done.returncode == 2
    assert hint in done.stderr
    assert ("Did you mean" in done.stderr) is ("Did you mean" in hint)


@pytest.mark.parametrize(("verb", "missing"), [("run", "recipe"), ("bench", "thing")])
def test_a_missing_argument_is_named_without_the_optional_ones(
    verb: str, missing: str, stamm: Stamm
) -> None:
    done = stamm(verb)
    assert done.returncode == 2
    assert done.stderr.endswith(f"the following arguments are required: {missing}\n")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("plan", "smoke", "pretrain.sequences=8", "pretrain.sequences=9"), "is given twice"),
        (("report", "runs/x", "--out", "a", "--out=b"), "--out is given 2 times"),
    ],
)
def test_what_is_given_twice_is_refused(
    words: tuple[str, ...], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main.main(list(words)) == 2
    assert said in capsys.readouterr().err
