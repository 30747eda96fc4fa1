"""Writes everything that ships with the catalogue: kernels, texts, certificates, the index."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from stamm.activations.catalog.registry import FAMILIES, family, parts
from stamm.activations.certificates.certificate import certify
from stamm.activations.codegen.kernel import COMMAND, condition_text, kernel_source
from stamm.activations.derivation.approximate import (
    DOUBLE,
    SINGLE,
    arctan_remainder,
    dilogarithm_remainder,
    error_complement,
    exponential_integral_far,
    exponential_integral_middle,
    exponential_integral_near,
    exponential_remainder,
    fit,
    log_cosh_quotient,
)
from stamm.activations.derivation.derive import derive
from stamm.activations.derivation.formulas import Branches, Derived
from stamm.activations.spec import Spec
from stamm.activations.spec.shipped import INDEX
from stamm.base.files import write_text

ROOT = Path(__file__).parents[1]
GENERATED = ROOT / "generated"


def generate(spec: Spec, folder: Path = GENERATED) -> list[Path]:
    """Write the kernel, the texts and the certificate of a spec. Same spec, same bytes.

    Checked  tests/unit/activations/test_emit.py
    """
    derived = derive(spec)
    files = {
        f"kernels/{spec.name}.py": kernel_source(derived),
        f"entries/{spec.name}.json": json.dumps(texts(derived), indent=1) + "\n",
        f"certificates/{spec.name}.json": json.dumps(certify(derived), indent=1) + "\n",
    }
    for name, text in files.items():
        write_text(folder / name, text)
    return [folder / name for name in files]


def generate_shared(specs: Sequence[Spec], folder: Path = ROOT) -> list[Path]:
    """Write what all kernels share: polynomials, and the index from content hash to name."""
    written = {
        "primitives/coefficients.py": coefficients_source(COMMAND),
        f"generated/{INDEX}": json.dumps(index(specs), indent=1) + "\n",
    }
    for name, text in written.items():
        write_text(folder / name, text)
    return [folder / name for name in written]


def texts(derived: Derived) -> dict[str, Any]:
    """The description of an activation that needs no SymPy: its formulas as text, and its hash."""

    def branch_texts(branches: Branches) -> list[dict[str, str]]:
        return [{"where": condition_text(b), "formula": str(b.formula)} for b in branches]

    exact = derived.exact
    names = [p.name for p in derived.spec.trainable]
    return {
        "content_hash": derived.spec.content_hash,
        "function": branch_texts(exact.function),
        "slope": branch_texts(exact.slope),
        "curvature": branch_texts(derived.stable.curvature),
        "parameter_slopes": {
            name: branch_texts(branches)
            for name, branches in zip(names, exact.parameter_slopes, strict=True)
        },
    }


def index(specs: Sequence[Spec]) -> dict[str, dict[str, str]]:
    """The tables of `spec.shipped`: content hash to name, of entries and of parts, and name or alias to family."""
    known = [(spec, home) for home in FAMILIES for spec in family(home)]
    return {
        "names": {spec.content_hash: spec.name for spec in specs},
        "parts": {spec.content_hash: spec.name for home in FAMILIES for spec in parts(home)},
        "homes": {name: home for spec, home in known for name in (spec.name, *spec.aliases)},
    }


_PER_LINE = 4
_POLYNOMIALS: tuple[tuple[str, str, Callable[[Any], Any], float, float], ...] = (
    (
        "EXPONENTIAL_NEGATIVE",
        "2 (exp(u) - 1 - u - u**2/2)/u**3 on [-1, 0]",
        exponential_remainder,
        -1.0,
        0.0,
    ),
    (
        "EXPONENTIAL_POSITIVE",
        "2 (exp(u) - 1 - u - u**2/2)/u**3 on [0, 1]",
        exponential_remainder,
        0.0,
        1.0,
    ),
    (
        "ARCTAN",
        "(atan(t) - t/(1 + t**2))/t**3 at u = t**2 on [0, 1]",
        arctan_remainder,
        0.0,
        1.0,
    ),
    (
        "DILOGARITHM",
        "(-Li2(1 - exp(s)) - s - s**2/4)/s**3 at u = s**2 on [0, 1.8]",
        dilogarithm_remainder,
        0.0,
        1.8,
    ),
    (
        "LOG_COSH",
        "log(cosh(v))/v**2 at u = v**2 on [0, 1]",
        log_cosh_quotient,
        0.0,
        1.0,
    ),
    (
        "EXPONENTIAL_INTEGRAL_NEAR",
        "(E1(u) + log(u) + Euler's constant)/u on [0, 0.5]",
        exponential_integral_near,
        0.0,
        0.5,
    ),
    (
        "EXPONENTIAL_INTEGRAL_MIDDLE",
        "exp(z) E1(z), z = exp(-u), on [-2.1, 0.7]",
        exponential_integral_middle,
        -2.1,
        0.7,
    ),
    (
        "EXPONENTIAL_INTEGRAL_FAR",
        "z exp(z) E1(z), z = 1/u, on [0, 0.125]",
        exponential_integral_far,
        0.0,
        0.125,
    ),
    (
        "ERROR_COMPLEMENT",
        "(1 + 2 x) exp(x**2) erfc(x) at t = (x - 3)/(x + 3) on [-1, 1]",
        error_complement,
        -1.0,
        1.0,
    ),
)


def coefficients_source(command: str) -> str:
    """The source of the module that holds each polynomial twice: for float32, then for float64.

    command   what regenerates it, named in its header
    Checked   tests/unit/activations/test_emit.py
    """
    head = (
        f'"""Coefficients of polynomials, lowest power first. Generated by `{command}`: do not'
        ' edit.\n\nEach name holds two: enough for float32, and enough for float64.\n"""\n\n'
        "from __future__ import annotations\n\n"
    )
    return head + "\n".join(_definition(*polynomial) for polynomial in _POLYNOMIALS)


def _definition(
    name: str, definition: str, function: Callable[[Any], Any], low: float, high: float
) -> str:
    single, double = (fit(function, low, high, target) for target in (SINGLE, DOUBLE))
    lines = [
        f"# {definition}.",
        f"# Relative error {single.relative_error:.1e} in degree {len(single.coefficients) - 1},"
        f" {double.relative_error:.1e} in degree {len(double.coefficients) - 1}.",
        f"{name} = (",
        *_rows(single.coefficients),
        *_rows(double.coefficients),
        ")",
    ]
    return "\n".join(lines) + "\n"


def _rows(numbers: Sequence[float]) -> list[str]:
    rows = [
        "        " + " ".join(f"{number!r}," for number in numbers[i : i + _PER_LINE])
        for i in range(0, len(numbers), _PER_LINE)
    ]
    return ["    (", *rows, "    ),"]
