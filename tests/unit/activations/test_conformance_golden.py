"""Golden vectors: written, read back, judged by, and refused when their bytes have changed."""

from __future__ import annotations

import json
import subprocess
import sys
from fractions import Fraction
from pathlib import Path

import mpmath
import numpy as np
import pytest
import torch
import torch.nn.functional as F
from safetensors.torch import save_file

from stamm.activations import catalog
from stamm.activations.conformance.golden import (
    golden_files,
    judge_golden,
    read_golden,
    value_sets,
    write_golden,
)
from stamm.activations.conformance.implementations import (
    FunctionImplementation,
    StammImplementation,
)
from stamm.activations.conformance.ulp import neighbours
from stamm.activations.derivation.derive import derive
from stamm.base.errors import ConfigError, DataError
from stamm.base.files import sha256_file
from tests.unit.activations.truths import parameter_truth, truth

COUNT = 600


@pytest.fixture(scope="module")
def xielu_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("golden")
    write_golden(catalog.XIELU, folder, count=COUNT)
    return folder


def test_files_are_named_by_hash_set_and_dtype(xielu_folder: Path) -> None:
    names = [path.name for path in golden_files(xielu_folder)]
    start = catalog.XIELU.content_hash[:16]
    assert names == [
        f"{start}-{values}-{dtype}.safetensors"
        for values in ("initial", "apertus")
        for dtype in ("bfloat16", "float16", "float32")
    ]
    manifest = json.loads((xielu_folder / "manifest.json").read_text())
    for name, entry in manifest["files"].items():
        assert entry["sha256"] == sha256_file(xielu_folder / name)


def test_value_sets() -> None:
    assert value_sets(catalog.XIELU)["apertus"] == {"alpha_p": 166.0, "alpha_n": 41.25}
    assert list(value_sets(catalog.GELU)) == ["initial"]
    assert list(value_sets(catalog.XSILU)) == ["initial", "moved"]


def test_a_file_says_everything_needed_to_judge_by_it(xielu_folder: Path) -> None:
    golden = read_golden(golden_files(xielu_folder)[3])
    assert golden.spec == catalog.XIELU
    assert golden.value_set == "apertus"
    assert golden.raw == {"alpha_p": 166.0, "alpha_n": 40.75}
    assert golden.values == {"alpha_p": 166.0, "alpha_n": 41.25, "beta": 0.5}
    assert list(golden.quantities) == ["function", "slope", "slope_in_alpha_p", "slope_in_alpha_n"]
    assert len(golden.x) == 65_280
    assert all(of.exact is None for of in golden.quantities.values())
    wide = read_golden(golden_files(xielu_folder)[5])
    assert all(of.exact is not None for of in wide.quantities.values())


def _is_nearest(found: float, true: object, dtype: torch.dtype) -> bool:
    """Whether no neighbour in the dtype is nearer to the exact value, by exact fractions."""
    sign, mantissa, exponent, _ = mpmath.mpf(true)._mpf_
    exact = Fraction((-1) ** sign * int(mantissa)) * Fraction(2) ** exponent
    others = [o for o in neighbours(torch.tensor([found], dtype=dtype)).tolist() if abs(o) < 1e39]
    gap = abs(Fraction(found) - exact)
    return all(gap <= abs(Fraction(other) - exact) for other in others)


@pytest.mark.parametrize("position", [0, 4, 2])
def test_outputs_are_correctly_rounded(xielu_folder: Path, position: int) -> None:
    golden = read_golden(golden_files(xielu_folder)[position])
    derived = derive(catalog.XIELU)
    # Every 211th input, and the subnormals, where halving an odd number is a tie in float64.
    chosen = torch.zeros(len(golden.x), dtype=torch.bool)
    chosen[::211] = True
    chosen |= (golden.x.abs() < 4 * torch.finfo(golden.x.dtype).smallest_normal) & (
        torch.arange(len(golden.x)) % 5 == 0
    )
    points = golden.x[chosen].double().tolist()
    exact = {
        "function": truth(derived, "function", points, golden.values),
        "slope": truth(derived, "slope", points, golden.values),
        "slope_in_alpha_n": parameter_truth(derived, "alpha_n", points, golden.values),
    }
    with mpmath.workdps(120):
        for name, values in exact.items():
            held = golden.quantities[name].rounded[chosen].double().tolist()
            for found, true in zip(held, values, strict=True):
                if np.isfinite(found):
                    assert _is_nearest(found, true, golden.x.dtype)
                else:
                    assert abs(true) > torch.finfo(golden.x.dtype).max


