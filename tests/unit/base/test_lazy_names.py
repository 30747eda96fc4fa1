"""Names of a package that are imported on first use."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path

import pytest


def test_a_name_loads_its_module_and_no_other_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = tmp_path / "lazy_example"
    (package / "inner").mkdir(parents=True)
    (package / "__init__.py").write_text(
        "from stamm.base.lazy_names import lazy_names\n"
        "__getattr__ = lazy_names(__name__, {'one': ('A', 'B'), 'two': ('C',)}, packages=('inner',))\n"
    )
    (package / "one.py").write_text("A, B = 1, 2\n")
    (package / "two.py").write_text("raise RuntimeError\n")
    (package / "inner/__init__.py").write_text("D = 4\n")
    monkeypatch.syspath_prepend(tmp_path)
    lazy = importlib.import_module("lazy_example")
    assert "lazy_example.one" not in sys.modules
    assert (lazy.B, lazy.inner.D) == (2, 4)
    assert vars(lazy)["B"] == 2 and "A" not in vars(lazy)  # the next use is no call
    with pytest.raises(AttributeError, match="module 'lazy_example' has no attribute 'nosuch'"):
        _ = lazy.nosuch
    with pytest.raises(RuntimeError):
        _ = lazy.C
