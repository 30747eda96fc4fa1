"""Descriptions: plain data that tells the truth about an entry."""

from __future__ import annotations

import json

import pytest

from stamm.activations.catalog import XIELU, names
from stamm.activations.describe import describe, summaries
from stamm.activations.spec.expressions import evaluate, parse
from stamm.base.errors import ConfigError


def test_xielu() -> None:
    told = describe("xielu")
    assert told["content_hash"] == XIELU.content_hash
    assert told["gradient"][0] == {"where": "x > 0", "formula": "2*alpha_p*x + beta"}
    assert [p["constraint"] for p in told["parameters"]] == [
        "alpha_p = softplus(raw)",
        "alpha_n = beta + softplus(raw)",
        "beta = 0.5, fixed",
    ]
    assert told["parameters"][1]["initial_raw"] == pytest.approx(-1.0502256128, abs=1e-10)
    assert told["compat"]["constants"] == {"eps": -1e-06}
    assert [f["where"] for f in told["function"]] == ["x <= 0", "x > 0"]


def test_the_told_function_is_a_formula_of_the_language() -> None:
    (left, right) = describe("xielu")["function"]
    values = {"alpha_n": 0.8, "alpha_p": 0.8, "beta": 0.5}
    assert evaluate(parse(right["formula"]), {**values, "x": 2.0}) == pytest.approx(4.2)
    assert evaluate(parse(left["formula"]), {**values, "x": 0.0}) == 0.0


@pytest.mark.parametrize("name", [*names(), "swish"])
def test_every_entry_is_json(name: str) -> None:
    told = describe(name)
    assert json.loads(json.dumps(told)) == told
    assert told["source"] and told["title"]


def test_summaries() -> None:
    rows = {row["name"]: row for row in summaries()}
    assert tuple(rows) == names()
    assert rows["xatglu"]["inputs"] == 2 and rows["xatglu"]["trainable"] == ["alpha"]


def test_errors(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConfigError, match="Did you mean 'gelu'"):
        describe("gellu")
    monkeypatch.setattr("stamm.activations.describe.shipped", lambda name: {"content_hash": "0"})
    with pytest.raises(ConfigError, match="generated texts of xielu do not belong to its spec"):
        describe("xielu")