def test_our_own_module_agrees(xielu_folder: Path) -> None:
    for path in golden_files(xielu_folder)[3:]:
        verdict = judge_golden(path, StammImplementation())
        assert verdict.passed, verdict.problems


def test_a_wrong_implementation_is_found(tmp_path: Path) -> None:
    for path in write_golden(catalog.SILU, tmp_path, dtypes=(torch.bfloat16, torch.float16)):
        right = judge_golden(path, FunctionImplementation("torch", F.silu)).problems
        assert not any("function is" in problem for problem in right)
        wrong = judge_golden(path, FunctionImplementation("quick", _quick)).problems
        assert any("function is" in problem for problem in wrong)


def test_an_output_without_a_gradient_does_not_conform_to_vectors(tmp_path: Path) -> None:
    (path,) = write_golden(catalog.SILU, tmp_path, dtypes=(torch.float16,))
    found = judge_golden(path, FunctionImplementation("fixed", lambda x: F.silu(x).detach()))
    assert "float16: slope is missing: the output has no gradient in the input" in found.problems


def _quick(x: torch.Tensor) -> torch.Tensor:
    return x * torch.sigmoid(1.702 * x)


def test_gated_files_hold_the_second_input(tmp_path: Path) -> None:
    path = write_golden(catalog.get("swiglu"), tmp_path, dtypes=(torch.float32,), count=COUNT)[0]
    golden = read_golden(path)
    assert golden.up is not None
    assert list(golden.quantities) == ["function", "slope", "up_slope"]
    assert judge_golden(path, StammImplementation()).passed
    swapped = FunctionImplementation("swapped", lambda gate, up: F.silu(up) * gate)
    assert not judge_golden(path, swapped).passed


def test_equal_specs_give_equal_bytes(tmp_path: Path) -> None:
    for folder in ("a", "b"):
        write_golden(catalog.SILU, tmp_path / folder, dtypes=(torch.float16,))
    first, second = (sorted((tmp_path / folder).iterdir()) for folder in ("a", "b"))
    assert [p.name for p in first] == [p.name for p in second]
    assert all(a.read_bytes() == b.read_bytes() for a, b in zip(first, second, strict=True))


def test_changed_bytes_and_foreign_files_are_refused(tmp_path: Path) -> None:
    path = write_golden(catalog.RELU, tmp_path, dtypes=(torch.float16,))[0]
    data = bytearray(path.read_bytes())
    data[-3] ^= 1
    path.write_bytes(bytes(data))
    with pytest.raises(DataError, match=r"is not the one in manifest\.json"):
        read_golden(path)
    save_file({"input": torch.zeros(3)}, tmp_path / "foreign.safetensors")
    with pytest.raises(DataError, match="holds no golden vectors"):
        read_golden(tmp_path / "foreign.safetensors")
    (tmp_path / "empty.safetensors").write_bytes(b"")
    with pytest.raises(DataError, match="cannot be read"):
        read_golden(tmp_path / "empty.safetensors")
    path.unlink()
    with pytest.raises(DataError, match="lacks"):
        golden_files(tmp_path)


@pytest.mark.slow
def test_judging_needs_no_derivation(xielu_folder: Path) -> None:
    path = golden_files(xielu_folder)[4]
    script = (
        "from pathlib import Path\n"
        "from stamm.activations.derivation.derive import derive\n"
        "from stamm.activations.conformance.implementations import StammImplementation\n"
        "from stamm.activations.conformance.golden import judge_golden\n"
        f"assert judge_golden(Path({str(path)!r}), StammImplementation()).passed\n"
        "assert derive.cache_info().misses == 0\n"
    )
    subprocess.run([sys.executable, "-c", script], check=True)


def test_a_folder_holds_the_vectors_of_one_activation(tmp_path: Path) -> None:
    write_golden(catalog.get("relu"), tmp_path, dtypes=(torch.float16,))
    with pytest.raises(ConfigError, match="holds the golden vectors of another activation"):
        write_golden(catalog.get("relu2"), tmp_path, dtypes=(torch.float16,))
    write_golden(catalog.get("relu"), tmp_path, dtypes=(torch.float16,))
