"""A user's export target: the tutorial's code, through the command line, on the page; its errors."""

from __future__ import annotations

import inspect
from dataclasses import replace
from pathlib import Path

import pytest

from stamm.base.errors import ConfigError, ExportError
from stamm.base.files import read_json
from stamm.base.schema import read_record
from stamm.cli.main import main
from stamm.export import job, onnx_target
from stamm.export.config import ExportConfig
from stamm.export.plan import export_plan
from stamm.export.records import ParityFile
from stamm.export.registry import TARGETS, load_target
from stamm.export.runtime_support import OnnxSupport
from stamm.export.target import (
    ChatTarget,
    ExportTarget,
    OptionsTarget,
    PlannedTarget,
    QuantizedTarget,
    RewardTarget,
    SettingsTarget,
    TokenizerTarget,
)
from stamm.models.config import DecoderConfig, PlainFFN
from stamm.recipes.checks import check_export, check_tuned_export
from stamm.recipes.demo import demo
from stamm.runs.job import Workspace
from tests.unit.tutorials import tutorial_file, working_folder

CONFIG = ExportConfig(parity_rows=1, parity_tokens=20, samples=0, threads=1)
TARGET = """
from stamm.base.errors import ExportError
from stamm.export.target import LoadedExport
from stamm.models.serialization import load_decoder, save_decoder
class Mine:
    name = "{name}"
    def check(self, config):
        {check}
    def write(self, folder, model, tokenizer):
        save_decoder(model, folder)
    def load(self, folder):
        {load}
"""
GOOD = "return LoadedExport(description='mine', logits=load_decoder(folder))"


def mine(folder: Path, name: str = "mine", check: str = "return []", load: str = GOOD) -> Path:
    file = folder / "mine.py"
    file.write_text(TARGET.format(name=name, check=check, load=load), encoding="utf-8")
    return file


def test_the_registry_holds_every_built_in_target() -> None:
    assert tuple(TARGETS) == ("transformers", "gguf", "onnx")
    of_recipes = (OptionsTarget, QuantizedTarget, SettingsTarget, TokenizerTarget)
    unsupported = DecoderConfig(
        vocab_size=64, ffn=PlainFFN(width=16, activation="xielu", shapes="neuron")
    )
    for name, built_in in TARGETS.items():
        target = load_target(name)
        assert isinstance(target, ExportTarget)
        assert target.name == name
        support = built_in.support()
        assert isinstance(target, type(support))  # a recipe checks what the export reads
        for protocol in of_recipes:
            assert isinstance(support, protocol) == isinstance(target, protocol)
        for config in (DecoderConfig(vocab_size=64), unsupported):
            assert tuple(support.check(config)) == tuple(target.check(config))
        assert support.check(unsupported)
        assert isinstance(target, PlannedTarget)
        assert isinstance(target, ChatTarget) == (name != "gguf")  # its file holds the template
        assert isinstance(target, RewardTarget) == (name == "transformers")


def test_an_unknown_target_is_one_line_with_the_known_ones() -> None:
    with pytest.raises(ConfigError) as raised:
        ExportConfig(target="transfomers")
    message = str(raised.value)
    assert message == (
        "ExportConfig.target = 'transfomers' is not an export target. "
        "Did you mean 'transformers'? Known: gguf, onnx, transformers, or your own as \"mine.py:MyTarget\"."
    )


