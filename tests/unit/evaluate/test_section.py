"""What a page shows of evaluation, and in which kinds of run."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from stamm.base.errors import DataError
from stamm.evaluate.results import read_evaluated_arms
from stamm.evaluate.section import grammar_figure, language_figure, sections
from stamm.pages.config import ReportConfig
from stamm.pages.figure import Figure
from stamm.runs.run_view import ALIGNMENT, CORPUS, IMPORTED, RESULTS, open_view
from tests.unit.reports.run_folder import write, write_study


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return write_study(tmp_path / "demo")


def change(path: Path, **facts: object) -> None:
    write(path, {**json.loads(path.read_text()), **facts})


def grammar(root: Path) -> Figure:
    run = open_view(root)
    figure = grammar_figure(run, read_evaluated_arms(run))
    assert figure is not None
    return figure


def test_each_arm_has_its_own_command(root: Path) -> None:
    for name in ("evaluate/blimp.json", "evaluate/held_out.json"):
        (root / "arms" / "relu2" / name).unlink()
    assert grammar(root).command == (
        "stamm evaluate runs/demo/arms/swiglu && stamm evaluate runs/demo/arms/xielu"
    )


def test_the_figure_of_minimal_pairs_names_the_best_blind_baseline(root: Path) -> None:
    for path in (root / "arms").glob("*/evaluate/blimp.json"):
        blind = {"unigram": {"value": 0.5432}, "longest": {"value": 0.4}}
        change(path, blind=blind, strongest_blind="unigram")
    caption = grammar(root).caption
    assert "The best baseline that does not use the model, unigram, gives 54.3 %." in caption
    assert "1,005 of the 67,000 pairs of BLiMP" in caption


def test_unequal_settings_are_in_the_captions(root: Path) -> None:
    assert "different settings" not in grammar(root).caption
    change(root / "arms" / "relu2" / "evaluate" / "blimp.json", pairs_per_paradigm=3)
    assert "relu2: 3 pairs per paradigm" in grammar(root).caption
    run = open_view(root)
    equal = language_figure(run, read_evaluated_arms(run), ReportConfig())
    assert equal is not None and "different settings" not in equal.caption
    change(root / "arms" / "xielu" / "evaluate" / "held_out.json", context=64)
    unequal = language_figure(run, read_evaluated_arms(run), ReportConfig())
    assert unequal is not None
    assert "cannot be compared (swiglu: context 256, overlap 128; relu2" in unequal.caption


def test_a_section_is_shown_where_something_was_measured_and_in_every_study(root: Path) -> None:
    (study,) = sections(open_view(root), ReportConfig())
    assert (study.key, study.title, study.facts) == ("languages", "Held-out text", ())
    assert "Held-out text and grammar</h2>" in study.html and "not run" not in study.html
    for path in root.glob("arms/*/evaluate"):
        shutil.rmtree(path)
    run = open_view(root)
    (study,) = sections(run, ReportConfig())
    assert "stamm evaluate runs/demo/arms/relu2</code>" in study.html
    shown = {
        kind: len(sections(replace(run, kind=kind), ReportConfig()))
        for kind in (ALIGNMENT, CORPUS, IMPORTED)
    }
    assert shown == {ALIGNMENT: 0, CORPUS: 0, IMPORTED: 1}


def test_results_of_a_folder_have_their_weights_as_a_fact(root: Path, tmp_path: Path) -> None:
    folder = tmp_path / "evaluations" / "theirs"
    shutil.copytree(root / "arms" / "xielu" / "evaluate", folder)
    (folder / "blimp_pairs.jsonl").write_text("")
    change(folder / "blimp.json", model_sha256="ab" * 32)
    run = open_view(folder)
    assert run.kind == RESULTS
    (section,) = sections(run, ReportConfig())
    assert section.facts == (f"weights {'ab' * 6}",)
    assert ">Evaluation</h2>" in section.html and "not run" not in section.html
    (folder / "blimp.json").unlink()
    assert sections(run, ReportConfig()) == ()


@pytest.mark.parametrize(
    ("name", "old", "new", "message"),
    [
        ("held_out.json", '"context": 256', '"context": "x"', r"context = 'x' is not a whole"),
        ("held_out.json", '{"documents": 60', '3, "x": {"y": 60', r"overall holds a plain value"),
        ("blimp.json", 'paradigm": 15', 'paradigm": 1.5', r"paradigm = 1.5 is not a whole"),
        ("blimp.json", '"standard_error": ', '"standard_error": -', r"is not at least 0"),
    ],
)
def test_a_malformed_file_is_named(root: Path, name: str, old: str, new: str, message: str) -> None:
    path = root / "arms" / "xielu" / "evaluate" / name
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new))
    with pytest.raises(DataError, match=message) as told:
        sections(open_view(root), ReportConfig())
    assert path.name in str(told.value)
