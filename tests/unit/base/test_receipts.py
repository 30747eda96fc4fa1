"""A file of a run is what its receipt says, or is not read."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from stamm.base import receipts
from stamm.base.errors import DataError
from stamm.base.files import read_json, sha256_bytes, write_json
from stamm.base.receipts import (
    SEAL,
    check_file,
    file_sha256,
    forget,
    is_covered,
    receipt_of,
    receipts_below,
    seal,
)


def write_receipt(root: Path, name: str, folder: str, *files: str, ended: float = 1.0) -> None:
    """A receipt of a step about files as they are."""
    outputs = {
        file: {"sha256": sha256_bytes((root / folder / file).read_bytes())} for file in files
    }
    content = {"step": name, "folder": folder, "ended": ended, "outputs": outputs}
    write_json(root / "steps" / f"{name}.json", seal(content))
    forget(root)


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """A run of one step with two files."""
    root = tmp_path / "run"
    (root / "arms" / "a").mkdir(parents=True)
    write_json(root / "arms" / "a" / "x.json", {"x": 1})
    (root / "arms" / "a" / "y.bin").write_bytes(b"yy")
    write_json(root / "manifest.json", {})
    write_receipt(root, "made", "arms/a", "x.json", "y.bin")
    return root


def test_an_altered_file_is_refused_with_both_hashes_and_the_step(run: Path) -> None:
    path = run / "arms" / "a" / "y.bin"
    check_file(path)
    path.write_bytes(b"yz")
    with pytest.raises(DataError, match=r"y\.bin differs from what step made wrote") as error:
        check_file(path)
    for content in (b"yy", b"yz"):
        assert sha256_bytes(content)[:12] in error.value.what
    path.write_bytes(b"yy")
    check_file(path)


def test_the_way_to_a_file_does_not_matter(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (run / "arms" / "a" / "y.bin").write_bytes(b"yz")
    (tmp_path / "link").symlink_to(run / "arms" / "a")
    monkeypatch.chdir(run / "arms")
    for path in ("a/y.bin", "../arms/./a/y.bin", tmp_path / "link" / "y.bin"):
        with pytest.raises(DataError, match="differs"):
            check_file(Path(path))


def test_json_is_checked_where_it_is_read(run: Path) -> None:
    path = run / "arms" / "a" / "x.json"
    assert read_json(path) == {"x": 1}
    write_json(path, {"x": 2})
    with pytest.raises(DataError, match="differs"):
        read_json(path)


def test_the_latest_receipt_counts(run: Path) -> None:
    (run / "arms" / "a" / "y.bin").write_bytes(b"yz")
    write_receipt(run, "again", "arms/a", "y.bin", ended=2.0)
    check_file(run / "arms" / "a" / "y.bin")
    assert receipt_of(run / "arms" / "a" / "y.bin") is not None
    write_receipt(run, "early", "arms/a", "y.bin", ended=0.5)
    (run / "arms" / "a" / "y.bin").write_bytes(b"yy")
    with pytest.raises(DataError, match="step again"):
        check_file(run / "arms" / "a" / "y.bin")


def test_a_receipt_of_another_process_is_seen_before_a_file_is_refused(run: Path) -> None:
    path = run / "arms" / "a" / "y.bin"
    check_file(path)
    path.write_bytes(b"new")
    write_receipt(run, "made", "arms/a", "x.json", "y.bin", ended=3.0)
    stale = receipts._Table({"arms/a/y.bin": receipts.Receipt("0" * 64, "step made")})
    receipts._tables[run] = (receipts.time.monotonic(), stale)
    check_file(path)


def test_an_altered_receipt_is_refused(run: Path) -> None:
    path = run / "steps" / "made.json"
    text = path.read_text()
    for wrong in (text.replace('"ended": 1', '"ended": 7'), text[:-9], "[" * 9999):
        path.write_text(wrong)
        forget(run)
        with pytest.raises(DataError, match=r"made\.json"):
            check_file(run / "arms" / "a" / "x.json")


def test_a_record_with_its_own_hash_is_checked(tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    content = seal({"rate": 1e-3, "text": "ü", "list": (1, 2), "none": None})
    write_json(path, content)
    assert read_json(path) == content
    assert seal(content) == content  # the old hash is no part of the new one
    write_json(path, {**content, "rate": 2e-3})
    with pytest.raises(DataError, match=r"config\.json was changed after it was written"):
        read_json(path)


def test_a_file_of_a_release_is_checked_against_its_sums(tmp_path: Path) -> None:
    write_json(tmp_path / "release.json", {})
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "x").write_bytes(b"x")
    sums = "".join(
        f"{sha256_bytes((tmp_path / name).read_bytes())}  {name}\n"
        for name in ("release.json", "run/x")
    )
    (tmp_path / "SHA256SUMS").write_text(f"{sums}# SHA-256 of the lines above: ...\n")
    check_file(tmp_path / "run" / "x")
    (tmp_path / "run" / "x").write_bytes(b"y")
    with pytest.raises(DataError, match="what the release"):
        check_file(tmp_path / "run" / "x")


def test_what_no_receipt_lists_is_not_checked_and_not_covered(run: Path) -> None:
    path = run / "arms" / "a" / "own.json"
    write_json(path, {"mine": 1})
    assert read_json(path) == {"mine": 1}
    assert not is_covered(path) and is_covered(run / "arms" / "a" / "y.bin")
    write_json(path, seal({"mine": 1}))
    assert is_covered(path)
    assert receipt_of(run.parent / "elsewhere") is None


def test_receipts_below_a_folder_are_relative_to_it(run: Path) -> None:
    y = sha256_bytes(b"yy")
    assert receipts_below(run / "arms" / "a")["y.bin"] == y
    assert receipts_below(run / "arms")["a/y.bin"] == y
    assert receipts_below(run)["arms/a/y.bin"] == y
    assert receipts_below(run / "arms" / "a" / "y.bin") == {"": y}
    assert receipts_below(run / "arms" / "b") == {}


def test_a_file_is_hashed_once_until_it_changes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, count = tmp_path / "x", 0
    path.write_bytes(b"x" * 999)
    digest = receipts.hashlib.file_digest

    def counted(*given: object) -> object:
        nonlocal count
        count += 1
        return digest(*given)  # type: ignore[arg-type]

    monkeypatch.setattr(receipts.hashlib, "file_digest", counted)
    monkeypatch.setattr(receipts, "_RACY_NS", 0)
    first = [file_sha256(path) for _ in range(3)]
    assert count == 1 and len(set(first)) == 1
    state = path.stat()
    path.write_bytes(b"y" * 999)
    os.utime(path, ns=(state.st_atime_ns, state.st_mtime_ns))  # size and time of change as before
    assert file_sha256(path) == sha256_bytes(b"y" * 999) and count == 2


def test_a_file_that_was_just_written_is_hashed_again(tmp_path: Path) -> None:
    """Within the resolution of a file system's clock a second change has the same times."""
    path = tmp_path / "x"
    for content in (b"x", b"y"):
        path.write_bytes(content)
        assert file_sha256(path) == sha256_bytes(content)
        assert path not in receipts._hashes


