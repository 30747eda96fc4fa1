"""Golden vectors as files: inputs and exact outputs that any implementation can be held to.

Reading and judging need neither SymPy nor a derivation: everything is in the file.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from stamm.activations.conformance.budgets import budget, parameter_budget
from stamm.activations.conformance.exact import (
    CONDITION_TEXT,
    FUNCTION,
    SLOPE,
    UP_SLOPE,
    ExactValues,
    parameter_slope,
    raw_slopes,
)
from stamm.activations.conformance.implementations import Bound, Implementation, observe
from stamm.activations.conformance.verdict import (
    ConformanceVerdict,
    DtypeVerdict,
    QuantityErrors,
    gather,
    missing_slopes,
    problems_of,
)
from stamm.activations.spec import Spec
from stamm.base.config import from_plain
from stamm.base.errors import ConfigError, DataError
from stamm.base.files import read_json, sha256_file
from stamm.base.json_text import parse_json

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
    for quantity, of in exact.items():
        if quantity in seen.quantities:
            result = seen.quantities[quantity]
            kept = torch.ones_like(nowhere)
            if quantity not in (FUNCTION, SLOPE, UP_SLOPE):
                kept = of.size < torch.finfo(dtype).max / 2**8
            chosen = ExactValues(of.values[kept], of.condition[kept])
            rows = gather(
                golden.x[kept], result[kept], chosen, at_knots=nowhere[kept], room=limit.room
            )
            measured.append(QuantityErrors(quantity=quantity, rows=rows))
    short = golden.quantities[FUNCTION].exact is None
    own = limit.ulp + 0.5 * short
    wider = parameter_budget(golden.spec.name, name).ulp + (1.0 if short else 0.0)
    missing, not_judged = missing_slopes([q for q in exact if q not in seen.quantities])
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
    exact = {name: _exact(of) for name, of in golden.quantities.items()}
    if bound.holds == "raw" and bound.leaves:
        for name, weights in raw_slopes(golden.spec, golden.raw).items():
            parts = [(exact[parameter_slope(p)], w) for p, w in weights.items()]
            values = torch.stack([part.values * weight for part, weight in parts]).sum(0)
            size = torch.stack([part.values.abs() for part, _ in parts]).amax(0)
            condition = torch.stack([part.condition for part, _ in parts]).amax(0)
            exact[parameter_slope(name)] = ExactValues(values, condition, size)
    return exact


def _exact(of: GoldenQuantity) -> ExactValues:
    values = of.rounded.double() if of.exact is None else of.exact
    return ExactValues(values, torch.where(of.well_conditioned, 0.0, torch.inf).double())


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
