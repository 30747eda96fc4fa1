"""`stamm search --restart` sets an earlier search aside, as `stamm run` does."""

from __future__ import annotations

from pathlib import Path

import pytest

from stamm.cli.main import main
from stamm.recipes.resolve import resolve
from stamm.search.verb import SearchRun


class _StartedError(Exception):
    """The search began."""


def test_an_earlier_search_is_set_aside(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)

    def execute(*_: object, **__: object) -> None:
        raise _StartedError

    monkeypatch.setattr(SearchRun, "execute", execute)
    SearchRun(resolve("search.smoke", []), Path("found")).screening.folder.open()
    changed = ["search", "smoke", "screen.gain=0.1,9", "--out", "found"]
    assert main([*changed, "--restart", "--dry-run"]) == 2
    assert "--restart with --dry-run" in capsys.readouterr().err
    with pytest.raises(_StartedError):
        main([*changed, "--restart"])
    assert "The earlier run in found was moved to found.before-1." in capsys.readouterr().out
    assert Path("found.before-1/config.json").is_file() and not Path("found").exists()
