"""What a run may claim: which arm was lowest and by how much, and nothing about which is better."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from stamm.audit import results as audits
from stamm.audit.results import read_audited
from stamm.compare.section import sections, study_verdict
from stamm.pages.config import ReportConfig
from stamm.runs.run_view import open_view
from tests.unit.reports.run_folder import cost, write, write_study


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return write_study(tmp_path / "demo")


def set_loss(root: Path, arm: str, loss: float) -> None:
    path = root / "arms" / arm / "evaluate" / "held_out.json"
    write(path, {**json.loads(path.read_text()), "overall": cost(60, loss)})


def change(path: Path, **facts: object) -> None:
    write(path, {**json.loads(path.read_text()), **facts})


def test_lowest_margin_and_restraint(study: Path) -> None:
    found = study_verdict(study)
    assert found.lowest == "xielu"
    assert found.reference == "swiglu"
    assert [row.name for row in found.rows] == ["swiglu", "relu2", "xielu"]
    assert found.rows[2].difference == pytest.approx(-0.05)
    assert found.rows[0].difference == 0.0
    # 0.03 nats over 800 tokens of 2,500 bytes: 0.03 * 800 / 2500 / ln 2 bits per byte
    assert found.sentences[0] == (
        "xielu has the lowest held-out loss of 3 arms, 4.2600 nats per token: 0.0300 nats per "
        "token (0.0138 bits per byte) below relu2, the next."
    )
    assert "does not say which activation is better" in " ".join(found.sentences)


def test_the_part_of_blimp_that_was_asked_is_named(study: Path) -> None:
    found = study_verdict(study)
    assert "1,005 of the 67,000 pairs of BLiMP, ± standard error, chance 50 %" in found.columns()


def test_no_sentence_claims_that_one_is_better(study: Path) -> None:
    text = study_verdict(study).text()
    for claim in ("wins", "outperforms", "significant", "better than", "superior"):
        assert claim not in text


def test_the_table_fits_a_terminal(study: Path) -> None:
    lines = study_verdict(study).text().splitlines()
    table = lines[: lines.index("")]
    assert len(table) == 4
    assert max(map(len, table)) <= 100
    assert "58.0 ± 1.6 %" in table[3]
    assert "−0.0500" in table[3]
    assert len({len(line) for line in table}) == 1


def test_equal_losses_are_called_equal(root: Path) -> None:
    for arm in ("swiglu", "relu2", "xielu"):
        set_loss(root, arm, 4.3)
    assert study_verdict(root).sentences[0] == "relu2 and swiglu have the same held-out loss." or (
        study_verdict(root).sentences[0] == "swiglu and relu2 have the same held-out loss."
    )


def test_a_diverged_arm_is_never_the_lowest(root: Path) -> None:
    set_loss(root, "xielu", float("nan"))
    found = study_verdict(root)
    assert found.lowest == "relu2"
    assert "not finite" in found.text()


def test_all_diverged(root: Path) -> None:
    for arm in ("swiglu", "relu2", "xielu"):
        set_loss(root, arm, float("inf"))
    assert study_verdict(root).sentences[0] == "No arm has a finite held-out loss."


def test_without_the_reference_there_are_no_differences(root: Path) -> None:
    shutil.rmtree(root / "arms" / "swiglu")
    found = study_verdict(root)
    assert found.reference == ""
    assert all(row.difference is None for row in found.rows)
    assert not any("against" in column for column in found.columns())
    assert all(len(found.cells(row)) == len(found.columns()) for row in found.rows)


def test_one_evaluated_arm_is_not_compared(root: Path) -> None:
    for arm in ("swiglu", "relu2"):
        shutil.rmtree(root / "arms" / arm / "evaluate")
    found = study_verdict(root)
    assert found.sentences[0] == "Only xielu was evaluated: nothing can be compared."
    assert found.cells(found.rows[0]).count("not run") >= 3


def test_an_arm_left_out_is_named(root: Path) -> None:
    shutil.rmtree(root / "arms" / "relu2" / "evaluate")
    assert "Not evaluated: relu2." in study_verdict(root).sentences


def test_unequal_budgets_are_told(root: Path) -> None:
    change(root / "arms" / "xielu" / "summary.json", trained_tokens=300_000, parameters=2_000_000)
    said = " ".join(study_verdict(root).sentences)
    assert "Parameters differ by at most 228,992 of 2,000,000" in said
    assert "but the arms saw between 245,760 and 300,000 tokens" in said


def test_the_same_order_is_claimed_only_when_recorded(root: Path) -> None:
    assert "in the same order" in " ".join(study_verdict(root).sentences)
    change(root / "arms" / "xielu" / "manifest.json", inputs={"pack": {"sha256": "00" * 32}})
    assert "in the same order" not in " ".join(study_verdict(root).sentences)


def test_the_interval_over_documents_is_given_with_its_limit(study: Path) -> None:
    found = study_verdict(study)
    said = " ".join(found.sentences)
    assert "taken in pairs, the 95 % interval of that margin is +0.0" in said
    assert "what another seed would give is not known" in said
    row = next(row for row in found.rows if row.name == "xielu")
    assert row.half_width is not None and row.half_width > 0
    assert found.cells(row)[5].startswith("−") and " ± 0.0" in found.cells(row)[5]
    base = next(row for row in found.rows if row.name == "swiglu")
    assert found.cells(base)[5] == "0.0000"


def test_unfinished_training_is_told(root: Path) -> None:
    (root / "arms" / "relu2" / "summary.json").unlink()
    assert "Not every arm has finished training." in study_verdict(root).sentences


def test_losses_of_different_windows_are_not_compared(root: Path) -> None:
    change(root / "arms" / "xielu" / "evaluate" / "held_out.json", context=64)
    found = study_verdict(root)
    assert (found.lowest, found.reference) == ("", "")
    assert all(row.difference is None for row in found.rows)
    assert found.sentences[0] == (
        "Held-out losses were measured with different settings and cannot be compared (swiglu: "
        "context 256, overlap 128; relu2: context 256, overlap 128; xielu: context 64, overlap "
        "128)."
    )
    assert "below" not in found.text()
    assert "standard error" not in found.text()


def test_other_pairs_and_other_passages_are_told(root: Path, study: Path) -> None:
    arm = root / "arms" / "relu2"
    change(arm / "evaluate" / "blimp.json", pairs_per_paradigm=3)
    change(arm / "audit" / "memorization.json", new_tokens=20)
    said = study_verdict(root).sentences
    for told in ("relu2: 3 pairs per paradigm", "relu2: 50 prefix tokens, 20 new tokens"):
        assert any(told in sentence for sentence in said)
    assert "different settings" not in study_verdict(study).text()


def test_the_section_has_the_table_and_marks_the_lowest(study: Path, root: Path) -> None:
    (section,) = sections(open_view(study), ReportConfig())
    assert (section.key, section.title, section.facts) == ("verdict", "Verdict", ())
    assert (
        "<caption>Results by arm. Differences are taken against swiglu; below zero" in section.html
    )
    assert section.html.count('class="lowest"') == 1
    assert '</span>xielu<span class="tag">lowest loss</span></th>' in section.html
    shutil.rmtree(root / "arms")
    assert sections(open_view(root), ReportConfig()) == ()


def test_the_passages_of_audits_are_not_read(study: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[Path] = []
    monkeypatch.setattr(audits, "read_lines", lambda kind, path: read.append(path) or iter(()))
    study_verdict(study)
    assert not read
    read_audited(open_view(study).arms[0])
    assert [path.name for path in read] == ["continuations.jsonl"]
