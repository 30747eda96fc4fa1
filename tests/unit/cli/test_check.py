"""`stamm check`: exit codes, what it prints, and whom it holds to the budget."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from stamm.activations import catalog
from stamm.activations.catalog.registry import load_spec
from stamm.activations.conformance import check as checks
from stamm.activations.conformance.golden import write_golden
from stamm.base.errors import ConfigError
from stamm.base.files import sha256_file
from stamm.cli.main import main
from stamm.models.hub import hub_activation

OWN = """
import torch
from stamm.activations import Piece, Spec

RAMP = Spec(
    name="ramp",
    title="Two slopes",
    pieces=(Piece(where="x > 0", formula="1"), Piece(where="x <= 0", formula="1/4")),
    continuity="jump",
    source="",
)


def right(x):
    return torch.where(x > 0, x, x / 4)


def wrong(x):
    return torch.where(x > 0, x, x / 5)


def wide(x):
    return right(x).double()
"""


@pytest.fixture
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    (tmp_path / "own.py").write_text(OWN)
    monkeypatch.chdir(tmp_path)
    return "own.py"


def test_everything_holds_for_a_sound_spec(own: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", own, "--quick", "--against", "own.py:right"]) == 0
    text = capsys.readouterr().out
    lines = text.splitlines()
    assert lines[0].startswith("ramp, ")
    assert lines[-1].startswith("none of ")
    assert "FAILED" not in text
    assert "ok     slope of f is the stated gradient: largest relative difference" in text
    assert "ok     own.py:right at initial values: bfloat16 0" in text
    assert "float32 is sampled at 20,000 inputs instead of 400,000." in text
    head = next(line for line in lines if line.startswith("x  "))
    assert head.split() == ["x", "inputs", "stamm", "own.py:right"]


def test_a_wrong_implementation_fails(own: str, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["check", own, "--quick", "--against", "own.py:wrong", "--against", "own.py:wide"]
    assert main(words) == 1
    text = capsys.readouterr().out
    assert "FAILED own.py:wrong at initial values: bfloat16: function is" in text
    assert "FAILED own.py:wide at initial values: own.py:wide returns (65280,) float64" in text
    assert "ok     stamm at initial values" in text


def test_json_holds_findings_and_verdicts(own: str, capsys: pytest.CaptureFixture[str]) -> None:
    write_golden(load_spec(own), Path("golden"), dtypes=(torch.float16,))
    assert main(["check", own, "--quick", "--json", "--golden", "golden"]) == 0
    told: dict[str, Any] = json.loads(capsys.readouterr().out)
    assert told["spec"] == "ramp"
    assert told["passed"]
    assert told["findings"][-1]["name"].startswith("stamm, ")
    assert told["findings"][-1]["name"].endswith("-initial-float16.safetensors")
    dtypes = told["verdicts"]["initial"][0]["dtypes"]
    assert [of["dtype"] for of in dtypes] == ["bfloat16", "float16", "float32"]


def test_peers_are_shown_but_do_not_count(own: str, capsys: pytest.CaptureFixture[str]) -> None:
    text = Path(own).read_text()
    Path(own).write_text(
        text.replace('source="",', 'source="", peers=("own.py:wrong", "own.py:no"),')
    )
    assert main(["check", own, "--quick"]) == 0
    out = capsys.readouterr().out
    assert "own.py:wrong" in out
    assert "own.py:no at initial values is not compared: own.py has no 'no'" in out


def _another(golden: Path) -> None:
    write_golden(catalog.RELU, golden, dtypes=(torch.float16,))


def _stripped(golden: Path) -> None:
    """A manifest that lists nothing."""
    (golden / "manifest.json").write_text("[]")


def _renamed(golden: Path) -> None:
    """The vectors of another spec, under this one's name."""
    own = next(golden.glob("*.safetensors"))
    for file in golden.iterdir():
        file.unlink()
    write_golden(catalog.RELU, golden, dtypes=(torch.float16,))
    other = next(golden.glob("*.safetensors"))
    manifest = (golden / "manifest.json").read_text().replace(other.name, own.name)
    (golden / "manifest.json").write_text(manifest)
    other.rename(own)


def _flipped(golden: Path) -> None:
    file = next(golden.glob("*.safetensors"))
    file.write_bytes(file.read_bytes()[:-1] + b"x")


def _headless(golden: Path) -> None:
    """No header, and a manifest that agrees."""
    file = next(golden.glob("*.safetensors"))
    file.write_bytes(b"\xff" * 64)
    manifest = {"files": {file.name: {"sha256": sha256_file(file)}}}
    (golden / "manifest.json").write_text(json.dumps(manifest))


def _lost(golden: Path) -> None:
    next(golden.glob("*.safetensors")).unlink()


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        (None, "golden is not a folder"),
        (_another, "golden holds no vectors of ramp"),
        (_stripped, "lists no files"),
        (_renamed, "holds another spec than its name"),
        (_flipped, "is not the one in manifest.json"),
        (_headless, "cannot be read"),
        (_lost, "golden lacks "),
    ],
)
def test_vectors_that_cannot_be_used_are_refused_before_the_proofs(
    own: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    damage: Callable[[Path], None] | None,
    said: str,
) -> None:
    def prove(*_: Any, **__: Any) -> None:
        raise AssertionError("the proofs began")

    golden = Path("golden")
    if damage is not None:
        if damage is not _another:
            write_golden(load_spec(own), golden, dtypes=(torch.float16,))
        damage(golden)
    monkeypatch.setattr(checks, "prove", prove)
    assert main(["check", own, "--golden", "golden"]) == 1
    told = capsys.readouterr()
    assert told.out == ""
    assert said in told.err
    assert len(told.err.splitlines()) == 1


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["xielo"], "Did you mean 'xielu'"),
        ([], "name one activation, or give --all"),
        (["xielu", "--all"], "name one activation, or give --all"),
        (["--all", "--against", "torch:relu"], "--all takes neither"),
        (["relu", "--against", "torch:no_such"], "torch has no 'no_such'"),
        (["relu", "--against", "transformers.activations:NoSuch"], "has no 'transformers."),
        (["missing.py"], "missing.py does not exist"),
        (["relu", "--golden", ""], "--golden '' is empty"),
        (["relu", "--write-golden", ""], "--write-golden '' is empty"),
        (["--all", "--golden", ""], "--all takes neither"),
    ],
)
def test_misuse_exits_with_two(
    words: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["check", *words]) == 2
    assert said in capsys.readouterr().err


def test_all_is_one_line_an_entry(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(catalog, "names", lambda: ("relu", "relu2"))
    assert main(["check", "--all"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split(":")[0] for line in lines] == ["ok     relu", "ok     relu2"]


def test_transformers_own_activation_is_found_through_its_door() -> None:
    found = hub_activation("transformers.activations:XIELUActivation")
    assert issubclass(found, torch.nn.Module)
    with pytest.raises(ConfigError, match="ClassName"):
        hub_activation("transformers.models:XIELUActivation")