def test_the_hash_is_of_the_content_and_not_of_its_spelling(tmp_path: Path) -> None:
    path = tmp_path / "c.json"
    path.write_text(json.dumps(seal({"b": 1, "a": 2}), indent=7))
    assert read_json(path)[SEAL]


def test_of_a_run_and_a_folder_in_it_the_latest_receipt_counts(run: Path) -> None:
    path = run / "arms" / "a" / "y.bin"
    path.write_bytes(b"new")
    write_json(run / "arms" / "a" / "manifest.json", {})
    write_receipt(run / "arms" / "a", "command", ".", "y.bin", ended=5.0)
    check_file(path)
    path.write_bytes(b"yy")
    write_receipt(run, "made", "arms/a", "x.json", "y.bin", ended=9.0)
    check_file(path)


def tie(root: Path, state: str = "complete") -> None:
    """The manifest of the run, about its receipts as they are."""
    names = ["config.json", *(f"steps/{path.name}" for path in (root / "steps").glob("*.json"))]
    files = {name: sha256_bytes((root / name).read_bytes()) for name in names}
    write_json(root / "manifest.json", seal({"state": state, "files": files}))
    forget(root)


@pytest.fixture
def complete(run: Path) -> Path:
    """The run, complete."""
    write_json(run / "config.json", seal({"config": {}}))
    tie(run)
    check_file(run / "arms" / "a" / "y.bin")
    return run


