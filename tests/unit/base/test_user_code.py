"""References to user code: what they accept, and that every failure names the file and the fix."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Protocol, runtime_checkable

import pytest

from stamm.base.errors import ConfigError
from stamm.base.user_code import is_reference, load_python, load_reference


@runtime_checkable
class Reader(Protocol):
    name: str

    def read(self) -> int:
        """A number."""


OWN = """
import dataclasses

@dataclasses.dataclass
class Mine:
    name: str = "mine"
    def read(self):
        return 7

class Other:
    pass

class Broken:
    name = "broken"
    def __init__(self):
        raise ValueError("no file")
    def read(self):
        return 1

READY = Mine(name="ready")
NUMBER = 3
"""


@pytest.fixture
def mine(tmp_path: Path) -> Path:
    path = tmp_path / "mine.py"
    path.write_text(OWN)
    return path


def test_a_class_is_called_and_an_instance_is_taken(mine: Path) -> None:
    assert load_reference(f"{mine}:Mine", Reader, "a reader").read() == 7
    assert load_reference(f"{mine}:READY", Reader, "a reader").name == "ready"
    assert load_python(mine) is load_python(mine)


def test_a_file_with_one_object_of_the_kind_needs_no_name(tmp_path: Path) -> None:
    path = tmp_path / "one.py"
    path.write_text("class Only:\n    name = 'only'\n    def read(self):\n        return 2\n")
    assert load_reference(str(path), Reader, "a reader").read() == 2


def test_an_installed_module_is_a_reference_too() -> None:
    assert load_reference("collections:OrderedDict", None, "a class").__name__ == "OrderedDict"


@pytest.mark.parametrize(
    ("name", "message"),
    [
        (":Nobody", r"has no 'Nobody'"),
        (":Other", r"Other is not a reader\. It must provide what Reader declares"),
        (":NUMBER", r"NUMBER is not a reader"),
        (":Broken", r"ValueError: no file .*mine\.py, line 16\). Correct the file"),
        ("", r"defines 3 objects that are a reader\. Name one: .*:Mine, .*:Broken, .*:READY"),
    ],
)
def test_a_reference_that_does_not_fit_is_refused(mine: Path, name: str, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load_reference(f"{mine}{name}", Reader, "a reader")
    assert re.search(message, caught.value.line()), caught.value.line()


def test_a_missing_file_or_module_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"none\.py does not exist"):
        load_reference(f"{tmp_path / 'none.py'}:Mine", Reader, "a reader")
    with pytest.raises(ConfigError, match="no_such_package cannot be imported"):
        load_reference("no_such_package:Mine", Reader, "a reader")


def test_what_has_the_form_of_a_reference() -> None:
    assert is_reference("mine.py:Name") and is_reference("mine.py") and is_reference("a.b:Name")
    assert not is_reference("xielu") and not is_reference("derived/mine")


@pytest.mark.parametrize(
    ("code", "message"),
    [
        ("    def __init__(self, path): ...\n    def read(self): ...\n", "Mine is called with no arguments: missing a required argument: 'path'"),
        ("    def read(self, path): ...\n", "Mine.read is called with no arguments: missing a required argument: 'path'"),
        ("    def read(): ...\n", "Mine.read is called with no arguments: "),
    ],
)  # fmt: skip
def test_a_constructor_or_method_with_other_parameters_is_one_line(
    tmp_path: Path, code: str, message: str
) -> None:
    file = tmp_path / "mine.py"
    file.write_text(f"class Mine:\n    name = 'mine'\n{code}")
    with pytest.raises(ConfigError) as caught:
        load_reference(f"{file}:Mine", Reader, "a reader")
    assert caught.value.what.startswith(message)
    assert caught.value.where == str(file)


@pytest.mark.parametrize(
    ("code", "expected"),
    [("import sys\nsys.exit(3)\n", "SystemExit: 3"), ("a = 1\nb = a / 0\n", "ZeroDivisionError")],
)
def test_a_file_or_module_that_ends_the_process_or_raises_is_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: str, expected: str
) -> None:
    (tmp_path / "ends_here.py").write_text(code)
    monkeypatch.syspath_prepend(str(tmp_path))
    for reference in (f"{tmp_path / 'ends_here.py'}:READY", "ends_here:READY"):
        with pytest.raises(ConfigError, match=expected) as caught:
            load_reference(reference, Reader, "a reader")
        assert len(caught.value.line().splitlines()) == 1
