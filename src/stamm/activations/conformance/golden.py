"""Golden vectors: exact outputs, correctly rounded, written, read, and compared with an implementation."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import mpmath
import numpy as np
import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

from stamm.activations.conformance.exact import (
    CONDITION_TEXT,
    FUNCTION,
    SLOPE,
    UP_SLOPE,
    ExactValues,
    exact_quantities,
    inputs,
    mixed_ups,
    parameter_slope,
    raw_slopes,
)
from stamm.activations.conformance.implementations import Bound, Implementation, observe
from stamm.activations.conformance.reference import DIGITS, evaluate
from stamm.activations.conformance.ulp import budget, dtype_name, parameter_budget, rounded, unit
from stamm.activations.conformance.verdict import (
    ConformanceVerdict,
    DtypeVerdict,
    QuantityErrors,
    gather,
    missing_slopes,
    problems_of,
)
from stamm.activations.derivation.derive import derive
from stamm.activations.derivation.formulas import Branches, Derived
from stamm.activations.spec import Gated, Spec
from stamm.base.config import from_plain, to_plain
from stamm.base.errors import ConfigError, DataError
from stamm.base.files import (
    canonical_json,
    read_json,
    sha256_bytes,
    sha256_file,
    write_bytes,
    write_json,
)
from stamm.base.json_text import parse_json
from stamm.version import VERSION

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
    sets = {"initial": first}
    if spec.name in _OTHER:
        return {**sets, **_OTHER[spec.name]}
    return {**sets, "moved": others[0]} if others else sets


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
    Edge     values are those that follow from stored numbers that float32 holds, in float64: an
             implementation that stores raw numbers has them exactly. A quantity with a declared
             surrogate holds the surrogate.
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
    manifest = {"stamm_version": VERSION, "content_hash": spec.content_hash}
    write_json(folder / MANIFEST, {**manifest, "files": written})
    return [folder / file for file in written]


def _check_same_spec(folder: Path, spec: Spec) -> None:
    """One folder, one spec: a second manifest would leave the first one's files without hashes."""
    path = folder / MANIFEST
    stored_hash = read_json(path).get("content_hash") if path.is_file() else spec.content_hash
    if stored_hash != spec.content_hash:
        raise ConfigError(
            f"{folder} holds the golden vectors of another activation ({str(stored_hash)[:12]})",
            fix="Choose a folder of its own",
        )


