"""What a command writes into a run has a receipt; what it did not write gets none."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from stamm.base.errors import DataError, RunError
from stamm.base.files import read_json, write_json
from stamm.base.receipts import check_file, is_covered
from stamm.runs.command_receipts import recorded, write_command_receipt, writing_alone


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """The results of one arm, by an earlier command."""
    made = tmp_path / "run" / "arms" / "a" / "evaluate"
    made.mkdir(parents=True)
    with recorded(tmp_path / "run", "evaluate.a", made):
        write_json(made / "blimp.json", {"a": 1})
    return made


def test_what_a_command_writes_is_covered(folder: Path) -> None:
    check_file(folder / "blimp.json")
    assert is_covered(folder / "blimp.json")
    receipt = read_json(folder.parents[2] / "receipts" / "evaluate.a.json")
    assert list(receipt["outputs"]) == ["arms/a/evaluate/blimp.json"]
    write_json(folder / "blimp.json", {"a": 2})
    with pytest.raises(DataError, match=r"what command evaluate\.a wrote"):
        read_json(folder / "blimp.json")


def test_a_later_command_keeps_the_receipts_of_other_files(folder: Path, tmp_path: Path) -> None:
    with recorded(tmp_path / "run", "evaluate.a", folder):
        write_json(folder / "other.json", {"b": 1})
        assert read_json(folder / "other.json") == {"b": 1}
    assert is_covered(folder / "blimp.json") and is_covered(folder / "other.json")


def test_an_altered_file_gets_no_receipt_from_a_command_that_left_it_alone(
    folder: Path, tmp_path: Path
) -> None:
    write_json(folder / "blimp.json", {"a": 2})
    with recorded(tmp_path / "run", "evaluate.a", folder):
        write_json(folder / "other.json", {"b": 1})
        with pytest.raises(DataError, match="differs"):
            read_json(folder / "blimp.json")
    with pytest.raises(DataError, match="differs"):
        read_json(folder / "blimp.json")


def test_a_command_reads_what_it_has_just_replaced(folder: Path, tmp_path: Path) -> None:
    with recorded(tmp_path / "run", "evaluate.a", folder):
        write_json(folder / "blimp.json", {"a": 3})
        assert read_json(folder / "blimp.json") == {"a": 3}
    assert read_json(folder / "blimp.json") == {"a": 3}


def test_what_a_failed_command_wrote_has_a_receipt_too(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(RuntimeError), recorded(tmp_path / "run", "evaluate.a", folder):
        write_json(folder / "blimp.json", {"a": 3})
        raise RuntimeError
    assert read_json(folder / "blimp.json") == {"a": 3}


def test_nothing_is_written_for_a_folder_outside_the_run_or_without_changes(
    folder: Path, tmp_path: Path
) -> None:
    before = (tmp_path / "run" / "receipts" / "evaluate.a.json").read_bytes()
    (tmp_path / "out").mkdir()
    with recorded(tmp_path / "run", "export.a", tmp_path / "out"):
        write_json(tmp_path / "out" / "x.json", {})
    with recorded(tmp_path / "run", "evaluate.a", folder):
        pass
    write_command_receipt(tmp_path / "run", "report", [])
    assert [path.name for path in (tmp_path / "run" / "receipts").iterdir()] == ["evaluate.a.json"]
    assert (tmp_path / "run" / "receipts" / "evaluate.a.json").read_bytes() == before


def test_the_process_that_holds_a_lock_is_named(tmp_path: Path) -> None:
    code = (
        "import sys, fcntl; file = open(sys.argv[1], 'a'); fcntl.flock(file, fcntl.LOCK_EX);"
        "print('held', flush=True); sys.stdin.read()"
    )
    words = [sys.executable, "-c", code, str(tmp_path / ".mine.lock")]
    with subprocess.Popen(
        words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as holder:
        assert holder.stdout is not None and holder.stdout.readline() == "held\n"
        with pytest.raises(RunError) as error, writing_alone(tmp_path, "mine"):
            pass
        holder.communicate("")
    assert f"another process writes mine in {tmp_path}" in error.value.line()
    if Path("/proc/locks").is_file():
        assert f"(process {holder.pid}: python" in error.value.line()
    with writing_alone(tmp_path, "mine"):
        assert (tmp_path / ".mine.lock").is_file()
    assert not list(tmp_path.iterdir())
