"""Without a terminal, plans, lists and descriptions have lines of at most 80 columns."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from stamm.cli import training_time
from stamm.cli.main import main
from stamm.cli.output import print_pairs, print_table, print_text


@pytest.fixture(autouse=True)
def no_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("COLUMNS", raising=False)
    monkeypatch.setattr(training_time, "_core_flops", lambda: 100e9)


@pytest.mark.parametrize(
    "line",
    [
        "show xielu", "show swiglu", "show demo", "diff demo smoke", "plan demo",
        "plan apertus_8b --gpus 1024xGH200", "plan llama_1b_xielu --gpus 8xH100",
        "run demo --dry-run", "run align.demo --dry-run", "run corpus.demo --dry-run",
        "compare activations --dry-run", "search activations --dry-run",
        "search smoke --dry-run", "export demo --dry-run", "cp demo mine.py --dry-run",
    ],
)  # fmt: skip
def test_no_line_is_wider_than_80_columns(
    line: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: object
) -> None:
    monkeypatch.chdir(str(tmp_path))
    assert main(line.split()) in (0, 1)  # 1: there are differences
    lines = capsys.readouterr().out.splitlines()
    wide = [shown for shown in lines if len(shown) > 80 and not _is_one_word(shown)]
    assert lines and not wide


def _is_one_word(line: str) -> bool:
    """Whether a line is wide for one name that cannot be broken, such as a path."""
    return max(map(len, line.split())) > 24


def test_a_table_wraps_its_widest_cells_and_loses_nothing(
    capsys: pytest.CaptureFixture[str],
) -> None:
    text = " ".join(f"word{n}" for n in range(30))
    print_table(["name", "text", "n"], [["a", text, "1"], ["b", "short", "2"]], wrap=True)
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) <= 80
    body = " ".join(" ".join(lines[1:-1]).split())
    assert body.replace(" 1 ", " ", 1) == f"a {text}"
    assert lines[-1].split() == ["b", "short", "2"]
    assert {line.rindex(end) for line, end in zip(lines, "n1", strict=False)} == {len(lines[0]) - 1}


@pytest.mark.parametrize(
    ("pairs", "lines"),
    [
        ([("hash", "f" * 76)], ["hash", "    " + "f" * 76]),
        ([("hash", "f" * 200)], ["hash  " + "f" * 200]),
        ([("n" * 60, "word " * 9 + "end")], ["n" * 60, "    " + "word " * 9 + "end"]),
    ],
)
def test_a_value_that_fits_only_below_its_name_is_there(
    pairs: Sequence[tuple[str, str]], lines: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    print_pairs(pairs)
    assert capsys.readouterr().out.splitlines() == lines


def test_a_terminal_has_its_own_width(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "40")
    print_text("A sentence of ten words that is longer than one line.", "")
    assert capsys.readouterr().out.splitlines() == [
        "A sentence of ten words that is longer", "than one line.", "",
    ]  # fmt: skip
