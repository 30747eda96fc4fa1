"""Reading labelled texts, their order and their split."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from stamm.base.errors import DataError
from stamm.corpus.classifiers.examples import balanced_weights, read_examples, skeleton, split_of

GOOD = {"text": "a text", "label": 1, "language": "deu_Latn"}


def write(path: Path, rows: list[object]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def test_each_example_once_in_an_order_of_its_own(tmp_path: Path) -> None:
    rows: list[object] = [{**GOOD, "text": f"text {number}"} for number in range(20)]
    one = read_examples([write(tmp_path / "a.jsonl", rows)], labelled=True)
    halves = [
        write(tmp_path / "b.jsonl", rows[:13][::-1]),
        write(tmp_path / "c.jsonl", rows[5:]),
    ]
    assert read_examples(halves[::-1], labelled=True) == one
    assert len(one) == 20


@pytest.mark.parametrize(
    ("row", "why"),
    [
        ({**GOOD, "label": True}, "neither 0 nor 1"),
        ({**GOOD, "label": 2}, "neither 0 nor 1"),
        ({**GOOD, "label": "1"}, "neither 0 nor 1"),
        ({"text": "a", "language": "deu_Latn"}, "neither 0 nor 1"),
        ({**GOOD, "language": ""}, "no language"),
        ({**GOOD, "group": 7}, "group"),
        ({**GOOD, "source": "x" * 201}, "source"),
        ({"label": 1, "language": "deu_Latn"}, "text"),
        ([1], "text"),
    ],
)
def test_a_line_that_is_no_example_is_refused(tmp_path: Path, row: object, why: str) -> None:
    path = write(tmp_path / "a.jsonl", [GOOD, row])
    with pytest.raises(DataError, match=why) as caught:
        read_examples([path], labelled=True)
    assert "line 2 of a.jsonl" in str(caught.value)


@pytest.mark.parametrize("data", [b"{", b"\xff\xfe", b"[" * 100_000, b"9" * 10_000])
def test_a_line_that_is_no_json_is_refused(tmp_path: Path, data: bytes) -> None:
    path = tmp_path / "a.jsonl"
    path.write_bytes(data + b"\n")
    with pytest.raises(DataError, match="line 1"):
        read_examples([path], labelled=True)


def test_damaged_compression_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl.gz"
    path.write_bytes(b"\x1f\x8b\x08\x00not gzip")
    with pytest.raises(DataError, match="completely"):
        read_examples([path], labelled=True)


def test_clean_documents_carry_no_label(tmp_path: Path) -> None:
    path = write(tmp_path / "a.jsonl", [{"text": "a", "language": "deu_Latn"}])
    (example,) = read_examples([path], labelled=False)
    assert (example.label, example.clean) == (0, True)
    with pytest.raises(DataError, match="clean"):
        read_examples([write(tmp_path / "b.jsonl", [GOOD])], labelled=False)


def test_near_identical_texts_are_one_group() -> None:
    assert skeleton("@you Look: 12 birds!") == skeleton("look — 13  BIRDS @me")
    assert skeleton("look birds") != skeleton("look bards")


def test_a_group_falls_on_one_side_and_shares_are_met() -> None:
    sides = [split_of(f"group {number}", 28, 0.2, 0.1) for number in range(20_000)]
    assert sides == [split_of(f"group {number}", 28, 0.2, 0.1) for number in range(20_000)]
    assert abs(sides.count("test") / 20_000 - 0.2) < 0.01
    assert abs(sides.count("calibrate") / 20_000 - 0.1) < 0.01
    assert sides != [split_of(f"group {number}", 29, 0.2, 0.1) for number in range(20_000)]


def test_labels_weigh_the_same_in_each_language(tmp_path: Path) -> None:
    rows: list[object] = [{**GOOD, "text": f"one {n}"} for n in range(9)]
    rows += [{**GOOD, "text": f"zero {n}", "label": 0} for n in range(3)]
    rows += [{**GOOD, "text": "alone", "language": "fra_Latn"}]
    examples = read_examples([write(tmp_path / "a.jsonl", rows)], labelled=True)
    weights = balanced_weights(examples, 10)
    of = {
        key: sum(w for e, w in zip(examples, weights, strict=True) if (e.language, e.label) == key)
        for key in (("deu_Latn", 1), ("deu_Latn", 0), ("fra_Latn", 1))
    }
    assert of == pytest.approx({("deu_Latn", 1): 6, ("deu_Latn", 0): 6, ("fra_Latn", 1): 1})
    assert max(balanced_weights(examples, 1.5)) == 1.5
