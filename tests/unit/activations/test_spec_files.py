"""A word becomes a spec: names, aliases, Python files, stored specs, and what is no spec."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from stamm.activations import catalog
from stamm.activations.catalog.registry import load_spec
from stamm.base.config import to_plain
from stamm.base.errors import ConfigError, DataError, StammError

SOURCE = """
from stamm.activations import Piece, Spec
from stamm.activations import get

MINE = Spec(name="mine", title="", pieces=(Piece(where="all x", formula="exp(-x**2)"),), source="")
"""


def test_names_and_aliases() -> None:
    assert load_spec("xielu") is catalog.get("xielu")
    assert load_spec("swish").name == "silu"


def test_a_python_file_with_one_spec(tmp_path: Path) -> None:
    file = tmp_path / "mine.py"
    file.write_text(SOURCE + "ALSO = MINE\n")
    assert load_spec(str(file)).name == "mine"
    assert load_spec(f"{file}:ALSO") == load_spec(f"{file}:MINE")


def test_a_stored_spec(tmp_path: Path) -> None:
    for name in ("xielu", "xgelu_glu"):
        spec = catalog.get(name)
        (tmp_path / "spec.json").write_text(json.dumps(to_plain(spec)))
        assert load_spec(str(tmp_path)) == spec == load_spec(str(tmp_path / "spec.json"))


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("xielo", "Did you mean 'xielu'"),
        ("two.py", "defines 2 objects that are a Spec of an activation. Name one: "),
        ("two.py:THIRD", "has no 'THIRD'"),
        ("none.py", "defines no objects that are a Spec of an activation"),
        ("broken.py", "NameError: name 'Spec' is not defined (broken.py, line 2)"),
        ("refused.py", "not a formula"),
        ("missing.py", "does not exist"),
        ("missing.json", "does not exist"),
        ("derived/mine", "does not exist"),
        ("wrong.json", "unknown key"),
        ("list.json", "holds no spec"),
        (".", "holds no spec.json"),
    ],
)
def test_what_is_no_spec_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str, said: str
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("two.py").write_text(SOURCE + "OTHER = get('relu')\n")
    Path("none.py").write_text("x = 1\n")
    Path("broken.py").write_text("x = 1\nMINE = Spec()\n")
    Path("refused.py").write_text(SOURCE.replace("exp(-x**2)", "exp(("))
    Path("wrong.json").write_text('{"nmae": "x"}')
    Path("list.json").write_text("[]")
    with pytest.raises(StammError) as caught:
        load_spec(text)
    assert said in caught.value.line()
    assert isinstance(caught.value, (ConfigError, DataError))
