"""The generated files: complete, up to date, and the same bytes every time."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from stamm.activations.catalog import ENTRIES, GELU, RELU, XIELU, get
from stamm.activations.codegen import kernel_lookup
from stamm.activations.codegen.kernel import kernel_source
from stamm.activations.codegen.write import GENERATED, ROOT, generate, generate_shared
from stamm.activations.derivation.derive import derive
from stamm.activations.describe import certificate, shipped
from stamm.activations.spec.shipped import NAMES
from stamm.base.errors import ConfigError

SOME = tuple(
    map(get, ("xielu", "xatlu", "swiglu_oai", "fatrelu_glu", "helu", "prelu"))
)  # all of them would take minutes; hashes are checked for all


def test_shipped_files_are_what_the_specs_give(tmp_path: Path) -> None:
    made = [path for spec in SOME for path in generate(spec, tmp_path / GENERATED.name)]
    for path in [*generate_shared(ENTRIES, tmp_path), *made]:
        stored = ROOT / path.relative_to(tmp_path)
        assert path.read_bytes() == stored.read_bytes(), path.name


def test_every_entry_ships_and_nothing_else_does() -> None:
    names = {spec.name for spec in ENTRIES}
    assert {p.stem for p in (GENERATED / "entries").glob("*.json")} == names
    assert {p.stem for p in (GENERATED / "certificates").glob("*.json")} == names
    assert {p.stem for p in (GENERATED / "kernels").glob("*.py")} - {"__init__"} == names
    for spec in ENTRIES:  # stale files are told by their hash
        assert kernel_lookup.kernel_of(spec).content_hash == spec.content_hash
        assert shipped(spec.name)["content_hash"] == spec.content_hash
        assert certificate(spec) is not None


def test_the_text_does_not_depend_on_hash_order() -> None:
    code = (
        "from stamm.activations.catalog import XIELU\n"
        "from stamm.activations.derivation.derive import derive\n"
        "from stamm.activations.codegen.kernel import kernel_source\n"
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
    for path in GENERATED.rglob("*.py"):
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
    monkeypatch.setitem(NAMES, GELU.content_hash, "relu")
    kernel_lookup.kernel_of.cache_clear()
    with pytest.raises(ConfigError, match="generated kernel of relu does not belong"):
        kernel_lookup.kernel_of(GELU)
    kernel_lookup.kernel_of.cache_clear()
