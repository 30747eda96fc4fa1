"""Writing golden vectors: exact outputs, correctly rounded, with everything needed to judge by."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import mpmath
import numpy as np
import torch
from safetensors.torch import save
from torch import Tensor

import stamm
from stamm.activations.conformance.exact import (
    FUNCTION,
    SLOPE,
    UP_SLOPE,
    ExactValues,
    exact_quantities,
    parameter_slope,
)
from stamm.activations.conformance.inputs import inputs, mixed_ups
from stamm.activations.conformance.reference import DIGITS, evaluate
from stamm.activations.conformance.ulp import dtype_name, rounded, unit
from stamm.activations.conformance.vectors import (
    EXACT,
    INPUT,
    MANIFEST,
    METADATA,
    ROUNDED,
    UP,
    WELL,
    Golden,
    GoldenQuantity,
    golden_files,
    judge_golden,
    read_golden,
)
from stamm.activations.derivation.derive import derive
from stamm.activations.derivation.formulas import Branches, Derived
from stamm.activations.spec import Gated, Spec
from stamm.base.config import to_plain
from stamm.base.errors import ConfigError
from stamm.base.files import canonical_json, read_json, sha256_bytes, write_bytes, write_json

DTYPES = (torch.bfloat16, torch.float16, torch.float32)
COUNT = 20_000
_DOUBT = 64 * 2.0**-53  # relative error that float64 values are trusted to, where well conditioned
_OTHER = {"xielu": {"apertus": {"alpha_p": 166.0, "alpha_n": 41.25}}}

Values = Mapping[str, float]


def value_sets(spec: Spec) -> dict[str, dict[str, float]]:
    """The effective values that vectors are written for, by name.

    "initial", and for a spec with trainable parameters "moved", one generic other set. xielu has
    "apertus" for it: layer 0 of the released Apertus-8B, where alphas are large.
    """
    names = [p.name for p in spec.trainable]
    first, *others = [{n: sample[n] for n in names} for sample in spec.sample_values()]
    found = {"initial": first}
    if spec.name in _OTHER:
        return {**found, **_OTHER[spec.name]}
    return {**found, "moved": others[0]} if others else found


def write_golden(
    spec: Spec,
    folder: Path,
    sets: Mapping[str, Values] | None = None,
    *,
    dtypes: Sequence[torch.dtype] = DTYPES,
    count: int = COUNT,
) -> list[Path]:
    """Write one file for each set of values and dtype, and a manifest with their hashes.

    Files are called <hash16>-<set>-<dtype>.safetensors after the spec's content hash. Each holds
    the inputs (`input`; `up` for a gated spec) and, for each quantity, its correctly rounded values
    (`.rounded`), where it is well conditioned (`.well_conditioned`) and, in float32, the float64
    values (`.exact`). Same spec, same bytes.

    sets     effective values by name; `value_sets(spec)` by default
    count    float32 inputs; 16-bit files hold every finite input
    Edge     values are those that follow from stored numbers that float32 holds, in float64: who stores
             raw numbers has them exactly. A quantity with a declared surrogate holds the surrogate.
    Raises   ConfigError for values that the spec refuses.
    Checked  tests/unit/activations/test_conformance_golden.py
    """
    _check_same_spec(folder, spec)
    derived = derive(spec)
    written: dict[str, dict[str, Any]] = {}
    for name, chosen in (sets or value_sets(spec)).items():
        raw = {p: float(np.float32(v)) for p, v in spec.raw_values(chosen).items()}
        for dtype in dtypes:
            facts = _facts(spec, name, raw, dtype)
            data = _file(derived, facts, dtype, count)
            file = f"{spec.content_hash[:16]}-{name}-{dtype_name(dtype)}.safetensors"
            write_bytes(folder / file, data)
            written[file] = {"sha256": sha256_bytes(data), **facts, "spec": spec.name}
    manifest = {"stamm_version": stamm.__version__, "content_hash": spec.content_hash}
    write_json(folder / MANIFEST, {**manifest, "files": written})
    return [folder / file for file in written]


def _check_same_spec(folder: Path, spec: Spec) -> None:
    """One folder, one spec: a second manifest would leave the first one's files without hashes."""
    path = folder / MANIFEST
    found = read_json(path).get("content_hash") if path.is_file() else spec.content_hash
    if found != spec.content_hash:
        raise ConfigError(
            f"{folder} holds the golden vectors of another activation ({str(found)[:12]})",
            fix="Choose a folder of its own",
        )


