"""Schemas of files: read with checked types, written as they are read, hostile values refused."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

import pytest

import stamm
from stamm.base.errors import DataError
from stamm.base.schema import (
    FieldError,
    read_lines,
    read_record,
    read_record_if_present,
    write_record,
)


@dataclass(frozen=True, kw_only=True)
class Inner:
    low: float
    high: float

    def __post_init__(self) -> None:
        if self.low > self.high:
            raise FieldError("low", "at most high")


@dataclass(frozen=True, kw_only=True)
class Outer:
    SCHEMA: ClassVar[int] = 3

    name: str
    num_read: int = field(metadata={"key": "in"})
    ranges: tuple[Inner, ...] = ()
    by_language: Mapping[str, int] = field(default_factory=dict)
    rate: float | None = None
    is_done: bool = False


WHOLE = {"name": "a", "in": 2, "ranges": [{"low": 0, "high": 1}], "by_language": {"de": 1}}


def _write(path: Path, **changes: Any) -> Path:
    path.write_text(json.dumps({"schema": 3, **WHOLE, **changes}))
    return path


def test_what_is_written_is_read(tmp_path: Path) -> None:
    path = tmp_path / "x.json"
    write_record(path, Outer, WHOLE)
    assert json.loads(path.read_text()) == {"schema": 3, **WHOLE}
    assert read_record(Outer, path) == Outer(
        name="a", num_read=2, ranges=(Inner(low=0, high=1),), by_language={"de": 1}
    )


def test_unknown_keys_are_ignored(tmp_path: Path) -> None:
    path = _write(tmp_path / "x.json", new=[1], rate=None)
    assert read_record(Outer, path).rate is None


def test_a_diverged_run_may_write_nan(tmp_path: Path) -> None:
    rate = read_record(Outer, _write(tmp_path / "x.json", rate=math.nan)).rate
    assert rate is not None and math.isnan(rate)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"schema": 4}, rf"x.json has schema 4; stamm {stamm.__version__} reads 3"),
        ({"schema": "3"}, r"schema = '3' is not a whole number"),
        ({"name": None}, r"name = None is not text"),
        ({"in": True}, r"in = True is not a whole number"),
        ({"in": 2**63}, r"in = 9223372036854775808 is not a whole number of 64 bits"),
        ({"rate": 10**400}, r"rate = 1000.*… is not a number of at most 1.8e308"),
        ({"rate": "0.5"}, r"rate = '0.5' is not a number"),
        ({"is_done": 1}, r"is_done = 1 is not true or false"),
        ({"ranges": {}}, r"ranges = \{\} is not a list"),
        ({"ranges": [3]}, r"x.json, ranges\[0\] holds a plain value, not an object"),
        ({"ranges": [{"low": 2, "high": 1}]}, r"ranges\[0\]: low = 2 is not at most high"),
        ({"by_language": {"de": "1"}}, r"x.json, by_language: de = '1' is not a whole number"),
        ({"by_language": {"d" * 500: "1"}}, r"by_language: d{79}… = '1' is not"),
        ({"name": "a" * 500, "in": "b" * 500}, r"in = 'b{78}… is not a whole number"),
    ],
)
def test_a_wrong_value_is_named(tmp_path: Path, changes: dict[str, Any], message: str) -> None:
    with pytest.raises(DataError, match=message):
        read_record(Outer, _write(tmp_path / "x.json", **changes))


def test_a_missing_key_and_a_missing_file_are_named(tmp_path: Path) -> None:
    path = tmp_path / "x.json"
    assert read_record_if_present(Outer, path) is None
    path.write_text('{"schema": 3, "name": "a"}')
    with pytest.raises(DataError, match=r"x.json has no 'in'"):
        read_record(Outer, path)
    path.write_text('{"schema": 3}')
    with pytest.raises(DataError, match=r"x.json has no 'name', 'in'\."):
        read_record(Outer, path)
    path.write_text("[]")
    with pytest.raises(DataError, match=r"x.json holds a list, not an object"):
        read_record(Outer, path)


def test_a_file_too_large_is_not_loaded(tmp_path: Path) -> None:
    path = tmp_path / "x.json"
    with path.open("wb") as opened:
        opened.truncate(65 * 2**20)
    with pytest.raises(DataError, match=r"x.json has .*, more than 64"):
        read_record(Outer, path)


def test_lines_skip_what_a_kill_cut_off(tmp_path: Path) -> None:
    path = tmp_path / "x.jsonl"
    path.write_text('{"low": 0, "high": 1}\n\n{"low": 1, "high": 2}\n{"low": 2, "hi')
    assert [one.low for one in read_lines(Inner, path)] == [0, 1]


@pytest.mark.parametrize("more", [{"unknown": 1}, {"name": 3}, {"ranges": [{"low": 1}]}])
def test_a_writer_that_leaves_the_schema_is_a_defect(tmp_path: Path, more: dict[str, Any]) -> None:
    with pytest.raises(TypeError, match="Outer"):
        write_record(tmp_path / "x.json", Outer, {**WHOLE, **more})
    assert not list(tmp_path.iterdir())
