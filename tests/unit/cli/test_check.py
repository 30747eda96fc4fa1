"""`stamm check`: exit codes, what it prints, and whom it holds to the budget."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from stamm.activations import catalog
from stamm.activations.conformance.golden import write_golden
from stamm.base.errors import ConfigError
from stamm.cli import check_work
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
    write_golden(check_work.load_spec(own), Path("golden"), dtypes=(torch.float16,))
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


def test_vectors_of_another_spec_are_refused(own: str, capsys: pytest.CaptureFixture[str]) -> None:
    write_golden(catalog.RELU, Path("golden"), dtypes=(torch.float16,))
    assert main(["check", own, "--quick", "--golden", "golden"]) == 1
    assert "golden holds no vectors of ramp" in capsys.readouterr().err


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
    monkeypatch.setattr(check_work.catalog, "names", lambda: ("relu", "relu2"))
    assert main(["check", "--all"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split(":")[0] for line in lines] == ["ok     relu", "ok     relu2"]


def test_transformers_own_activation_is_found_through_its_door() -> None:
    found = hub_activation("transformers.activations:XIELUActivation")
    assert issubclass(found, torch.nn.Module)
    with pytest.raises(ConfigError, match="ClassName"):
        hub_activation("transformers.models:XIELUActivation")
