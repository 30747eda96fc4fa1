"""Where caches are, and the lock that makes one process do the work of many."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from stamm.activations.fused import build
from stamm.base.cache_folder import _private_folder, cache_folder, file_lock, is_private
from stamm.base.files import sha256_bytes


@pytest.mark.parametrize(
    ("given", "wanted"),
    [(None, "{home}/.cache"), ("", "{home}/.cache"), ("here", "{home}/.cache"), ("/x/y", "/x/y")],
)
def test_the_folder_is_that_of_the_xdg_specification(
    given: str | None, wanted: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    if given is not None:
        monkeypatch.setenv("XDG_CACHE_HOME", given)
    assert cache_folder("kernels") == Path(wanted.format(home=tmp_path)) / "stamm" / "kernels"


def test_without_a_home_folder_there_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    def no_home() -> Path:
        raise RuntimeError("no home")

    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setattr(Path, "home", no_home)
    assert cache_folder("kernels") is None


def test_one_process_at_a_time_holds_a_lock(tmp_path: Path) -> None:
    """Four processes add 1 to a file's number 25 times: without the lock additions are lost."""
    (tmp_path / "number").write_text("0")
    code = (
        "import sys, time\n"
        "from pathlib import Path\n"
        "from stamm.base.cache_folder import file_lock\n"
        "place = Path(sys.argv[1])\n"
        "for _ in range(25):\n"
        "    with file_lock(place / 'lock'):\n"
        "        number = int((place / 'number').read_text())\n"
        "        time.sleep(0.002)\n"
        "        (place / 'number').write_text(str(number + 1))\n"
    )
    started = [subprocess.Popen([sys.executable, "-c", code, str(tmp_path)]) for _ in range(4)]
    assert [each.wait() for each in started] == [0] * 4
    assert (tmp_path / "number").read_text() == "100"
    assert not (tmp_path / "lock").exists()


def test_where_no_lock_can_be_made_the_work_is_done_all_the_same(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("no folder")
    with file_lock(tmp_path / "file" / "lock"):
        done = True
    assert done


@pytest.mark.parametrize("opened", [".", "stamm", "stamm/fused"])
def test_a_folder_that_others_can_write_to_is_not_used(
    opened: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "stamm" / "fused").mkdir(parents=True, mode=0o755)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    _private_folder.cache_clear()
    assert cache_folder("fused") == tmp_path / "stamm" / "fused"
    for mode in (0o777, 0o757):
        (tmp_path / opened).chmod(mode)
        private = cache_folder("fused")
        assert private is not None and private == cache_folder("fused")
        assert private.stat().st_mode & 0o777 == 0o700
        assert not private.is_relative_to(tmp_path)
    assert capsys.readouterr().err.count("is not used as a cache") == 1
    (tmp_path / opened).chmod(0o755)
    assert cache_folder("fused") == tmp_path / "stamm" / "fused"


@pytest.mark.skipif(os.getuid() != 0, reason="only root can give a file away")
def test_a_file_of_another_user_is_not_private(tmp_path: Path) -> None:
    file = tmp_path / "kernel.so"
    file.write_text("x")
    assert is_private(file) and is_private(tmp_path / "none")
    os.chown(file, 12345, 0)
    assert not is_private(file)


def test_a_planted_kernel_is_not_loaded(tmp_path: Path) -> None:
    """Whoever can write to the cache can write the text with its hash, too."""
    (tmp_path / "stamm").mkdir()
    shared, receipt = tmp_path / "stamm" / "key.so", tmp_path / "stamm" / "key.sha256"
    shared.write_bytes(b"planted")
    receipt.write_text(sha256_bytes(b"planted"))
    assert build._intact(shared, receipt)
    for path in (shared, receipt):
        path.chmod(0o666)
        assert not build._intact(shared, receipt)
        path.chmod(0o644)
