"""The export of an arm as its page shows it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from stamm.base.errors import DataError
from stamm.export.results import read_exported
from stamm.export.section import released_table, sections
from stamm.pages.config import ReportConfig
from stamm.release.records import ReleasedFile
from stamm.runs.run_view import open_view
from tests.unit.reports.run_folder import HOSTILE, arm_config, write, write_export
from tests.unit.reports.test_page import Page


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A run of one exported arm."""
    arm = tmp_path / "arms" / "xielu"
    write(arm / "config.json", arm_config("PlainFFN", 384, "xielu"))
    write_export(arm / "export" / "transformers")
    return tmp_path


def page(root: Path) -> Page:
    (section,) = sections(open_view(root), ReportConfig())
    return Page(str(section.html))


def test_every_language_of_an_exported_tokenizer_is_listed(root: Path) -> None:
    text = page(root).text
    assert "Token ids that differ: 4321 of 350000 in 70 languages." in text
    listed = text[text.index("Held-out text by language") :]
    places = [listed.index(name) for name in ("4,321", "l00", "l68")]
    assert places == sorted(places)


def test_hostile_text_is_shown_and_not_obeyed(root: Path) -> None:
    shown = page(root)
    assert shown.problems == []
    assert f"All {HOSTILE} beings" in shown.text
    assert "script" not in {tag for tag, _ in shown.tags}


def test_an_export_without_its_gate_is_not_said_to_disagree(root: Path) -> None:
    path = root / "arms" / "xielu" / "export" / "transformers" / "parity.json"
    stored = json.loads(path.read_text()) | {"held_out": "the file held.txt, SHA-256 12ab"}
    path.write_text(json.dumps(stored))
    assert (
        "Held-out text (the file held.txt, SHA-256 12ab): 1.7500 bits per byte" in page(root).text
    )
    path.write_text(json.dumps(stored | {"passed": False, "measured": False, "bits": []}))
    text = page(root).text
    assert "does the exported model agree? Not measured: transformers" in text
    assert "without the gate of held-out bits per byte" in text


def test_a_run_without_an_export_says_so_unless_it_aligns(root: Path) -> None:
    (root / "arms" / "xielu" / "export").rename(root / "gone")
    assert "Export: not run." in page(root).text
    config = root / "arms" / "xielu" / "config.json"
    write(config, {**json.loads(config.read_text()), "kind": "finetune"})
    assert sections(open_view(root), ReportConfig()) == ()


def test_a_release_lists_its_files(root: Path) -> None:
    files = {f"file-{number:03d}": {"bytes": 1_234, "sha256": "ab" * 32} for number in range(203)}
    release = {
        "schema": 1, "name": HOSTILE, "formats": ["gguf"], "files": files,
        "model_sha256": "cd" * 32, "sums_sha256": "ef" * 32, "signed": False,
    }  # fmt: skip
    write(root / "arms" / "xielu" / "released.json", release)
    released = read_exported(open_view(root).arms[0]).released
    assert isinstance(released, ReleasedFile)
    table = released_table(released)
    assert (len(table.rows), table.note) == (200, "3 more files are in SHA256SUMS.")
    assert table.rows[1] == ("file-001", "1,234", "ab" * 32)
    shown = page(root)
    assert shown.problems == []
    assert f"{HOSTILE}, gguf: 203 files, from weights with SHA-256 {'cd' * 32}" in shown.text


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("parity.json", '{"schema": 1, "reference": []}', r"reference = \[\] is not text"),
        ("samples.json", '{"schema": 1, "samples": {}}', r"samples = \{\} is not a list"),
    ],
)
def test_a_malformed_file_is_named(root: Path, name: str, text: str, message: str) -> None:
    (root / "arms" / "xielu" / "export" / "transformers" / name).write_text(text)
    with pytest.raises(DataError, match=message):
        sections(open_view(root), ReportConfig())


def test_an_export_of_other_weights_is_refused(root: Path) -> None:
    arm = root / "arms" / "xielu"
    path = arm / "export" / "transformers" / "parity.json"
    write(path, {**json.loads(path.read_text()), "model_sha256": "ab" * 32})
    write(arm / "model" / "decoder.json", {"weights_sha256": "99" * 32})
    with pytest.raises(DataError, match=r"parity\.json was made from weights"):
        sections(open_view(root), ReportConfig())