def _facts(spec: Spec, name: str, raw: Values, dtype: torch.dtype) -> dict[str, Any]:
    slopes = [parameter_slope(p.name) for p in spec.trainable]
    gated = [UP_SLOPE] if isinstance(spec.arity, Gated) else []
    return {
        "spec": to_plain(spec),
        "content_hash": spec.content_hash,
        "stamm_version": VERSION,
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
        truth = exact[name]
        tensors[f"{name}.{ROUNDED}"] = _correctly_rounded(derived, name, truth, x, up, values)
        tensors[f"{name}.{WELL}"] = truth.well_conditioned
        if dtype == torch.float32:
            tensors[f"{name}.{EXACT}"] = truth.values
    # One entry only: the order of several is not fixed by the format.
    data: bytes = save(tensors, {METADATA: canonical_json(facts).decode()})
    return data


def _correctly_rounded(
    derived: Derived, name: str, exact: ExactValues, x: Tensor, up: Tensor | None, values: Values
) -> Tensor:
    """The nearest value of the dtype of x; where float64 cannot tell, 120 digits decide."""
    result = rounded(exact.values, x.dtype)
    doubt = (_DOUBT * exact.values.abs() * exact.condition.clamp(min=1.0)).nan_to_num(nan=0.0)
    below, above = (rounded(exact.values + side * doubt, x.dtype) for side in (-1.0, 1.0))
    unsure = torch.nonzero((below != above) & torch.isfinite(exact.values)).flatten()
    if not len(unsure) or (name == SLOPE and derived.spec.surrogate):
        return result
    digits = _many_digits(derived, name, x[unsure], None if up is None else up[unsure], values)
    result[unsure] = torch.tensor(
        [
            _nearest(true, near, x.dtype)
            for true, near in zip(digits, exact.values[unsure].tolist(), strict=True)
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
    gate_values = evaluate(gate[FUNCTION if name == UP_SLOPE else name], x.tolist(), values)
    if up is None:
        return gate_values
    factors = [mpmath.mpf(u) for u in up.tolist()] if name != UP_SLOPE else [mpmath.mpf(1)] * len(x)
    if derived.up is not None:
        up_branches = derived.up.slope if name == UP_SLOPE else derived.up.function
        factors = evaluate(up_branches, up.tolist(), values)
    with mpmath.workdps(DIGITS):
        return [f * u for f, u in zip(gate_values, factors, strict=True)]


def _nearest(true: Any, near: float, dtype: torch.dtype) -> float:
    """A number of many digits in `dtype`, ties to even, as a float64 that the dtype holds."""
    with mpmath.workdps(DIGITS):
        start = float(true) if abs(true) > mpmath.mpf(2) ** -1000 else 0.0
        step = unit(torch.tensor([start or near], dtype=torch.float64), dtype).item()
        count = true / mpmath.mpf(step)
        whole = int(mpmath.nint(count))  # mpmath rounds ties to even
        rounded = mpmath.mpf(whole) * mpmath.mpf(step)
        limit = torch.finfo(dtype).max
        if abs(rounded) > limit:
            return float(mpmath.sign(true)) * float("inf")
        return float(rounded)


MANIFEST = "manifest.json"
METADATA = "golden"
INPUT, UP = "input", "up"
ROUNDED, EXACT, WELL = "rounded", "exact", "well_conditioned"


@dataclass(frozen=True, eq=False)
class GoldenQuantity:
    """One quantity at every input of a file.

    rounded            the exact value, correctly rounded to the dtype of the file
    exact              the same in float64, in files of float32; else None
    well_conditioned   where an implementation is held to its budget
    """

    rounded: Tensor
    exact: Tensor | None
    well_conditioned: Tensor


@dataclass(frozen=True, eq=False)
class Golden:
    """The content of one file.

    value_set    what the parameter values are called
    raw          the stored number of each trainable parameter, exact in float32
    values       the effective values that follow, fixed parameters included
    x, up        inputs; up only for a gated spec
    quantities   by name: function, slope, up_slope, slope_in_NAME (in the effective value)
    version      of stamm, when it was written
    """

    spec: Spec
    value_set: str
    raw: Mapping[str, float]
    values: Mapping[str, float]
    x: Tensor
    up: Tensor | None
    quantities: Mapping[str, GoldenQuantity]
    version: str


def read_golden(path: Path) -> Golden:
    """The content of one file, checked against the manifest beside it where there is one.

    Raises   DataError when it cannot be read, has no golden metadata, or has other bytes than its
             manifest records.
    Checked  tests/unit/activations/test_conformance_golden.py
    """
    _check_bytes(path)
    try:
        with safe_open(path, framework="pt") as opened:
            metadata = opened.metadata() or {}
            tensors = {name: opened.get_tensor(name) for name in opened.keys()}  # noqa: SIM118
    except (OSError, SafetensorError) as error:
        raise DataError(f"{path} cannot be read: {error}") from None
    wrong = DataError(
        f"{path} holds no golden vectors",
        fix="`stamm check NAME --write-golden FOLDER` writes them",
    )
    if METADATA not in metadata or INPUT not in tensors:
        raise wrong
    try:
        facts: dict[str, Any] = parse_json(metadata[METADATA])
        spec = from_plain(Spec, facts["spec"], str(path))
        quantities = {
            name: GoldenQuantity(
                rounded=tensors[f"{name}.{ROUNDED}"],
                exact=tensors.get(f"{name}.{EXACT}"),
                well_conditioned=tensors[f"{name}.{WELL}"].bool(),
            )
            for name in facts["quantities"]
        }
        return Golden(
            spec=spec,
            value_set=facts["value_set"],
            raw=facts["raw"],
            values=facts["values"],
            x=tensors[INPUT],
            up=tensors.get(UP),
            quantities=quantities,
            version=facts["stamm_version"],
        )
    except (KeyError, TypeError, ValueError, ConfigError) as error:
        raise DataError(f"{path} is damaged: {error}", fix="Write it again") from None


def golden_files(folder: Path) -> list[Path]:
    """The files that a folder's manifest lists, in its order.

    Raises   DataError when there is no manifest or a file is missing.
    """
    manifest = read_json(folder / MANIFEST)
    listed = manifest.get("files") if isinstance(manifest, dict) else None
    if not isinstance(listed, dict):
        raise DataError(f"{folder / MANIFEST} lists no files", fix="Write the folder again")
    paths = [folder / Path(name).name for name in listed]
    missing = [path.name for path in paths if not path.is_file()]
    if missing:
        raise DataError(f"{folder} lacks {missing[0]}", fix="Write the folder again")
    return paths


def judge_golden(path: Path, implementation: Implementation) -> ConformanceVerdict:
    """An implementation against one file.

    Edge     where the file holds rounded values only, half a unit is added to the budget: so far
             the rounded value itself may be from the exact one. A slope in a stored (raw) number is
             compared with the file's slopes times those of the constraint; the product may lie
             where units are half as large, which adds another half.
    Raises   DataError as `read_golden` does, and when the implementation cannot be judged.
    """
    golden = read_golden(path)
    dtype = golden.x.dtype
    name = str(dtype).removeprefix("torch.")
    bound = implementation.bind(golden.spec, golden.values, dtype)
    seen = observe(implementation.name, bound, golden.x, golden.up, list(golden.quantities))
    exact = _stored(golden, bound)
    limit = budget(golden.spec.name, name)
    nowhere = torch.zeros_like(golden.x, dtype=torch.bool)
    measured = []
    for quantity, truth in exact.items():
        if quantity in seen:
            result = seen[quantity]
            kept = torch.ones_like(nowhere)
            if quantity not in (FUNCTION, SLOPE, UP_SLOPE):
                kept = truth.size < torch.finfo(dtype).max / 2**8
            chosen = ExactValues(truth.values[kept], truth.condition[kept])
            rows = gather(
                golden.x[kept], result[kept], chosen, at_knots=nowhere[kept], room=limit.room
            )
            measured.append(QuantityErrors(quantity=quantity, rows=rows))
    short = golden.quantities[FUNCTION].exact is None
    own = limit.ulp + 0.5 * short
    wider = parameter_budget(golden.spec.name, name).ulp + (1.0 if short else 0.0)
    missing, not_judged = missing_slopes([q for q in exact if q not in seen])
    return ConformanceVerdict(
        spec=golden.spec.name,
        content_hash=golden.spec.content_hash,
        implementation=implementation.name,
        judged_where=CONDITION_TEXT,
        dtypes=(
            DtypeVerdict(
                dtype=name,
                budget_ulp=own,
                budget_reason=limit.reason,
                parameter_budget_ulp=wider,
                inputs=len(golden.x),
                values=tuple(golden.values.items()),
                quantities=tuple(measured),
                facts=(),
                problems=(*missing, *problems_of(measured, (), own, wider)),
                not_judged=tuple(not_judged),
            ),
        ),
    )


def _stored(golden: Golden, bound: Bound) -> dict[str, ExactValues]:
    """The values to compare with, slopes turned into slopes in stored numbers where those are held."""
    exact = {name: _exact(stored) for name, stored in golden.quantities.items()}
    if bound.holds == "raw" and bound.leaves:
        for name, weights in raw_slopes(golden.spec, golden.raw).items():
            parts = [(exact[parameter_slope(p)], w) for p, w in weights.items()]
            values = torch.stack([part.values * weight for part, weight in parts]).sum(0)
            size = torch.stack([part.values.abs() for part, _ in parts]).amax(0)
            condition = torch.stack([part.condition for part, _ in parts]).amax(0)
            exact[parameter_slope(name)] = ExactValues(values, condition, size)
    return exact


def _exact(quantity: GoldenQuantity) -> ExactValues:
    values = quantity.rounded.double() if quantity.exact is None else quantity.exact
    return ExactValues(values, torch.where(quantity.well_conditioned, 0.0, torch.inf).double())


def _check_bytes(path: Path) -> None:
    beside = path.parent / MANIFEST
    if not path.is_file() or not beside.is_file():
        return
    manifest = read_json(beside)
    listed = manifest.get("files", {}) if isinstance(manifest, dict) else {}
    known = listed.get(path.name) if isinstance(listed, dict) else None
    if isinstance(known, dict) and known.get("sha256") != sha256_file(path):
        raise DataError(
            f"the SHA-256 of {path} is not the one in {MANIFEST}",
            fix="Fetch or write the folder again",
        )