def test_a_receipt_cannot_be_removed_or_exchanged_in_a_complete_run(complete: Path) -> None:
    path, y = complete / "steps" / "made.json", complete / "arms" / "a" / "y.bin"
    before = path.read_bytes()
    y.write_bytes(b"yz")
    write_receipt(complete, "made", "arms/a", "x.json", "y.bin", ended=9.0)
    with pytest.raises(DataError, match=r"made\.json is not the receipt that manifest\.json"):
        check_file(y)
    y.write_bytes(b"yy")
    path.unlink()
    forget(complete)
    with pytest.raises(DataError, match=r"made\.json is missing, and manifest\.json"):
        check_file(y)
    with receipts.resumed(complete):
        check_file(y)
    path.write_bytes(before)
    forget(complete)
    check_file(y)


def test_a_manifest_cannot_be_removed_truncated_or_exchanged(
    complete: Path, tmp_path: Path
) -> None:
    path, y = complete / "manifest.json", complete / "arms" / "a" / "y.bin"
    before = path.read_bytes()
    other = seal(
        {"state": "complete", "files": {"config.json": "0" * 64, "steps/b.json": "0" * 64}}
    )
    for content, what in (
        (None, "is missing beside steps"),
        (b"", "is not JSON"),
        (before[:-9], "is not JSON"),
        (before.replace(b"complete", b"running"), "was changed after it was written"),
        (json.dumps(other).encode(), r"b\.json is missing"),
        (json.dumps(seal({"state": "complete", "files": [1]})).encode(), "does not list"),
    ):
        path.unlink(missing_ok=True)
        if content is not None:
            path.write_bytes(content)
        forget(complete)
        with pytest.raises(DataError, match=what):
            check_file(y)


def test_the_configuration_of_another_run_is_refused(complete: Path) -> None:
    write_json(complete / "config.json", seal({"config": {"rate": 1}}))
    with pytest.raises(DataError, match=r"differs from what the run \(manifest\.json\) wrote"):
        read_json(complete / "config.json")


def test_what_has_no_receipt_in_a_complete_run_is_not_read(complete: Path) -> None:
    path = complete / "arms" / "a" / "own.json"
    write_json(path, {"mine": 1})
    with pytest.raises(DataError, match=r"own\.json has no receipt: no step and no command"):
        read_json(path)
    tie(complete, "running")
    assert read_json(path) == {"mine": 1}


def test_a_receipt_of_a_command_names_its_run(complete: Path) -> None:
    path = complete / "receipts" / "evaluate.json"
    y = complete / "arms" / "a" / "y.bin"
    content = json.loads((complete / "steps" / "made.json").read_text())
    own = sha256_bytes((complete / "config.json").read_bytes())
    for run, what in ((own, ""), ("0" * 64, "receipt of another run")):
        write_json(path, seal({**content, "run": run}))
        forget(complete)
        if what:
            with pytest.raises(DataError, match=what):
                check_file(y)
        else:
            check_file(y)


def test_records_are_checked_and_no_step_depends_on_them(run: Path) -> None:
    path, folder = run / "steps" / "made.json", run / "arms" / "a"
    content = json.loads(path.read_text())
    content["records"] = {"y.bin": content["outputs"].pop("y.bin")}
    write_json(path, seal(content))
    forget(run)
    assert list(receipts_below(folder)) == ["x.json"]
    (folder / "y.bin").write_bytes(b"yz")
    with pytest.raises(DataError, match="differs"):
        check_file(folder / "y.bin")


def test_a_shard_of_a_checkpoint_is_checked_against_its_state(run: Path) -> None:
    place = run / "checkpoints" / "step-00000001"
    place.mkdir(parents=True)
    (place / "a.safetensors").write_bytes(b"a")
    assert receipt_of(place / "a.safetensors") is None
    write_json(place / "state.json", {"sha256": {"a.safetensors": sha256_bytes(b"a")}})
    write_receipt(run, "trained", "checkpoints/step-00000001", "state.json")
    check_file(place / "a.safetensors")
    (place / "a.safetensors").write_bytes(b"b")
    with pytest.raises(DataError, match="what step trained wrote"):
        check_file(place / "a.safetensors")


def test_an_exported_folder_is_checked_against_its_parity_record(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_bytes(b"{}")
    write_json(tmp_path / "parity.json", {"sha256": {"config.json": sha256_bytes(b"{}")}})
    assert read_json(tmp_path / "config.json") == {}
    (tmp_path / "config.json").write_bytes(b"[]")
    with pytest.raises(DataError, match=r"what the export \(parity\.json\) wrote"):
        read_json(tmp_path / "config.json")
