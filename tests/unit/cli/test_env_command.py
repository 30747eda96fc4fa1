"""`stamm env` warns of a torch that is outside of the tested range."""

from __future__ import annotations

import pytest

from stamm.cli import env
from stamm.cli.main import main


@pytest.mark.parametrize(
    ("version", "warns"), [("2.13.0", False), ("2.14.0", True), ("missing", False)]
)
def test_an_untested_torch_is_a_warning(
    version: str, warns: bool, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(env, "environment", lambda: {"libraries": {"torch": version}})
    monkeypatch.setattr(env, "_kernels", dict)
    assert main(["env"]) == 0
    assert ("outside of the tested range, 2.11 to 2.13" in capsys.readouterr().out) == warns
