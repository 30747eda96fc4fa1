"""Where caches are, and the lock that makes one process do the work of many."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from stamm.base.cache_folder import cache_folder, file_lock


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