def _facts(spec: Spec, name: str, raw: Values, dtype: torch.dtype) -> dict[str, Any]:
    slopes = [parameter_slope(p.name) for p in spec.trainable]
    gated = [UP_SLOPE] if isinstance(spec.arity, Gated) else []
    return {
        "spec": to_plain(spec),
        "content_hash": spec.content_hash,
        "stamm_version": stamm.__version__,
        "value_set": name,
        "dtype": dtype_name(dtype),
        "raw": dict(raw),
        "values": spec.effective_values(raw),
        "quantities": [FUNCTION, SLOPE, *gated, *slopes],
    }


def _file(derived: Derived, facts: Mapping[str, Any], dtype: torch.dtype, count: int) -> bytes:
    spec, values = derived.spec, facts["values"]
    x = inputs(spec, values, dtype, count=count)
    up = mixed_ups(len(x), dtype) if isinstance(spec.arity, Gated) else None
    tensors = {INPUT: x} if up is None else {INPUT: x, UP: up}
    exact = exact_quantities(spec, values, x.double(), None if up is None else up.double())
    for name in facts["quantities"]:
        of = exact[name]
        tensors[f"{name}.{ROUNDED}"] = _correctly_rounded(derived, name, of, x, up, values)
        tensors[f"{name}.{WELL}"] = of.well_conditioned
        if dtype == torch.float32:
            tensors[f"{name}.{EXACT}"] = of.values
    # One entry only: the order of several is not fixed by the format.
    data: bytes = save(tensors, {METADATA: canonical_json(facts).decode()})
    return data


def _correctly_rounded(
    derived: Derived, name: str, of: ExactValues, x: Tensor, up: Tensor | None, values: Values
) -> Tensor:
    """The nearest value of the dtype of x; where float64 cannot tell, 120 digits decide."""
    result = rounded(of.values, x.dtype)
    doubt = (_DOUBT * of.values.abs() * of.condition.clamp(min=1.0)).nan_to_num(nan=0.0)
    below, above = (rounded(of.values + side * doubt, x.dtype) for side in (-1.0, 1.0))
    unsure = torch.nonzero((below != above) & torch.isfinite(of.values)).flatten()
    if not len(unsure) or (name == SLOPE and derived.spec.surrogate):
        return result
    digits = _many_digits(derived, name, x[unsure], None if up is None else up[unsure], values)
    result[unsure] = torch.tensor(
        [
            _nearest(true, near, x.dtype)
            for true, near in zip(digits, of.values[unsure].tolist(), strict=True)
        ],
        dtype=torch.float64,
    ).to(x.dtype)
    return result


def _many_digits(
    derived: Derived, name: str, x: Tensor, up: Tensor | None, values: Values
) -> list[Any]:
    exact = derived.exact
    trainable = [parameter_slope(p.name) for p in derived.spec.trainable]
    gate: dict[str, Branches] = {FUNCTION: exact.function, SLOPE: exact.slope}
    gate |= dict(zip(trainable, exact.parameter_slopes, strict=True))
    found = evaluate(gate[FUNCTION if name == UP_SLOPE else name], x.tolist(), values)
    if up is None:
        return found
    factors = [mpmath.mpf(u) for u in up.tolist()] if name != UP_SLOPE else [mpmath.mpf(1)] * len(x)
    if derived.up is not None:
        of = derived.up.slope if name == UP_SLOPE else derived.up.function
        factors = evaluate(of, up.tolist(), values)
    with mpmath.workdps(DIGITS):
        return [f * u for f, u in zip(found, factors, strict=True)]


def _nearest(true: Any, near: float, dtype: torch.dtype) -> float:
    """A number of many digits in `dtype`, ties to even, as a float64 that the dtype holds."""
    with mpmath.workdps(DIGITS):
        start = float(true) if abs(true) > mpmath.mpf(2) ** -1000 else 0.0
        step = unit(torch.tensor([start or near], dtype=torch.float64), dtype).item()
        count = true / mpmath.mpf(step)
        whole = int(mpmath.nint(count))  # mpmath rounds ties to even
        found = mpmath.mpf(whole) * mpmath.mpf(step)
        limit = torch.finfo(dtype).max
        if abs(found) > limit:
            return float(mpmath.sign(true)) * float("inf")
        return float(found)


__all__ = [
    "COUNT",
    "Golden",
    "GoldenQuantity",
    "golden_files",
    "judge_golden",
    "read_golden",
    "value_sets",
    "write_golden",
]
