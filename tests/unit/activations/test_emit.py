"""The generated files: complete, up to date, and the same bytes every time."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from stamm.activations import emit, kernels
from stamm.activations.catalog import GELU, RELU, XIELU
from stamm.activations.derivation import derive
from stamm.activations.emit import GENERATED, generate, kernel_source
from stamm.activations.generated.kernels import KERNELS
from stamm.base.errors import ConfigError


def test_shipped_files_are_what_the_specs_give(tmp_path: Path) -> None:
    written = generate(tmp_path)
    shipped = sorted(p.name for p in GENERATED.glob("*.py") if p.name != "__init__.py")
    assert sorted(p.name for p in written) == shipped
    for path in written:
        assert path.read_bytes() == (GENERATED / path.name).read_bytes(), path.name


def test_the_text_does_not_depend_on_hash_order() -> None:
    code = (
        "from stamm.activations.catalog import XIELU\n"
        "from stamm.activations.derivation import derive\n"
        "from stamm.activations.emit import kernel_source\n"
        "print(kernel_source(derive(XIELU)))"
    )
    texts = {
        subprocess.run(
            [sys.executable, "-c", code],
            env={**os.environ, "PYTHONHASHSEED": seed},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for seed in ("1", "271828")
    }
    assert len(texts) == 1


def test_the_window_is_a_polynomial_and_no_kernel_calls_expm1() -> None:
    for path in GENERATED.glob("*.py"):
        text = path.read_text().split("def compat_")[0]
        calls = [line for line in text.splitlines() if "torch.expm1(" in line]
        assert calls == [], path.name
    source = kernel_source(derive(XIELU))
    assert "primitives.phi2_negative(inside_2)" in source
    assert XIELU.content_hash in source and "do not edit" in source


def test_branches_have_their_own_clamped_inputs() -> None:
    source = kernel_source(derive(RELU))
    assert "inside_1 = torch.clamp(x, min=0.0)" in source
    assert "torch.where(x <= 0.0, flat_1, inside_1)" in source


def test_a_stale_kernel_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(KERNELS, "gelu")
    kernels.kernel_of.cache_clear()
    with pytest.raises(ConfigError, match="generated kernel of gelu does not belong"):
        kernels.kernel_of(GELU)
    kernels.kernel_of.cache_clear()


def test_emit_names_what_it_wrote() -> None:
    assert emit.registry_source(["b", "a"]).index('"b": b') < emit.registry_source(
        ["b", "a"]
    ).index('"a": a')
