"""A user's export target: the tutorial's code, through the command line, on the page; its errors."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from stamm.base.errors import ConfigError, ExportError
from stamm.base.files import read_json
from stamm.cli.main import main
from stamm.export import job
from stamm.export.config import BUILT_IN_TARGETS, ExportConfig
from stamm.export.registry import TARGETS, export_problems, load_target
from stamm.export.target import ExportTarget
from stamm.models.config import DecoderConfig, GatedFFN
from stamm.recipes.demo import demo
from stamm.reports.results import read_measured
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
    assert tuple(TARGETS) == BUILT_IN_TARGETS
    unsupported = DecoderConfig(vocab_size=64, ffn=GatedFFN(width=16, activation="swiglu_oai"))
    for name, built_in in TARGETS.items():
        target = load_target(name)
        assert isinstance(target, ExportTarget)
        assert target.name == name
        for config in (DecoderConfig(vocab_size=64), unsupported):
            assert tuple(built_in.check(config)) == tuple(target.check(config))
        assert export_problems(name, unsupported)


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
    assert len(read_measured(tmp_path / "run").parities) == 1


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
