"""Files appear whole or not at all."""

from __future__ import annotations

import errno
import os
import resource
import signal
from pathlib import Path

import numpy as np
import pytest

from stamm.base.errors import DataError, RunError, visible
from stamm.base.files import (
    atomic,
    atomic_folder,
    read_json,
    remove_leftovers,
    sha256_value,
    write_json,
    write_text,
)


def test_a_failed_write_leaves_the_old_file(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    write_json(path, 1)
    with pytest.raises(ValueError, match="stop"), atomic(path) as temporary:
        temporary.write_text("half")
        raise ValueError("stop")
    assert read_json(path) == 1
    assert [p.name for p in tmp_path.iterdir()] == ["a.json"]


def test_a_full_disk_is_told_in_one_line_and_leaves_nothing(tmp_path: Path) -> None:
    with pytest.raises(RunError) as caught, atomic(tmp_path / "b") as temporary:
        temporary.write_text("half")
        raise OSError(errno.ENOSPC, "No space left on device")
    assert "no space left to write" in caught.value.line()
    assert "free there" in caught.value.line()
    assert not list(tmp_path.iterdir())


def test_other_errors_of_the_system_are_not_renamed(tmp_path: Path) -> None:
    with pytest.raises(PermissionError), atomic(tmp_path / "c"):
        raise PermissionError(errno.EACCES, "denied")


def test_leftovers_of_a_killed_process_go(tmp_path: Path) -> None:
    (tmp_path / "deep").mkdir()
    (tmp_path / "deep" / ".x.1.part").write_text("half")
    (tmp_path / "deep" / "x").write_text("whole")
    (tmp_path / "deep" / ".step-00000010.part").mkdir()
    (tmp_path / "deep" / ".step-00000010.part" / "model").write_text("half")
    remove_leftovers(tmp_path)
    assert [p.name for p in (tmp_path / "deep").iterdir()] == ["x"]


def test_a_folder_is_replaced_whole_and_the_previous_one_is_removed_or_kept(tmp_path: Path) -> None:
    folder, aside = tmp_path / "a", tmp_path / "deep" / "old"
    for text in ("first", "second"):
        with atomic_folder(folder) as new:
            write_text(new / "b" / "c", text)
    with pytest.raises(ValueError, match="stop"), atomic_folder(folder) as new:
        write_text(new / "b" / "c", "half")
        raise ValueError("stop")
    with pytest.raises(RunError, match="no space left to write"), atomic_folder(folder) as new:
        raise OSError(errno.ENOSPC, "No space left on device")
    assert [(p.name, (p / "b" / "c").read_text()) for p in tmp_path.iterdir()] == [("a", "second")]
    with atomic_folder(folder, lambda new: aside) as new:
        write_text(new / "b" / "c", "third")
    assert sorted(p.name for p in tmp_path.iterdir()) == ["a", "deep"]
    assert [(p / "b" / "c").read_text() for p in (folder, aside)] == ["third", "second"]


def test_hashes_do_not_depend_on_the_order_of_keys() -> None:
    assert sha256_value({"a": 1, "b": [2]}) == sha256_value({"b": [2], "a": 1})


def test_a_broken_json_file_is_named(tmp_path: Path) -> None:
    (tmp_path / "d.json").write_text("{")
    for hostile in ("9" * 5000, "[" * 100_000):
        (tmp_path / "deep.json").write_text(hostile)
        with pytest.raises(DataError, match=r"deep\.json is not JSON"):
            read_json(tmp_path / "deep.json")
    with pytest.raises(DataError, match=r"d\.json is not JSON"):
        read_json(tmp_path / "d.json")
    with pytest.raises(DataError, match="does not exist"):
        read_json(tmp_path / "e.json")


def test_control_characters_never_reach_the_terminal() -> None:
    assert visible("a\x1b[31mb\nc") == "a\\x1b[31mb\\nc"
    assert len(visible("x" * 9999)) == 2000


def test_a_file_may_be_read_as_the_umask_says(tmp_path: Path) -> None:
    before = os.umask(0o022)
    try:
        with atomic(tmp_path / "shared") as temporary:
            os.close(os.open(temporary, os.O_CREAT | os.O_WRONLY, 0o600))
        os.umask(0o077)
        write_text(tmp_path / "private", "")
    finally:
        os.umask(before)
    modes = [(tmp_path / name).stat().st_mode & 0o777 for name in ("shared", "private")]
    assert modes == [0o644, 0o600]


@pytest.mark.parametrize("way", ["write", "tofile"])
def test_a_file_that_may_not_grow_is_told_with_its_path(tmp_path: Path, way: str) -> None:
    """A full disk and a limit of file sizes are the same to a writer; numpy reports two counts, without errno."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    ignored = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (10_000, hard))
    numbers = np.zeros(50_000)
    try:
        with (
            pytest.raises(RunError, match=r"no space left to write .*weights"),
            atomic(tmp_path / "weights") as part,
            part.open("wb") as out,
        ):
            if way == "write":
                out.write(numbers.data)
            else:
                numbers.tofile(out)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        signal.signal(signal.SIGXFSZ, ignored)
    assert list(tmp_path.iterdir()) == []