@pytest.mark.slow
def test_the_tutorials_target_exports_from_the_command_line(
    inputs: dict[str, Path],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    working_folder(inputs["model"], tmp_path, monkeypatch)
    tutorial_file("export_target", tmp_path / "mine.py")
    assert main(["export", "run", "target=mine.py:TorchProgram"]) == 0
    assert capsys.readouterr().out == "run/export\n"
    folder = tmp_path / "run" / "export" / "torch_program"
    names = ["README.md", "model.pt2", "parity.json", "tokenizer.json"]
    assert sorted(path.name for path in folder.iterdir()) == names
    report = read_json(folder / "parity.json")
    assert report["passed"] is True
    assert report["candidate"].startswith("torch.export program, torch ")
    assert "torch.export.load" in (folder / "README.md").read_text()
    assert read_record(ParityFile, folder / "parity.json").passed  # as a page reads it


def test_a_target_exports_from_the_command_line(
    inputs: dict[str, Path],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    working_folder(inputs["model"], tmp_path, monkeypatch)
    mine(tmp_path)
    assert main(["export", "run", "target=mine.py:Mine"]) == 0
    names = ["README.md", "decoder.json", "model.safetensors", "parity.json"]
    folder = tmp_path / "run" / "export" / "mine"
    assert sorted(path.name for path in folder.iterdir()) == names
    capsys.readouterr()
    assert main(["export", "run", "target=hf"]) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    assert "'hf' is not an export target" in error
    assert "Known: gguf, onnx, transformers, or your own" in error


def test_a_recipe_checks_the_target_first_and_reads_its_file_as_an_input(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    config = ExportConfig(target="mine.py:Mine")
    with pytest.raises(ConfigError, match=r"mine\.py does not exist"):
        replace(demo(), export=config)
    mine(tmp_path, check="return ['too wide']")
    with pytest.raises(ConfigError, match=r"cannot be exported to mine\.py:Mine: too wide"):
        replace(demo(), export=config)
    mine(tmp_path)
    steps = replace(demo(), export=config).steps()
    files = [dict(step.external) for step in steps if step.job == "export"]
    assert files == [{"mine.py": Path("mine.py")}] * len(demo().exported)


@pytest.mark.parametrize(
    ("changed", "kind", "message"),
    [
        ({"name": "../up"}, ConfigError, r"name = '\.\./up', which cannot name its folder"),
        ({"name": "transformers"}, ConfigError, r"not the name of a built-in target"),
        ({"check": "return 1 / 0"}, ConfigError, r"division by zero.*mine\.py, line 8"),
        ({"check": "return ['x']"}, ExportError, r"cannot be exported to mine: x"),
        ({"load": "return None"}, ConfigError, r"Mine\.load returned NoneType, not a LoadedExport"),
        ({"load": "raise ExportError('not loaded')"}, ExportError, r"not loaded"),
        (
            {"load": "model = load_decoder(folder); return LoadedExport("
             "description='mine', logits=lambda tokens: model(tokens) * 1.01)"},
            ExportError,
            r"does not agree with the original on random tokens",
        ),
    ],
)  # fmt: skip
def test_errors_name_the_file_and_keep_the_earlier_export(
    inputs: dict[str, Path],
    tmp_path: Path,
    changed: dict[str, str],
    kind: type[Exception],
    message: str,
) -> None:
    out = tmp_path / "export"
    config = replace(CONFIG, target=f"{mine(tmp_path)}:Mine")
    workspace = Workspace(folder=out, inputs=inputs)
    job.run(config, workspace)
    before = {path.name: path.read_bytes() for path in (out / "mine").iterdir()}
    mine(tmp_path, **changed)
    with pytest.raises(kind, match=message):
        job.run(config, workspace)
    assert [path.name for path in out.iterdir()] == ["mine"]
    assert {path.name: path.read_bytes() for path in (out / "mine").iterdir()} == before


def moved_onnx(folder: Path) -> Path:
    """The built-in ONNX target as a user's file, under another name."""
    support = inspect.getsource(OnnxSupport).replace('name = "onnx"', 'name = "moved_onnx"')
    imported = "from stamm.export.runtime_support import OnnxSupport\n"
    text = inspect.getsource(onnx_target)
    assert text.count(imported) == 1
    needed = (
        "from stamm.export.runtime_support import onnx_reasons\n"
        "from stamm.export.target import ExportOptions\n"
        "from stamm.models.config import DecoderConfig\n"
    )
    file = folder / "mine.py"
    file.write_text(text.replace(imported, f"{needed}\n{support}\n"), encoding="utf-8")
    return file


@pytest.mark.slow
def test_the_built_in_onnx_target_in_a_file_of_the_users_writes_the_same_bytes(
    inputs: dict[str, Path], tmp_path: Path
) -> None:
    target = f"{moved_onnx(tmp_path)}:OnnxTarget"
    built_in = replace(CONFIG, target="onnx", samples=1, prompt_tokens=4, sample_tokens=4)
    moved = replace(built_in, target=target)
    for config in (built_in, moved):
        job.run(config, Workspace(folder=tmp_path / "export", inputs=inputs))
    folders = [tmp_path / "export" / name for name in ("onnx", "moved_onnx")]
    ours, theirs = ({p.name: p.read_bytes() for p in folder.iterdir()} for folder in folders)
    assert ours == theirs and "model.onnx_data" in ours and "samples.json" in ours
    model = DecoderConfig(vocab_size=64)
    assert export_plan(moved, model) == export_plan(built_in, model)
    # A setting that the target does not read, a type that it does not have, a model it cannot hold.
    unsupported = DecoderConfig(
        vocab_size=64, ffn=PlainFFN(width=16, activation="xielu", shapes="neuron")
    )
    with pytest.raises(ConfigError, match=r"max_shard_bytes = 9 is not read: .*does not read it"):
        check_export(replace(moved, max_shard_bytes=9), {"arm": model})
    with pytest.raises(ConfigError, match=r"'BF16' is not a type that .*OnnxTarget has: F32"):
        check_export(replace(moved, quantization="BF16"), {"arm": model})
    with pytest.raises(ConfigError, match="one set of parameters of 'xielu' per layer"):
        check_export(moved, {"arm": unsupported})


ROUNDED = """
import copy
from stamm.export.target import LoadedExport
from stamm.models.serialization import load_decoder, save_decoder
class Mine:
    name = "mine"
    quantizations = ("F32", "INT6")
    def configure(self, options):
        self.levels = 1024 if options.quantization == "INT6" else None
    def check(self, config):
        return []
    def tokenizer_problem(self, file, vocab_size):
        return "it has too many tokens" if vocab_size > 1000 else ""
    def write(self, folder, model, tokenizer):
        model = copy.deepcopy(model)
        for p in model.parameters() if self.levels else ():
            p.data = (p.data * self.levels).round() / self.levels
        save_decoder(model, folder)
    def load(self, folder):
        return LoadedExport(description="mine", logits=load_decoder(folder))
"""


def test_a_users_target_has_types_of_its_own_and_their_gate(
    inputs: dict[str, Path], tmp_path: Path
) -> None:
    file = tmp_path / "mine.py"
    file.write_text(ROUNDED, encoding="utf-8")
    config = replace(CONFIG, target=f"{file}:Mine", quantization="INT6")
    job.run(config, Workspace(folder=tmp_path / "export", inputs=inputs))
    report = read_json(tmp_path / "export" / "mine" / "parity.json")
    assert report["passed"] and report["bits_tolerance"] == config.bits_tolerance
    with pytest.raises(ExportError, match="does not agree"):  # by the gate of F32 it would not pass
        file.write_text(ROUNDED.replace('== "INT6"', '== "F32"'), encoding="utf-8")
        job.run(
            replace(config, quantization="F32"),
            Workspace(folder=tmp_path / "export", inputs=inputs),
        )
    with pytest.raises(ConfigError, match=r"'INT4' is not a type that .*Mine has: F32, INT6"):
        check_export(replace(config, quantization="INT4"), {"arm": DecoderConfig(vocab_size=64)})
    tokenizer = inputs["tokenizer"] / "tokenizer.json"
    with pytest.raises(ConfigError, match="it has too many tokens"):
        check_tuned_export(config, "arm", DecoderConfig(vocab_size=1001), tokenizer, has_text=False)


PLANNED = """
    def plan(self, model):
        return TargetPlan(files={"model.bin": 1}, engine=1, converted=False)
"""


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("def configure", "def set_options", "has quantizations and no method configure"),
        (
            "    name =",
            '    unread = ("seeds",)\n    name =',
            r"unread = 'seeds'.*Did you mean 'seed'",
        ),
        ("self.levels = 1024", "self.levels = 1 / 0", r"ZeroDivisionError.*mine\.py, line 9"),
        ("        return []", "        return 1 / 0", r"ZeroDivisionError.*mine\.py, line 11"),
        ("return TargetPlan(", "return dict(", r"Mine\.plan returned dict, not a TargetPlan"),
        (
            "return TargetPlan(",
            "1 / 0; return TargetPlan(",
            r"ZeroDivisionError.*mine\.py, line 23",
        ),
    ],
)
def test_what_a_target_declares_and_raises_is_one_line_before_an_export(
    tmp_path: Path, old: str, new: str, said: str
) -> None:
    text = ROUNDED.replace("import LoadedExport", "import LoadedExport, TargetPlan") + PLANNED
    assert text.count(old) == 1
    (tmp_path / "mine.py").write_text(text.replace(old, new), encoding="utf-8")
    config = replace(CONFIG, target=f"{tmp_path}/mine.py:Mine", quantization="INT6")
    with pytest.raises(ConfigError, match=said):
        export_plan(config, DecoderConfig(vocab_size=64))


def test_an_exception_about_a_tokenizer_names_the_line(
    inputs: dict[str, Path], tmp_path: Path
) -> None:
    (tmp_path / "mine.py").write_text(ROUNDED.replace('"it has too many tokens"', "1 / 0"))
    config = replace(CONFIG, target=f"{tmp_path}/mine.py:Mine")
    tokenizer, model = inputs["tokenizer"] / "tokenizer.json", DecoderConfig(vocab_size=1001)
    with pytest.raises(ConfigError, match=r"ZeroDivisionError.*mine\.py, line 13"):
        check_tuned_export(config, "arm", model, tokenizer, has_text=False)
